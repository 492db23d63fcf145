"""Pair heads, and the autoencoders they may start from: what they refuse, how they are fitted, chosen and scored."""

import inspect
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError, HeadError, TaskError
from extract.files import digest_json
from extract.poolings.memory import keep_blocks
from extract.records import Values, to_plain
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask, subsets
from probes.fitting.fit import fit_head, fit_layers, predict_pairs
from probes.fitting.fit_options import EpochOptions, EpochReport, FitOptions, Options, find_protocol, ignore_epoch
from probes.fitting.saved_fits import FitRecord, SavedHead, Unfinished, fit_or_load
from probes.heads.head_table import (
    AUTOENCODER,
    SOURCES,
    HeadOptions,
    PlannedRun,
    option_defaults,
    resolve_sources,
    try_building,
)
from probes.heads.layer_head import FitContext, Head, HeadParts, Heads, Reporter, embed_once, read_channels
from probes.heads.result import NO_CHOICE, Curve, HeadResult, residuals_of, top_layer
from probes.latents.text_latents import PairLatents, TextLatents
from probes.metrics.bootstrap import Resampling, SeedSummary, summarise_seeds
from probes.metrics.prediction_metrics import CORRELATIONS, correlations, fit_calibration, pearson, read_calibration
from probes.networks.layerwise_networks import LayerAutoencoder
from probes.networks.network_options import COMPARING, is_same_rule
from probes.networks.pair_networks import (
    MIN_BATCH,
    JoinedCosine,
    LayerCosine,
    PairHead,
    SiameseCosine,
    UntrainedCosine,
    collect_similarities,
)

_SHARED = (("encoder", operator.eq), ("bottleneck", is_same_rule), ("standardises_latents", operator.eq))
"""Options of autoencoders that a head which starts from them takes over."""
FOLDER = "autoencoders"


def check_autoencoder_options(options: Options) -> tuple[Values, FitOptions]:
    """Check the options of the autoencoders; returns the arguments of `LayerAutoencoder`, and how it is fitted."""
    arguments, fit = resolve_sources(AUTOENCODER, SOURCES, options)
    try_building(AUTOENCODER, LayerAutoencoder, arguments)
    return arguments, fit


def require_same_encoders(head: str, arguments: Options, autoencoder: Options) -> None:
    """Refuse with a ConfigError options of a head's encoders that contradict its autoencoders."""
    defaults = inspect.signature(LayerAutoencoder).parameters
    for option, is_same in _SHARED:
        value = autoencoder.get(option, defaults[option].default)
        if option in arguments and not is_same(arguments[option], value):
            raise ConfigError(
                f"option {option} of head {head!r} is {arguments[option]!r}, but it starts from autoencoders whose "
                f"{option} is {value!r}; leave it out, or set pretraining.autoencoder.{option}."
            )


@dataclass(frozen=True)
class Pretraining:
    """What autoencoders are fitted on, and how: latents of a corpus, options as in a config, and a folder of caches."""

    cache: LatentCache
    options: Options
    seed: int
    device: str
    folder: Path


def obtain_autoencoder(
    pretraining: Pretraining, *, pooling: str, report: EpochReport = ignore_epoch
) -> SavedHead[LayerAutoencoder]:
    """Load the autoencoders of all layers for a pooling (or several joined by `+`), or fit them."""
    arguments, options = check_autoencoder_options(pretraining.options)
    data = TextLatents(pretraining.cache, pooling=pooling, batch_size=options.batch_size, seed=pretraining.seed)
    identity = [
        AUTOENCODER,
        arguments,
        vars(options),
        pooling,
        list(data.channels.names),
        pretraining.seed,
        pretraining.cache.manifest.id,
        pretraining.cache.identity.versions,
        pretraining.device,
    ]
    fit_id = digest_json(identity)
    folder = pretraining.folder / FOLDER / fit_id[:16]
    names = data.channels.names

    def fit() -> tuple[LayerAutoencoder, FitRecord]:
        with torch.random.fork_rng():
            torch.manual_seed(pretraining.seed)
            module = LayerAutoencoder(len(names), pretraining.cache.width_of(data.channels.layers), **arguments)
        result = fit_layers(
            module,
            data,
            options=options,
            seed=pretraining.seed,
            device=pretraining.device,
            report=report,
            unfinished=Unfinished(folder, fit_id),
        )
        details = {
            **to_plain(result),
            "seconds": round(result.seconds, 3),
            "history": [{key: epoch[key] for key in ("train_loss", "held_out_loss")} for epoch in result.history],
            "codes": list(module.codes),
            "seed": pretraining.seed,
            "standardises_latents": module.standardises_latents,
            "n_texts": {"train": len(data.train_rows), "held_out": len(data.held_out_rows)},
        }
        return module, FitRecord(AUTOENCODER, pooling, names, details)

    return fit_or_load(folder, fit_id, fit, _build, cache=pretraining.cache)


