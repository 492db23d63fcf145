"""What a report says, as blocks that are written as Markdown or as a page, and the Markdown.

Texts of blocks are marked as in Markdown: `code`, **strong** and *emphasis*. Texts of users go through `table.cell`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from probes.heads.result import HeadResult
from probes.metrics.bootstrap import SeedSummary
from probes.metrics.spans import NO_PREDICTION


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
    """Write blocks as Markdown, each after a blank line but the further items of a list."""
    return "".join(_joined([*blocks])) + "\n"


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


NOTHING = "-"
"""Written where there is no number."""
LABELS = {"pearson": "Pearson", "spearman": "Spearman"}
"""How metrics are written where not by their name."""


@dataclass(frozen=True)
class Row:
    """What a row of the results table is about: a head and a metric."""

    result: HeadResult
    metric: str

    def summary(self, split: str, metric: str = "") -> SeedSummary | None:
        """Return the score on a split, by the metric of the row or another; None where the split was not scored."""
        return self.result.summary.get(split, {}).get(metric or self.metric)

    @property
    def is_first(self) -> bool:
        """Whether the metric is the one that the head was chosen by."""
        return self.metric == self.result.metric


@dataclass(frozen=True)
class Column:
    """A column of the results table: its title, and what gives its text in a row."""

    title: str
    text: Callable[[Row], str]
    on_screen: bool = True
    """Whether the table of a terminal, 80 characters wide, has it too."""


def metric_label(metric: str) -> str:
    """Write the name of a metric."""
    return LABELS.get(metric, metric)


def number(value: float | None, digits: int = 1, *, times: float = 1.0, sign: str = "") -> str:
    """Write a number; `-` where it is missing, None or NaN."""
    return NOTHING if value is None or math.isnan(value) else f"{times * value:{sign}.{digits}f}"


def percent(value: float | None, *, sign: str = "") -> str:
    """Write a score times 100."""
    return number(value, times=100.0, sign=sign)


def spread(summary: SeedSummary | None) -> str:
    """Write mean and standard deviation over seeds, times 100."""
    if summary is None:
        return NOTHING
    return percent(summary.mean) + (f" ± {percent(summary.std)}" if len(summary.values) > 1 else "")


def interval(summary: SeedSummary | None) -> str:
    """Write the interval, times 100."""
    if summary is None or math.isnan(summary.low):
        return NOTHING
    return f"{percent(summary.low)} to {percent(summary.high)}"


def predicted_texts(result: HeadResult, split: str, *, without: str = "") -> list[str]:
    """Write the predictions of a head on a split, as names where it predicts names, and `without` for none."""
    found = result.predictions[split].tolist()
    if split not in result.names:
        return [f"{value:.4f}" for value in found]
    names = result.names[split]
    return [without if place == NO_PREDICTION else names[place] for place in found]


def describe_point(chosen: Mapping[str, Any]) -> str:
    """Write what was chosen: the layer, and the penalty, the kind of cosine or how tags are decoded; empty for none."""
    penalties = (f"{name} {chosen[name]:g}" for name in ("C", "alpha") if name in chosen)
    decoding = f"{chosen['decoding']} tags" if "decoding" in chosen else ""
    parts = [chosen.get("layer", ""), *penalties, chosen.get("kind", ""), decoding]
    return ", ".join(filter(None, parts))


def cell(text: str) -> str:
    """Keep a text of a user from being marked, and on one line."""
    return " ".join(text.replace("`", "'").split())


def markdown_table(rows: Iterable[Sequence[str]], columns: Sequence[str]) -> str:
    """Make a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "|".join("---" for _ in columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows)])


def score_column(title: str, split: str, metric: str = "") -> Column:
    """Make a column of scores on a split, by the metric of the row or by another one."""
    return Column(title, lambda row: spread(row.summary(split, metric)))


def epochs_of(row: Row) -> str:
    """Write the epochs that the seeds kept."""
    return ", ".join(str(seed["best_epoch"]) for seed in row.result.seeds if seed.get("best_epoch")) or NOTHING


def head_label(row: Row, point: str = "") -> str:
    """Write the name of a head, with what was chosen, and marked where its numbers are optimistic."""
    return row.result.name + (f" ({point})" if point else "") + (" (optimistic)" if row.result.is_optimistic else "")


HEAD = Column("head", head_label)
HEAD_AT_POINT = Column("head", lambda row: head_label(row, describe_point(row.result.chosen)))
POINT = Column("layer", lambda row: describe_point(row.result.chosen) or NOTHING)
METRIC = Column("metric", lambda row: metric_label(row.metric))
INTERVAL = Column("95 % interval", lambda row: interval(row.summary("test")))
SCORES = (score_column("validation", "validation"), score_column("test", "test"), INTERVAL)
POOLING = Column("pooling", lambda row: row.result.pooling, on_screen=False)
SEEDS = Column("seeds", lambda row: str(len(row.result.seeds)) if epochs_of(row) != NOTHING else NOTHING)
EPOCHS = Column("epochs", epochs_of, on_screen=False)


def majority_column(title: str) -> Column:
    """Make a column of the majority baseline on test."""

    def text(row: Row) -> str:
        return percent(row.result.baselines.get("majority", {}).get("test")) if row.is_first else NOTHING

    return Column(title, text, on_screen=False)


def beside_majority(what: str) -> Callable[[Any, HeadResult, str], str]:
    """Make what gives the score of always predicting the most frequent class of train, where a head recorded it."""

    def text(_: Any, result: HeadResult, split: str) -> str:
        score = result.baselines.get("majority", {}).get(split)
        return "" if score is None else f"where {what} has {percent(score)}"

    return text
