"""Fitting token heads: layers that train together end as they would alone, each keeps its own best epoch."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from extract.errors import HeadError, TaskError
from probes.data.word_task import WordTask
from probes.heads.word_fits import (
    TagScorer,
    TokenOptions,
    balanced_weights,
    fit_token_head,
    move_outside,
    predict_ids,
    predict_logits,
    score_probes,
    tag_scorer,
)
from probes.latents.word_latents import Shuffled, Streaming, WordLatents
from probes.metrics.prediction_metrics import NO_PREDICTION
from probes.networks.layerwise_networks import TokenClassifier, TokenHead, TokenMix
from tests.probes.heads.words.planted_words import LAYERS, PLANTED, WIDTH, PlantedCache, make_task, plant

QUICK = TokenOptions(offset="none", decoding="plain", max_epochs=5, epoch_steps=1, learning_rate=1e-2, batch_size=8)
STREAMING = Streaming(chunk_words=40, buffer_mb=1)
PLACE = LAYERS.index(PLANTED)


@pytest.fixture(scope="module")
def task() -> WordTask:
    return make_task()


@pytest.fixture(scope="module")
def cache(task: WordTask) -> PlantedCache:
    return plant(task, noise=1.5, offset=2.0)


def fit(
    cache: PlantedCache,
    task: WordTask,
    options: TokenOptions = QUICK,
    *,
    layers: Any = "all",
    seed: int = 0,
    make: type[TokenHead] = TokenClassifier,
) -> tuple[TokenHead, WordLatents, Any]:
    data = WordLatents(cache, task, layers=layers, streaming=STREAMING)
    head: Any = make(len(data.layers), WIDTH, len(data.classes), seed=seed, **options.head_arguments())
    return head, data, fit_token_head(head, data, options)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        QUICK,
        replace(QUICK, patience=1, learning_rate=3e-2, start="random"),
        replace(QUICK, schedule="linear", class_weights="balanced", dropout=0.4, max_epochs=3),
        replace(QUICK, is_standardised=False, keep="last", steps=37),
        replace(QUICK, epoch_steps=40, patience=1),
    ],
    ids=["best", "patience", "balanced", "steps", "passes"],
)
def test_a_layer_among_others_is_the_layer_alone(cache: PlantedCache, task: WordTask, options: TokenOptions) -> None:
    together, data, found = fit(cache, task, options)
    ids = predict_ids(together, data, "validation")
    for k, layer in enumerate(LAYERS):
        alone, data_alone, found_alone = fit(cache, task, options, layers=layer)
        assert found.best_epochs[k] == found_alone.best_epochs[0]
        assert found.scores[k] == pytest.approx(found_alone.scores[0], abs=1e-9)
        assert torch.allclose(together.weight[k], alone.weight[0], atol=1e-4)
        assert torch.allclose(together.bias[k], alone.bias[0], atol=1e-4)
        assert np.array_equal(ids[k], predict_ids(alone, data_alone, "validation")[0])
    if options.patience == 1 and options.start == "random":
        assert len(set(found.best_epochs)) > 1  # so layers did end at different epochs


@pytest.mark.parametrize("class_weights", ["none", "balanced"])
def test_before_the_first_step_every_class_is_as_likely_as_in_train(
    cache: PlantedCache, task: WordTask, class_weights: str
) -> None:
    options = replace(QUICK, class_weights=class_weights, learning_rate=0.0, max_epochs=1)
    head, data, _ = fit(cache, task, options)
    predicted = head(torch.randn(len(LAYERS), 3, WIDTH)).softmax(-1)
    counts = np.bincount(data.gold("train").ids, minlength=len(data.classes))
    expected = counts / counts.sum() if class_weights == "none" else np.full(len(counts), 1 / len(counts))
    assert np.allclose(predicted.detach().numpy(), expected, atol=1e-6)


@pytest.mark.long
def test_a_bias_of_o_that_hides_spans_is_moved_back_by_validation(task: WordTask) -> None:
    head, data, found = fit(plant(task, noise=0.2), task, replace(QUICK, max_epochs=25, patience=8))
    outside, others = data.classes.index("O"), [k for k, name in enumerate(data.classes) if name != "O"]
    judge = tag_scorer(data, "validation")
    with torch.no_grad():
        head.bias[:, outside] += 4
    hidden = score_probes(head, data, judge, split="validation")[PLACE]
    before = head.bias.detach().clone()
    chosen = move_outside(head, data, judge)
    assert hidden < chosen.scores[PLACE] <= 1
    assert chosen.scores[PLACE] >= found.scores[PLACE] - 0.02
    assert np.allclose((before - head.bias.detach())[:, outside].numpy(), chosen.offsets)
    assert torch.equal(before[:, others], head.bias.detach()[:, others])
    assert np.array_equal(score_probes(head, data, judge, split="validation"), chosen.scores)


def test_fitting_moves_the_bias_of_o_only_where_it_is_told_to(cache: PlantedCache, task: WordTask) -> None:
    plain, data, before = fit(cache, task)
    moved, _, after = fit(cache, task, replace(QUICK, offset="validation"))
    change = (plain.bias - moved.bias).detach()[:, data.classes.index("O")]
    assert before.offsets == (0.0,) * len(LAYERS)
    assert np.allclose(change.numpy(), after.offsets)
    assert all(a >= b for a, b in zip(after.scores, before.scores, strict=True))


@pytest.mark.parametrize("make", [TokenClassifier, pytest.param(TokenMix, marks=pytest.mark.long)])
def test_planted_tags_are_learned(task: WordTask, make: type[TokenHead]) -> None:
    options = replace(QUICK, max_epochs=25, patience=8)
    head, data, found = fit(plant(task, noise=0.2), task, options, make=make)
    if make is TokenClassifier:
        assert found.scores[PLACE] > 0.95
        assert max(score for k, score in enumerate(found.scores) if k != PLACE) < 0.5
    else:
        assert found.scores[0] > 0.9
        assert int(head.weights().argmax()) == PLACE  # type: ignore[operator]
    judge = tag_scorer(data, "test")
    ids = predict_ids(head, data, "test")
    assert max(judge.score(row) for row in ids) > 0.9


@pytest.mark.long
def test_shuffled_tags_score_at_chance() -> None:
    truth = make_task(metric="accuracy")
    shuffled = make_task(metric="accuracy", shuffled=("train",))
    _, data, found = fit(plant(shuffled, truth=truth, noise=0.2), shuffled)
    gold = data.gold("validation").ids
    chance = np.bincount(gold).max() / len(gold)
    assert found.scores[PLACE] < chance + 0.08
    _, _, learned = fit(plant(truth, noise=0.2), truth)
    assert learned.scores[PLACE] > chance + 0.3


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(cache: PlantedCache, task: WordTask) -> None:
    one, _, _ = fit(cache, task)
    again, _, _ = fit(cache, task)
    other, _, _ = fit(cache, task, seed=1)
    assert torch.equal(one.weight, again.weight)
    assert not torch.allclose(one.weight, other.weight, atol=1e-3)


class Scripted(TagScorer):
    """Scores the layers that are predicted as a script says, one after the other."""

    script: Sequence[float]
    calls: int

    def score(self, ids: np.ndarray) -> float:
        del ids
        object.__setattr__(self, "calls", self.calls + 1)
        return self.script[self.calls - 1]


def scripted(monkeypatch: pytest.MonkeyPatch, script: Sequence[Sequence[float | None]]) -> None:
    def make(data: WordLatents, split: str, **how: Any) -> TagScorer:
        real = tag_scorer(data, split, **how)
        judge = Scripted(real.gold, real.offsets, real.words, None, real.metric)
        object.__setattr__(judge, "script", [score for row in script for score in row if score is not None])
        object.__setattr__(judge, "calls", 0)
        return judge

    monkeypatch.setattr("probes.heads.word_fits.tag_scorer", make)


@pytest.mark.long
def test_every_layer_keeps_its_own_best_epoch_and_is_done_by_its_own_patience(
    cache: PlantedCache, task: WordTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = float("nan")
    script: list[list[float | None]] = [
        [0.1, 0.5, 0.3, nan, 0.2],
        [0.2, 0.4, 0.3, 0.1, 0.1],
        [0.3, 0.4, 0.3, 0.2, 0.1],
        [0.2, None, None, 0.1, None],  # layers 1, 2 and 4 were done before, and are not even predicted
        [0.1, None, None, 0.1, None],
        [0.9, 0.9, 0.9, 0.9, 0.9],  # never reached
    ]
    seen: list[torch.Tensor] = []
    shown: list[float] = []

    n_read: list[int] = []

    def report(_: int, values: dict[str, float]) -> None:
        seen.append(head.weight.detach().clone())
        n_read.append(len(data.reading.names))
        shown.append(values["validation_span-f1"])

    scripted(monkeypatch, script)
    options = replace(QUICK, patience=2, max_epochs=8)
    data = WordLatents(cache, task, streaming=STREAMING)
    head = TokenClassifier(len(LAYERS), WIDTH, len(data.classes), learning_rate=1e-2)
    result = fit_token_head(head, data, options, report=report)
    assert result.best_epochs == (3, 1, 1, 3, 1)
    assert result.scores == (0.3, 0.5, 0.3, 0.2, 0.2)
    assert len(result.history) == 5
    told = [[scores[layer] for scores in script[:5]] for layer in range(len(LAYERS))]
    for layer, n_told in enumerate((5, 3, 3, 5, 3)):  # nothing is told of a layer that is done
        scores = [score for score in told[layer] if score is not None]
        assert len(scores) == n_told
        expected = [None if np.isnan(score) else score for score in scores] + [None] * (5 - n_told)
        assert [step["validation_scores"][layer] for step in result.history] == expected
    assert shown == [0.5, 0.4, 0.4, 0.2, 0.1]
    assert [len(weight) for weight in seen] == n_read == [5, 5, 5, 2, 2]  # layers that are done leave the computation
    for layer, epoch in enumerate(result.best_epochs):
        assert torch.equal(head.weight[layer], seen[epoch - 1][layer])


def test_steps_are_counted_and_the_last_weights_kept(cache: PlantedCache, task: WordTask) -> None:
    told: list[dict[str, float]] = []
    data = WordLatents(cache, task, streaming=STREAMING)
    head = TokenClassifier(len(LAYERS), WIDTH, len(data.classes), learning_rate=1e-2)
    options = replace(QUICK, steps=20, keep="last")
    result = fit_token_head(head, data, options, report=lambda _, values: told.append(values))
    assert [set(values) for values in told] == [{"train_loss"}] * len(result.history)
    assert len(result.history) == 2  # fifteen batches an epoch
    assert result.best_epochs == (2,) * len(LAYERS)
    judge = tag_scorer(data, "validation")
    assert list(result.scores) == [judge.score(row) for row in predict_ids(head, data, "validation")]


@pytest.mark.long
def test_an_epoch_of_several_passes_is_several_epochs(cache: PlantedCache, task: WordTask) -> None:
    last = replace(QUICK, keep="last")
    single, _, _ = fit(cache, task, replace(last, max_epochs=6))  # fifteen batches a pass
    triple, _, found = fit(cache, task, replace(last, max_epochs=2, epoch_steps=31))
    assert len(found.history) == 2
    assert torch.equal(single.weight, triple.weight)
    once, _, _ = fit(cache, task, replace(last, max_epochs=6, epoch_steps=15))
    assert torch.equal(single.weight, once.weight)


@pytest.mark.long
def test_patience_is_not_spent_on_a_few_steps(cache: PlantedCache, task: WordTask) -> None:
    options = replace(QUICK, patience=1, max_epochs=20, learning_rate=1e-3, batch_size=64)  # two batches a pass
    _, _, short = fit(cache, task, options)
    _, _, long = fit(cache, task, replace(options, epoch_steps=TokenOptions().epoch_steps))
    assert long.scores[PLACE] > short.scores[PLACE] + 0.15


def test_without_validation_only_the_last_weights_can_be_kept(cache: PlantedCache) -> None:
    blind = make_task(sizes={"train": 120, "test": 30})
    cache = plant(blind)
    _, _, found = fit(cache, blind, replace(QUICK, keep="last", max_epochs=2))
    assert (found.scores, found.best_epochs) == ((), (2,) * len(LAYERS))
    with pytest.raises(TaskError, match="has no split 'validation'"):
        fit(cache, blind)


def test_words_without_a_latent_are_not_trained_on_and_get_no_prediction(task: WordTask) -> None:
    n_train = sum(map(len, task.splits["train"]["words"]))
    cut = [0, 5, n_train, n_train + 1]
    head, data, found = fit(plant(task, noise=0.2, cut=cut), task)
    assert all(np.isfinite(found.scores))  # the latents of cut words are NaN
    assert head.weight.isfinite().all()
    ids = predict_ids(head, data, "validation")
    assert (ids[:, :2] == NO_PREDICTION).all()
    assert (ids[:, 2:] != NO_PREDICTION).all()
    logits = predict_logits(head.only(PLACE), data, "validation", channel=PLACE)
    assert np.isnan(logits[:2]).all()
    assert np.array_equal(logits[2:].argmax(1), ids[PLACE, 2:])


def test_two_predictions_agree(cache: PlantedCache, task: WordTask) -> None:
    head, data, _ = fit(cache, task)
    assert np.array_equal(predict_ids(head, data, "test"), predict_ids(head.train(), data, "test"))


def test_balanced_weights_are_inverse_shares(task: WordTask) -> None:
    data = WordLatents(plant(task, cut=[0]), task)
    ids = data.gold("train").ids[1:]
    weights = balanced_weights(data)
    assert float(weights[data.gold("train").ids[1:]].sum()) == pytest.approx(len(ids), rel=1e-5)
    counts = np.bincount(ids)
    assert np.allclose(weights.numpy() * counts, len(ids) / len(counts), rtol=1e-5)


@pytest.mark.long
def test_weights_that_do_not_stay_finite_are_told_with_their_layer(task: WordTask) -> None:
    cache = plant(task)
    cache.latents["mean"][1, 4] = float("inf")
    options = replace(QUICK, is_standardised=False, max_epochs=2)
    for keep, offset in (("last", "none"), ("best", "none"), ("best", "validation")):
        with pytest.raises(
            HeadError, match=r"weights of TokenClassifier at block_01 did not stay finite; lower learning_rate"
        ):
            fit(cache, task, replace(options, keep=keep, offset=offset))
    with pytest.raises(HeadError, match="weights of TokenMix at the mix did not stay finite"):
        fit(cache, task, options, make=TokenMix)
    _, _, found = fit(cache, task, replace(options, keep="best"), layers=["block_02"])
    assert np.isfinite(found.scores[0])


def test_the_tags_of_test_are_not_looked_at(task: WordTask, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = WordLatents.gold

    def spy(self: WordLatents, split: str) -> Any:
        asked.append(split)
        return real(self, split)

    monkeypatch.setattr(WordLatents, "gold", spy)
    fit(plant(task), task)
    assert set(asked) == {"train", "validation"}


@pytest.mark.long
def test_the_buffers_of_training_are_given_back(
    cache: PlantedCache, task: WordTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Shuffled]] = []
    real = WordLatents.train_dataloader

    def spy(self: WordLatents) -> Shuffled:
        loader = real(self)
        made.append(weakref.ref(loader))
        return loader

    monkeypatch.setattr(WordLatents, "train_dataloader", spy)
    kept = fit(cache, task, replace(QUICK, max_epochs=1))
    gc.collect()
    assert len(kept) == 3
    assert [ref() for ref in made] == [None]