def _build(record: FitRecord) -> LayerAutoencoder:
    if "held_out_squared_errors" not in record.details:
        raise ValueError("an early version recorded no errors in the units of the latents; fit it again")
    return LayerAutoencoder(**record.arguments)


METRIC = "pearson"
MIN_SUBSET = 30
"""Fewer rows than this have no correlation worth an interval."""


@dataclass(frozen=True, eq=False)
class FittedHead:
    """A head fitted with one seed, its record, the pairs it reads, and what it predicts for every split."""

    head: PairHead
    record: FitRecord
    data: PairLatents
    predictions: dict[str, Float32[np.ndarray, " N"]]

    def calibrated(self, split: str) -> Float[np.ndarray, " N"]:
        """Return the predictions of a split in the units of the gold."""
        return read_calibration(self.record.details["calibration"])(self.predictions[split])

    def describe(self) -> dict[str, object]:
        """Return what scores.json records of this seed."""
        gold = {split: self.data.split(split).gold.numpy() for split in self.predictions}
        return {
            **{key: self.record.details[key] for key in ("seed", "best_epoch", "seconds", "history")},
            "scores": {split: correlations(rows, gold[split]) for split, rows in self.predictions.items()},
            "identical_similarity": self.head.identical_similarity(),
        }


@dataclass(frozen=True, eq=False)
class PairFits(Head):
    """A pair head on the task and the latents of a run, to be fitted with every seed."""

    network: type[PairHead]
    resolved: HeadOptions
    context: FitContext

    @staticmethod
    def check(task: PairTask, resolved: HeadOptions, planned: PlannedRun) -> None:
        """Refuse a task without splits to fit and choose on, and autoencoders where a plan is chosen."""
        if planned.chooses_plan and resolved.start != "fresh":
            raise ConfigError(
                f"head {resolved.name!r} has start {resolved.start!r}, but a sweep fits no autoencoders, of which "
                "every plan would need its own; use start: fresh, or `icecore run` for each plan."
            )
        for split in dict.fromkeys(("train", "validation", find_protocol(planned.protocol).selection)):
            if split not in task.splits:
                raise TaskError(f"task {task.name!r} has no split {split!r}, which every head needs; add rows to it.")

    @staticmethod
    def check_options(network: type[PairHead], resolved: HeadOptions) -> None:
        """Refuse options that a network cannot be built with, and batches that a loss cannot compare."""
        arguments = resolved.options
        try_building(resolved.name, network, arguments)
        if not network.is_trained:
            return
        defaults = option_defaults(network)
        loss = arguments.get("loss", defaults["loss"].default if "loss" in defaults else None)
        if loss in COMPARING and resolved.values[1].batch_size < MIN_BATCH:
            raise HeadError(
                f"option batch_size of head {resolved.name!r} is {resolved.values[1].batch_size}, but the loss "
                f"{loss!r} compares rows with each other; allowed: at least {MIN_BATCH}, 32 or more for log-variance."
            )

    def evaluate(self, reporter: Reporter) -> HeadResult:
        """Evaluate the head; predictions are calibrated, in the units of the gold, the mean over seeds."""
        context, data, splits = self.context, self.data, list(self.context.task.splits)
        fitted, is_trained = self.fit_all(reporter), self.network.is_trained
        stacked = {split: np.stack([seed.predictions[split] for seed in fitted]) for split in splits}
        summary = {split: _summarise(rows, context, split) for split, rows in stacked.items()}
        calibrated = {
            split: np.asarray(np.mean([seed.calibrated(split) for seed in fitted], axis=0)) for split in splits
        }
        residuals = {split: residuals_of(context.task, split, rows) for split, rows in calibrated.items()}
        chosen, curves, extras = _layer_choice(fitted)
        has_best_epoch = is_trained and self.options.keep == "best"
        selection = NO_CHOICE if is_trained else "validation (layer and kind)"
        if has_best_epoch:
            selection = f"{context.rules.selection} (epoch)"
        return HeadResult(
            name=self.resolved.name,
            pooling=data.pooling,
            layers=data.layers,
            options={**self.arguments, **(vars(self.options) if is_trained else {})},
            metric=METRIC,
            selection=selection,
            selection_score=summary["validation"][METRIC].mean if "validation" in summary else float("nan"),
            chosen=chosen,
            summary=summary,
            curves=curves,
            seeds=tuple(seed.describe() for seed in fitted),
            optimistic_because=context.rules.optimistic_because if has_best_epoch else "",
            extras={
                "subsets": _subset_scores(stacked, context),
                **_named_subset_scores(stacked, context),
                "residuals": {
                    split: residuals[split].to_dict() for split in splits if split != "train" and context.has_details
                },
                **extras,
            },
            predictions=calibrated,
            scored=stacked,
            row_scores={split: -np.abs(rows.values) for split, rows in residuals.items()},
            top_cosines=_top_cosines(fitted[0], "test" if "test" in splits else "validation"),
        )

    def parts(self, result: HeadResult, split: str, reporter: Reporter) -> HeadParts:
        """Take the similarity of every layer, and the head's predictions from sets of layers."""
        fitted = self.fit_all(reporter)
        data = self.data
        muted = [
            Muted(
                seed.head,
                collect_similarities(seed.head, data, split),
                collect_similarities(seed.head, data, "train").mean(1),
            )
            for seed in fitted
        ]
        is_joint = not isinstance(fitted[0].head, LayerCosine)
        return HeadParts(
            pooling=data.pooling,
            layers=data.layers,
            scorer=self.context.task.scorer(split, result.metric),
            alone=np.stack([head.cosines for head in muted]),
            how=HOW + UNREAD * isinstance(fitted[0].head, JoinedCosine),
            together=(lambda masks: np.stack([head.predict(masks) for head in muted])) if is_joint else None,
        )

    @property
    def arguments(self) -> Options:
        """The network's arguments that a config gives."""
        arguments: Options = self.resolved.options
        return arguments

    @property
    def options(self) -> EpochOptions:
        """How it is fitted; one without epochs has no options of its own, and reads pairs as others do."""
        return self.resolved.values[1] if len(self.resolved.values) > 1 else EpochOptions()

    @cached_property
    def data(self) -> PairLatents:
        """The pairs, read by one seed after another."""
        context, splits = self.context, self.context.task.splits
        return PairLatents(
            context.cache,
            context.task,
            pooling=self.resolved.pooling or context.cache.default_pooling,
            layers=self.resolved.layers,
            batch_size=min(self.options.batch_size, len(splits["train"]) if "train" in splits else 1),
            selection=context.rules.selection if self.options.keep == "best" else "validation",
        )

    @cached_property
    def fit_data(self) -> PairLatents:
        """What a fit can read: the pairs without test, unless a protocol chooses epochs there."""
        return self.data if self.data.selection == "test" else self.data.without_test()

    @cached_property
    def encoders(self) -> SavedHead[LayerAutoencoder] | None:
        """The autoencoders that the head starts from, if it does."""
        start = self.resolved.start
        if start == "fresh":
            return None
        if self.context.autoencoders is None:
            raise HeadError(
                f"option start is {start!r}, but there are no autoencoders; set `pretraining.corpus`, or use "
                "start: fresh."
            )
        encoders = self.context.autoencoders(self.data.pooling)
        require_same_encoders(self.resolved.name, self.arguments, encoders.head.arguments())
        return encoders

    def fit_all(self, reporter: Reporter) -> list[FittedHead]:
        """Fit the head with every seed, with the first one where nothing is trained."""
        seeds = self.context.seeds if self.network.is_trained else self.context.seeds[:1]
        return [self.fit_seed(seed, reporter) for seed in seeds]

    def fit_seed(self, seed: int, reporter: Reporter) -> FittedHead:
        """Fit the head with one seed, or load it; a HeadError or a TaskError says why that cannot be."""
        context, data = self.context, self.data
        folder = context.folder / self.resolved.name / f"seed_{seed}"
        fit_id = self.identify(seed)
        saved = fit_or_load(
            folder,
            fit_id,
            lambda: self._fit(seed, reporter(seed), Unfinished(folder, fit_id)),
            lambda record: self.network(**record.arguments),
            cache=context.cache,
        )
        predictions = {split: predict_pairs(saved.head, data, split) for split in context.task.splits}
        return FittedHead(saved.head, saved.record, data, predictions)

    def identify(self, seed: int) -> str:
        """Digest everything the fitted weights depend on."""
        context, data = self.context, self.data
        return context.identify(
            self.resolved.name,
            self.arguments,
            vars(self.options),
            data.pooling,
            list(data.layers),
            seed,
            more=[
                context.device,
                context.protocol,
                context.calibration,
                context.anchor_identical,
                self.encoders.record.fit_id if self.encoders else "",
            ],
            reads_test=data.selection == "test",
        )

    def _fit(self, seed: int, report: EpochReport, unfinished: Unfinished) -> tuple[PairHead, FitRecord]:
        """Fit the head, or go on where a killed fit stopped; gives it with its record."""
        context, data, head = self.context, self.fit_data, self.build(seed)
        data.seed = seed
        if context.anchor_identical and head.identical_similarity() is None:  # refused before anything is fitted
            raise HeadError(
                f"anchor_identical is true, but head {self.resolved.name!r} predicts no constant for a text paired "
                "with itself; set it to false, or pair_features to 0."
            )
        result = fit_head(
            head,
            data,
            options=self.options,
            seed=seed,
            device=context.device,
            report=report,
            unfinished=unfinished,
        )
        calibration = fit_calibration(
            context.calibration,
            predict_pairs(head, data, "validation"),
            np.asarray(data.task.splits["validation"]["score"][:], np.float64),
            score_range=data.task.score_range,
            identical=head.identical_similarity() if context.anchor_identical else None,
        )
        details = {
            **to_plain(result),
            "seconds": round(result.seconds, 3),
            "calibration": to_plain(calibration),
        }
        return head, FitRecord(self.resolved.name, data.pooling, data.channels.layers, details)

    def build(self, seed: int) -> PairHead:
        """Build the network with its initial weights."""
        data, encoders = self.data, self.encoders
        arguments, picks = self.arguments, list[int]()
        if encoders is not None:
            picks = [encoders.record.layers.index(layer) for layer in data.layers]
            arguments = {
                **arguments,
                "encoder": encoders.head.kind,
                "bottleneck": [encoders.head.codes[k] for k in picks],
                "standardises_latents": encoders.head.standardises_latents,
            }
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            head = self.network(len(data.layers), data.cache.width_of(data.channels.layers), **arguments)
        if encoders is not None and isinstance(head, SiameseCosine):
            head.adopt(encoders.head.encoder, encoders.head.standardiser, picks=picks)
        return head


