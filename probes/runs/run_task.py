"""The texts of a run: its task under its protocol, and the corpus that its heads start from; loads no torch."""

from typing import Any

from probes.data.task import Corpus, Task, load_corpus
from probes.fitting.fit_options import find_protocol
from probes.runs.run_config import RunConfig

MTEB_TASKS = ("banking77",)
"""Tasks that Look Both Ways scores as mteb does, with their own splits; use `few-shot-probe`."""


def load_run_task(config: RunConfig) -> Task:
    """Load the task of a run with the changes of its protocol, such as other splits under `look-both-ways`."""
    protocol = find_protocol(config.protocol)
    config.require_files("task")
    task: Any = config.task.load(protocol.task)
    cut = protocol.cut.get(config.task.kind)
    if cut == "released-split" and task.name not in MTEB_TASKS:
        from probes.data.domains import look_both_ways_split

        task = look_both_ways_split(task)
    elif cut == "every-token":  # reading the tokenizer does not load the decoder
        from extract.decoders.decoder import load_tokenizer
        from probes.data.word_task import label_every_token

        task = label_every_token(task, load_tokenizer(config.decoder), template=config.extraction.template)
    changed: Task = task
    return changed


def obtain_corpus(config: RunConfig) -> Corpus | None:
    """Load the pretraining corpus of a run; None when no head of it starts from autoencoders."""
    spec = config.pretraining
    starts = [(options or {}).get("start", "fresh") for options in config.heads.values()]
    if not spec.corpus or all(start == "fresh" for start in starts):
        return None
    config.require_files("pretraining")
    return load_corpus(spec.corpus, spec.texts, spec.options)
