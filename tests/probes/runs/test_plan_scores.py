"""Choosing among the scores of plans: no plan is chosen by a score that is no number."""

import math

import pytest

from extract.errors import ConfigError, HeadError
from extract.masks.mask_plan import parse_plan
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import SeedSummary
from probes.report.scores import PlanScores
from probes.runs.plan_runs import best_row, causal_row, default_row, describe_choices, require_unread_test
from probes.runs.run_config import RunConfig


def row(plan: str, score: float, test: float = 0.5) -> PlanScores:
    summary = {"test": {"accuracy": SeedSummary(test, 0.0, test, test, 0.95, (test,))}}
    head = HeadResult(
        "probe", "mean", ("block_01",), {}, "accuracy", "validation", score, {"layer": "block_01", "C": 1.0}, summary
    )
    return PlanScores(parse_plan(plan), "c.h5", {}, {"probe": head})


def test_the_first_of_the_best_is_chosen() -> None:
    rows = [row("causal", 0.5), row("backward:1", 0.75), row("backward:2", 0.75, test=1.0)]
    assert best_row(rows, "probe") is rows[1]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_score_that_is_no_number_is_refused_wherever_it_stands(score: float, place: int) -> None:
    scores = [0.5, 0.75, 0.25]
    scores[place] = score
    rows = [row(f"backward:{k}", each) for k, each in enumerate(scores, start=1)]
    message = f"the score of head 'probe' under plan 'backward:{place + 1}' is {score}, by which no plan can be chosen"
    with pytest.raises(HeadError, match=message):
        best_row(rows, "probe")


def test_what_choosing_gained_is_told_over_causal_or_the_first_plan() -> None:
    rows = [row("backward:1", 0.5, test=0.25), row("causal", 0.5, test=0.5), row("backward:2", 0.75, test=0.75)]
    assert causal_row(rows) is default_row(rows) is rows[1]
    assert default_row([rows[0], rows[2]]) is rows[0]
    assert causal_row([rows[0], rows[2]]) is None
    choice = describe_choices({"probe": rows[2]}, rows[1])["probe"]
    told = choice.to_dict()["gain"]
    assert told == {"metric": "accuracy", "over": "causal", "default": 0.5, "chosen": 0.75, "gain": 0.25}
    assert describe_choices({"probe": rows[2]}, None)["probe"].gain is None


def test_a_protocol_that_chooses_epochs_on_test_leaves_no_test_unread() -> None:
    require_unread_test(RunConfig(name="x"))
    with pytest.raises(
        ConfigError, match="protocol 'freeze-released' chooses epochs on test, which is read for chosen"
    ):
        require_unread_test(RunConfig(name="x", protocol="freeze-released"))
