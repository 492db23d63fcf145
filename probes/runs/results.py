"""Tables of finished runs: every number, the best of `n` settings, layer curves, ranks, and tables to print."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.stats import t

from extract.decoders.decoder_spec import relative_depths
from extract.errors import HeadError, unknown_name
from extract.files import safe_text, write_csv, write_frame
from probes.heads.result import HeadResult
from probes.metrics.significance import centre_of_gravity, expected_maximum, normalised_ranks
from probes.report.blocks import cell, describe_point, interval, markdown_table, metric_label, spread
from probes.report.document import best_result
from probes.report.scores import NUMBER_COLUMNS, baseline_rows, tidy_rows
from probes.runs.folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = ("run", "what", "kind", "task", "protocol", "decoder", "plan", "head", "pooling", *NUMBER_COLUMNS)
SYSTEM_COLUMNS = ("run", "plan", "decoder", "head", "pooling")
"""Columns that may name the systems of `expected_validation`."""
SYSTEM_OF_A_CURVE = ("run", "task", "decoder", "plan", "head", "pooling", "metric", "split")
CURVE_COLUMNS = (*SYSTEM_OF_A_CURVE, "layer", "depth", "value", "share")
CENTRE_COLUMNS = (*SYSTEM_OF_A_CURVE, "best_layer", "best", "worst", "centre", "low", "high", "n_seeds")
SYSTEMS = ("plan", "head", "decoder", "layer")
"""What `rank_systems` ranks."""
Runs = Iterable[str | Path | RunFolder] | str | Path


def results(runs: Runs) -> "pd.DataFrame":
    """Read the results of finished runs, sweeps and searches into one tidy table.

    Args:
        runs: Run folders, or one.

    Returns:
        A row per number, with the columns `COLUMNS`. `record` says what the number is: `score`, the mean over seeds of
        a metric on a split, with standard deviation and interval; `seed`, the score of one seed; `curve`, the score of
        one layer, the mean over seeds; `baseline`, named in `curve`, of a head or of the whole run. Scores are
        fractions; what does not apply is missing.

    Raises:
        HeadError: A folder without the results of this version; names it.

    Example:
        >>> table = results("runs/demo")  # doctest: +SKIP
        >>> table.query("record == 'curve' and split == 'test'").pivot_table(
        ...     "value", "layer", "head")  # doctest: +SKIP
    """
    import pandas as pd

    opened = open_runs(runs)
    rows: list[dict[str, object]] = [
        {**system, **number} for folder in opened for system, result in _systems(folder) for number in tidy_rows(result)
    ]
    for folder in opened:
        rows += [{**_common(folder), **number} for number in baseline_rows(folder.baselines)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def open_runs(runs: Runs) -> list[RunFolder]:
    """Open run folders, or one."""
    paths = [runs] if isinstance(runs, str | Path) else runs
    return [path if isinstance(path, RunFolder) else RunFolder(Path(path)) for path in paths]


def _systems(folder: RunFolder) -> Iterator[tuple[dict[str, str], HeadResult]]:
    """Yield every result of a folder, with the columns that say what it is of."""
    for where, result in folder.systems:
        yield {**_common(folder), **where, "head": result.name, "pooling": result.pooling}, result


def _common(folder: RunFolder) -> dict[str, str]:
    """Name what all results of a folder are of."""
    values = folder.values
    return {
        "run": values["name"],
        "task": values["task"]["name"],
        "decoder": values["decoder"]["name"],
        **{key: values[key] for key in ("what", "kind", "protocol")},
    }


def expected_validation(runs: Runs, *, by: Sequence[str] = ("head",), n_resamples: int = 1000) -> "pd.DataFrame":
    """Estimate the best validation score of `n` settings tried in random order, out of those that runs tried.

    Systems that were tuned with different effort are compared at the same number of settings. A setting is a plan,
    a layer and a value of a penalty or its like, as far as a run chose among them.

    Args:
        runs: Finished runs, sweeps and searches of one task, or one.
        by: What names a system: some of `run`, `plan`, `decoder`, `head` and `pooling`.
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
        if name not in SYSTEM_COLUMNS:
            raise unknown_name("column of systems", name, SYSTEM_COLUMNS)
    tried: dict[tuple[str, ...], list[float]] = {}
    metrics = set()
    for folder in open_runs(runs):
        for system, result in _systems(folder):
            chosen_by = [  # the scores of every layer and option
                score
                for curve in result.curves
                if curve.metric == result.metric and result.selection.startswith(curve.split)
                for score in curve.values
            ]
            system_scores = tried.setdefault(tuple(system[name] for name in by), [])
            system_scores += chosen_by or [result.selection_score]
            metrics.add(result.metric)
    if len(metrics) > 1:
        raise HeadError(f"the runs are scored by {', '.join(sorted(metrics))}; give runs of one kind of task.")
    rows = []
    for names, values in tried.items():
        scores = np.array(values)[np.isfinite(values)]
        if len(scores):
            numbers = np.unique(np.geomspace(1, len(scores), 60).round().astype(int))
            expected = expected_maximum(scores, numbers, n_resamples=n_resamples)
            for n, line in zip(numbers.tolist(), expected.T.tolist(), strict=True):
                columns = dict(zip(("value", "std", "low", "high"), line, strict=True))
                rows.append({**dict(zip(by, names, strict=True)), "n_tried": len(scores), "n": n, **columns})
    return pd.DataFrame(rows, columns=[*by, "n_tried", "n", "value", "std", "low", "high"])


