"""Figure and summary of a sweep."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from extract.masks.grid import k_and_k0
from extract.masks.plan import parse_plan
from probes.report.figures import new_figure
from probes.report.table import markdown_table

CAUSAL = "causal"
EVERY_PLAN = "every plan"
"""What a sweep says of test where it was asked to score all plans on it."""


def selection_score(result: dict[str, Any]) -> float:
    """Give the validation score that a head of one plan is chosen by: Pearson, or the metric of its task."""
    if "selection" in result:
        return float(result["chosen"]["score"])
    return float(result["summary"]["validation"]["pearson"]["mean"])


def curve_label(scores: dict[str, Any]) -> str:
    """Name what the curve of a sweep shows."""
    first = scores["plans"][0]
    return "Zero-shot, final norm" if "zero_shot" in first else f"{next(iter(first['heads']))}, best layer"


def _value(row: dict[str, Any]) -> float:
    if "zero_shot" in row:
        return 100 * float(row["zero_shot"]["validation"]["spearman"])
    return 100 * selection_score(next(iter(row["heads"].values())))


def draw_sweep(rows: list[dict[str, Any]], path: Path, *, title: str) -> None:
    """Draw a score per plan: a heat map for a (k, k0) grid, lines for plans `KIND:K` or windows, bars for all others.

    The score is the zero-shot Spearman of a pair task, or that of the first head of a task of another kind, both on
    validation. A grid is one where some k0 lies between 0 and k. Plans `KIND:K` are drawn over k, windows
    `KIND@FIRST-LAST` over their last block, a line a size. Where one plan fits none of these, every plan is a bar.

    Args:
        rows: Plans with their scores, as in a sweep's scores.json.
        path: Where the PNG goes.
        title: Title.
    """
    label = f"{'Spearman' if 'zero_shot' in rows[0] else 'score'} x 100, validation"
    grid = {point: _value(row) for row in rows if (point := k_and_k0(row["plan"])) is not None}
    lines, others = _lines(rows)
    windows = _windows(rows)
    figure, axes = new_figure()
    if len(grid) == len(rows) and any(0 < k0 < k for k, k0 in grid):
        _heat_map(axes, grid)
        figure.colorbar(axes.images[0], ax=axes, label=label)
    elif windows or (lines and not set(others) - {CAUSAL}):
        _draw_lines(axes, windows or lines)
        if windows and CAUSAL in others:
            axes.axhline(others[CAUSAL], color="grey", linestyle=":", label=CAUSAL)
        axes.set_xlabel("last converted block of the window" if windows else "k, converted blocks from the top")
        axes.set_ylabel(label)
        axes.legend(fontsize=8)
    else:
        figure.set_figheight(max(4.2, 1.2 + 0.15 * len(rows)))
        axes.barh([row["plan"] for row in rows], [_value(row) for row in rows])
        axes.tick_params(axis="y", labelsize=7)
        axes.set_xlabel(label)
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _draw_lines(axes: Axes, lines: dict[str, dict[int, float]]) -> None:
    for name, points in lines.items():
        axes.plot(sorted(points), [points[k] for k in sorted(points)], marker=".", label=name)


def _lines(rows: list[dict[str, Any]]) -> tuple[dict[str, dict[int, float]], dict[str, float]]:
    """Sort plans into lines over k, each beginning at causal, and the others."""
    lines: dict[str, dict[int, float]] = {}
    others: dict[str, float] = {}
    start: dict[int, float] = {}
    for row in rows:
        plan = parse_plan(row["plan"])
        segment = plan.segments[0]
        if plan.is_untouched:
            start, others[CAUSAL] = {0: _value(row)}, _value(row)
        elif (
            len(plan.segments) == 1
            and segment.first is not None
            and segment.last is None
            and not (plan.is_list or plan.skip)
        ):
            lines.setdefault(segment.kind, {})[segment.first] = _value(row)
        else:
            others[row["plan"]] = _value(row)
    return {kind: {**start, **points} for kind, points in lines.items()}, others


def _windows(rows: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Sort windows into lines over their last block, one a kind and size; none if a plan other than causal is none."""
    lines: dict[str, dict[int, float]] = {}
    for row in rows:
        plan = parse_plan(row["plan"])
        if plan.is_untouched:
            continue
        first, last = plan.segments[0].first, plan.segments[0].last
        if len(plan.segments) > 1 or plan.is_list or plan.skip or first is None or last is None:
            return {}
        size = last - first + 1
        label = f"{plan.segments[0].kind}, {size} block{'s' * (size > 1)}"
        lines.setdefault(label, {})[last] = _value(row)
    return lines


