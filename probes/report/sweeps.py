"""Figures and summaries of sweeps over mask plans, and of searches for one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from extract.masks.grid import k_and_k0
from extract.masks.plan import CAUSAL, MaskPlan, parse_plan
from probes.report.document import KindReport, join_lines, machine_line, opening_lines
from probes.report.scores import PlanChoice, PlanScores, PlansScores
from probes.report.style import BLUE, COLOURS, GREY, panels
from probes.report.table import NOTHING, describe_point, interval, markdown_table, metric_label, percent

EVERY_PLAN = "every plan"
"""What `test_read` is where all plans were scored on test."""
MARKERS = "os^Dvx"
Points = Mapping[MaskPlan, float]
Lines = dict[str, dict[int, float]]
"""Label to place to score."""


def points_of(scores: PlansScores, report: KindReport) -> Points:
    """Return the validation score of every plan, times 100: zero-shot where the kind has one, else the first head's."""
    return {row.plan: 100 * _validation(row, report) for row in scores.plans}


def _validation(row: PlanScores, report: KindReport) -> float:
    if report.zero_shot:
        return row.zero_shot["validation"][report.zero_shot]
    return next(iter(row.heads.values())).selection_score


def curve_label(scores: PlansScores, report: KindReport) -> str:
    """Name what the figure of a sweep shows."""
    return "Zero-shot, final norm" if report.zero_shot else f"{next(iter(scores.chosen))}, best layer"


def draw_sweep(figure: Figure, points: Points, *, metric: str) -> None:
    """Draw a score per plan: a heat map for a (k, k0) grid, lines for plans `KIND:K` or windows, bars for all others.

    A grid is one where some k0 is between 0 and k. Plans `KIND:K` are drawn over k, windows `KIND@FIRST-LAST` over
    their last block, a line per size. Where one plan fits none of these, every plan is a bar.
    """
    label = f"{metric_label(metric)} x 100, validation"
    grid = {place: score for plan, score in points.items() if (place := k_and_k0(plan)) is not None}
    lines, windows = (_lines(points, of_windows=of_windows) for of_windows in (False, True))
    (axes,) = panels(figure)
    if len(grid) == len(points) and any(0 < k0 < k for k, k0 in grid):
        _heat_map(axes, grid)
        figure.colorbar(axes.images[0], ax=axes, label=label)
    elif windows or lines:
        _draw_lines(axes, windows or lines)
        causal = next((score for plan, score in points.items() if plan.is_untouched), None)
        if windows and causal is not None:
            axes.axhline(causal, color=GREY, linestyle=":", label=CAUSAL)
        axes.set_xlabel("last converted block of the window" if windows else "k, converted blocks from the top")
        axes.set_ylabel(label)
        axes.locator_params(axis="x", integer=True)
        axes.legend(fontsize=8, frameon=False)
    else:
        figure.set_figheight(max(4.2, 1.2 + 0.15 * len(points)))
        axes.barh([plan.text for plan in points], list(points.values()), color=BLUE)
        axes.tick_params(axis="y", labelsize=7)
        axes.set_xlabel(label)


def _draw_lines(axes: Axes, lines: Lines) -> None:
    for number, (name, points) in enumerate(lines.items()):
        axes.plot(
            sorted(points), [points[k] for k in sorted(points)], color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)], markersize=4, label=name,
        )  # fmt: skip


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
    axes.imshow(table, origin="lower", aspect="auto", cmap="viridis")
    axes.set_xticks(range(len(ks)), [str(k) for k in ks])
    axes.set_yticks(range(len(k0s)), [str(k0) for k0 in k0s])
    axes.set_xlabel("k, converted blocks from the top")
    axes.set_ylabel("k0, of these nosink")
    middle = (min(grid.values()) + max(grid.values())) / 2
    for (k, k0), score in grid.items():
        colour = "black" if score > middle else "white"
        axes.text(ks.index(k), k0s.index(k0), f"{score:.1f}", ha="center", va="center", fontsize=7, color=colour)


def sweep_summary(scores: PlansScores, report: KindReport) -> str:
    """Write the summary of a sweep: what was chosen on validation, then every plan's validation scores."""
    cost, has_test = scores.cost, scores.test_read == EVERY_PLAN
    metrics = {name: metric_label(choice.result.metric) for name, choice in scores.chosen.items()}
    columns = [
        "plan",
        *([f"zero-shot {metric_label(report.zero_shot)}, final norm"] if report.zero_shot else []),
        *(f"{name} {metric}" for name, metric in metrics.items()),
        *(f"test, {name} {metric}" for name, metric in metrics.items() if has_test),
    ]
    rows = [
        (
            f"`{row.plan.text}`",
            *([percent(_validation(row, report))] if report.zero_shot else []),
            *(percent(row.heads[name].selection_score) for name in metrics),
            *(percent(row.heads[name].mean("test")) for name in metrics if has_test),
        )
        for row in scores.plans
    ]
    what = (
        f"{len(scores.plans)} plans, {cost['block_passes']} block passes per batch instead of {cost['apart']} "
        f"({cost['ratio']:.2f}).\n"
    )
    table = ("\n## Every plan, on validation\n", markdown_table(rows, columns))
    return _plans_text(scores, what, table, f"\n![{curve_label(scores, report)} over the plans](sweep.png)")


