"""Runs on the same rows, compared, and the pages of finished runs, made again from their folders.

A comparison has paired tests, and the differences of all to the first.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.table import Table as ScreenTable

from extract import registry as gate
from extract.decoders.decoder_spec import layer_names, split_tap
from extract.errors import CodeError, HeadError, UnknownNameError, first_line, printable, unknown_name
from extract.masks.mask_plan import parse_plan
from extract.records import Values
from extract.registry import import_own, require_recorded
from extract.store.manifest import Plain
from extract.store.manifest import differences as unequal_fields
from probes.data.task import MIN_SPLIT_ROWS
from probes.heads.result import HeadResult
from probes.layers.findings import load_predictions
from probes.metrics.bootstrap import Difference, Resampling, SeedSummary, difference, unit_counts
from probes.metrics.significance import (
    FEW_UNITS,
    OfSums,
    bootstrap_p_value,
    correct_p_values,
    permutation_p_value,
    resamples_for,
    seed_errors,
    too_few,
)
from probes.report.blocks import (
    Block,
    Table,
    cell,
    describe_point,
    interval,
    markdown,
    metric_label,
    number,
    percent,
    signed_interval,
    spread,
)
from probes.report.document import Context, SplitRows, best_result
from probes.report.exploring import join_explorations, layer_gap
from probes.report.page import IN_FULL, PAGE, Page, Part, Pictures, write_page
from probes.report.predictions import (
    PREDICTIONS,
    SCORED,
    digest_source,
    is_drawn,
    note_drawn,
    read_predictions,
    read_scored,
    with_predictions,
)
from probes.report.run_figures import layer_curves
from probes.report.scores import plans_read, read_plans, tidy_rows
from probes.report.style import Album, on_panel
from probes.report.write import page_of_plans, page_of_run
from probes.runs.folder import RunFolder
from probes.runs.results import COLUMNS, Runs, open_runs
from probes.runs.task_kinds import KINDS

BY = ("run", "plan", "decoder", "head")


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """One run of a comparison: its name there, its folder, and the result of the head that is compared."""

    label: str
    folder: RunFolder
    result: HeadResult

    @property
    def plan(self) -> str:
        """The mask plan, as text; of several views the plans of those that the head reads."""
        return " and ".join(plans_read(self.folder.values["cache"], self.result.pooling))

    @property
    def decoder(self) -> str:
        """The decoder."""
        return str(self.folder.values["decoder"]["name"])


@dataclass(frozen=True, eq=False)
class ComparedRows:
    """Predictions of `S` systems for the same rows."""

    split: str
    """The split they are of."""
    metric: str
    """What they are scored by."""
    rows: SplitRows
    """The rows, of which the inputs are left out."""
    predicted: Sequence[Sequence[Sequence[object]]]
    """The predictions of each system, for every seed or draw that its score is the mean over."""

    def scores(self, resampling: Resampling) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S R"]]:
        """Score all rows, and resamples of whole units that all systems share; the mean over the fits of a system."""
        return self.rows.score(self.predicted, self.metric, resampling)

    def only(self, places: Sequence[int]) -> "ComparedRows":
        """Keep some of the predictions."""

        def kept(values: Sequence[object]) -> list[object]:
            return [values[place] for place in places]

        units = None if self.rows.units is None else kept(self.rows.units)
        rows = SplitRows({"row": kept(self.rows.inputs["row"])}, kept(self.rows.gold), units)
        return replace(self, rows=rows, predicted=[[kept(fit) for fit in fits] for fits in self.predicted])

    def counts(self) -> tuple[list[Float[np.ndarray, "S U C"]], OfSums]:
        """Count what the metric needs of every unit, for the fits of each system."""
        counts, of_sums = unit_counts(
            [fit for fits in self.predicted for fit in fits],
            self.rows.gold,
            metric=self.metric,
            units=self.rows.drawn,
            sentences=self.rows.sentences,
        )
        return np.split(counts, np.cumsum([len(fits) for fits in self.predicted])[:-1]), of_sums


def paired_tests(
    source: Runs | pd.DataFrame,
    *,
    by: str = "run",
    head: str = "",
    split: str = "",
    metric: str = "",
    against: str = "",
    correction: str = "holm",
    n_resamples: int = 1000,
    n_permutations: int = 9999,
) -> pd.DataFrame:
    """Test every pair of systems on the same rows: runs, plans, decoders, heads, or the layers of a frame.

    Args:
        source: Finished runs on the same task; or a frame with a row per system and row: the system, named `by`, then
            `row` (of words, their sentence), `gold`, `predicted`, and perhaps `unit`, which resamples draw whole.
        by: What names a system: `run`, `plan` or `decoder`, with one head of each run, or
            `head`, with all heads of all runs. For a frame, the column that holds the system, such as `layer`.
        head: The head of each run; its best on validation, if empty.
        split: As in `compare`.
        metric: The metric of a frame.
        against: The system that all others are compared with; every pair is compared, if empty.
        correction: A key of `CORRECTIONS`, over the tests of one kind.
        n_resamples: Resamples of the paired bootstrap, at least; 40 for each test where there are more than 25.
        n_permutations: Permutations of the permutation test.

    Returns:
        A row per pair with `one`, `other`, `difference` (of one over the other), `low` and `high` of its interval over
        units, `low_total` and `high_total` of that over units and seeds (`seed_errors`; equal where heads have
        one seed), the p-values `bootstrap` and `permutation`, and both corrected.

    Raises:
        HeadError: Fewer than two systems, or systems of other rows or metrics.
        UnknownNameError: Another `by`, head, split, correction, metric, or no such system to compare with.

    Example:
        >>> paired_tests(["runs/causal", "runs/nosink"], by="plan")  # doctest: +SKIP
    """
    if isinstance(source, pd.DataFrame):
        names, rows = _read_frame(source, by, metric)
        seeds: list[tuple[float, ...]] = [()] * len(names)
    else:
        names, rows, seeds = _read_systems(source, by, head, split)
    if len(names) < 2 or len(set(names)) < len(names):
        raise HeadError(f"tests by {by!r} take two systems or more with different names, not {', '.join(names)}.")
    pairs = list(_pairs(names, against))
    n_resamples = resamples_for(len(pairs), n_resamples)
    values, resampled = rows.scores(Resampling(n_resamples))
    counts, of_sums = rows.counts()
    tests = []
    for one, other in pairs:
        gap = difference(values, resampled, one, other, n_units=counts[0].shape[1])
        errors = seed_errors(seeds[one], n_resamples, seed=1) - seed_errors(seeds[other], n_resamples, seed=2)
        total = difference(values, resampled + np.eye(len(names))[:, [one]] * errors, one, other, n_units=gap.n_units)
        sides = _side_by_side(counts[one], counts[other], of_sums)
        tests.append(
            {
                "by": by,
                "one": names[one],
                "other": names[other],
                "metric": rows.metric,
                "split": rows.split,
                "n_units": gap.n_units,
                "difference": gap.value,
                "low": gap.low,
                "high": gap.high,
                "low_total": total.low,
                "high_total": total.high,
                "bootstrap": bootstrap_p_value(gap.value, resampled[one] - resampled[other]),
                "permutation": permutation_p_value(*sides, n_permutations=n_permutations),
            }
        )
    table = pd.DataFrame(tests)
    for test in ("bootstrap", "permutation"):
        table[f"{test}_corrected"] = correct_p_values(table[test].to_list(), correction)
    return table


def _side_by_side(
    one: Float[np.ndarray, "S U C"], other: Float[np.ndarray, "T U C"], of_sums: OfSums
) -> tuple[Float[np.ndarray, "U F"], Float[np.ndarray, "U F"], OfSums]:
    """Put the counts of all fits of two systems beside each other, equally many, and score their mean."""
    n_fits, (n_units, n_counts) = math.lcm(len(one), len(other)), one.shape[1:]
    first, second = (
        np.tile(counts, (n_fits // len(counts), 1, 1)).swapaxes(0, 1).reshape(n_units, -1) for counts in (one, other)
    )

    def mean_of_sums(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(of_sums(sums.reshape(*sums.shape[:-1], n_fits, n_counts)).mean(-1))

    return first, second, mean_of_sums


def _pairs(names: Sequence[str], against: str) -> list[tuple[int, int]]:
    """Pair all systems, or each with the one that it is compared with."""
    if not against:
        return list(combinations(range(len(names)), 2))
    if against not in names:
        raise unknown_name("system to compare with", against, names)
    index = list(names).index(against)
    return [(other, index) for other in range(len(names)) if other != index]


def _read_systems(
    source: Runs, by: str, head: str, split: str
) -> tuple[list[str], ComparedRows, list[tuple[float, ...]]]:
    """Read the systems of finished runs: their names, predictions, and the scores of their seeds."""
    if by not in BY:
        raise unknown_name("kind of system", by, BY, hint="Layers are compared by a frame of their predictions.")
    runs = read_runs(source, head)
    names = [{"plan": run.plan, "decoder": run.decoder}.get(by, run.label) for run in runs]
    if by == "head":
        is_one, every = len(runs) == 1, runs
        runs = [replace(run, result=r) for run in every for _, r in run.folder.results if head in ("", r.name)]
        names = [run.result.name if is_one else f"{run.label}: {run.result.name}" for run in runs]
    rows = read_rows(runs, split)
    return names, rows, [run.result.summary[rows.split][rows.metric].values for run in runs]


def _read_frame(frame: pd.DataFrame, by: str, metric: str) -> tuple[list[str], ComparedRows]:
    for column in (by, "row", "gold", "predicted"):
        if column not in frame.columns:
            raise unknown_name("column", column, frame.columns, hint="A frame of predictions has it.")
    parts = {str(name): part.sort_values("row", kind="stable") for name, part in frame.groupby(by, sort=False)}
    first = next(iter(parts.values()), frame)
    for name, part in parts.items():
        if list(part["row"]) != list(first["row"]) or list(part["gold"]) != list(first["gold"]):
            raise HeadError(
                f"{by} {name!r} has other rows or gold than {by} {next(iter(parts))!r}; give the same rows."
            )
    rows = SplitRows({"row": list(first["row"])}, list(first["gold"]), list(first["unit"]) if "unit" in first else None)
    return list(parts), ComparedRows("", metric, rows, [[list(part["predicted"])] for part in parts.values()])


def read_runs(runs: Runs, head: str = "") -> list[ComparedRun]:
    """Read finished runs, each with the head to compare: the best on validation, if empty."""
    compared, folders = [], open_runs(runs)
    for folder, label in zip(folders, unique_names([folder.path for folder in folders]), strict=True):
        if folder.values["what"] != "run":
            raise HeadError(
                f"{str(folder.path)!r} is a {folder.values['what']}, which compares its own points; give runs, or "
                "--across."
            )
        heads = {result.name: result for _, result in folder.results}
        if head and head not in heads:
            raise unknown_name(f"head of the run {label!r}", head, heads)
        compared.append(ComparedRun(label, folder, heads[head] if head else best_result(heads.values())))
    return compared


def unique_names(folders: Sequence[Path]) -> list[str]:
    """Name folders by as many of their last parts as make the names unique."""
    paths = [folder.resolve().parts for folder in folders]
    longest = max(map(len, paths), default=1)
    depth = next((d for d in range(1, longest) if len({parts[-d:] for parts in paths}) == len(paths)), 1)
    return ["/".join(parts[-depth:]) for parts in paths]


def _differing_column(first: Mapping[str, object], table: Mapping[str, object], heads: Iterable[str]) -> str:
    """Name the first column of rows and inputs in which two tables of predictions differ; empty where none does."""
    return next((name for name in first if name not in {*heads, "unit"} and table.get(name) != first[name]), "")


def read_rows(runs: Sequence[ComparedRun], split: str = "") -> ComparedRows:
    """Read what the heads to compare predict on a split; test, or validation where there is no test, if empty."""
    metrics = {run.result.metric for run in runs}
    if len(metrics) > 1:
        raise HeadError(
            f"the runs are scored by {', '.join(sorted(metrics))}; compare runs of one kind of task, or see --across."
        )
    split = split or ("test" if all("test" in run.result.summary for run in runs) else "validation")
    tables = [_read_predictions(run, split) for run in runs]
    first, heads = tables[0], runs[0].folder.values["heads"]
    for run, table in zip(runs, tables, strict=True):
        if name := _differing_column(first, table, heads):
            raise HeadError(
                f"{run.label!r} and {runs[0].label!r} do not hold the same rows: they differ in {name!r} of {split} "
                f"({len(table['row'])} and {len(first['row'])} rows); compare runs of the same rows, or see --across."
            )
    predicted = []
    for run, table in zip(runs, tables, strict=True):
        fits = read_scored(run.folder.path, split, run.result.name)  # of every seed or draw
        if any(len(rows) != len(table["row"]) for rows in fits):
            raise HeadError(
                f"{str(run.folder.path / SCORED)!r} has other rows than {PREDICTIONS}; run its config again."
            )
        predicted.append(fits or [table[run.result.name]])
    rows = SplitRows({"row": first["row"]}, first["gold"], first["unit"])
    return ComparedRows(split, metrics.pop(), rows, predicted)


def _read_predictions(run: ComparedRun, split: str) -> dict[str, list[str]]:
    """Read the rows of a split from predictions.csv, as columns; `unit` is the row where there is none."""
    tables = read_predictions(run.folder.path)
    if split not in tables:
        raise unknown_name(f"split of the run {run.label!r}", split, tables)
    if run.result.name not in tables[split]:
        raise HeadError(
            f"{str(run.folder.path / PREDICTIONS)!r} has no column {run.result.name!r}; run its config again."
        )
    return tables[split]


TITLES = ("run", "plan", "head", "chosen", "metric", "validation", "test", "95 % interval")
LEVEL = 0.05
"""A corrected p-value below it is a finding."""
UNRELATED = ("name", "caches", "runs", "figures", "loggers")
"""Settings that say where a run is and how it looks, not what it computes."""


@dataclass(frozen=True)
class ComparedPart:
    """Runs on the rows that have one value in a column."""

    value: str
    """The value."""
    scores: tuple[float, ...]
    """The score of each run, a fraction."""
    differences: tuple[Difference, ...]
    """The difference of each further run to the first, with a paired interval that is not corrected."""

    @property
    def n_units(self) -> int:
        """Units that resamples draw."""
        return self.differences[0].n_units


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs on the same rows, compared with the first of them."""

    runs: tuple[ComparedRun, ...]
    """The runs, in the order given."""
    split: str
    """The split whose predictions are compared."""
    metric: str
    """What they are scored by."""
    differences: tuple[Difference, ...]
    """The difference of each further run to the first, with a paired interval."""
    raw_p_values: tuple[float, ...]
    """Their p-values by the same resamples, each of one test; `p_values` are corrected."""
    settings: tuple[Mapping[str, tuple[object, object]], ...]
    """For each further run, every setting that differs from the first run's: its dotted name to the value of the first
    run and that of the run."""
    by: str = ""
    """The column of the task by which rows are grouped; empty where they are not."""
    parts: tuple[ComparedPart, ...] = ()
    """The same for the rows of each value of that column."""
    n_left_out: int = 0
    """Values of that column with too few units, or without a score."""

    @property
    def p_values(self) -> tuple[float, ...]:
        """The p-values of the differences, corrected by Holm for their number."""
        return tuple(correct_p_values(self.raw_p_values).tolist())

    @property
    def table(self) -> pd.DataFrame:
        """A row per run: its head, scores as fractions, and the difference to the first run with interval and p."""
        nothing = Difference(0.0, float("nan"), float("nan"), self.differences[0].n_units)
        rows = []
        gains = zip((nothing, *self.differences), (float("nan"), *self.p_values), strict=True)
        for run, (gain, p_value) in zip(self.runs, gains, strict=True):
            means = {split: run.result.mean(split) for split in ("validation", "test") if split in run.result.summary}
            rows.append(
                {
                    "run": run.label,
                    "plan": run.plan,
                    "head": run.result.name,
                    "metric": self.metric,
                    **means,
                    "difference": gain.value,
                    "low": gain.low,
                    "high": gain.high,
                    "p_value": p_value,
                }
            )
        return pd.DataFrame(rows)

    @property
    def part_table(self) -> pd.DataFrame:
        """A row per value of the column and run: units, score as a fraction, and the difference to the first run."""
        nothing = Difference(0.0, float("nan"), float("nan"), 0)
        rows = [
            (self.by, part.value, run.label, part.n_units, score, gain.value, gain.low, gain.high)
            for part in self.parts
            for run, score, gain in zip(self.runs, part.scores, (nothing, *part.differences), strict=True)
        ]
        return pd.DataFrame(rows, columns=["by", "value", "run", "units", "score", "difference", "low", "high"])

    @property
    def curves(self) -> pd.DataFrame:
        """The score of every layer of every run, tidy, with the columns of `probes.results`."""
        numbers = self._numbers
        return numbers[numbers["record"] == "curve"].reset_index(drop=True)

    @property
    def _numbers(self) -> pd.DataFrame:
        """Every number of the heads whose layers are drawn."""
        rows = [
            {"run": run.label, "plan": run.plan, "head": curved.name, "pooling": curved.pooling, **row}
            for run in self.runs
            if (curved := _curved(run)) is not None
            for row in tidy_rows(curved)
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def draw(self, folder: str | Path, *, formats: Sequence[str] = ("png",)) -> tuple[Path, ...]:
        """Draw the layers of all runs on one scale, `layers` in every format; nothing where no head reads one layer."""
        album = Album(Path(folder), tuple(formats))
        self.draw_into(album)
        return tuple(Path(folder) / file for files in album.drawn.values() for file in files)

    def draw_into(self, album: Album) -> None:
        """Draw the layers of all runs on one scale into an album; nothing where no head reads one layer."""
        from probes.report.comparison_figures import draw_runs, runs_table

        curved = {run.label: result for run in self.runs if (result := _curved(run)) is not None}
        splits = [{curve.split for curve in layer_curves(result)} for result in curved.values()]
        shared = set.intersection(*splits) if splits else set()
        if not shared:
            return
        split = "validation" if "validation" in shared else min(shared)
        numbers = self._numbers
        is_metric = numbers["metric"] == numbers["run"].map({run: result.metric for run, result in curved.items()})
        is_chosen = numbers["record"] == "score"
        frame = numbers[is_metric & (is_chosen | ((numbers["record"] == "curve") & (numbers["split"] == split)))]
        header, heads = self.runs[0].folder.values, ", ".join(dict.fromkeys(result.name for result in curved.values()))
        album.add(
            "layers",
            on_panel(draw_runs),
            frame,
            title=f"Score of each layer, {heads}",
            note=f"{header['task']['name']} on {header['decoder']['name']}; circles: the chosen layers",
            table=runs_table(frame),
        )

    def __repr__(self) -> str:
        return f"<comparison of {len(self.runs)} runs by {self.metric} on {self.split}: {'; '.join(self.verdicts())}>"

    def verdicts(self) -> list[str]:
        """Say of every further run whether it differs from the first, in a sentence; of several by Holm's p.

        Where both read the same latents there is nothing to test, and the sentence says so.
        """
        first, gains = self.runs[0], zip(self.runs[1:], self.differences, self.p_values, self.settings, strict=True)
        n_tests = len(self.differences)
        sentences = [
            _same_latents(first, run, settings) or _verdict(run.label, first.label, gain, self.metric, p_value, n_tests)
            for run, gain, p_value, settings in gains
        ]
        return sentences + ([self._part_verdict(k) for k in range(n_tests)] if self.parts else [])

    def _part_verdict(self, k: int) -> str:
        """Say on how many values of the column a further run has more than the first, and on which it has less."""
        gains = {part.value: part.differences[k] for part in self.parts}
        above = sum(gap.value > 0 for gap in gains.values())
        sure = {value: gap for value, gap in gains.items() if gap.n_units >= FEW_UNITS and gap.low * gap.high > 0}
        more, less = ([value for value, gap in sure.items() if (gap.low > 0) is is_more] for is_more in (True, False))
        certain = [f"for certain on {', '.join(more) or 'none'}"]
        certain += [f"less for certain on {', '.join(less)}"] if less else []
        return (
            f"By {self.by}, {self.runs[k + 1].label} has more than {self.runs[0].label} on {above} of {len(gains)} "
            f"values, {', and '.join(certain)} (intervals not corrected for their number)"
        )

    def notes(self) -> list[str]:
        """Say for every further run which settings differ from the first run's, with a warning for more than one."""
        notes = [_note(run.label, settings) for run, settings in zip(self.runs[1:], self.settings, strict=True)]
        if self.n_left_out:
            notes.append(
                f"{self.n_left_out:,} value{'s' * (self.n_left_out > 1)} of {self.by} left out: fewer than "
                f"{MIN_SPLIT_ROWS} units, or no score."
            )
        return notes

    def to_screen(self) -> ScreenTable:
        """Lay the comparison out for a terminal of 80 characters."""
        table = ScreenTable(title=f"{metric_label(self.metric)} x 100", box=SIMPLE, padding=(0, 1))
        table.add_column("run and head", overflow="fold")
        for title in (
            "validation",
            "test",
            f"over the first,\n{self.split}",
            "95 %\ninterval",
            *self._p_title("p,\nHolm"),
        ):
            table.add_column(title, justify="right")
        gains = [("",) * 3, *self._gains()]
        for run, gain in zip(self.runs, gains, strict=True):
            scores = (spread(_summary(run, split, self.metric)) for split in ("validation", "test"))
            table.add_row(printable(f"{run.label}\n{run.result.name}"), *scores, *gain[: len(table.columns) - 3])
        return table

    def parts_to_screen(self) -> ScreenTable:
        """Lay the groups of rows out for a terminal of 80 characters; one further run needs no column of its own."""
        titles, rows = self._part_rows()
        kept = [place for place in range(len(titles)) if place != 1 or len(self.runs) > 2]
        table = ScreenTable(title=f"{metric_label(self.metric)} x 100 by {self.by}", box=SIMPLE, padding=(0, 1))
        for place in kept:
            table.add_column(titles[place], justify="left" if place < 2 else "right", overflow="fold")
        for row in rows:
            table.add_row(*(printable(row[place]) for place in kept))
        return table

    def _part_rows(self) -> tuple[tuple[str, ...], list[list[str]]]:
        """Write a row per value and further run."""
        titles = (self.by, "run", "units", "the first", "score", "over the first", "95 % interval")
        rows = [
            [
                part.value,
                run.label,
                f"{part.n_units:,}",
                percent(part.scores[0]),
                percent(score),
                percent(gain.value, sign="+"),
                signed_interval(gain.low, gain.high),
            ]
            for part in self.parts
            for run, score, gain in zip(self.runs[1:], part.scores[1:], part.differences, strict=True)
        ]
        return titles, rows

    def _gains(self) -> list[tuple[str, str, str]]:
        """Write the difference of each further run to the first, its interval and its p-value."""
        return [
            (percent(gain.value, sign="+"), signed_interval(gain.low, gain.high), number(p_value, 3))
            for gain, p_value in zip(self.differences, self.p_values, strict=True)
        ]

    def _p_title(self, title: str) -> tuple[str, ...]:
        """Name the column of p-values, where there are several; a single one says what its interval does."""
        return (title,) * (len(self.differences) > 1)

    def to_markdown(self) -> str:
        """Write the comparison as Markdown: verdicts, the results, and the differences."""
        return markdown([" ".join(f"{sentence}." for sentence in self.verdicts()), *self.notes(), *self.blocks()])

    def blocks(self) -> tuple[Block, ...]:
        """Give the results and the differences, as a report holds them."""
        rows = [
            (
                run.label,
                run.plan,
                run.result.name + " (optimistic)" * run.result.is_optimistic,
                describe_point(run.result.chosen),
                metric_label(self.metric),
                *(spread(_summary(run, split, self.metric)) for split in ("validation", "test")),
                interval(_summary(run, "test", self.metric)),
            )
            for run in self.runs
        ]
        titles = ("run", f"over {self.runs[0].label}", "95 % interval", *self._p_title("p (Holm)"), "units")
        differences = [
            (run.label, *gain[: len(titles) - 2], f"{self.differences[0].n_units:,}")
            for run, gain in zip(self.runs[1:], self._gains(), strict=True)
        ]
        return (
            Table(TITLES, [[cell(text) for text in row] for row in rows]),
            f"Scores times 100. Differences on {self.split}, of the predictions that are scored, on the same "
            "resamples:",
            Table(titles, [[cell(text) for text in row] for row in differences]),
            *self._part_blocks(),
        )

    def _part_blocks(self) -> tuple[Block, ...]:
        if not self.parts:
            return ()
        titles, rows = self._part_rows()
        text = f"By {self.by}, on {self.split}; intervals not corrected for their number:"
        return text, Table(titles, [[cell(text) for text in row] for row in rows])


def compare(runs: Runs, *, head: str = "", split: str = "", by: str = "", n_resamples: int = 1000) -> Comparison:
    """Compare finished runs on the same task with the first of them.

    Args:
        runs: Two run folders or more.
        head: The head to compare in every run; in each its best on validation, if empty.
        split: The split whose predictions are compared; test, or validation where there is no test, if empty.
        by: A column of the task, as `source` of STS-B: its values' rows are compared apart too. The task is read again.
        n_resamples: Resamples of the paired bootstrap, which draws what the intervals of the runs do.

    Raises:
        HeadError: Fewer than two runs, other than runs, or runs on other rows or metrics; with `by` a task that has
            other rows now, or no value with enough of them; says which.
        TaskError: With `by`, the task of the first run cannot be read again.
        UnknownNameError: A head or split that a run does not have, or a column that the task does not.

    Example:
        >>> compare(["runs/causal", "runs/nosink"]).table  # doctest: +SKIP
    """
    folders = open_runs(runs)
    if len(folders) < 2:
        raise HeadError(f"a comparison takes two run folders or more, not {len(folders)}.")
    compared = read_runs(folders, head)
    rows = read_rows(compared, split)
    parts, n_left_out = _compare_parts(compared[0].folder, rows, by, Resampling(n_resamples)) if by else ((), 0)
    values, resampled = rows.scores(Resampling(n_resamples))
    gains = [difference(values, resampled, k, 0, n_units=rows.rows.n_units) for k in range(1, len(compared))]
    p_values = [
        bootstrap_p_value(gain.value, row - resampled[0]) for gain, row in zip(gains, resampled[1:], strict=True)
    ]
    settings = tuple(_settings_that_differ(compared[0], run) for run in compared[1:])
    tests = tuple(gains), tuple(p_values)
    return Comparison(tuple(compared), rows.split, rows.metric, *tests, settings, by, parts, n_left_out)


def _compare_parts(
    run: RunFolder, rows: ComparedRows, by: str, resampling: Resampling
) -> tuple[tuple[ComparedPart, ...], int]:
    """Compare on the rows of every value of a column, in the order first seen; count the values that are left out."""
    from probes.runs.run_config import load_run_task  # reads data

    task = load_run_task(run.config)
    if task.digest() != run.values["task"]["digest"]:
        raise HeadError(f"the task of {str(run.path)!r} has other rows now than when it ran; run its config again.")
    columns = task.rows(rows.split)
    if by not in columns.column_names:
        raise unknown_name(f"column of {task.name}", by, columns.column_names)
    values = [str(value) for value in columns[by]]
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows.rows.sentences):
        places.setdefault(values[int(row)], []).append(place)
    parts = []
    for value, kept in places.items():
        part = rows.only(kept)
        if part.rows.n_units < MIN_SPLIT_ROWS:
            continue
        scores, resampled = part.scores(resampling)
        if not np.isfinite(scores).all():
            continue
        gains = [difference(scores, resampled, k, 0, n_units=part.rows.n_units) for k in range(1, len(scores))]
        parts.append(ComparedPart(value, tuple(scores.tolist()), tuple(gains)))
    if not parts:
        raise HeadError(
            f"no value of {by!r} has {MIN_SPLIT_ROWS} units of {rows.split} and a score; choose another column."
        )
    return tuple(parts), len(places) - len(parts)


