"""Runs beside each other: their results in one table, their layers on one scale, and paired differences."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import t

from extract import code_gate as gate
from extract.decoders.decoder_spec import layer_names, relative_depths, split_tap
from extract.errors import HeadError, UnknownNameError, first_line, printable, unknown_name
from extract.files import read_file
from extract.masks.mask_plan import parse_plan
from extract.registry import import_own, require_recorded
from extract.store.manifest import differences as unequal_fields
from probes.heads.result import Curve, HeadResult
from probes.metrics.bootstrap import Difference, Resampling, difference, paired_scores, unit_counts
from probes.metrics.significance import (
    OfSums,
    bootstrap_p_value,
    centre_of_gravity,
    correct_p_values,
    normalised_ranks,
    permutation_p_value,
    seed_errors,
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
    spread,
)
from probes.report.document import FEW_UNITS, best_result
from probes.report.predictions import PREDICTIONS, SCORED, read_predictions, read_scored, with_predictions
from probes.report.scores import read_plans, read_run, tidy_rows
from probes.runs.folder import CONFIG
from probes.runs.results import COLUMNS, read_scores, results_by_plan
from probes.runs.task_kinds import KINDS

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as ScreenTable

    from probes.report.blocks import Document
    from probes.report.page import Page, Part, Pictures
    from probes.report.style import Album


# Predictions of finished runs on the same rows, and paired tests between their heads, plans, decoders or layers.

BY = ("run", "plan", "decoder", "head")


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """One run of a comparison: its name there, its scores, and the head that is compared."""

    label: str
    folder: Path
    values: Mapping[str, Any]
    result: HeadResult
    heads: Mapping[str, HeadResult]

    @property
    def plan(self) -> str:
        """The mask plan, as text."""
        return str(self.values["cache"]["plan"])

    @property
    def decoder(self) -> str:
        """The decoder."""
        return str(self.values["decoder"]["name"])


@dataclass(frozen=True, eq=False)
class ComparedRows:
    """Predictions of `S` systems for the same rows, a text each.

    Attributes:
        split: The split they are of.
        metric: What they are scored by.
        gold: The gold of each row.
        units: The unit of each row, which is drawn or swapped whole.
        sentences: The sentence of each word; for other rows, the row.
        predicted: What each system predicts, of every seed or draw that its score is the mean over.
    """

    split: str
    metric: str
    gold: Sequence[Any]
    units: Sequence[str]
    sentences: Sequence[str]
    predicted: Sequence[Sequence[Sequence[Any]]]

    def scores(self, resampling: Resampling) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S R"]]:
        """Score all rows, and resamples of whole units that all systems share; the mean over the fits of a system."""
        values, resampled = paired_scores(
            self._fits,
            self.gold,
            metric=self.metric,
            units=self.units,
            sentences=self.sentences,
            resampling=resampling,
        )
        return (
            np.array([part.mean() for part in np.split(values, self._ends)]),
            np.stack([part.mean(axis=0) for part in np.split(resampled, self._ends)]),
        )

    def counts(self) -> tuple[list[Float[np.ndarray, "S U C"]], OfSums]:
        """Count what the metric needs of every unit, for the fits of each system."""
        counts, of_sums = unit_counts(
            self._fits, self.gold, metric=self.metric, units=self.units, sentences=self.sentences
        )
        return np.split(counts, self._ends), of_sums

    @property
    def _fits(self) -> list[Sequence[Any]]:
        return [rows for fits in self.predicted for rows in fits]

    @property
    def _ends(self) -> list[int]:
        return [int(end) for end in np.cumsum([len(fits) for fits in self.predicted])[:-1]]


def paired_tests(
    source: "Iterable[str | Path] | str | Path | pd.DataFrame",
    *,
    by: str = "run",
    head: str = "",
    split: str = "",
    metric: str = "",
    against: str = "",
    correction: str = "holm",
    n_resamples: int = 1000,
    n_permutations: int = 9999,
) -> "pd.DataFrame":
    """Test every pair of systems on the same rows: runs, plans, decoders, heads, or the layers of a frame.

    Args:
        source: Finished runs on the same task; or a frame with a row per system and row: the system, named `by`, then
            `row` (of words, their sentence), `gold`, `predicted`, and perhaps `unit`, what is drawn and swapped whole.
        by: What is compared, by which systems are named: `run`, `plan` or `decoder`, with one head of each run, or
            `head`, with all heads of all runs. For a frame, the column that holds the system, such as `layer`.
        head: The head of each run; its best on validation, if empty.
        split: As in `compare`.
        metric: The metric of a frame.
        against: The system that all others are compared with; every pair is compared, if empty.
        correction: A key of `CORRECTIONS`, over the tests of one kind.
        n_resamples: Resamples of the paired bootstrap.
        n_permutations: Swaps of the permutation test.

    Returns:
        A row per pair with `one`, `other`, `difference` (of one over the other), `low` and `high` of its interval over
        units, `low_total` and `high_total` of that over units and seeds (`variance_components`; equal where heads have
        one seed), the p-values `bootstrap` and `permutation`, and both corrected.

    Raises:
        HeadError: Fewer than two systems, or systems of other rows or metrics.
        UnknownNameError: Another `by`, head, split, correction, metric, or no such system to compare with.

    Example:
        >>> paired_tests(["runs/causal", "runs/nosink"], by="plan")  # doctest: +SKIP
    """
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        names, rows = _read_frame(source, by, metric)
        seeds: list[tuple[float, ...]] = [()] * len(names)
    else:
        names, rows, seeds = _read_systems(source, by, head, split)
    if len(names) < 2 or len(set(names)) < len(names):
        raise HeadError(f"tests by {by!r} take two systems or more with different names; found {', '.join(names)}.")
    values, resampled = rows.scores(Resampling(n_resamples))
    counts, of_sums = rows.counts()
    found = []
    for one, other in _pairs(names, against):
        gap = difference(values, resampled, one, other, n_units=counts[0].shape[1])
        errors = seed_errors(seeds[one], n_resamples, seed=1) - seed_errors(seeds[other], n_resamples, seed=2)
        total = difference(values, resampled + np.eye(len(names))[:, [one]] * errors, one, other, n_units=gap.n_units)
        swapped = permutation_p_value(
            *_side_by_side(counts[one], counts[other], of_sums), n_permutations=n_permutations
        )
        found.append(
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
                "permutation": swapped,
            }
        )
    table = pd.DataFrame(found)
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
    place = list(names).index(against)
    return [(other, place) for other in range(len(names)) if other != place]


def _read_systems(
    source: Iterable[str | Path] | str | Path, by: str, head: str, split: str
) -> tuple[list[str], ComparedRows, list[tuple[float, ...]]]:
    """Read the systems of finished runs: their names, predictions, and the scores of their seeds."""
    if by not in BY:
        raise unknown_name("kind of system", by, BY, hint="Layers are compared by a frame of their predictions.")
    runs = read_runs([source] if isinstance(source, str | Path) else source, head)
    names = [{"plan": run.plan, "decoder": run.decoder}.get(by, run.label) for run in runs]
    if by == "head":
        systems = [(run, result) for run in runs for result in run.heads.values() if head in ("", result.name)]
        runs = [replace(run, result=result) for run, result in systems]
        names = [
            result.name if len({run.label for run in runs}) == 1 else f"{run.label}: {result.name}"
            for run, result in systems
        ]
    rows = read_rows(runs, split)
    return names, rows, [run.result.summary[rows.split][rows.metric].values for run in runs]


def _read_frame(frame: "pd.DataFrame", by: str, metric: str) -> tuple[list[str], ComparedRows]:
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
    sentences = [str(row) for row in first["row"]]
    units = [str(unit) for unit in first["unit"]] if "unit" in frame.columns else sentences
    predicted = [[list(part["predicted"])] for part in parts.values()]
    return list(parts), ComparedRows("", metric, list(first["gold"]), units, sentences, predicted)


def read_runs(folders: Iterable[str | Path], head: str = "") -> list[ComparedRun]:
    """Read finished runs, each with the head to compare: the best on validation, if empty.

    Raises:
        HeadError: A folder without a finished run; names it.
        UnknownNameError: A head that a run does not have.
    """
    paths = [Path(folder) for folder in folders]
    return [_read_run(path, label, head) for path, label in zip(paths, name_apart(paths), strict=True)]


def name_apart(folders: Sequence[Path]) -> list[str]:
    """Name runs by their folders, with as much of the path as tells them apart."""
    parts = [folder.resolve().parts for folder in folders]
    most = max(map(len, parts), default=1)
    depth = next((d for d in range(1, most) if len({each[-d:] for each in parts}) == len(parts)), 1)
    return ["/".join(each[-depth:]) for each in parts]


def _read_run(folder: Path, label: str, head: str) -> ComparedRun:
    values = read_scores(folder)
    if values["what"] != "run":
        raise HeadError(f"{str(folder)!r} is a {values['what']}, which compares its plans itself; compare runs.")
    heads = {result.name: result for _, result in results_by_plan(values)}
    if head and head not in heads:
        raise unknown_name(f"head of the run {label!r}", head, heads)
    return ComparedRun(label, folder, values, heads[head] if head else best_result(heads.values()), heads)


def read_rows(runs: Sequence[ComparedRun], split: str = "") -> ComparedRows:
    """Read what the heads to compare predict on a split; test, or validation where there is no test, if empty.

    Raises:
        HeadError: Runs on other rows or metrics, or without predictions; says which.
        UnknownNameError: A split that a run does not have.
    """
    metrics = {run.result.metric for run in runs}
    if len(metrics) > 1:
        raise HeadError(
            f"the runs are scored by {', '.join(sorted(metrics))}; compare runs of one kind of task, or see --across."
        )
    split = split or ("test" if all("test" in run.result.summary for run in runs) else "validation")
    tables = [_read_predictions(run, split) for run in runs]
    first = tables[0]
    for run, table in zip(runs, tables, strict=True):
        _require_same_rows(runs[0], first, run, table, split)
    predicted = [_read_fits(run, table, split) for run, table in zip(runs, tables, strict=True)]
    return ComparedRows(split, metrics.pop(), first["gold"], first["unit"], first["row"], predicted)


def _read_fits(run: ComparedRun, table: Mapping[str, list[str]], split: str) -> list[list[str]]:
    """Read what scores are of: the predictions of every seed or draw, or else those that are shown."""
    fits = read_scored(run.folder, split, run.result.name)
    if any(len(rows) != len(table["row"]) for rows in fits):
        raise HeadError(f"{str(run.folder / SCORED)!r} has other rows than {PREDICTIONS}; run its config again.")
    return fits or [table[run.result.name]]


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
                f"{len(wanted['row'])} rows): compare runs of the same rows, or see --across."
            )


TITLES = ("run", "plan", "head", "chosen", "metric", "validation", "test", "95 % interval")
LEVEL = 0.05
"""A corrected p-value below it is a finding."""
UNRELATED = ("name", "caches", "runs", "figures", "loggers")
"""Settings that say where a run is and how it looks, not what it computes."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs on the same rows, compared with the first of them.

    Attributes:
        runs: The runs, in the order given.
        split: The split whose predictions are compared.
        metric: What they are scored by.
        differences: What each further run has over the first, with a paired interval.
        p_values: Of the differences, by the same resamples, corrected by Holm for their number.
        settings: For each further run, every setting that differs from the first run's: its dotted name to the value
            of the first run and that of the run.
    """

    runs: tuple[ComparedRun, ...]
    split: str
    metric: str
    differences: tuple[Difference, ...]
    p_values: tuple[float, ...]
    settings: tuple[Mapping[str, tuple[Any, Any]], ...]

    @property
    def table(self) -> "pd.DataFrame":
        """A row per run: its head, scores as fractions, and what it has over the first run, with interval and p."""
        import pandas as pd

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
    def curves(self) -> "pd.DataFrame":
        """The score of every layer of every run, tidy, with the columns of `probes.results`."""
        numbers = self._numbers
        return numbers[numbers["record"] == "curve"].reset_index(drop=True)

    @property
    def _numbers(self) -> "pd.DataFrame":
        """Every number of the heads whose layers are drawn."""
        import pandas as pd

        rows = [
            {"run": run.label, "plan": run.plan, "head": curved.name, "pooling": curved.pooling, **row}
            for run in self.runs
            if (curved := _curved(run)) is not None
            for row in tidy_rows(curved)
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def draw(self, folder: str | Path, *, formats: Sequence[str] = ("png",)) -> tuple[Path, ...]:
        """Draw the layers of all runs on one scale, `layers` in every format; nothing where no head reads one layer."""
        from probes.report.style import Album

        album = Album(Path(folder), tuple(formats))
        self.draw_into(album)
        return tuple(Path(folder) / file for files in album.drawn.values() for file in files)

    def draw_into(self, album: "Album") -> None:
        """Draw the layers of all runs on one scale into an album; nothing where no head reads one layer."""
        from probes.report.comparison_figures import draw_runs, runs_table
        from probes.report.run_figures import layer_curves
        from probes.report.style import on_panel

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
        header, heads = self.runs[0].values, ", ".join(dict.fromkeys(result.name for result in curved.values()))
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
        return [
            _same_latents(first, run, settings) or _verdict(run.label, first.label, gain, self.metric, p_value, n_tests)
            for run, gain, p_value, settings in gains
        ]

    def notes(self) -> list[str]:
        """Say for every further run which settings differ from the first run's, with a warning for more than one."""
        return [_note(run.label, settings) for run, settings in zip(self.runs[1:], self.settings, strict=True)]

    def to_screen(self) -> "ScreenTable":
        """Lay the comparison out for a terminal of 80 characters."""
        from rich.box import SIMPLE
        from rich.table import Table as ScreenTable

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

    def _gains(self) -> list[tuple[str, str, str]]:
        """Write what each further run has over the first, its interval and its p-value."""
        found = zip(self.differences, self.p_values, strict=True)
        return [(percent(gain.value, sign="+"), _ends(gain), number(p_value, 3)) for gain, p_value in found]

    def _p_title(self, title: str) -> tuple[str, ...]:
        """Name the column of p-values, where there are several to correct; one is as its interval says."""
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
    found = read_runs(folders, head)
    rows = read_rows(found, split)
    values, resampled = rows.scores(Resampling(n_resamples))
    gains = [difference(values, resampled, k, 0, n_units=len(set(rows.units))) for k in range(1, len(found))]
    p_values = correct_p_values(
        [bootstrap_p_value(gain.value, row - resampled[0]) for gain, row in zip(gains, resampled[1:], strict=True)]
    )
    settings = tuple(_settings_that_differ(found[0], run) for run in found[1:])
    return Comparison(tuple(found), rows.split, rows.metric, tuple(gains), tuple(p_values.tolist()), settings)


