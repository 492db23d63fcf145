"""Figures of sweeps over mask plans, and of searches for one."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from extract.masks.grid import k_and_k0
from extract.masks.plan import CAUSAL, MaskPlan, parse_plan
from probes.heads.result import HeadResult
from probes.report import style
from probes.report.blocks import metric_label
from probes.report.run_figures import draw_baselines, layer_curves
from probes.report.scores import PlansScores

Points = Mapping[MaskPlan, float]
"""Plan to its validation score, times 100."""
Lines = dict[str, dict[int, float]]
"""Label to place to score."""
CONVERTED = "k, converted blocks from the top"
MOST_COLOURED = len(style.COLOURS)


def draw_layer_curves(figure: Figure, scores: PlansScores, head: str) -> None:
    """Draw the validation curve of a head under every plan, on one scale.

    The chosen plan, causal and the best others have a colour and a label; all others are pale.
    """
    axes, chosen = style.panel(figure), scores.chosen[head].plan
    results = {row.plan: row.heads[head] for row in scores.plans}
    order = sorted(results, key=lambda plan: (plan != chosen, not plan.is_untouched, -results[plan].selection_score))
    layers = max((result.layers for result in results.values()), key=len)  # a plan may add blocks
    for place, (plan, colour) in reversed(list(enumerate(zip(order, style.colours(len(order)), strict=True)))):
        result, is_pale = results[plan], place >= MOST_COLOURED
        places = [layers.index(layer) for layer in result.layers]
        style.draw_line(
            axes,
            places,
            100 * best_scores(result),
            colour=colour,
            label="" if is_pale else style.shorten(plan.text),
            breaks=style.layer_breaks(result.layers),
            linewidth=2.2 if plan == chosen else 0.7 if is_pale else 1.2,
        )
    draw_baselines(axes, results[chosen], ["validation"], only_near=True)
    style.mark_layers(axes, layers)
    axes.set_ylabel(f"{metric_label(results[chosen].metric)} x 100, validation")


def best_scores(result: HeadResult) -> NDArray[np.float64]:
    """Return the score of every layer on the split that chose, the best of the head's values there."""
    curves = [curve.values for curve in layer_curves(result) if curve.split != "test"]
    return np.asarray(np.fmax.reduce(np.array(curves, np.float64)))


def has_layer_curves(result: HeadResult) -> bool:
    """Whether a head scored several layers."""
    return len(result.layers) > 1 and any(curve.split != "test" for curve in layer_curves(result))


def layer_curves_note(scores: PlansScores, head: str) -> str:
    """Say what is not labelled in `draw_layer_curves`, and what was chosen."""
    pale, choice = len(scores.plans) - MOST_COLOURED, scores.chosen[head]
    others = f"; pale: {pale:,} other plan{'s' * (pale > 1)}" if pale > 0 else ""
    best = "; the best of the head's values at each layer" if len(layer_curves(choice.result)) > 1 else ""
    return f"thick: chosen, {choice.plan.text} at {choice.result.chosen.get('layer', 'all layers')}{others}{best}"


def draw_sweep(figure: Figure, points: Points, *, label: str) -> None:
    """Draw a score per plan: a heat map for a (k, k0) grid, lines for plans `KIND:K` or windows, bars for all others.

    A grid is one where some k0 is between 0 and k. Plans `KIND:K` are drawn over k, windows `KIND@FIRST-LAST` over
    their last block, a line per size. Where one plan fits none of these, every plan is a bar.
    """
    grid = {place: score for plan, score in points.items() if (place := k_and_k0(plan)) is not None}
    lines, windows = (_lines(points, of_windows=of_windows) for of_windows in (False, True))
    causal = next((score for plan, score in points.items() if plan.is_untouched), None)
    axes, best = style.panel(figure), max(points, key=lambda plan: points[plan])
    if len(grid) == len(points) and any(0 < k0 < k for k, k0 in grid):
        _heat_map(axes, grid)
        figure.colorbar(axes.images[0], ax=axes, label=label)
        return
    if windows or lines:
        for (name, places), colour in zip(
            (windows or lines).items(), style.colours(len(windows or lines)), strict=True
        ):
            style.draw_line(axes, sorted(places), [places[k] for k in sorted(places)], colour=colour, label=name)
        axes.set_xlabel("last converted block of the window" if windows else CONVERTED)
        axes.set_ylabel(label)
        style.count_in_whole_numbers(axes)
        if causal is not None:
            style.draw_level(axes, causal, CAUSAL)
        axes.plot(_place(best), points[best], "o", color=style.INK, markerfacecolor="none", markersize=7)
    else:
        figure.set_figheight(1.3 + 0.17 * len(points))
        bars = axes.barh(
            [style.shorten(plan.text) for plan in points],
            list(points.values()),
            color=[style.ORANGE if plan == best else style.BLUE for plan in points],
        )
        axes.bar_label(bars, fmt="%.1f", fontsize=style.SMALL, padding=2)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(label)


