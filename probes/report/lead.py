"""The two sentences that a summary opens with: what is best on validation, and what it is worth on test."""

import math
from collections.abc import Callable, Iterable, Mapping

from probes.heads.result import HeadResult
from probes.report.scores import PlanChoice, PlansScores, RunScores
from probes.report.table import describe_point, interval, metric_label, over, percent, spread

Bare = Callable[[Mapping[str, HeadResult], HeadResult, str], str]
"""Compares, for the heads of a run, the best of them and a split, with what needs no head."""


def best_result(results: Iterable[HeadResult]) -> HeadResult:
    """Return the result that scored best where it was chosen; one without a score comes last, of equals the first."""
    return max(results, key=_ranked)


def _ranked(result: HeadResult) -> float:
    return -math.inf if math.isnan(result.selection_score) else result.selection_score


def run_lead(scores: RunScores, bare: Bare) -> str:
    """Name the best head of a run with its margin, and its score on test with the interval and what needs no head."""
    best = best_result(scores.heads.values())
    others = [each for each in scores.heads.values() if each is not best and each.metric == best.metric]
    margin = ""
    if others and math.isfinite(_ranked(best)):
        second = best_result(others)
        margin = f", {over(best.selection_score, f'the next head, `{second.name}`', second.selection_score)}"
    what = "The best head" if others else "The head"
    return (
        f"{what} is `{best.name}`{_where(best)} under the plan `{scores.cache['plan']}`: {_chosen_score(best)}"
        f"{margin}. {_worth(best, bare(scores.heads, best, best.reported_split))}"
    )


def sweep_lead(scores: PlansScores) -> str:
    """Name the best plan of a sweep with its margin over the next plan, and its score on test with the gain."""
    name, choice = _best_choice(scores)
    others = [row.heads[name] for row in scores.plans if row.plan != choice.plan]
    margin = ""
    if others:
        second = best_result(others)
        plan = next(row.plan.text for row in scores.plans if row.heads[name] is second)
        margin = f", {over(choice.result.selection_score, f'the next plan, `{plan}`', second.selection_score)}"
    return (
        f"The best of {len(scores.plans):,} plans is `{choice.plan.text}`, with the head `{name}`"
        f"{_where(choice.result)}: {_chosen_score(choice.result)}{margin}. {_worth(choice.result, _gain(choice))}"
    )


def search_lead(scores: PlansScores) -> str:
    """Name the plan that a search found and what it cost, and its score on test with the gain."""
    name, choice = _best_choice(scores)
    search = scores.search
    return (
        f"Of {search['n_plans']:,} plans the search found `{choice.plan.text}` at {search['share']:.2f} of the cost of "
        f"scoring all, with the head `{name}`{_where(choice.result)}: {_chosen_score(choice.result)}. "
        f"{_worth(choice.result, _gain(choice))}"
    )


def _best_choice(scores: PlansScores) -> tuple[str, PlanChoice]:
    best = best_result(choice.result for choice in scores.chosen.values())
    return next((name, choice) for name, choice in scores.chosen.items() if choice.result is best)


def _gain(choice: PlanChoice) -> str:
    gain = choice.gain
    if gain is None:
        return ""
    same = "which is the plan one would take without choosing"
    return same if gain.over == choice.plan.text else over(gain.chosen, f"the plan `{gain.over}`", gain.default)


def _where(result: HeadResult) -> str:
    point = describe_point(result.chosen) or ("all layers" if len(result.layers) > 1 else result.layers[0])
    return f" ({point}, pooling {result.pooling})"


def _chosen_score(result: HeadResult) -> str:
    where = result.selection.partition(" (")[0]
    where = "validation" if where == "nothing to choose" else where
    found = result.summary.get(where, {}).get(result.metric)
    score = spread(found) if found else percent(result.selection_score)
    return f"{metric_label(result.metric)} {score} on {where}"


def _worth(result: HeadResult, compared: str) -> str:
    found = result.summary[result.reported_split].get(result.metric)
    text = f"On {result.reported_split} it has {spread(found)} (95 % interval {interval(found)})"
    return f"{text}{f', {compared}' * bool(compared)}{', which is optimistic' * result.is_optimistic}."
