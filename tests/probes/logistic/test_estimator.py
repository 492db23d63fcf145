"""The estimator is one of scikit-learn's own kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from probes.logistic.estimator import LogisticProbe
from tests.probes.logistic.problems import plant


@parametrize_with_checks([LogisticProbe()])  # type: ignore[untyped-decorator]
def test_scikit_learns_checks(estimator: LogisticProbe, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.long
@parametrize_with_checks([LogisticProbe(standardise=False)])  # type: ignore[untyped-decorator]
def test_scikit_learns_checks_of_raw_latents(estimator: LogisticProbe, check: Callable[[Any], None]) -> None:
    check(estimator)


WEIGHTED = (
    "check_sample_weights_pandas_series",
    "check_sample_weights_not_an_array",
    "check_sample_weights_list",
    "check_sample_weights_shape",
    "check_sample_weights_not_overwritten",
    "check_classifiers_one_label_sample_weights",
    "check_sample_weight_equivalence_on_dense_data",
)
REFUSED = dict.fromkeys(WEIGHTED, "SMOTE has no weighted form, so sample_weight is refused")


@pytest.mark.long
def test_scikit_learns_checks_of_an_oversampling_probe() -> None:
    """All but those of sample_weight, each of which meets the sentence that refuses it."""
    found = check_estimator(
        LogisticProbe(oversampling="balance", random_state=0), expected_failed_checks=REFUSED, on_skip=None
    )
    by_status = {check["check_name"]: check for check in found if check["status"] == "xfail"}
    assert set(by_status) == set(WEIGHTED)
    for check in by_status.values():
        said = f"{check['exception']} {check['exception'].__cause__} {check['exception'].__context__}"
        assert "sample_weight came with oversampling" in said
    assert sum(check["status"] == "passed" for check in found) > 30


@pytest.mark.parametrize("n_classes", [2, 3])
def test_everything_agrees_with_logistic_regression(n_classes: int) -> None:
    latents, codes = plant(1, 80, 6, n_classes=n_classes)
    x, y = latents[0].double().numpy(), np.array(["no", "yes", "maybe"])[codes.numpy()]
    ours = LogisticProbe(C=0.5, standardise=False, tol=1e-10).fit(x, y)
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=10000).fit(x, y)
    assert ours.classes_.tolist() == theirs.classes_.tolist()
    assert ours.coef_.shape == theirs.coef_.shape
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-5)
    np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), rtol=1e-3, atol=1e-4)
    assert (ours.predict(x) == theirs.predict(x)).all()


def test_too_few_iterations_are_warned_of() -> None:
    latents, codes = plant(1, 80, 6, n_classes=3)
    with pytest.warns(ConvergenceWarning, match=r"after 1 iterations; tol asks for 1\.0e-08"):
        LogisticProbe(max_iter=1).fit(latents[0].numpy(), codes.numpy())


def test_within_100_iterations_ours_converges_where_scikit_learns_solver_stops() -> None:
    """What docs/protocol.md says of look-both-ways: the same limit and the same function, but not the same weights."""
    latents, codes = plant(1, 300, 40, n_classes=5, signal=0.3)
    x, y = latents[0].double().numpy(), codes.numpy()
    with pytest.warns(ConvergenceWarning, match="100"):
        theirs = LogisticRegression(C=1.0, max_iter=100).fit(x, y)
    ours = LogisticProbe(standardise=False, max_iter=100, tol=3e-5).fit(x, y)
    assert ours.n_iter_[0] < 100

    def value(probe: LogisticRegression | LogisticProbe) -> float:
        return float(-np.log(probe.predict_proba(x)[np.arange(300), y]).sum() + (probe.coef_**2).sum() / 2)

    assert value(ours) < value(theirs)


def test_wrong_arguments_are_value_errors() -> None:
    latents, codes = plant(1, 20, 6, n_classes=2)
    x, y = latents[0].numpy(), codes.numpy()
    for arguments, message in (
        ({"C": -1.0}, r"C is -1\.0; allowed: finite numbers above 0"),
        ({"tol": 0.0}, r"tol is 0\.0; allowed"),
        ({"oversampling": "double"}, "unknown oversampling mode 'double'"),
    ):
        with pytest.raises(ValueError, match=message):
            LogisticProbe(**arguments).fit(x, y)
    with pytest.raises(ValueError, match="sample_weight came with oversampling"):
        LogisticProbe(oversampling="balance").fit(x, y, sample_weight=np.ones(20))


def test_oversampling_happens_inside_the_training_fold() -> None:
    latents, codes = plant(1, 120, 6, n_classes=3, signal=2.0)
    probe = LogisticProbe(oversampling="balance", random_state=0, tol=1e-4)
    scores = cross_val_score(clone(probe), latents[0].numpy(), codes.numpy(), cv=3)
    assert scores.mean() > 0.8
    rare = np.r_[np.arange(60), np.flatnonzero(codes.numpy() == 2)]
    fitted = probe.fit(latents[0].numpy()[rare], codes.numpy()[rare])
    assert fitted.coef_.shape == (3, 6)
    assert (fitted.predict(latents[0].numpy()) == codes.numpy()).mean() > 0.8
