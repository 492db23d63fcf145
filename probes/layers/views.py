"""Probes of layers: the rows they read, readouts of sets of layers, a learned mix, and bits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from sklearn.decomposition import PCA
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold
from torch import Tensor, nn

from extract.errors import HeadError
from extract.store.cache import LatentCache
from probes.data.class_task import ClassTask, NumberTask
from probes.data.pair_task import PairTask
from probes.data.word_task import WordTask
from probes.heads.class_heads import training_codes
from probes.heads.layer_head import Together, only_channel
from probes.heads.word_fits import tag_scorer
from probes.latents.text_latents import Channels, PairLatents, join_pair
from probes.latents.word_latents import WordLatents
from probes.logistic.problem import SolverOptions
from probes.logistic.solver import fit_logistic
from probes.metrics.bootstrap import UnitScorer, number_units
from probes.metrics.prediction_metrics import NO_PREDICTION
from probes.networks.pair_networks import LayerCosine

FOLDS = 5
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Penalties per row of train, on features of variance 1."""
RANK = 1e-8
"""Directions within classes of less than this share of the largest variance count as constant."""
AT_ONCE = 1 << 27
"""Outputs in memory at once."""
MOST_PICKS = 8
"""Most layers that are picked."""
MOST_NUMBERS = 1 << 28
"""Most numbers of latents in memory: 1 GiB."""
EPOCHS, BATCH = 20, 128
CS = (0.01, 0.1, 1.0)
"""Inverse penalties to choose from, on features of variance 1."""
HELD_OUT = 0.2
"""Share of the units of train on which the penalty is chosen."""
SPREAD = 0.01
"""Share of every probability that is spread over all classes, so that no row costs without bound."""
SOLVER = SolverOptions(tol=1e-3, gap_tol=1e-2, max_iterations=100)
"""Bits differ in the third digit from those of a tighter solver."""
FEWEST = 16
"""Fewest rows of the first portion of a code."""
Features = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Features `(N, d)` of train and `(M, d)` of the scored split."""


@dataclass(frozen=True, eq=False)
class ProbeRows:
    """Rows of one split, as probes read them: latents and features of a layer by its position.

    Classes of the gold count from 0, with -1 for one that train does not have. Rows of one unit stay in one fold.
    """

    read: Callable[[int], Float32[np.ndarray, "T N D"]]
    features: Callable[[int], Float32[np.ndarray, "N F"]]
    gold: NDArray[np.generic]
    units: Int[np.ndarray, " N"]


@dataclass(frozen=True, eq=False)
class LayerRows:
    """What probes of layers are fitted on and scored by; `n_classes` is 0 for numbers.

    `decide` turns outputs `(M, N, K)` on the scored split into predictions `(M, N')` as the scorer takes them.
    """

    layers: tuple[str, ...]
    train: ProbeRows
    scored: ProbeRows
    n_classes: int
    decide: Callable[[NDArray[np.float64]], NDArray[np.generic]]
    scorer: UnitScorer

    def targets(self) -> Float[np.ndarray, "N K"]:
        """Return the gold of train as numbers, one column, or as an indicator of each class."""
        if self.n_classes:
            return np.asarray(np.eye(self.n_classes)[self.train.gold])
        return np.asarray(self.train.gold[:, None], np.float64)

    def reduced(self, components: int) -> list["Features"]:
        """Read the features of every layer, reduced to their first principal components."""
        return [
            reduce_layer(self.train.features(k), self.scored.features(k), components) for k in range(len(self.layers))
        ]


def _sample(n_rows: int, most: int) -> Int[np.ndarray, " n"]:
    """Draw positions without replacement, ascending; all of them where there are no more."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(0).choice(n_rows, most, replace=False))


