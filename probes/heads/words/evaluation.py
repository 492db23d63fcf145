"""Token heads: what they refuse, and how they are scored over seeds: layer chosen on validation, test read once."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from extract.errors import TaskError
from probes.fitting.protocols import MAGNET
from probes.fitting.saved import SavedHead, fit_or_load
from probes.fitting.unfinished import Unfinished
from probes.heads.entries import Purpose
from probes.heads.options import HeadOptions
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.heads.words.description import coverage, departures, describe_mix, describe_seed, selection, token_curves
from probes.heads.words.fitting import TokenFit, fit_token_head, predict_logits
from probes.heads.words.judging import Judge, judge_of, majority_ids
from probes.heads.words.options import ReadingOptions, token_options
from probes.latents.word_latents import WordLatents
from probes.metrics.bootstrap import SeedSummary
from probes.networks.token_heads import TokenHead, TokenMix

MIX = "mix"
"""What stands for the layer of a head that reads a mix of all of them."""


def check_words(task: Any, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse with a TaskError a task without the splits that token heads are fitted and chosen on."""
    if "train" not in task.splits:
        raise TaskError(f"task {task.name!r} has no split 'train', which every head needs; add rows to it.")
    if set(task.splits) == {"train"}:
        raise TaskError(f"task {task.name!r} has only the split train; add validation or test rows.")
    if "validation" not in task.splits and (purpose.chooses_plan or token_options(resolved).chooses_epoch):
        what, instead = ("its plan", "") if purpose.chooses_plan else ("its epoch", ", or set keep: last")
        raise TaskError(
            f"task {task.name!r} has no split 'validation', on which head {resolved.name!r} chooses {what}; add "
            f"rows to it{instead}."
        )


def evaluate_token_head(
    network: type[TokenHead], fit: Callable[..., TokenFit] | None, resolved: HeadOptions, setting: Setting, watch: Watch
) -> HeadResult:
    """Fit a head for every seed, or find it fitted, choose layer and decoding on validation, and read test once.

    Predictions are the classes of the chosen layer with the first seed. Extras: per split `by_type`, `decoding` (spans
    decoded in every way), `errors` and `coverage`; `mix` for a head that mixes layers.
    """
    options, task = token_options(resolved), setting.task
    data, fitted = fit_seeds(network, fit, resolved, setting, watch)
    is_mix = isinstance(fitted[0].head, TokenMix)
    names = (MIX,) if is_mix else data.layers
    ways = options.decodings(task.metric)
    grid = np.array([[each.record["decoded"].get(way, ()) for way in ways] for each in fitted])  # seeds, ways, probes
    way, probe = np.unravel_index(np.argmax(grid.mean(0)), grid.shape[1:]) if grid.size else (0, 0)
    decoding, curve = ways[int(way)], grid[:, int(way)]
    if not curve.size and len(names) > 1:
        raise TaskError(
            f"task {task.name!r} has no split 'validation' to choose among {len(names)} layers on; add rows to it, or "
            "name one layer with `layers`."
        )
    heads, channel = [each.head.only(int(probe)) for each in fitted], None if is_mix else int(probe)
    found = {
        split: _judge(
            heads,
            data,
            split,
            options,
            channel=channel,
            decoding=decoding,
            n_resamples=setting.n_resamples,
            with_accuracy=setting.protocol == MAGNET,
        )
        for split in task.splits
    }
    score = float(curve.mean(0)[probe]) if curve.size else None
    return HeadResult(
        name=resolved.name,
        pooling=data.channels.pooling,
        layers=names,
        options=asdict(options),
        metric=task.metric,
        selection=selection(options, n_layers=len(names), n_ways=len(ways) if grid.size else 1),
        selection_score=float("nan") if score is None else score,
        chosen={
            "layer": names[probe],
            "score": score,
            **({"decoding": decoding} if task.metric == "span-f1" else {}),
        },
        summary={split: each.summaries for split, each in found.items()},
        curves=token_curves(curve, task.metric),
        seeds=tuple(describe_seed(each.record, int(probe)) for each in fitted),
        baselines={"majority": {split: each.majority for split, each in found.items()}},
        optimistic_because=_why_optimistic(options, data),
        departures=departures(setting.protocol, setting.cache, data.channels.pooling),
        extras={
            **{key: {split: each.facts[key] for split, each in found.items()} for key in _FACTS},
            **_describe_mix(fitted, data, options),
        },
        predictions={split: each.ids for split, each in found.items()},
        names={split: each.judge.gold.names for split, each in found.items()},
        row_scores={split: each.judge.sentence_scores(each.ids) for split, each in found.items()},
    )


