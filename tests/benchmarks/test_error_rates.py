"""Error rates on simulated data: those of the methods are nominal, those of methods that are wrong are not."""

import csv
import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.error_rates import ERRORS, FOLDER, OUT, SHARING, csv_tables, error_rates, layer_rates, seed_rates
from probes.metrics.significance import best_set
from tests.pages import ROOT

QUICK: dict[str, Any] = {"n_simulations": 150, "n_resamples": 200, "n_permutations": 0}


def is_nominal(found: dict[str, float], *, slack: float = 0.0) -> bool:
    """Whether a rate is within three standard errors, of a rate that is nominal, and a slack."""
    n = found["n_simulations"]
    error = float(np.sqrt(found["nominal"] * (1 - found["nominal"]) / n))
    return abs(found["rate"] - found["nominal"]) <= 3 * error + slack


def counted(found: dict[str, Any], n: int) -> dict[str, dict[str, float]]:
    return {key: {**each, "n_simulations": n} for key, each in found.items() if isinstance(each, dict)}


def test_rows_of_a_group_are_not_drawn_apart() -> None:
    """Single rows of groups make intervals too narrow and find what is not there; whole groups do not."""
    right = counted(error_rates("accuracy", 40, 20, **QUICK), 150)
    wrong = counted(error_rates("accuracy", 40, 20, ignores_units=True, **QUICK), 150)
    assert is_nominal(right["coverage"], slack=0.02)
    assert not is_nominal(wrong["coverage"], slack=0.02)
    assert wrong["coverage"]["rate"] < right["coverage"]["rate"]


def best_by_pairs(
    values: NDArray[np.float64],
    resampled: NDArray[np.float64],
    _: NDArray[np.float64],
    *,
    confidence: float,
    is_correlation: bool,
) -> NDArray[np.int64]:
    """A set that asks of each layer alone whether the best one is better: no maximum over layers is taken."""
    del is_correlation
    gaps = resampled[int(np.argmax(values))] - resampled
    return np.flatnonzero(np.quantile(gaps, 1 - confidence, axis=1) <= 0)


def best_unpaired(
    values: NDArray[np.float64],
    resampled: NDArray[np.float64],
    _: NDArray[np.float64],
    *,
    confidence: float,
    is_correlation: bool,
) -> NDArray[np.int64]:
    """The set of unpaired resamples, each layer's in an order of its own."""
    rng = np.random.default_rng(0)
    return best_set(
        values,
        np.stack([rng.permutation(row) for row in resampled]),
        confidence=confidence,
        is_correlation=is_correlation,
    )


def test_a_set_without_the_maximum_loses_the_best_layer() -> None:
    how: dict[str, Any] = {"n_simulations": 100, "n_resamples": 300}
    right = counted(layer_rates("all layers tied", 12, 60, errors="independent", **how), 100)
    wrong = counted(layer_rates("all layers tied", 12, 60, errors="independent", choose=best_by_pairs, **how), 100)
    assert is_nominal(right["best_is_in_set"], slack=0.02)
    assert wrong["best_is_in_set"]["rate"] < 0.85


def test_an_unpaired_set_tells_nothing_apart() -> None:
    how: dict[str, Any] = {"n_simulations": 30, "n_resamples": 300}
    right = layer_rates("one best by a little", 12, 200, **how)
    wrong = layer_rates("one best by a little", 12, 200, choose=best_unpaired, **how)
    assert wrong["mean_size_of_set"] > 1.3 * right["mean_size_of_set"]


@pytest.mark.long
def test_rows_alone_miss_what_seeds_add() -> None:
    found = counted(seed_rates(3, 200, n_simulations=200), 200)
    assert is_nominal(found["rows_and_seeds"], slack=0.02)
    assert found["rows_alone"]["rate"] < 0.88


def test_the_recorded_rates_say_how_they_were_measured() -> None:
    found = json.loads(OUT.read_text(encoding="utf-8"))
    assert found["n_simulations"] >= 1000
    assert found["versions"]["scipy"]
    rates = [each for part in ("scores", "seeds", "units", "sharing") for row in found[part] for each in row.values()]
    known = [each for each in rates if isinstance(each, dict)]
    assert len(known) > 90
    for each in known:
        assert each["error"] == pytest.approx(np.sqrt(each["rate"] * (1 - each["rate"]) / found["n_simulations"]))


def test_the_tables_of_the_page_are_the_recorded_rates() -> None:
    tables = csv_tables(json.loads(OUT.read_text(encoding="utf-8")))
    page = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    assert sum(len(text.splitlines()) for text in tables.values()) > 40
    for name, text in tables.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text
        assert f":file: tables/{name}" in page


def test_each_hard_case_is_a_column_of_the_page() -> None:
    with (FOLDER / "error_rates_cases.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    layers = [f"12 layers, {errors}" for errors in ERRORS]
    assert sorted(rows[0]) == sorted(["rate", "32 layers, neighbours correlate", *layers, *SHARING])
    first = next(row for row in rows if row["rate"] == "best layer is in the set, 100 rows")
    assert first["12 layers, heavy tails"] == "97.7 ± 0.2"


@pytest.mark.long
@pytest.mark.parametrize(("world", "size"), [("pearson", 1), ("span-f1", 1), ("f1-macro", 1), ("accuracy", 5)])
def test_intervals_cover_and_tests_have_their_size(world: str, size: int) -> None:
    found = counted(error_rates(world, 100, size, n_simulations=300, n_resamples=400, n_permutations=199), 300)
    assert is_nominal(found["coverage"], slack=0.01)
    assert is_nominal(found["bootstrap_test"], slack=0.01)
    assert is_nominal(found["permutation_test"])


@pytest.mark.long
@pytest.mark.parametrize("ladder", ["all layers tied", "one best by a little", "one clear best"])
def test_the_set_has_the_best_layer(ladder: str) -> None:
    found = counted(layer_rates(ladder, 12, 200, n_simulations=300), 300)
    assert found["best_is_in_set"]["rate"] >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 300)
    assert is_nominal(found["joint_intervals"], slack=0.01)
