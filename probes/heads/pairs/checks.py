"""What a pair head cannot be fitted on or built with, refused before anything is extracted."""

from functools import partial
from typing import Any

from extract.errors import ConfigError, HeadError, TaskError
from probes.fitting.protocols import find_protocol
from probes.fitting.trainer import FitOptions
from probes.heads.entries import HeadEntry, Purpose
from probes.heads.options import HeadOptions, option_defaults
from probes.heads.pairs.building import try_building
from probes.heads.pairs.evaluation import evaluate_pair_head
from probes.networks.losses import COMPARING, MIN_BATCH
from probes.networks.pair_head import PairHead


def pair_head(name: str, network: type[PairHead], fit: FitOptions, description: str) -> HeadEntry:
    """Make the row of a pair head: a network of `PairHead`'s interface is all that a new one needs.

    Args:
        name: The name in configs.
        network: Its class; the arguments of its constructor are its options.
        fit: How it is fitted by default.
        description: One line.

    Returns:
        The row.
    """
    return HeadEntry(
        name, "pairs", description, (network, fit) if network.is_trained else (network,),
        evaluate=partial(evaluate_pair_head, network), check=check_pairs, check_options=partial(check_network, network),
        build=network, oldest_schema=2,
    )  # fmt: skip


def check_pairs(task: Any, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse a task without the splits that every pair head is fitted and chosen on.

    Raises:
        TaskError: Names the missing split.
        ConfigError: A head that starts from autoencoders, where a plan is chosen.
    """
    start = resolved.own[0].get("start", "fresh")
    if purpose.chooses_plan and start != "fresh":
        raise ConfigError(
            f"head {resolved.name!r} has start {start!r}, but a sweep fits no autoencoders, of which every plan would "
            "need its own; use start: fresh, or `icecore run` for each plan."
        )
    for split in dict.fromkeys(("train", "validation", find_protocol(purpose.protocol).selection)):
        if split not in task.splits:
            raise TaskError(f"task {task.name!r} has no split {split!r}, which every head needs; add rows to it.")


def check_network(network: type[PairHead], resolved: HeadOptions) -> None:
    """Refuse options that a network cannot be built with, and batches that a loss cannot compare.

    Raises:
        ConfigError: The network cannot be built.
        HeadError: A batch of one under a loss that compares rows.
    """
    arguments = resolved.own[0]
    try_building(resolved.name, network, arguments)
    if not network.is_trained:
        return
    defaults = option_defaults(network)
    loss = arguments.get("loss", defaults["loss"].default if "loss" in defaults else None)
    if loss in COMPARING and resolved.own[1].batch_size < MIN_BATCH:
        raise HeadError(
            f"option batch_size of head {resolved.name!r} is {resolved.own[1].batch_size}, but the loss {loss!r} "
            f"compares rows with each other; allowed: at least {MIN_BATCH}, 32 or more for log-variance."
        )
