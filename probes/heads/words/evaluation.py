"""Scoring a head of words over its seeds: the layer chosen on validation, test read once."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from extract.digest import digest_json
from extract.errors import TaskError
from extract.store.cache import LatentCache
from probes.fitting.fit_or_load import fit_or_load
from probes.fitting.keep_best import EpochReport, ignore_epoch
from probes.fitting.saved import SavedHead
from probes.heads.words.description import coverage, describe_curve, describe_seed, selection
from probes.heads.words.fitting import fit_token_head, predict_logits
from probes.heads.words.judging import Judge, judge_of, majority_ids
from probes.heads.words.mixing import describe_mix
from probes.heads.words.options import WordHeadOptions
from probes.latents.word_latents import WordLatents
from probes.metrics.spans import NO_PREDICTION
from probes.networks.token_heads import TOKEN_HEADS, TokenHead, TokenMix
from probes.tasks.held_back import without_test
from probes.tasks.words.task import WordTask

MIX = "mix"
"""What stands for the layer of a head that reads a mix of all of them."""


@dataclass(frozen=True)
class WordSetting:
    """What all heads of a run share.

    Attributes:
        cache: The word latents.
        task: The sentences.
        seeds: Seeds; every head is fitted once per seed.
        n_resamples: Bootstrap resamples.
        device: Where heads are fitted.
        folder: Where fitted heads are kept, one folder per head and seed.
        protocol: Recorded with the heads.
    """

    cache: LatentCache
    task: WordTask
    seeds: tuple[int, ...]
    n_resamples: int
    device: str
    folder: Path
    protocol: str = "icecore"


@dataclass(frozen=True, eq=False)
class WordResult:
    """What came of a head.

    Attributes:
        scores: Plain values, as they stand in scores.json.
        names: Split to its tags: what predictions are positions of.
        predictions: Split to the classes `(W,)` that the chosen layer predicts with the first seed;
            `NO_PREDICTION` for words without a latent.
        confusion: Split to counts of gold tags (rows) and predicted ones (columns, the last being no prediction).
    """

    scores: dict[str, Any]
    names: dict[str, tuple[str, ...]]
    predictions: dict[str, Int[np.ndarray, " W"]]
    confusion: dict[str, Int[np.ndarray, "G P"]]


def evaluate_token_head(
    name: str, resolved: WordHeadOptions, setting: WordSetting, *, watch: Callable[[int], EpochReport] | None = None
) -> WordResult:
    """Fit a head for every seed, choose a layer on validation, and read the test split once.

    A fitted head that was kept under the very same circumstances is loaded instead of fitted again.

    Args:
        name: A key of `TOKEN_HEADS`.
        resolved: Its options.
        setting: What all heads of the run share.
        watch: Gives, for a seed, the function that is told of every epoch.

    Returns:
        Scores: the validation curve over layers, the chosen layer, per split the metric with spread and interval, the
        table by type, spans decoded in other ways, the most frequent errors, the majority baseline and the words
        without a latent.

    Raises:
        HeadError: The head could not be fitted.
        TaskError: The task lacks a split.
    """
    options = resolved.options
    data = WordLatents(
        setting.cache, setting.task, pooling=resolved.pooling, layers=resolved.layers, batch_size=options.batch_size,
        streaming=options.streaming(),
    )  # fmt: skip
    fitted = [_fit_seed(name, resolved, setting, data=data, seed=seed, watch=watch) for seed in setting.seeds]
    is_mix = isinstance(fitted[0].head, TokenMix)
    names = (MIX,) if is_mix else data.layers
    curve = np.array([each.record["scores"] for each in fitted])
    if not curve.size and len(names) > 1:
        raise TaskError(
            f"task {setting.task.name!r} has no split 'validation' to choose among {len(names)} layers on; add rows to "
            "it, or name one layer with `layers`."
        )
    probe = int(np.argmax(curve.mean(0))) if curve.size else 0
    chosen = _Chosen([each.head.only(probe) for each in fitted], data, None if is_mix else probe)
    found = {split: chosen.judge(split, resolved, n_resamples=setting.n_resamples) for split in setting.task.splits}
    scores = {
        "pooling": data.channels.pooling,
        "layers": list(names),
        "options": asdict(options),
        "metric": setting.task.metric,
        "selection": selection(resolved, n_layers=len(names)),
        "is_optimistic": options.leaves_out_cut and any(not rows.has_latent.all() for rows in data.rows.values()),
        "curve": describe_curve(curve),
        "chosen": {"layer": names[probe], "score": float(curve.mean(0)[probe]) if curve.size else None},
        "seeds": [describe_seed(each.record, probe) for each in fitted],
        **{key: {split: each.facts[key] for split, each in found.items()} for key in _FACTS},
        **_describe_mix(fitted, data, resolved),
    }
    return WordResult(
        scores,
        {split: each.judge.gold.names for split, each in found.items()},
        {split: each.ids for split, each in found.items()},
        {split: each.judge.confusion(each.ids) for split, each in found.items()},
    )


_FACTS = ("summary", "majority", "by_type", "decoding", "errors", "coverage")


@dataclass(frozen=True, eq=False)
class _Judged:
    """Predictions of one split, and what is told of them."""

    judge: Judge
    ids: Int[np.ndarray, " W"]
    facts: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The chosen probe of every seed."""

    heads: list[TokenHead]
    data: WordLatents
    channel: int | None

    def judge(self, split: str, resolved: WordHeadOptions, *, n_resamples: int) -> _Judged:
        """Predict a split, and only then look at its tags."""
        logits = [predict_logits(head, self.data, split, channel=self.channel) for head in self.heads]
        ids = np.stack([_best(each) for each in logits])
        options, metric = resolved.options, self.data.task.metric
        judge = judge_of(self.data, split, is_strict=options.is_strict, leaves_out_cut=options.leaves_out_cut)
        ways = [judge.decodings(*each) for each in zip(ids, logits, strict=True)] if metric == "span-f1" else []
        facts = {
            "summary": {metric: judge.summarise(ids, n_resamples=n_resamples).to_dict()},
            "majority": judge.score(majority_ids(self.data, judge)),
            "by_type": judge.by_type(ids),
            "decoding": {way: float(np.mean([each[way] for each in ways])) for way in ways[0]} if ways else {},
            "errors": judge.errors(ids[0]),
            "coverage": coverage(self.data, split),
        }
        return _Judged(judge, ids[0], facts)