def draw_search(figure: Figure, scores: PlansScores) -> None:
    """Draw what a search tried: over the (k, k0) grid, or the scores of every trial where the plans are no such grid.

    A larger dot was scored on more rows; its colour is the rank of the plan in its last trial, because scores on
    different rows cannot be compared.
    """
    search = scores.search
    (axes,) = panels(figure)
    plans = dict.fromkeys(text for trial in search["trials"] for text in trial["scores"])
    points = {text: place for text in plans if (place := k_and_k0(parse_plan(text))) is not None}
    if len(points) < len(plans):
        for trial in search["trials"]:
            values = sorted((100 * value for value in trial["scores"].values()), reverse=True)
            axes.plot(values, marker=".", label=f"{trial['n_rows']:,} rows per split")
        axes.set_xlabel("plans of a trial, best first")
        axes.set_ylabel("score x 100, validation rows of the trial")
    else:
        for trial in search["trials"]:
            ranked = sorted(trial["scores"], key=lambda text: trial["scores"][text])
            size = 20 + 180 * trial["n_texts"] / search["n_texts"]
            ranks = [(place + 1) / len(ranked) for place in range(len(ranked))]
            ks, k0s = zip(*(points[text] for text in ranked), strict=True)
            dots = axes.scatter(ks, k0s, s=size, c=ranks, cmap="viridis", vmin=0, vmax=1)
        figure.colorbar(dots, ax=axes, label="rank in its trial, 1 is best")
        axes.plot(*points[scores.plans[0].plan.text], "x", color="tab:red", markersize=12, label="chosen")
        axes.set_xlabel("k, converted blocks from the top")
        axes.set_ylabel("k0, of these nosink-bidirectional")
    axes.locator_params(axis="both" if len(points) == len(plans) else "x", integer=True)
    axes.legend(fontsize=8, frameon=False)


def search_summary(scores: PlansScores) -> str:
    """Write the summary of a search: the plan that was found, what the search cost, and every trial."""
    search = scores.search
    trials = [
        (str(number), str(len(trial["scores"])), f"{trial['n_rows']:,}", f"{trial['n_texts']:,}",
         f"{trial['cost'] / search['full_cost']:.3f}", *_best_plan(trial["scores"]))
        for number, trial in enumerate(search["trials"], start=1)
    ]  # fmt: skip
    plans = dict.fromkeys(text for trial in search["trials"] for text in trial["scores"])
    every = [
        (f"`{text}`", *(percent(trial["scores"].get(text)) if text in trial["scores"] else NOTHING
                        for trial in search["trials"]))
        for text in plans
    ]  # fmt: skip
    what = (
        f"Strategy `{search['strategy']}` over {search['n_plans']} plans, by `{search['by']}`: "
        f"{search['cost']:,} block passes times texts, {search['share']:.3f} of the {search['full_cost']:,} that all "
        f"plans on all {search['n_texts']:,} texts of train and validation cost (budget {search['budget']:g}).\n"
    )
    tables = (
        "\n## Trials\n",
        markdown_table(trials, ("trial", "plans", "rows per split, at most", "texts", "cost", "best", "score")),
        "\n## Every score, on the validation rows of its trial\n",
        markdown_table(every, ("plan", *(f"{trial['n_rows']:,} rows" for trial in search["trials"]))),
    )
    return _plans_text(scores, what, tables, "\n![What was tried](search.png)")


def _best_plan(scores: Mapping[str, Any]) -> tuple[str, str]:
    text = max(scores, key=lambda plan: scores[plan])
    return f"`{text}`", percent(scores[text])


def _plans_text(scores: PlansScores, what: str, tables: Sequence[str], figure: str) -> str:
    """Write the summary of a sweep or a search: what was done, the chosen plans, tables, and the figure."""
    return join_lines(
        [*opening_lines(scores.header), what, *_choices(scores), *tables, f"\n{machine_line(scores.header)}", figure]
    )


def _choices(scores: PlansScores) -> Iterator[str]:
    """Write the plan chosen for every head, what choosing it gained, and the plans that test was read for."""
    gains = [choice.gain for choice in scores.chosen.values() if choice.gain]
    metrics = list(dict.fromkeys(metric_label(choice.result.metric) for choice in scores.chosen.values()))
    metric = metrics[0] if len(metrics) == 1 else "score"
    columns = ("head", "plan", f"validation {metric}", f"test {metric}", "95 % interval",
               f"test, chosen - {gains[0].over if gains else CAUSAL}")  # fmt: skip
    yield "## Chosen on validation\n"
    yield markdown_table([_choice(name, choice) for name, choice in scores.chosen.items()], columns)
    if scores.test_read == EVERY_PLAN:
        yield (
            "\ntest_read: **every plan**, as was asked for. The plan is chosen on validation all the same; a plan "
            "picked by its test score is a choice on test."
        )
    else:
        yield f"\ntest_read: {scores.test_read}, after everything was chosen."


def _choice(name: str, choice: PlanChoice) -> tuple[str, ...]:
    result, point = choice.result, describe_point(choice.result.chosen)
    test = result.summary.get("test", {}).get(result.metric)
    gain = percent(choice.gain.gain, sign="+") if choice.gain else NOTHING
    plan = f"`{choice.plan.text}`" + (f", {point}" if point else "")
    return name, plan, percent(result.mean("validation")), percent(result.mean("test")), interval(test), gain
