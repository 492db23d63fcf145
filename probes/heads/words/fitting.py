"""Fitting a token head with one seed: every layer keeps its own best validation epoch, and test is never touched."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import lightning
import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int
from lightning.pytorch.callbacks import Callback
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import HeadError
from probes.fitting.keep_best import EpochReport, KeepBest, Look, Part, ignore_epoch
from probes.fitting.trainer import run_trainer
from probes.fitting.unfinished import Unfinished
from probes.heads.words.judging import Judge, judge_of
from probes.heads.words.offsets import ChosenOffsets, choose_offsets
from probes.heads.words.options import ReadingOptions, TokenOptions
from probes.latents.word_latents import WordLatents
from probes.metrics.spans import NO_PREDICTION
from probes.networks.token_heads import TokenHead

OUTSIDE = "O"


@dataclass(frozen=True)
class TokenFit:
    """What a fit gave; the head itself holds the weights that were kept.

    Attributes:
        seed: The seed.
        best_epochs: Epoch of the weights kept, from 1, for each probe.
        scores: Validation score of the weights kept, for each probe; none without a validation split.
        history: Per epoch `train_loss`, the mean over probes, and, where epochs were looked at, `validation_scores`,
            None for a probe that was done before, or whose weights are not finite.
        seconds: Duration.
        offsets: What was taken off the bias of O, for each probe; 0 where nothing was.
        decoded: Way of decoding to the validation scores with it, for each probe; none without a validation split.
    """

    seed: int
    best_epochs: tuple[int, ...]
    scores: tuple[float, ...]
    history: tuple[dict[str, Any], ...]
    seconds: float
    offsets: tuple[float, ...] = ()
    decoded: dict[str, tuple[float, ...]] = field(default_factory=dict)


def _keep_best(
    head: TokenHead, data: WordLatents, judge: Judge, options: TokenOptions, report: EpochReport
) -> KeepBest:
    """Keep the epoch of each probe that scores best on validation."""

    def parts(module: TokenHead) -> Iterator[Part]:
        return ((parameter, range(module.n_probes)) for parameter in module.parameters())

    def look(_: int, trainer: lightning.Trainer, module: TokenHead, is_done: Bool[np.ndarray, " P"]) -> Look:
        scores = score_probes(module, data, judge, split="validation")
        is_kept = np.isfinite(scores) & ~is_done
        loss = float(trainer.callback_metrics["train_loss"])
        shown = [float(score) if ok else None for score, ok in zip(scores, is_kept, strict=True)]
        best = {f"validation_{judge.metric}": float(scores[is_kept].max())} if is_kept.any() else {}
        return Look(scores, {"train_loss": loss, "validation_scores": shown}, {"train_loss": loss, **best})

    return KeepBest(head.n_probes, parts=parts, look=look, patience=options.patience, report=report)


class _Tell(Callback):
    """Remembers and reports the loss of every epoch."""

    def __init__(self, report: EpochReport) -> None:
        self.report = report
        self.history: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Tell the epoch that has ended."""
        del pl_module
        self.history.append({"train_loss": float(trainer.callback_metrics["train_loss"])})
        self.report(len(self.history), dict(self.history[-1]))

    def state_dict(self) -> dict[str, Any]:
        """Return what a fit needs to go on from here."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.history = state_dict["history"]


def fit_token_head(
    head: TokenHead,
    data: WordLatents,
    options: TokenOptions,
    *,
    device: str = "cpu",
    report: EpochReport = ignore_epoch,
    unfinished: Unfinished | None = None,
) -> TokenFit:
    """Fit a head on the training split; what is chosen is chosen on validation.

    Args:
        head: A fresh head; it ends with the weights that are kept, in eval mode, on the CPU. Its seed is that of the
            order of sentences, of the initial weights and of dropout.
        data: The words.
        options: How it is fitted.
        device: `cpu` or a torch device.
        report: Called after every epoch with its number and its values.
        unfinished: Where the state of the fit is kept while it runs, and what a killed one left; none is kept if None,
            nor where `options` count steps.

    Raises:
        HeadError: Weights that are not finite, or, where the best epoch is kept, were not after any epoch.
        TaskError: The task lacks a split that is needed.
        KeyboardInterrupt: Ctrl-C.
    """
    started = time.monotonic()
    if options.is_standardised:
        head.set_standardiser(data.standardiser)
    if options.class_weights == "balanced":
        head.class_weights.copy_(balanced_weights(data))
    if options.start == "prior":
        head.begin_at(class_prior(data, head.class_weights))
    data.seed, data.batch_size, data.prepare = head.seed, options.batch_size, head.preparation()
    data.epoch_steps = options.epoch_steps
    if options.steps:  # Lightning ends an epoch of them without a batch when it is taken up; they are few
        unfinished = None
    is_chosen = options.keep == "best"
    is_judged = is_chosen or "validation" in data.rows
    judge = judge_of(data, "validation", **options.judging()) if is_judged else None
    keeper = _keep_best(head, data, judge, options, report) if is_chosen and judge else _Tell(report)
    length = {"max_steps": options.steps, "max_epochs": -1} if options.steps else {"max_epochs": options.max_epochs}
    run_trainer(
        head,
        data,
        seed=head.seed,
        device=device,
        callbacks=[keeper],
        unfinished=unfinished,
        limit_val_batches=0,
        **length,
    )
    head.cpu().eval()
    if isinstance(keeper, KeepBest):
        keeper.restore(head)
        scores, epochs = keeper.scores, keeper.best_epochs.tolist()
        if 0 in epochs:  # what stands there are the initial weights
            raise _not_finite(head, data.layers, probe=epochs.index(0))
    else:
        scores = score_probes(head, data, judge, split="validation") if judge else np.zeros(0)
        epochs = [len(keeper.history)] * head.n_probes
    is_finite = _is_finite(head)
    if not is_finite.all():
        raise _not_finite(head, data.layers, probe=int(np.argmin(is_finite)))
    offsets = np.zeros(head.n_probes)
    if options.offset == "validation" and judge is not None and judge.metric == "span-f1" and OUTSIDE in data.classes:
        offsets, scores = move_outside(head, data, judge)
    decoded = score_decodings(head, data, judge, options, plain=scores) if judge else {}
    seconds = time.monotonic() - started + (unfinished.seconds_before if unfinished else 0)
    return TokenFit(
        head.seed,
        tuple(epochs),
        tuple(scores.tolist()),
        tuple(keeper.history),
        seconds,
        tuple(offsets.tolist()),
        decoded,
    )


def score_decodings(
    head: TokenHead, data: WordLatents, judge: Judge, options: ReadingOptions, *, plain: Float[np.ndarray, " P"]
) -> dict[str, tuple[float, ...]]:
    """Score validation by every probe in every way of decoding that there is to choose from, plain ones being known."""
    ways = options.decodings(judge.metric)
    if ways == ("plain",):
        return {"plain": tuple(plain.tolist())}
    rows = []
    for probe in range(head.n_probes):  # one at a time: the logits of all layers may not fit into memory
        channel = probe if head.n_probes == len(data.layers) else None
        logits = predict_logits(head.only(probe), data, "validation", channel=channel)
        rows.append([judge.score(judge.decode(logits, way)) for way in ways])
    return dict(zip(ways, zip(*rows, strict=True), strict=True))


def move_outside(head: TokenHead, data: WordLatents, judge: Judge) -> ChosenOffsets:
    """Take off the bias of O what makes the spans of validation best, for each probe; the head is changed."""
    outside = data.classes.index(OUTSIDE)
    shape = (head.n_probes, data.split("validation").n_words)
    chosen = choose_offsets(
        _predicted(head, data, "validation", channel=None), judge.score, shape=shape, outside=outside
    )
    with torch.no_grad():
        head.bias[:, outside] -= torch.from_numpy(chosen.offsets).to(head.bias)
    return chosen


def predict_ids(
    head: TokenHead, data: WordLatents, split: str, *, channel: int | None = None
) -> Int[np.ndarray, "P W"]:
    """Predict every word of a split by every probe; `NO_PREDICTION` for words without a latent.

    `channel` is the position of the one channel the head reads; it reads all of them when absent.
    """
    found = np.full((head.n_probes, data.split(split).n_words), NO_PREDICTION, dtype=np.int64)
    for words, logits in _predicted(head, data, split, channel=channel):
        found[:, words] = logits.argmax(-1).cpu().numpy()
    return found


def predict_logits(
    head: TokenHead, data: WordLatents, split: str, *, channel: int | None = None
) -> Float32[np.ndarray, "W K"]:
    """Score every class of every word by a head of one probe, as `predict_ids`; NaN for words without a latent."""
    found = np.full((data.split(split).n_words, head.n_classes), np.nan, dtype=np.float32)
    for words, logits in _predicted(head, data, split, channel=channel):
        found[words] = logits[0].float().cpu().numpy()
    return found


def score_probes(head: TokenHead, data: WordLatents, judge: Judge, *, split: str) -> Float[np.ndarray, " P"]:
    """Score the predictions of every probe of a head for one split; NaN for weights that are not finite."""
    ids = predict_ids(head, data, split)
    return np.array([judge.score(row) if ok else np.nan for row, ok in zip(ids, _is_finite(head), strict=True)])


def class_prior(data: WordLatents, class_weights: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    """Return the share of each class in the words that are trained on, each word weighed by the weight of its class.

    A class without a word that has a latent counts as half a word, so that no share is zero.
    """
    counts = class_counts(data).clip(min=0.5)
    weighed = torch.from_numpy(counts).double() * class_weights.double().cpu()
    return (weighed / weighed.sum()).float()


def class_counts(data: WordLatents) -> Float[np.ndarray, " K"]:
    """Count the words of each class that are trained on."""
    counts = np.bincount(data.gold("train").ids[data.split("train").has_latent], minlength=len(data.classes))
    return counts.astype(np.float64)


def balanced_weights(data: WordLatents) -> Tensor:
    """Weight each class of train by the inverse of its share of the training words; 1 for one without any."""
    counts = class_counts(data)
    weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return torch.from_numpy(np.where(counts > 0, weights, 1.0)).float()


def _predicted(
    head: TokenHead, data: WordLatents, split: str, *, channel: int | None
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    device = head.weight.device
    for batch in data.loader(split, channel=channel, prepare=head.preparation()):
        with torch.no_grad():
            logits = head.logits(batch.latents.to(device))
        yield batch.words.numpy(), logits


def _is_finite(head: TokenHead) -> Bool[np.ndarray, " P"]:
    """Return for each probe whether all of its weights are finite."""
    rows = [value.detach().isfinite().reshape(head.n_probes, -1).all(1) for value in head.parameters()]
    return np.asarray(torch.stack(rows).all(0).cpu().numpy())


def _not_finite(head: TokenHead, layers: tuple[str, ...], *, probe: int) -> HeadError:
    where = layers[probe] if head.n_probes == len(layers) else "the mix"
    return HeadError(
        f"the weights of {type(head).__name__} at {where} did not stay finite; lower learning_rate "
        f"({head.learning_rate:g}), set is_standardised: true, or, where latents are not finite, leave the layer out "
        "with the option layers."
    )