def note_on_settings(first: str | Path, second: str | Path, head: str) -> str:
    """Say in which settings two finished runs differ, for one head of both; raises as `compare`."""
    one, other = read_runs([Path(first), Path(second)], head)
    return _note(other.label, _settings_that_differ(one, other))


def _settings_that_differ(first: ComparedRun, run: ComparedRun) -> dict[str, tuple[Any, Any]]:
    """List the settings in which the config.yaml of two runs differ; of heads, those of the compared ones."""
    unequal = dict(unequal_fields(_settings(first), _settings(run)))
    if first.result.name != run.result.name:
        unequal["head"] = (first.result.name, run.result.name)
    return unequal


def _settings(run: ComparedRun) -> dict[str, Any]:
    path = run.folder / CONFIG
    try:
        values = yaml.safe_load(read_file(path))
        kept = {key: value for key, value in values.items() if key not in UNRELATED}
        heads = kept.pop("heads", {})
        return {**kept, "heads": {run.result.name: heads.get(run.result.name) or {}}}
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise HeadError(f"{str(path)!r} cannot be read ({first_line(error)}); run its config again.") from error


def _note(label: str, settings: Mapping[str, tuple[Any, Any]]) -> str:
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


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _same_latents(first: ComparedRun, run: ComparedRun, settings: Mapping[str, tuple[Any, Any]]) -> str:
    """Say that two runs under two plans read layers below the blocks that the plans change alone; empty elsewhere.

    Both then read the same latents, and a difference of nothing is no finding about the plans.
    """
    verb, layers = _layers_read(run)
    extraction = {key for key in settings if key.startswith(("decoder.", "extraction."))}
    if extraction != {"extraction.plan"} or (verb, layers) != _layers_read(first) or not layers:
        return ""
    block = _first_changed_block(first, run)
    names = layer_names(int(run.values["decoder"]["n_layers"]))
    tapped = [split_tap(layer.rpartition("/")[2])[0] for layer in layers]
    is_below = block is not None and all(name in names and names.index(name) < block for name in tapped)
    if block is None or not is_below or "reba" in run.result.pooling:
        return ""  # ReBA weighs the tokens by the attention of every block
    return (
        f"{run.label} and {first.label} read the same latents: both {verb} {', '.join(layers)}, and the plans "
        f"differ only from block_{block:02d} on, so this says nothing about the plans. "
        f"{_best_changed(first, run, names[block:])}"
    )


