"""Fitting one head with one seed by Lightning's loop: the best validation epoch is kept (a protocol may name test)."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from extract.errors import HeadError
from probes.fitting.fit_options import EpochOptions, EpochReport, FitHooks, FitOptions, Trainer, ignore_epoch
from probes.fitting.saved_fits import Unfinished
from probes.latents.text_latents import PairLatents, SimilarityRows, TextLatents
from probes.networks.layerwise_networks import LayerAutoencoder
from probes.networks.pair_networks import PairHead, collect_similarities

EpochLog = dict[str, Any]
"""An epoch of a history: `train_loss`, and the scores that were looked at then."""


@dataclass(frozen=True, eq=False)
class Look:
    """An epoch: scores of the stacks, values for the history and values to report."""

    scores: Float[np.ndarray, " S"]
    """Higher is better; NaN where there is none."""
    history: EpochLog
    reported: dict[str, float]


Part = tuple[Tensor, Sequence[int] | None]
"""A tensor, and the stack of each entry of its first axis; None for a tensor of the only stack."""


class _Kept(TypedDict):
    """What is saved of the best epochs with an unfinished fit."""

    kept: list[Tensor]
    history: list[EpochLog]
    scores: Tensor
    best_epochs: Tensor
    is_done: Tensor


def _train_all(stacks: Sequence[int]) -> None:
    """Let every stack stay, also those that are done."""


class KeepBest(FitHooks):
    """Keeps the weights of the best epoch of every stack of layers that are trained together; a pair head is one stack.

    A stack is done after `patience` epochs without a better one, and training stops when all are done.

    Args:
        n_stacks: Stacks `S`.
        parts: Returns every tensor to keep, always in the same order.
        look: Scores the epoch that has ended (Lightning validates before), given its number, the trainer and which
            stacks are done; NaN for those that have left.
        patience: Epochs without a better score after which a stack is done.
        first: The first epoch that may be kept, from 1; patience counts from it.
        report: Called after every epoch.
        train_only: Lets all stacks but these leave the computation, so that `parts` has rows of these alone.
    """

    def __init__(
        self,
        n_stacks: int,
        *,
        parts: Callable[[], Iterable[Part]],
        look: Callable[[int, Trainer, Bool[np.ndarray, " S"]], Look],
        patience: int,
        first: int = 1,
        report: EpochReport = ignore_epoch,
        train_only: Callable[[Sequence[int]], object] = _train_all,
    ) -> None:
        self.parts, self.look, self.patience, self.first, self.report = parts, look, patience, first, report
        self.train_only = train_only
        self.scores = np.full(n_stacks, -np.inf)
        self.best_epochs = np.zeros(n_stacks, dtype=np.int64)
        """From 1; 0 for a stack without a finite score."""
        self.is_done = np.zeros(n_stacks, dtype=bool)
        self.history: list[EpochLog] = []
        self.best: list[Tensor] = []

    def on_train_start(self, module: torch.nn.Module) -> None:
        """Begin with the initial weights, unless the fit is resumed."""
        del module
        self.best = self.best or [tensor.detach().cpu().clone() for tensor, _ in self.parts()]
        self._stacks = [[] if stacks is None else list(stacks) for _, stacks in self.parts()]
        if self.is_done.any():
            self.train_only(np.flatnonzero(~self.is_done).tolist())

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Look at the epoch that has ended."""
        epoch = len(self.history) + 1
        look = self.look(epoch, trainer, self.is_done)
        is_better = np.isfinite(look.scores) & (look.scores > self.scores) & ~self.is_done & (epoch >= self.first)
        for (tensor, stacks), best, all_stacks in zip(self.parts(), self.best, self._stacks, strict=True):
            if stacks is None and is_better.all():
                best.copy_(tensor.detach())
            elif stacks is not None:
                rows = [row for row, stack in enumerate(stacks) if is_better[stack]]
                best[[all_stacks.index(stacks[row]) for row in rows]] = tensor.detach()[rows].cpu()
        self.scores[is_better], self.best_epochs[is_better] = look.scores[is_better], epoch
        was_done, self.is_done = self.is_done, self.is_done | (self._patience_left(epoch) <= 0)
        self.history.append(look.history)
        self.report(epoch, {**look.reported, **self._limits(epoch, trainer.max_epochs or 0)})
        trainer.should_stop = bool(self.is_done.all())
        if (self.is_done > was_done).any() and not trainer.should_stop:
            self.train_only(np.flatnonzero(~self.is_done).tolist())

    def _limits(self, epoch: int, max_epochs: int) -> dict[str, float]:
        """Say how long the fit may go on; there is no patience to report where it cannot run out."""
        limits = {"max_epochs": float(max_epochs)} if max_epochs > 0 else {}
        if self.patience < max_epochs:
            left = int(self._patience_left(epoch)[~self.is_done].max(initial=0))
            limits |= {"patience": float(self.patience), "patience_left": float(left)}
        return limits

    def _patience_left(self, epoch: int) -> Int64[np.ndarray, " S"]:
        return np.maximum(self.best_epochs, self.first - 1) + self.patience - epoch

    def state_dict(self) -> dict[str, object]:
        """Return all that a fit needs to be resumed."""
        arrays = {name: torch.from_numpy(getattr(self, name)) for name in ("scores", "best_epochs", "is_done")}
        return {"kept": self.best, "history": self.history, **arrays}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Continue from a `state_dict`."""
        state = cast("_Kept", state_dict)
        self.best, self.history = state["kept"], state["history"]
        self.scores, self.best_epochs = state["scores"].numpy(), state["best_epochs"].numpy()
        self.is_done = state["is_done"].numpy()

    @torch.no_grad()
    def restore(self) -> None:
        """Put the best weights back, of all stacks."""
        self.train_only(range(len(self.is_done)))
        for (tensor, _), best in zip(self.parts(), self.best, strict=True):
            tensor.copy_(best)


@dataclass(frozen=True)
class FitResult:
    """The result of a fit; the head itself holds the best epoch's weights."""

    seed: int
    best_epoch: int
    """Epoch that was kept, from 1; 0 for a head without epochs."""
    history: tuple[EpochLog, ...]
    """Per epoch `train_loss`, `validation_pearson` and `validation_spearman`."""
    seconds: float


