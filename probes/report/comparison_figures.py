"""Figures of several plans, runs or decoders, and of the geometry of latents.

Sweeps over mask plans, searches for one, and runs of any tasks on one scale.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from extract.masks.mask_plan import CAUSAL, MaskPlan, k_and_k0, parse_plan
from probes.data.task_table import task_title
from probes.heads.result import HeadResult
from probes.report import style
from probes.report.blocks import metric_label, score_unit, side_by_side
from probes.report.document import KindReport, plan_score_label, plan_scores
from probes.report.run_figures import baseline_levels, draw_baselines, layer_curves, tidy_frame
from probes.report.scores import PlansScores, SearchCost

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from torch import Tensor


CONVERTED = "k, converted blocks from the top"
K0 = "k0, of these nosink-bidirectional"
MOST_COLOURED = len(style.COLOURS)


def draw_plans(album: style.Album, scores: PlansScores, report: KindReport) -> None:
    """Draw the figures of a sweep or a search."""
    about = f"{task_title(scores.header.task['name'])} on {scores.header.decoder['name']}"
    if scores.search:
        chosen = scores.plans[0].plan.text
        frame = search_frame(scores.search, chosen)
        note = f"{about}; larger: more rows; framed: found, {chosen}"
        album.add("search", draw_search, frame, title="Search for a plan", note=note, table=search_table(frame))
    else:
        of, metric = plan_score_label(scores, report)
        frame = sweep_frame(scores, report).rename(columns={"score": f"{metric} x 100, validation"})
        best = frame.iloc[int(frame.iloc[:, -1].argmax())]
        note = f"{about}; best: {best['plan']}, {best.iloc[-1]:.1f}"
        table = frame.iloc[:, [0, -1]]
        album.add("sweep", draw_sweep, frame, title=f"{of}, {len(frame):,} plans", note=note, table=table)
    for name, choice in scores.chosen.items():
        if has_layer_curves(choice.result):
            frame = plan_curves_frame(scores, name)
            album.add(
                f"layers_{name.replace('-', '_')}",
                draw_plan_curves,
                frame,
                title=f"{name}: score of each layer, {len(scores.plans):,} plans",
                note=f"{about}; {plan_curves_note(scores, name)}",
                size=style.TALL,
                table=plan_curves_table(frame),
            )


def plan_curves_frame(scores: PlansScores, head: str) -> pd.DataFrame:
    """Give the best score of a head at each layer under every plan, and the baselines under the chosen one.

    The chosen plan comes first, then causal, then the others, the best first.
    """
    chosen = scores.chosen[head].plan
    results = {row.plan: row.heads[head] for row in scores.plans}
    order = sorted(results, key=lambda plan: (plan != chosen, not plan.is_untouched, -results[plan].selection_score))
    curves = [
        pd.DataFrame(
            {"record": "curve", "plan": plan.text, "layer": results[plan].layers, "value": best_scores(results[plan])}
        )
        for plan in order
    ]
    metric = results[chosen].metric
    numbers = tidy_frame(results[chosen], scores.baselines)
    numbers = numbers[(numbers["record"] == "baseline") & (numbers["metric"] == metric)]
    baselines = numbers[numbers["split"] == "validation"].drop_duplicates("curve")
    frame = pd.concat([*curves, baselines], ignore_index=True)
    return frame.assign(split="validation", metric=metric, is_chosen=frame["plan"] == chosen.text)


def draw_plan_curves(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw the curve of a head under every plan, on one scale; the first of the frame have a colour and a label."""
    axes, curves = style.panel(figure), frame[frame["record"] == "curve"]
    plans = list(curves.groupby("plan", sort=False))
    layers = max((list(plan["layer"]) for _, plan in plans), key=len)  # a plan may add blocks
    for number, ((text, plan), colour) in reversed([*enumerate(style.coloured(plans))]):
        is_pale = number >= MOST_COLOURED
        style.draw_line(
            axes,
            [layers.index(layer) for layer in plan["layer"]],
            100 * plan["value"],
            colour=colour,
            label="" if is_pale else style.shorten(text),
            breaks=style.layer_breaks(list(plan["layer"])),
            linewidth=2.2 if plan["is_chosen"].all() else 0.7 if is_pale else 1.2,
        )
    draw_baselines(axes, frame)
    style.mark_layers(axes, layers)
    axes.set_ylabel(f"{score_unit(frame)}, validation")


