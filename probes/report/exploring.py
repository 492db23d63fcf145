"""What a page lets its reader explore, as plain data: measures of every layer, and predictions row by row."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from extract.errors import HeadError
from extract.records import Values
from probes.heads.result import HeadResult
from probes.layers import FINDINGS, PREDICTED
from probes.layers.findings import VIEWS, HeadFindings, LayerPredictions, load_findings, load_predictions
from probes.metrics.bootstrap import paired_scores
from probes.metrics.significance import joint_intervals
from probes.report.blocks import describe_point, metric_label, percent
from probes.report.document import Context, SplitRows, best_result, predicted_texts
from probes.report.layer_figures import UNITS
from probes.report.run_figures import BARS, PARTS, fold_penalties, layer_curves, tidy_frame
from probes.report.scores import PlansScores, RunScores, without_nan
from probes.report.sweep_frames import axes_of, layer_scores, points_frame, score_rows

MOST_ROWS, MOST_SENTENCES, MOST_LETTERS = 4000, 1000, 2000
"""Rows and sentences of a table of a page, and letters of a text in it; of more rows it shows an even sample."""
ASIDE = {
    "with-imputed": "All other layers are set to their means, which the head never met. It can disagree with the "
    "Shapley value, which averages over all sets of layers; trust that one.",
}
"""Views that mislead when they are read alone, and why."""
VALIDATION = "on-validation"
MIX = "mix"
"""What stands for the layer of a head that reads a mix of all."""


class Series(TypedDict):
    """A line over layers, scores already multiplied; the ends are empty where there is no interval."""

    name: str
    values: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True)
class Measure:
    """What can be shown of every layer."""

    key: str
    """Its name, the same for every head."""
    title: str
    """Its title in the list of measures."""
    asks: str
    """The question it answers."""
    unit: str
    """What its numbers are."""
    is_gain: bool
    """Whether 0 means nothing, and it is drawn as bars."""
    layers: Sequence[str]
    """Layers, or groups of layers, in the order they are drawn."""
    series: Sequence[Series]
    """Its lines."""
    on: str = ""
    """What it was measured on, as `86 test rows`; empty where that is not rows."""
    levels: Sequence[tuple[str, float]] = ()
    """Baselines: name and value."""
    note: str = ""
    """How it was computed."""
    aside: str = ""
    """Why it should not be read alone; empty for most."""


@dataclass(frozen=True)
class Source:
    """A head of a run: what its layers are worth, and what it predicts."""

    label: str
    """The run and the head."""
    head: str
    """The head."""
    split: str
    """The split that is reported."""
    layers: Sequence[str]
    """Its layers, bottom up."""
    chosen: str
    """The layer to use; empty where none was chosen."""
    reads: str
    """The layer that the head reads; empty for one that reads several together."""
    tied: Sequence[str]
    """The layers statistically tied with the best; empty where that was not computed."""
    advice: str
    """Which layer to use and which are as good, in a sentence."""
    measures: Sequence[Measure]
    """What can be shown of every layer."""
    table: str
    """The key of its rows among the tables of the page."""
    predicted: Sequence[str]
    """What it predicts of these rows at the chosen layer, as texts."""
    by_layer: Values = field(default_factory=dict)
    """What it predicts of them at every layer."""
    missing: str = ""
    """What to do for predictions of every layer, where there are none."""


@dataclass(frozen=True)
class RowTable:
    """Rows of a split that a page lists."""

    kind: str
    """`numbers`, `names`, `words`, or `groups`: names of clusters, which are none of the gold's."""
    columns: Mapping[str, Sequence[str]]
    """Titles of the texts, and the texts."""
    gold: Sequence[float | str]
    """The gold of every row, or of every word."""
    rows: Sequence[int]
    """Numbers of the rows in the task, from 0; of words those of their sentences."""
    n_rows: int
    """How many rows there are in all; `noun` says what they are."""
    noun: str
    """Rows, or sentences."""
    picked: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Positions of the listed rows among all predictions of the split."""

    def to_plain(self) -> Values:
        """Return what a page embeds."""
        return {name: getattr(self, name) for name in ("kind", "columns", "gold", "rows", "n_rows", "noun")}


def explore_run(context: Context, folder: Path) -> Values:
    """Gather what the page of a run shows of its layers and rows, from its scores and its folder, as it is embedded."""
    try:
        findings = {head.head: head for head in load_findings(folder)} if (folder / FINDINGS).exists() else {}
    except HeadError:  # the page warns of it
        findings = {}
    tables: dict[str, RowTable] = {}
    sources = []
    heads = context.scores.heads
    best = best_result(heads.values()).name
    for name in sorted(heads, key=lambda name: name != best):  # the best first, which the answer is about
        result = heads[name]
        key = f"{context.scores.header.name} {result.reported_split}"
        if key not in tables:
            tables[key] = list_rows(context.rows[result.reported_split])
            if result.metric == "v-measure":
                tables[key] = replace(tables[key], kind="groups")
        source = _source(context, result, findings.get(name), key, tables[key])
        sources.append(replace(source, **_layer_predictions(source, folder, tables[key])))
    plain = {"sources": [asdict(source) for source in sources], "tables": {k: t.to_plain() for k, t in tables.items()}}
    return dict(without_nan(plain)) if sources else {}


def _source(context: Context, result: HeadResult, findings: HeadFindings | None, key: str, table: RowTable) -> Source:
    scores, split = context.scores, result.reported_split
    measures = [*(measures_of_findings(findings) if findings else ()), *measures_of_result(result, scores)]
    reads = str(result.chosen.get("layer", ""))
    if findings and reads in ("", MIX) and len(result.layers) > 1:  # what single layers are to be compared with
        together = ("all layers together", 100 * result.mean(split))
        measures = [replace(m, levels=[*m.levels, together]) if m.key == "alone" else m for m in measures]
    predicted = predicted_texts(result, split) if split in result.predictions else []
    advice = _advice(result, split, findings)
    return Source(
        result.name,
        result.name,
        split,
        findings.layers if findings else result.layers,
        findings.recommended if findings else str(result.chosen.get("layer", "")),
        "" if reads == MIX else reads,
        findings.best_set if findings else (),
        advice if findings else f"{advice} {_how(scores)}",
        measures,
        key,
        [predicted[k] for k in table.picked] if predicted else [],
        missing="Of this head no predictions of other layers are kept." if findings else _how(scores),
    )


def _advice(result: HeadResult, split: str, findings: HeadFindings | None) -> str:
    """Say which layer to use and how good it is; of a head of several layers also what they have together."""
    whole = f"{metric_label(result.metric)} {percent(result.mean(split))} on {split}"
    layer = str(result.chosen.get("layer", ""))
    further = describe_point({name: value for name, value in result.chosen.items() if name != "layer"})
    if (layer and layer != MIX) or "views" in result.chosen:
        use = f"{layer} ({further})" if layer and further else layer or further
        on = findings.chosen_on if findings and findings.chosen_on else result.chosen_on
        chosen = f", chosen on {on}" if on else ""
        advice = f"Use {use}{chosen}: {whole}."
    elif findings and len(findings.layers) > 1:
        alone = findings.score(findings.recommended)
        advice = f"All layers together have {whole}. As a single layer use {findings.recommended}, which has {alone}."
    else:
        advice = f"The head reads all layers together: {whole}."
    return f"{advice} {findings.tied}" if findings else advice


def _how(scores: RunScores) -> str:
    name = scores.header.name
    return f"For the layers that are as good, and predictions of each: icecore layers RUN (the folder of {name!r})."


def measures_of_findings(findings: HeadFindings) -> Iterator[Measure]:
    """Make a measure of every view of a head's layers."""
    frame = pd.DataFrame(findings.rows())
    baselines = frame[frame["view"] == "baseline"]
    for view, rows in frame[frame["view"] != "baseline"].groupby("view", sort=False):
        about, metric = VIEWS[str(view)], rows["metric"].iloc[0]
        unit, times = UNITS.get(metric, (f"{metric_label(metric)} x 100", 100.0))
        notes = dict.fromkeys(curve.note for curve in findings.curves if curve.view == view and curve.note)
        yield Measure(
            str(view),
            about.title,
            about.asks,
            unit,
            about.is_gain,
            list(dict.fromkeys(rows["layer"])),
            [_series(str(name), line, times) for name, line in rows.groupby("name", sort=False)],
            f"{findings.n_units:,} {findings.unit} of {findings.split}",
            [(str(row.layer), float(100 * row.value)) for row in baselines.itertuples()] if view == "alone" else (),
            "; ".join(notes),
            ASIDE.get(str(view), ""),
        )