def note_on_settings(first: RunFolder, second: RunFolder, head: str) -> str:
    """Say in which settings two finished runs differ, for one head of both; raises as `compare`."""
    one, other = read_runs([first, second], head)
    return _note(other.label, _settings_that_differ(one, other))


def _settings_that_differ(first: ComparedRun, run: ComparedRun) -> dict[str, tuple[object, object]]:
    """List the settings in which the config.yaml of two runs differ; of heads, those of the compared ones."""
    unequal = dict(unequal_fields(_settings(first), _settings(run)))
    if first.result.name != run.result.name:
        unequal["head"] = (first.result.name, run.result.name)
    return unequal


def _settings(run: ComparedRun) -> Plain:
    settings = {key: value for key, value in run.folder.settings.items() if key not in UNRELATED}
    heads = settings.pop("heads", None)
    options = heads.get(run.result.name) if isinstance(heads, dict) else None
    return {**settings, "heads": {run.result.name: options or {}}}


def _note(label: str, settings: Mapping[str, tuple[object, object]]) -> str:
    named = {key: values for key, values in settings.items() if not key.startswith("heads.") or "head" not in settings}
    if not named:
        return f"{label} has the same settings."
    listing = ", ".join(f"{key} ({_value(one)} and {_value(other)})" for key, (one, other) in named.items())
    if len(named) == 1:
        return f"{label} differs in one setting: {listing}."
    return (
        f"Warning: {label} differs in {len(named)} settings: {listing}. A difference cannot be put down to one of "
        "them; compare runs that differ in one."
    )


