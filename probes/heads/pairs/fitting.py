"""One head fitted with one seed, or found as it was kept under the very same circumstances."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32

from extract.digest import digest_json
from extract.errors import HeadError, unknown_name
from extract.store.cache import LatentCache
from probes.fitting.fit_or_load import fit_or_load
from probes.fitting.keep_best import EpochReport, ignore_epoch
from probes.fitting.protocols import PROTOCOLS
from probes.fitting.saved import SavedHead
from probes.fitting.trainer import FitResult, fit_head, predict_pairs
from probes.heads.options import HeadOptions
from probes.heads.pairs.pretraining import require_same_encoders
from probes.heads.registry import head_entry
from probes.latents.pair_latents import PairLatents
from probes.metrics.calibration import CALIBRATIONS, Calibration, fit_calibration, read_calibration
from probes.metrics.correlation import correlations
from probes.networks.autoencoder import LayerAutoencoder
from probes.networks.pair_head import PairHead
from probes.networks.siamese_cosine import SiameseCosine
from probes.tasks import PairTask
from probes.tasks.held_back import without_test


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
        protocol: A name from `PROTOCOLS`.
        calibration: A name from `CALIBRATIONS`.
        anchor_identical: Whether a text paired with itself gets the highest score.
        autoencoders: Gives the autoencoders of a pooling, for heads that start from them.
        has_subsets: Whether subsets of test are scored as well.
    """

    cache: LatentCache
    task: PairTask
    seeds: tuple[int, ...]
    n_resamples: int
    device: str
    folder: Path
    protocol: str = "icecore"
    calibration: str = "linear"
    anchor_identical: bool = False
    autoencoders: Callable[[str], SavedHead[LayerAutoencoder]] | None = None
    has_subsets: bool = True

    def __post_init__(self) -> None:
        """Refuse names that stand in no table, before anything is fitted."""
        for kind, name, table in (
            ("protocol", self.protocol, PROTOCOLS),
            ("calibration", self.calibration, CALIBRATIONS),
        ):
            if name not in table:
                raise unknown_name(kind, name, table)


@dataclass(frozen=True, eq=False)
class FittedHead:
    """A head fitted with one seed, and what it predicts.

    Attributes:
        head: The head.
        record: What is kept with it.
        data: The pairs it reads.
        predictions: Split to its predictions `(N,)`.
    """

    head: PairHead
    record: dict[str, Any]
    data: PairLatents
    predictions: dict[str, Float32[np.ndarray, " N"]]

    def calibrated(self, split: str) -> Float[np.ndarray, " N"]:
        """Give the predictions of a split in the units of the gold."""
        calibration: Calibration = read_calibration(self.record["calibration"])
        return calibration(self.predictions[split])

    def describe(self) -> dict[str, Any]:
        """Give what scores.json tells of this seed."""
        gold = {split: self.data.split(split).gold.numpy() for split in self.predictions}
        return {
            **{key: self.record[key] for key in ("seed", "best_epoch", "seconds", "history")},
            "scores": {split: correlations(found, gold[split]) for split, found in self.predictions.items()},
            "identical_similarity": self.head.identical_similarity(),
        }


