"""What a report says, as blocks that are written as Markdown or as a page, and the Markdown.

Texts of blocks are marked as in Markdown: `code`, **strong** and *emphasis*. Texts of users go through `table.cell`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from extract.records import Values
from probes.metrics.bootstrap import SeedSummary

if TYPE_CHECKING:
    import pandas as pd


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


def markdown(blocks: Sequence[Block], *, is_page: bool = False) -> str:
    """Write blocks as Markdown without HTML, each after a blank line but the further items of a list.

    For a page, columns of numbers stand to the right, and what reads the Markdown escapes HTML itself.
    """
    texts = [_written(block, is_page=is_page) for block in blocks]
    gaps = ["\n" * (1 if isinstance(one, Item) and isinstance(two, Item) else 2) for one, two in pairwise(blocks)]
    text = "".join(text + gap for text, gap in zip(texts, [*gaps, "\n"], strict=False))
    return text if is_page else text.replace("<", "&lt;")  # texts come from anybody


def _written(block: Block, *, is_page: bool) -> str:
    match block:
        case Heading(text):
            return f"## {text}"
        case Item(text):
            return f"- {text}"
        case Caution(text):
            return f"> {text}"
        case Table(columns, rows):
            return markdown_table(rows, columns, is_aligned=is_page)
    return block


_NUMBER = re.compile(r"[-+]?[\d.,]+( ?[%±(].*| to .*)?")
_MARK = re.compile(r"[*\[`]|(?<!\w)_|_(?!\w)|\\(?=[\W_])")
NOTHING = "-"
"""Written where there is no number."""
LABELS = {
    "pearson": "Pearson",
    "spearman": "Spearman",
    "v-measure": "V-measure",
    "ndcg@10": "nDCG@10",
    "map": "MAP",
    "mrr": "MRR",
}
"""How metrics are written where not by their name."""


def metric_label(metric: str) -> str:
    """Write the name of a metric."""
    return LABELS.get(metric, metric)


def score_unit(frame: "pd.DataFrame") -> str:
    """Name the metric of a frame as an axis does on which scores are times 100."""
    return f"{metric_label(frame['metric'].iloc[0])} x 100"


def number(value: float | None, digits: int = 1, *, times: float = 1.0, sign: str = "") -> str:
    """Write a number; `-` where it is missing, None or NaN."""
    return NOTHING if value is None or math.isnan(value) else f"{times * value:{sign}.{digits}f}"


def percent(value: float | None, *, sign: str = "") -> str:
    """Write a score times 100."""
    return number(value, times=100.0, sign=sign)


def signed_interval(low: float, high: float) -> str:
    """Write the interval of a difference, times 100."""
    return f"{percent(low, sign='+')} to {percent(high, sign='+')}"


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


def describe_point(chosen: Values) -> str:
    """Write what was chosen: the layer, and the penalty, the kind of cosine or how tags are decoded; empty for none.

    Example:
        >>> describe_point({"views": [{"layer": "plain/block_20", "kind": "raw"}, {"layer": "echo/9", "kind": "raw"}]})
        'plain/block_20 (raw) + echo/9 (raw)'
    """
    if "views" in chosen:
        return " + ".join(f"{view['layer']} ({view['kind']})" for view in chosen["views"])
    penalties = (f"{name} {chosen[name]:g}" for name in ("C", "alpha") if name in chosen)
    decoding = f"{chosen['decoding']} tags" if "decoding" in chosen else ""
    parts = [chosen.get("layer", ""), *penalties, chosen.get("kind", ""), decoding]
    return ", ".join(filter(None, parts))


def plain_text(text: str) -> str:
    """Leave the marks of code and emphasis out of a marked text."""
    return text.replace("`", "").replace("**", "")


def cell(text: str) -> str:
    """Keep a text of a user from being marked, and on one line."""
    return " ".join(text.replace("`", "'").split())


def markdown_table(rows: Sequence[Sequence[str]], columns: Sequence[str], *, is_aligned: bool = False) -> str:
    """Make a Markdown table, in whose cells only `code` is marked; columns of numbers to the right if `is_aligned`."""
    marks = ["---"] * len(columns)
    for index in range(len(columns)) if is_aligned else ():
        texts = [row[index] for row in rows if row[index] not in (NOTHING, "")]
        if texts and all(_NUMBER.fullmatch(text) for text in texts):
            marks[index] = "---:"
    titles, *lines = [f"| {' | '.join(map(_escaped, cells))} |" for cells in (columns, *rows)]
    return "\n".join([titles, f"|{'|'.join(marks)}|", *lines])


def _escaped(text: str) -> str:
    """Keep what is no code from being marked in a cell."""
    parts = text.split("`") if text.count("`") % 2 == 0 else [text]
    parts[::2] = [_MARK.sub(r"\\\g<0>", part) for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|")


def side_by_side(frame: "pd.DataFrame", along: str, lines: Sequence[str], *, unit: str) -> "pd.DataFrame":
    """Lay a tidy frame out for reading: a row per value of `along`, a column per line, scores times 100 with spread."""
    names = [", ".join(filter(None, map(str, row))) for row in zip(*(frame[name] for name in lines), strict=True)]
    nothing = [math.nan] * len(frame)
    columns = (frame.get(name, nothing) for name in ("value", "std", "low", "high"))
    texts = [_measured([100 * value for value in row]) for row in zip(*columns, strict=True)]
    table = frame.assign(line=names, text=texts).pivot(index=along, columns="line", values="text")
    rows, titles = (list(dict.fromkeys(keys)) for keys in (frame[along], names))
    return table.reindex(index=rows, columns=titles).reset_index().rename_axis(columns=unit)


def _measured(numbers: Sequence[float]) -> str:
    """Write a value with its interval, or else its standard deviation."""
    value, std, low, high = map(plain_number, numbers)
    if not value:
        return ""
    return f"{value} ({low} to {high})" if low else f"{value} ± {std}" if std not in ("", "0") else value


def plain_number(value: float) -> str:
    """Write a number of a figure with four digits; nothing where it is missing."""
    return f"{value:.4g}" if math.isfinite(value) else ""


def frame_table(frame: "pd.DataFrame") -> Table:
    """Print a frame: its columns, with the names of the rows where they have one, as of a matrix."""
    if frame.index.name:
        corner = f"{frame.index.name} \\ {frame.columns.name}"
        frame = frame.set_axis([*map(str, frame.columns)], axis=1)
        frame.insert(0, corner, frame.index, allow_duplicates=True)
    titles = [cell(str(name)) for name in frame.columns]
    return Table(titles, [[_frame_cell(value) for value in row] for row in frame.itertuples(index=False, name=None)])


def _frame_cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return plain_number(value) if isinstance(value, float) else cell("" if value is None else str(value))