def _value(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _same_latents(first: ComparedRun, run: ComparedRun, settings: Mapping[str, tuple[object, object]]) -> str:
    """Say that two runs under two plans read only layers below the blocks that the plans change; empty elsewhere.

    Both then read the same latents, so their difference says nothing about the plans.
    """
    verb, layers = _layers_read(run)
    extraction = {key for key in settings if key.startswith(("decoder.", "extraction."))}
    if extraction != {"extraction.plan"} or (verb, layers) != _layers_read(first) or not layers:
        return ""
    if run.result.pooling != first.result.pooling:  # `auto` stands for another one under each plan
        return ""
    block = _first_changed_block(first, run)
    names = layer_names(run.folder.n_blocks)
    tapped = [split_tap(layer.rpartition("/")[2])[0] for layer in layers]
    is_below = all(name in names[:block] for name in tapped)
    if block is None or not is_below or "reba" in run.result.pooling:
        return ""  # ReBA weighs the tokens by the attention of every block
    return (
        f"{run.label} and {first.label} read the same latents: both {verb} {', '.join(layers)}, and the plans "
        f"differ only from block_{block:02d} on, so this says nothing about the plans. "
        f"{_best_changed(first, run, names[block:])}"
    )


def _layers_read(run: ComparedRun) -> tuple[str, tuple[str, ...]]:
    """Return the layers that a head chose, or all that it reads where it chooses none, and the verb for it."""
    chosen = run.result.chosen
    layers = tuple(part["layer"] for part in (*chosen.get("views", ()), chosen) if "layer" in part)
    return ("chose", layers) if layers else ("read", tuple(run.result.layers))


def _first_changed_block(first: ComparedRun, run: ComparedRun) -> int | None:
    """Return the lowest block, from 1, that two plans of masks run differently; None where more than masks differs."""
    try:
        plans = [parse_plan(first.plan), parse_plan(run.plan)]
        if any(plan.architecture != "inplace" or plan.has_tail for plan in plans):
            return None
        kinds = [plan.kinds(run.folder.n_blocks) for plan in plans]
    except (UnknownNameError, CodeError):  # a mask kind that is not registered, or may not be imported, here
        return None
    return next((k for k, (one, other) in enumerate(zip(*kinds, strict=True), start=1) if one != other), None)


def _best_changed(first: ComparedRun, run: ComparedRun, changed: Sequence[str]) -> str:
    """Name the best layer on validation among those that the plans change, with the scores of both runs there."""
    layers = [layer for layer in changed if layer in run.result.layers and layer in first.result.layers]
    scores = {layer: [_validation_score(side.result, layer) for side in (first, run)] for layer in layers}
    scores = {layer: both for layer, both in scores.items() if None not in both}
    if not scores:
        return "`icecore compare --by-layer` compares them at every layer"
    best = max(scores, key=lambda layer: max(score or 0.0 for score in scores[layer]))
    before, after = (percent(score) for score in scores[best])
    return (
        f"Of the layers they change, {best} is the best on validation: {after} under {run.plan}, {before} under "
        f"{first.plan} (`icecore compare --by-layer` has all of them on {first.result.reported_split}, with intervals)"
    )


def _curved(run: ComparedRun) -> HeadResult | None:
    """Choose the result whose layers are drawn: the compared one, or else one that scores single layers."""
    results = (run.result, *(result for _, result in run.folder.results))
    return next((result for result in results if result.curves and len(result.layers) > 1), None)


def _summary(run: ComparedRun, split: str, metric: str) -> SeedSummary | None:
    return run.result.summary.get(split, {}).get(metric)


def _validation_score(result: HeadResult, layer: str) -> float | None:
    """Return the best score of a layer on validation among the values of a head; None where it has no curve."""
    index = result.layers.index(layer)
    scores = [
        curve.values[index] for curve in result.curves if (curve.metric, curve.split) == (result.metric, "validation")
    ]
    return max(scores, default=None)


def _verdict(label: str, first: str, gain: Difference, metric: str, p_value: float, n_tests: int) -> str:
    by = f"{percent(abs(gain.value))} {metric_label(metric)}"
    p_text = f"p {number(p_value, 3)}, corrected for {n_tests} runs; " * (n_tests > 1)
    reach = f"({signed_interval(gain.low, gain.high)}; {p_text}n = {gain.n_units:,})"
    if math.isnan(gain.value):
        return (
            f"{label} cannot be compared with {first}: one of them has no {metric_label(metric)}, which is undefined "
            "where all predictions are the same"
        )
    if gain.n_units < FEW_UNITS:
        few = f"{too_few('rows', gain.n_units)} to claim a difference"
        ends = signed_interval(gain.low, gain.high)
        return f"{label} against {first}: {few}, {percent(gain.value, sign='+')} ({ends})"
    if p_value < LEVEL if n_tests > 1 else gain.low > 0 or gain.high < 0:
        return f"{label} is {'better' if gain.value > 0 else 'worse'} than {first} by {by} {reach}"
    return f"{label} is statistically tied with {first}: {percent(gain.value, sign='+')} {reach}"


# --- Pages ---


MISFITS = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, ArithmeticError)
"""What scores that were made by hand may raise."""


