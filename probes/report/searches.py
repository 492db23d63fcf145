"""Figure and summary of a search for a mask plan."""

from pathlib import Path
from typing import Any

from extract.masks.grid import k_and_k0
from probes.report.figures import new_figure
from probes.report.sweeps import choice_table, reading_note
from probes.report.table import markdown_table


def draw_search(scores: dict[str, Any], path: Path) -> None:
    """Draw what a search tried: over the (k, k0) grid, or the scores of every trial where the plans are no such grid.

    A larger dot was scored on more rows; its colour is the rank of the plan in its last trial, for scores on different
    rows cannot be compared.

    Args:
        scores: The content of its scores.json.
        path: Where the PNG goes.
    """
    search = scores["search"]
    figure, axes = new_figure()
    points = {text: k_and_k0(text) for trial in search["trials"] for text in trial["scores"]}
    if all(point is not None for point in points.values()):
        for trial in search["trials"]:
            ranked = sorted(trial["scores"], key=lambda text: trial["scores"][text])
            places = [points[text] or (0, 0) for text in ranked]
            size = 20 + 180 * trial["n_texts"] / search["n_texts"]
            ranks = [place / max(1, len(ranked) - 1) for place in range(len(ranked))]
            ks, k0s = zip(*places, strict=True)
            dots = axes.scatter(ks, k0s, s=size, c=ranks, cmap="viridis", vmin=0, vmax=1)
        figure.colorbar(dots, ax=axes, label="rank in its trial, 1 is best")
        chosen = points[scores["plans"][0]["plan"]] or (0, 0)
        axes.plot(*chosen, "x", color="tab:red", markersize=12, label="chosen")
        axes.set_xlabel("k, converted blocks from the top")
        axes.set_ylabel("k0, of these nosink-bidirectional")
        axes.legend(fontsize=8)
    else:
        for trial in search["trials"]:
            values = sorted((100 * value for value in trial["scores"].values()), reverse=True)
            axes.plot(values, marker=".", label=f"{trial['n_rows']} rows per split")
        axes.set_xlabel("plans of a trial, best first")
        axes.set_ylabel("score x 100, validation rows of the trial")
        axes.legend(fontsize=8)
    axes.set_title(f"{search['strategy']}: {scores['task']['name']} on {scores['decoder']['name']}", fontsize=10)
    figure.savefig(path, dpi=130)


def search_summary(scores: dict[str, Any]) -> str:
    """Write the summary of a search.

    Args:
        scores: The content of its scores.json.

    Returns:
        Markdown: the plan that was found with its test score, what the search cost, and every trial.
    """
    search = scores["search"]
    sample = "> The task is a **sample** shipped with the project: its scores are no benchmark result.\n"
    trials = [
        (str(number), str(len(trial["scores"])), f"{trial['n_rows']:,}", f"{trial['n_texts']:,}",
         f"{trial['cost'] / search['full_cost']:.3f}", *_best(trial["scores"]))
        for number, trial in enumerate(search["trials"], start=1)
    ]  # fmt: skip
    parts = [
        f"# {scores['name']}\n",
        sample if scores["task"]["is_sample"] else "",
        f"Command: `{scores['command']}`\n",
        f"Strategy `{search['strategy']}` over {search['n_plans']} plans, by `{search['by']}`: "
        f"{search['cost']:,} block passes times texts, {search['share']:.3f} of the {search['full_cost']:,} that all "
        f"plans on all {search['n_texts']:,} texts of train and validation cost (budget {search['budget']:g}).\n",
        "## Chosen on validation\n",
        choice_table(scores),
        f"\n{reading_note(scores)}",
        "\n## Trials\n",
        markdown_table(trials, ("trial", "plans", "rows per split, at most", "texts", "cost", "best", "score")),
        "\n## Every score, on the validation rows of its trial\n",
        markdown_table(_every_score(search), ("plan", *(f"{trial['n_rows']:,} rows" for trial in search["trials"]))),
        "\n![What was tried](search.png)",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _best(scores: dict[str, float]) -> tuple[str, str]:
    text = max(scores, key=lambda plan: scores[plan])
    return f"`{text}`", f"{100 * scores[text]:.1f}"


def _every_score(search: dict[str, Any]) -> list[tuple[str, ...]]:
    plans = dict.fromkeys(text for trial in search["trials"] for text in trial["scores"])
    return [
        (
            f"`{text}`",
            *(f"{100 * trial['scores'][text]:.1f}" if text in trial["scores"] else "-" for trial in search["trials"]),
        )
        for text in plans
    ]
