"""A run: extract what is missing, fit every head, score baselines, report, all in one folder."""

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from extract.decoders.decoder import Decoder, choose_device, load_decoder
from extract.errors import ConfigError, TaskError
from extract.files import digest_bytes, read_file
from extract.inputs.joined_text import JoinedText
from extract.records import Values
from extract.registry import describe_own
from extract.run.extraction import (
    Workers,
    extract_latents,
    join_workers,
    own_names,
    place_worker,
    require_one_process,
)
from extract.run.shards import extract_shards, extract_views
from extract.store.cache import LatentCache, ShardedCache
from probes.data.task import Corpus, Task, TaskInfo, notes_by_split
from probes.data.task_table import task_title
from probes.fitting.fit_options import require_loggers, with_loggers
from probes.fitting.saved_fits import SavedHead
from probes.heads.head_table import AUTOENCODER, HEADS, PlannedRun
from probes.heads.layer_head import FitContext
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import (
    Difference,
    Resampling,
    SeedSummary,
    difference,
    summarise_resamples,
)
from probes.metrics.prediction_metrics import CORRELATIONS
from probes.networks.layerwise_networks import LayerAutoencoder
from probes.report.blocks import describe_point
from probes.report.document import KindReport, SplitRows, best_result
from probes.report.kind_reports import cosine_kind
from probes.report.scores import (
    BaselineScores,
    DecoderInfo,
    Header,
    Lead,
    PlansScores,
    PretrainingInfo,
    PretrainingScores,
    RunScores,
    TaskRecord,
)
from probes.report.write import write_pretraining, write_run
from probes.runs.config_file import ConfigSource, as_config
from probes.runs.folder import (
    CONFIG,
    RunFolder,
    describe_cache,
    describe_inputs,
    describe_program,
    open_folder,
    write_stamp,
)
from probes.runs.predict import LoadedRun
from probes.runs.run_config import RunConfig, describe_sources, load_run_task, obtain_corpus
from probes.runs.task_kinds import KINDS
from probes.runs.watcher import SILENT, WandbLog, Watcher, watching

if TYPE_CHECKING:
    from probes.heads.baselines import Baseline


def check_heads(config: RunConfig, task: Task, *, chooses_plan: bool = False) -> None:
    """Refuse a task that a head cannot be fitted on, in a sweep with `chooses_plan`, before anything is extracted."""
    require_loggers(config.loggers)
    if chooses_plan and "wandb" in config.loggers:
        raise ConfigError("loggers name wandb, which logs single runs; allowed here: csv, tensorboard.")
    if chooses_plan and find_sides(config, task):
        raise ConfigError(
            "template.document_instruction is set, but plans are chosen by one cache of queries and documents; leave "
            "it out, or run each plan by itself."
        )
    planned = PlannedRun(config.protocol, chooses_plan, config.extraction.layers)
    for name, resolved in config.resolve_heads().items():
        HEADS[name].check(task, resolved, planned)
    if set(task.splits) == {"train"}:
        raise TaskError(f"task {task.name!r} has only the split train; add validation or test rows.")


def obtain_cache(
    config: RunConfig, task: Task | Corpus, *, decoder: Decoder | None = None, watcher: Watcher = SILENT
) -> LatentCache:
    """Find the cache of every text of a run's task or corpus, or extract it; `decoder` saves loading it."""
    if config.decoder.device_map is not None:
        require_one_process("device_map")  # before the decoder is loaded
    config.require_files("decoder")
    workers: Workers = join_workers(config.decoder.device, shares_decoder=config.decoder.tp_plan is not None)
    decoder = decoder or load_decoder(replace(config.decoder, device=workers.device), report=watcher.say)
    progress = watcher.extraction(f"extracting {task_title(task.name)}") if workers.rank == 0 else None
    if config.views and workers.world_size == 1:
        return extract_views(decoder, task.texts(), spec=config.extraction, folder=config.caches, progress=progress)
    return extract_latents(
        decoder, task.texts(), spec=config.extraction, folder=config.caches, progress=progress, workers=workers
    )