def _layer_choice(fitted: list[FittedHead]) -> tuple[Values, tuple[Curve, ...], dict[str, object]]:
    """Return what was chosen, and the curves of a head that reads one layer, or what each contributes to one of all."""
    first = fitted[0]
    chosen = first.head.choice(first.data.layers) if isinstance(first.head, UntrainedCosine) else {}
    if not isinstance(first.head, LayerCosine):
        contributions = [layer_contributions(seed.head, seed.data) for seed in fitted]
        alone, without = np.mean([[one.alone, one.without] for one in contributions], axis=0).tolist()
        mean = replace(contributions[0], alone=tuple(alone), without=tuple(without))
        return chosen, (), {"contributions": to_plain(mean)}
    curves = tuple(
        Curve(name, split, metric, tuple(row))
        for split in first.data.splits
        for metric, rows in first.head.curves(first.data, split).items()
        for name, row in zip(first.head.kinds, rows.tolist(), strict=True)
    )
    return chosen, curves, {}


def _top_cosines(fitted: FittedHead, split: str) -> dict[str, Float32[np.ndarray, " N"]]:
    """Return every kind of cosine at the top layer, of a head that chooses one; nothing of another head."""
    head, data = fitted.head, fitted.data
    if not isinstance(head, LayerCosine) or split not in data.splits:
        return {}
    return dict(zip(head.kinds, head.split_cosines(data, split)[:, top_layer(data.layers)], strict=True))


