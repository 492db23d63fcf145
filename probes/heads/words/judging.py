"""Judging the predictions of one split: one score a layer in training; everything a report tells of the chosen one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from probes.latents.word_latents import GoldTags, WordLatents
from probes.metrics.bootstrap import Resampling, SeedSummary, number_units
from probes.metrics.decoding import DECODINGS, decode_tags
from probes.metrics.intervals import summarise_accuracy, summarise_span_f1
from probes.metrics.spans import SpanCounts, SpanLabels, count_spans, f1_of_counts, index_labels, score_spans
from probes.metrics.unit_scorer import UnitScorer, add_up, right_scorer
from probes.tasks.words.task import usual_tags

ABSENT = "(no prediction)"
EXAMPLES = 4
"""Words shown for each kind of error."""


@dataclass(frozen=True, eq=False)
class Judge:
    """The gold of one split, and how predictions of it are scored.

    Attributes:
        gold: The gold tags.
        offsets: Where each sentence starts, and the last one ends.
        words: The words themselves.
        documents: The document of each sentence, to resample whole documents, or one name for equal sentences; None
            resamples sentences.
        metric: `span-f1` or `accuracy`.
        is_strict: Whether a span must begin with B.
        kept: Positions of the words that are scored; all of them when None.
        resampled: What that is called, `documents` or `sentences`.
    """

    gold: GoldTags
    offsets: Int[np.ndarray, " N_1"]
    words: Sequence[str]
    documents: Sequence[str] | None
    metric: str
    is_strict: bool = False
    kept: Int[np.ndarray, " V"] | None = None
    resampled: str = "sentences"

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
        """Mean and spread over seeds, with a bootstrap interval over documents, else sentences, equal ones together.

        The interval is NaN where there is only one of them.
        """
        resampling = Resampling(n_resamples)
        if self.metric == "accuracy":
            right = np.stack([self._pick(row) == self._gold for row in ids])
            return summarise_accuracy(right, offsets=self._offsets, documents=self.documents, resampling=resampling)
        counts = np.stack([self.count(row).by_sentence() for row in ids])
        return summarise_span_f1(counts, documents=self.documents, resampling=resampling)

    def by_type(self, ids: Int[np.ndarray, "S W"]) -> list[dict[str, Any]]:
        """Return the table of conlleval (for tags without spans: of each tag), the counts of all seeds added up.

        Precision, recall and F1 are of the sums; `n_gold` is of one seed.
        """
        if self.metric == "accuracy":
            sums = {name: np.zeros(3, dtype=np.int64) for name in self.gold.names}
            for row in ids:
                picked = self._pick(row)
                for k, name in enumerate(self.gold.names):
                    found, wanted = picked == k, self._gold == k
                    sums[name] += (int((found & wanted).sum()), int(found.sum()), int(wanted.sum()))
        else:
            counts = [self.count(row) for row in ids]
            sides = [[each.n_correct, each.n_predicted, each.n_gold] for each in counts]
            sums = dict(zip(counts[0].types, np.sum(sides, axis=(0, 2)).T, strict=True))
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

    def errors(self, ids: Int[np.ndarray, " W"], *, most: int = 15) -> list[dict[str, Any]]:
        """Return the most frequent pairs of a gold tag and another predicted one, with some words each."""
        wrong = np.flatnonzero(self._pick(ids) != self._gold)
        if self.kept is not None:
            wrong = self.kept[wrong]
        names = (*self.gold.names, ABSENT)  # NO_PREDICTION is -1
        places: list[int] = wrong.tolist()
        pairs = [(names[self.gold.ids[k]], names[ids[k]]) for k in places]
        shown: dict[tuple[str, str], Counter[str]] = {}
        for pair, k in zip(pairs, places, strict=True):
            shown.setdefault(pair, Counter())[self.words[k]] += 1
        return [
            {
                "gold": pair[0],
                "predicted": pair[1],
                "n": n,
                "words": [word for word, _ in shown[pair].most_common(EXAMPLES)],
            }
            for pair, n in Counter(pairs).most_common(most)
        ]

    def sentence_scores(self, ids: Int[np.ndarray, " W"]) -> Float[np.ndarray, " N"]:
        """Score every sentence by itself, for paired tests: its share of right words; NaN where it has none."""
        right = np.concatenate([[0], np.cumsum(self._pick(ids) == self._gold)])
        sizes = np.diff(self._offsets)
        return np.where(sizes > 0, np.diff(right[self._offsets]) / np.maximum(sizes, 1), np.nan)

    def scorer(self) -> UnitScorer:
        """Return how predictions `(M, W)` of the split are scored and resampled."""
        sizes = np.diff(self._offsets)
        n_sentences, unit = len(sizes), self.resampled
        names = self.documents if self.documents is not None else [str(k) for k in range(n_sentences)]
        units = number_units(names, n_sentences)
        if self.metric == "accuracy":
            right = right_scorer(self._gold, np.repeat(units, sizes), unit=unit)
            return replace(
                right,
                count=lambda ids: right.count(_rows(ids)[:, self._kept]),
                quick=lambda ids: np.asarray((_rows(ids)[:, self._kept] == self._gold).mean(-1)),
            )

        def count(ids: NDArray[np.generic]) -> Float[np.ndarray, "M U 3"]:
            counts = np.stack([self.count(row).by_sentence() for row in _rows(ids)]).astype(np.float64)
            return add_up(counts, units, int(units.max()) + 1)

        return UnitScorer(self.metric, unit, int(units.max()) + 1, 3, count, f1_of_counts)

    @property
    def _kept(self) -> Int[np.ndarray, " V"] | slice:
        return slice(None) if self.kept is None else self.kept

    @cached_property
    def _labels(self) -> SpanLabels:
        return index_labels(self.gold.names)

    @cached_property
    def _gold(self) -> NDArray[np.int64]:
        return self._pick(self.gold.ids)

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        if self.kept is None:
            return self.offsets
        return np.searchsorted(self.kept, self.offsets)

    def _pick(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return ids if self.kept is None else ids[self.kept]


def _rows(ids: NDArray[np.generic]) -> NDArray[np.int64]:
    return np.asarray(ids, np.int64)


def judge_of(data: WordLatents, split: str, *, is_strict: bool = False, leaves_out_cut: bool = False) -> Judge:
    """Look at the tags of a split, to judge predictions of it.

    `is_strict` asks a span to begin with B; `leaves_out_cut` leaves words without a latent out, not counting them as
    errors.
    """
    rows, part, units = data.split(split), data.task.splits[split], data.task.units(split)
    return Judge(
        data.gold(split),
        rows.offsets,
        [word for words in part["words"] for word in words],
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


def _shares(name: str, sums: NDArray[np.int64], n_seeds: int) -> dict[str, Any]:
    n_correct, n_predicted, n_gold = (int(n) for n in sums)
    return {
        "type": name,
        "precision": n_correct / n_predicted if n_predicted else 0.0,
        "recall": n_correct / n_gold if n_gold else 0.0,
        "f1": 2 * n_correct / (n_predicted + n_gold),
        "n_gold": n_gold // n_seeds,
    }