def obtain_shards(
    config: RunConfig,
    texts: Iterable[str | JoinedText],
    *,
    name: str,
    folder: Path,
    window: int,
    n_on_ray: int | None = None,
    watcher: Watcher = SILENT,
) -> ShardedCache:
    """Extract texts into shards, or resume there, with the processes launched together or `n_on_ray` workers of Ray."""
    title = f"extracting {name}"
    if n_on_ray is not None:
        from extract.run.ray import extract_shards_on_ray

        return extract_shards_on_ray(
            config.decoder,
            texts,
            folder=folder,
            workers=n_on_ray,
            spec=config.extraction,
            window=window,
            progress=watcher.extraction(title),
        )
    if config.decoder.device_map is not None:
        require_one_process("device_map")
    if config.decoder.tp_plan is not None:
        require_one_process("tp_plan")
    worker = place_worker(config.decoder.device)
    return extract_shards(
        load_decoder(replace(config.decoder, device=worker.device), report=watcher.say),
        texts,
        spec=config.extraction,
        folder=folder,
        window=window,
        progress=watcher.extraction(title) if worker.rank == 0 else None,
    )


@dataclass(frozen=True)
class Sides:
    """Queries and documents that are read under different templates, and the configuration of the documents."""

    queries: Corpus
    documents: Corpus
    config: RunConfig


def find_sides(config: RunConfig, task: Task) -> Sides | None:
    """Separate queries and documents of a task where the template does; None where one cache holds both."""
    templates = [view.template for view in config.extraction.readings.values()]
    sides = task.sides()
    if sides is None or all(template.for_documents() == template for template in templates):
        return None
    documents = config.extraction.for_documents()
    other = replace(config, extraction=documents, views=documents.views)
    return Sides(
        Corpus(f"queries of {task.name}", task.source, tuple(sides[0])),
        Corpus(f"documents of {task.name}", task.source, tuple(sides[1])),
        other,
    )


class EncoderStore:
    """The autoencoders of a run by pooling, fitted when first asked for."""

    def __init__(self, config: RunConfig, cache: LatentCache | None, watcher: Watcher) -> None:
        self.config, self.cache, self.watcher = config, cache, watcher
        self.fitted: dict[str, SavedHead[LayerAutoencoder]] = {}

    def __call__(self, pooling: str) -> SavedHead[LayerAutoencoder]:
        """Return the autoencoders of a pooling."""
        if self.cache is None:
            raise TaskError("there is no corpus to fit autoencoders on; set `pretraining.corpus`.")
        if pooling not in self.fitted:
            from probes.heads.pair_heads import Pretraining, obtain_autoencoder

            spec = self.config.pretraining
            device = str(choose_device(self.config.decoder.device))
            pretraining = Pretraining(self.cache, spec.autoencoder, spec.seed, device, Path(self.config.caches))
            report = self.watcher.epochs(f"{AUTOENCODER} ({pooling})", spec.seed)
            self.fitted[pooling] = obtain_autoencoder(pretraining, pooling=pooling, report=report)
        return self.fitted[pooling]

    def describe(self, corpus: Corpus | None) -> PretrainingInfo:
        """Describe them for scores.json."""
        keys = (
            "layers",
            "codes",
            "seed",
            "best_epochs",
            "seconds",
            "history",
            "standardises_latents",
            "held_out_losses",
            "held_out_squared_errors",
            "n_texts",
        )
        described: dict[str, object] = {
            "corpus": {"name": corpus.name, "source": corpus.source} if corpus else {},
            "cache": describe_cache(self.cache) if self.cache else {},
            "autoencoders": {
                pooling: {key: saved.record[key] for key in keys} for pooling, saved in self.fitted.items()
            },
        }
        return cast("PretrainingInfo", described)


Scores = TypeVar("Scores", bound=PlansScores | PretrainingScores)


