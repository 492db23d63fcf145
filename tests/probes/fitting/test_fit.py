"""Fitting: the best validation epoch is kept, the generators are left alone, Ctrl-C stays Ctrl-C."""

import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.errors import HeadError, TaskError, UnknownNameError
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask
from probes.fitting.fit import fit_head, predict_pairs
from probes.fitting.fit_options import EpochOptions
from probes.latents.text_latents import PairLatents
from probes.metrics.prediction_metrics import pearson
from probes.networks.pair_networks import CosineMLP, PairHead, SiameseCosine, collect_similarities
from tests.probes.planted_latents import LAYERS, WIDTH, make_task, pair_data

NAN = float("nan")


def make_mlp(**how: Any) -> CosineMLP:
    torch.manual_seed(0)
    return CosineMLP(len(LAYERS), WIDTH, **{"hidden": 16, "learning_rate": 3e-3, **how})


class Scripted(CosineMLP):
    """Scores every epoch as the script says, and remembers its weights then."""

    def __init__(self, script: Sequence[float]) -> None:
        super().__init__(len(LAYERS), WIDTH, hidden=4)
        self.script: Iterator[float] = iter(script)
        self.seen: list[Tensor] = []

    def on_validation_epoch_end(self) -> None:
        self._collected.clear()
        self.seen.append(self.state_dict()["network.0.weight"].clone())
        self.loop.log("validation_pearson", next(self.script))


@pytest.mark.parametrize(
    ("script", "patience", "n_epochs", "best"),
    [
        ([0.1, 0.5, 0.4, 0.3, 0.9], 2, 4, 2),  # stopped before the ninth tenth
        ([0.1, 0.5, 0.4, 0.9, 0.3], 3, 5, 4),
        ([NAN, 0.2, NAN, 0.1, NAN], 2, 4, 2),
        ([0.3, 0.3, 0.3, 0.3, 0.3], 9, 5, 1),  # the first of equals
        ([-0.5, -0.4, -0.6, -0.7, -0.8], 9, 5, 2),
    ],
)
def test_the_best_epoch_is_restored(
    data: PairLatents, script: list[float], patience: int, n_epochs: int, best: int
) -> None:
    head = Scripted(script)
    told: list[int] = []
    options = EpochOptions(batch_size=40, max_epochs=5, patience=patience)
    result = fit_head(head, data, options=options, report=lambda epoch, _: told.append(epoch))
    assert (result.best_epoch, len(result.history), told) == (best, n_epochs, list(range(1, n_epochs + 1)))
    assert torch.equal(head.state_dict()["network.0.weight"], head.seen[best - 1])
    assert not head.training
    assert [step["validation_pearson"] for step in result.history] == pytest.approx(script[:n_epochs], nan_ok=True)


@pytest.mark.parametrize(
    ("every", "script", "looks", "best"),
    [
        (2, [0.3, 0.7, 0.5], [2, 4, 6], 4),
        (3, [0.3, 0.2], [3, 6], 3),
        (4, [0.1], [4], 4),  # what comes after the last look is never looked at
        (7, [0.1], [7], 7),
    ],
)
def test_one_may_look_at_every_few_epochs_only(
    data: PairLatents, every: int, script: list[float], looks: list[int], best: int
) -> None:
    head = Scripted(script)
    told: list[set[str]] = []
    result = fit_head(
        head,
        data,
        options=EpochOptions(batch_size=40, max_epochs=7, patience=7, every=every),
        report=lambda _, values: told.append(set(values)),
    )
    assert len(head.seen) == len(script)
    assert [epoch for epoch, step in enumerate(result.history, start=1) if "validation_pearson" in step] == looks
    assert all("train_loss" in step for step in result.history)
    assert [step["validation_pearson"] for step in result.history if len(step) > 1] == pytest.approx(script)
    assert told == [{*step, "max_epochs"} for step in result.history]
    assert result.best_epoch == best
    assert torch.equal(head.state_dict()["network.0.weight"], head.seen[looks.index(best)])


