"""One pair head fitted with one seed, or found as it was kept under the very same circumstances."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32

from extract.errors import HeadError
from probes.fitting.epochs import EpochOptions
from probes.fitting.saved import SavedHead, fit_or_load
from probes.fitting.trainer import FitResult, fit_head, predict_pairs
from probes.fitting.unfinished import Unfinished
from probes.heads.options import HeadOptions
from probes.heads.pairs.pretraining import require_same_encoders
from probes.heads.setting import Setting, Watch
from probes.latents.pair_latents import PairLatents
from probes.metrics.calibration import fit_calibration, read_calibration
from probes.metrics.correlation import correlations
from probes.networks.autoencoder import LayerAutoencoder
from probes.networks.pair_head import PairHead
from probes.networks.siamese_cosine import SiameseCosine


@dataclass(frozen=True, eq=False)
class FittedHead:
    """A head fitted with one seed, its record, the pairs it reads, and what it predicts for every split."""

    head: PairHead
    record: dict[str, Any]
    data: PairLatents
    predictions: dict[str, Float32[np.ndarray, " N"]]

    def calibrated(self, split: str) -> Float[np.ndarray, " N"]:
        """Return the predictions of a split in the units of the gold."""
        return read_calibration(self.record["calibration"])(self.predictions[split])

    def describe(self) -> dict[str, Any]:
        """Return what scores.json records of this seed."""
        gold = {split: self.data.split(split).gold.numpy() for split in self.predictions}
        return {
            **{key: self.record[key] for key in ("seed", "best_epoch", "seconds", "history")},
            "scores": {split: correlations(found, gold[split]) for split, found in self.predictions.items()},
            "identical_similarity": self.head.identical_similarity(),
        }


@dataclass(frozen=True, eq=False)
class SeedFit:
    """Everything that decides what a head fitted with one seed is; `encoders` are autoencoders that it starts from."""

    network: type[PairHead]
    resolved: HeadOptions
    setting: Setting
    seed: int
    data: PairLatents
    encoders: SavedHead[LayerAutoencoder] | None

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the network that the config gives."""
        found: dict[str, Any] = self.resolved.own[0]
        return found

    @property
    def options(self) -> EpochOptions:
        """How it is fitted."""
        return fit_options(self.resolved)

    def identify(self) -> str:
        """Digest everything the fitted weights depend on."""
        setting, data = self.setting, self.data
        return setting.identify(
            self.resolved.name,
            self.arguments,
            vars(self.options),
            data.pooling,
            list(data.layers),
            self.seed,
            more=[
                setting.device,
                setting.protocol,
                setting.calibration,
                setting.anchor_identical,
                self.encoders.record["fit_id"] if self.encoders else "",
            ],
            reads_test=data.selection == "test",
        )

    def build(self) -> PairHead:
        """Build the network with its initial weights."""
        arguments = dict(self.arguments)
        picks: list[int] = []
        if self.encoders is not None:
            known = self.encoders.record["layers"]
            picks = [known.index(layer) for layer in self.data.layers]
            codes = [self.encoders.head.codes[k] for k in picks]
            arguments |= {
                "encoder": self.encoders.head.kind,
                "bottleneck": codes,
                "standardises_latents": self.encoders.head.standardises_latents,
            }
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            head = self.network(len(self.data.layers), self.data.cache.width_of(self.data.channels.layers), **arguments)
        if self.encoders is not None and isinstance(head, SiameseCosine):
            head.adopt(self.encoders.head.encoder, self.encoders.head.standardiser, picks=picks)
        return head

    def fit(self, watch: Watch, unfinished: Unfinished) -> tuple[PairHead, dict[str, Any]]:
        """Fit it, or go on where a killed fit stopped, and give it with its record."""
        head = self.build()
        if self.setting.anchor_identical and head.identical_similarity() is None:  # refused before anything is fitted
            raise HeadError(
                f"anchor_identical is true, but head {self.resolved.name!r} predicts no constant for a text paired "
                "with itself; set it to false, or pair_features to 0."
            )
        result = fit_head(
            head,
            self.data,
            options=self.options,
            seed=self.seed,
            device=self.setting.device,
            report=watch(self.seed),
            unfinished=unfinished,
        )
        return head, self.describe(head, result)

    def describe(self, head: PairHead, result: FitResult) -> dict[str, Any]:
        """Return the record that is kept with the fitted head."""
        data, setting = self.data, self.setting
        calibration = fit_calibration(
            setting.calibration,
            predict_pairs(head, data, "validation"),
            np.asarray(data.task.splits["validation"]["score"], np.float64),
            score_range=data.task.score_range,
            identical=head.identical_similarity() if setting.anchor_identical else None,
        )
        return {
            "name": self.resolved.name,
            "pooling": data.pooling,
            "layers": list(data.channels.layers),
            "seed": result.seed,
            "best_epoch": result.best_epoch,
            "seconds": round(result.seconds, 3),
            "history": list(result.history),
            "calibration": calibration.to_dict(),
        }


def fit_options(resolved: HeadOptions) -> EpochOptions:
    """Say how a head is fitted; one without epochs has no options of its own, and reads pairs as others do."""
    return resolved.own[1] if len(resolved.own) > 1 else EpochOptions()


def fit_seed(
    network: type[PairHead], resolved: HeadOptions, setting: Setting, *, seed: int, watch: Watch
) -> FittedHead:
    """Fit a head with one seed, or load it; a HeadError or a TaskError says why that cannot be."""
    task = setting.task
    n_train = len(task.splits["train"]) if "train" in task.splits else 1
    options = fit_options(resolved)
    data = PairLatents(
        setting.cache,
        task,
        pooling=resolved.pooling_of(setting.cache.poolings),
        layers=resolved.layers,
        batch_size=min(options.batch_size, n_train),
        seed=seed,
        selection=setting.rules.selection if options.keep == "best" else "validation",
    )
    fit = SeedFit(network, resolved, setting, seed, data, _find_encoders(resolved, setting, data))
    folder = setting.folder / resolved.name / f"seed_{seed}"
    fit_id = fit.identify()
    saved = fit_or_load(
        folder,
        fit_id,
        lambda: fit.fit(watch, Unfinished(folder, fit_id)),
        lambda record: network(**record["arguments"]),
        cache=setting.cache,
    )
    predictions = {split: predict_pairs(saved.head, data, split) for split in task.splits}
    return FittedHead(saved.head, saved.record, data, predictions)


def _find_encoders(resolved: HeadOptions, setting: Setting, data: PairLatents) -> SavedHead[LayerAutoencoder] | None:
    """Find the autoencoders a head starts from, if it does."""
    arguments = resolved.own[0]
    if arguments.get("start", "fresh") == "fresh":
        return None
    if setting.autoencoders is None:
        raise HeadError(
            f"option start is {arguments['start']!r}, but there are no autoencoders; set `pretraining.corpus`, or use "
            "start: fresh."
        )
    found = setting.autoencoders(data.pooling)
    require_same_encoders(resolved.name, arguments, found.head.arguments())
    return found