def measures_of_result(result: HeadResult, scores: RunScores) -> Iterator[Measure]:
    """Make measures of what a head itself recorded of every layer: its scores where it was chosen, and its parts."""
    if layer_curves(result) and len(result.layers) > 1:
        frame = tidy_frame(result, scores.baselines)
        curves = frame[(frame["record"] == "curve") & (frame["metric"] == result.metric) & (frame["split"] != "train")]
        split = curves["split"].iloc[0]
        lines = fold_penalties(curves[curves["split"] == split].drop_duplicates(["layer", "curve"]))
        levels = frame[(frame["record"] == "baseline") & (frame["split"] == split) & (frame["metric"] == result.metric)]
        yield Measure(
            VALIDATION,
            f"alone, on {split}",
            f"how far does the layer get by itself on {split}, where the choice was made?",
            f"{metric_label(result.metric)} x 100",
            False,
            list(result.layers),
            [_series(str(name), line, 100.0) for name, line in lines.groupby("curve", sort=False)],
            f"{n_rows[split]:,} rows of {split}" if split in (n_rows := scores.header.task["n_rows"]) else "",
            [(str(row.curve), float(100 * row.value)) for row in levels.drop_duplicates("curve").itertuples()],
            "the best of the head's values at each layer" if len(set(curves["curve"])) > 1 else "",
        )
    for name in ("mix", "contributions"):
        parts = result.extras.get(name)
        if not isinstance(parts, Mapping) or "layers" not in parts:
            continue
        for key, (label, times) in PARTS.items():
            if key in parts:
                values = _numbers(pd.Series(parts[key], dtype=np.float64), float(times))
                title = label.replace("\n", " ").removesuffix(", x 100").removesuffix(", score x 100")
                unit = "score x 100" if times != 1 else title
                line = Series(name="", values=values, low=(), high=())
                yield Measure(
                    f"{name}-{key}", f"{title}, {name}", "", unit, label in BARS, list(parts["layers"]), [line]
                )