def _layers_read(run: ComparedRun) -> tuple[str, tuple[str, ...]]:
    """Return the layer that a head chose, or all that it reads where it chooses none, and the verb for it."""
    chosen = run.result.chosen.get("layer", "")
    return ("chose", (chosen,)) if chosen else ("read", tuple(run.result.layers))


def _first_changed_block(first: ComparedRun, run: ComparedRun) -> int | None:
    """Return the lowest block, from 1, that two plans of masks run differently; None where more than masks differs."""
    try:
        plans = [parse_plan(each.plan) for each in (first, run)]
        if any(plan.architecture != "inplace" or plan.has_tail for plan in plans):
            return None
        kinds = [plan.kinds(int(run.values["decoder"]["n_layers"])) for plan in plans]
    except UnknownNameError:  # a mask kind that is not registered in this process
        return None
    return next((k for k, (one, other) in enumerate(zip(*kinds, strict=True), start=1) if one != other), None)


def _best_changed(first: ComparedRun, run: ComparedRun, changed: Sequence[str]) -> str:
    """Name the best layer on validation among those that the plans change, with the scores of both runs there."""
    layers = [layer for layer in changed if layer in run.result.layers and layer in first.result.layers]
    scores = {layer: [_validation_score(each.result, layer) for each in (first, run)] for layer in layers}
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
    """Choose the head whose layers are drawn: the compared one, or else one that scores single layers."""
    return next((each for each in (run.result, *run.heads.values()) if each.curves and len(each.layers) > 1), None)