@dataclass(frozen=True)
class Contributions:
    """The correlation of every layer's similarity alone, and what the head loses without it, on a split."""

    split: str
    layers: tuple[str, ...]
    alone: tuple[float, ...]
    without: tuple[float, ...]


def layer_contributions(head: PairHead, data: PairLatents, split: str = "validation") -> Contributions:
    """Measure on a split (not test, which is read once) every layer that is read alone, and the head without it."""
    similarities = collect_similarities(head, data, split)
    gold = data.split(split).gold.numpy()
    with torch.no_grad():
        whole = float(pearson(head.combine(similarities).numpy(), gold))
        losses, read = [], head.read_layers if isinstance(head, JoinedCosine) else list(range(head.n_layers))
        for k in read:
            muted = similarities.clone()
            of_layer = slice(k, None, head.n_layers)  # its cosine, and what else the head makes of it
            muted[of_layer] = similarities[of_layer].mean(1, keepdim=True)
            losses.append(whole - float(pearson(head.combine(muted).numpy(), gold)))
    cosines = similarities[read]
    alone = pearson(cosines.numpy(), np.broadcast_to(gold, tuple(cosines.shape)))
    return Contributions(split, tuple(data.layers[k] for k in read), tuple(alone.tolist()), tuple(losses))


def _summarise(
    rows: Float32[np.ndarray, "S N"], context: FitContext, split: str, marks: Bool[np.ndarray, " N"] | None = None
) -> dict[str, SeedSummary]:
    gold, groups = context.task.gold01(split), context.task.units(split)
    if marks is not None:
        rows, gold = rows[:, marks], gold[marks]
        groups = groups and [name for name, is_marked in zip(groups, marks.tolist(), strict=True) if is_marked]
    resampling = Resampling(context.n_resamples)
    return {
        metric: summarise_seeds(rows, gold, metric=metric, groups=groups, resampling=resampling)
        for metric in CORRELATIONS
    }


