"""`icecore table`: results of finished runs, sweeps and searches as one table; loads no torch."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from extract.errors import printable
from extract.files import write_file
from probes.cli.commands import TableArgs
from probes.heads.result import HeadResult
from probes.report.blocks import cell, describe_point, interval, markdown_table, metric_label, spread
from probes.report.safe_csv import safe_text, write_csv, write_frame
from probes.runs.folder import RunFolder
from probes.runs.results import results

TITLES = ("run", "plan", "head", "pooling", "chosen", "metric", "validation", "test", "95 % interval")
N_NUMBERS = 3
"""Columns at the end that hold numbers, some with their spread."""
LATEX = str.maketrans(
    {**{c: f"\\{c}" for c in "&%$#_{}"}, "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "±": "$\\pm$"}
)


def table_command(args: TableArgs) -> int:
    """Write the results of runs, sweeps and searches as one table: a row per plan and head, scores times 100."""
    if args.format == "tidy":
        text = write_frame(results(args.runs))
    else:
        text = TABLE_FORMATS[args.format]([row for folder in args.runs for row in _rows(Path(folder))])
    if args.out:
        write_file(Path(args.out), text)
    else:
        sys.stdout.write(printable(text))
    return 0


def _rows(folder: Path) -> Iterator[tuple[str, ...]]:
    run = RunFolder(folder)
    for plan, result in run.results:
        yield (run.values["name"], plan, *_scores(result))


def _scores(result: HeadResult) -> tuple[str, ...]:
    here = {split: result.summary.get(split, {}).get(result.metric) for split in ("validation", "test")}
    name = result.name + " (optimistic)" * result.is_optimistic
    numbers = spread(here["validation"]), spread(here["test"]), interval(here["test"])
    return (name, result.pooling, describe_point(result.chosen), metric_label(result.metric), *numbers)


def _csv(rows: Sequence[Sequence[str]]) -> str:
    texts = len(TITLES) - N_NUMBERS
    safe = [(*map(safe_text, row[:texts]), *row[texts:]) for row in rows]
    return write_csv([TITLES, *safe], newline="\n", is_safe=False)


def _latex(rows: Sequence[Sequence[str]]) -> str:
    """Write a table for the package booktabs."""
    lines = [" & ".join(text.translate(LATEX) for text in row) + r" \\" for row in [TITLES, *rows]]
    begin = [rf"\begin{{tabular}}{{{'l' * 6}rrr}}", r"\toprule", lines[0], r"\midrule"]
    return "\n".join([*begin, *lines[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return markdown_table([[cell(text) for text in row] for row in rows], TITLES) + "\n"


TABLE_FORMATS: dict[str, Callable[[Sequence[Sequence[str]]], str]] = {
    "markdown": _markdown,
    "csv": _csv,
    "latex": _latex,
}
