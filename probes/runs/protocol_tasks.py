"""The task of a run as its protocol wants it: cut into other splits, or into tokens."""

from probes.runs.class_runs import cut_task, spec_of
from probes.runs.config import RunConfig
from probes.tasks.classes.task import ClassTask
from probes.tasks.table import AnyTask
from probes.tasks.words.task import WordTask

LBW = "look-both-ways"


def load_run_task(config: RunConfig) -> AnyTask:
    """Load the task of a run, and do to it what the protocol of the run does.

    Args:
        config: The run.

    Returns:
        The task. Under `look-both-ways`, classes are split anew and every token of a word task is labelled, for which
        the decoder's tokenizer is read, but not the decoder.

    Raises:
        IcecoreError: The task, or the tokenizer, cannot be read.
    """
    task = spec_of(config).load()
    if isinstance(task, ClassTask):
        return cut_task(config, task)
    if isinstance(task, WordTask) and config.protocol == LBW:
        from extract.decoders.loading import load_tokenizer  # brings torch with it
        from probes.tasks.words.every_token import label_every_token

        return label_every_token(task, load_tokenizer(config.decoder), template=config.extraction.template)
    return task
