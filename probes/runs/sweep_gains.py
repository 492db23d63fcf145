"""Whether a gain transfers: its parts, by task or by source of rows, and their mean with its interval."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from probes.data.task import MIN_SPLIT_ROWS, Task
from probes.metrics.bootstrap import Difference
from probes.report.scores import PartGain, Transfer
from probes.runs.grid import Point

LEFT_OUT = "sources, each left out of the choice"


def rows_by_source(task: Task, split: str) -> dict[str, list[int]]:
    """Group the rows of a split by their source; nothing where a task names none, or one alone."""
    rows = task.rows(split)
    column = next((name for name in ("source", "subset") if name in rows.column_names and name in task.columns), "")
    groups: dict[str, list[int]] = {}
    for row, source in enumerate(rows[column][:] if column else ()):
        groups.setdefault(str(source), []).append(row)
    groups = {source: part for source, part in groups.items() if len(part) >= MIN_SPLIT_ROWS}
    return groups if len(groups) > 1 else {}


def make_part(
    name: str,
    point: Point,
    metric: str,
    split: str,
    scores: tuple[float, float],
    gap: Difference,
    *,
    rank: float = math.nan,
) -> PartGain:
    """Record what a point has above the reference on one part; `scores` are those of both."""
    return PartGain(
        name, point.values, metric, split, *scores, gap.value, gap.low, gap.high, rank=rank, n_units=gap.n_units
    )


def make_transfer(
    name: str, over: str, chosen_on: str, parts: Sequence[PartGain], draws: Sequence[NDArray[np.float64]]
) -> Transfer | None:
    """Average gains over parts, with an interval over the draw of parts as well as of rows; None for one part.

    A part on which one of the two has no score is listed, and left out of the average.
    """
    if len(parts) < 2:
        return None
    scored = [number for number, part in enumerate(parts) if math.isfinite(part.value)]
    values = np.array([parts[number].value for number in scored])
    low, high = mean_gain_interval(np.stack([draws[number] for number in scored])) if scored else (math.nan, math.nan)
    mean = float(values.mean()) if scored else math.nan
    spread = float(values.std(ddof=1)) if len(scored) > 1 else math.nan
    return Transfer(name, over, chosen_on, tuple(parts), mean, low, high, spread)


def mean_gain_interval(
    draws: Float[np.ndarray, "T R"], *, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Return the interval of the mean gain over `T` tasks or sources, from gains of `R` resamples of the rows of each.

    Every resample draws as many parts as there are, with replacement, and of each the gain of a resample of its rows
    (a bootstrap of two levels). With few parts it is rough. Resamples in which a part has no score are left out.
    """
    n_parts, n_resamples = draws.shape
    rng = np.random.default_rng(seed)
    parts = rng.integers(n_parts, size=(n_resamples, n_parts))
    rows = rng.integers(n_resamples, size=(n_resamples, n_parts))
    drawn = draws[parts, rows]
    means = drawn.mean(axis=1)[np.isfinite(drawn).all(axis=1)]
    if not len(means):
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
