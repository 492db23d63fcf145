"""Figure and summary of a search for a mask plan."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from extract.masks.grid import k_and_k0
from extract.masks.plan import parse_plan
from probes.report import style
from probes.report.scores import PlansScores
from probes.report.sweeps import plans_text
from probes.report.table import NOTHING, markdown_table, percent


def draw_search(figure: Figure, scores: PlansScores) -> None:
    """Draw what a search tried: over the (k, k0) grid, or the scores of every trial where the plans are no such grid.

    A larger dot was scored on more rows; its colour is the rank of the plan in its last trial, because scores on
    different rows cannot be compared.
    """
    search = scores.search
    (axes,) = style.panels(figure)
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
    style.count_whole(axes, "both" if len(points) == len(plans) else "x")
    axes.legend(fontsize=8, frameon=False)


def search_summary(scores: PlansScores) -> str:
    """Write the summary of a search: the plan that was found, what the search cost, and every trial."""
    search = scores.search
    trials = [
        (str(number), str(len(trial["scores"])), f"{trial['n_rows']:,}", f"{trial['n_texts']:,}",
         f"{trial['cost'] / search['full_cost']:.3f}", *_best(trial["scores"]))
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
    return plans_text(scores, what, tables, "\n![What was tried](search.png)")


def _best(scores: Mapping[str, Any]) -> tuple[str, str]:
    text = max(scores, key=lambda plan: scores[plan])
    return f"`{text}`", percent(scores[text])
