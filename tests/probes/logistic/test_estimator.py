"""The estimator is one of scikit-learn's own kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from probes.logistic.estimator import LogisticProbe
from tests.probes.logistic.problems import plant


@parametrize_with_checks([LogisticProbe(), LogisticProbe(standardise=False)])  # type: ignore[untyped-decorator]
def test_scikit_learns_checks(estimator: LogisticProbe, check: Callable[[Any], None]) -> None:
    check(estimator)


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
