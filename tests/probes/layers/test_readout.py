import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from extract.errors import HeadError
from probes.latents.text_latents import channels_of
from probes.layers.study import shapley_values
from probes.layers.views import (
    LAYER_ROWS,
    PENALTIES,
    Readout,
    learn_mix,
    measure_information,
    pick_layers,
    predict_sets,
    reduce_layer,
)
from tests.probes.heads.words.planted_words import make_task, plant
from tests.probes.layers.planted_rows import planted_rows


def test_a_readout_is_ridge_regression_of_standardised_features() -> None:
    rows = planted_rows([0.0, 1.0, 0.3])
    readout = Readout.of(rows, components=6)
    features = [reduce_layer(rows.train.features(k), rows.scored.features(k), 6) for k in (1, 2)]
    train, scored = (np.concatenate(side, axis=1) for side in zip(*features, strict=True))
    ridge = Ridge(alpha=0.01 * len(rows.train.gold)).fit(train, rows.train.gold)
    assert np.allclose(readout.outputs([1, 2], 0.01)[:, 0], ridge.predict(scored), atol=1e-4)


def test_classes_are_read_by_discriminant_analysis_so_that_rare_ones_are_found() -> None:
    rows = planted_rows([1.2, 1.0], n=2000, n_classes=3, shares=(0.9, 0.06, 0.04))
    readout = Readout.of(rows, components=6)
    features = [reduce_layer(rows.train.features(k), rows.scored.features(k), 6) for k in (0, 1)]
    train, scored = (np.concatenate(side, axis=1) for side in zip(*features, strict=True))
    oracle = LinearDiscriminantAnalysis().fit(train, rows.train.gold)
    found = readout.outputs([0, 1], 1e-9)
    assert np.allclose(found - found[:, :1], _log_odds(oracle, scored), atol=0.05)
    assert (found.argmax(1) == oracle.predict(scored)).mean() > 0.999
    indicators = Ridge(alpha=1e-6).fit(train, np.eye(3)[rows.train.gold]).predict(scored)
    assert set(indicators.argmax(1)) == {0}  # why regression on indicators alone will not do
    assert set(found.argmax(1)) == {0, 1, 2}


def _log_odds(oracle: LinearDiscriminantAnalysis, scored: np.ndarray) -> np.ndarray:
    scores = oracle.predict_log_proba(scored)
    return np.asarray(scores - scores[:, :1])


def test_the_error_is_that_of_rows_left_out() -> None:
    rows = planted_rows([0.5, 1.0])
    readout = Readout.of(rows, components=6)
    noise = readout.error([0, 1], 1e-4)
    assert 0.3 < noise < 0.7
    assert readout.error([1], 1e-4) > noise
    assert readout.error([0, 1], 1e4) == pytest.approx(1.0, abs=0.01)  # shrunk to the mean
    assert readout.penalty([0, 1]) == min(PENALTIES, key=lambda each: readout.error([0, 1], each))


def test_growing_sets_are_those_fitted_one_by_one() -> None:
    readout = Readout.of(planted_rows([0.2, 1.0, 0.0, 0.5]), components=4)
    for order in ([0, 1, 2, 3], [3, 1]):
        grown = readout.growing(order)
        for k, outputs in enumerate(grown):
            assert np.allclose(outputs, readout.outputs(order[: k + 1]), atol=1e-8)


def test_what_layers_add_together_is_the_readout_of_all() -> None:
    readout = Readout.of(planted_rows([0.2, 1.0, 0.5], n_classes=3), components=4)
    joint = readout.together()
    every = np.ones((1, 3), bool)
    assert np.array_equal(joint(every)[0], readout.rows.decide(readout.outputs([0, 1, 2])[None]))
    none = joint(~every)[0, 0]
    assert len(set(none.tolist())) == 1  # the most frequent class