def _summary(run: ComparedRun, split: str, metric: str) -> Any:
    return run.result.summary.get(split, {}).get(metric)


def _ends(gain: Difference) -> str:
    return f"{percent(gain.low, sign='+')} to {percent(gain.high, sign='+')}"


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
    reach = f"({_ends(gain)}; {p_text}n = {gain.n_units:,})"
    if gain.n_units < FEW_UNITS:
        return f"{label} against {first}: too few rows to tell, {percent(gain.value, sign='+')} {reach}"
    if p_value < LEVEL if n_tests > 1 else gain.low > 0 or gain.high < 0:
        return f"{label} is {'better' if gain.value > 0 else 'worse'} than {first} by {by} {reach}"
    return f"{label} is statistically tied with {first}: {percent(gain.value, sign='+')} {reach}"


# Runs and sweeps of any tasks side by side: layer curves over relative depth, where scores are gained, and ranks.

OF_A_CURVE = ("run", "task", "decoder", "plan", "head", "pooling", "metric", "split")
CURVE_COLUMNS = (*OF_A_CURVE, "layer", "depth", "value", "share")
CENTRE_COLUMNS = (*OF_A_CURVE, "best_layer", "best", "worst", "centre", "low", "high", "n_seeds")
SYSTEMS = ("plan", "head", "decoder", "layer")
"""What `rank_systems` ranks."""
Runs = Iterable[str | Path] | str | Path


