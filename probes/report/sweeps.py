"""Summaries of sweeps over mask plans, and of searches for one."""

from collections.abc import Iterator, Mapping
from typing import Any

from extract.masks.plan import CAUSAL, MaskPlan
from probes.report.blocks import Block, Document, Heading, Table
from probes.report.document import KindReport, machine_line, opening
from probes.report.lead import plans_question, search_lead, sweep_lead
from probes.report.scores import PlanChoice, PlanScores, PlansScores
from probes.report.table import NOTHING, describe_point, interval, metric_label, percent

EVERY_PLAN = "every plan"
"""What `test_read` is where all plans were scored on test."""


def points_of(scores: PlansScores, report: KindReport) -> dict[MaskPlan, float]:
    """Return the validation score of every plan, times 100: zero-shot where the kind has one, else the first head's."""
    return {row.plan: 100 * _validation(row, report) for row in scores.plans}


def _validation(row: PlanScores, report: KindReport) -> float:
    if report.zero_shot:
        return row.zero_shot["validation"][report.zero_shot]
    return next(iter(row.heads.values())).selection_score


def points_label(scores: PlansScores, report: KindReport) -> tuple[str, str]:
    """Name what these scores are of, and their metric."""
    name, choice = next(iter(scores.chosen.items()))
    if report.zero_shot:
        return "Zero-shot, final norm", metric_label(report.zero_shot)
    return f"{name}, best layer", metric_label(choice.result.metric)


def plans_document(scores: PlansScores, report: KindReport) -> Document:
    """Write the report of a sweep or a search: what was found, what was done, the chosen plans, every score."""
    what, *tables = _search(scores.search) if scores.search else _sweep(scores, report)
    answer = search_lead(scores) if scores.search else sweep_lead(scores)
    blocks = [*opening(scores.header), what, *_choices(scores), *tables]
    blocks += [Heading("What was used"), machine_line(scores.header)]
    return Document(scores.header.name, plans_question(scores), answer, blocks)


def _sweep(scores: PlansScores, report: KindReport) -> Iterator[Block]:
    """Say what a sweep cost, and give every plan's validation scores."""
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
    yield (
        f"{len(scores.plans)} plans, {cost['block_passes']} block passes per batch instead of {cost['apart']} "
        f"({cost['ratio']:.2f})."
    )
    yield Heading("Every plan, on validation")
    yield Table(columns, rows)


def _search(search: Mapping[str, Any]) -> Iterator[Block]:
    """Say what a search cost, and give every trial."""
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
    yield (
        f"Strategy `{search['strategy']}` over {search['n_plans']} plans, by `{search['by']}`: "
        f"{search['cost']:,} block passes times texts, {search['share']:.3f} of the {search['full_cost']:,} that all "
        f"plans on all {search['n_texts']:,} texts of train and validation cost (budget {search['budget']:g})."
    )
    yield Heading("Trials")
    yield Table(("trial", "plans", "rows per split, at most", "texts", "cost", "best", "score"), trials)
    yield Heading("Every score, on the validation rows of its trial")
    yield Table(("plan", *(f"{trial['n_rows']:,} rows" for trial in search["trials"])), every)


def _best_plan(scores: Mapping[str, Any]) -> tuple[str, str]:
    text = max(scores, key=lambda plan: scores[plan])
    return f"`{text}`", percent(scores[text])


def _choices(scores: PlansScores) -> Iterator[Block]:
    """Write the plan chosen for every head, what choosing it gained, and the plans that test was read for."""
    gains = [choice.gain for choice in scores.chosen.values() if choice.gain]
    metrics = list(dict.fromkeys(metric_label(choice.result.metric) for choice in scores.chosen.values()))
    metric = metrics[0] if len(metrics) == 1 else "score"
    columns = ("head", "plan", f"validation {metric}", f"test {metric}", "95 % interval",
               f"test, chosen - {gains[0].over if gains else CAUSAL}")  # fmt: skip
    yield Heading("Chosen on validation")
    yield Table(columns, [_choice(name, choice) for name, choice in scores.chosen.items()])
    if scores.test_read == EVERY_PLAN:
        yield (
            "Test was read for **every plan**, as was asked for. The plan is chosen on validation all the same; a "
            "plan picked by its test score is a choice on test."
        )
    else:
        yield f"Test was read for {scores.test_read}, after everything was chosen."


def _choice(name: str, choice: PlanChoice) -> tuple[str, ...]:
    result, point = choice.result, describe_point(choice.result.chosen)
    test = result.summary.get("test", {}).get(result.metric)
    gain = percent(choice.gain.gain, sign="+") if choice.gain else NOTHING
    plan = f"`{choice.plan.text}`" + (f", {point}" if point else "")
    return name, plan, percent(result.mean("validation")), percent(result.mean("test")), interval(test), gain