def fit_head(
    head: PairHead,
    data: PairLatents,
    *,
    options: EpochOptions,
    seed: int = 0,
    device: str = "cpu",
    report: EpochReport = ignore_epoch,
    unfinished: Unfinished | None = None,
) -> FitResult:
    """Fit a fresh head, whose weights the caller seeded; it ends with the best epoch's, in eval mode, on the CPU."""
    started = time.monotonic()
    data.split("train")
    data.split(data.selection)
    head.selection = data.selection
    head.prepare(data, data.standardiser())
    data.fixed.clear()  # the similarities of another head
    if head.has_fixed_similarities:
        for split in ("train", data.selection):
            data.fixed[split] = SimilarityRows(collect_similarities(head, data, split), data.split(split).gold)
    if not head.is_trained:
        head.eval()
        return FitResult(seed, 0, (), time.monotonic() - started)
    from probes.fitting.loop import run_trainer  # imports Lightning, which takes seconds

    metric = f"{data.selection}_pearson" if options.keep == "best" else ""
    every = min(options.every, options.max_epochs)
    patience = options.patience if metric else options.max_epochs
    keeper = _keep(head, metric, every=every, patience=patience, report=report)
    run_trainer(
        head,
        data,
        seed=seed,
        device=device,
        unfinished=unfinished,
        max_epochs=options.max_epochs,
        hooks=[keeper],
        check_val_every_n_epoch=every,
    )
    [best_epoch] = keeper.best_epochs.tolist()
    if not best_epoch:
        raise HeadError(
            f"no epoch of {type(head).__name__} had a finite {metric.replace('_', ' ') or 'loss'} (last loss "
            f"{keeper.history[-1].get('train_loss', float('nan')):g}); lower learning_rate or change the loss."
        )
    head.cpu().eval()
    keeper.restore()
    seconds = time.monotonic() - started + (unfinished.seconds_before if unfinished else 0)
    return FitResult(seed, best_epoch, tuple(keeper.history), seconds)