@dataclass(frozen=True, eq=False)
class _LayerCurve:
    """The best score of each layer, of one head under one plan."""

    system: dict[str, str]
    """What the curve is of, by column."""
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
            rows.append({**curve.system, "layer": layer, "depth": depth, "value": value, "share": share})
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS))


def centres_of_gravity(runs: Runs, *, head: str = "") -> "pd.DataFrame":
    """Say at which relative depth every layer curve of runs and sweeps gains its score.

    Returns:
        A row per curve, with the columns `CENTRE_COLUMNS`: `centre` as in
        `probes.metrics.significance.centre_of_gravity`;
        `low` to `high` is Student's 95 % interval over seeds, missing for one seed; it ignores the draw of rows.

    Raises:
        HeadError: As `layers_across`.
    """
    import pandas as pd

    rows = []
    for curve in _read_curves(runs, head):
        centre = float(centre_of_gravity(curve.values, curve.depths))
        best, half, n_seeds = int(np.nanargmax(curve.values)), np.nan, max(len(curve.by_seed), 1)
        if n_seeds > 1:
            spread = centre_of_gravity(curve.by_seed, curve.depths).std(ddof=1)
            half = float(t.ppf(0.975, n_seeds - 1) * spread / np.sqrt(n_seeds))
        rows.append(
            {
                **curve.system,
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
    scores = _layer_scores(runs, head) if by == "layer" else _best_scores(runs, by, head)
    table = pd.DataFrame(scores)[sorted(scores)]
    if min(table.shape) < 2:
        raise HeadError(
            f"{table.shape[0]} {by}s on {table.shape[1]} tasks cannot be ranked; needed: two of both or more."
        )
    if table.isna().any(axis=None):
        system, task = table.isna().stack().idxmax()
        raise HeadError(f"{by} {system!r} has no score on task {task!r}; rank systems that were run on the same tasks.")
    ranks = pd.DataFrame(normalised_ranks(table.to_numpy(np.float64)), table.index, table.columns)
    return ranks.assign(average=ranks.mean(axis=1)).sort_values("average", kind="stable").rename_axis(by)


def _read_curves(runs: Runs, head: str) -> list[_LayerCurve]:
    """Read every layer curve, one per pooling of a head that reads several."""
    curves: list[_LayerCurve] = []
    for folder in open_runs(runs):
        for system, result in _systems(folder):
            if len(result.layers) > 1 and head in ("", result.name):
                n_blocks = folder.blocks_by_decoder.get(system["decoder"]) or folder.n_blocks
                curves += _curves_of(system, result, n_blocks)
    if not curves:
        raise HeadError(
            f"no head{f' {head!r}' * bool(head)} of these runs scored single layers; name runs of heads that do."
        )
    return curves


def _curves_of(system: dict[str, str], result: HeadResult, n_blocks: int) -> Iterator[_LayerCurve]:
    """Yield the layer curves of one head on validation, or else on another split that it was not fitted on."""
    curves = [curve for curve in result.curves if curve.metric == result.metric and curve.split != "train"]
    splits = [curve.split for curve in curves]
    if not splits:
        return
    split = "validation" if "validation" in splits else splits[0]
    curves = [curve for curve in curves if curve.split == split]
    values = np.fmax.reduce(np.array([curve.values for curve in curves], np.float64))
    parts = [np.array(curve.by_seed, np.float64) for curve in curves]
    is_whole = all(part.shape == parts[0].shape and part.ndim == 2 for part in parts)
    by_seed = np.asarray(np.fmax.reduce(parts)) if is_whole else np.zeros((0, len(values)))
    for pooling in dict.fromkeys(layer.rpartition("/")[0] for layer in result.layers):
        columns = [k for k, layer in enumerate(result.layers) if layer.rpartition("/")[0] == pooling]
        layers = tuple(result.layers[k].rpartition("/")[2] for k in columns)
        depths = np.array(relative_depths(layers, n_blocks))
        if np.isfinite(values[columns]).any():
            of_curve = {**system, "metric": result.metric, "split": split, "pooling": pooling or system["pooling"]}
            yield _LayerCurve(of_curve, layers, depths, values[columns], by_seed[:, columns])


def _layer_scores(runs: Runs, head: str) -> dict[str, dict[str, float]]:
    """Return task to layer to its score on the best of all curves."""
    best: dict[str, _LayerCurve] = {}
    for curve in _read_curves(runs, head):
        task = curve.system["task"]
        if task not in best or np.nanmax(curve.values) > np.nanmax(best[task].values):
            best[task] = curve
    return {task: dict(zip(curve.layers, curve.values.tolist(), strict=True)) for task, curve in best.items()}


def _best_scores(runs: Runs, by: str, head: str) -> dict[str, dict[str, float]]:
    """Return task to system to the score of the result that was selected there."""
    results: dict[tuple[str, str], list[HeadResult]] = {}
    for folder in open_runs(runs):
        for system, result in _systems(folder):
            if head in ("", result.name):
                results.setdefault((system["task"], system[by]), []).append(result)
    chosen = {key: best_result(candidates) for key, candidates in results.items()}
    split = "test" if all("test" in result.summary for result in chosen.values()) else "validation"
    table: dict[str, dict[str, float]] = {}
    for (task, name), result in chosen.items():
        table.setdefault(task, {})[name] = result.mean(split)
    return table


# Results as one table: Markdown, CSV or LaTeX.


TITLES = ("run", "plan", "head", "pooling", "chosen", "metric", "validation", "test", "95 % interval")
N_NUMBERS = 3
"""Columns at the end that hold numbers, some with their spread."""
LATEX = str.maketrans(
    {**{c: f"\\{c}" for c in "&%$#_{}"}, "\\": "\\textbackslash{}", "±": "$\\pm$"}
    | {"~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
)


def write_table(runs: Iterable[str], layout: str) -> str:
    """Write the results of runs, sweeps and searches as one table: a row per plan and head, scores times 100."""
    if layout == "tidy":
        return write_frame(results(runs))
    folders = open_runs(runs)
    rows = [(run.values["name"], plan, *_cells(result)) for run in folders for plan, result in run.results]
    return TABLE_FORMATS[layout](rows)


def _cells(result: HeadResult) -> tuple[str, ...]:
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


TABLE_FORMATS: dict[str, Callable[[Sequence[Sequence[str]]], str]] = {
    "markdown": lambda rows: markdown_table([[cell(text) for text in row] for row in rows], TITLES) + "\n",
    "csv": _csv,
    "latex": _latex,
}
