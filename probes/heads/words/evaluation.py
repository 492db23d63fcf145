"""Scoring a token head over its seeds: the layer chosen on validation, test read once."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from extract.digest import digest_json
from extract.errors import TaskError
from probes.fitting.saved import SavedHead, fit_or_load
from probes.heads.options import HeadOptions
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.heads.words.description import coverage, departures, describe_seed, selection, token_curves
from probes.heads.words.fitting import fit_token_head, predict_logits
from probes.heads.words.judging import Judge, judge_of, majority_ids
from probes.heads.words.mixing import describe_mix
from probes.heads.words.options import TokenOptions, token_options
from probes.latents.word_latents import WordLatents
from probes.metrics.bootstrap import SeedSummary
from probes.metrics.spans import NO_PREDICTION
from probes.networks.token_heads import TokenHead, TokenMix

MIX = "mix"
"""What stands for the layer of a head that reads a mix of all of them."""


def evaluate_token_head(network: type[TokenHead], resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Fit a head for every seed, choose a layer on validation, and read the test split once.

    A fitted head that was kept under the very same circumstances is loaded instead of fitted again.

    Args:
        network: The head's class.
        resolved: Its options.
        setting: What all heads of the run share.
        watch: Makes, for a seed, the function that receives every epoch.

    Returns:
        The result. Predictions are the classes of the chosen layer with the first seed. Extras: per split `by_type`,
        `decoding` (spans decoded in other ways), `errors` and `coverage`; `mix` for a head that mixes layers.

    Raises:
        HeadError: The head could not be fitted.
        TaskError: The task lacks a split.
    """
    options, task = token_options(resolved), setting.task
    data = WordLatents(
        setting.cache, task, pooling=resolved.pooling, layers=resolved.layers, batch_size=options.batch_size,
        streaming=options.streaming(),
    )  # fmt: skip
    fitted = [_fit_seed(network, resolved, setting, data=data, seed=seed, watch=watch) for seed in setting.seeds]
    is_mix = isinstance(fitted[0].head, TokenMix)
    names = (MIX,) if is_mix else data.layers
    curve = np.array([each.record["scores"] for each in fitted])
    if not curve.size and len(names) > 1:
        raise TaskError(
            f"task {task.name!r} has no split 'validation' to choose among {len(names)} layers on; add rows to it, or "
            "name one layer with `layers`."
        )
    probe = int(np.argmax(curve.mean(0))) if curve.size else 0
    chosen = _Chosen([each.head.only(probe) for each in fitted], data, None if is_mix else probe)
    found = {split: chosen.judge(split, options, n_resamples=setting.n_resamples) for split in task.splits}
    score = float(curve.mean(0)[probe]) if curve.size else None
    return HeadResult(
        name=resolved.name,
        pooling=data.channels.pooling,
        layers=names,
        options=asdict(options),
        metric=task.metric,
        selection=selection(options, n_layers=len(names)),
        selection_score=float("nan") if score is None else score,
        chosen={"layer": names[probe], "score": score},
        summary={split: {task.metric: each.summary} for split, each in found.items()},
        curves=token_curves(curve, task.metric),
        seeds=tuple(describe_seed(each.record, probe) for each in fitted),
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


def _why_optimistic(options: TokenOptions, data: WordLatents) -> str:
    is_missing = any(not rows.has_latent.all() for rows in data.rows.values())
    return "words without a latent are left out of the scores" if options.leaves_out_cut and is_missing else ""


_FACTS = ("by_type", "decoding", "errors", "coverage")


@dataclass(frozen=True, eq=False)
class _Judged:
    """Predictions of one split, and how they score."""

    judge: Judge
    ids: Int[np.ndarray, " W"]
    summary: SeedSummary
    majority: float
    facts: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The chosen probe of every seed."""

    heads: list[TokenHead]
    data: WordLatents
    channel: int | None

    def judge(self, split: str, options: TokenOptions, *, n_resamples: int) -> _Judged:
        """Predict a split, and only then look at its tags."""
        logits = [predict_logits(head, self.data, split, channel=self.channel) for head in self.heads]
        ids = np.stack([_best(each) for each in logits])
        metric = self.data.task.metric
        judge = judge_of(self.data, split, is_strict=options.is_strict, leaves_out_cut=options.leaves_out_cut)
        ways = [judge.decodings(*each) for each in zip(ids, logits, strict=True)] if metric == "span-f1" else []
        facts = {
            "by_type": judge.by_type(ids),
            "decoding": {way: float(np.mean([each[way] for each in ways])) for way in ways[0]} if ways else {},
            "errors": judge.errors(ids[0]),
            "coverage": coverage(self.data, split),
        }
        summary = judge.summarise(ids, n_resamples=n_resamples)
        return _Judged(judge, ids[0], summary, judge.score(majority_ids(self.data, judge)), facts)


def _best(logits: Float32[np.ndarray, "W K"]) -> Int[np.ndarray, " W"]:
    is_missing = np.isnan(logits).any(1)
    return np.where(is_missing, NO_PREDICTION, np.where(is_missing[:, None], 0, logits).argmax(1))


def _fit_seed(
    network: type[TokenHead], resolved: HeadOptions, setting: Setting, *, data: WordLatents, seed: int, watch: Watch
) -> SavedHead[TokenHead]:
    """Fit a head with one seed, or load it."""
    name, options = resolved.name, token_options(resolved)
    fit_id = digest_json(
        [
            name, asdict(options), data.channels.pooling, list(data.layers), seed,
            setting.cache.manifest.id, setting.task.without_test().digest(), setting.cache.identity["versions"],
            setting.device,
        ],
    )  # fmt: skip

    def fit() -> tuple[TokenHead, dict[str, Any]]:
        sizes = len(data.layers), data.cache.width, len(data.classes)
        head = network(*sizes, seed=seed, **options.head_arguments())
        found = fit_token_head(head, data, options, device=setting.device, report=watch(seed))
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
    return fit_or_load(folder, fit_id, fit, lambda record: network(**record["arguments"]))


def _describe_mix(fitted: list[SavedHead[TokenHead]], data: WordLatents, options: TokenOptions) -> dict[str, Any]:
    heads = [each.head for each in fitted if isinstance(each.head, TokenMix)]
    if not heads:
        return {}
    how = {"is_strict": options.is_strict, "leaves_out_cut": options.leaves_out_cut}
    judge = judge_of(data, "validation", **how) if "validation" in data.rows else None
    return {"mix": describe_mix(heads, data, judge)}
