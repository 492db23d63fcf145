"""`icecore list`: what can be named in a configuration."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from extract.errors import unknown_name


def _decoders() -> list[tuple[str, str]]:
    from extract.known import KNOWN_DECODERS

    return [
        (entry.name, f"{entry.hub_id}, {entry.family}, {entry.n_layers} blocks, width {entry.width}, {entry.license}"
         + (", also from the package index" if entry.wheel else ""))
        for entry in KNOWN_DECODERS.values()
    ]  # fmt: skip


def _plans() -> list[tuple[str, str]]:
    from extract.plan_table import PLANS

    return list(PLANS.items())


def _poolings() -> list[tuple[str, str]]:
    from extract.pooling import POOLINGS

    return [(name, text) for name, (_, text) in POOLINGS.items()]


def _tasks() -> list[tuple[str, str]]:
    from probes.known_tasks import ALL_TASKS

    return [(name, f"{entry.kind}: {entry.description}; options: {', '.join(entry.options()) or 'none'}")
            for name, entry in ALL_TASKS.items()]  # fmt: skip


def _corpora() -> list[tuple[str, str]]:
    from probes.tasks.corpus import CORPORA

    return [(name, text) for name, (_, text) in CORPORA.items()] + [("any task", "the texts of the task")]


def _heads() -> list[tuple[str, str]]:
    from probes.classes.heads import CLASS_HEADS
    from probes.heads.registry import HEADS
    from probes.words.heads import WORD_HEADS

    kinds = {"pairs": HEADS, "classes": CLASS_HEADS, "words": WORD_HEADS}
    return [(name, f"{kind}: {entry.description}") for kind, heads in kinds.items() for name, entry in heads.items()]


def _losses() -> list[tuple[str, str]]:
    from probes.losses import LOSSES

    return [(name, text) for name, (_, text) in LOSSES.items()]


TABLES: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "decoders": _decoders,
    "plans": _plans,
    "poolings": _poolings,
    "tasks": _tasks,
    "corpora": _corpora,
    "heads": _heads,
    "losses": _losses,
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