@dataclass(frozen=True)
class RunResult(Generic[Scores]):
    """A finished sweep, search or pretraining: its folder, and its scores as a typed record."""

    folder: Path
    record: Scores

    @property
    def scores(self) -> dict[str, Any]:
        """The content of scores.json."""
        return dict(self.record.to_dict())


def run(
    config: ConfigSource,
    *,
    cache: LatentCache | None = None,
    corpus_cache: LatentCache | None = None,
    decoder: Decoder | None = None,
    watcher: Watcher | None = None,
    command: str = "",
) -> LoadedRun:
    """Run a configuration: extract what is missing, fit every head, report.

    Args:
        config: The run: a `RunConfig`, a mapping of its values, the path of a YAML file, or that of a file of data
            (CSV, TSV, JSON Lines, Parquet, CoNLL), whose columns are found by the rules of `icecore run FILE`.
        cache: Latents to use instead of extracting; must hold every text of the task. What they were extracted with is
            recorded in place of what the configuration says.
        corpus_cache: The same for the pretraining corpus.
        decoder: The decoder of the configuration, if it is in memory already.
        watcher: Progress callbacks; by default a bar in a notebook, and nothing elsewhere.
        command: The command line, for the record.

    Returns:
        The finished run, as `load_run` reads it from its folder.

    Raises:
        IcecoreError: Any input the run cannot work with, in one sentence. What is cached or fitted stays.

    Example:
        >>> result = run({"task": "class-sample", "heads": "logistic-probe"})  # doctest: +SKIP
        >>> result.record.heads["logistic-probe"].chosen  # doctest: +SKIP
    """
    with watching(watcher) as shown:
        record = as_config(config, report=shown.say)
        return _run(record, cache, corpus_cache, decoder=decoder, watcher=shown, command=command)


def _run(
    config: RunConfig,
    cache: LatentCache | None,
    corpus_cache: LatentCache | None,
    *,
    decoder: Decoder | None,
    watcher: Watcher,
    command: str,
) -> LoadedRun:
    started = time.monotonic()
    inputs = None if cache or corpus_cache or decoder else describe_inputs(config)
    if cache:
        from probes.runs.run_caches import config_of, show_as

        config = config_of(config, cache)
        cache = show_as(cache, config.extraction) or cache
    task = load_run_task(config)
    for note in notes_by_split(task.notes):
        watcher.say(f"note: {note}")
    inferred = task.inferred_options()
    sources = config.sources | {f"task.options.{name}": "read from the data" for name in inferred}
    options = {**config.task.options, **inferred}
    config = replace(config, task=replace(config.task, options=options), sources=sources)
    check_heads(config, task)  # before anything is extracted
    _warn_of_notebook_parts(config)
    corpus = obtain_corpus(config)
    sides = find_sides(config, task)
    obtain = partial(obtain_cache, decoder=decoder, watcher=watcher)
    cache = cache or obtain(config, sides.queries if sides else task)
    documents = obtain(sides.config, sides.documents) if sides else None
    if corpus is not None and corpus_cache is None:
        corpus_cache = obtain(config, corpus)
    extracted = time.monotonic()
    n_latents = f"{cache.n_words:,} words" if cache.is_words else f"{len(cache):,} texts"
    watcher.say(f"latents: {cache.path} ({n_latents}, {cache.default_pooling}, {len(cache.layers)} layers)")
    folder = _open_folder(config, config.name, cache, watcher)
    log = None
    if "wandb" in config.loggers:
        log = WandbLog(folder, config.to_dict())
        watcher = replace(watcher, epochs=log.epochs(watcher.epochs))
    pretrained = EncoderStore(config, corpus_cache, watcher)
    context = make_context(
        config, task, cache, folder / "heads", autoencoders=pretrained if corpus_cache else None, documents=documents
    )
    heads = evaluate_heads(config, context, watcher=watcher)
    kind = KINDS[config.task.kind]
    fitted = time.monotonic()
    watcher.say("baselines, which need no decoder")
    predicted = dict(kind.baselines(task))
    if config.random_decoder:
        predicted["random-weights"] = _random_decoder(config, task, best_result(heads.values()), folder, watcher)
    baselines = score_baselines(predicted, heads, task=task, report=kind.report, n_resamples=config.bootstrap)
    over_cosine = leads_over_cosine(heads, task=task, report=kind.report, n_resamples=config.bootstrap)
    seconds = {"extraction": extracted - started, "heads": fitted - extracted, "baselines": time.monotonic() - fitted}
    scores = RunScores(
        header=make_header(
            config,
            "run",
            folder,
            command=command,
            decoder=cache.manifest.provenance["decoder"],
            task=kind.describe(task, cache),
        ),
        cache=describe_cache(cache),
        heads=heads,
        pretraining=pretrained.describe(corpus),
        seconds={part: round(taken, 2) for part, taken in seconds.items()},
        baselines=baselines,
        over_cosine=over_cosine,
    )
    write_run(folder, scores, task, kind.report, formats=config.figures)
    if inputs is not None:
        write_stamp(folder, inputs, tasks=[task], caches=[cache, *([documents] if documents else [])])
    finished = RunFolder(folder)
    vars(finished)["scores"] = scores  # with the predictions, which the file lacks
    run_result = LoadedRun(finished, decoder=decoder)
    if log is not None:
        log.finish(run_result)
    return run_result


