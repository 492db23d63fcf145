"""What a report says, as blocks that are written as Markdown or as a page, and the Markdown.

Texts of blocks are marked as in Markdown: `code`, **strong** and *emphasis*. Texts of users go through `table.cell`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from probes.report.table import markdown_table


@dataclass(frozen=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True)
class Item:
    """A line of a list."""

    text: str


@dataclass(frozen=True)
class Caution:
    """What a reader must know before trusting the numbers."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = str | Heading | Item | Caution | Table
"""A part of a report; a plain text is a paragraph."""


@dataclass(frozen=True)
class Document:
    """A report, without its figures."""

    title: str
    question: str
    answer: str
    """In a sentence or two, with its uncertainty."""
    blocks: Sequence[Block]


def markdown(blocks: Iterable[Block]) -> str:
    """Write blocks as Markdown without HTML, each after a blank line but the further items of a list."""
    return "".join(_joined([*blocks])).replace("<", "&lt;") + "\n"  # texts come from anybody


def _joined(blocks: Sequence[Block]) -> Iterator[str]:
    yield from map(_written, blocks[:1])
    for before, block in pairwise(blocks):
        is_list = isinstance(before, Item) and isinstance(block, Item)
        yield "\n" * (1 if is_list else 2) + _written(block)


def _written(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {text}"
        case Item(text):
            return f"- {text}"
        case Caution(text):
            return f"> {text}"
        case Table(columns, rows):
            return markdown_table(rows, columns)
    return block
