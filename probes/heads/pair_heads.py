"""Pair heads: what they refuse, and how they are scored over seeds: chosen as the protocol says, test read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError, HeadError, TaskError
from extract.poolings.memory import keep_blocks
from extract.run.extraction_spec import ExtractionSpec
from probes.data.pair_task import subsets
from probes.fitting.fit import FitResult, fit_head, predict_pairs
from probes.fitting.fit_options import EpochOptions, find_protocol
from probes.fitting.saved_fits import SavedHead, Unfinished, fit_or_load
from probes.heads.autoencoders import require_same_encoders
from probes.heads.context import Setting, Watch
from probes.heads.head_table import HeadOptions, Purpose, option_defaults, try_building
from probes.heads.layer_head import HeadParts, Heads, KindScoring, embed_once, read_channels, split_scorer
from probes.heads.result import Curve, HeadResult, residuals_of
from probes.latents.text_latents import PairLatents
from probes.metrics.bootstrap import Resampling, SeedSummary, summarise_seeds
from probes.metrics.correlation import CORRELATIONS, correlations, fit_calibration, pearson, read_calibration
from probes.networks.layerwise_networks import LayerAutoencoder
from probes.networks.network_options import COMPARING
from probes.networks.pair_networks import MIN_BATCH, LayerCosine, PairHead, SiameseCosine, collect_similarities

# One pair head fitted with one seed, or found as it was kept under the very same circumstances.


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


METRIC = "pearson"
MIN_SUBSET = 30
"""Fewer rows than this have no correlation worth an interval."""


def check_pairs(task: Any, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse a task without the splits to fit and choose on, and a start from autoencoders where a plan is chosen."""
    start = resolved.own[0].get("start", "fresh")
    if purpose.chooses_plan and start != "fresh":
        raise ConfigError(
            f"head {resolved.name!r} has start {start!r}, but a sweep fits no autoencoders, of which every plan would "
            "need its own; use start: fresh, or `icecore run` for each plan."
        )
    for split in dict.fromkeys(("train", "validation", find_protocol(purpose.protocol).selection)):
        if split not in task.splits:
            raise TaskError(f"task {task.name!r} has no split {split!r}, which every head needs; add rows to it.")


def check_network(network: type[PairHead], resolved: HeadOptions) -> None:
    """Refuse options that a network cannot be built with, and batches that a loss cannot compare."""
    arguments = resolved.own[0]
    try_building(resolved.name, network, arguments)
    if not network.is_trained:
        return
    defaults = option_defaults(network)
    loss = arguments.get("loss", defaults["loss"].default if "loss" in defaults else None)
    if loss in COMPARING and resolved.own[1].batch_size < MIN_BATCH:
        raise HeadError(
            f"option batch_size of head {resolved.name!r} is {resolved.own[1].batch_size}, but the loss {loss!r} "
            f"compares rows with each other; allowed: at least {MIN_BATCH}, 32 or more for log-variance."
        )


def evaluate_pair_head(network: type[PairHead], resolved: HeadOptions, setting: Setting, watch: Watch) -> HeadResult:
    """Fit a head for every seed, or find it fitted, choose as the protocol says, and read the test split once.

    Predictions are calibrated, in the units of the gold, the mean over seeds. Extras: `subsets` of test, `residuals`
    per split, and `contributions` of the layers for a trained head.
    """
    seeds = setting.seeds if network.is_trained else setting.seeds[:1]
    fitted = [fit_seed(network, resolved, setting, seed=seed, watch=watch) for seed in seeds]
    data, splits = fitted[0].data, list(setting.task.splits)
    stacked = {split: np.stack([each.predictions[split] for each in fitted]) for split in splits}
    summary = {split: _summarise(rows, setting, split) for split, rows in stacked.items()}
    calibrated = {split: np.asarray(np.mean([each.calibrated(split) for each in fitted], axis=0)) for split in splits}
    residuals = {split: residuals_of(setting.task, split, found) for split, found in calibrated.items()}
    chosen, curves, extras = _layer_choice(fitted)
    has_best_epoch = network.is_trained and fit_options(resolved).keep == "best"
    selection = "nothing to choose" if network.is_trained else "validation (layer and kind)"
    if has_best_epoch:
        selection = f"{setting.rules.selection} (epoch)"
    return HeadResult(
        name=resolved.name,
        pooling=data.pooling,
        layers=data.layers,
        options={**resolved.own[0], **(vars(fit_options(resolved)) if network.is_trained else {})},
        metric=METRIC,
        selection=selection,
        selection_score=summary["validation"][METRIC].mean if "validation" in summary else float("nan"),
        chosen=chosen,
        summary=summary,
        curves=curves,
        seeds=tuple(each.describe() for each in fitted),
        optimistic_because=setting.rules.optimistic_because if has_best_epoch else "",
        extras={
            "subsets": _subset_scores(stacked, setting),
            **_named_subset_scores(stacked, setting),
            "residuals": {
                split: each.to_dict() for split, each in residuals.items() if split != "train" and setting.has_details
            },
            **extras,
        },
        predictions=calibrated,
        scored=stacked,
        row_scores={split: -np.abs(each.values) for split, each in residuals.items()},
    )