def _keep(head: PairHead, metric: str, *, every: int, patience: int, report: EpochReport) -> KeepBest:
    """Keep the epoch with the highest value of a logged metric; without one, the last epoch of finite loss."""

    def look(epoch: int, trainer: Trainer, _: object) -> Look:
        values = {key: float(value) for key, value in trainer.callback_metrics.items()}
        if epoch % every:  # what was logged before is of an earlier epoch
            values = {key: value for key, value in values.items() if key.startswith("train_")}
        score = values.get(metric, float("nan"))
        if not metric and np.isfinite(values["train_loss"]):
            score = float(epoch)
        return Look(np.array([score]), values, values)

    return KeepBest(
        1,
        parts=lambda: ((tensor, None) for tensor in head.state_dict().values()),
        look=look,
        patience=patience,
        report=report,
    )


def predict_pairs(head: PairHead, data: PairLatents, split: str) -> Float32[np.ndarray, " N"]:
    """Score every pair of a split, in order."""
    head.eval()
    device = head.mean.device
    with torch.no_grad():
        scores = [head(batch.a.to(device), batch.b.to(device)).cpu() for batch in data.loader(split)]
    return torch.cat(scores).float().numpy()


@dataclass(frozen=True)
class LayerFit:
    """The result of a fit; the autoencoders themselves hold the weights that were kept."""

    best_epochs: tuple[int, ...]
    """Epoch of the weights kept, from 1, for each layer."""
    held_out_losses: tuple[float, ...]
    """Held-out loss of the weights kept, for each layer."""
    held_out_squared_errors: tuple[float, ...]
    """The same as a mean squared error in the units of the latents, for each layer."""
    history: tuple[EpochLog, ...]
    """Per epoch `train_loss` and `held_out_loss`, means over layers still trained, and `held_out_loss_K` of each."""
    seconds: float


def fit_layers(
    module: LayerAutoencoder,
    data: TextLatents,
    *,
    options: FitOptions,
    seed: int = 0,
    device: str = "cpu",
    report: EpochReport = ignore_epoch,
    unfinished: Unfinished | None = None,
) -> LayerFit:
    """Fit fresh autoencoders together, each layer's best epoch kept as if alone; they end in eval mode, on the CPU."""
    from probes.fitting.loop import run_trainer

    started = time.monotonic()
    module.prepare(data.standardiser())

    def look(_: int, trainer: Trainer, __: object) -> Look:
        values = {key: float(value) for key, value in trainer.callback_metrics.items()}
        values = {name: value for name, value in values.items() if name not in left}
        losses = np.array([values.get(f"held_out_loss_{k}", np.nan) for k in range(module.n_layers)])
        return Look(-losses, values, values)

    def train_only(layers: Sequence[int]) -> None:
        left.update(f"held_out_loss_{k}" for k in range(module.n_layers) if k not in layers)
        module.train_only(layers)
        data.read_only(layers)

    left: set[str] = set()
    """What Lightning remembers of layers that have left."""
    keeper = KeepBest(
        module.n_layers,
        parts=module.stacks,
        look=look,
        patience=options.patience,
        report=report,
        train_only=train_only,
    )
    run_trainer(
        module, data, seed=seed, device=device, unfinished=unfinished, max_epochs=options.max_epochs, hooks=[keeper]
    )
    module.cpu()
    broken = [name for name, epoch in zip(data.channels.names, keeper.best_epochs, strict=True) if not epoch]
    if broken:
        raise HeadError(
            f"the autoencoders of {', '.join(broken)} had no epoch with a finite held-out loss; lower learning_rate."
        )
    keeper.restore()
    module.eval()
    seconds = time.monotonic() - started + (unfinished.seconds_before if unfinished else 0)
    with torch.no_grad():
        sums = torch.stack([module.raw_losses(batch) * batch.shape[1] for batch in data.val_dataloader()]).sum(0)
    return LayerFit(
        tuple(keeper.best_epochs.tolist()),
        tuple((-keeper.scores).tolist()),
        tuple((sums / len(data.held_out_rows)).tolist()),
        tuple(keeper.history),
        seconds,
    )