def fit_seed(
    name: str, resolved: HeadOptions, setting: Setting, *, seed: int, watch: Callable[[int], EpochReport] | None = None
) -> FittedHead:
    """Fit a head with one seed, or load it.

    Args:
        name: A head from the registry.
        resolved: Its options.
        setting: What all heads of the run share.
        seed: The seed.
        watch: Gives the function that is told of every epoch.

    Returns:
        The head with its predictions.

    Raises:
        HeadError: The head could not be fitted.
        TaskError: The task lacks a split.
    """
    protocol = PROTOCOLS[setting.protocol]
    n_train = len(setting.task.splits["train"]) if "train" in setting.task.splits else 1
    data = PairLatents(
        setting.cache, setting.task, pooling=resolved.pooling or setting.cache.poolings[0], layers=resolved.layers,
        batch_size=min(resolved.fit.batch_size, n_train), seed=seed, selection=protocol.selection,
    )  # fmt: skip
    encoders = _encoders(name, resolved, setting, data)
    fit_id = _fit_id(name, resolved, data, setting, seed=seed, encoders=encoders)

    def fit() -> tuple[PairHead, dict[str, Any]]:
        head = _build(name, resolved, data, seed=seed, encoders=encoders)
        if setting.anchor_identical and head.identical_similarity() is None:  # told before anything is fitted
            raise HeadError(
                f"anchor_identical is true, but head {name!r} predicts no constant for a text paired with itself; set "
                "it to false, or pair_features to 0."
            )
        options = resolved.fit
        if protocol.every > 1:  # no stopping early: the best of all looks counts
            options = replace(options, patience=options.max_epochs)
        result = fit_head(
            head, data, options=options, seed=seed, device=setting.device, every=protocol.every,
            report=watch(seed) if watch else ignore_epoch,
        )  # fmt: skip
        return head, _record(name, head, data, result, setting=setting)

    folder = setting.folder / name / f"seed_{seed}"
    saved = fit_or_load(folder, fit_id, fit, lambda record: head_entry(name).head(**record["arguments"]))
    predictions = {split: predict_pairs(saved.head, data, split) for split in setting.task.splits}
    return FittedHead(saved.head, saved.record, data, predictions)


def _encoders(
    name: str, resolved: HeadOptions, setting: Setting, data: PairLatents
) -> SavedHead[LayerAutoencoder] | None:
    """Obtain the autoencoders a head starts from, if it does."""
    if resolved.arguments.get("start", "fresh") == "fresh":
        return None
    if setting.autoencoders is None:
        raise HeadError(
            f"option start is {resolved.arguments['start']!r}, but no autoencoders are at hand; set "
            "`pretraining.corpus`, or use start: fresh."
        )
    found = setting.autoencoders(data.pooling)
    require_same_encoders(name, resolved.arguments, found.head.arguments())
    return found


def _build(
    name: str, resolved: HeadOptions, data: PairLatents, *, seed: int, encoders: SavedHead[LayerAutoencoder] | None
) -> PairHead:
    arguments = dict(resolved.arguments)
    picks: list[int] = []
    if encoders is not None:
        known = encoders.record["layers"]
        picks = [known.index(layer) for layer in data.layers]
        arguments |= {
            "encoder": encoders.head.kind, "bottleneck": [encoders.head.codes[k] for k in picks],
        }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = head_entry(name).head(len(data.layers), data.cache.width, **arguments)
    if encoders is not None and isinstance(head, SiameseCosine):
        head.adopt(encoders.head.encoder, encoders.head.standardiser, picks=picks)
    return head


def _fit_id(
    name: str, resolved: HeadOptions, data: PairLatents, setting: Setting, *, seed: int,
    encoders: SavedHead[LayerAutoencoder] | None,
) -> str:  # fmt: skip
    return digest_json(
        [
            name, resolved.arguments, vars(resolved.fit), data.pooling, list(data.layers), seed,
            setting.cache.manifest.id, _seen_rows(setting).digest(), setting.cache.identity["versions"], setting.device,
            setting.protocol, setting.calibration, setting.anchor_identical,
            encoders.record["fit_id"] if encoders else "",
        ],
    )  # fmt: skip


def _seen_rows(setting: Setting) -> PairTask:
    """Give the rows that a fit sees, so that a head fitted before test is read is found again when it is."""
    is_on_test = PROTOCOLS[setting.protocol].selection == "test"
    return setting.task if is_on_test else without_test(setting.task)


def _record(name: str, head: PairHead, data: PairLatents, result: FitResult, *, setting: Setting) -> dict[str, Any]:
    calibration = fit_calibration(
        setting.calibration, predict_pairs(head, data, "validation"),
        np.asarray(data.task.splits["validation"]["score"], np.float64), score_range=data.task.score_range,
        identical=head.identical_similarity() if setting.anchor_identical else None,
    )  # fmt: skip
    return {
        "name": name,
        "pooling": data.pooling,
        "layers": list(data.channels.layers),
        "seed": result.seed,
        "best_epoch": result.best_epoch,
        "seconds": round(result.seconds, 3),
        "history": list(result.history),
        "calibration": calibration.to_dict(),
    }