def plan_curves_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Lay the curves of plans out side by side."""
    curves, unit = frame[frame["record"] == "curve"], f"{score_unit(frame)}, validation"
    return side_by_side(curves, "layer", ("plan",), unit=unit).assign(**baseline_levels(frame))


def best_scores(result: HeadResult) -> NDArray[np.float64]:
    """Return the score of every layer on the split that chose, the best of the head's values there."""
    curves = [curve.values for curve in layer_curves(result) if curve.split != "test"]
    return np.asarray(np.fmax.reduce(np.array(curves, np.float64)))


def has_layer_curves(result: HeadResult) -> bool:
    """Whether a head scored several layers."""
    return len(result.layers) > 1 and any(curve.split != "test" for curve in layer_curves(result))


def plan_curves_note(scores: PlansScores, head: str) -> str:
    """Say what is not labelled in `draw_plan_curves`, and what was chosen."""
    n_pale, choice = len(scores.plans) - MOST_COLOURED, scores.chosen[head]
    others = f"; pale: {n_pale:,} other plan{'s' * (n_pale > 1)}" if n_pale > 0 else ""
    best = "; the best of the head's values at each layer" if len(layer_curves(choice.result)) > 1 else ""
    return f"thick: chosen, {choice.plan.text} at {choice.result.chosen.get('layer', 'all layers')}{others}{best}"


def sweep_frame(scores: PlansScores, report: KindReport) -> pd.DataFrame:
    """List the plans of a sweep with the axes that each can be drawn on (`_axes_of`), and their scores times 100."""
    points = plan_scores(scores, report)
    return pd.DataFrame([{"plan": plan.text, **_axes_of(plan), "score": score} for plan, score in points.items()])


def _axes_of(plan: MaskPlan) -> dict[str, object]:
    k, k0 = k_and_k0(plan) or (math.nan, math.nan)
    segment, form, line, x = plan.segments[0], "", "", 0
    if plan.is_untouched:
        form = "causal"
    elif len(plan.segments) == 1 and not (plan.is_list or plan.skip):
        if segment.count is not None:
            form, line, x = "over k", segment.kind.text, segment.count
        elif segment.window is not None:
            size = len(segment.window)
            form, line, x = "window", f"{segment.kind}, {size} block{'s' * (size > 1)}", segment.window.stop
    return {"k": k, "k0": k0, "form": form, "line": line, "x": x}


