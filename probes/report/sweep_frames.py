"""The tidy frame of a sweep: a row per number, with a column per axis. Figures, tables and pages read it."""

from collections.abc import Iterator, Mapping

import pandas as pd

from extract.decoders.decoder_spec import relative_depths
from probes.heads.result import HeadResult
from probes.report.scores import PlanChoice, PlanScores, PlansScores, PointGap, label_of, tidy_rows

PLAN_AXIS = "plan"
GAIN_COLUMNS = (
    *("slot", "over", "part", "point", "metric", "split", "chosen", "reference"),
    *("gain", "low", "high", "rank", "n_units", "is_chosen_on"),
)
COLUMNS = (
    *("point", "task", "decoder", "n_tokens", "plan", "slot", "head", "pooling"),
    *("record", "layer", "depth", "curve", "split", "metric", "seed", "value", "std", "low", "high"),
    *("is_chosen", "is_reference", "gap", "gap_low", "gap_high", "p_corrected"),
)
"""Columns after those of the axes, of which one with the name of an axis is left out."""


def axes_of(scores: PlansScores) -> tuple[str, ...]:
    """Name the axes of a sweep."""
    return scores.grid.axes if scores.grid else (PLAN_AXIS,)


def point_of(row: PlanScores) -> Mapping[str, str]:
    """Return axis to value of a point; of a sweep over plans alone, its plan."""
    return row.point or {PLAN_AXIS: row.plan.text}


def chosen_point(choice: PlanChoice) -> dict[str, str]:
    """Return axis to value of a chosen point; of a sweep over plans alone, its plan."""
    return dict(choice.point) or {PLAN_AXIS: choice.plan.text}


def found_name(scores: PlansScores) -> str:
    """Name what a search found as its trials do: the chosen point, without its task where tasks are an axis."""
    return label_of(_but_task(scores, next(iter(scores.chosen.values())).point))


def points_frame(scores: PlansScores) -> pd.DataFrame:
    """List every number of a sweep: a column per axis, then `COLUMNS`.

    `record` says what a row is: `score`, the mean over seeds of a metric on a split, with its interval; `seed`, the
    score of one seed; `curve`, the score of one layer; `baseline`, named in `curve`; `sources`, the mean over sources
    of validation where that decided. `slot` is the head's name in
    `chosen`, which differs from `head` where heads are an axis. `is_chosen` marks the point that was chosen for it on
    validation, `is_reference` the point that others are compared with, both on every task. `gap` and what follows it
    are in the `score` rows of the split that points were compared on: what the point has above the reference, the
    paired interval, and the p-value corrected for the number of points. `n_tokens` is what the decoder reads for the
    point alone. Scores are fractions, `depth` is 0 at the embedding and 1 at the top; what does not apply is missing.
    """
    axes = axes_of(scores)
    rows = [number for row in scores.plans for number in _rows_of(scores, row)]
    return pd.DataFrame(rows, columns=[*axes, *(name for name in COLUMNS if name not in axes)])


def _rows_of(scores: PlansScores, row: PlanScores) -> Iterator[dict[str, object]]:
    """Give the rows of one point."""
    point, decoder, grid = dict(point_of(row)), row.decoder or scores.header.decoder, scores.grid
    where: dict[str, object] = {
        "point": row.label,
        "task": row.task or scores.header.task["name"],
        "decoder": decoder["name"],
        "n_tokens": row.n_tokens or None,
        "plan": row.plan.text,
        "is_reference": grid is not None and _but_task(scores, point) == _but_task(scores, grid.reference),
    }
    gaps = [gap for gap in (grid.gaps if grid else ()) if dict(gap.point) == point]
    for slot, result in slots_of(scores, row).items():
        choice = scores.chosen.get(slot)
        is_chosen = choice is not None and _but_task(scores, chosen_point(choice)) == _but_task(scores, point)
        head = {"slot": slot, "head": result.name, "pooling": result.pooling, "is_chosen": is_chosen}
        names, n_blocks = [layer.rpartition("/")[2] for layer in result.layers], decoder.get("n_layers", 0)
        depths = dict(zip(result.layers, relative_depths(names, n_blocks), strict=True)) if n_blocks and names else {}
        for number in tidy_rows(result):
            depth = depths.get(str(number.get("layer")))
            compared = _compared(gaps, slot, number) if number.get("metric") == result.metric else {}
            yield {**where, **head, "depth": depth, **number, **compared, **point}
        if grid and (mean := grid.by_source.get(slot, {}).get(row.label)) is not None:
            decided = {"record": "sources", "split": "validation", "metric": result.metric, "value": mean}
            yield {**where, **head, **decided, **point}


