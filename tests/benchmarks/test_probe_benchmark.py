"""The benchmark of logistic probes rejects a worse solution, and reports why it did not run."""

from pathlib import Path

import pytest

from benchmarks.agreement import ProbeRows, describe_agreement
from benchmarks.probes import CS, compare_probes, why_skipped
from probes.logistic.problem import SolverOptions
from tests.probes.logistic.problems import plant


def rows(n_classes: int = 3) -> ProbeRows:
    latents, codes = plant(2, 90, 5, n_classes=n_classes)
    return ProbeRows(latents[:, :60], codes[:60], latents[:, 60:])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_both_sides_solve_the_same_problems(n_classes: int) -> None:
    options = SolverOptions(tol=1e-9, gap_tol=1e-11, precision="float64", max_iterations=2000)
    comparison, facts = compare_probes(rows(n_classes), repeats=1, options=options)
    assert comparison.bar == ">= 4"
    assert len(comparison.ratios) == 1
    assert facts["n_problems"] == 2 * len(CS)
    assert -1e-2 < facts["worst_excess"] <= 1e-8
    assert facts["lowest_equal"] > 0.9
    assert facts["share_converged"] == 1.0
    assert facts["tight"]["share_equal"] == 1.0
    assert facts["tight"]["coefficient_difference"] < 1e-5 * facts["tight"]["largest_coefficient"]
    assert facts["tight"]["is_converged"]
    assert f"of {facts['n_problems']} problems" in describe_agreement(facts)


def test_a_worse_objective_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"an objective is higher than scikit-learn's by \d"):
        compare_probes(rows(), repeats=1, options=SolverOptions(max_iterations=1))


def test_without_data_there_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ICECORE_DATA", raising=False)
    assert why_skipped() == "ICECORE_DATA names no folder that holds banking77/"
    (tmp_path / "banking77").mkdir()
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    assert why_skipped() == ""