def _series(name: str, rows: pd.DataFrame, times: float) -> Series:
    low, high = (_numbers(rows[end], times) if end in rows else () for end in ("low", "high"))
    has_ends = any(value is not None for value in low)
    values = _numbers(rows["value"], times)
    return Series(name=name, values=values, low=low if has_ends else (), high=high if has_ends else ())


def _numbers(column: pd.Series, times: float) -> list[float | None]:
    """Multiply numbers; None where one is missing."""
    return [float(f"{times * value:.5g}") if np.isfinite(value) else None for value in column.astype(float)]


def list_rows(rows: SplitRows) -> RowTable:
    """List the rows of a split, or an even sample of them, with what texts they have."""
    numbers = rows.inputs.get("row", range(len(rows.gold)))
    is_words = "word" in rows.inputs
    ids = np.array([int(str(number)) for number in numbers])
    kind = "words" if is_words else "names" if rows.gold and isinstance(rows.gold[0], str) else "numbers"
    listed = np.unique(ids) if is_words else np.arange(len(ids))  # sentences, or rows
    n_rows, most = len(listed), MOST_SENTENCES if is_words else MOST_ROWS
    if n_rows > most:  # evenly spread
        listed = listed[np.linspace(0, n_rows - 1, most).round().astype(int)]
    picked = np.flatnonzero(np.isin(ids, listed)) if is_words else listed
    names, places = [name for name in rows.inputs if name not in ("row", "position")], picked.tolist()
    columns = {name: [_short(rows.inputs[name][k]) for k in places] for name in names}
    golds = [rows.gold[k] for k in places]
    gold = [text if isinstance(text, str) else float(str(text)) for text in golds]
    return RowTable(kind, columns, gold, ids[picked].tolist(), n_rows, "sentences" if is_words else "rows", picked)


def _short(text: object) -> str:
    text = str(text)
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 4]} ..."


def _layer_predictions(source: Source, folder: Path, table: RowTable) -> dict[str, Any]:
    """Read what every layer predicts of the listed rows, where the folder has it, or why there is nothing."""
    try:
        read = load_predictions(folder, source.head) if (folder / PREDICTED).is_dir() else None
    except HeadError as error:
        return {"missing": str(error)}
    if read is None or read.split != source.split:
        return {}
    if not len(table.picked) or read.n_rows <= int(table.picked.max()):
        return {"missing": "The predictions of every layer are of other rows; run icecore layers again."}
    return {"by_layer": pack_predictions(read, table.picked), "missing": ""}


def pack_predictions(read: LayerPredictions, picked: NDArray[np.int64]) -> Values:
    """Pack what every layer predicts of some rows: numbers and probabilities as small integers, in base 64.

    `(L, N)` or `(L, N, T)` integers of 8 or 16 bits, little-endian; a number is `low + integer * step` of its layer.
    """
    packed: dict[str, object] = {"layers": list(read.layers)}
    if read.numbers is not None:
        numbers = np.nan_to_num(read.numbers[:, picked].astype(np.float64), posinf=0.0, neginf=0.0)
        low, high = numbers.min(1, keepdims=True, initial=np.inf), numbers.max(1, keepdims=True, initial=-np.inf)
        step = np.where(high > low, (high - low) / 65535, 1.0)
        ends = {"low": low.ravel().tolist(), "step": step.ravel().tolist()}
        return {**packed, **ends, "numbers": _base64((numbers - low) / step, np.uint16)}
    if read.codes is None:
        return packed
    codes = read.codes[:, picked]
    small = np.uint8 if len(read.names) < 256 else np.uint16
    packed |= {"names": list(read.names), "top": codes.shape[2], "bytes": np.dtype(small).itemsize}
    packed["codes"] = _base64(codes, small)
    if read.shares is not None:
        packed["shares"] = _base64(np.clip(np.nan_to_num(read.shares[:, picked]), 0, 1) * 255.0, np.uint8)
    return packed