def _named_subset_scores(stacked: dict[str, Float32[np.ndarray, "S N"]], context: FitContext) -> dict[str, object]:
    """Score every subset that the task names in test, and take the mean over subsets; nothing where it names none."""
    rows = context.task.splits.get("test")
    if rows is None or "subset" not in rows.column_names:
        return {}
    names = np.array(rows["subset"])
    scores = {name: _summarise(stacked["test"], context, "test", names == name) for name in sorted(set(names.tolist()))}
    described = {
        name: {"n": int((names == name).sum()), **{metric: asdict(summary) for metric, summary in by_metric.items()}}
        for name, by_metric in scores.items()
    }
    means = {metric: float(np.mean([by[metric].mean for by in scores.values()])) for metric in CORRELATIONS}
    return {"named_subsets": {"subsets": described, "mean": means}}


def _subset_scores(stacked: dict[str, Float32[np.ndarray, "S N"]], context: FitContext) -> dict[str, object]:
    """Score the subsets of test that its training split gives away, or that final punctuation distinguishes."""
    splits = context.task.splits
    if not context.has_details or not {"train", "test"} <= set(splits):
        return {}
    tables = {
        split: {column: splits[split][column][:] for column in ("sentence1", "sentence2", "score")}
        for split in ("train", "test")
    }
    scores: dict[str, object] = {}
    for name, marks in subsets(tables["test"], tables["train"]).items():
        n_rows = int(marks.sum())
        described: dict[str, object] = {"n": n_rows}
        if MIN_SUBSET <= n_rows < len(marks) and len(np.unique(context.task.gold01("test")[marks])) > 1:
            summary = _summarise(stacked["test"], context, "test", marks)
            described |= {metric: asdict(score) for metric, score in summary.items()}
        scores[name] = described
    return scores