def fit_seeds(
    network: type[TokenHead], fit: Callable[..., TokenFit] | None, resolved: HeadOptions, setting: Setting, watch: Watch
) -> tuple[WordLatents, list[SavedHead[TokenHead]]]:
    """Fit a head with every seed, or load it; gives the words it reads as well."""
    options = token_options(resolved)
    data = WordLatents(
        setting.cache, setting.task, pooling=resolved.pooling, layers=resolved.layers, streaming=options.streaming()
    )
    return data, [
        _fit_seed(network, fit, resolved, setting, data=data, seed=seed, watch=watch)
        for seed in options.seeds(setting.seeds)
    ]


def _why_optimistic(options: ReadingOptions, data: WordLatents) -> str:
    is_missing = any(not rows.has_latent.all() for rows in data.rows.values())
    return "words without a latent are left out of the scores" if options.leaves_out_cut and is_missing else ""


_FACTS = ("by_type", "decoding", "errors", "coverage")


@dataclass(frozen=True, eq=False)
class _Judged:
    """Predictions of one split, and how they score."""

    judge: Judge
    ids: Int[np.ndarray, " W"]
    summaries: dict[str, SeedSummary]
    majority: float
    facts: dict[str, Any]


def _judge(
    heads: list[TokenHead],
    data: WordLatents,
    split: str,
    options: ReadingOptions,
    *,
    channel: int | None,
    decoding: str,
    n_resamples: int,
    with_accuracy: bool,
) -> _Judged:
    """Predict a split by the chosen probe of every seed, decoded as chosen, and only then look at its tags."""
    logits = [predict_logits(head, data, split, channel=channel) for head in heads]
    judge = judge_of(data, split, **options.judging())
    ids = np.stack([judge.decode(each, decoding) for each in logits])
    ways = [judge.decodings(each) for each in logits] if judge.metric == "span-f1" else []
    facts = {
        "by_type": judge.by_type(ids),
        "decoding": {way: float(np.mean([each[way] for each in ways])) for way in ways[0]} if ways else {},
        "errors": judge.errors(ids[0]),
        "coverage": coverage(data, split),
    }
    judges = [judge, *([replace(judge, metric="accuracy")] if with_accuracy and judge.metric != "accuracy" else [])]
    summaries = {each.metric: each.summarise(ids, n_resamples=n_resamples) for each in judges}
    return _Judged(judge, ids[0], summaries, judge.score(majority_ids(data, split)), facts)


def _fit_seed(
    network: type[TokenHead],
    fit: Callable[..., TokenFit] | None,
    resolved: HeadOptions,
    setting: Setting,
    *,
    data: WordLatents,
    seed: int,
    watch: Watch,
) -> SavedHead[TokenHead]:
    """Fit a head with one seed, or load it."""
    name, options = resolved.name, token_options(resolved)
    folder = setting.folder / name / f"seed_{seed}"
    fit_id = setting.identify(
        name, asdict(options), data.channels.pooling, list(data.layers), seed, more=[setting.device]
    )

    def fitted() -> tuple[TokenHead, dict[str, Any]]:
        sizes = len(data.layers), data.cache.width_of(data.channels.layers), len(data.classes)
        head = network(*sizes, seed=seed, **options.head_arguments())
        found = (fit or fit_token_head)(
            head, data, options, device=setting.device, report=watch(seed), unfinished=Unfinished(folder, fit_id)
        )
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
            "decoded": {way: list(scores) for way, scores in found.decoded.items()},
            "history": list(found.history),
            "seconds": round(found.seconds, 3),
        }

    return fit_or_load(folder, fit_id, fitted, lambda record: network(**record["arguments"]), cache=setting.cache)


def _describe_mix(fitted: list[SavedHead[TokenHead]], data: WordLatents, options: ReadingOptions) -> dict[str, Any]:
    heads = [each.head for each in fitted if isinstance(each.head, TokenMix)]
    if not heads:
        return {}
    judge = judge_of(data, "validation", **options.judging()) if "validation" in data.rows else None
    return {"mix": describe_mix(heads, data, judge)}
