import numpy as np
import pytest

from extract.errors import TaskError
from probes.metrics.bootstrap import Resampling, correlation_scorer
from probes.metrics.significance import best_set, joint_intervals


def _draws(n_systems: int, *, n: int = 2000, shared: float = 0.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return shared * rng.normal(size=n) + rng.normal(size=(n_systems, n))


def test_one_that_stands_out_is_alone_in_the_set() -> None:
    values = np.array([0.0, 0.1, 9.0, 0.2])
    assert best_set(values, values[:, None] + _draws(4)).tolist() == [2]


def test_a_lead_within_the_noise_tells_nothing() -> None:
    values = np.array([1.0, 1.5, 1.2, -20.0])
    assert best_set(values, values[:, None] + _draws(4)).tolist() == [0, 1, 2]


def test_pairing_counts_what_all_resamples_share_for_nothing() -> None:
    values = np.array([0.0, 6.0])
    assert best_set(values, values[:, None] + _draws(2, shared=50.0)).tolist() == [1]
    rng = np.random.default_rng(3)
    unpaired = values[:, None] + 50 * rng.normal(size=(2, 2000))
    assert best_set(values, unpaired).tolist() == [0, 1]


def test_two_alike_in_every_resample_are_both_in() -> None:
    draws = _draws(2)
    same = np.stack([draws[0], draws[0], draws[1] - 50])
    assert best_set(np.array([0.0, 0.0, -50.0]), same).tolist() == [0, 1]


def test_a_constant_lead_is_told_apart_however_small() -> None:
    draws = _draws(1)[0]
    assert best_set(np.array([0.0, 1e-3]), np.stack([draws, draws + 1e-3])).tolist() == [1]


def test_what_has_no_score_is_left_out() -> None:
    draws = np.stack([_draws(1)[0], np.full(2000, np.nan)])
    assert best_set(np.array([0.0, np.nan]), draws).tolist() == [0]
    with pytest.raises(TaskError, match="no system has a score"):
        best_set(np.full(2, np.nan), np.full((2, 10), np.nan))


def test_the_set_holds_the_best_at_its_rate() -> None:
    """Ten systems that are equally good, in the ideal case: each is left out in 3 % of the draws."""
    rng = np.random.default_rng(1)
    out = 0
    for _ in range(400):
        values = rng.normal(size=10)
        out += 0 not in best_set(values, values[:, None] + rng.normal(size=(10, 300)))
    assert 0.01 < out / 400 < 0.06


def test_heavy_tails_cost_the_best_no_place() -> None:
    """Ten layers tied, errors of Student's t with three degrees of freedom: resampled spreads alone lost 13 %."""
    members = np.zeros((2, 10))
    for number in range(150):
        rng, how = np.random.default_rng(number), Resampling(200, seed=number)
        gold = rng.normal(size=80)
        predicted = 0.7 * gold + np.sqrt(0.51 / 3) * rng.standard_t(3, size=(10, 80))
        scorer = correlation_scorer(gold, metric="pearson")
        values, resampled = scorer.score(predicted), scorer.resample(predicted, how)
        for row, errors in zip(members, (None, scorer.lead_errors(predicted[None], how)), strict=True):
            row[best_set(values, resampled, errors, is_correlation=errors is not None)] += 1
    plain, studentised = members.mean(1) / 150
    assert plain < 0.92
    assert studentised > 0.945


def test_a_system_without_a_score_does_not_disturb_the_errors_of_others() -> None:
    rng, how = np.random.default_rng(0), Resampling(100)
    gold = rng.normal(size=50)
    predicted = np.stack([gold + rng.normal(size=50), np.full(50, 0.5), gold + 0.1 * rng.normal(size=50)])
    scorer = correlation_scorer(gold, metric="pearson")
    found = best_set(
        scorer.score(predicted),
        scorer.resample(predicted, how),
        scorer.lead_errors(predicted[None], how),
        is_correlation=True,
    )
    assert found.tolist() == [2]


def test_joint_intervals_hold_all_at_once() -> None:
    rng = np.random.default_rng(2)
    held = alone = 0
    for _ in range(300):
        values = rng.normal(size=8)
        draws = values[:, None] + rng.normal(size=(8, 300))
        low, high = joint_intervals(values, draws)
        held += bool(((low <= 0) & (high >= 0)).all())
        ends = np.quantile(draws, [0.025, 0.975], axis=1)
        alone += bool(((ends[0] <= 0) & (ends[1] >= 0)).all())
    assert 0.91 < held / 300 < 0.985
    assert alone / 300 < 0.8  # an interval for each by itself does not
