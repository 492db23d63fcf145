"""What a report asks, and the two sentences that answer: what is best on validation, and what it is worth on test."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probes.heads.result import HeadResult
from probes.metrics.bootstrap import Resampling
from probes.metrics.paired import Difference, difference, paired_scores
from probes.report.scores import Header, PlanChoice, PlansScores, RunScores
from probes.report.table import describe_point, interval, metric_label, percent, predicted_texts, spread

Bare = Callable[[Mapping[str, HeadResult], HeadResult, str], str]
"""Gives, for the heads of a run, the best of them and a split, the score of what needs no head, in words."""
FEW_UNITS = 30
"""With fewer rows (or sentences, groups ...) than this, no difference is called one."""


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split, one for each prediction."""

    inputs: Mapping[str, Sequence[Any]]
    """Columns of predictions.csv: `row`, and the inputs."""
    gold: Sequence[Any]
    """Numbers, or names."""
    units: Sequence[Any] | None = None
    """The unit of each row that intervals draw whole; None where they draw rows, or the sentences of words."""


def best_result(results: Iterable[HeadResult]) -> HeadResult:
    """Return the result that scored best where it was chosen; one without a score comes last, of equals the first."""
    return max(results, key=_ranked)


def _ranked(result: HeadResult) -> float:
    return -math.inf if math.isnan(result.selection_score) else result.selection_score


def run_question(header: Header) -> str:
    """Say what a run asks."""
    return f"How well can {header.task['name']} be read from the layers of {header.decoder['name']}, which stay frozen?"


def plans_question(scores: PlansScores) -> str:
    """Say what a sweep or a search asks."""
    n, header = scores.search.get("n_plans", len(scores.plans)), scores.header
    return f"Under which of {n:,} mask plans is {header.decoder['name']} the best encoder for {header.task['name']}?"


def run_lead(scores: RunScores, bare: Bare, rows: Mapping[str, SplitRows]) -> str:
    """Name the best head of a run with its margin, and its score on test with the interval and what needs no head.

    The margin has the paired interval of the rows that the choice was made on.
    """
    best = best_result(scores.heads.values())
    others = [result for result in scores.heads.values() if result is not best and result.metric == best.metric]
    margin = ""
    if others:
        second = best_result(others)
        gap = _difference(best, second, rows.get(_split(best)), Resampling(scores.header.n_resamples))
        margin = f", {_margin(f'the next head, `{second.name}`', _score(second), gap)}"
    return (
        f"The {'best ' * bool(others)}head is `{best.name}`{_where(best)} under the plan `{scores.cache['plan']}`: "
        f"{_chosen_score(best)}{margin}. {_worth(best, bare(scores.heads, best, best.reported_split))}"
    )


def sweep_lead(scores: PlansScores) -> str:
    """Name the best plan of a sweep with its margin over the next plan, and its score on test with the gain."""
    name, choice = _best_choice(scores)
    others = {row.plan: row.heads[name] for row in scores.plans if row.plan != choice.plan}
    margin = ""
    if others:
        plan = max(others, key=lambda plan: _ranked(others[plan]))
        margin = f"; the next plan, `{plan.text}`, has {percent(_score(others[plan]))}"
    return (
        f"The best of {len(scores.plans):,} plans is `{choice.plan.text}`, with the head `{name}`"
        f"{_where(choice.result)}: {_chosen_score(choice.result)}{margin}. {_worth(choice.result, _gain(choice))}"
    )


def search_lead(scores: PlansScores) -> str:
    """Name the plan that a search found and what it cost, and its score on test with the gain."""
    (name, choice), search = _best_choice(scores), scores.search
    return (
        f"Of {search['n_plans']:,} plans the search found `{choice.plan.text}` at {search['share']:.2f} of the cost of "
        f"scoring all, with the head `{name}`{_where(choice.result)}: {_chosen_score(choice.result)}. "
        f"{_worth(choice.result, _gain(choice))}"
    )


def _best_choice(scores: PlansScores) -> tuple[str, PlanChoice]:
    return max(scores.chosen.items(), key=lambda item: _ranked(item[1].result))


def _gain(choice: PlanChoice) -> str:
    """Compare with the plan that one would take without choosing."""
    gain = choice.gain
    if gain is None:
        return ""
    if gain.over == choice.plan.text:
        return "and is the plan one would take without choosing"
    return f"where the plan `{gain.over}` has {percent(gain.default)}"


def _difference(
    best: HeadResult, second: HeadResult, rows: SplitRows | None, resampling: Resampling
) -> Difference | None:
    """Return what one head has over another, with the interval of the rows that both predicted; None without them.

    The interval is that of the predictions (of several seeds, their mean), around the difference of the scores.
    """
    split = _split(best)
    if rows is None or _split(second) != split or any(split not in head.predictions for head in (best, second)):
        return None
    predicted = [
        predicted_texts(head, split) if split in head.names else head.predictions[split] for head in (best, second)
    ]
    sentences = [str(row) for row in rows.inputs["row"]]
    units = [str(unit) for unit in rows.units] if rows.units is not None else sentences
    values, resampled = paired_scores(
        predicted, rows.gold, metric=best.metric, units=units, sentences=sentences, resampling=resampling
    )
    gap = difference(values, resampled, 0, 1, n_units=len(set(units)))
    value, reach = _score(best) - _score(second), gap.high - gap.value
    return Difference(value, value - reach, value + reach, gap.n_units)


def _margin(other: str, score: float, gap: Difference | None) -> str:
    """Compare with another head: whether the difference is one, its interval and the number of rows."""
    if gap is None:
        return f"{other}, has {percent(score)}"
    signed = [percent(value, sign="+") for value in (gap.value, gap.low, gap.high)]
    if gap.n_units < FEW_UNITS:
        return f"too few rows to tell it from {other} ({percent(score)}; n = {gap.n_units:,})"
    reach = f"{signed[1]} to {signed[2]}, n = {gap.n_units:,}"
    if gap.low > 0:
        return f"{signed[0]} ({reach}) over {other} ({percent(score)})"
    return f"statistically tied with {other} ({percent(score)}; difference {signed[0]}, {reach})"


def _where(result: HeadResult) -> str:
    point = describe_point(result.chosen) or ("all layers" if len(result.layers) > 1 else result.layers[0])
    return f" ({point}, pooling {result.pooling})"


def _split(result: HeadResult) -> str:
    """Name what the choice was made on; validation where there was nothing to choose."""
    where = result.selection.partition(" (")[0]
    return "validation" if where == "nothing to choose" else where


def _score(result: HeadResult) -> float:
    """Return the score where the choice was made; folds of train have no summary."""
    return result.mean(_split(result)) if _split(result) in result.summary else result.selection_score


def _chosen_score(result: HeadResult) -> str:
    summary = result.summary.get(_split(result), {}).get(result.metric)
    score = spread(summary) if summary else percent(result.selection_score)
    return f"{metric_label(result.metric)} {score} on {_split(result)}"


def _worth(result: HeadResult, compared: str) -> str:
    split, found = result.reported_split, result.summary[result.reported_split][result.metric]
    if math.isnan(found.mean):
        return f"On {split} it has no score."
    ends = "" if math.isnan(found.low) else f" (95 % interval {interval(found)})"
    parts = [f"On {split} it has {spread(found)}{ends}", compared]
    return ", ".join(filter(None, [*parts, "which is optimistic" * result.is_optimistic])) + "."