def _random_decoder(config: RunConfig, task: Task, best: HeadResult, folder: Path, watcher: Watcher) -> "Baseline":
    """Predict with the best head of a run, fitted and chosen again on the same decoder with random weights."""
    from probes.heads.baselines import Baseline

    name = f"{config.decoder.name}@random-0"
    config = replace(
        config,
        decoder=replace(config.decoder, name=name, revision=None),
        heads={best.name: config.heads[best.name]},
        random_decoder=False,
    )
    sides = find_sides(config, task)
    cache = obtain_cache(config, sides.queries if sides else task, watcher=watcher)
    documents = obtain_cache(sides.config, sides.documents, watcher=watcher) if sides else None
    context = make_context(config, task, cache, folder / "random_decoder", has_details=False, documents=documents)
    result = evaluate_heads(config, context, watcher=watcher)[best.name]
    point = describe_point(result.chosen)
    return Baseline(f"{best.name} on {name}{f', {point}' if point else ''}", result.predictions)


def make_context(
    config: RunConfig,
    task: Task,
    cache: LatentCache,
    folder: Path,
    *,
    autoencoders: EncoderStore | None = None,
    has_details: bool = True,
    documents: LatentCache | None = None,
) -> FitContext:
    """Collect what all heads of a run share; `has_details` says whether to describe residuals and subsets of test."""
    return FitContext(
        cache,
        task,
        config.seeds,
        config.bootstrap,
        str(choose_device(config.decoder.device)),
        folder,
        protocol=config.protocol,
        calibration=config.calibration,
        anchor_identical=config.anchor_identical,
        autoencoders=autoencoders,
        has_details=has_details,
        documents=documents,
    )


def evaluate_heads(config: RunConfig, context: FitContext, *, watcher: Watcher = SILENT) -> dict[str, HeadResult]:
    """Fit every head of a configuration, or find it fitted."""
    return {
        name: HEADS[name].evaluate(
            resolved, context, with_loggers(partial(watcher.epochs, name), config.loggers, context.folder / name)
        )
        for name, resolved in config.resolve_heads().items()
    }


def make_header(
    config: RunConfig, what: str, folder: Path, *, command: str, decoder: Values, task: TaskInfo | None
) -> Header:
    """Make what every scores.json begins with; a pretraining has no task."""
    return Header(
        what=what,
        kind=config.task.kind if task else "",
        protocol=config.protocol,
        name=folder.name,
        command=command,
        device=str(choose_device(config.decoder.device)),
        n_resamples=config.bootstrap,
        decoder=cast("DecoderInfo", decoder),
        task=cast("TaskRecord", task.to_plain() if task else {}),
        config_sha256=digest_bytes(read_file(folder / CONFIG)),
        own=describe_own(custom_names(config)),
        **describe_program(),
    )


