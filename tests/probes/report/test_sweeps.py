"""Sweeps and searches: what is drawn over what, and what their summaries say."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from extract.masks.mask_plan import parse_plan, plans_over_k_and_k0
from probes.report.document import EVERY_PLAN, KindReport, plan_score_label, plan_scores, plans_document, summary_text
from probes.report.kind_reports import REPORTS
from probes.report.scores import PlanChoice, PlanGain, PlanScores, PlansScores, SearchCost, SearchTrial, SweepCost
from probes.report.write import write_plans
from tests.probes.report.made_runs import make_header, make_result, make_summary

Plans = Sequence[tuple[str, float]]


def sweep_summary(scores: PlansScores, report: KindReport, figures: Mapping[str, Sequence[str]]) -> str:
    return summary_text(plans_document(scores, report), figures)


def make_plans(plans: Plans, **fields: Any) -> PlansScores:
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
    values: dict[str, Any] = {
        "test_read": rows[-1].plan.text,
        "chosen": {"head": PlanChoice(rows[-1].plan, rows[-1].heads["head"], gain)},
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
    return [(plan.text, 0.01 * place) for place, plan in enumerate(plans_over_k_and_k0(ks, k0s), start=1)]


def test_pairs_are_drawn_by_their_zero_shot_score() -> None:
    scores = make_plans(OVER_K)
    assert list(plan_scores(scores, REPORTS["pairs"]).values()) == pytest.approx([25, 30, 35, 27.5])
    assert plan_score_label(scores, REPORTS["pairs"]) == ("Zero-shot, final norm", "Spearman")
    assert plan_score_label(scores, REPORTS["classes"]) == ("head, best layer", "accuracy")
    assert "| plan | zero-shot Spearman, final norm | head accuracy |" in sweep_summary(scores, REPORTS["pairs"], {})
    assert "| `backward:2` | 35.0 | 70.0 |" in sweep_summary(scores, REPORTS["pairs"], {})


def test_a_sweep_is_summarised() -> None:
    text = sweep_summary(make_plans(OVER_K), REPORTS["classes"], {"A sweep": ("sweep.svg", "sweep.pdf")})
    assert "its scores are no benchmark result" in text
    assert "4 plans, 5 block passes per batch instead of 20 (0.25)." in text
    assert "| head | plan | validation accuracy | test accuracy | 95 % interval | test, chosen - causal |" in text
    assert "| head | `bidirectional:1`, final_norm | 55.0 | 55.0 | 45.0 to 65.0 | +5.0 |" in text
    assert "Test was read for bidirectional:1, after everything was chosen." in text
    assert "| plan | head accuracy |\n" in text
    assert "| `backward:1` | 60.0 |\n" in text
    assert "![A sweep](sweep.svg) [pdf](sweep.pdf)\n" in text
    every = sweep_summary(make_plans(OVER_K, test_read=EVERY_PLAN), REPORTS["classes"], {"A sweep": ("sweep.pdf",)})
    assert "A sweep: [pdf](sweep.pdf)\n" in every
    assert "a plan picked by its test score is a choice on test" in every
    assert "| plan | head accuracy | test, head accuracy |" in every
    assert "| `backward:1` | 60.0 | 60.0 |" in every


def test_a_choice_without_test_has_dashes() -> None:
    scores = make_plans(OVER_K)
    result = make_result("head", 0.7, summary={"validation": {"accuracy": make_summary(0.7)}})
    chosen = {"head": PlanChoice(parse_plan("backward:2"), result)}
    text = sweep_summary(replace(scores, chosen=chosen, test_read="no plan"), REPORTS["classes"], {})
    assert "| head | `backward:2`, final_norm | 70.0 | - | - | - |" in text


def make_search(plans: list[str]) -> SearchCost:
    first = {text: 0.1 * index for index, text in enumerate(plans)}
    trials = (SearchTrial(16, 1600, 30, first), SearchTrial(2000, 4000, 10, {plans[-1]: 0.9}))
    return SearchCost("halving", 0.5, "head", len(plans), 4000, 1040, 2080, 0.5, trials)


@pytest.mark.parametrize(
    "plans", [["backward:1", "backward:2", "causal"], ["bidirectional:1", "nosink-bidirectional:1+bidirectional:1"]]
)
def test_a_search_is_reported(plans: list[str], tmp_path: Path) -> None:
    scores = make_plans([(plans[-1], 0.9)], search=make_search(plans), cost=None)
    write_plans(tmp_path, scores, REPORTS["classes"])
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert f"Strategy `halving` over {len(plans)} plans, by `head`: 1,040 block passes times texts, 0.500 of" in text
    assert f"| 1 | {len(plans)} | 16 | 1,600 | 0.014 | `{plans[-1]}` | {10 * (len(plans) - 1):.1f} |" in text
    assert f"| 2 | 1 | 2,000 | 4,000 | 0.005 | `{plans[-1]}` | 90.0 |" in text
    assert f"| `{plans[0]}` | 0.0 | - |" in text
    assert_drawn(tmp_path / "search.png")


def test_a_sweep_writes_its_folder(tmp_path: Path) -> None:
    write_plans(tmp_path, make_plans(WINDOWS), REPORTS["classes"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "scores.json", "summary.md", "sweep.png"]
    assert_drawn(tmp_path / "sweep.png")


def assert_drawn(path: Path) -> None:
    with Image.open(path) as image:
        assert np.ptp(np.asarray(image.convert("L"))) > 100