def _layer_choice(fitted: list[FittedHead]) -> tuple[dict[str, Any], tuple[Curve, ...], dict[str, Any]]:
    """Return the chosen layer and the curves of a head that reads one, or what each layer contributes to one of all."""
    first = fitted[0]
    if not isinstance(first.head, LayerCosine):
        found = [layer_contributions(each.head, each.data) for each in fitted]
        return {}, (), {"contributions": average_contributions(found)}
    kind, layer = first.head.chosen.tolist()
    curves = tuple(
        Curve(name, split, metric, tuple(row))
        for split in first.data.splits
        for metric, rows in first.head.curves(first.data, split).items()
        for name, row in zip(first.head.kinds, rows.tolist(), strict=True)
    )
    return {"kind": first.head.kinds[kind], "layer": first.data.layers[layer]}, curves, {}


def layer_contributions(head: PairHead, data: PairLatents, split: str = "validation") -> dict[str, Any]:
    """Measure on a split (not test, which is read once) every layer alone, and the head without it.

    Returns:
        `layers`, `alone` (Pearson of each layer's own similarity, as the head computes it, with gold) and `without`
        (Pearson lost when all that the head makes of the layer is replaced by its mean over the split), as lists
        over layers.
    """
    similarities = collect_similarities(head, data, split)
    gold = data.split(split).gold.numpy()
    with torch.no_grad():
        whole = float(pearson(head.combine(similarities).numpy(), gold))
        losses = []
        for k in range(head.n_layers):
            muted = similarities.clone()
            of_layer = slice(k, None, head.n_layers)  # its cosine, and what else the head makes of it
            muted[of_layer] = similarities[of_layer].mean(1, keepdim=True)
            losses.append(whole - float(pearson(head.combine(muted).numpy(), gold)))
    cosines = similarities[: head.n_layers]
    alone = pearson(cosines.numpy(), np.broadcast_to(gold, tuple(cosines.shape)))
    return {"split": split, "layers": list(data.layers), "alone": alone.tolist(), "without": losses}


