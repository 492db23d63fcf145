"""Figure and summary of a sweep."""

from pathlib import Path
from typing import Any

from extract.plan import parse_plan
from probes.report.figures import new_figure
from probes.report.table import markdown_table


def draw_sweep(rows: list[dict[str, Any]], path: Path, *, title: str) -> None:
    """Draw zero-shot Spearman per plan: lines over k for plans `KIND:K`, bars for all others.

    Args:
        rows: Plans with their scores, as in a sweep's scores.json.
        path: Where the PNG goes.
        title: Title.
    """
    figure, axes = new_figure()
    lines: dict[str, dict[int, float]] = {}
    others: dict[str, float] = {}
    start = None
    for row in rows:
        plan, value = parse_plan(row["plan"]), 100 * row["zero_shot"]["validation"]["spearman"]
        segment = plan.segments[0]
        if plan.is_untouched:
            start = value
        elif len(plan.segments) == 1 and segment.first is not None and segment.last is None and not plan.is_list:
            lines.setdefault(segment.kind, {})[segment.first] = value
        else:
            others[row["plan"]] = value
    for kind, points in lines.items():
        known = points if start is None else {0: start, **points}
        axes.plot(sorted(known), [known[k] for k in sorted(known)], marker=".", label=kind)
    if lines:
        axes.set_xlabel("k, converted blocks from the top")
        axes.legend(fontsize=8)
    else:
        shown = {**({"causal": start} if start is not None else {}), **others}
        axes.barh(list(shown), list(shown.values()))
        axes.tick_params(axis="y", labelsize=7)
    axes.set_title(title, fontsize=10)
    (axes.set_ylabel if lines else axes.set_xlabel)("Spearman x 100, validation")
    figure.savefig(path, dpi=130)


def sweep_summary(scores: dict[str, Any]) -> str:
    """Write the summary of a sweep.

    Args:
        scores: The content of its scores.json.

    Returns:
        Markdown: what was chosen on validation with its test score, then every plan's validation scores.
    """
    heads = list(scores["chosen"])
    chosen = [
        (name, f"`{found['plan']}`", _mean(found, "validation"), _mean(found, "test"), _interval(found))
        for name, found in scores["chosen"].items()
    ]
    table = [
        (
            f"`{row['plan']}`",
            f"{100 * row['zero_shot']['validation']['spearman']:.1f}",
            *(_mean(row["heads"][name], "validation") for name in heads),
        )
        for row in scores["plans"]
    ]
    sample = "> The task is a **sample** shipped with the project: its scores are no benchmark result.\n"
    parts = [
        f"# {scores['name']}\n",
        sample if scores["task"]["is_sample"] else "",
        f"Command: `{scores['command']}`\n",
        f"{len(scores['plans'])} plans, {scores['cost']['block_passes']} block passes per batch instead of "
        f"{scores['cost']['apart']} ({scores['cost']['ratio']:.2f}).\n",
        "## Chosen on validation\n",
        markdown_table(chosen, ("head", "plan", "validation Pearson", "test Pearson", "95 % interval")),
        "\n## Every plan, on validation\n",
        markdown_table(table, ("plan", "zero-shot Spearman, final norm", *(f"{name} Pearson" for name in heads))),
        "\n![Zero-shot Spearman over the plans](sweep.png)",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _mean(result: dict[str, Any], split: str) -> str:
    found = result["summary"].get(split)
    return f"{100 * found['pearson']['mean']:.1f}" if found else "-"


def _interval(result: dict[str, Any]) -> str:
    found = result["summary"].get("test")
    return f"{100 * found['pearson']['low']:.1f} to {100 * found['pearson']['high']:.1f}" if found else "-"