def _best(logits: Float32[np.ndarray, "W K"]) -> Int[np.ndarray, " W"]:
    is_missing = np.isnan(logits).any(1)
    return np.where(is_missing, NO_PREDICTION, np.where(is_missing[:, None], 0, logits).argmax(1))


def _fit_seed(
    name: str, resolved: WordHeadOptions, setting: WordSetting, *, data: WordLatents, seed: int,
    watch: Callable[[int], EpochReport] | None,
) -> SavedHead[TokenHead]:  # fmt: skip
    """Fit a head with one seed, or load it."""
    options = resolved.options
    fit_id = digest_json(
        [
            name, asdict(options), data.channels.pooling, list(data.layers), seed,
            setting.cache.manifest.id, without_test(setting.task).digest(), setting.cache.identity["versions"],
            setting.device,
        ],
    )  # fmt: skip

    def fit() -> tuple[TokenHead, dict[str, Any]]:
        sizes = len(data.layers), data.cache.width, len(data.classes)
        head = TOKEN_HEADS[name](*sizes, seed=seed, **options.head_arguments())
        report = watch(seed) if watch else ignore_epoch
        found = fit_token_head(head, data, options, device=setting.device, report=report)
        return head, {
            "name": name,
            "classes": list(data.classes),
            "pooling": data.channels.pooling,
            "layers": list(data.layers),
            "seed": seed,
            "protocol": setting.protocol,
            "best_epochs": list(found.best_epochs),
            "offsets": list(found.offsets),
            "scores": list(found.scores),
            "history": list(found.history),
            "seconds": round(found.seconds, 3),
        }

    folder = setting.folder / name / f"seed_{seed}"
    return fit_or_load(folder, fit_id, fit, lambda record: TOKEN_HEADS[name](**record["arguments"]))


def _describe_mix(fitted: list[SavedHead[TokenHead]], data: WordLatents, resolved: WordHeadOptions) -> dict[str, Any]:
    heads = [each.head for each in fitted if isinstance(each.head, TokenMix)]
    if not heads:
        return {}
    how = {"is_strict": resolved.options.is_strict, "leaves_out_cut": resolved.options.leaves_out_cut}
    judge = judge_of(data, "validation", **how) if "validation" in data.rows else None
    return {"mix": describe_mix(heads, data, judge)}