def average_contributions(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average the contributions of several seeds, on the same layers and split."""
    means = {key: np.mean([each[key] for each in found], axis=0).tolist() for key in ("alone", "without")}
    return {**found[0], **means}


def _summarise(
    rows: Float32[np.ndarray, "S N"], setting: Setting, split: str, marks: Bool[np.ndarray, " N"] | None = None
) -> dict[str, SeedSummary]:
    gold, groups = setting.task.gold01(split), setting.task.units(split)
    if marks is not None:
        rows, gold = rows[:, marks], gold[marks]
        groups = groups and [name for name, is_marked in zip(groups, marks.tolist(), strict=True) if is_marked]
    how = Resampling(setting.n_resamples)
    return {
        metric: summarise_seeds(rows, gold, metric=metric, groups=groups, resampling=how) for metric in CORRELATIONS
    }


def _named_subset_scores(stacked: dict[str, Float32[np.ndarray, "S N"]], setting: Setting) -> dict[str, Any]:
    """Score every subset that the task names in test, and take the mean over subsets; nothing where it names none."""
    rows = setting.task.splits.get("test")
    if rows is None or "subset" not in rows.column_names:
        return {}
    names = np.array(rows["subset"])
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(set(names.tolist())):
        scores = _summarise(stacked["test"], setting, "test", names == name)
        found[name] = {"n": int((names == name).sum()), **{metric: each.to_dict() for metric, each in scores.items()}}
    means = {metric: float(np.mean([each[metric]["mean"] for each in found.values()])) for metric in CORRELATIONS}
    return {"named_subsets": {"subsets": found, "mean": means}}


def _subset_scores(stacked: dict[str, Float32[np.ndarray, "S N"]], setting: Setting) -> dict[str, Any]:
    """Score the subsets of test that its training split gives away, or that final punctuation distinguishes."""
    splits = setting.task.splits
    if not setting.has_details or not {"train", "test"} <= set(splits):
        return {}
    tables = {
        split: {column: list(splits[split][column]) for column in ("sentence1", "sentence2", "score")}
        for split in ("train", "test")
    }
    found: dict[str, Any] = {}
    for name, marks in subsets(tables["test"], tables["train"]).items():
        n_rows = int(marks.sum())
        found[name] = {"n": n_rows}
        if MIN_SUBSET <= n_rows < len(marks) and len(np.unique(setting.task.gold01("test")[marks])) > 1:
            found[name] |= {
                metric: each.to_dict() for metric, each in _summarise(stacked["test"], setting, "test", marks).items()
            }
    return found


# A fitted pair head taken apart: the similarity of every layer, and the head on some layers alone.

AT_ONCE = 1 << 18
"""Similarities at once: few, so that the memory of what a network makes of them is used again and again."""


def pair_parts(
    network: type[PairHead], resolved: HeadOptions, setting: Setting, result: HeadResult, split: str, watch: Watch
) -> HeadParts:
    """Take a pair head apart; arguments are those of `probes.heads.layer_head.take_apart`."""
    seeds = setting.seeds if network.is_trained else setting.seeds[:1]
    fitted = [fit_seed(network, resolved, setting, seed=seed, watch=watch) for seed in seeds]
    muted = [Muted.of(each, split) for each in fitted]
    data, is_joint = fitted[0].data, not isinstance(fitted[0].head, LayerCosine)
    return HeadParts(
        data.pooling,
        data.layers,
        split_scorer(setting.task, split, result.metric),
        np.stack([each.cosines for each in muted]),
        (lambda masks: np.stack([each.predict(masks) for each in muted])) if is_joint else None,
        "the similarity that the fitted head makes of the layer",
    )


class Muted:
    """A head with one seed, its similarities of a split, and their means over train."""

    def __init__(self, head: PairHead, similarities: torch.Tensor, means: torch.Tensor) -> None:
        self.head, self.similarities, self.means = head, similarities, means

    @classmethod
    def of(cls, fitted: FittedHead, split: str) -> "Muted":
        """Collect the similarities of a split."""
        head = fitted.head
        means = collect_similarities(head, fitted.data, "train").mean(1)
        return cls(head, collect_similarities(head, fitted.data, split), means)

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
        found = []
        keep_blocks()
        with torch.no_grad():
            for part in torch.split(keeps, step):
                kept = part.T.unsqueeze(2)  # channels, sets, rows
                values = torch.where(kept, self.similarities.unsqueeze(1), self.means.reshape(-1, 1, 1))
                found.append(self.head.combine(values.flatten(1)).reshape(len(part), n_rows))
        return np.asarray(torch.cat(found).numpy())


# Scoring new pairs of texts with the pair heads of a run.


def score_pairs(
    heads: Heads, pairs: Sequence[Sequence[str]], decoder: Decoder, spec: ExtractionSpec
) -> Float[np.ndarray, " N"]:
    """Score pairs, in any order within a pair, in the units of the task's gold: calibrated, the mean over seeds."""
    latents, places = embed_once((text for pair in pairs for text in pair), decoder, spec)
    left, right = ([places[pair[k]] for pair in pairs] for k in (0, 1))
    scores = []
    for saved in heads:
        read = read_channels(latents, saved.record, layers=spec.layers, poolings=spec.poolings)
        with torch.no_grad():
            predicted = saved.head(read[:, left], read[:, right])
        scores.append(read_calibration(saved.record["calibration"])(predicted.numpy()))
    return np.asarray(np.mean(scores, axis=0))


PAIRS_SCORING = KindScoring(
    score_pairs,
    fields=lambda pair, score: {"score": float(score), "text1": pair[0], "text2": pair[1]},
    n_texts=lambda _: 2,
)
