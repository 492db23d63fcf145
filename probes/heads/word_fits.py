"""Token heads: their options, how tags are scored, and how one is fitted with one seed."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import HeadError, require_counts, require_name
from extract.records import Values
from probes.data.word_task import usual_tags
from probes.fitting.fit import EpochLog, KeepBest, Look
from probes.fitting.fit_options import EpochReport, FitHooks, Trainer, ignore_epoch
from probes.fitting.saved_fits import Unfinished
from probes.latents.word_latents import GoldTags, Streaming, WordLatents
from probes.logistic.problem import SolverOptions, check_strengths
from probes.logistic.solver import fit_logistic
from probes.metrics.bootstrap import (
    Resampling,
    SeedSummary,
    UnitScorer,
    add_up,
    number_units,
    share_of_sums,
)
from probes.metrics.prediction_metrics import (
    DECODINGS,
    NO_PREDICTION,
    SpanCounts,
    SpanLabels,
    count_spans,
    decode_tags,
    f1_of_counts,
    index_labels,
    score_spans,
)
from probes.networks.layerwise_networks import SCHEDULES, TokenClassifier, TokenHead

CLASS_WEIGHTS = {
    "none": "every word counts alike",
    "balanced": "every class counts alike: a word weighs the inverse of its class's share",
}
STARTS = {
    "prior": "weights of zero, and biases that predict how frequent each class is in train",
    "random": "small random weights and biases, as linear maps usually begin",
}
OFFSETS_FROM = {
    "validation": "the bias of O is lowered or raised where that finds more validation spans, layer by layer",
    "none": "as trained",
}
DECODINGS_FROM = {
    "validation": "the way that scores best on validation, chosen together with the layer (tasks of spans)",
    **DECODINGS,
}
KEPT = {
    "best": "the epoch with the best validation score, of every layer by itself",
    "last": "the weights that training ends with",
}


@dataclass(frozen=True)
class ReadingOptions:
    """Options of every head of words: how words are read, and how tags are read from a head and scored."""

    is_standardised: bool = True
    """Whether latents are standardised by mean and standard deviation over training words."""
    decoding: str = "validation"
    """How tags are read from a head: `validation` chooses, or `plain`, `repaired` or `legal`; others are `plain`."""
    is_strict: bool = False
    """Whether spans are counted strictly (a span begins with B) and not by the rules of conlleval."""
    leaves_out_cut: bool = False
    """Whether words without a latent are left out of the scores, which is optimistic, and not counted as errors."""
    chunk_words: int = 512
    """Words that are read at once."""
    buffer_mb: int = 1024
    """Memory in MB in which chunks are mixed."""

    def __post_init__(self) -> None:
        require_name("decoding", self.decoding, DECODINGS_FROM)
        self.streaming()

    @property
    def chooses_epoch(self) -> bool:
        """Whether validation chooses an epoch."""
        return False

    def seeds(self, of_run: Sequence[int]) -> Sequence[int]:
        """Return those seeds of a run that give different fits."""
        return of_run[:1]

    def streaming(self) -> Streaming:
        """Return how the cache is read."""
        return Streaming(self.chunk_words, self.buffer_mb)

    def scoring(self) -> dict[str, bool]:
        """Return how predictions are scored."""
        return {"is_strict": self.is_strict, "leaves_out_cut": self.leaves_out_cut}

    def decodings(self, metric: str) -> tuple[str, ...]:
        """List the ways of decoding to choose from; tags without spans are decoded plainly."""
        if metric != "span-f1":
            return ("plain",)
        return tuple(DECODINGS) if self.decoding == "validation" else (self.decoding,)

    def head_arguments(self) -> Values:
        """Return the arguments of the head itself."""
        return {}

    def fit_inputs(self, data: WordLatents) -> list[object]:
        """Return what decides a fit beside options, latents and rows."""
        del data
        return []


@dataclass(frozen=True)
class TokenOptions(ReadingOptions):
    """Options of a token head."""

    batch_size: int = 32
    """Sentences per batch."""
    max_epochs: int = 20
    """Most epochs."""
    patience: int = 3
    """Epochs without a better validation score after which a layer is done."""
    epoch_steps: int = 100
    """Fewest training steps of an epoch, which goes over a small training split several times, always to its end.

    1 is one pass an epoch, as is any number of steps that a pass has. Without it `patience` and `max_epochs` would be a
    few steps where there are a hundred sentences."""
    start: str = "prior"
    """Where training begins: `prior` (the biases predict how frequent each class is) or `random`."""
    offset: str = "validation"
    """What moves the bias of O after training: `validation` (tasks of spans alone), or `none`."""
    steps: int = 0
    """Training steps, in place of epochs; 0 counts epochs."""
    keep: str = "best"
    """Which weights are kept: `best` (of the epochs, on validation) or `last`."""
    learning_rate: float = 1e-3
    """AdamW learning rate."""
    schedule: str = "constant"
    """`constant`, or `linear` to 0 over all steps."""
    weight_decay: float = 0.01
    """AdamW weight decay."""
    dropout: float = 0.1
    """Share of the dimensions that are left out in training."""
    class_weights: str = "none"
    """`none`, or `balanced`: rare classes count as much as frequent ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        tables = {
            "start": STARTS,
            "offset": OFFSETS_FROM,
            "keep": KEPT,
            "schedule": SCHEDULES,
            "class_weights": CLASS_WEIGHTS,
        }
        for name, table in tables.items():
            require_name(name, getattr(self, name), table)
        require_counts(self, "batch_size", "max_epochs", "patience", "epoch_steps")
        if self.steps < 0:
            raise HeadError(f"steps is {self.steps}; allowed: a whole number of training steps, or 0 to count epochs.")
        if self.steps and self.keep != "last":
            raise HeadError(
                f"steps is {self.steps} and keep is {self.keep!r}; allowed: keep: last, since training in steps looks "
                "at validation only when it has ended."
            )
        if not 0 <= self.dropout < 1:
            raise HeadError(f"dropout is {self.dropout}; allowed: a share from 0 to below 1.")
        for name in ("learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise HeadError(f"{name} is {getattr(self, name)}; allowed: a number of at least 0.")

    @property
    def chooses_epoch(self) -> bool:
        """Whether validation chooses an epoch."""
        return self.keep == "best"

    def seeds(self, of_run: Sequence[int]) -> Sequence[int]:
        """Return all seeds of a run: weights, dropout and order differ."""
        return of_run

    def head_arguments(self) -> Values:
        """Return the arguments of the head itself."""
        return {name: getattr(self, name) for name in ("dropout", "learning_rate", "weight_decay", "schedule")}


@dataclass(frozen=True)
class LogisticOptions(ReadingOptions):
    """Options of the head `token-logistic`."""

    C: float = 1.0
    """Inverse strength of the penalty."""
    max_iterations: int = SolverOptions.max_iterations
    """Most L-BFGS iterations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strengths([self.C])
        self.solver("cpu")

    def solver(self, device: str) -> SolverOptions:
        """Return the options of the solver."""
        return SolverOptions(max_iterations=self.max_iterations, is_standardised=self.is_standardised, device=device)

    def fit_inputs(self, data: WordLatents) -> list[object]:
        """Name the tags whose training words all lack a latent: plainly decoded fits once chose the lowest layer."""
        is_plain = self.decodings(data.task.metric) == ("plain",)
        return [data.classes[k] for k in np.flatnonzero(class_counts(data) == 0)] if is_plain else []


OFFSETS = tuple(step / 2 for step in range(-2, 11))
"""What may be subtracted from the bias of O, in nats; the best share of O for span F1 is not that of cross-entropy."""

Score = Callable[[Int[np.ndarray, " W"]], float]


class ChosenOffsets(NamedTuple):
    """What is subtracted from the bias of O of each probe, and the scores with it."""

    offsets: Float[np.ndarray, " P"]
    scores: Float[np.ndarray, " P"]


def choose_offsets(
    predicted: Iterable[tuple[NDArray[np.int64], Tensor]], score: Score, *, shape: tuple[int, int], outside: int
) -> ChosenOffsets:
    """Choose for each probe the entry of `OFFSETS` after which predictions score best, the smallest of equals.

    Example:
        >>> import torch
        >>> predicted = [(np.arange(2), torch.tensor([[[3.0, 0.0], [1.2, 0.0]]]))]
        >>> def share_of_right(ids):
        ...     return float((ids == np.array([0, 1])).mean())
        >>> choose_offsets(predicted, share_of_right, shape=(1, 2), outside=0).offsets.tolist()
        [1.5]
    """
    ids = np.full((len(OFFSETS), *shape), NO_PREDICTION, dtype=np.int16)
    for words, logits in predicted:
        moved = logits.clone()
        for k, step in enumerate(np.diff(OFFSETS, prepend=0.0)):
            moved[..., outside] -= float(step)
            ids[k][:, words] = moved.argmax(-1).cpu().numpy()
    scores = np.array([[score(row.astype(np.int64)) for row in rows] for rows in ids])
    order = np.argsort(np.abs(OFFSETS), kind="stable")
    picks = order[scores[order].argmax(axis=0)]
    return ChosenOffsets(np.array(OFFSETS)[picks], scores[picks, np.arange(shape[0])])


# Scoring the predictions of one split: one score a layer in training; all that a report holds of the chosen one.

ABSENT = "(no prediction)"
EXAMPLES = 4
"""Words shown for each kind of error."""


@dataclass(frozen=True, eq=False)
class TagScorer:
    """The gold of one split, and how predictions of it are scored."""

    gold: GoldTags
    """The gold tags."""
    offsets: Int[np.ndarray, " N_1"]
    """Where each sentence starts, and the last one ends."""
    words: Sequence[str]
    """The words themselves."""
    documents: Sequence[str] | None
    """The document of each sentence, to resample whole documents, or one name for equal sentences; None resamples
    sentences."""
    metric: str
    """`span-f1` or `accuracy`."""
    is_strict: bool = False
    """Whether a span must begin with B."""
    scored: Int[np.ndarray, " V"] | None = None
    """Positions of the words that are scored; all of them when None."""
    unit: str = "sentences"
    """What is resampled, `documents` or `sentences`."""

    def score(self, ids: Int[np.ndarray, " W"]) -> float:
        """Score predictions, `NO_PREDICTION` being an error; higher is better."""
        if self.metric == "accuracy":
            return float((self._pick(ids) == self._gold).mean())
        return score_spans(self.count(ids)).micro.f1

    def count(self, ids: Int[np.ndarray, " W"], *, is_strict: bool | None = None) -> SpanCounts:
        """Count the spans of predictions."""
        strict = self.is_strict if is_strict is None else is_strict
        return count_spans(self._gold, self._pick(ids), offsets=self._offsets, labels=self._labels, strict=strict)

    def summarise(self, ids: Int[np.ndarray, "S W"], *, n_resamples: int) -> SeedSummary:
        """Mean and spread over seeds, with a bootstrap interval over documents, else sentences, equal ones together."""
        return self.unit_scorer(is_sorted=True).summarise(ids, Resampling(n_resamples))

    def by_type(self, ids: Int[np.ndarray, "S W"]) -> list[Values]:
        """Return the table of conlleval (without spans, of each tag) of all seeds added up; `n_gold` is of one seed."""
        if self.metric == "accuracy":
            sums = {name: np.zeros(3, dtype=np.int64) for name in self.gold.names}
            for row in ids:
                picked = self._pick(row)
                for k, name in enumerate(self.gold.names):
                    predicted, gold = picked == k, self._gold == k
                    sums[name] += (int((predicted & gold).sum()), int(predicted.sum()), int(gold.sum()))
        else:
            counts = [self.count(row) for row in ids]
            of_seeds = [[spans.n_correct, spans.n_predicted, spans.n_gold] for spans in counts]
            sums = dict(zip(counts[0].types, np.sum(of_seeds, axis=(0, 2)).T, strict=True))
        return [_shares(name, row, len(ids)) for name, row in sums.items() if row.any()]

    def decode(self, logits: Float[np.ndarray, "W K"], way: str) -> Int[np.ndarray, " W"]:
        """Turn logits, NaN for words without a latent, into predictions in a way of `DECODINGS`."""
        return decode_tags(logits, self.offsets, labels=self.gold.names[: logits.shape[1]], way=way)

    def decodings(self, logits: Float[np.ndarray, "W K"]) -> dict[str, float]:
        """Score the spans of every way of `DECODINGS`: F1 by the rules of conlleval, and strictly."""
        return {
            f"{way}{suffix}": score_spans(self.count(self.decode(logits, way), is_strict=is_strict)).micro.f1
            for way in DECODINGS
            for suffix, is_strict in (("", False), (" strict", True))
        }

    def errors(self, ids: Int[np.ndarray, " W"], *, most: int = 15) -> list[dict[str, object]]:
        """Return the most frequent pairs of a gold tag and another predicted one, with some words each."""
        wrong = np.flatnonzero(self._pick(ids) != self._gold)
        if self.scored is not None:
            wrong = self.scored[wrong]
        names = (*self.gold.names, ABSENT)  # NO_PREDICTION is -1
        pairs = [(names[self.gold.ids[k]], names[ids[k]]) for k in wrong.tolist()]
        words: dict[tuple[str, str], Counter[str]] = {}
        for pair, k in zip(pairs, wrong.tolist(), strict=True):
            words.setdefault(pair, Counter())[self.words[k]] += 1
        return [
            {
                "gold": pair[0],
                "predicted": pair[1],
                "n": n,
                "words": [word for word, _ in words[pair].most_common(EXAMPLES)],
            }
            for pair, n in Counter(pairs).most_common(most)
        ]

    def sentence_scores(self, ids: Int[np.ndarray, " W"]) -> Float[np.ndarray, " N"]:
        """Score every sentence by itself, for paired tests: its share of right words; NaN where it has none."""
        n_right, n_words = self._count_right(ids).T
        return np.where(n_words > 0, n_right / np.maximum(n_words, 1), np.nan)

    def _count_right(self, ids: Int[np.ndarray, " W"]) -> Int[np.ndarray, "N 2"]:
        """Count the right words and all words of every sentence."""
        right = np.concatenate([[0], np.cumsum(self._pick(ids) == self._gold)])
        return np.stack([np.diff(right[self._offsets]), np.diff(self._offsets)], axis=-1)

    def unit_scorer(self, *, is_sorted: bool = False) -> UnitScorer:
        """Return how predictions `(M, W)` of the split are scored and resampled; `is_sorted` as in `number_units`."""
        units = number_units(self.documents, len(self._offsets) - 1, is_sorted=is_sorted)
        n_units, is_accuracy = int(units.max(initial=-1)) + 1, self.metric == "accuracy"

        def count(ids: NDArray[np.generic]) -> Float[np.ndarray, "M U C"]:
            rows = np.asarray(ids, np.int64)
            counts = [self._count_right(row) if is_accuracy else self.count(row).by_sentence() for row in rows]
            return add_up(np.stack(counts).astype(np.float64), units, n_units)

        def quick(ids: NDArray[np.generic]) -> NDArray[np.float64]:
            return np.array([self.score(row) for row in np.asarray(ids, np.int64)])

        n_counts, of_sums = (2, share_of_sums) if is_accuracy else (3, f1_of_counts)
        return UnitScorer(
            self.metric, self.unit, n_units, n_counts, count, of_sums, quick=quick if is_accuracy else None
        )

    @cached_property
    def _labels(self) -> SpanLabels:
        return index_labels(self.gold.names)

    @cached_property
    def _gold(self) -> NDArray[np.int64]:
        return self._pick(self.gold.ids)

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        return self.offsets if self.scored is None else np.searchsorted(self.scored, self.offsets)

    def _pick(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return ids if self.scored is None else ids[self.scored]


def tag_scorer(data: WordLatents, split: str, *, is_strict: bool = False, leaves_out_cut: bool = False) -> TagScorer:
    """Read the tags of a split, to score predictions of it; options are those of `ReadingOptions`."""
    rows, part, units = data.split(split), data.task.splits[split], data.task.units(split)
    return TagScorer(
        data.gold(split),
        rows.offsets,
        [word for words in part["words"][:] for word in words],
        None if units is None else list(units),
        data.task.metric,
        is_strict,
        np.flatnonzero(rows.has_latent) if leaves_out_cut else None,
        data.task.resampled(split),
    )


def majority_ids(data: WordLatents, split: str) -> Int[np.ndarray, " W"]:
    """Predict for each word of a split its most frequent tag in train, see `usual_tags`."""
    numbers = {name: number for number, name in enumerate(data.classes)}
    return np.array([numbers[tag] for tag in usual_tags(data.task, split)], dtype=np.int64)


def _shares(name: str, sums: NDArray[np.int64], n_seeds: int) -> dict[str, float | str]:
    n_correct, n_predicted, n_gold = (int(n) for n in sums)
    return {
        "type": name,
        "precision": n_correct / n_predicted if n_predicted else 0.0,
        "recall": n_correct / n_gold if n_gold else 0.0,
        "f1": 2 * n_correct / (n_predicted + n_gold),
        "n_gold": n_gold // n_seeds,
    }


# Fitting a token head with one seed: every layer keeps its own best validation epoch, and test is never read.

OUTSIDE = "O"


@dataclass(frozen=True)
class TokenFit:
    """The result of a fit; the head itself holds the weights that were kept."""

    seed: int
    """The seed."""
    best_epochs: tuple[int, ...]
    """Epoch of the weights kept, from 1, for each probe."""
    scores: tuple[float, ...]
    """Validation score of the weights kept, for each probe; none without a validation split."""
    history: tuple[EpochLog, ...]
    """Per epoch `train_loss`, the mean over probes still trained, and, where epochs were looked at,
    `validation_scores`, None for a probe that was done before, or whose weights are not finite."""
    seconds: float
    """Duration."""
    offsets: tuple[float, ...] = ()
    """What was subtracted from the bias of O, for each probe; 0 where nothing was."""
    decoded: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Way of decoding to the validation scores with it, for each probe; none without a validation split."""


def _keep_best(
    head: TokenHead, data: WordLatents, scorer: TagScorer, options: TokenOptions, report: EpochReport
) -> KeepBest:
    """Keep the epoch of each probe that scores best on validation."""

    def train_only(probes: Sequence[int]) -> None:
        head.train_only(probes)
        if not head.is_mixed:
            data.read_only(probes, head.preparation())

    def look(_: int, trainer: Trainer, is_done: Bool[np.ndarray, " P"]) -> Look:
        scores = np.full(head.n_probes, np.nan)
        scores[list(head.trained)] = score_probes(head, data, scorer, split="validation")
        is_kept = np.isfinite(scores) & ~is_done
        loss = float(trainer.callback_metrics["train_loss"])
        finite = [float(score) if ok else None for score, ok in zip(scores, is_kept, strict=True)]
        best = {f"validation_{scorer.metric}": float(scores[is_kept].max())} if is_kept.any() else {}
        return Look(scores, {"train_loss": loss, "validation_scores": finite}, {"train_loss": loss, **best})

    return KeepBest(
        head.n_probes, parts=head.stacks, look=look, patience=options.patience, report=report, train_only=train_only
    )


class _Report(FitHooks):
    """Remembers and reports the loss of every epoch."""

    state_key = "_Tell"
    """As early versions wrote it."""

    def __init__(self, report: EpochReport) -> None:
        self.report = report
        self.history: list[EpochLog] = []

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Report the epoch that has ended."""
        values = {"train_loss": float(trainer.callback_metrics["train_loss"])}
        self.history.append({**values})
        self.report(len(self.history), values)

    def state_dict(self) -> dict[str, object]:
        """Return what a fit needs to be resumed."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Continue from a `state_dict`."""
        self.history = cast("list[EpochLog]", state_dict["history"])


def fit_token_head(
    head: TokenHead,
    data: WordLatents,
    options: TokenOptions,
    *,
    device: str = "cpu",
    report: EpochReport = ignore_epoch,
    unfinished: Unfinished | None = None,
) -> TokenFit:
    """Fit a fresh head on train; it ends with the weights that are kept, in eval mode, on the CPU."""
    from probes.fitting.loop import run_trainer  # imports Lightning, which takes seconds

    started = time.monotonic()
    if options.is_standardised:
        head.set_standardiser(data.standardiser)
    if options.class_weights == "balanced":
        head.class_weights.copy_(balanced_weights(data))
    if options.start == "prior":
        head.begin_at(class_prior(data, head.class_weights))
    data.seed, data.batch_size, data.prepare = head.seed, options.batch_size, head.preparation()
    data.epoch_steps = options.epoch_steps
    if options.steps:  # Lightning ends an epoch of them without a batch when it is resumed; they are few
        unfinished = None
    is_chosen = options.keep == "best"
    is_judged = is_chosen or "validation" in data.rows
    scorer = tag_scorer(data, "validation", **options.scoring()) if is_judged else None
    keeper = _keep_best(head, data, scorer, options, report) if is_chosen and scorer else _Report(report)
    length = {"max_steps": options.steps, "max_epochs": -1} if options.steps else {"max_epochs": options.max_epochs}
    run_trainer(
        head,
        data,
        seed=head.seed,
        device=device,
        hooks=[keeper],
        unfinished=unfinished,
        limit_val_batches=0,
        **length,
    )
    head.cpu().eval()
    if isinstance(keeper, KeepBest):
        keeper.restore()
        scores, epochs = keeper.scores, keeper.best_epochs.tolist()
        if 0 in epochs:  # its weights are the initial ones
            raise _not_finite(head, data.layers, probe=epochs.index(0))
    else:
        scores = score_probes(head, data, scorer, split="validation") if scorer else np.zeros(0)
        epochs = [len(keeper.history)] * head.n_probes
    is_finite = _is_finite(head)
    if not is_finite.all():
        raise _not_finite(head, data.layers, probe=int(np.argmin(is_finite)))
    offsets = np.zeros(head.n_probes)
    if options.offset == "validation" and scorer is not None and scorer.metric == "span-f1" and OUTSIDE in data.classes:
        offsets, scores = move_outside(head, data, scorer)
    decoded = score_decodings(head, data, scorer, options, plain=scores) if scorer else {}
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
    head: TokenHead, data: WordLatents, scorer: TagScorer, options: ReadingOptions, *, plain: Float[np.ndarray, " P"]
) -> dict[str, tuple[float, ...]]:
    """Score validation by every probe in every way of decoding; `plain` scores are those of plain tags."""
    ways = options.decodings(scorer.metric)
    if ways == ("plain",):
        return {"plain": tuple(plain.tolist())}
    rows = []
    for probe in range(head.n_probes):  # one at a time: the logits of all layers may not fit into memory
        channel = probe if head.n_probes == len(data.layers) else None
        logits = predict_logits(head.only(probe), data, "validation", channel=channel)
        rows.append([scorer.score(scorer.decode(logits, way)) for way in ways])
    return dict(zip(ways, zip(*rows, strict=True), strict=True))