def _warn_of_notebook_parts(config: RunConfig) -> None:
    """Warn where custom code is in a notebook or a script, which no other process can import."""
    names = [name for name, part in describe_own(custom_names(config)).items() if part["module"] == "__main__"]
    if names:
        warnings.warn(
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} defined in a notebook or script, so another "
            "process cannot load this run; move the code to a module and import it from there.",
            stacklevel=4,
        )


def custom_names(config: RunConfig) -> list[tuple[str, str]]:
    """List the poolings, mask kinds and heads that a configuration names, of which some may be the user's own."""
    names = []
    for spec in config.extraction.readings.values():
        words = spec.words.poolings if KINDS[config.task.kind].reads_words else None
        names += own_names(spec.mask_plan, spec.poolings, words)
    return [*names, *(("head", name) for name in config.heads)]


def _open_folder(config: RunConfig, name: str, cache: LatentCache, watcher: Watcher) -> Path:
    folder = open_folder(config.runs, name, config.to_dict(), cache, sources=describe_sources(config))
    if folder.name != name:
        watcher.say(f"note: {name} in {config.runs} is a run of other settings or texts; this one is {folder.name}")
    return folder


def pretrain(
    config: RunConfig, cache: LatentCache, *, watcher: Watcher = SILENT, command: str = ""
) -> RunResult[PretrainingScores]:
    """Fit the layer-wise autoencoders of a configuration on the texts of a cache, and report their held-out losses."""
    from probes.runs.run_caches import config_of

    config = config_of(config, cache)
    folder = _open_folder(config, f"{config.name}-{AUTOENCODER}", cache, watcher)
    pretrained = EncoderStore(config, cache, watcher)
    for pooling in [cache.default_pooling] if config.views else cache.poolings:
        pretrained(pooling)
    decoder = cache.manifest.provenance["decoder"]
    header = make_header(config, "pretraining", folder, command=command, decoder=decoder, task=None)
    scores = PretrainingScores(header, describe_cache(cache), pretrained.describe(None))
    write_pretraining(folder, scores, formats=config.figures)
    return RunResult(folder, scores)


# --- Baselines ---


LIFTED = ("v-measure",)
"""Metrics that units drawn twice raise, so that their resamples are centred."""


def score_baselines(
    baselines: "Mapping[str, Baseline]",
    heads: Mapping[str, HeadResult],
    *,
    task: Task,
    report: KindReport,
    n_resamples: int,
) -> dict[str, BaselineScores]:
    """Score baselines on validation and test, and by how much every head leads them, on the resamples of its scores."""
    best, resampling = best_result(heads.values()), Resampling(n_resamples)
    metrics = list(CORRELATIONS) if best.metric in CORRELATIONS else [best.metric]
    metrics = sorted(metrics, key=lambda metric: metric != best.metric)
    splits = {split: report.split_rows(task, split) for split in best.summary if split != "train"}
    scored = {}
    for name, baseline in baselines.items():
        predicted = {split: _named(baseline.predictions[split], best.names.get(split)) for split in splits}
        summary: dict[str, dict[str, SeedSummary]] = {split: {} for split in splits}
        for split, metric in product(splits, metrics):
            values, resampled = splits[split].score([[predicted[split]]], metric, resampling)
            if np.isnan(values[0]):  # a constant, which has no correlation
                values[0] = resampled[0] = 0.0
            summary[split][metric] = summarise_resamples(
                values, resampled[0], confidence=resampling.confidence, is_centred=metric in LIFTED
            )
        leads = {
            head: _lead(result, [predicted[split]], splits[split], resampling)
            for head, result in heads.items()
            for split in [result.reported_split]
            if result.metric in metrics
        }
        scored[name] = BaselineScores(baseline.note, summary, leads)
    return scored