def _pair_rows(
    cache: LatentCache, task: PairTask, channels: Channels, split: str, metric: str, most_rows: int
) -> LayerRows:
    data = PairLatents(cache, task, pooling=channels.pooling, layers=channels.layers, batch_size=1)
    head = LayerCosine(len(data.layers), cache.width_of(channels.layers))
    standardiser = data.standardiser()
    head.mean.copy_(standardiser.mean.unsqueeze(1))
    head.scale.copy_(standardiser.scale.unsqueeze(1))

    def rows_of_split(name: str, index: Int[np.ndarray, " n"], units: Int[np.ndarray, " n"]) -> ProbeRows:
        def read(k: int) -> Float32[np.ndarray, "2 N D"]:
            layer = only_channel(channels, k)
            sides = [side[torch.from_numpy(index)] for side in data.split(name).rows]
            return torch.stack([layer.gather(cache, side)[0] for side in sides]).float().numpy()

        with torch.no_grad():
            cosines = torch.cat([head.all_cosines(batch.a, batch.b)[1] for batch in data.loader(name)], 1).numpy()
        gold = np.asarray(task.gold01(name), np.float64)[index]
        return ProbeRows(read, lambda k: cosines[k, index, None], gold, units)

    train, n_scored = _sample(len(data.split("train")), most_rows), len(data.split(split))
    return LayerRows(
        data.layers,
        rows_of_split("train", train, train),
        rows_of_split(split, np.arange(n_scored), number_units(task.units(split), n_scored)),
        0,
        _first_output,
        task.scorer(split, metric),
    )


def _class_rows(
    cache: LatentCache, task: ClassTask, channels: Channels, split: str, metric: str, most_rows: int
) -> LayerRows:
    classes = np.asarray(task.training_classes)
    codes = {number: code for code, number in enumerate(classes.tolist())}
    scored_gold = np.array([codes.get(number, -1) for number in task.labels(split).tolist()])

    def decide(outputs: NDArray[np.float64]) -> NDArray[np.generic]:
        return np.asarray(classes[outputs.argmax(-1)])

    rows = _text_rows(cache, task, channels, split, metric, most_rows, gold=(training_codes(task).numpy(), scored_gold))
    return replace(rows, n_classes=len(classes), decide=decide)


def _number_rows(
    cache: LatentCache, task: NumberTask, channels: Channels, split: str, metric: str, most_rows: int
) -> LayerRows:
    gold = (task.numbers("train"), task.numbers(split))
    return _text_rows(cache, task, channels, split, metric, most_rows, gold=gold)


def _text_rows(
    cache: LatentCache,
    task: ClassTask | NumberTask,
    channels: Channels,
    split: str,
    metric: str,
    most_rows: int,
    *,
    gold: tuple[NDArray[np.generic], NDArray[np.generic]],
) -> LayerRows:
    """Read texts, or pairs of texts whose features are joined, with their gold in train and in the scored split."""

    def rows_of_split(
        name: str, index: Int[np.ndarray, " n"], units: Int[np.ndarray, " n"], gold: NDArray[np.generic]
    ) -> ProbeRows:
        def read(k: int) -> Float32[np.ndarray, "T N D"]:
            rows, layer = task.rows(name), only_channel(channels, k)
            sides = [cache.rows_of(np.asarray(rows[column], object)[index].tolist()) for column in task.text_columns]
            return torch.stack([layer.gather(cache, side)[0] for side in sides]).float().numpy()

        def features(k: int) -> Float32[np.ndarray, "N D"]:
            sides = torch.from_numpy(read(k))
            return np.asarray((join_pair(*sides[:, None])[0] if len(sides) == 2 else sides[0]).numpy())

        return ProbeRows(read, features, gold, units)

    n_train, n_scored = len(task.rows("train")), len(task.rows(split))
    index = _sample(n_train, most_rows)
    return LayerRows(
        channels.names,
        rows_of_split("train", index, number_units(task.units("train"), n_train)[index], gold[0][index]),
        rows_of_split(split, np.arange(n_scored), number_units(task.units(split), n_scored), gold[1]),
        0,
        _first_output,
        task.scorer(split, metric),
    )