# The similarity of every layer, and the head on some layers alone.

HOW = "the similarity that the fitted head makes of the layer"
UNREAD = "; of a layer that it does not read, the plain cosine"
AT_ONCE = 1 << 18
"""Similarities at once: few, so that the memory of what a network makes of them is used again and again."""


@dataclass(frozen=True, eq=False)
class Muted:
    """A head with one seed, its similarities of a split, and their means over train."""

    head: PairHead
    similarities: Float[Tensor, "C N"]
    means: Float[Tensor, " C"]

    @property
    def cosines(self) -> Float32[np.ndarray, "L N"]:
        """The similarity of each layer; what else the head makes of it has no sign to be ranked by."""
        return np.asarray(self.similarities[: self.head.n_layers].numpy())

    def predict(self, masks: Bool[np.ndarray, "M L"]) -> Float[np.ndarray, "M N"]:
        """Predict with every set of layers: all that the head makes of the other layers is its mean over train."""
        n_channels, n_rows = self.similarities.shape
        step = max(1, AT_ONCE // (n_channels * n_rows))
        blocks = n_channels // self.head.n_layers
        keeps = torch.from_numpy(np.ascontiguousarray(masks)).repeat(1, blocks)
        predicted = []
        with keep_blocks(), torch.no_grad():
            for part in torch.split(keeps, step):
                is_read = part.T.unsqueeze(2)  # channels, sets, rows
                values = torch.where(is_read, self.similarities.unsqueeze(1), self.means.reshape(-1, 1, 1))
                predicted.append(self.head.combine(values.flatten(1)).reshape(len(part), n_rows))
        return np.asarray(torch.cat(predicted).numpy())


def score_pairs(
    heads: Heads, pairs: Sequence[Sequence[str]], decoder: Decoder, spec: ExtractionSpec
) -> Float[np.ndarray, " N"]:
    """Score pairs, in any order within a pair, in the units of the task's gold: calibrated, the mean over seeds."""
    latents, positions = embed_once((text for pair in pairs for text in pair), decoder, spec)
    left, right = ([positions[pair[k]] for pair in pairs] for k in (0, 1))
    scores = []
    for saved in heads:
        read = read_channels(latents, saved.record, layers=spec.layers, poolings=spec.poolings_read(of_words=False))
        if isinstance(saved.head, PairHead) and len(read) != saved.head.n_layers:
            raise HeadError(
                f"the record of head {saved.record.name!r} names {len(read)} layers, its weights are of "
                f"{saved.head.n_layers}; run its config again."
            )
        with torch.no_grad():
            predicted = saved.head(read[:, left], read[:, right])
        scores.append(read_calibration(saved.record.details["calibration"])(predicted.numpy()))
    return np.asarray(np.mean(scores, axis=0))


def require_calibration(record: FitRecord) -> None:
    """Read the calibration of a record and use it once; any error says that it cannot be."""
    scores = read_calibration(record.details["calibration"])(np.zeros(1))
    if scores.shape != (1,):
        raise ValueError(f"calibration of one score gives {len(scores)}")
