"""The two sentences that summaries open with; those of whole runs are compared with scores.json where runs are."""

import re
from dataclasses import replace

import pytest

from probes.metrics.bootstrap import Resampling, difference, paired_scores
from probes.report.document import FEW_UNITS, best_result, run_lead, search_lead, sweep_lead
from probes.report.scores import PlanChoice, PlanGain
from tests.probes.report.made_runs import NAN, MadeRun, make_result, make_summary
from tests.probes.report.test_sweeps import OVER_K, make_plans, make_search


def lead(made: MadeRun) -> str:
    return run_lead(made.scores, made.kind.report.bare, made.kind.report.rows(made.task))


def test_every_kind_has_two_sentences(made: MadeRun) -> None:
    first, second = re.split(r"\. (?=On )", lead(made))
    best = best_result(made.scores.heads.values())
    assert f"head is `{best.name}` (" in first
    assert "under the plan `causal`: " in first
    assert f" {100 * best.mean('validation'):.1f}" in first
    assert ("the next head, `" in first) is (len(made.scores.heads) > 1)
    found = best.summary["test"][best.metric]
    interval = f"(95 % interval {100 * found.low:.1f} to {100 * found.high:.1f})"
    assert re.match(rf"On test it has {100 * found.mean:.1f}( ± [\d.]+)? {re.escape(interval)}, ", second)


@pytest.mark.parametrize("kind", ["raw", "standardised"])
def test_pairs_stand_beside_the_cosine_of_the_top_layer_of_the_same_kind(pairs: MadeRun, kind: str) -> None:
    cosine = pairs.scores.heads["layer-cosine"]
    made = pairs.with_head("layer-cosine", chosen={**cosine.chosen, "kind": kind}, selection_score=2.0)
    [score] = [
        curve.values[-1]
        for curve in cosine.curves
        if (curve.name, curve.split, curve.metric) == (kind, "test", "pearson")
    ]
    assert f", where the {kind} cosine of the top layer has {100 * score:.1f}." in lead(made)
    constant = tuple(replace(curve, values=(NAN,) * len(curve.values)) for curve in cosine.curves)
    assert lead(made.with_head("layer-cosine", curves=constant)).endswith(").")


@pytest.mark.parametrize(("is_standardised", "kind"), [(True, "standardised"), (False, "raw")])
def test_a_trained_head_stands_beside_latents_prepared_as_its_own(
    pairs: MadeRun, is_standardised: bool, kind: str
) -> None:
    options = {"standardises_latents": is_standardised}
    made = pairs.with_head("cosine-mlp", options=options, selection_score=2.0)
    assert f", where the {kind} cosine of the top layer has " in lead(made)


def test_the_margin_over_the_next_head_has_a_paired_interval(pairs: MadeRun) -> None:
    """By the library's own paired bootstrap, called by hand, around the difference of the scores."""
    heads = pairs.scores.heads
    best = best_result(heads.values())
    [other] = [result for result in heads.values() if result is not best]
    gold = list(pairs.task.splits["validation"]["score"])
    predicted = [result.predictions["validation"] for result in (best, other)]
    units = [str(k) for k in range(len(gold))]
    values, resampled = paired_scores(predicted, gold, metric="pearson", units=units, resampling=Resampling(100))
    gap = difference(values, resampled, 0, 1, n_units=len(gold))
    value, reach = best.mean("validation") - other.mean("validation"), gap.high - gap.value
    ends = f"{100 * (value - reach):+.1f} to {100 * (value + reach):+.1f}, n = {len(gold)}"
    text, score = lead(pairs), f"{100 * other.mean('validation'):.1f}"
    if value > reach:
        assert f", {100 * value:+.1f} ({ends}) over the next head, `{other.name}` ({score})." in text
    else:
        assert (
            f", statistically tied with the next head, `{other.name}` ({score}; difference {100 * value:+.1f}, {ends})."
            in text
        )