def _but_task(scores: PlansScores, point: Mapping[str, str]) -> dict[str, str]:
    """Leave the axis of tasks out of a point: a choice holds on all of them."""
    axis = scores.grid.task_axis if scores.grid else ""
    return {name: value for name, value in point.items() if name != axis}


def slots_of(scores: PlansScores, row: PlanScores) -> dict[str, HeadResult]:
    """Return the results of a point by what the heads are called in `chosen`: heads of an axis by their position."""
    if axes_of(scores) == (PLAN_AXIS,):  # beside which there may be a head that needs no training
        return dict(row.heads)
    return dict(zip(scores.chosen, row.heads.values(), strict=False))


def _compared(gaps: list[PointGap], slot: str, number: Mapping[str, object]) -> dict[str, object]:
    """Return the comparison of a score with the reference."""
    for gap in gaps:
        if (gap.head, gap.split, "score") == (slot, number["split"], number["record"]):
            return {"gap": gap.value, "gap_low": gap.low, "gap_high": gap.high, "p_corrected": gap.p_corrected}
    return {}


def layer_scores(frame: pd.DataFrame, slot: str, metric: str) -> pd.DataFrame:
    """Take the curves of a head from a `points_frame`: the best of its values at each layer, on the split that chose.

    A row per point and layer: the columns of the axes, `point`, `task`, `layer`, `depth`, `metric`, `split`,
    `is_chosen` and `value`, which is missing where a layer has no score; no row where no head scored single layers.
    """
    curves = _of_slot(frame, "curve", slot, metric)
    curves = curves[curves["split"] != "test"]
    if (curves["split"] == "validation").any():
        curves = curves[curves["split"] == "validation"]
    names = list(curves.columns)
    keys = [*names[: names.index("point") + 1], "task", "layer", "depth", "metric", "split", "is_chosen"]
    return curves.groupby(list(dict.fromkeys(keys)), sort=False, dropna=False, as_index=False).agg({"value": "max"})


def score_rows(frame: pd.DataFrame, slot: str, metric: str) -> pd.DataFrame:
    """Take a row per point and split from a `points_frame`: the scores of a head by a metric."""
    return _of_slot(frame, "score", slot, metric).reset_index(drop=True)


def _of_slot(frame: pd.DataFrame, record: str, slot: str, metric: str) -> pd.DataFrame:
    return frame[(frame["record"] == record) & (frame["slot"] == slot) & (frame["metric"] == metric)]


def source_frame(scores: PlansScores) -> pd.DataFrame:
    """List the layers of choices and reference on each source of validation: a row per source and layer.

    Columns: `slot`, `point`, `is_chosen`, `source`, `layer`, `metric`, `value`, `n_rows`.
    """
    rows = []
    for curve in scores.grid.source_curves if scores.grid else ():
        is_chosen = chosen_point(scores.chosen[curve.head]) == dict(curve.point)
        where = {"slot": curve.head, "point": label_of(curve.point), "is_chosen": is_chosen, "source": curve.source}
        for layer, value in zip(curve.layers, curve.values, strict=True):
            numbers = {"layer": layer, "metric": curve.metric, "value": value, "n_rows": curve.n_rows}
            rows.append({**where, **numbers})
    names = ("slot", "point", "is_chosen", "source", "layer", "metric", "value", "n_rows")
    return pd.DataFrame(rows, columns=list(names))


def gains_frame(scores: PlansScores) -> pd.DataFrame:
    """List the gains of the choices over tasks and over sources of rows: a row per part, and one for the mean.

    Columns: `slot`, `over`, `part`, `point`, `metric`, `split`, `chosen` and `reference` (scores), `gain`, `low`,
    `high`, `rank` (0 the best of all points on this part), `n_units`, `is_chosen_on` (the task chose the point, and is
    not part of the mean); the mean is called `mean`.
    """
    rows = []
    for transfer in scores.grid.transfers if scores.grid else ():
        of = {"slot": transfer.head, "over": transfer.over}
        for part in transfer.parts:
            gain = {"gain": part.value, "low": part.low, "high": part.high}
            where = {"part": part.name, "point": label_of(part.point), "metric": part.metric, "split": part.split}
            numbers = {"chosen": part.chosen, "reference": part.reference, **gain, "rank": part.rank}
            rows.append({**of, **where, **numbers, "n_units": part.n_units, "is_chosen_on": part.is_chosen_on})
        mean = {"gain": transfer.value, "low": transfer.low, "high": transfer.high}
        n_parts = sum(part.counts for part in transfer.parts)
        rows.append({**of, "part": "mean", **mean, "n_units": n_parts, "is_chosen_on": False})
    return pd.DataFrame(rows, columns=list(GAIN_COLUMNS))
