"""Residuals of a few rows, worked out by hand."""

import math

import numpy as np
import pytest
from scipy.stats import pearsonr

from probes.data.pair_task import PairTask
from probes.heads.result import Residuals, residuals_of

TEXTS = [
    ("A cat sat.", "The cat sat!"),  # 3 + 3 words, {cat, sat} of {a, the, cat, sat}
    ("Ice", "ICE"),  # the same word
    ("one two three four", "five"),
    ("...", "?!"),  # no words at all
    ("a a a b", "b a"),  # sets, not counts
    ('He said "no, 3.5".', "He said\nyes"),
    ("über", "uber"),
    ("x", "x y z w"),
]
WORDS = [6, 2, 5, 0, 6, 8, 2, 5]  # "3.5" is two
OVERLAP = [2 / 4, 1.0, 0.0, 0.0, 1.0, 2 / 6, 0.0, 1 / 4]
GOLD = [3.0, 5.0, 0.0, 1.0, 4.0, 2.0, 2.5, 1.5]
PREDICTED = [2.5, 5.0, 1.0, 1.0, 2.0, 4.0, 2.0, 1.25]
RESIDUALS = [-0.5, 0.0, 1.0, 0.0, -2.0, 2.0, -0.5, -0.25]


@pytest.fixture
def task() -> PairTask:
    """Eight pairs, twice."""
    rows: dict[str, list[str] | list[float]] = {
        "sentence1": [a for a, _ in TEXTS],
        "sentence2": [b for _, b in TEXTS],
        "score": GOLD,
    }
    return PairTask("eight", PairTask.hold({"validation": rows, "test": rows}), (0.0, 5.0), "made up")


@pytest.fixture
def found(task: PairTask) -> Residuals:
    """What is wrong with the predictions above."""
    return residuals_of(task, "test", np.array(PREDICTED))


def test_residuals_are_predicted_minus_gold(found: Residuals) -> None:
    np.testing.assert_allclose(found.values, RESIDUALS)
    assert found.texts == tuple(TEXTS)


def test_length_and_overlap_are_of_words_without_case(found: Residuals) -> None:
    np.testing.assert_array_equal(found.n_words, WORDS)
    np.testing.assert_allclose(found.overlap, OVERLAP)


def test_the_largest_come_first_and_equal_ones_in_order(found: Residuals) -> None:
    assert [row["row"] for row in found.largest(4)] == [4, 5, 2, 0]
    assert found.largest(1) == [{"row": 4, "gold": 4.0, "predicted": 2.0, "sentence1": "a a a b", "sentence2": "b a"}]
    assert [row["row"] for row in found.largest()] == [4, 5, 2, 0, 6, 7, 1, 3]


def test_the_figures_of_a_report(found: Residuals) -> None:
    values = found.to_dict()
    size = np.abs(RESIDUALS)
    assert values["n"] == 8
    assert values["bias"] == pytest.approx(-0.25 / 8)
    assert values["mean_absolute"] == pytest.approx(6.25 / 8)
    assert values["root_mean_square"] == pytest.approx(math.sqrt((0.25 + 1 + 4 + 4 + 0.25 + 0.0625) / 8))
    for name, side in (("n_words", WORDS), ("overlap", OVERLAP), ("gold", GOLD)):
        assert values["size_against"][name] == pytest.approx(pearsonr(size, side)[0], abs=1e-6)
    assert values["prediction_against_overlap"] == pytest.approx(pearsonr(PREDICTED, OVERLAP)[0], abs=1e-6)
    assert values["gold_against_overlap"] == pytest.approx(pearsonr(GOLD, OVERLAP)[0], abs=1e-6)


def test_quarters_are_scored_apart(found: Residuals) -> None:
    """By length: 0 2 2 | 5 5 | 6 6 | 8, rows of equal length together."""
    quarters = found.by_quarter(found.n_words)
    assert [(part["low"], part["high"], part["n"]) for part in quarters] == [(0, 2, 3), (5, 5, 2), (6, 6, 2), (8, 8, 1)]
    assert quarters[0]["pearson"] == pytest.approx(pearsonr([1.0, 5.0, 2.0], [1.0, 5.0, 2.5])[0], abs=1e-6)
    assert quarters[1]["pearson"] == pytest.approx(1.0)
    assert quarters[2]["pearson"] == pytest.approx(-1.0)
    assert math.isnan(quarters[3]["pearson"])
    assert [part["mean_absolute"] for part in quarters] == pytest.approx([0.5 / 3, 0.625, 1.25, 2.0])
    assert found.to_dict()["quarters"]["n_words"][:3] == quarters[:3]
    [whole] = found.by_quarter(np.ones(8))
    assert whole["n"] == 8
    assert whole["mean_absolute"] == pytest.approx(6.25 / 8)
    assert whole["pearson"] == pytest.approx(pearsonr(PREDICTED, GOLD)[0], abs=1e-6)


def test_a_correlation_with_a_constant_is_nan(task: PairTask) -> None:
    values = residuals_of(task, "test", np.array(GOLD) + 0.5).to_dict()
    assert all(math.isnan(value) for value in values["size_against"].values())
    assert (values["bias"], values["mean_absolute"], values["root_mean_square"]) == (0.5, 0.5, 0.5)
    assert math.isnan(residuals_of(task, "test", np.full(8, 2.0)).to_dict()["prediction_against_overlap"])
