"""The task of a run as its protocol wants it, with its heads checked against it."""

from collections.abc import Callable
from typing import Any

from probes.fitting.protocols import find_protocol
from probes.heads.entries import Purpose
from probes.heads.registry import HEADS
from probes.runs.config import RunConfig
from probes.tasks.base import Task
from probes.tasks.classes.look_both_ways import look_both_ways_split


def _every_token(task: Any, config: RunConfig) -> Any:
    from extract.decoders.loading import load_tokenizer  # brings torch with it
    from probes.tasks.words.every_token import label_every_token

    return label_every_token(task, load_tokenizer(config.decoder), template=config.extraction.template)


CUTS: dict[str, Callable[[Any, RunConfig], Any]] = {
    "released-split": lambda task, _: look_both_ways_split(task),
    "every-token": _every_token,
}
"""What protocols do to a task, by name; reading the tokenizer does not load the decoder."""


def load_run_task(config: RunConfig) -> Task:
    """Load the task of a run, and do to it what the protocol of the run does.

    Under `look-both-ways`, classes are split again and every token of a task of words is labelled.
    """
    protocol = find_protocol(config.protocol)
    task = config.task.load(protocol.task)
    cut = protocol.cut.get(config.task.kind, "")
    found: Task = CUTS[cut](task, config) if cut else task
    return found


def check_heads(config: RunConfig, task: Task, *, chooses_plan: bool = False) -> None:
    """Refuse a task that a head of a run cannot be fitted on, before anything is extracted.

    `chooses_plan` says that a mask plan is chosen by validation scores, as in a sweep or a search.
    """
    purpose = Purpose(config.protocol, chooses_plan, config.extraction.layers)
    for name, resolved in config.resolve_heads().items():
        HEADS[name].check(task, resolved, purpose)