def test_a_clear_margin_a_tie_and_too_few_rows_are_said_as_such(classes: MadeRun) -> None:
    best = best_result(classes.scores.heads.values())
    [name] = [name for name in classes.scores.heads if name != best.name]
    gold, names = classes.task.labels("validation"), tuple(classes.task.class_names)  # type: ignore[attr-defined]
    right = classes.with_head(best.name, predictions={"validation": gold}, names={"validation": names})
    zero = {split: {best.metric: make_summary(0.0)} for split in best.summary}
    wrong = right.with_head(
        name, predictions={"validation": 1 - gold}, names={"validation": names}, summary=zero, selection_score=0.0
    )
    assert re.search(rf", \+[\d.]+ \(.*, n = {len(gold)}\) over the next head, `{name}`", lead(wrong))
    same = right.with_head(
        name, predictions={"validation": gold}, names={"validation": names}, summary=best.summary, selection_score=0.0
    )
    assert re.search(rf", statistically tied with the next head, `{name}` \(.*difference \+0\.0, ", lead(same))
    few = {
        split: replace(rows, units=[str(k % (FEW_UNITS - 1)) for k in range(len(rows.gold))])
        for split, rows in wrong.kind.report.rows(wrong.task).items()
    }
    text = run_lead(wrong.scores, wrong.kind.report.bare, few)
    assert re.search(rf", too few rows to tell it from the next head, `{name}` \([\d.]+; n = {FEW_UNITS - 1}\)", text)
    assert f", the next head, `{name}`, has " in run_lead(wrong.scores, wrong.kind.report.bare, {})


def test_a_head_without_test_or_with_folds_is_told_as_it_was_chosen(numbers: MadeRun) -> None:
    probe = numbers.scores.heads["ridge-probe"]
    kept = {"validation": probe.summary["validation"]}
    rmse = {"rmse": {"validation": {"probe": 0.5, "mean_of_train": 1.25}}}
    text = lead(numbers.with_head("ridge-probe", summary=kept, extras=rmse))
    assert text.endswith("with an RMSE of 0.500 where always predicting the mean has 1.250.")
    assert ". On validation it has " in text
    folds = numbers.with_head("ridge-probe", selection="5-fold cross-validation on train", selection_score=0.625)
    assert ": Pearson 62.5 on 5-fold cross-validation on train. On test" in lead(folds)


def test_an_optimistic_head_is_marked(classes: MadeRun) -> None:
    best = best_result(classes.scores.heads.values())
    assert lead(classes.with_head(best.name, optimistic_because="x")).endswith(", which is optimistic.")


def test_what_has_no_score_or_interval_is_told_so() -> None:
    plans = make_plans(OVER_K)
    for summary, end in ((make_summary(NAN), " no score."), (replace(make_summary(0.5), low=NAN), " 50.0.")):
        result = make_result(summary={"validation": {"accuracy": make_summary(0.5)}, "test": {"accuracy": summary}})
        chosen = {"head": PlanChoice(plans.plans[0].plan, result)}
        assert sweep_lead(replace(plans, chosen=chosen)).endswith(f"On test it has{end}")


def test_a_head_without_a_score_is_the_last_choice() -> None:
    assert best_result([make_result("a", NAN), make_result("b", -0.5), make_result("c", -0.5)]).name == "b"


def test_a_sweep_names_its_plan_the_next_one_and_the_gain() -> None:
    plans = make_plans([("causal", 0.5), ("backward:1", 0.6), ("backward:2", 0.75)])
    assert sweep_lead(plans) == (
        "The best of 3 plans is `backward:2`, with the head `head` (final_norm, pooling mean): accuracy 75.0 on "
        "validation; the next plan, `backward:1`, has 60.0. On test it has 75.0 (95 % interval 65.0 to 85.0), "
        "where the plan `causal` has 50.0."
    )
    untouched = PlanChoice(plans.plans[0].plan, make_result("head", 0.9), PlanGain("accuracy", "causal", 0.9, 0.9))
    text = sweep_lead(replace(plans, chosen={"head": untouched}))
    assert text.endswith("), and is the plan one would take without choosing.")


@pytest.mark.parametrize("score", [0.75, 0.5])
def test_a_search_names_what_it_found_and_what_it_cost(score: float) -> None:
    plans = make_plans([("causal", score)], search=make_search(["causal", "backward:1"]), cost=None)
    assert plans.search
    assert search_lead(plans, plans.search).startswith(
        "Of 2 plans the search found `causal` at 0.50 of the cost of scoring all, with the head `head` (final_norm, "
        f"pooling mean): accuracy {100 * score:.1f} on validation. On test it has {100 * score:.1f} (95 % interval "
    )


def test_the_best_head_of_a_sweep_opens_its_summary() -> None:
    plans = make_plans(OVER_K)
    rows = tuple(replace(row, heads={**row.heads, "other": make_result("other", 0.9)}) for row in plans.plans)
    other = PlanChoice(rows[1].plan, make_result("other", 0.9, summary={"validation": {"accuracy": make_summary(0.9)}}))
    text = sweep_lead(replace(plans, plans=rows, chosen={**plans.chosen, "other": other}))
    assert text.startswith("The best of 4 plans is `backward:1`, with the head `other` (final_norm, pooling mean): ")
    assert text.endswith(". On validation it has 90.0 (95 % interval 80.0 to 100.0).")
