"""`icecore list`: what can be named in a configuration."""

import sys
from collections.abc import Callable, Iterable
from shutil import get_terminal_size
from types import SimpleNamespace

from extract.errors import printable
from probes.cli.help import strong, two_columns

MOST_INDENT = 32
"""Columns of the names; a longer one has a line of its own."""


def _decoders() -> list[tuple[str, str]]:
    from extract.decoders.known import KNOWN_DECODERS

    return [
        (entry.name, f"{entry.hub_id}, {entry.family}, {entry.n_layers} blocks, width {entry.width}, {entry.license}"
         + (", also from the package index" if entry.wheel else ""))
        for entry in KNOWN_DECODERS.values()
    ]  # fmt: skip


def _plans() -> list[tuple[str, str]]:
    from extract.masks.plan import PLANS

    return list(PLANS.items())


def _masks() -> list[tuple[str, str]]:
    from extract.masks.kinds import KINDS

    return [(name, f"{row.what} ({row.source})") for name, row in KINDS.items()]


def _poolings() -> list[tuple[str, str]]:
    from extract.poolings.table import AUTO, AUTO_RULE, POOLINGS, TOKEN_SETS, WORD_POOLINGS

    words = {AUTO: AUTO_RULE, **{name: text for name, (_, text) in WORD_POOLINGS.items()}}
    rows = [(name, text) for name, (_, text) in POOLINGS.items()]
    rows += [(name, text) for name, (_, _, text) in TOKEN_SETS.items()]
    return [*rows, *((f"words: {name}", text) for name, text in words.items())]


def _layers() -> list[tuple[str, str]]:
    from extract.decoders.layers import GROUPS, TAPS

    return [*GROUPS.items(), *((f"block_07.{tap}", f"of the seventh block {what}") for tap, what in TAPS.items())]


def _templates() -> list[tuple[str, str]]:
    from extract.inputs.named_templates import SETS, TEMPLATES

    rows = [(name, f"{entry.source}: {entry.show()}") for name, entry in TEMPLATES.items()]
    return [*rows, *((name, f"the mean of {len(names)}: {names[0]} to {names[-1]}") for name, names in SETS.items())]


def _tasks() -> list[tuple[str, str]]:
    from probes.tasks.table import TASKS

    return [
        (name, _with_options(f"{entry.kind}: {entry.description}", entry.options())) for name, entry in TASKS.items()
    ]


def _corpora() -> list[tuple[str, str]]:
    from extract.names import parameter_names
    from probes.tasks.corpora import CORPORA

    rows = [(name, _with_options(text, parameter_names(load))) for name, (load, text) in CORPORA.items()]
    return [*rows, ("any task", "the texts of the task; its own options")]


def _heads() -> list[tuple[str, str]]:
    from extract.names import option_names
    from probes.heads.pairs.autoencoders import AUTOENCODER, SOURCES
    from probes.heads.registry import HEADS

    rows = [(name, entry.kind, entry.description, entry.options()) for name, entry in HEADS.items()]
    description = "layer-wise, for `start: pretrained` or `frozen`, or by `icecore fit --head autoencoder`"
    options = tuple(option for source in SOURCES for option in option_names(source))
    rows.append((AUTOENCODER, "pretraining.autoencoder", description, options))
    return [(name, _with_options(f"{kind}: {text}", options)) for name, kind, text, options in rows]


def _with_options(text: str, options: Iterable[str]) -> str:
    return f"{text}; options: {', '.join(options) or 'none'}"


def _losses() -> list[tuple[str, str]]:
    from probes.networks.loss_table import LOSSES

    return [(name, text) for name, (_, text) in LOSSES.items()]


def _instructions() -> list[tuple[str, str]]:
    from probes.tasks.instructions import INSTRUCTIONS

    return [
        (name, f"{repr(entry.prompt)[1:-1] or 'none'} ({entry.source}{f'; task {entry.task}' if entry.task else ''})")
        for name, entry in INSTRUCTIONS.items()
    ]


TABLES: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "decoders": _decoders,
    "plans": _plans,
    "masks": _masks,
    "poolings": _poolings,
    "layers": _layers,
    "templates": _templates,
    "tasks": _tasks,
    "corpora": _corpora,
    "heads": _heads,
    "losses": _losses,
    "instructions": _instructions,
}


def list_command(found: SimpleNamespace) -> int:
    """List one table, some, or all of them."""
    width = get_terminal_size().columns
    for name in found.table or TABLES:
        rows = [(printable(key), printable(text)) for key, text in TABLES[name]()]
        indent = min(max(len(key) for key, _ in rows) + 4, MOST_INDENT)
        sys.stdout.write("\n".join([strong(name), *two_columns(rows, indent, width=width)]) + "\n")
    return 0