@dataclass(frozen=True, eq=False)
class _LayerCurve:
    """The layer curve of one head under one plan, the best of the head's values at each layer."""

    where: dict[str, Any]
    layers: tuple[str, ...]
    depths: Float[np.ndarray, " L"]
    values: Float[np.ndarray, " L"]
    by_seed: Float[np.ndarray, "S L"]
    """`(S, L)`, empty for one seed."""


def layers_across(runs: Runs, *, head: str = "") -> "pd.DataFrame":
    """Lay the layer curves of runs and sweeps side by side, whatever their tasks, plans and decoders.

    Args:
        runs: Folders of runs, sweeps or searches.
        head: A head; every head that scores single layers when empty.

    Returns:
        A row per curve and layer, with the columns `CURVE_COLUMNS`: `value` is the score on `split`, validation where
        the head has it; `share` is (value - lowest) / (highest - lowest) of the same curve, for one scale of colours;
        `depth` is 0 at the embedding and 1 at the final norm.

    Raises:
        HeadError: A folder without results, or no head that scores single layers.

    Example:
        >>> table = layers_across(["runs/demo", "runs/words-sample"])  # doctest: +SKIP
    """
    import pandas as pd

    rows = []
    for curve in _read_curves(runs, head):
        low, high = np.nanmin(curve.values), np.nanmax(curve.values)
        shares = (curve.values - low) / (high - low) if high > low else np.full(len(curve.values), np.nan)
        for layer, depth, value, share in zip(curve.layers, curve.depths, curve.values, shares, strict=True):
            rows.append({**curve.where, "layer": layer, "depth": depth, "value": value, "share": share})
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS))