def draw_sweep(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw a score per plan, the last column of a `sweep_frame`: on a grid, over k, over windows, or else as bars."""
    label = str(frame.columns[-1])
    frame = frame.rename(columns={label: "score"})
    axes, forms = style.panel(figure), set(frame["form"]) - {"causal"}
    if frame["k"].notna().all() and ((frame["k0"] > 0) & (frame["k0"] < frame["k"])).any():
        _draw_grid(axes, frame)
        figure.colorbar(axes.images[0], ax=axes, label=label)
    elif forms in ({"over k"}, {"window"}):
        _draw_lines(axes, frame)
        axes.set_xlabel("last converted block of the window" if forms == {"window"} else CONVERTED)
        axes.set_ylabel(label)
    else:
        figure.set_figheight(1.3 + 0.17 * len(frame))
        colours = [style.ORANGE if row == frame["score"].argmax() else style.BLUE for row in range(len(frame))]
        bars = axes.barh(frame["plan"].map(style.shorten), frame["score"], color=colours)
        axes.bar_label(bars, fmt="%.1f", fontsize=style.SMALL, padding=2)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(label)


def _draw_lines(axes: Axes, frame: pd.DataFrame) -> None:
    """Draw a line per kind, or per kind and size of window; lines over k begin at causal."""
    causal, lines = frame[frame["form"] == "causal"], frame[frame["form"] != "causal"]
    for (name, line), colour in style.coloured(list(lines.groupby("line", sort=False))):
        points = pd.concat([causal, line]) if (line["form"] == "over k").all() else line
        points = points.sort_values("x", kind="stable")
        style.draw_line(axes, points["x"], points["score"], colour=colour, label=name)
    style.count_in_whole_numbers(axes)
    for level in causal["score"]:
        style.draw_level(axes, level, CAUSAL)
    best = frame.iloc[int(frame["score"].argmax())]
    axes.plot(best["x"], best["score"], "o", color=style.INK, markerfacecolor="none", markersize=7)


def _draw_grid(axes: Axes, frame: pd.DataFrame) -> None:
    grid = frame.pivot(index="k0", columns="k", values="score")
    ks, k0s = ([int(value) for value in index] for index in (grid.columns, grid.index))
    axes.grid(visible=False)
    axes.imshow(grid, origin="lower", aspect="auto", cmap=style.SCALE)
    axes.set_xticks(range(len(ks)), map(str, ks))
    axes.set_yticks(range(len(k0s)), map(str, k0s))
    axes.set(xlabel=CONVERTED, ylabel=K0)
    middle, best = (frame["score"].min() + frame["score"].max()) / 2, frame["score"].argmax()
    for number, point in enumerate(frame.itertuples()):
        x, y = ks.index(int(point.k)), k0s.index(int(point.k0))
        axes.text(
            x,
            y,
            f"{point.score:.1f}",
            ha="center",
            va="center",
            fontsize=min(style.SMALL, 90 / len(ks)),
            color="black" if point.score > middle else "white",
            fontweight="bold" if number == best else "normal",
        )
        if number == best:
            corner = (x - 0.5, y - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=style.ORANGE, linewidth=2, clip_on=False))


def search_frame(search: SearchCost, chosen: str, noun: str = "plan") -> pd.DataFrame:
    """List what a search tried: a row per trial and point, and whether it was found.

    Plans have their place on a (k, k0) grid; `noun` is the name of the column of points.
    """
    rows = []
    for number, trial in enumerate(search.trials, start=1):
        size = {"trial": number, "n_rows": trial.n_rows, "share": trial.n_texts / search.n_texts}
        for text, score in trial.scores.items():
            k, k0 = (k_and_k0(parse_plan(text)) if noun == "plan" else None) or (math.nan, math.nan)
            rows.append({**size, noun: text, "k": k, "k0": k0, "score": score, "is_found": text == chosen})
    return pd.DataFrame(rows)


def draw_search(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw what a search tried: over the (k, k0) grid, or the scores of every trial where there is no such grid.

    A larger dot was scored on more rows; its colour is the rank of the plan in its last trial, because scores on
    different rows cannot be compared.
    """
    axes, trials = style.panel(figure), list(frame.groupby("trial", sort=False))
    if frame["k"].isna().any():
        for (_, trial), colour in style.coloured(trials):
            label = f"{trial['n_rows'].iloc[0]:,} rows per split"
            scores = 100 * trial["score"].sort_values(ascending=False)
            style.draw_line(axes, range(1, len(scores) + 1), scores, colour=colour, label=label)
        axes.set_xlabel(f"{'plans' if 'plan' in frame else 'points'} of a trial, best first")
        axes.set_ylabel("score x 100, validation rows of the trial")
        style.count_in_whole_numbers(axes)
        return
    for _, trial in trials:
        ranked = trial.sort_values("score", kind="stable")
        ranks = np.arange(1, len(ranked) + 1) / len(ranked)
        size = 15 + 105 * ranked["share"].iloc[0]
        dots = axes.scatter(ranked["k"], ranked["k0"], s=size, c=ranks, cmap=style.SCALE, vmin=0, vmax=1)
    figure.colorbar(dots, ax=axes, label="rank in its last trial, 1 is best")
    best = frame[frame["is_found"]].iloc[:1]
    axes.plot(best["k"], best["k0"], "s", color=style.ORANGE, markerfacecolor="none", markersize=15)
    axes.margins(0.12)
    axes.set(xlabel=CONVERTED, ylabel=K0)
    style.count_in_whole_numbers(axes, "xy")


def search_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Lay the trials of a search out side by side."""
    names = [f"trial {trial}, {n_rows:,} rows" for trial, n_rows in zip(frame["trial"], frame["n_rows"], strict=True)]
    noun = "plan" if "plan" in frame else "point"
    return side_by_side(frame.assign(trial=names, value=frame["score"]), noun, ("trial",), unit="score x 100")


CURVE = ["task", "plan", "decoder", "head", "pooling", "run"]
"""Columns that tell curves apart, those that readers know first."""
ROW_INCHES = 0.26
"""Height of a curve in a heat map."""


def draw_runs(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the layers of several runs on one scale, the best of a head's values at each layer, chosen layers ringed."""
    curves, scores = (frame[frame["record"] == record] for record in ("curve", "score"))
    best = best_of_layers(curves)
    lists = {tuple(run["layer"]) for _, run in best.groupby("run", sort=False)}
    is_one = len(lists) == 1
    views = best["layer"].str.rpartition("/")[0]  # of runs over other layers each view is a line from 0 to 1
    best["line"] = best["run"] if is_one else best["run"].str.cat(views, sep=", ").str.removesuffix(", ")
    for (label, line), colour in style.coloured(list(best.groupby("line", sort=False))):
        n, values, name = len(line), 100 * line["value"].to_numpy(np.float64), line["run"].iloc[0]
        positions = np.arange(n, dtype=np.float64) if is_one else np.arange(n) / max(n - 1, 1)
        breaks = style.layer_breaks(list(line["layer"])) if is_one else ()
        style.draw_line(axes, positions, values, colour=colour, label=style.shorten(label), breaks=breaks)
        is_chosen = line["layer"].isin(scores.loc[scores["run"] == name, "layer"]).to_numpy()
        axes.plot(
            positions[is_chosen], values[is_chosen], "o", color=colour, markersize=6, markerfacecolor="white", zorder=5
        )
    style.mark_depth(axes, lists)
    axes.set_ylabel(_unit(frame))
    return axes


def best_of_layers(curves: pd.DataFrame) -> pd.DataFrame:
    """Take the best of a head's values at each layer of each run, in the order of the frame."""
    return curves.groupby(["run", "layer"], sort=False, as_index=False).agg({"value": "max"})


def runs_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Lay the lines of `draw_runs` out side by side."""
    return side_by_side(best_of_layers(frame[frame["record"] == "curve"]), "layer", ("run",), unit=_unit(frame))


def _unit(frame: pd.DataFrame) -> str:
    split = frame.loc[frame["record"] == "curve", "split"].iloc[0]
    return f"{score_unit(frame)}, {split}"


def name_curves(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Divide a frame into curves, each named by what tells it from the others."""
    keys = frame[CURVE].drop_duplicates()
    telling = ["task"]
    for column in CURVE[1:]:
        more = keys[[*telling, column]].drop_duplicates()
        if keys.duplicated(telling).any() and len(more) > len(keys[telling].drop_duplicates()):
            telling.append(column)
    return {
        " ".join(style.shorten(str(value)) for value in key): part for key, part in frame.groupby(telling, sort=False)
    }


def draw_layer_map(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the columns of `icecore.layers_across` as a heat map over depth: a row per curve, its best layer ringed.

    Colours run from the lowest to the highest score of each row, which are written beside it, times 100.
    """
    curves = name_curves(frame)
    for row, curve in enumerate(curves.values()):
        shares, values, depths = (curve[name].to_numpy(np.float64) for name in ("share", "value", "depth"))
        half = 0.5 * np.ptp(depths) / max(len(depths) - 1, 1)
        extent = (depths[0] - half, depths[-1] + half, row + 0.46, row - 0.46)
        image = axes.imshow(shares[None], aspect="auto", cmap=style.SCALE, vmin=0, vmax=1, extent=extent)
        best = int(np.nanargmax(values))
        axes.plot(depths[best], row, "o", color=style.INK, markerfacecolor="white", markersize=4.5)
        ends = f" {100 * np.nanmin(values):.1f} to {100 * values[best]:.1f} {metric_label(curve['metric'].iloc[0])}"
        axes.annotate(ends, (1.02, row), va="center", fontsize=style.SMALL, annotation_clip=False, color=style.INK)
    _name_rows(axes, list(curves))
    axes.grid(visible=False)
    axes.set_xlim(-0.02, 1.02)
    if axes.figure is not None:
        label = "share of the way from the row's lowest to its highest score"
        axes.figure.colorbar(image, ax=axes, location="bottom", label=label, aspect=40, shrink=0.7, pad=0.02)
    return axes


def draw_centres(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the columns of `icecore.centres_of_gravity`: a dot and an interval over seeds per curve."""
    curves = name_curves(frame.sort_values("centre", kind="stable"))
    for row, curve in enumerate(curves.values()):
        centre, low, high = (float(curve[name].iloc[0]) for name in ("centre", "low", "high"))
        axes.plot(centre, row, "o", color=style.BLUE, markersize=5)
        if np.isfinite(low):
            axes.plot([low, high], [row, row], color=style.BLUE, linewidth=1.2)
    _name_rows(axes, list(curves))
    axes.set_xlim(-0.02, 1.02)
    return axes


def draw_layer_gaps(axes: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the columns of `icecore.compare_at_layers`: what one run has over another at every layer, with intervals."""
    layers, positions = list(frame["layer"]), np.arange(len(frame))
    value, low, high = (100 * frame[name].to_numpy(np.float64) for name in ("difference", "low", "high"))
    style.draw_line(axes, positions, value, colour=style.BLUE, breaks=style.layer_breaks(layers))
    style.draw_band(axes, positions, low, high, colour=style.BLUE)
    axes.axhline(0, color=style.GREY, linewidth=0.6)
    style.mark_layers(axes, layers)
    axes.set_ylabel(f"difference of {score_unit(frame)}")
    return axes


def draw_across(album: style.Album, frames: Mapping[str, pd.DataFrame]) -> None:
    """Draw the frames `across` and `centres` into an album."""
    across, centres = frames["across"], frames["centres"]
    height = 1.7 + ROW_INCHES * len(name_curves(centres))
    album.add(
        "across",
        style.on_panel(draw_layer_map),
        across,
        title="Every layer of every task",
        size=(7.0, height),
        note=f"rings: best layers; scores on {', '.join(dict.fromkeys(across['split']))}",
        table=_without_constants(across),
    )
    album.add(
        "centres",
        style.on_panel(draw_centres),
        centres,
        title="Centre of gravity of the gains",
        size=(5.2, height - 0.4),
        note="depth weighted by what each layer adds to the best below it (Tenney et al. 2019); bars: 95 % over seeds",
        table=_without_constants(centres),
    )


def draw_gaps(album: style.Album, frames: Mapping[str, pd.DataFrame]) -> None:
    """Draw the frame `by-layer` into an album."""
    frame = frames["by-layer"]
    where = frame.iloc[0]
    album.add(
        "by-layer",
        style.on_panel(draw_layer_gaps),
        frame,
        title=f"{where['one']} over {where['other']}",
        note=f"{where['head']} on {where['split']}, every layer alone; band: 95 % for all layers together, paired",
        table=_without_constants(frame),
    )


def _without_constants(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out the columns that say the same in every row, but the numbers, for a table as a page prints it."""
    names = [name for name in frame if frame[name].dtype.kind == "f" or frame[name].nunique() > 1]
    return frame[names].rename_axis(columns="scores are fractions")


def _name_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(style.DEPTH)


# --- The geometry of latents ---


SERIES = ("decoder", "plan", "pooling", "cache")
"""Columns that tell lines apart, those that readers know first."""
SHOWN = ("mean-cosine", "norm-median", "massive-share", "effective-rank", "participation-ratio", "intrinsic-dimension")
"""Measures of `draw_geometry`, a panel each."""
SPARE = "participation-ratio"
"""Left out where it would take a row of panels for itself."""
GEOMETRY_NOTE = (
    "bands: 95 % intervals (jackknife over ten groups of texts), for norms the 5 to 95 % quantiles of rows; "
    "massive: mean magnitude above 10 times the median dimension's"
)


def split_series(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Divide a frame by what its rows are of; each part is named by the columns that tell it from the others."""
    keys = frame[list(SERIES)].drop_duplicates()
    telling = [name for name in SERIES[:-1] if keys[name].nunique() > 1]
    if len(keys) > 1 and (not telling or keys.duplicated(telling).any()):
        telling.append(SERIES[-1])
    if not telling:
        return {str(frame["plan"].iloc[0]): frame}
    return {
        " ".join(style.shorten(str(value)) for value in key): part for key, part in frame.groupby(telling, sort=False)
    }


def draw_measure(axes: Axes, frame: pd.DataFrame, measure: str, *, is_labelled: bool = True) -> Axes:
    """Draw one measure over the layers, a line per decoder, plan and pooling, with intervals as bands.

    For `norm-median` the band holds nine rows in ten. Layers of different decoders are drawn by relative depth.
    """
    parts = split_series(frame)
    lists = {tuple(dict.fromkeys(part["layer"])) for part in parts.values()}
    for (label, part), colour in style.coloured(parts.items()):
        rows = part[part["measure"] == measure]
        x = np.arange(len(rows)) if len(lists) == 1 else rows["depth"].to_numpy()
        values, low, high = (rows[name].to_numpy(np.float64) for name in ("value", "low", "high"))
        if measure == "norm-median" and {"norm-q05", "norm-q95"} <= set(part["measure"]):
            low, high = (part.loc[part["measure"] == name, "value"] for name in ("norm-q05", "norm-q95"))
        style.draw_band(axes, x, low, high, colour=colour)
        style.draw_line(axes, x, values, colour=colour, label=label if is_labelled and len(parts) > 1 else "")
    name, unit, is_log = _describe(measure)
    if is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(name, loc="left", fontsize=style.SMALL)
    axes.set_ylabel(unit)
    style.mark_depth(axes, lists)
    return axes


def draw_geometry(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw the measures `SHOWN` that a frame has, and correlations with gold, in two columns."""
    from probes.layers.geometry import MEASURES  # it loads torch, which figures of runs do without

    every = list(dict.fromkeys(frame["measure"]))
    measures = [name for name in every if name in SHOWN or name not in MEASURES] or every
    if len(measures) % 2 and SPARE in measures:
        measures.remove(SPARE)
    n_columns = min(2, len(measures))
    n_rows = -(-len(measures) // n_columns)
    figure.set_size_inches(style.WIDE[0], 1.1 + 1.65 * n_rows)
    all_axes = style.panels(figure, n_rows, n_columns, sharex=True)
    for index, (axes, measure) in enumerate(zip(all_axes, measures, strict=False)):
        draw_measure(axes, frame, measure, is_labelled=index == n_columns - 1)
        is_lowest = index + n_columns >= len(measures)
        axes.tick_params(labelbottom=is_lowest)
        axes.set_xlabel(axes.get_xlabel() * is_lowest)
    for axes in all_axes[len(measures) :]:
        axes.remove()


def draw_similarity(axes: Axes, frame: pd.DataFrame, *, has_key: bool = True) -> Axes:
    """Draw debiased linear CKA of every two layers as a heat map from 0 to 1; grey where a layer does not vary."""
    sides = [tuple(dict.fromkeys(frame[name])) for name in ("layer", "other_layer")]
    table = frame.pivot(index="layer", columns="other_layer", values="value").loc[list(sides[0]), list(sides[1])]
    image = axes.imshow(
        table.to_numpy(np.float64),
        origin="lower",
        vmin=0,
        vmax=1,
        cmap=colormaps[style.SCALE].with_extremes(bad=style.PALE),
    )
    axes.grid(visible=False)
    for which, layers, name in zip("yx", sides, _apart(frame), strict=True):
        style.mark_layers(axes, layers, which=which)
        axes.set(**{f"{which}label": ", ".join(filter(None, [name, getattr(axes, f"get_{which}label")()]))})
    if has_key and axes.figure is not None:
        axes.figure.colorbar(image, ax=axes, label="debiased linear CKA", shrink=0.9)
    return axes


def _apart(frame: pd.DataFrame) -> tuple[str, str]:
    """Say in which of the columns `SERIES` the two sides of a comparison differ; empty where they do not."""
    first = frame.iloc[0]
    telling = [name for name in SERIES[:-1] if first[name] != first[f"other_{name}"]]
    telling = telling or [name for name in SERIES[-1:] if first[name] != first[f"other_{name}"]]
    one, other = (" ".join(style.shorten(str(first[prefix + name])) for name in telling) for prefix in ("", "other_"))
    return one, other


def _describe(measure: str) -> tuple[str, str, bool]:
    """Return what a measure is called, its unit, and whether its scale is logarithmic."""
    from probes.layers.geometry import MEASURES

    if measure not in MEASURES:
        metric = metric_label(measure.removeprefix("gold-"))
        return "cosine of pairs against gold", f"{metric} correlation", False
    about = MEASURES[measure]
    return about.label, about.unit, about.is_log


MOST_PANELS = 12  # panels at most


def draw_maps(
    figure: Figure,
    maps: "Shaped[Tensor, 'N T T']",
    names: Sequence[str],
    *,
    label: str = "attention, shade by square root",
) -> None:
    """Draw a panel per block (LBW Figures 3 and 8) on one scale from 0 to 1; without a label influence matrices."""
    picks = np.unique(np.linspace(0, len(names) - 1, MOST_PANELS).round().astype(int)).tolist()
    n_columns, n_tokens = min(4, len(picks)), maps.shape[-1]
    n_rows = -(-len(picks) // n_columns)
    figure.set_size_inches(1.4 * n_columns + 1.2, 1.5 * n_rows + 0.9)
    all_axes = style.panels(figure, n_rows, n_columns, sharex=True, sharey=True)
    extent = (0.5, n_tokens + 0.5, n_tokens + 0.5, 0.5)  # tokens count from 1
    for axes, pick in zip(all_axes, picks, strict=False):
        values, norm = maps[pick].float().cpu().numpy(), PowerNorm(0.5, vmin=0, vmax=1)
        image = axes.imshow(values, cmap=style.SHADES, norm=norm, extent=extent)
        axes.set_title(names[pick].replace("_", " "), fontsize=style.SMALL)
        axes.grid(visible=False)
        style.count_in_whole_numbers(axes, "xy")
    for axes in all_axes[len(picks) :]:
        axes.remove()
    all_axes[0].set_ylabel("token")
    all_axes[(n_rows - 1) * n_columns].set_xlabel("attends to" if label else "depends on")
    if label:
        figure.colorbar(
            image, ax=all_axes[: len(picks)], label=label, ticks=[0, 0.05, 0.25, 0.5, 1], aspect=30, shrink=0.9
        )


def draw_sink_mass(figure: Figure, sink_mass: "Float[Tensor, 'L 4']") -> None:
    """Draw the attention on each of the first four tokens, block by block (LBW Figure 9)."""
    axes = style.panel(figure)
    for position, (mass, colour) in enumerate(zip(sink_mass.T.tolist(), style.COLOURS, strict=False), start=1):
        style.draw_line(axes, range(1, len(mass) + 1), mass, colour=colour, label=f"token {position}")
    style.count_in_whole_numbers(axes)
    axes.set(xlabel="block", ylabel="attention of the tokens after it", ylim=(0, 1))


PARTS_OF_BLOCK = {"block": "both", "attention": "attention", "mlp": "MLP"}
"""Parts of a block, and what the figure calls them."""


def draw_weights(axes: Axes, frame: pd.DataFrame) -> None:
    """Draw the cosine of two checkpoints over the blocks, a line for attention, MLP, and both together.

    Of checkpoints so near that every cosine is about 1, their relative distance.
    """
    blocks = frame[frame["layer"] != "embedding"]
    layers, is_near = list(dict.fromkeys(blocks["layer"])), blocks["cosine"].min() > 0.9995
    column, label = ("distance", "relative distance of the weights") if is_near else ("cosine", "cosine of the weights")
    for (part, name), colour in style.coloured(PARTS_OF_BLOCK.items()):
        values = blocks[blocks["part"] == part].set_index("layer")[column].reindex(layers)
        style.draw_line(axes, range(len(layers)), values.to_numpy(), colour=colour, label=name)
    style.mark_layers(axes, layers)
    axes.set_ylabel(label)


def draw_scores(figure: Figure, frame: pd.DataFrame) -> None:
    """Draw the score of every layer, a line per task, split, plan and pooling; names only what tells them apart."""
    axes = style.panel(figure)
    keys = ["task", "split", "plan", "pooling"]
    telling = [key for key in keys if frame[key].nunique() > 1]
    layers = list(dict.fromkeys(frame["layer"]))
    for (key, rows), colour in style.coloured(list(frame.groupby(keys, sort=False))):
        label = " ".join(str(value) for name, value in zip(keys, key, strict=True) if name in telling)
        scores = 100 * rows.set_index("layer")["score"].reindex(layers)
        style.draw_line(axes, range(len(layers)), scores.to_numpy(), colour=colour, label=label)
    style.mark_layers(axes, layers)
    metrics = ", ".join(dict.fromkeys(frame["metric"]))
    axes.set_ylabel(f"{metrics} x 100")
