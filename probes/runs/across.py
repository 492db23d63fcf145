"""Runs and sweeps of any tasks side by side: layer curves over relative depth, where scores are gained, and ranks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.stats import t

from extract.decoders.layers import relative_depths
from extract.errors import HeadError, unknown_name
from probes.heads.result import Curve, HeadResult
from probes.metrics.across import centre_of_gravity, normalised_ranks
from probes.report.document import best_result
from probes.runs.results import read_scores, results_by_plan

if TYPE_CHECKING:
    import pandas as pd

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
        A row per curve, with the columns `CENTRE_COLUMNS`: `centre` as in `probes.metrics.across.centre_of_gravity`;
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
        rows.append({
            **curve.where, "best_layer": curve.layers[best], "best": curve.values[best],
            "worst": np.nanmin(curve.values), "centre": centre, "low": centre - half, "high": centre + half,
            "n_seeds": n_seeds,
        })  # fmt: skip
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
