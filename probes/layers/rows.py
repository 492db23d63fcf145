"""What probes of layers are fitted on and scored by: features and targets of train and of one further split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from numpy.typing import NDArray

from extract.store.cache import LatentCache
from probes.heads.classes.results import training_codes
from probes.heads.layerwise import only_channel
from probes.heads.parts import split_scorer
from probes.heads.words.judging import judge_of
from probes.latents.channels import Channels, channels_of
from probes.latents.class_features import join_pair
from probes.latents.pair_latents import PairLatents
from probes.latents.word_latents import WordLatents
from probes.metrics.bootstrap import number_units
from probes.metrics.spans import NO_PREDICTION
from probes.metrics.unit_scorer import UnitScorer
from probes.networks.layer_cosine import LayerCosine

Read = Callable[[int, bool], Float32[np.ndarray, "T N D"]]
"""Reads the latents of a layer, by its position, of train (True) or of the scored split; `T` texts in a row."""


@dataclass(frozen=True, eq=False)
class LayerRows:
    """Rows of train and of the split that is scored, layer by layer.

    Attributes:
        layers: The `L` layers, bottom up.
        read: Reads latents.
        features: Reads what a probe of a layer sees, `(N, F)`, by position, of train (True) or of the scored split.
        gold: Gold of train: `(N,)` numbers, or classes from 0.
        scored_gold: Gold of the scored split; -1 for a class that train has not.
        n_classes: How many classes; 0 for numbers.
        units: The unit of each row of train, numbered: rows of one unit stay in one fold.
        scored_units: The unit of each row of the scored split.
        decide: Turns outputs `(M, N, K)` on the scored split into predictions `(M, N')` as the scorer takes them.
        scorer: How predictions of the scored split are scored.
    """

    layers: tuple[str, ...]
    read: Read
    features: Callable[[int, bool], Float32[np.ndarray, "N F"]]
    gold: NDArray[Any]
    scored_gold: NDArray[Any]
    n_classes: int
    units: Int[np.ndarray, " N"]
    scored_units: Int[np.ndarray, " M"]
    decide: Callable[[NDArray[np.float64]], NDArray[Any]]
    scorer: UnitScorer

    def targets(self) -> Float[np.ndarray, "N K"]:
        """Return the gold of train as numbers, one column, or as an indicator of each class."""
        if self.n_classes:
            return np.asarray(np.eye(self.n_classes)[self.gold])
        return np.asarray(self.gold[:, None], np.float64)


def rows_of(
    cache: LatentCache, task: Any, *, pooling: str, layers: Sequence[str], split: str, metric: str, most_rows: int
) -> LayerRows:
    """Read the rows of a task, a draw of at most `most_rows` of train, with a fixed seed."""
    channels = channels_of(cache, pooling, layers)
    return _KINDS[task.kind](cache, task, channels, split, metric, most_rows)


def _drawn(n_rows: int, most: int) -> Int[np.ndarray, " n"]:
    """Draw positions without replacement, ascending; all of them where there are no more."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(0).choice(n_rows, most, replace=False))


def _pair_rows(cache: LatentCache, task: Any, channels: Channels, split: str, metric: str, most_rows: int) -> LayerRows:
    data = PairLatents(cache, task, pooling=channels.pooling, layers=channels.layers, batch_size=1)
    kept = {True: _drawn(len(data.split("train")), most_rows), False: np.arange(len(data.split(split)))}
    names = {True: "train", False: split}

    def read(place: int, is_train: bool) -> Float32[np.ndarray, "2 N D"]:
        part, one = data.split(names[is_train]), only_channel(channels, place)
        rows = [side[torch.from_numpy(kept[is_train])] for side in part.rows]
        return torch.stack([one.gather(cache, side)[0] for side in rows]).float().numpy()

    head = LayerCosine(len(data.layers), cache.width_of(channels.layers))
    standardiser = data.standardiser()
    head.mean.copy_(standardiser.mean.unsqueeze(1))
    head.scale.copy_(standardiser.scale.unsqueeze(1))
    with torch.no_grad():
        cosines = {
            is_train: torch.cat([head.each(batch.a, batch.b)[1] for batch in data.loader(name)], 1).numpy()
            for is_train, name in names.items()
        }
    return LayerRows(
        data.layers,
        read,
        lambda place, is_train: cosines[is_train][place, kept[is_train], None],
        np.asarray(task.gold01("train"), np.float64)[kept[True]],
        np.asarray(task.gold01(split), np.float64),
        0,
        kept[True],
        number_units(task.units(split), len(kept[False])),
        _first_output,
        split_scorer(task, split, metric),
    )