def move_outside(head: TokenHead, data: WordLatents, scorer: TagScorer) -> ChosenOffsets:
    """Subtract from the bias of O what makes the spans of validation best, for each probe; the head is changed."""
    outside = data.classes.index(OUTSIDE)
    shape = (head.n_probes, data.split("validation").n_words)
    chosen = choose_offsets(
        _predicted(head, data, "validation", channel=None), scorer.score, shape=shape, outside=outside
    )
    with torch.no_grad():
        head.bias[:, outside] -= torch.from_numpy(chosen.offsets).to(head.bias)
    return chosen


def predict_ids(
    head: TokenHead, data: WordLatents, split: str, *, channel: int | None = None
) -> Int[np.ndarray, "P W"]:
    """Predict every word of a split by every probe of a head that reads one channel, or all where it is None."""
    ids = np.full((len(head.trained), data.split(split).n_words), NO_PREDICTION, dtype=np.int64)
    for words, logits in _predicted(head, data, split, channel=channel):
        ids[:, words] = logits.argmax(-1).cpu().numpy()
    return ids


def predict_logits(
    head: TokenHead, data: WordLatents, split: str, *, channel: int | None = None
) -> Float32[np.ndarray, "W K"]:
    """Score every class of every word by a head of one probe, as `predict_ids`; NaN for words without a latent."""
    scores = np.full((data.split(split).n_words, head.n_classes), np.nan, dtype=np.float32)
    for words, logits in _predicted(head, data, split, channel=channel):
        scores[words] = logits[0].float().cpu().numpy()
    return scores