def centres_of_gravity(runs: Runs, *, head: str = "") -> "pd.DataFrame":
    """Say for every layer curve of runs and sweeps at which relative depth its score is gained.

    Returns:
        A row per curve, with the columns `CENTRE_COLUMNS`: `centre` as in
        `probes.metrics.significance.centre_of_gravity`;
        `low` to `high` is Student's 95 % interval over seeds, missing for one seed, and says nothing of the rows.

    Raises:
        HeadError: As `layers_across`.
    """
    import pandas as pd

    rows = []
    for curve in _read_curves(runs, head):
        centre, half, best = (
            float(centre_of_gravity(curve.values, curve.depths)),
            np.nan,
            int(np.nanargmax(curve.values)),
        )
        n_seeds = max(len(curve.by_seed), 1)
        if n_seeds > 1:
            spread = centre_of_gravity(curve.by_seed, curve.depths).std(ddof=1)
            half = float(t.ppf(0.975, n_seeds - 1) * spread / np.sqrt(n_seeds))
        rows.append(
            {
                **curve.where,
                "best_layer": curve.layers[best],
                "best": curve.values[best],
                "worst": np.nanmin(curve.values),
                "centre": centre,
                "low": centre - half,
                "high": centre + half,
                "n_seeds": n_seeds,
            }
        )
    return pd.DataFrame(rows, columns=list(CENTRE_COLUMNS))


def rank_systems(runs: Runs, *, by: str = "plan", head: str = "") -> "pd.DataFrame":
    """Rank plans, heads, decoders or layers over tasks by average normalised rank (BidirLM, appendix D.3).

    Of a system that was run several times on a task, the result with the best selection score counts, on test where
    every one has it, else on validation. Layers count by the best curve on validation.

    Args:
        runs: Folders of runs, sweeps or searches, on two tasks or more.
        by: What is ranked: one of `SYSTEMS`.
        head: A head; all when empty.

    Returns:
        A row per system, the best first, with the normalised rank on each task, 0 the best, and `average`.

    Raises:
        HeadError: One task or one system only, or a system that was not run on every task; names it.
        UnknownNameError: Something else to rank.
    """
    import pandas as pd

    if by not in SYSTEMS:
        raise unknown_name("system", by, SYSTEMS)
    found = _layer_scores(runs, head) if by == "layer" else _best_scores(runs, by, head)
    table = pd.DataFrame(found).T.pipe(lambda wide: wide[sorted(wide)])
    if min(table.shape) < 2:
        raise HeadError(
            f"{table.shape[0]} {by}s on {table.shape[1]} tasks cannot be ranked; needed: two of both or more."
        )
    if table.isna().any(axis=None):
        system, task = table.isna().stack().idxmax()
        raise HeadError(f"{by} {system!r} has no score on task {task!r}; rank systems that were run on the same tasks.")
    ranks = pd.DataFrame(normalised_ranks(table.to_numpy(np.float64)), table.index, table.columns)
    return ranks.assign(average=ranks.mean(axis=1)).sort_values("average", kind="stable").rename_axis(by)


