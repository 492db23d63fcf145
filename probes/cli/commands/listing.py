"""`icecore list`: what can be named in a configuration."""

from collections.abc import Callable, Iterable, Sequence
from inspect import signature

from rich.console import Console
from rich.table import Table

from extract.errors import unknown_name


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
    from extract.poolings.pooling import POOLINGS
    from extract.poolings.word_pooling import AUTO, AUTO_RULE, WORD_POOLINGS

    words = {AUTO: AUTO_RULE, **{name: text for name, (_, text) in WORD_POOLINGS.items()}}
    rows = [(name, text) for name, (_, text) in POOLINGS.items()]
    return [*rows, *((f"words: {name}", text) for name, text in words.items())]


def _tasks() -> list[tuple[str, str]]:
    from probes.tasks.table import TASKS

    return [
        (name, _with_options(f"{entry.kind}: {entry.description}", entry.options())) for name, entry in TASKS.items()
    ]


def _corpora() -> list[tuple[str, str]]:
    from probes.tasks.corpus import CORPORA

    rows = [(name, _with_options(text, signature(load).parameters)) for name, (load, text) in CORPORA.items()]
    return [*rows, ("any task", "the texts of the task; its own options")]


def _heads() -> list[tuple[str, str]]:
    from probes.heads.options import option_defaults
    from probes.heads.pairs.pretraining import AUTOENCODER, SOURCES
    from probes.heads.registry import HEADS

    rows = [(name, entry.kind, entry.description, entry.options()) for name, entry in HEADS.items()]
    description = "layer-wise, for `start: pretrained` or `frozen`, or by `icecore fit --head autoencoder`"
    options = tuple(option for source in SOURCES for option in option_defaults(source))
    rows.append((AUTOENCODER, "pretraining.autoencoder", description, options))
    return [(name, _with_options(f"{kind}: {text}", options)) for name, kind, text, options in rows]


def _with_options(text: str, options: Iterable[str]) -> str:
    return f"{text}; options: {', '.join(options) or 'none'}"


def _losses() -> list[tuple[str, str]]:
    from probes.networks.losses import LOSSES

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
    "tasks": _tasks,
    "corpora": _corpora,
    "heads": _heads,
    "losses": _losses,
    "instructions": _instructions,
}


def list_command(argv: Sequence[str]) -> int:
    """List one table, or all of them."""
    if argv and argv[0] in ("-h", "--help"):
        Console(markup=False).print(f"usage: icecore list [{' | '.join(TABLES)}]")
        return 0
    for name in argv:
        if name not in TABLES:
            raise unknown_name("table", name, TABLES)
    for name in argv or TABLES:
        table = Table(title=name, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        for row in TABLES[name]():
            table.add_row(*row)
        Console(markup=False).print(table)
    return 0