def test_two_planted_layers_alike_share_their_value_and_neither_is_missed() -> None:
    rows = planted_rows([0.0, 1.5, 1.5, 0.0], copies=(1, 2))
    readout = Readout.of(rows, components=6)
    together, scorer = readout.together(), rows.scorer
    found = shapley_values(lambda masks: np.nan_to_num(scorer.score(together(masks)[0])), 4)
    assert found.values[1] == pytest.approx(found.values[2], abs=1e-6)
    assert found.values[1] > 0.3
    assert abs(found.values[0]) < 0.1
    sets = predict_sets(readout, best=1)
    whole = scorer.score(sets.whole)[0]
    without = whole - scorer.score(sets.without)
    assert abs(without[1]) < 0.02
    assert abs(without[2]) < 0.02
    beside = scorer.score(sets.beside) - scorer.score(sets.best)
    assert abs(beside[2]) < 0.02  # the copy adds nothing
    only_one = Readout.of(planted_rows([0.0, 1.5, 0.0]), components=6)
    lost = scorer.score(predict_sets(only_one, best=1).whole) - scorer.score(predict_sets(only_one, best=1).without)
    assert lost.argmax() == 1
    assert lost[1] > 0.5


def test_picks_begin_with_the_planted_layers() -> None:
    readout = Readout.of(planted_rows([0.0, 1.0, 0.0, 0.7, 0.0]), components=6)
    assert pick_layers(readout.error, readout.penalty, 5)[:2] == (1, 3)


def test_latents_that_are_not_finite_are_refused() -> None:
    broken = np.full((10, 3), np.nan, np.float32)
    with pytest.raises(HeadError, match="NaN or infinite"):
        reduce_layer(broken, broken, 2)


@pytest.mark.parametrize("n_classes", [0, 3])
def test_bits_are_found_where_they_are_planted(n_classes: int) -> None:
    rows = planted_rows([0.0, 2.0, 1.5, 2.0], n_classes=n_classes, copies=(1, 3))
    found = measure_information(rows, 1, components=6)
    gained = (found.prior - found.alone).mean(1)
    assert gained.argmax() in (1, 3)
    assert gained[1] > 0.5
    assert abs(gained[0]) < 0.12
    new = (found.alone[1] - found.beside).mean(1)
    assert new[1] == 0
    assert abs(new[3]) < 0.05  # a copy tells nothing new
    assert new[2] > 0.1  # its own noise is another
    if n_classes:
        assert found.code.argmin() in (1, 3)
        assert found.code[0] > found.code[2] > found.code[1] - 1
        assert found.uniform == pytest.approx(300 * np.log2(3))
        assert found.code[0] == pytest.approx(found.uniform, rel=0.15)  # nothing to learn, nothing saved


@pytest.mark.parametrize("n_classes", [0, 3])
def test_a_layer_that_is_alike_in_every_row_tells_nothing(n_classes: int) -> None:
    """As the first layer of the pooling `last`, under a template that ends every text alike."""
    rows = planted_rows([0.0, 2.0, 1.5], n_classes=n_classes, constant=(0,))
    measured = measure_information(rows, 1, components=4)
    assert abs((measured.prior - measured.alone)[0].mean()) < 0.03
    assert abs((measured.alone[1] - measured.beside[0]).mean()) < 0.01
    readout = Readout.of(rows, components=4)
    assert pick_layers(readout.error, readout.penalty, 3)[0] == 1
    assert np.isfinite(readout.outputs([0, 1])).all()


def test_information_of_a_linear_gaussian_is_its_closed_form() -> None:
    """Of y and x = y + noise of variance 1 each, half of the variance stays: half a bit."""
    found = measure_information(planted_rows([1.0], n=6000, width=1), 0, components=1)
    assert (found.prior - found.alone).mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("n_classes", [0, 3])
def test_a_mix_weighs_the_planted_layer_most(n_classes: int) -> None:
    weights = learn_mix(planted_rows([0.0, 2.0, 0.0], n_classes=n_classes), seeds=(0, 1))
    assert np.allclose(weights.sum(1), 1, atol=1e-6)
    assert (weights.argmax(1) == 1).all()
    assert weights[:, 1].min() > 0.5


def test_words_of_a_document_are_one_unit_of_bits() -> None:
    task = make_task(n_documents=12, metric="accuracy")
    cache = plant(task)
    rows = LAYER_ROWS["words"](cache, task, channels_of(cache, "mean"), "test", "accuracy", 1000)
    n_words = [len(words) for words in task.splits["test"]["words"]]
    assert rows.scorer.unit == "documents"
    assert rows.scored.units.tolist() == np.repeat(np.arange(30) % 12, n_words).tolist()