def leads_over_cosine(
    heads: Mapping[str, HeadResult], *, task: Task, report: KindReport, n_resamples: int
) -> dict[str, Lead]:
    """Return the lead of every head over the cosine of the top layer, of latents prepared as its own; as baselines'."""
    kinds = next((result.top_cosines for result in heads.values() if result.top_cosines), {})
    leads = {}
    for name, result in heads.items():
        if (kind := cosine_kind(result)) in kinds:
            rows = report.split_rows(task, result.reported_split)
            leads[name] = _lead(result, [kinds[kind].tolist()], rows, Resampling(n_resamples))
    return leads


def lead_over_plan(
    result: HeadResult, default: HeadResult, *, task: Task, report: KindReport, n_resamples: int
) -> Lead:
    """Return the lead of a head under one plan over the same head under another, on test."""
    rows, over = report.split_rows(task, "test"), default.mean("test", result.metric)
    return _lead(result, _fits(default, "test"), rows, Resampling(n_resamples), over=over)


@dataclass(frozen=True, eq=False)
class Gaps:
    """What results score above one of them, on the same rows and resamples; NaN where a result has no score."""

    scores: Float[np.ndarray, " S"]
    """Scores of the predictions, the mean over fits."""
    gaps: Float[np.ndarray, " S"]
    draws: Float[np.ndarray, "S R"]
    """The same of every resample."""
    n_units: int

    def interval(self, system: int, *, around: float | None = None) -> Difference:
        """Return the gap of one result with its symmetric interval, around the difference of scores on record."""
        zeros = np.zeros_like(self.draws[system])
        values, draws = np.array([self.gaps[system], 0.0]), np.stack([self.draws[system], zeros])
        gap = difference(values, draws, 0, 1, n_units=self.n_units)
        moved = 0.0 if around is None else around - gap.value
        return Difference(gap.value + moved, gap.low + moved, gap.high + moved, gap.n_units)


def score_gaps(
    results: Sequence[HeadResult],
    reference: HeadResult,
    split: str,
    *,
    rows: SplitRows,
    n_resamples: int,
    part: Sequence[int] | None = None,
) -> Gaps:
    """Score results and compare each with a reference on the same resamples; `part` are the rows, if not the split."""
    systems = [_fits(result, split) for result in (*results, reference)]
    if part is not None:
        systems = [[[fit[row] for row in part] for fit in fits] for fits in systems]
    scores, draws = rows.score(systems, reference.metric, Resampling(n_resamples))
    return Gaps(scores[:-1], scores[:-1] - scores[-1], draws[:-1] - draws[-1], rows.n_units)


def _named(predicted: NDArray[Any], names: Sequence[str] | None) -> Sequence[object]:
    """Return predicted numbers, or the names at predicted positions."""
    values: list[Any] = predicted.tolist()
    return values if names is None else [names[code] for code in values]


def _fits(result: HeadResult, split: str) -> list[Sequence[object]]:
    """Return the predictions of every fit of a head, numbers or names."""
    fits = result.scored[split] if split in result.scored else result.predictions[split][None]
    names = (*result.names[split], "") if split in result.names else None  # -1 is no prediction
    return [_named(row, names) for row in fits]


def _lead(
    result: HeadResult,
    others: Sequence[Sequence[object]],
    rows: SplitRows,
    resampling: Resampling,
    *,
    over: float | None = None,
) -> Lead:
    """Return the lead of a head over other predictions, each the mean over its fits, around the difference of scores.

    `over` is the score of the others where it is on record.
    """
    split = result.reported_split
    scores, draws = rows.score([others, _fits(result, split)], result.metric, resampling)
    if np.isnan(scores[0]):  # a constant, which has no correlation
        scores[0] = draws[0] = 0.0
    gap = difference(scores, draws, 1, 0, n_units=rows.n_units)
    value, reach = result.mean(split) - (float(scores[0]) if over is None else over), gap.high - gap.value
    return Lead(value, value - reach, value + reach, gap.n_units)