def _results(runs: Runs, head: str) -> Iterator[tuple[dict[str, Any], HeadResult, int]]:
    """Give every head of runs and sweeps with what it is of, and the number of blocks of its decoder."""
    for folder in [runs] if isinstance(runs, str | Path) else list(runs):
        values = read_scores(Path(folder))
        common = {"run": values["name"], "task": values["task"]["name"], "decoder": values["decoder"]["name"]}
        for plan, result in results_by_plan(values):
            if head in ("", result.name):
                where = {**common, "plan": plan, "head": result.name, "pooling": result.pooling}
                yield where, result, int(values["decoder"]["n_layers"])


def _read_curves(runs: Runs, head: str) -> list[_LayerCurve]:
    """Read every layer curve, one per pooling of a head that reads several."""
    found = []
    for where, result, n_blocks in _results(runs, head):
        curves = [each for each in result.curves if each.metric == result.metric and each.split != "train"]
        splits = [each.split for each in curves]
        if len(result.layers) < 2 or not splits:
            continue
        split = "validation" if "validation" in splits else splits[0]
        mine = [each for each in curves if each.split == split]
        values, by_seed = np.fmax.reduce(np.array([each.values for each in mine], np.float64)), _by_seed(mine)
        for pooling in dict.fromkeys(layer.rpartition("/")[0] for layer in result.layers):
            places = [k for k, layer in enumerate(result.layers) if layer.rpartition("/")[0] == pooling]
            layers = tuple(result.layers[k].rpartition("/")[2] for k in places)
            place = {**where, "metric": result.metric, "split": split, "pooling": pooling or where["pooling"]}
            depths = np.array(relative_depths(layers, n_blocks))
            if np.isfinite(values[places]).any():
                found.append(_LayerCurve(place, layers, depths, values[places], by_seed[:, places]))
    if not found:
        raise HeadError(
            f"no head{f' {head!r}' * bool(head)} of these runs scored single layers; name runs of heads that do."
        )
    return found


def _by_seed(curves: list[Curve]) -> Float[np.ndarray, "S L"]:
    parts = [np.array(each.by_seed, np.float64) for each in curves]
    is_whole = all(part.shape == parts[0].shape and part.ndim == 2 for part in parts)
    return np.asarray(np.fmax.reduce(parts)) if is_whole else np.zeros((0, len(curves[0].values)))


def _layer_scores(runs: Runs, head: str) -> dict[str, dict[str, float]]:
    """Give task to layer to the best of all curves."""
    best: dict[str, _LayerCurve] = {}
    for curve in _read_curves(runs, head):
        task = curve.where["task"]
        if task not in best or np.nanmax(curve.values) > np.nanmax(best[task].values):
            best[task] = curve
    table = {task: dict(zip(curve.layers, curve.values.tolist(), strict=True)) for task, curve in best.items()}
    return _by_system(table)


def _best_scores(runs: Runs, by: str, head: str) -> dict[str, dict[str, float]]:
    """Give system to task to the score of the result that was selected there."""
    found: dict[tuple[str, str], list[HeadResult]] = {}
    for where, result, _ in _results(runs, head):
        found.setdefault((where["task"], where[by]), []).append(result)
    chosen = {key: best_result(results) for key, results in found.items()}
    split = "test" if all("test" in result.summary for result in chosen.values()) else "validation"
    table: dict[str, dict[str, float]] = {}
    for (task, system), result in chosen.items():
        table.setdefault(task, {})[system] = result.mean(split)
    return _by_system(table)


