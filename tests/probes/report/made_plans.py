"""Sweeps and searches made by hand."""

from collections.abc import Sequence
from typing import Any

from extract.masks.mask_plan import parse_plan, plans_over_k_and_k0
from probes.report.scores import Lead, PlanChoice, PlanGain, PlanScores, PlansScores, SearchCost, SearchTrial, SweepCost
from tests.probes.report.made_runs import make_header, make_result

Plans = Sequence[tuple[str, float]]


def make_plans(plans: Plans, **fields: Any) -> PlansScores:
    """Make a sweep of plans with their scores on every split; the last is chosen."""
    rows = tuple(
        PlanScores(
            parse_plan(text),
            "c.h5",
            {},
            {"head": make_result("head", score)},
            {"validation": {"spearman": score / 2, "pearson": 0.9}},
        )
        for text, score in plans
    )
    gain = PlanGain("accuracy", rows[0].plan.text, plans[0][1], plans[-1][1])
    lead = Lead(gain.gain, gain.gain - 0.05, gain.gain + 0.05, 60)
    values: dict[str, Any] = {
        "test_read": rows[-1].plan.text,
        "chosen": {"head": PlanChoice(rows[-1].plan, rows[-1].heads["head"], gain, lead)},
        "cost": SweepCost(5, 20, 0.25),
    }
    header = make_header("classes", {"name": "toy", "is_sample": True}, "search" if "search" in fields else "sweep")
    return PlansScores(header, plans=rows, **{**values, **fields})


WINDOWS = [
    ("causal", 0.5),
    ("nosink-bidirectional@3-4", 0.6),
    ("nosink-bidirectional@5-6", 0.7),
    ("nosink-bidirectional@4-6", 0.65),
    ("backward@6-6", 0.4),
]
OVER_K = [("causal", 0.5), ("backward:1", 0.6), ("backward:2", 0.7), ("bidirectional:1", 0.55)]


def grid(ks: list[int], k0s: list[int]) -> Plans:
    """Make the plans of a grid, each with a score of its own."""
    return [(plan.text, 0.01 * place) for place, plan in enumerate(plans_over_k_and_k0(ks, k0s), start=1)]


def make_search(plans: list[str]) -> SearchCost:
    """Make a search of two trials, the last of the last plan."""
    first = {text: 0.1 * index for index, text in enumerate(plans)}
    trials = (SearchTrial(16, 1600, 30, first), SearchTrial(2000, 4000, 10, {plans[-1]: 0.9}))
    return SearchCost("halving", 0.5, "head", len(plans), 4000, 1040, 2080, 0.5, trials)
