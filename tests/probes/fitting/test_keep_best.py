"""Each stack keeps its own best epoch, and a finished one is left alone."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from probes.fitting.fit import KeepBest, Look

NAN = float("nan")


def play(script: list[list[float]], *, patience: int, first: int = 1) -> tuple[KeepBest, torch.Tensor, int]:
    """Set the weights to the number of the epoch, and score each stack by the script."""
    weights = torch.zeros(len(script[0]), 2)
    trainer = SimpleNamespace(should_stop=False, max_epochs=1000, callback_metrics={}, save_checkpoint=print)
    keeper = KeepBest(
        len(script[0]),
        parts=lambda: [(weights, range(len(weights)))],
        patience=patience,
        first=first,
        look=lambda epoch, *_: Look(np.array(script[epoch - 1], dtype=float), {"epoch": epoch}, {}),
    )
    keeper.on_train_start(nn.Module())
    n_epochs = 0
    while not trainer.should_stop and n_epochs < len(script):
        n_epochs += 1
        weights.fill_(n_epochs)
        keeper.on_train_epoch_end(trainer)
    keeper.restore()
    return keeper, weights[:, 0], n_epochs


def test_each_stack_ends_with_the_weights_of_its_best_epoch() -> None:
    keeper, weights, _ = play([[0.1, 0.9], [0.3, 0.2], [0.3, 0.4]], patience=9)
    assert weights.tolist() == keeper.best_epochs.tolist() == [2, 1]  # of equals the first
    assert keeper.scores.tolist() == [0.3, 0.9]


def test_a_stack_that_is_done_keeps_its_weights_though_a_later_epoch_scores_higher() -> None:
    keeper, weights, n_epochs = play([[0.5, 0.1], [0.1, 0.2], [0.1, 0.3], [0.9, 0.4], [0.9, 0.1], [0, 0]], patience=2)
    assert weights.tolist() == [1, 4]
    assert n_epochs == 6
    assert keeper.is_done.all()


def test_epochs_before_the_first_are_neither_kept_nor_counted() -> None:
    keeper, weights, n_epochs = play([[9.0], [9.0], [9.0], [0.1], [0.2], [0.1], [0.1], [9.0]], patience=2, first=4)
    assert weights.tolist() == keeper.best_epochs.tolist() == [5]
    assert n_epochs == 7


def test_scores_that_are_not_finite_never_count() -> None:
    keeper, weights, _ = play([[NAN, NAN], [float("inf"), 0.1], [NAN, NAN]], patience=9)
    assert keeper.best_epochs.tolist() == [0, 2]
    assert weights.tolist() == [0, 2]
