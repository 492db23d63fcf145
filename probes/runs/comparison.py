"""Runs beside each other: their results in one table, their layers on one scale, and paired differences."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.errors import HeadError, printable, unknown_name
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import Resampling
from probes.metrics.paired import Difference, difference, paired_scores
from probes.report.blocks import Block, Table, markdown
from probes.report.lead import best_result
from probes.report.predictions import PREDICTIONS, read_predictions
from probes.report.table import cell, describe_point, interval, metric_label, percent, spread
from probes.runs.results import COLUMNS, read_scores, result_rows, results_by_plan

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as ScreenTable

    from probes.report.figures.style import Album

TITLES = ("run", "plan", "head", "chosen", "metric", "validation", "test", "95 % interval")


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """One run of a comparison: its name there, its scores, and the head that is compared."""

    label: str
    folder: Path
    values: Mapping[str, Any]
    result: HeadResult
    curved: HeadResult | None
    """The head whose layers are drawn: the compared one, or else one that scores single layers."""

    @property
    def plan(self) -> str:
        """The mask plan, as text."""
        return str(self.values["cache"]["plan"])


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs on the same rows, compared with the first of them.

    Attributes:
        runs: The runs, in the order given.
        split: The split whose predictions are compared.
        metric: What they are scored by.
        differences: What each further run has over the first, with a paired interval.
    """

    runs: tuple[ComparedRun, ...]
    split: str
    metric: str
    differences: tuple[Difference, ...]

    @property
    def table(self) -> "pd.DataFrame":
        """A row per run: its head, scores as fractions, and what it has over the first run, with interval."""
        import pandas as pd

        nothing = Difference(0.0, float("nan"), float("nan"), self.differences[0].n_units)
        rows = []
        for run, gain in zip(self.runs, (nothing, *self.differences), strict=True):
            means = {split: run.result.mean(split) for split in ("validation", "test") if split in run.result.summary}
            rows.append({
                "run": run.label, "plan": run.plan, "head": run.result.name, "metric": self.metric, **means,
                "difference": gain.value, "low": gain.low, "high": gain.high,
            })  # fmt: skip
        return pd.DataFrame(rows)

    @property
    def curves(self) -> "pd.DataFrame":
        """The score of every layer of every run, tidy, with the columns of `probes.results`."""
        import pandas as pd

        rows = [
            {"run": run.label, "plan": run.plan, "head": run.curved.name, "pooling": run.curved.pooling, **row}
            for run in self.runs
            if run.curved is not None
            for row in result_rows(run.curved)
            if row["record"] == "curve"
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def draw(self, folder: str | Path, *, formats: Sequence[str] = ("png",)) -> tuple[Path, ...]:
        """Draw the layers of all runs on one scale, `layers` in every format; nothing where no head reads one layer."""
        from probes.report.figures.style import Album  # brings matplotlib with it

        album = Album(Path(folder), tuple(formats))
        self.draw_into(album)
        return tuple(Path(folder) / file for files in album.drawn.values() for file in files)

    def draw_into(self, album: "Album") -> None:
        """Draw the layers of all runs on one scale into an album; nothing where no head reads one layer."""
        from probes.report.figures.layers import draw_runs, layer_curves

        curved = {run.label: run.curved for run in self.runs if run.curved is not None}
        splits = [{curve.split for curve in layer_curves(result)} for result in curved.values()]
        shared = set.intersection(*splits) if splits else set()
        if not shared:
            return
        split = "validation" if "validation" in shared else min(shared)
        header, heads = self.runs[0].values, ", ".join(dict.fromkeys(result.name for result in curved.values()))
        album.add(
            "layers", draw_runs, curved, split, title=f"Score of each layer, {heads}",
            note=f"{header['task']['name']} on {header['decoder']['name']}; circles: the chosen layers",
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<comparison of {len(self.runs)} runs by {self.metric} on {self.split}: {'; '.join(self.verdicts())}>"

    def verdicts(self) -> list[str]:
        """Say of every further run whether it can be told from the first, in a sentence."""
        first, gains = self.runs[0].label, zip(self.runs[1:], self.differences, strict=True)
        return [_verdict(run.label, first, gain, self.metric) for run, gain in gains]

    def to_screen(self) -> "ScreenTable":
        """Lay the comparison out for a terminal of 80 characters."""
        from rich.box import SIMPLE
        from rich.table import Table as ScreenTable

        table = ScreenTable(title=f"{metric_label(self.metric)} x 100", box=SIMPLE, padding=(0, 1))
        table.add_column("run and head", overflow="fold")
        for title in ("validation", "test", f"over the first,\n{self.split}", "95 %\ninterval"):
            table.add_column(title, justify="right")
        gains = [("", ""), *((percent(gain.value, sign="+"), _ends(gain)) for gain in self.differences)]
        for run, gain in zip(self.runs, gains, strict=True):
            scores = (spread(_summary(run, split, self.metric)) for split in ("validation", "test"))
            table.add_row(printable(f"{run.label}\n{run.result.name}"), *scores, *gain)
        return table

    def to_markdown(self) -> str:
        """Write the comparison as Markdown: verdicts, the results, and the differences."""
        return markdown([" ".join(f"{sentence}." for sentence in self.verdicts()), *self.blocks()])

    def blocks(self) -> tuple[Block, ...]:
        """Give the results and the differences, as a report holds them."""
        rows = [
            (
                run.label, run.plan, run.result.name + " (optimistic)" * run.result.is_optimistic,
                describe_point(run.result.chosen), metric_label(self.metric),
                *(spread(_summary(run, split, self.metric)) for split in ("validation", "test")),
                interval(_summary(run, "test", self.metric)),
            )
            for run in self.runs
        ]  # fmt: skip
        differences = [
            (run.label, percent(gain.value, sign="+"), _ends(gain), f"{gain.n_units:,}")
            for run, gain in zip(self.runs[1:], self.differences, strict=True)
        ]
        titles = ("run", f"over {self.runs[0].label}", "95 % interval", "units")
        return (
            Table(TITLES, [[cell(text) for text in row] for row in rows]),
            f"Scores times 100. Differences on {self.split}, of the predictions in {PREDICTIONS}, on the same "
            "resamples:",
            Table(titles, [[cell(text) for text in row] for row in differences]),
        )


def compare(runs: Iterable[str | Path], *, head: str = "", split: str = "", n_resamples: int = 1000) -> Comparison:
    """Compare finished runs on the same task with the first of them.

    Args:
        runs: Two run folders or more.
        head: The head to compare in every run; in each its best on validation, if empty.
        split: The split whose predictions are compared; test, or validation where there is no test, if empty.
        n_resamples: Resamples of the paired bootstrap, which draws what the intervals of the runs do.

    Raises:
        HeadError: Fewer than two runs, other than runs, or runs on other rows or metrics; says which.
        UnknownNameError: A head or split that a run does not have.

    Example:
        >>> compare(["runs/causal", "runs/nosink"]).table  # doctest: +SKIP
    """
    folders = [Path(run) for run in runs]
    if len(folders) < 2:
        raise HeadError(f"a comparison takes two run folders or more, and {len(folders)} was given.")
    found = [_read_run(folder, label, head) for folder, label in zip(folders, name_apart(folders), strict=True)]
    metrics = {run.result.metric for run in found}
    if len(metrics) > 1:
        raise HeadError(f"the runs are scored by {', '.join(sorted(metrics))}; compare runs of one kind of task.")
    [metric] = metrics
    split = split or ("test" if all("test" in run.result.summary for run in found) else "validation")
    tables = [_read_predictions(run, split) for run in found]
    for run, table in zip(found[1:], tables[1:], strict=True):
        _require_same_rows(found[0], tables[0], run, table, split)
    gold, units, sentences = tables[0]["gold"], tables[0]["unit"], tables[0]["row"]
    predicted = [table[run.result.name] for run, table in zip(found, tables, strict=True)]
    values, resampled = paired_scores(
        predicted, gold, metric=metric, units=units, sentences=sentences, resampling=Resampling(n_resamples)
    )
    gains = [difference(values, resampled, k, 0, n_units=len(set(units))) for k in range(1, len(found))]
    return Comparison(tuple(found), split, metric, tuple(gains))


def name_apart(folders: Sequence[Path]) -> list[str]:
    """Name runs by their folders, with as much of the path as tells them apart."""
    parts = [folder.resolve().parts for folder in folders]
    depth = next((d for d in range(1, max(map(len, parts))) if len({each[-d:] for each in parts}) == len(parts)), 1)
    return ["/".join(each[-depth:]) for each in parts]


def _read_run(folder: Path, label: str, head: str) -> ComparedRun:
    values = read_scores(folder)
    if values["what"] != "run":
        raise HeadError(f"{str(folder)!r} is a {values['what']}, which compares its plans itself; compare runs.")
    heads = {result.name: result for _, result in results_by_plan(values)}
    if head and head not in heads:
        raise unknown_name(f"head of the run {label!r}", head, heads)
    result = heads[head] if head else best_result(heads.values())
    curved = next((each for each in (result, *heads.values()) if each.curves and len(each.layers) > 1), None)
    return ComparedRun(label, folder, values, result, curved)


def _read_predictions(run: ComparedRun, split: str) -> dict[str, list[str]]:
    """Read the rows of a split from predictions.csv, as columns; `unit` is the row where there is none."""
    tables = read_predictions(run.folder)
    if split not in tables:
        raise unknown_name(f"split of the run {run.label!r}", split, tables)
    if run.result.name not in tables[split]:
        raise HeadError(f"{str(run.folder / PREDICTIONS)!r} has no column {run.result.name!r}; run its config again.")
    return tables[split]


def _require_same_rows(
    first: ComparedRun, wanted: Mapping[str, list[str]], run: ComparedRun, found: Mapping[str, list[str]], split: str
) -> None:
    """Refuse runs whose rows differ: texts, order or gold."""
    inputs = [name for name in wanted if name not in first.values["heads"] and name != "unit"]
    for name in inputs:
        if found.get(name) != wanted[name]:
            raise HeadError(
                f"{run.label!r} and {first.label!r} differ in {name!r} of {split} ({len(found['row'])} and "
                f"{len(wanted['row'])} rows): compare runs of the same rows."
            )


def _summary(run: ComparedRun, split: str, metric: str) -> Any:
    return run.result.summary.get(split, {}).get(metric)


def _ends(gain: Difference) -> str:
    return f"{percent(gain.low, sign='+')} to {percent(gain.high, sign='+')}"


def _verdict(label: str, first: str, gain: Difference, metric: str) -> str:
    by = f"{percent(abs(gain.value))} {metric_label(metric)}"
    if gain.low > 0 or gain.high < 0:
        return f"{label} is {'better' if gain.low > 0 else 'worse'} than {first} by {by} ({_ends(gain)})"
    return f"{label} cannot be told from {first}: {percent(gain.value, sign='+')} ({_ends(gain)})"