def _place(plan: MaskPlan) -> int:
    """Return where a plan is drawn on its line."""
    segment = plan.segments[0]
    return 0 if plan.is_untouched else segment.last or segment.first or 0


def _lines(points: Points, *, of_windows: bool) -> Lines:
    """Sort plans into lines: `KIND:K` over k, or windows over their last block, one per kind and size.

    Every line over k begins at causal. There are no lines where a plan fits none.
    """
    lines: Lines = {}
    start: dict[int, float] = {}
    for plan, score in points.items():
        segment = plan.segments[0]
        is_one = len(plan.segments) == 1 and segment.first is not None and not (plan.is_list or plan.skip)
        if plan.is_untouched:
            start = {} if of_windows else {0: score}
        elif not is_one or of_windows == (segment.last is None):
            return {}
        elif segment.last is None:
            lines.setdefault(segment.kind, {})[segment.first or 0] = score
        else:
            size = segment.last - (segment.first or 0) + 1
            lines.setdefault(f"{segment.kind}, {size} block{'s' * (size > 1)}", {})[segment.last] = score
    return {label: {**start, **found} for label, found in lines.items()}


def _heat_map(axes: Axes, grid: Mapping[tuple[int, int], float]) -> None:
    ks, k0s = (sorted({place[side] for place in grid}) for side in (0, 1))
    table = [[grid.get((k, k0), math.nan) for k in ks] for k0 in k0s]
    axes.grid(visible=False)
    axes.imshow(table, origin="lower", aspect="auto", cmap=style.SCALE)
    axes.set_xticks(range(len(ks)), [str(k) for k in ks])
    axes.set_yticks(range(len(k0s)), [str(k0) for k0 in k0s])
    axes.set_xlabel(CONVERTED)
    axes.set_ylabel("k0, of these nosink-bidirectional")
    middle, best = (min(grid.values()) + max(grid.values())) / 2, max(grid, key=lambda place: grid[place])
    for (k, k0), score in grid.items():
        axes.text(
            ks.index(k),
            k0s.index(k0),
            f"{score:.1f}",
            ha="center",
            va="center",
            fontsize=min(style.SMALL, 90 / len(ks)),
            color="black" if score > middle else "white",
            fontweight="bold" if (k, k0) == best else "normal",
        )
    corner = ks.index(best[0]) - 0.5, k0s.index(best[1]) - 0.5
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=style.ORANGE, linewidth=2, clip_on=False))


def draw_search(figure: Figure, scores: PlansScores) -> None:
    """Draw what a search tried: over the (k, k0) grid, or the scores of every trial where the plans are no such grid.

    A larger dot was scored on more rows; its colour is the rank of the plan in its last trial, because scores on
    different rows cannot be compared.
    """
    search, axes = scores.search, style.panel(figure)
    plans = dict.fromkeys(text for trial in search["trials"] for text in trial["scores"])
    points = {text: place for text in plans if (place := k_and_k0(parse_plan(text))) is not None}
    if len(points) < len(plans):
        for trial, colour in zip(search["trials"], style.colours(len(search["trials"])), strict=True):
            values = sorted((100 * value for value in trial["scores"].values()), reverse=True)
            label = f"{trial['n_rows']:,} rows per split"
            style.draw_line(axes, range(1, len(values) + 1), values, colour=colour, label=label)
        axes.set_xlabel("plans of a trial, best first")
        axes.set_ylabel("score x 100, validation rows of the trial")
        style.count_in_whole_numbers(axes)
        return
    for trial in search["trials"]:
        ranked = sorted(trial["scores"], key=lambda text: trial["scores"][text])
        size = 15 + 105 * trial["n_texts"] / search["n_texts"]
        ranks = [(place + 1) / len(ranked) for place in range(len(ranked))]
        ks, k0s = zip(*(points[text] for text in ranked), strict=True)
        dots = axes.scatter(ks, k0s, s=size, c=ranks, cmap=style.SCALE, vmin=0, vmax=1)
    figure.colorbar(dots, ax=axes, label="rank in its last trial, 1 is best")
    axes.plot(*points[scores.plans[0].plan.text], "s", color=style.ORANGE, markerfacecolor="none", markersize=15)
    axes.margins(0.12)
    axes.set_xlabel(CONVERTED)
    axes.set_ylabel("k0, of these nosink-bidirectional")
    style.count_in_whole_numbers(axes, "xy")