def _word_rows(
    cache: LatentCache, task: WordTask, channels: Channels, split: str, metric: str, most_rows: int
) -> LayerRows:
    del metric  # that of the task
    data = WordLatents(cache, task, pooling=channels.pooling, layers=channels.layers)

    def rows_of_split(name: str, most: int, units_of: Sequence[str] | None) -> tuple[ProbeRows, Int[np.ndarray, " N"]]:
        """Return rows of the words that have a latent, at most so many, and their positions in the split.

        The unit of a word is that of its sentence, or its sentence.
        """
        part = data.split(name)
        with_latent = np.flatnonzero(part.has_latent)
        index = with_latent[_sample(len(with_latent), most)]

        def features(k: int) -> Float32[np.ndarray, "N D"]:
            latents = np.empty((len(index), cache.width_of(channels.layers)), np.float32)
            for batch in data.loader(name, channel=k):
                words = batch.words.numpy()
                is_used = np.isin(words, index)
                latents[np.searchsorted(index, words[is_used])] = batch.latents[0].numpy()[is_used]
            return latents

        n_sentences = len(part.offsets) - 1
        sentences, units = np.repeat(np.arange(n_sentences), np.diff(part.offsets)), number_units(units_of, n_sentences)
        ids = data.gold(name).ids[index]
        gold = np.where(ids < len(data.classes), ids, -1)
        return ProbeRows(lambda k: features(k)[None], features, gold, units[sentences[index]]), index

    train, _ = rows_of_split("train", most_rows, None)
    scored, positions = rows_of_split(split, data.split(split).n_words, task.units(split))
    n_words = data.split(split).n_words

    def decide(outputs: NDArray[np.float64]) -> Int[np.ndarray, "M W"]:
        ids = np.full((len(outputs), n_words), NO_PREDICTION, np.int64)
        ids[:, positions] = outputs.argmax(-1)
        return ids

    return LayerRows(data.layers, train, scored, len(data.classes), decide, tag_scorer(data, split).unit_scorer())