def score_probes(head: TokenHead, data: WordLatents, scorer: TagScorer, *, split: str) -> Float[np.ndarray, " P"]:
    """Score the predictions of every probe of a head for one split; NaN for weights that are not finite."""
    ids = predict_ids(head, data, split)
    return np.array([scorer.score(row) if ok else np.nan for row, ok in zip(ids, _is_finite(head), strict=True)])


def class_prior(data: WordLatents, class_weights: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    """Return the weighed share of each class in the words that are trained on; no word counts as half a one."""
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
    rows = [value.detach().isfinite().reshape(len(head.trained), -1).all(1) for value in head.parameters()]
    return np.asarray(torch.stack(rows).all(0).cpu().numpy())


def _not_finite(head: TokenHead, layers: tuple[str, ...], *, probe: int) -> HeadError:
    where = layers[probe] if head.n_probes == len(layers) else "the mix"
    return HeadError(
        f"the weights of {type(head).__name__} at {where} did not stay finite; lower learning_rate "
        f"({head.learning_rate:g}), set is_standardised: true, or, where latents are not finite, leave the layer out "
        "with the option layers."
    )


# Logistic regression of the tags of words on their latents, layer by layer: no epochs, no dropout.


def fit_token_logistic(
    head: TokenClassifier, data: WordLatents, options: LogisticOptions, *, device: str = "cpu", **_: object
) -> TokenFit:
    """Fit a classifier of raw latents of every layer to convergence, on all training words at once, held in memory."""
    started = time.monotonic()
    codes = torch.from_numpy(data.gold("train").ids)
    for layer in range(head.n_probes):
        batches = [(batch.latents.clone(), batch.words) for batch in data.loader("train", channel=layer)]
        latents, words = torch.cat([part for part, _ in batches], dim=1), torch.cat([part for _, part in batches])
        fit = fit_logistic(
            latents, codes[words], Cs=[options.C], n_classes=len(data.classes), options=options.solver(device)
        )
        weight, bias = fit.raw(0, 0)
        lowest = torch.finfo(torch.float32).min  # not minus infinity, for a tag whose training words lack latents
        head.weight.data[layer], head.bias.data[layer] = weight.float(), bias.float().clamp(min=lowest)
    head.cpu().eval()
    scorer = tag_scorer(data, "validation", **options.scoring()) if "validation" in data.rows else None
    scores = score_probes(head, data, scorer, split="validation") if scorer else np.zeros(0)
    return TokenFit(
        head.seed,
        (0,) * head.n_probes,
        tuple(scores.tolist()),
        (),
        time.monotonic() - started,
        decoded=score_decodings(head, data, scorer, options, plain=scores) if scorer else {},
    )
