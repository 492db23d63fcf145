"""Choosing among the scores of plans: no plan is chosen by a score that is no number."""

import math

import pytest

from extract.errors import ConfigError, HeadError
from extract.masks.mask_plan import parse_plan
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import SeedSummary
from probes.report.scores import PlanScores
from probes.runs.plan_runs import causal_row, describe_choices, finite_score, require_unread_test
from probes.runs.run_config import RunConfig


def row(plan: str, score: float, test: float = 0.5) -> PlanScores:
    summary = {"test": {"accuracy": SeedSummary(test, 0.0, test, test, 0.95, (test,))}}
    head = HeadResult(
        "probe", "mean", ("block_01",), {}, "accuracy", "validation", score, {"layer": "block_01", "C": 1.0}, summary
    )
    return PlanScores(parse_plan(plan), "c.h5", {}, {"probe": head})


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_refused(score: float) -> None:
    assert finite_score(row("causal", 0.5), "probe") == 0.5
    message = f"the score of head 'probe' under plan 'backward:2' is {score}, by which no plan can be chosen"
    with pytest.raises(HeadError, match=message):
        finite_score(row("backward:2", score), "probe")


def test_what_choosing_gained_is_told_over_causal() -> None:
    rows = [row("backward:1", 0.5, test=0.25), row("causal", 0.5, test=0.5), row("backward:2", 0.75, test=0.75)]
    assert causal_row(rows) is rows[1]
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
