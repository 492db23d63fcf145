"""What a token head cannot be fitted on, refused before anything is extracted."""

from functools import partial
from typing import Any

from extract.errors import TaskError
from probes.heads.entries import HeadEntry, Purpose
from probes.heads.options import HeadOptions
from probes.heads.words.evaluation import evaluate_token_head
from probes.heads.words.options import TokenOptions, token_options
from probes.networks.token_heads import TokenHead


def token_head(name: str, network: type[TokenHead], description: str) -> HeadEntry:
    """Make the row of a token head: a network of `TokenHead`'s interface is all that a new one needs.

    Args:
        name: The name in configs.
        network: Its class.
        description: One line.

    Returns:
        The row.
    """
    return HeadEntry(
        name, "words", description, (TokenOptions,), evaluate=partial(evaluate_token_head, network), check=check_words,
        build=network,
    )  # fmt: skip


def check_words(task: Any, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse a task without the splits that token heads are fitted and chosen on.

    Raises:
        TaskError: Names the missing split.
    """
    if "train" not in task.splits:
        raise TaskError(f"task {task.name!r} has no split 'train', which every head needs; add rows to it.")
    if set(task.splits) == {"train"}:
        raise TaskError(f"task {task.name!r} has only the split train; add validation or test rows.")
    if "validation" not in task.splits and (purpose.chooses_plan or token_options(resolved).keep == "best"):
        what, instead = ("its plan", "") if purpose.chooses_plan else ("its epoch", ", or set keep: last")
        raise TaskError(
            f"task {task.name!r} has no split 'validation', on which head {resolved.name!r} chooses {what}; add "
            f"rows to it{instead}."
        )