def write_report(runs: Runs, out: str | Path = "", *, allow_code: str | Iterable[str] = ()) -> Path:
    """Write the page of a finished run, sweep or search, or one page of several side by side.

    No task and no decoder is loaded: everything is in the folders.

    Args:
        runs: Run folders, or one.
        out: The file. If empty, `report.html` in the run's folder, or in the working folder for several.
        allow_code: Modules of your own masks that the plans of a sweep may import, as `my_parts`, or several.

    Returns:
        The file.

    Raises:
        HeadError: A folder without the results of this version, or no folder; says which.
        CodeError: A plan names a module that is not allowed, or is not the one that was recorded.

    Example:
        >>> write_report("runs/demo")  # doctest: +SKIP
        >>> write_report(["runs/causal", "runs/nosink"], "both.html")  # doctest: +SKIP
    """
    folders = open_runs(runs)
    if not folders:
        raise HeadError("a report takes a run folder, as runs/demo, or several.")
    path = Path(out) if out else (folders[0].path if len(folders) == 1 else Path()) / PAGE
    paths = [folder.path for folder in folders]
    # A plan of somebody's own code may not be allowed.
    is_own = any(folder.values.get("own") for folder in folders)
    source = "" if is_own else digest_source(paths, *(unique_names(paths) if len(paths) > 1 else ()))
    if is_drawn(path, "page", source):
        return path
    pictures = Pictures()
    with gate.allow_code(allow_code):
        page = page_of(folders[0], pictures) if len(folders) == 1 else _page_of_several(folders, pictures)
    write_page(path, page, pictures.classes)
    note_drawn(path, "page", source, [path.name])
    return path


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the page of a comparison: the runs side by side, then each of them."""
    pictures = Pictures()
    page = _page_of_several([run.folder for run in comparison.runs], pictures, comparison)
    write_page(path, page, pictures.classes)


def page_of(folder: RunFolder, pictures: Pictures) -> Page:
    """Make the page of a finished run, sweep or search from its folder."""
    try:
        values, album = folder.values, Album(folder.path, (), pictures.keep)
        report = KINDS[values["kind"]].report
        if values["what"] == "run":
            scores, rows = with_predictions(folder.scores, read_predictions(folder.path))
            return page_of_run(folder.path, album, pictures, Context(scores, rows, report))[0]
        custom = values.get("own", {})
        require_recorded(custom, (row["plan"] for row in values["plans"]))
        import_own(custom, folder=folder.path)
        return page_of_plans(folder.path, album, pictures, read_plans(values), report)[0]
    except MISFITS as error:
        raise HeadError(
            f"no page can be made of the scores in {str(folder.path)!r} ({first_line(error)}); run its config again."
        ) from error


def _page_of_several(folders: Sequence[RunFolder], pictures: Pictures, comparison: Comparison | None = None) -> Page:
    """Make one page of several runs: their comparison, if they are of the same rows, then each."""
    labels, complaint = unique_names([folder.path for folder in folders]), ""
    parts, explored, answers, warnings = list[Part](), dict[str, Values](), list[str](), dict[str, list[str]]()
    try:
        comparison = comparison or compare(folders)
    except HeadError as error:
        complaint = f"Not compared: {error}"
    if comparison:
        comparison.draw_into(Album(Path(), (), pictures.keep))
        parts.append(Part("Side by side", comparison.blocks(), pictures.take()))
        answers += [*(f"{sentence}." for sentence in comparison.verdicts()), *comparison.notes()]
    for label, folder in zip(labels, folders, strict=True):
        page = page_of(folder, pictures)
        parts.append(_shorten(label, page))
        for text in page.warnings:
            warnings.setdefault(text, []).append(label)
        explored[label] = page.exploration
    title = f"{len(folders)} runs side by side"
    question = f"What differs between {', '.join(labels[:-1])} and {labels[-1]}?"
    shared = (f"{', '.join(runs)}: {text}" for text, runs in warnings.items())
    exploration = join_explorations(explored, _gaps(labels, folders))
    return Page(title, question, tuple(answers), (*filter(None, [complaint]), *shared), tuple(parts), exploration)


def _gaps(labels: Sequence[str], folders: Sequence[RunFolder]) -> list[Values]:
    """Give the paired differences at every layer of two runs of the same rows, for the heads that both studied."""
    gaps: list[Values] = []
    for (one, first), (other, second) in combinations(zip(labels, folders, strict=True), 2):
        if {first.values["what"], second.values["what"]} != {"run"}:
            continue
        rows, others = (read_predictions(folder.path) for folder in (first, second))
        for head in first.heads:
            both = [load_predictions(folder.path, head) for folder in (first, second)]
            if both[0] is None or both[1] is None or both[0].split not in {*rows} & {*others}:
                continue
            table, metric = rows[both[0].split], first.scores.heads[head].metric
            is_same = not _differing_column(table, others[both[0].split], first.heads)
            if is_same and (gap := layer_gap(both[0], both[1], table, metric)):
                points = [describe_point(folder.scores.heads[head].chosen) for folder in (first, second)]
                note = f"{one} reads {points[0]}, {other} {points[1]}." if points[0] != points[1] else ""
                gaps.append({"one": f"{one}, {head}", "other": f"{other}, {head}", "note": note, **gap})
    return gaps


def _shorten(label: str, page: Page) -> Part:
    """Make one part of the page of a run: its answers, its first table, its figures."""
    first = next(part for part in page.parts if part.is_main)
    full = [block for part in page.parts if part.title == IN_FULL for block in part.blocks]
    pictures = tuple(picture for part in page.parts for picture in part.pictures)
    return Part(label, (*page.answers, *full, *first.blocks), pictures)
