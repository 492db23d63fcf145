"""Choosing among the scores of plans: no plan is chosen by a score that is no number."""

import math

import pytest

from extract.errors import ConfigError, HeadError
from extract.masks.mask_plan import parse_plan
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import SeedSummary
from probes.report.scores import PlanScores
from probes.runs.run_config import RunConfig
from probes.runs.sweep_points import finite_score, require_unread_test


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


def test_a_protocol_that_chooses_epochs_on_test_leaves_no_test_unread() -> None:
    require_unread_test(RunConfig(name="x"))
    with pytest.raises(
        ConfigError, match="protocol 'freeze-released' chooses epochs on test, which is read for chosen"
    ):
        require_unread_test(RunConfig(name="x", protocol="freeze-released"))