def _heat_map(axes: Axes, grid: dict[tuple[int, int], float]) -> None:
    ks, k0s = (sorted({point[side] for point in grid}) for side in (0, 1))
    table = [[grid.get((k, k0), float("nan")) for k in ks] for k0 in k0s]
    axes.imshow(table, origin="lower", aspect="auto", cmap="viridis")
    axes.set_xticks(range(len(ks)), [str(k) for k in ks])
    axes.set_yticks(range(len(k0s)), [str(k0) for k0 in k0s])
    axes.set_xlabel("k, converted blocks from the top")
    axes.set_ylabel("k0, of these nosink")
    for x, k in enumerate(ks):
        for y, k0 in enumerate(k0s):
            if (k, k0) in grid:
                axes.text(x, y, f"{grid[k, k0]:.1f}", ha="center", va="center", fontsize=7, color="white")


def sweep_summary(scores: dict[str, Any]) -> str:
    """Write the summary of a sweep.

    Args:
        scores: The content of its scores.json.

    Returns:
        Markdown: what was chosen on validation with its test score, then every plan's validation scores.
    """
    heads = list(scores["chosen"])
    is_pairs = "zero_shot" in scores["plans"][0]
    metric = _metric(scores)
    has_test = scores["test_read"] == EVERY_PLAN
    table = [
        (
            f"`{row['plan']}`",
            *([f"{100 * row['zero_shot']['validation']['spearman']:.1f}"] if is_pairs else []),
            *(f"{100 * selection_score(row['heads'][name]):.1f}" for name in heads),
            *(_mean(row["heads"][name], "test", metric.lower()) for name in heads if has_test),
        )
        for row in scores["plans"]
    ]
    first = ("plan", "zero-shot Spearman, final norm") if is_pairs else ("plan",)
    columns = (*(f"{name} {metric}" for name in heads), *(f"test, {name} {metric}" for name in heads if has_test))
    sample = "> The task is a **sample** shipped with the project: its scores are no benchmark result.\n"
    parts = [
        f"# {scores['name']}\n",
        sample if scores["task"]["is_sample"] else "",
        f"Command: `{scores['command']}`\n",
        f"{len(scores['plans'])} plans, {scores['cost']['block_passes']} block passes per batch instead of "
        f"{scores['cost']['apart']} ({scores['cost']['ratio']:.2f}).\n",
        "## Chosen on validation\n",
        choice_table(scores),
        f"\n{reading_note(scores)}",
        "\n## Every plan, on validation\n",
        markdown_table(table, (*first, *columns)),
        f"\n![{curve_label(scores)} over the plans](sweep.png)",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def choice_table(scores: dict[str, Any]) -> str:
    """Write what was chosen for every head: plan and point, scores, and what choosing gained over causal.

    Args:
        scores: The content of the scores.json of a sweep or a search.

    Returns:
        A Markdown table.
    """
    metric = _metric(scores)
    key = metric.lower()
    rows = [
        (name, f"`{found['plan']}`{_point(found)}", _mean(found, "validation", key), _mean(found, "test", key),
         _interval(found, key), _gain(found))
        for name, found in scores["chosen"].items()
    ]  # fmt: skip
    over = next((found["gain"]["over"] for found in scores["chosen"].values() if "gain" in found), CAUSAL)
    columns = ("head", "plan", f"validation {metric}", f"test {metric}", "95 % interval", f"test, chosen - {over}")
    return markdown_table(rows, columns)


def reading_note(scores: dict[str, Any]) -> str:
    """Write for which plans test was read."""
    if scores["test_read"] == EVERY_PLAN:
        return (
            "test_read: **every plan**, as was asked for. The plan is chosen on validation all the same; a plan picked "
            "by its test score is a choice on test."
        )
    return f"test_read: {scores['test_read']}, after everything was chosen."


def _metric(scores: dict[str, Any]) -> str:
    return "Pearson" if "zero_shot" in scores["plans"][0] else str(scores["task"]["metrics"][0])


def _point(found: dict[str, Any]) -> str:
    point = found.get("point", {})
    return f", {point['layer']}" + (f", C {point['C']:g}" if "C" in point else "") if point else ""


def _gain(found: dict[str, Any]) -> str:
    return f"{100 * found['gain']['gain']:+.1f}" if "gain" in found else "-"


def _mean(result: dict[str, Any], split: str, key: str) -> str:
    found = result["summary"].get(split)
    return f"{100 * found[key]['mean']:.1f}" if found else "-"


def _interval(result: dict[str, Any], key: str) -> str:
    found = result["summary"].get("test")
    return f"{100 * found[key]['low']:.1f} to {100 * found[key]['high']:.1f}" if found else "-"