def test_a_fit_shorter_than_that_looks_at_its_last_epoch(data: PairLatents) -> None:
    head = Scripted([0.4])
    result = fit_head(head, data, options=EpochOptions(batch_size=40, max_epochs=3, patience=10, every=10))
    assert result.best_epoch == 3
    assert torch.equal(head.state_dict()["network.0.weight"], head.seen[0])


def test_the_last_epoch_can_be_kept_whatever_the_scores_and_the_patience(data: PairLatents) -> None:
    head = Scripted([0.9, 0.5, NAN, 0.1])
    options = EpochOptions(batch_size=40, max_epochs=4, patience=1, keep="last")
    result = fit_head(head, data, options=options)
    assert (result.best_epoch, len(result.history)) == (4, 4)
    assert torch.equal(head.state_dict()["network.0.weight"], head.seen[3])
    assert not torch.equal(head.seen[0], head.seen[3])  # training did go on


def test_an_unknown_epoch_to_keep_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown epoch to keep 'first'.*Allowed: best, last"):
        EpochOptions(keep="first")
    with pytest.raises(HeadError, match="every is 0; allowed: a whole number of at least 1"):
        EpochOptions(every=0)
    with pytest.raises(HeadError, match=r"patience is 5, but every is 6.*allowed: a patience of at least 6"):
        EpochOptions(patience=5, every=6)


def test_a_fit_without_a_finite_score_is_told(data: PairLatents) -> None:
    with pytest.raises(
        HeadError, match=r"no epoch of Scripted had a finite validation pearson \(last loss 0\.\d+\); lower"
    ):
        fit_head(Scripted([NAN]), data, options=EpochOptions(batch_size=40, max_epochs=1))


def test_the_split_that_chooses_is_the_one_the_data_names(cache: LatentCache, task: PairTask) -> None:
    head, data = make_mlp(), pair_data(cache, task, selection="test")
    result = fit_head(head, data, options=EpochOptions(batch_size=40, max_epochs=4))
    assert set(result.history[0]) == {"train_loss", "test_pearson", "test_spearman"}
    found = pearson(predict_pairs(head, data, "test"), data.split("test").gold.numpy())
    assert float(found) == pytest.approx(max(step["test_pearson"] for step in result.history), abs=1e-5)
    with pytest.raises(TaskError, match=r"has no split 'dev'"):
        fit_head(make_mlp(), pair_data(cache, task, selection="dev"), options=EpochOptions(batch_size=40))


def test_the_history_is_of_the_whole_split(data: PairLatents) -> None:
    head = make_mlp()
    result = fit_head(head, data, options=EpochOptions(batch_size=40, max_epochs=6))
    scores = [step["validation_pearson"] for step in result.history]
    assert result.best_epoch == int(np.argmax(scores)) + 1
    found = pearson(predict_pairs(head, data, "validation"), data.split("validation").gold.numpy())
    assert float(found) == pytest.approx(max(scores), abs=1e-5)
    assert set(result.history[0]) == {"train_loss", "validation_pearson", "validation_spearman"}
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    assert result.seconds > 0