def _by_system(table: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    systems = dict.fromkeys(name for scores in table.values() for name in scores)
    return {name: {task: scores.get(name, float("nan")) for task, scores in table.items()} for name in systems}


# Pages of finished runs, made again from their folders, or one page of several side by side.

MISFITS = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, ArithmeticError)
"""What scores that were made by hand may lead to."""


def write_report(
    runs: Iterable[str | Path] | str | Path, out: str | Path = "", *, allow_code: str | Iterable[str] = ()
) -> Path:
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
    from probes.report.page import PAGE, Pictures, write_page

    folders = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    if not folders:
        raise HeadError("a report takes a run folder, as runs/demo, or several.")
    pictures = Pictures()
    with gate.allow_code(allow_code):
        page = run_page_of(folders[0], pictures) if len(folders) == 1 else _reports_side_by_side(folders, pictures)
    path = Path(out) if out else (folders[0] if len(folders) == 1 else Path()) / PAGE
    write_page(path, page, pictures.classes)
    return path


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the page of a comparison: the runs side by side, then each of them."""
    from probes.report.page import Pictures, write_page

    pictures = Pictures()
    write_page(
        path, _reports_side_by_side([run.folder for run in comparison.runs], pictures, comparison), pictures.classes
    )


def run_page_of(folder: Path, pictures: "Pictures") -> "Page":
    """Make the page of a finished run, sweep or search from its folder."""
    from probes.report.page import run_page
    from probes.report.style import Album

    values = read_scores(folder)
    try:
        document = _draw(values, folder, Album(folder, (), pictures.keep))
        return run_page(folder, document, pictures, values)
    except MISFITS as error:
        raise HeadError(
            f"no page can be made of the scores in {str(folder)!r} ({first_line(error)}); run its config again."
        ) from error


def _draw(values: dict[str, Any], folder: Path, album: "Album") -> "Document":
    """Draw the figures of a finished run, sweep or search, and write its report."""
    from probes.report.document import Context
    from probes.report.write import report_plans, report_run

    report = KINDS[values["kind"]].report
    if values["what"] == "run":
        scores, rows = with_predictions(read_run(values), read_predictions(folder))
        return report_run(album, Context(scores, rows, report))
    own = values.get("own", {})
    require_recorded(own, (row["plan"] for row in values["plans"]))
    import_own(own, folder=folder)
    return report_plans(album, read_plans(values), report)


def _reports_side_by_side(
    folders: Sequence[Path], pictures: "Pictures", comparison: Comparison | None = None
) -> "Page":
    """Make one page of several runs: their comparison, where they are of the same rows, then each."""
    from probes.report.page import Page, Part
    from probes.report.style import Album

    labels, complaint = name_apart(folders), ""
    parts, data, answers, warnings = list[Part](), dict[str, Any](), list[str](), dict[str, list[str]]()
    try:
        comparison = comparison or compare(folders)
    except HeadError as error:
        complaint = f"Not compared: {error}"
    if comparison:
        comparison.draw_into(Album(Path(), (), pictures.keep))
        parts.append(Part("Side by side", comparison.blocks(), pictures.take()))
        answers += [*(f"{sentence}." for sentence in comparison.verdicts()), *comparison.notes()]
    for label, folder in zip(labels, folders, strict=True):
        page = run_page_of(folder, pictures)
        parts.append(_in_short(label, page))
        for text in page.warnings:
            warnings.setdefault(text, []).append(label)
        data[label] = next(iter(page.data.values()))
    title = f"{len(folders)} runs side by side"
    question = f"What differs between {', '.join(labels[:-1])} and {labels[-1]}?"
    told = (f"{', '.join(runs)}: {text}" for text, runs in warnings.items())
    return Page(title, question, tuple(answers), (*filter(None, [complaint]), *told), tuple(parts), data)


def _in_short(label: str, page: "Page") -> "Part":
    """Make one part of the page of a run: its answers, its first table, its figures."""
    from probes.report.page import Part

    first = next(part for part in page.parts if part.is_main)
    pictures = tuple(picture for part in page.parts for picture in part.pictures)
    return Part(label, (*page.answers, *first.blocks), pictures)