def _text_rows(cache: LatentCache, task: Any, channels: Channels, split: str, metric: str, most_rows: int) -> LayerRows:
    kept = {True: _drawn(len(task.rows("train")), most_rows), False: np.arange(len(task.rows(split)))}
    names = {True: "train", False: split}

    is_pairs = getattr(task, "is_pairs", False)

    def read(place: int, is_train: bool) -> Float32[np.ndarray, "T N D"]:
        part, one = task.rows(names[is_train]), only_channel(channels, place)
        rows = [
            cache.rows_of(np.asarray(part[column], object)[kept[is_train]].tolist()) for column in task.text_columns
        ]
        return torch.stack([one.gather(cache, side)[0] for side in rows]).float().numpy()

    def features(place: int, is_train: bool) -> Float32[np.ndarray, "N D"]:
        sides = torch.from_numpy(read(place, is_train))
        return np.asarray(join_pair(*sides[:, None])[0].numpy() if is_pairs else sides[0].numpy())

    drawn = {True: task.groups("train"), False: task.units(split)}
    units = {is_train: number_units(drawn[is_train], len(task.rows(name))) for is_train, name in names.items()}
    return partial(
        LayerRows,
        channels.names,
        read,
        features,
        units=units[True][kept[True]],
        scored_units=units[False],
        scorer=split_scorer(task, split, metric),
    )(**_text_gold(task, split, kept[True]))


def _text_gold(task: Any, split: str, kept: Int[np.ndarray, " n"]) -> dict[str, Any]:
    if task.kind == "numbers":
        return {
            "gold": task.numbers("train")[kept],
            "scored_gold": task.numbers(split),
            "n_classes": 0,
            "decide": _first_output,
        }
    classes = np.asarray(task.training_classes)
    known = {number: place for place, number in enumerate(classes.tolist())}
    return {
        "gold": training_codes(task).numpy()[kept],
        "scored_gold": np.array([known.get(number, -1) for number in task.labels(split).tolist()]),
        "n_classes": len(classes),
        "decide": lambda outputs: classes[outputs.argmax(-1)],
    }


def _word_rows(cache: LatentCache, task: Any, channels: Channels, split: str, metric: str, most_rows: int) -> LayerRows:
    del metric  # that of the task
    data = WordLatents(cache, task, pooling=channels.pooling, layers=channels.layers)
    names, places = {True: "train", False: split}, {}
    for is_train, name in names.items():
        known = np.flatnonzero(data.split(name).has_latent)
        places[is_train] = known[_drawn(len(known), most_rows)] if is_train else known

    def features(place: int, is_train: bool) -> Float32[np.ndarray, "N D"]:
        wanted = places[is_train]
        found = np.empty((len(wanted), cache.width_of(channels.layers)), np.float32)
        for batch in data.loader(names[is_train], channel=place):
            words = batch.words.numpy()
            is_wanted = np.isin(words, wanted)
            found[np.searchsorted(wanted, words[is_wanted])] = batch.latents[0].numpy()[is_wanted]
        return found

    n_words, judge = data.split(split).n_words, judge_of(data, split)

    def decide(outputs: NDArray[np.float64]) -> Int[np.ndarray, "M W"]:
        ids = np.full((len(outputs), n_words), NO_PREDICTION, np.int64)
        ids[:, places[False]] = outputs.argmax(-1)
        return ids

    sentences = {
        is_train: np.repeat(np.arange(len(data.split(name).offsets) - 1), np.diff(data.split(name).offsets))
        for is_train, name in names.items()
    }
    scored = data.gold(split).ids[places[False]]
    return LayerRows(
        data.layers,
        lambda place, is_train: features(place, is_train)[None],
        features,
        data.gold("train").ids[places[True]],
        np.where(scored < len(data.classes), scored, -1),
        len(data.classes),
        sentences[True][places[True]],
        sentences[False][places[False]],
        decide,
        judge.scorer(),
    )


def _first_output(outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    return outputs[..., 0]


_KINDS = {"pairs": _pair_rows, "classes": _text_rows, "numbers": _text_rows, "words": _word_rows}
FITTED_KINDS = tuple(_KINDS)
"""Kinds whose heads are fitted on gold."""