def _first_output(outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    return outputs[..., 0]


LAYER_ROWS: dict[str, Callable[..., LayerRows]] = {
    "pairs": _pair_rows,
    "classes": _class_rows,
    "numbers": _number_rows,
    "words": _word_rows,
}
"""How the rows of the shipped kinds are read whose heads are fitted on gold."""


def reduce_layer(
    train: Float32[np.ndarray, "N F"], scored: Float32[np.ndarray, "M F"], components: int
) -> tuple[Float32[np.ndarray, "N d"], Float32[np.ndarray, "M d"]]:
    """Keep the first principal components in train of the features of a layer, standardised by train, none constant.

    A layer in which all are, as the first under `last` with a template that ends all texts alike, becomes one of zeros.
    """
    if not (np.isfinite(train).all() and np.isfinite(scored).all()):
        raise HeadError("a latent is NaN or infinite, so no probe can be fitted; extract again, with dtype float32.")
    varies = np.ptp(train, axis=0) > 0
    if not varies.any():
        return np.zeros((len(train), 1), np.float32), np.zeros((len(scored), 1), np.float32)
    train, scored = train[:, varies], scored[:, varies]
    mean, scale = train.mean(0, dtype=np.float64), train.std(0, dtype=np.float64)
    train, scored = (((part - mean) / scale).astype(np.float32) for part in (train, scored))
    if train.shape[1] <= components:
        return train, scored
    pca = PCA(min(components, len(train) - 1), svd_solver="randomized", random_state=0).fit(train)
    return pca.transform(train).astype(np.float32), pca.transform(scored).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Readout:
    """Ridge regressions of sets of layers, from sums over the rows of train in each fold: `X'X`, `X'Y` and `Y'Y`.

    `slices` are the columns of each layer, `gram` and `cross` sums over the folds, `centre` the mean of the targets.
    """

    rows: LayerRows
    scored: Float32[np.ndarray, "M d"]
    slices: tuple[slice, ...]
    grams: Float[np.ndarray, "F d d"]
    crosses: Float[np.ndarray, "F d K"]
    gram: Float[np.ndarray, "d d"]
    cross: Float[np.ndarray, "d K"]
    squares: Float[np.ndarray, " F"]
    centre: Float[np.ndarray, " K"]

    @classmethod
    def of(cls, rows: LayerRows, *, components: int) -> "Readout":
        """Read every layer once, keeping its first principal components."""
        parts = rows.reduced(components)
        ends = np.cumsum([0, *(train.shape[1] for train, _ in parts)])
        slices = tuple(slice(int(a), int(b)) for a, b in pairwise(ends))
        train = np.concatenate([part for part, _ in parts], axis=1).astype(np.float64)
        scored = np.concatenate([part for _, part in parts], axis=1)
        targets = rows.targets()
        centre = targets.mean(0)
        centred = targets - centre
        units = rows.train.units
        folds = [held for _, held in GroupKFold(min(FOLDS, len(np.unique(units)))).split(train, groups=units)]
        grams = np.stack([train[fold].T @ train[fold] for fold in folds])
        crosses = np.stack([train[fold].T @ centred[fold] for fold in folds])
        squares = np.array([(centred[fold] ** 2).sum() for fold in folds])
        return cls(rows, scored, slices, grams, crosses, grams.sum(0), crosses.sum(0), squares, centre)

    def columns(self, layers: Sequence[int]) -> np.ndarray:
        """List the columns of some layers."""
        return np.concatenate([np.arange(self.slices[k].start, self.slices[k].stop) for k in layers])

    def error(self, layers: Sequence[int], penalty: float) -> float:
        """Return the squared error on rows of train that a fold leaves out, as a share of the variance of the gold."""
        index = self.columns(layers)
        total = 0.0
        for gram, cross, square in zip(self.grams, self.crosses, self.squares, strict=True):
            held, target = gram[np.ix_(index, index)], cross[index]
            weight = _solve(self.gram[np.ix_(index, index)] - held, self.cross[index] - target, self._times(penalty))
            total += _error(weight, held, target, square)
        return float(total / self.squares.sum())

    def penalty(self, layers: Sequence[int]) -> float:
        """Choose the penalty of some layers by the folds."""
        return min(PENALTIES, key=lambda penalty: self.error(layers, penalty))

    def outputs(self, layers: Sequence[int], penalty: float = 0.0) -> Float[np.ndarray, "M K"]:
        """Fit on some layers and apply to the scored split; the folds choose the penalty where it is 0."""
        index = self.columns(layers)
        weight = _solve(
            self.gram[np.ix_(index, index)], self.cross[index], self._times(penalty or self.penalty(layers))
        )
        turn, shift = self._discriminant(weight, index)
        return np.asarray(self.scored[:, index] @ (weight @ turn) + shift)

    def growing(self, order: Sequence[int]) -> list[Float[np.ndarray, "M K"]]:
        """Fit on the first layer of an order, on the first two, and so on; gives the outputs of each.

        One Cholesky factor of all columns holds those of every beginning, so that all fits cost little more than one.
        """
        index = self.columns(order)
        ends = np.cumsum([self.slices[k].stop - self.slices[k].start for k in order]).tolist()
        errors = np.zeros((len(ends), len(PENALTIES)))
        for gram, cross, square in zip(self.grams, self.crosses, self.squares, strict=True):
            held, held_target = gram[np.ix_(index, index)], cross[index]
            rest, target = self.gram[np.ix_(index, index)] - held, self.cross[index] - held_target
            for p, penalty in enumerate(PENALTIES):
                lower, _ = _factor(rest, self._times(penalty))
                for k, end in enumerate(ends):
                    weight = cho_solve((lower[:end, :end], True), target[:end])
                    errors[k, p] += _error(weight, held[:end, :end], held_target[:end], square)
        gram, cross, outputs = self.gram[np.ix_(index, index)], self.cross[index], {}
        picked = errors.argmin(1).tolist()
        for p in set(picked):
            lower, _ = _factor(gram, self._times(PENALTIES[p]))
            for k, end in enumerate(ends):
                if picked[k] == p:
                    weight = cho_solve((lower[:end, :end], True), cross[:end])
                    turn, shift = self._discriminant(weight, index[:end])
                    outputs[k] = np.asarray(self.scored[:, index[:end]] @ (weight @ turn) + shift)
        return [outputs[k] for k in range(len(ends))]

    def _discriminant(
        self, weight: Float[np.ndarray, "d K"], index: np.ndarray
    ) -> tuple[Float[np.ndarray, "K K"], Float[np.ndarray, " K"]]:
        """Return a matrix and an offset that turn fitted indicators into scores of classes.

        The largest fitted indicator would never be a rare class. Discriminant analysis of the fitted indicators gives
        each class its log-posterior under normal features of one covariance, penalised as the regression is (Hastie,
        Buja and Tibshirani 1995). Numbers are left as they are.
        """
        if not self.rows.n_classes:
            return np.eye(weight.shape[1]), self.centre
        counts = np.bincount(self.rows.train.gold, minlength=self.rows.n_classes).astype(np.float64)
        share = counts / counts.sum()
        means = (self.cross[index].T @ weight) / np.maximum(counts, 1)[:, None]  # of the fitted indicators, by class
        within = means.T @ (share[:, None] * (np.eye(len(share)) - means))
        turn = np.linalg.pinv((within + within.T) / 2, rcond=RANK, hermitian=True) @ means.T
        with np.errstate(divide="ignore"):
            return turn, np.log(share) - 0.5 * (means.T * turn).sum(0)

    def _times(self, penalty: float) -> float:
        return penalty * len(self.rows.train.gold)

    def together(self) -> Together:
        """Fit on all layers once, and predict with sets of layers: the part of a layer is 0 at its mean over train."""
        every = range(len(self.slices))
        weight = _solve(self.gram, self.cross, self._times(self.penalty(every)))
        turn, shift = self._discriminant(weight, self.columns(every))
        weight = weight @ turn
        added = np.stack([self.scored[:, columns] @ weight[columns] for columns in self.slices])
        step = max(1, AT_ONCE // added[0].size)

        def predict(masks: Bool[np.ndarray, "M L"]) -> NDArray[np.generic]:
            parts = (masks[start : start + step].astype(np.float64) for start in range(0, len(masks), step))
            return np.concatenate([self.rows.decide(np.tensordot(part, added, 1) + shift) for part in parts])[None]

        return predict


def _factor(gram: Float[np.ndarray, "d d"], penalty: float) -> tuple[Float[np.ndarray, "d d"], bool]:
    try:
        factor, is_lower = cho_factor(gram + penalty * np.eye(len(gram)), lower=True)
    except LinAlgError as error:
        raise HeadError(f"a readout of layers cannot be fitted ({error}); check the latents.") from error
    return factor, is_lower


def _solve(gram: Float[np.ndarray, "d d"], cross: Float[np.ndarray, "d K"], penalty: float) -> Float[np.ndarray, "d K"]:
    return np.asarray(cho_solve(_factor(gram, penalty), cross))


def _error(
    weight: Float[np.ndarray, "d K"], gram: Float[np.ndarray, "d d"], cross: Float[np.ndarray, "d K"], square: float
) -> float:
    """Return the squared error of weights on rows of which only the sums are known."""
    return float(square - 2 * (weight * cross).sum() + (weight * (gram @ weight)).sum())


@dataclass(frozen=True, eq=False)
class SetPredictions:
    """Predictions of the scored split by readouts of sets of layers, a row each.

    `without` has all layers but one, under the penalty of all; `beside` the best and this one; `prefix` and `suffix`
    all up to this one and from it on; `greedy` the first of `picks`.
    """

    whole: NDArray[np.generic]
    best: NDArray[np.generic]
    without: NDArray[np.generic]
    beside: NDArray[np.generic]
    prefix: NDArray[np.generic]
    suffix: NDArray[np.generic]
    greedy: NDArray[np.generic]
    picks: tuple[int, ...]


def predict_sets(readout: Readout, best: int) -> SetPredictions:
    """Fit a readout on every set, and predict; picks are made by the error on rows of train that a fold leaves out."""
    n, decide = len(readout.slices), readout.rows.decide
    every = list(range(n))
    penalty = readout.penalty(every)
    picks = pick_layers(readout.error, readout.penalty, n)
    return SetPredictions(
        decide(readout.outputs(every, penalty)[None]),
        decide(readout.outputs([best])[None]),
        decide(np.stack([readout.outputs([j for j in every if j != k], penalty) for k in every])),
        decide(np.stack([readout.outputs(sorted({best, k})) for k in every])),
        decide(np.stack(readout.growing(every))),
        decide(np.stack(readout.growing(every[::-1])))[::-1],
        decide(np.stack(readout.growing(picks))),
        picks,
    )


def pick_layers(
    error: Callable[[Sequence[int], float], float], penalty: Callable[[Sequence[int]], float], n_layers: int
) -> tuple[int, ...]:
    """Add the layer that lowers an error most, again and again, 8 times at most; gives the picks in order.

    Candidates are tried under the penalty of what is picked so far, of the first layer before the first pick.

    Example:
        >>> pick_layers(lambda layers, _: -len({k // 2 for k in layers}), lambda _: 1.0, 4)[:2]
        (0, 2)
    """
    chosen: tuple[int, ...] = ()
    while len(chosen) < min(n_layers, MOST_PICKS):
        under = penalty(chosen or (0,))
        rest = [k for k in range(n_layers) if k not in chosen]
        chosen = (*chosen, rest[int(np.argmin([error((*chosen, k), under) for k in rest]))])
    return chosen


class _Mix(nn.Module):
    """`gamma * sum_k softmax(s)_k norm(h_k)`, then a linear map; for pairs the cosine of both mixes instead."""

    def __init__(self, n_layers: int, width: int, n_outputs: int) -> None:
        super().__init__()
        self.preference = nn.Parameter(torch.zeros(n_layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.readout = nn.Linear(width, n_outputs)
        nn.init.zeros_(self.readout.weight)
        self.line = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, latents: Float[Tensor, "L B T D"]) -> Float[Tensor, "B K"]:
        mixed = torch.einsum("l,lbtd->btd", self.preference.softmax(0), latents)
        if mixed.shape[1] == 2:
            cosine = nn.functional.cosine_similarity(mixed[:, 0], mixed[:, 1], dim=-1)
            return (self.line[0] * cosine + self.line[1])[:, None]
        outputs: Tensor = self.readout(self.gamma * mixed[:, 0])
        return outputs


def learn_mix(rows: LayerRows, *, seeds: tuple[int, ...]) -> Float[np.ndarray, "S L"]:
    """Fit the weights of a mix of all layers (Peters et al. 2018, section 3.2) by seed; similar layers share one."""
    first = rows.train.read(0)
    most = max(BATCH, MOST_NUMBERS // (len(rows.layers) * first.shape[0] * first.shape[2]))
    index = np.sort(np.random.default_rng(0).permutation(first.shape[1])[:most])
    latents = (torch.from_numpy(rows.train.read(k)[:, index]) for k in range(len(rows.layers)))
    normed = torch.stack([nn.functional.layer_norm(layer, layer.shape[-1:]) for layer in latents])
    data = normed.permute(0, 2, 1, 3)
    gold = torch.from_numpy(rows.train.gold[index])
    return np.stack([_fit(data, gold, rows.n_classes, seed) for seed in seeds])


def _fit(data: Float[Tensor, "L N T D"], gold: Tensor, n_classes: int, seed: int) -> Float[np.ndarray, " L"]:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        mix = _Mix(data.shape[0], data.shape[3], n_classes or 1)
    if not n_classes:
        gold = ((gold - gold.mean()) / gold.std().clamp(min=1e-12)).float()
    slow = [*mix.readout.parameters()]
    optimiser = torch.optim.AdamW(slow, lr=1e-3, weight_decay=0.01)
    optimiser.add_param_group({"params": [mix.preference, mix.gamma, mix.line], "lr": 3e-2, "weight_decay": 0.0})
    n = data.shape[1]
    for _ in range(max(EPOCHS, -(-EPOCHS * 50 * BATCH // (20 * n)))):  # a small task is gone over more often
        for index in torch.split(torch.randperm(n, generator=generator), BATCH):
            outputs = mix(data[:, index])
            loss = (
                nn.functional.cross_entropy(outputs, gold[index])
                if n_classes
                else nn.functional.mse_loss(outputs[:, 0], gold[index])
            )
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    return np.asarray(mix.preference.detach().softmax(0).numpy(), np.float64)


@dataclass(frozen=True, eq=False)
class LayerInformation:
    """Bits that each row of the scored split costs: without latents, by a probe of each layer, and of it and the best.

    `code` is what it takes each layer to send the gold of train (none for numbers), `uniform` without any learning.
    """

    prior: Float[np.ndarray, " M"]
    alone: Float[np.ndarray, "L M"]
    beside: Float[np.ndarray, "L M"]
    code: Float[np.ndarray, " C"]
    uniform: float


def measure_information(rows: LayerRows, best: int, *, components: int) -> LayerInformation:
    """Measure V-information (Xu et al. 2020), new information and online code length (Voita and Titov 2020).

    Probes are logistic regressions for classes and ridge regressions, with normal errors, for numbers, both on the
    first principal components of a layer; their penalties are chosen on a part of train.
    """
    parts = rows.reduced(components)
    coder = _Classes(rows) if rows.n_classes else _Numbers(rows)
    alone, picked = coder.losses(parts)
    others = [k for k in range(len(parts)) if k != best]
    beside = alone.copy()
    if others:
        beside[others] = coder.losses([_side_by_side(parts[best], parts[k]) for k in others])[0]
    code, uniform = coder.code([train for train, _ in parts], picked)
    return LayerInformation(coder.prior(), alone, beside, code, uniform)


def _side_by_side(one: Features, other: Features) -> Features:
    return np.concatenate([one[0], other[0]], axis=1), np.concatenate([one[1], other[1]], axis=1)


def _stack(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Stack the features of layers, of which those of few get columns of zeros."""
    width = max(part.shape[1] for part in parts)
    return np.stack([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts])


class _Classes:
    """Codes of classes."""

    def __init__(self, rows: LayerRows) -> None:
        self.rows, self.k = rows, rows.n_classes
        self.scored_gold = rows.scored.gold

    def prior(self) -> Float[np.ndarray, " M"]:
        counts = np.bincount(self.rows.train.gold, minlength=self.k) + 0.5
        return _bits(np.broadcast_to(counts / counts.sum(), (len(self.scored_gold), self.k)), self.scored_gold)

    def losses(self, parts: Sequence[Features]) -> tuple[Float[np.ndarray, "L M"], list[float]]:
        """Return the bits of every row, and the penalty chosen for each layer."""
        gold, inner = self.rows.train.gold, _inner(self.rows.train.units)
        train, scored = map(_stack, zip(*parts, strict=True))
        trial = self._probabilities(train[:, inner], gold[inner], train[:, ~inner], CS)
        best = np.array([[_bits(shares, gold[~inner]).mean() for shares in layer] for layer in trial]).argmin(1)
        final = self._probabilities(train, gold, scored, CS)
        bits = [_bits(layer[c], self.scored_gold) for layer, c in zip(final, best, strict=True)]
        return np.stack(bits), [CS[c] for c in best]

    def code(
        self, parts: Sequence[Float32[np.ndarray, "N _"]], picked: Sequence[float]
    ) -> tuple[Float[np.ndarray, " L"], float]:
        """Send the gold of train in portions that double: the first by equal odds, each further by a probe of those."""
        n = len(self.rows.train.gold)
        order = np.random.default_rng(0).permutation(n)
        gold, features = self.rows.train.gold[order], _stack(parts)[:, order]
        ends = [n]
        while ends[0] // 2 >= FEWEST:
            ends.insert(0, ends[0] // 2)
        bits = np.full(len(parts), ends[0] * np.log2(self.k))
        for C in set(picked):
            layers = [k for k, choice in enumerate(picked) if choice == C]
            for sent, end in pairwise(ends):
                shares = self._probabilities(features[layers, :sent], gold[:sent], features[layers, sent:end], [C])
                bits[layers] += [_bits(layer[0], gold[sent:end]).sum() for layer in shares]
        return bits, float(n * np.log2(self.k))

    def _probabilities(
        self, train: NDArray[np.float32], gold: Int[np.ndarray, " N"], rows: NDArray[np.float32], Cs: Sequence[float]
    ) -> Float[np.ndarray, "L C M K"]:
        """Return the probabilities of every class by layer and penalty; an unseen class gets its share."""
        seen, codes = np.unique(gold, return_inverse=True)
        if len(seen) == 1:
            shares = np.ones((len(train), len(Cs), rows.shape[1], 1))
        else:
            fit = fit_logistic(
                torch.from_numpy(train), torch.from_numpy(codes), Cs=list(Cs), n_classes=len(seen), options=SOLVER
            )
            shares = fit.logits(torch.from_numpy(rows)).double().softmax(-1).numpy()
        whole = np.full((*shares.shape[:3], self.k), SPREAD / self.k)
        whole[..., seen] += (1 - SPREAD) * shares
        return whole


class _Numbers:
    """Codes of numbers with normal errors, whose variance is that of rows left out of train."""

    def __init__(self, rows: LayerRows) -> None:
        self.rows = rows

    def prior(self) -> Float[np.ndarray, " M"]:
        return _normal_bits(self.rows.scored.gold - self.rows.train.gold.mean(), float(self.rows.train.gold.var()))

    def losses(self, parts: Sequence[Features]) -> tuple[Float[np.ndarray, "L M"], list[float]]:
        gold = self.rows.train.gold.astype(np.float64)
        bits, picked = [], []
        for train, scored in parts:
            fit = RidgeCV([penalty * len(gold) for penalty in PENALTIES]).fit(train.astype(np.float64), gold)
            errors = self.rows.scored.gold - fit.predict(scored.astype(np.float64))
            bits.append(_normal_bits(errors, -float(fit.best_score_)))
            picked.append(float(fit.alpha_))
        return np.stack(bits), picked

    def code(self, parts: Sequence[NDArray[np.float32]], picked: Sequence[float]) -> tuple[NDArray[np.float64], float]:
        """Return nothing: a number takes endlessly many bits."""
        del parts, picked
        return np.zeros(0), float("nan")


def _inner(units: Int[np.ndarray, " N"]) -> NDArray[np.bool_]:
    """Mark the rows of train that probes are tried on, whole units left out; all but one unit at most."""
    names = np.unique(units)
    n_out = min(max(1, round(HELD_OUT * len(names))), len(names) - 1)
    left_out = np.random.default_rng(0).permutation(names)[:n_out]
    return np.asarray(~np.isin(units, left_out))


def _bits(probabilities: Float[np.ndarray, "M K"], gold: Int[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """Return the bits of each row; a class that train does not have has the smallest share."""
    shares = np.take_along_axis(probabilities, np.maximum(gold, 0)[:, None], axis=1)[:, 0]
    return -np.log2(np.where(gold < 0, SPREAD / probabilities.shape[1], shares))


def _normal_bits(errors: Float[np.ndarray, " M"], variance: float) -> Float[np.ndarray, " M"]:
    safe = max(variance, 1e-12)
    return np.asarray(0.5 * (np.log2(2 * np.pi * safe) + errors**2 / safe * np.log2(np.e)))