def test_fixed_similarities_equal_the_plain_path(
    cache: LatentCache, task: PairTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for is_fixed in (True, False):
        monkeypatch.setattr(CosineMLP, "has_fixed_similarities", is_fixed)
        head, data = make_mlp(), pair_data(cache, task)
        result = fit_head(head, data, options=EpochOptions(batch_size=40, max_epochs=5))
        assert bool(data.fixed) is is_fixed
        results.append((result, predict_pairs(head, data, "test")))
    (fixed, one), (plain, other) = results
    assert fixed.best_epoch == plain.best_epoch
    for a, b in zip(fixed.history, plain.history, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_similarities_of_one_head_are_not_served_to_the_next(cache: LatentCache, task: PairTask) -> None:
    def fit_siamese(data: PairLatents) -> list[float]:
        torch.manual_seed(0)
        head = SiameseCosine(len(LAYERS), WIDTH, bottleneck=8, hidden=8)
        result = fit_head(head, data, options=EpochOptions(batch_size=40, max_epochs=2))
        return [step["train_loss"] for step in result.history]

    used = pair_data(cache, task)
    fit_head(make_mlp(), used, options=EpochOptions(batch_size=40, max_epochs=1))
    assert fit_siamese(used) == fit_siamese(pair_data(cache, task))


def test_dropout_is_on_in_training_whatever_mode_the_head_comes_in(cache: LatentCache, task: PairTask) -> None:
    losses = []
    for is_training in (True, False):
        torch.manual_seed(0)
        head = SiameseCosine(len(LAYERS), WIDTH, bottleneck=8, hidden=8, dropout=0.5).train(is_training)
        result = fit_head(head, pair_data(cache, task), options=EpochOptions(batch_size=40, max_epochs=1))
        losses.append(result.history[0]["train_loss"])
    assert losses[0] == losses[1]


def test_global_torch_generator_is_left_alone(data: PairLatents) -> None:
    head = make_mlp()
    before = torch.get_rng_state()
    fit_head(head, data, options=EpochOptions(batch_size=40, max_epochs=2))
    predict_pairs(head, data, "test")
    collect_similarities(head, data, "test")
    assert torch.equal(torch.get_rng_state(), before)


def test_training_that_breaks_is_told(data: PairLatents) -> None:
    head = make_mlp(learning_rate=1e30)
    with pytest.raises(
        HeadError, match=r"no epoch of CosineMLP had a finite validation pearson .*; lower learning_rate"
    ):
        fit_head(head, data, options=EpochOptions(batch_size=40, max_epochs=20, patience=2))


def test_a_log_variance_of_single_pairs_is_refused(cache: LatentCache, task: PairTask) -> None:
    data = pair_data(cache, task, batch_size=1)
    with pytest.raises(HeadError, match="the log-variance loss got a batch of 1; allowed: at least 2 rows"):
        fit_head(make_mlp(loss="log-variance"), data, options=EpochOptions(batch_size=1, max_epochs=1))


@pytest.mark.parametrize("missing", ["train", "validation"])
def test_a_missing_split_is_named(cache: LatentCache, missing: str) -> None:
    sizes = {split: n for split, n in {"train": 240, "validation": 120, "test": 80}.items() if split != missing}
    with pytest.raises(TaskError, match=f"has no split '{missing}'"):
        fit_head(make_mlp(), pair_data(cache, make_task(sizes=sizes)), options=EpochOptions(batch_size=40))


class Interrupted(CosineMLP):
    """Ctrl-C comes in the first step."""

    def training_step(self, batch: Any, _: int) -> Tensor:  # noqa: ARG002
        raise KeyboardInterrupt


def test_ctrl_c_stays_ctrl_c(data: PairLatents) -> None:
    """Lightning would exit with 1 and ignore every further Ctrl-C."""
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit_head(Interrupted(len(LAYERS), WIDTH), data, options=EpochOptions(batch_size=40))
    assert signal.getsignal(signal.SIGINT) is handler


class Exiting(CosineMLP):
    """Something inside asks the process to end."""

    def training_step(self, batch: Any, _: int) -> Tensor:  # noqa: ARG002
        raise SystemExit(7)


def test_an_exit_that_is_no_ctrl_c_passes(data: PairLatents) -> None:
    with pytest.raises(SystemExit, match="7"):
        fit_head(Exiting(len(LAYERS), WIDTH), data, options=EpochOptions(batch_size=40))


def test_predictions_keep_the_order_of_the_rows(data: PairLatents) -> None:
    head: PairHead = make_mlp().eval()
    rows = data.split("validation")
    with torch.no_grad():
        looped = [float(head(rows[i].a, rows[i].b)) for i in range(len(rows))]
    np.testing.assert_allclose(predict_pairs(head, data, "validation"), looped, atol=1e-6)