def _base64(values: NDArray[np.generic], dtype: type[np.unsignedinteger]) -> str:
    integers = np.round(np.asarray(values, np.float64)).astype(np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(np.ascontiguousarray(integers).tobytes()).decode()


def layer_gap(one: LayerPredictions, other: LayerPredictions, rows: Mapping[str, Sequence[str]], metric: str) -> Values:
    """Give the paired difference of two runs at every layer, times 100, with intervals for all layers together.

    `rows` are columns of predictions.csv of the split, which both predicted; empty where they predicted other rows or
    have other layers. Of several seeds, the mean prediction is scored.
    """
    is_same = (one.layers, one.split, one.n_rows) == (other.layers, other.split, other.n_rows)
    if not is_same or one.n_rows != len(rows["gold"]):
        return {}
    gold = rows["gold"] if one.names else [float(text) for text in rows["gold"]]
    predicted = [side.of_layer(k) for side in (one, other) for k in range(len(one.layers))]
    values, draws = paired_scores(predicted, gold, metric=metric, units=rows["unit"], sentences=rows["row"])
    (value, over), (resampled, resampled_over) = np.split(values, 2), np.split(draws, 2)
    low, high = joint_intervals(value - over, resampled - resampled_over)
    columns = {"values": value - over, "low": low, "high": high}
    return {"layers": list(one.layers), **{name: _numbers(pd.Series(part), 100.0) for name, part in columns.items()}}


def join_explorations(parts: Mapping[str, Values], gaps: Sequence[Values] = ()) -> Values:
    """Put what several runs let explore beside each other; runs of the same rows share their table."""
    sources, tables = list[Values](), dict[str, Values]()
    for label, part in parts.items():
        names = {}
        for key, table in part.get("tables", {}).items():
            names[key] = next((other for other, known in tables.items() if known == table), f"{label} {key}")
            tables.setdefault(names[key], table)
        for source in part.get("sources", ()):
            sources.append({**source, "label": f"{label}, {source['head']}", "table": names[source["table"]]})
    if not sources:
        return {}
    first = sources[0]["head"]
    beside = next((k for k, source in enumerate(sources) if k and source["head"] == first), None)
    begin = {} if beside is None else {"begin": {"source": 0, "beside": beside}}
    return {"sources": sources, "tables": tables, "gaps": list(gaps), **begin}


def explore_plans(scores: PlansScores) -> Values:
    """Gather what the page of a sweep or a search shows: the score of every layer at every point, from its frame."""
    if not scores.plans or not scores.chosen:
        return {}
    slot, choice = max(scores.chosen.items(), key=lambda item: np.nan_to_num(item[1].result.selection_score, nan=-1))
    frame, metric = points_frame(scores), choice.result.metric
    curves, numbers = layer_scores(frame, slot, metric), score_rows(frame, slot, metric)
    names = dict.fromkeys(curves["point"])
    short = {name: ", ".join(part.partition("=")[2] or part for part in str(name).split(", ")) for name in names}
    short = short if len(set(short.values())) == len(short) else {name: str(name) for name in names}
    points = []
    for name, rows in curves.groupby("point", sort=False):
        at = numbers[numbers["point"] == name]
        about = ", ".join(f"{row.split} {100 * row.value:.1f} at {row.layer}" for row in at.itertuples())
        axes = {axis: str(rows[axis].iloc[0]) for axis in axes_of(scores)}
        values = _numbers(rows["value"], 100.0)
        points.append(
            {"label": short[name], "axes": axes, "layers": list(rows["layer"]), "values": values, "about": about}
        )
    if not any(len(point["layers"]) > 1 for point in points):
        return {}
    layers = max((point["layers"] for point in points), key=len)
    unit = f"{metric_label(metric)} x 100, {curves['split'].iloc[0]}"
    chosen = curves.loc[curves["is_chosen"], "point"]
    grid = {
        "axes": list(axes_of(scores)),
        "points": points,
        "layers": layers,
        "unit": unit,
        "chosen": {
            "point": "" if chosen.empty else short[chosen.iloc[0]],
            "layer": choice.result.chosen.get("layer", ""),
        },
        "note": f"{slot}: {unit}, of every layer at every point ({' x '.join(axes_of(scores))}), the lighter the "
        "better. Framed: the choice.",
    }
    return dict(without_nan({"sources": [], "tables": {}, "grid": grid}))
