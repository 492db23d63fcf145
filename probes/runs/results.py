"""Results of finished runs, sweeps and searches as one tidy table: a number per row, and what it is of."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from extract.errors import HeadError, first_line, unknown_name
from extract.files import read_file
from probes.heads.result import HeadResult, read_result
from probes.metrics.significance import expected_maximum
from probes.report.score_shapes import check_scores
from probes.report.scores import SCORES_SCHEMA, seal_scores, tidy_rows

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "run",
    "what",
    "kind",
    "task",
    "protocol",
    "decoder",
    "plan",
    "head",
    "pooling",
    "record",
    "layer",
    "curve",
    "split",
    "metric",
    "seed",
    "value",
    "std",
    "low",
    "high",
)
SCORES = "scores.json"
TOLD_APART = ("run", "plan", "decoder", "head", "pooling")
"""Columns by which the systems of `expected_validation` may be told apart."""


def results(runs: Iterable[str | Path] | str | Path) -> "pd.DataFrame":
    """Read the results of finished runs, sweeps and searches into one tidy table.

    Args:
        runs: Run folders, or one.

    Returns:
        A row per number, with the columns `COLUMNS`. `record` says what the number is: `score`, the mean over seeds of
        a metric on a split, with standard deviation and interval; `seed`, that of one seed; `curve`, the score of one
        layer, of the mean over seeds; `baseline`, named in `curve`. Scores are fractions; what does not apply is
        missing.

    Raises:
        HeadError: A folder without the results of this version; names it.

    Example:
        >>> table = results("runs/demo")  # doctest: +SKIP
        >>> table.query("record == 'curve' and split == 'test'").pivot_table(
        ...     "value", "layer", "head")  # doctest: +SKIP
    """
    import pandas as pd

    folders = [runs] if isinstance(runs, str | Path) else list(runs)
    rows = [row for folder in folders for row in _rows(read_scores(Path(folder)))]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def expected_validation(
    runs: Iterable[str | Path] | str | Path, *, by: Sequence[str] = ("head",), n_resamples: int = 1000
) -> "pd.DataFrame":
    """Expect the best validation score of so many settings tried in random order, out of those that runs tried.

    Systems that were tuned with different effort are compared at the same number of settings. A setting is a plan,
    a layer and a value of a penalty or its like, as far as a run chose among them.

    Args:
        runs: Finished runs, sweeps and searches of one task, or one.
        by: What tells systems apart: some of `run`, `plan`, `decoder`, `head` and `pooling`.
        n_resamples: Resamples of the settings, for the interval.

    Returns:
        A row per system and number of settings `n`, up to `n_tried`: `value`, the expected best score; `std`, how much
        the best of `n` varies; `low` and `high`, the interval of the expectation (`expected_maximum`).

    Raises:
        HeadError: A folder without results, or runs with different metrics.
        UnknownNameError: Another name in `by`.

    Example:
        >>> curve = expected_validation("runs/demo")  # doctest: +SKIP
        >>> curve.pivot(index="n", columns="head", values="value").plot()  # doctest: +SKIP
    """
    import pandas as pd

    for name in by:
        if name not in TOLD_APART:
            raise unknown_name("column to tell systems apart", name, TOLD_APART)
    tried: dict[tuple[str, ...], list[float]] = {}
    metrics = set()
    for folder in [runs] if isinstance(runs, str | Path) else runs:
        values = read_scores(Path(folder))
        for plan, result in results_by_plan(values):
            known = {**_common(values), "plan": plan, "head": result.name, "pooling": result.pooling}
            tried.setdefault(tuple(known[name] for name in by), []).extend(_scores_tried(result))
            metrics.add(result.metric)
    if len(metrics) > 1:
        raise HeadError(f"the runs are scored by {', '.join(sorted(metrics))}; give runs of one kind of task.")
    rows = []
    for system, found in tried.items():
        scores = np.array(found)[np.isfinite(found)]
        numbers = np.unique(np.geomspace(1, max(len(scores), 1), 60).round().astype(int))
        if len(scores):
            expected = expected_maximum(scores, numbers, n_resamples=n_resamples)
            for n, line in zip(numbers.tolist(), expected.T.tolist(), strict=True):
                columns = dict(zip(("value", "std", "low", "high"), line, strict=True))
                rows.append({**dict(zip(by, system, strict=True)), "n_tried": len(scores), "n": n, **columns})
    return pd.DataFrame(rows, columns=[*by, "n_tried", "n", "value", "std", "low", "high"])


def _scores_tried(result: HeadResult) -> list[float]:
    """Give the scores that a head was chosen by: of every layer and option, or the one it has."""
    curves = [
        curve for curve in result.curves if curve.metric == result.metric and result.selection.startswith(curve.split)
    ]
    return [score for curve in curves for score in curve.values] or [result.selection_score]


def read_scores(folder: Path) -> dict[str, Any]:
    """Read scores.json of a finished run, sweep or search; HeadError where there is none of this version."""
    try:
        values: dict[str, Any] = json.loads(read_file(folder / SCORES))
        found = f"schema {values['schema']} of a {values.get('what', 'run')}"
        if values["schema"] == SCORES_SCHEMA and values["what"] in ("run", "sweep", "search"):
            if values["sha256"] == seal_scores(values):
                check_scores(values)
                return values
            found = f"{SCORES} was changed after it was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found = first_line(error)
    raise HeadError(
        f"folder {str(folder)!r} holds no finished results ({found}); allowed: a folder made by `icecore run` or "
        f"`icecore sweep` with schema {SCORES_SCHEMA}, as runs/demo."
    )


def results_by_plan(values: Mapping[str, Any]) -> Iterator[tuple[str, HeadResult]]:
    """Give the plan and the result of every head of a run, or of every plan of a sweep or search."""
    parts = values["plans"] if "plans" in values else [{"plan": values["cache"]["plan"], "heads": values["heads"]}]
    for part in parts:
        for name, each in part["heads"].items():
            yield part["plan"], read_result(name, each)


def _rows(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for plan, result in results_by_plan(values):
        head = {**_common(values), "plan": plan, "head": result.name, "pooling": result.pooling}
        yield from ({**head, **row} for row in tidy_rows(result))


def _common(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run": values["name"],
        "task": values["task"]["name"],
        "decoder": values["decoder"]["name"],
        **{key: values[key] for key in ("what", "kind", "protocol")},
    }
