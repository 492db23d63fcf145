"""What cannot be fitted is refused with a sentence that names the value."""

import re
import sys

import pytest
import torch

from extract.errors import HeadError, UnknownNameError
from probes.logistic.estimator import oversample, stratified_folds
from probes.logistic.problem import SolverOptions
from probes.logistic.solver import fit_logistic
from tests.probes.logistic.problems import plant


def test_one_class() -> None:
    latents, _ = plant(1, 10, 3, n_classes=2)
    with pytest.raises(
        HeadError, match=re.escape("holds one class only (code 1, 10 rows); allowed: at least 2 classes")
    ):
        fit_logistic(latents, torch.ones(10, dtype=torch.long), Cs=[1.0])


def test_one_class_in_a_fold() -> None:
    latents, codes = plant(1, 10, 3, n_classes=2)
    folds = torch.stack([torch.ones(10, dtype=torch.bool), codes == 0])
    with pytest.raises(HeadError, match=r"training split of fold 1 holds one class only \(code 0"):
        fit_logistic(latents, codes, Cs=[1.0], weights=folds)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_features_that_are_not_finite(value: float) -> None:
    latents, codes = plant(3, 10, 4, n_classes=2)
    latents[2, 7, 1] = value
    with pytest.raises(HeadError, match=rf"layer 2, row 7 holds {value} in dimension 1; allowed: finite features"):
        fit_logistic((latents[k : k + 1] for k in range(3)), codes, Cs=[1.0])


def test_large_features_whose_sum_overflows_are_finite() -> None:
    latents, codes = plant(1, 10, 4, n_classes=2)
    assert torch.isfinite(fit_logistic(latents * 1e37, codes, Cs=[1.0]).weight).all()


def test_more_classes_than_rows() -> None:
    latents, codes = plant(1, 5, 3, n_classes=4)
    with pytest.raises(HeadError, match="holds 5 rows for 77 classes; allowed: at least as many rows as classes"):
        fit_logistic(latents, codes, Cs=[1.0], n_classes=77)


@pytest.mark.parametrize(("code", "n_classes"), [(-1, 3), (5, 3)])
def test_codes_outside_the_classes(code: int, n_classes: int) -> None:
    latents, codes = plant(1, 10, 3, n_classes=3)
    codes[4] = code
    with pytest.raises(HeadError, match=f"label code {code} is in the training split; allowed: 0 to 2"):
        fit_logistic(latents, codes, Cs=[1.0], n_classes=n_classes)


def test_an_empty_split() -> None:
    with pytest.raises(HeadError, match=r"the training split is empty \(0 rows\)"):
        fit_logistic(torch.zeros(1, 0, 3), torch.zeros(0, dtype=torch.long), Cs=[1.0])


def test_a_fold_without_rows() -> None:
    latents, codes = plant(1, 10, 3, n_classes=2)
    with pytest.raises(HeadError, match=r"the training split of fold 1 is empty"):
        fit_logistic(latents, codes, Cs=[1.0], weights=torch.tensor([[1.0] * 10, [0.0] * 10]))


@pytest.mark.parametrize("C", [0.0, -1.0, float("nan"), float("inf")])
def test_a_c_that_is_not_above_0(C: float) -> None:
    latents, codes = plant(1, 10, 3, n_classes=2)
    with pytest.raises(HeadError, match=f"C is {C}; allowed: finite numbers above 0"):
        fit_logistic(latents, codes, Cs=[1.0, C])


def test_no_c_and_no_layer() -> None:
    latents, codes = plant(1, 10, 3, n_classes=2)
    with pytest.raises(HeadError, match="the list of C is empty"):
        fit_logistic(latents, codes, Cs=[])
    with pytest.raises(HeadError, match="there are 0 layers"):
        fit_logistic(latents[:0], codes, Cs=[1.0])


def test_rows_and_labels_of_different_number() -> None:
    latents, codes = plant(1, 10, 3, n_classes=2)
    with pytest.raises(HeadError, match="latents have 10 rows for 9 labels"):
        fit_logistic(latents, codes[:9], Cs=[1.0])


def test_weights_of_wrong_shape_or_sign() -> None:
    latents, codes = plant(1, 10, 3, n_classes=2)
    with pytest.raises(HeadError, match=re.escape("weights have shape (10,); allowed: (folds, 10)")):
        fit_logistic(latents, codes, Cs=[1.0], weights=torch.ones(10))
    weights = torch.ones(2, 10)
    weights[1, 3] = -2.0
    with pytest.raises(HeadError, match=r"the weight of row 3 in fold 1 is -2\.0"):
        fit_logistic(latents, codes, Cs=[1.0], weights=weights)


def test_a_class_with_a_single_sample_in_folds() -> None:
    with pytest.raises(HeadError, match="class 1 has a single row for 5 folds; allowed: at least one row per fold"):
        stratified_folds(torch.tensor([0] * 9 + [1]), n_folds=5, seed=0)
    with pytest.raises(HeadError, match="class 1 has 3 rows for 5 folds"):
        stratified_folds(torch.tensor([0] * 9 + [1] * 3), n_folds=5, seed=0)
    with pytest.raises(HeadError, match="n_folds is 1; allowed: 2 or more"):
        stratified_folds(torch.tensor([0, 1]), n_folds=1, seed=0)


@pytest.mark.parametrize(("name", "value"), [("tol", 0.0), ("gap_tol", float("nan")), ("max_iterations", 0)])
def test_options_outside_their_range(name: str, value: float) -> None:
    arguments: dict[str, float] = {name: value}
    with pytest.raises(HeadError, match=f"{name} is {value}; allowed: "):
        SolverOptions(**arguments)  # type: ignore[arg-type]


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="unknown precision 'float23': did you mean 'float32'"):
        SolverOptions(precision="float23")
    latents, codes = plant(1, 10, 3, n_classes=2)
    with pytest.raises(UnknownNameError, match="unknown oversampling mode 'times-4': did you mean 'times-5'"):
        oversample(latents, codes, mode="times-4", seed=0)


def test_oversampling_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    latents, codes = plant(1, 30, 3, n_classes=2)
    monkeypatch.setitem(sys.modules, "imblearn.over_sampling", None)
    with pytest.raises(HeadError, match=r"oversampling needs imbalanced-learn.*Run: pip install imbalanced-learn"):
        oversample(latents, codes, mode="balance", seed=0)


def test_oversampling_of_features_that_are_not_finite() -> None:
    latents, codes = plant(2, 10, 3, n_classes=2)
    latents[1, 4, 0] = float("nan")
    with pytest.raises(HeadError, match="layer 1, row 4 holds nan in dimension 0"):
        oversample(latents, codes, mode="balance", seed=0)
