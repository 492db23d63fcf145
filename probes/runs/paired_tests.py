"""Predictions of finished runs on the same rows, and paired tests between their heads, plans, decoders or layers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from extract.errors import HeadError, unknown_name
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import Resampling
from probes.metrics.paired import difference, paired_scores, unit_counts
from probes.metrics.significance import (
    OfSums,
    bootstrap_p_value,
    correct_p_values,
    permutation_p_value,
    seed_errors,
)
from probes.report.document import best_result
from probes.report.predictions import PREDICTIONS, SCORED, read_predictions, read_scored
from probes.runs.results import read_scores, results_by_plan

if TYPE_CHECKING:
    import pandas as pd

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
            self._fits, self.gold, metric=self.metric, units=self.units, sentences=self.sentences,
            resampling=resampling,
        )  # fmt: skip
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
    source: "Iterable[str | Path] | str | Path | pd.DataFrame", *, by: str = "run", head: str = "", split: str = "",
    metric: str = "", against: str = "", correction: str = "holm", n_resamples: int = 1000, n_permutations: int = 9999,
) -> "pd.DataFrame":  # fmt: skip
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
        found.append({
            "by": by, "one": names[one], "other": names[other], "metric": rows.metric, "split": rows.split,
            "n_units": gap.n_units, "difference": gap.value, "low": gap.low, "high": gap.high,
            "low_total": total.low, "high_total": total.high,
            "bootstrap": bootstrap_p_value(gap.value, resampled[one] - resampled[other]), "permutation": swapped,
        })  # fmt: skip
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
