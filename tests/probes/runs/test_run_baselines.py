"""Baselines of a run: scores are those of the heads' own scorers, leads those of a paired comparison."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import ConfigError
from probes.heads.baselines import Baseline
from probes.metrics.bootstrap import Resampling
from probes.report.document import over_baseline
from probes.report.scores import read_run, without_nan
from probes.runs.results import results
from probes.runs.run import run, score_baselines
from probes.runs.run_config import RunConfig
from probes.runs.sweep_points import refuse_random_decoder
from tests.probes.report.made_runs import MadeRun, make_run


@pytest.fixture(scope="module", params=["pairs", "classes", "numbers", "words"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    return make_run(request.param, tmp_path_factory.mktemp(request.param))


def test_a_head_leads_itself_by_nothing_and_scores_as_a_baseline_what_it_scores(made: MadeRun) -> None:
    for name, result in made.scores.heads.items():
        fits = {split: rows[0] for split, rows in result.scored.items()} or result.predictions
        one = replace(result, scored={}, predictions=fits)
        [scores] = score_baselines(
            {"itself": Baseline("", fits)}, {name: one}, task=made.task, report=made.kind.report, n_resamples=100
        ).values()
        for split, by_metric in scores.summary.items():
            if len(result.summary[split][result.metric].values) == 1:
                expected = result.summary[split][result.metric]
                score = by_metric[result.metric]
                assert score.mean == pytest.approx(expected.mean, abs=1e-6)
                assert (score.low, score.high) == pytest.approx((expected.low, expected.high), abs=0.05)
        lead = scores.leads[name]
        reach = (lead.high - lead.low) / 2
        assert reach == pytest.approx(0, abs=1e-6)


def test_every_head_is_compared_with_every_baseline_and_it_is_read_back(made: MadeRun) -> None:
    assert made.scores.baselines
    for scores in made.scores.baselines.values():
        assert set(scores.leads) == set(made.scores.heads)
        for name, lead in scores.leads.items():
            result = made.scores.heads[name]
            score = scores.summary[result.reported_split][result.metric].mean
            assert lead.value == pytest.approx(result.mean(result.reported_split) - score)
            assert lead.low <= lead.value <= lead.high
    again = read_run(without_nan(made.scores.to_dict()))
    assert again.baselines == made.scores.baselines
    plain = {key: value for key, value in made.scores.to_dict().items() if key != "baselines"}
    assert read_run(without_nan(plain)).baselines == {}


def test_the_lead_of_classes_is_that_of_their_scorer(tmp_path: object, made: MadeRun) -> None:
    if made.kind.name != "classes":
        pytest.skip("for classes")
    del tmp_path
    result = made.scores.heads["logistic-probe"]
    majority = made.kind.baselines(made.task)["majority"].predictions["test"]
    rows = np.stack([majority, result.predictions["test"]])
    draws = made.task.scorer("test", result.metric).resample(rows, Resampling(100))  # type: ignore[attr-defined]
    lead = made.scores.baselines["majority"].leads["logistic-probe"]
    reach = np.quantile(np.abs(draws[1] - draws[0] - lead.value), 0.95)
    assert lead.high - lead.value == pytest.approx(reach)


def test_the_sentence_names_the_baseline_with_the_highest_score_on_the_reported_rows(made: MadeRun) -> None:
    head = next(iter(made.scores.heads.values()))
    reported = {name: scores.summary[head.reported_split] for name, scores in made.scores.baselines.items()}
    best = max(reported, key=lambda name: np.nan_to_num(reported[name][head.metric].mean, nan=-9))
    assert f"the best baseline, `{best}`" in over_baseline(head, made.scores.baselines)
    scores = made.scores.baselines[best]
    lead = replace(scores.leads[head.name], value=-0.2, low=-0.3, high=-0.1, n_units=100)
    assert "**worse**" in over_baseline(head, {best: replace(scores, leads={head.name: lead})})
    tied = replace(lead, high=0.1)
    assert "tied" in over_baseline(head, {best: replace(scores, leads={head.name: tied})})
    assert "too few rows (5, fewer than 30)" in over_baseline(
        head, {best: replace(scores, leads={head.name: replace(tied, n_units=5)})}
    )
    assert over_baseline(head, {}) == ""
    nan = replace(lead, value=float("nan"), low=float("nan"), high=float("nan"))
    without = over_baseline(head, {best: replace(scores, leads={head.name: nan})})
    assert without.endswith("as that one has no score.")
    assert "tied" not in without


def test_the_best_head_on_random_weights_is_a_baseline_on_request(decoder_folder: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "decoder": {"name": str(decoder_folder), "device": "cpu"},
        "task": {"name": "number-sample"},
        "heads": {"ridge-probe": {"alphas": [1.0]}},
        "bootstrap": 100,
        "figures": ["svg"],
        "caches": str(tmp_path / "caches"),
        "runs": str(tmp_path / "runs"),
    }
    made = run({**settings, "random_decoder": True})
    scores = made.record.baselines["random-weights"]
    assert scores.note.startswith("ridge-probe on ")
    assert "@random-0, " in scores.note
    alone = run({**settings, "decoder": {"name": f"{decoder_folder}@random-0", "device": "cpu"}, "name": "random"})
    assert scores.summary["test"]["pearson"].mean == pytest.approx(alone.record.heads["ridge-probe"].mean("test"))
    assert "random-weights" not in alone.record.baselines
    frame = results(made.folder)
    assert set(frame[frame["record"] == "baseline"]["curve"]) == {"bag-of-words", "random-weights"}
    with pytest.raises(ConfigError, match="@random-0' is merged, adapted or random already"):
        RunConfig(**{**settings, "decoder": {"name": "gpt2@random-0"}, "random_decoder": True})
    with pytest.raises(ConfigError, match="a sweep has no such baseline"):
        refuse_random_decoder(RunConfig(**{**settings, "random_decoder": True}))
