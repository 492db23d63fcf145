"""Fitting a head for every seed and scoring it: the part of a run that depends on one head alone."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from extract.cache import LatentCache
from extract.digest import digest_json
from extract.errors import HeadError
from probes.calibration import fit_linear
from probes.contributions import average_contributions, layer_contributions
from probes.data import PairLatents
from probes.fit import EpochReport, FitResult, fit_head, ignore_epoch, predict_pairs
from probes.heads.base import PairHead
from probes.heads.layer_cosine import KINDS, LayerCosine
from probes.heads.options import HeadOptions, resolve_options
from probes.heads.registry import head_entry
from probes.heads.saved import load_head, save_head
from probes.metrics import METRICS, correlations
from probes.statistics import summarise_seeds
from probes.tasks import PairTask


@dataclass(frozen=True)
class Setting:
    """What all heads of a run share.

    Attributes:
        cache: The latents.
        task: The pairs.
        seeds: Seeds of trained heads.
        n_resamples: Bootstrap resamples.
        device: Where heads are fitted.
        folder: Where fitted heads are kept, one folder per head and seed.
    """

    cache: LatentCache
    task: PairTask
    seeds: tuple[int, ...]
    n_resamples: int
    device: str
    folder: Path


def evaluate_head(
    name: str, options: dict[str, Any], setting: Setting, *, watch: Callable[[int], EpochReport] | None = None
) -> dict[str, Any]:
    """Fit a head for every seed, choose on validation, and read the test split once.

    A fitted head that was kept under the very same circumstances is loaded instead of fitted again.

    Args:
        name: A head from the registry.
        options: Its options, as in a config.
        setting: What all heads of the run share.
        watch: Gives, for a seed, the function that is told of every epoch.

    Returns:
        Plain values: per seed the epoch, history and correlations per split; per split the mean, spread and interval
        over seeds; contributions of the layers; for the layer cosine its curves.

    Raises:
        HeadError: The head could not be fitted.
        TaskError: The task has no training or validation split.
    """
    resolved = resolve_options(name, options)
    entry = head_entry(name)
    seeds = setting.seeds if entry.head.is_trained else setting.seeds[:1]
    fitted = [_fit_seed(name, resolved, setting, seed, watch=watch) for seed in seeds]
    first = fitted[0]
    result: dict[str, Any] = {
        "pooling": first.data.pooling,
        "layers": list(first.data.layers),
        "options": {**resolved.arguments, **vars(resolved.fit)} if entry.head.is_trained else {},
        "seeds": [each.describe() for each in fitted],
        "summary": {
            split: {
                metric: _summarise([each.predictions[split] for each in fitted], setting, split, metric)
                for metric in METRICS
            }
            for split in setting.task.splits
        },
    }
    if isinstance(first.head, LayerCosine):
        result["curves"] = _curves(first.head, first.data)
        kind, layer = first.head.chosen.tolist()
        result["chosen"] = {"kind": KINDS[kind], "layer": first.data.layers[layer]}
    else:
        result["contributions"] = average_contributions([layer_contributions(each.head, each.data) for each in fitted])
    return result


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A head fitted with one seed, and what it predicts."""

    head: PairHead
    record: dict[str, Any]
    data: PairLatents
    predictions: dict[str, np.ndarray]

    def describe(self) -> dict[str, Any]:
        """Give what scores.json tells of this seed."""
        gold = {split: self.data.split(split).gold.numpy() for split in self.predictions}
        return {
            **{key: self.record[key] for key in ("seed", "best_epoch", "seconds", "history")},
            "scores": {split: correlations(found, gold[split]) for split, found in self.predictions.items()},
            "identical_similarity": self.head.identical_similarity(),
        }


def _fit_seed(
    name: str, resolved: HeadOptions, setting: Setting, seed: int, *, watch: Callable[[int], EpochReport] | None
) -> _Fitted:
    data = PairLatents(
        setting.cache, setting.task, pooling=resolved.pooling or setting.cache.poolings[0], layers=resolved.layers,
        batch_size=min(resolved.fit.batch_size, _n_train(setting.task)), seed=seed,
    )  # fmt: skip
    folder = setting.folder / name / f"seed_{seed}"
    head, record = _fit_or_load(name, resolved, data, setting, folder=folder, seed=seed, watch=watch)
    return _Fitted(head, record, data, {split: predict_pairs(head, data, split) for split in setting.task.splits})


def _n_train(task: PairTask) -> int:
    return len(task.splits["train"]) if "train" in task.splits else 1


def _summarise(rows: list[np.ndarray], setting: Setting, split: str, metric: str) -> dict[str, object]:
    gold = setting.task.gold01(split)
    return summarise_seeds(np.stack(rows), gold, metric=metric, n_resamples=setting.n_resamples).to_dict()


def _curves(head: LayerCosine, data: PairLatents) -> dict[str, Any]:
    """Collect the layer curve of every split."""
    found = {split: head.curves(data, split) for split in data.splits}
    return {
        split: {metric: dict(zip(KINDS, values.tolist(), strict=True)) for metric, values in curves.items()}
        for split, curves in found.items()
    }


def _fit_or_load(
    name: str, resolved: HeadOptions, data: PairLatents, setting: Setting, *, folder: Path, seed: int,
    watch: Callable[[int], EpochReport] | None,
) -> tuple[PairHead, dict[str, Any]]:  # fmt: skip
    fit_id = _fit_id(name, resolved, data, setting, seed)
    try:
        saved = load_head(folder)
        if saved.record.get("fit_id") == fit_id:
            return saved.head, saved.record
    except HeadError:
        pass  # not there yet, or cut short: fitted anew
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = head_entry(name).head(len(data.layers), setting.cache.width, **resolved.arguments)
    report = watch(seed) if watch else ignore_epoch
    result = fit_head(head, data, options=resolved.fit, seed=seed, device=setting.device, report=report)
    record = _record(name, head, data, result, fit_id=fit_id)
    save_head(folder, head, record)
    return head, record


def _fit_id(name: str, resolved: HeadOptions, data: PairLatents, setting: Setting, seed: int) -> str:
    versions = setting.cache.identity["versions"]
    return digest_json(
        [name, resolved.arguments, vars(resolved.fit), data.pooling, list(data.layers), seed,
         setting.cache.manifest.id, setting.task.digest(), versions, setting.device],
    )  # fmt: skip


def _record(name: str, head: PairHead, data: PairLatents, result: FitResult, *, fit_id: str) -> dict[str, Any]:
    gold = np.asarray(data.task.splits["validation"]["score"], np.float64)
    calibration = fit_linear(predict_pairs(head, data, "validation"), gold, score_range=data.task.score_range)
    return {
        "name": name,
        "pooling": data.pooling,
        "layers": list(data.layers),
        "seed": result.seed,
        "best_epoch": result.best_epoch,
        "seconds": round(result.seconds, 3),
        "history": list(result.history),
        "calibration": calibration.to_dict(),
        "fit_id": fit_id,
    }
