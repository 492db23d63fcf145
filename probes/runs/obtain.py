"""Obtaining what a run works with: its task and corpus, the caches of both, and encoders fitted on the corpus."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extract.decoders.loading import choose_device, load_decoder, load_tokenizer
from extract.errors import ConfigError, TaskError
from extract.run.on_ray.shards import extract_shards_on_ray
from extract.run.progress import ExtractionProgress
from extract.run.runner import extract_latents
from extract.run.shards import extract_shards
from extract.run.workers import PlacementKey, Workers, join_workers, place_worker, require_one_process
from extract.store.cache import LatentCache
from extract.store.shards.cache import ShardedCache
from probes.fitting.keep_best import EpochReport, ignore_epoch
from probes.fitting.loggers import require_loggers
from probes.fitting.protocols import find_protocol
from probes.fitting.saved import SavedHead
from probes.heads.entries import Purpose
from probes.heads.pairs.autoencoders import AUTOENCODER
from probes.heads.pairs.pretraining import Pretraining, obtain_autoencoder
from probes.heads.registry import HEADS
from probes.networks.autoencoder import LayerAutoencoder
from probes.runs.config import RunConfig
from probes.runs.record import describe_cache
from probes.tasks.base import Task
from probes.tasks.classes.look_both_ways import look_both_ways_split
from probes.tasks.corpora import load_corpus
from probes.tasks.corpus import Corpus
from probes.tasks.words.every_token import label_every_token


@dataclass(frozen=True)
class Watcher:
    """Receives progress from a run. Silent by default."""

    say: Callable[[str], None] = lambda _: None
    """Receives one-line remarks."""
    extraction: Callable[[str], ExtractionProgress] = lambda _: ExtractionProgress()
    """Makes the progress of an extraction from its title."""
    epochs: Callable[[str, int], EpochReport] = lambda *_: ignore_epoch
    """Makes, for a head and a seed, the function that receives every epoch."""


SILENT = Watcher()


def _every_token(task: Any, config: RunConfig) -> Any:
    return label_every_token(task, load_tokenizer(config.decoder), template=config.extraction.template)


MTEB_TASKS = ("banking77",)
"""Tasks that Look Both Ways scores as mteb does, with their own splits; use `few-shot-probe`."""
CUTS: dict[str, Callable[[Any, RunConfig], Any]] = {
    "released-split": lambda task, _: task if task.name in MTEB_TASKS else look_both_ways_split(task),
    "every-token": _every_token,
}
"""What protocols do to a task, by name; reading the tokenizer does not load the decoder."""


def load_run_task(config: RunConfig) -> Task:
    """Load the task of a run, and do to it what the protocol of the run does.

    Under `look-both-ways`, classes are split again and every token of a task of words is labelled.
    """
    protocol = find_protocol(config.protocol)
    task = config.task.load(protocol.task)
    cut = protocol.cut.get(config.task.kind, "")
    found: Task = CUTS[cut](task, config) if cut else task
    return found


def check_heads(config: RunConfig, task: Task, *, chooses_plan: bool = False) -> None:
    """Refuse a task that a head of a run cannot be fitted on, before anything is extracted.

    `chooses_plan` says that a mask plan is chosen by validation scores, as in a sweep or a search.
    """
    require_loggers(config.loggers)
    if chooses_plan and find_sides(config, task):
        raise ConfigError(
            "template.document_instruction is set, but plans are chosen by one cache of queries and documents; leave "
            "it out, or run each plan by itself."
        )
    purpose = Purpose(config.protocol, chooses_plan, config.extraction.layers)
    for name, resolved in config.resolve_heads().items():
        HEADS[name].check(task, resolved, purpose)


def _refuse_spread(config: RunConfig, *keys: PlacementKey) -> None:
    """Refuse several processes where one of these keys spreads a decoder, before it is loaded."""
    for key in keys:
        if getattr(config.decoder, key) is not None:
            require_one_process(key)


def obtain_cache(config: RunConfig, task: Task | Corpus, *, watcher: Watcher = SILENT) -> LatentCache:
    """Find the cache of every text of a run's task or corpus, or extract it."""
    _refuse_spread(config, "device_map")
    workers: Workers = join_workers(config.decoder.device, shares_decoder=config.decoder.tp_plan is not None)
    decoder = load_decoder(replace(config.decoder, device=workers.device), report=watcher.say)
    progress = watcher.extraction(f"extracting {task.name}") if workers.rank == 0 else None
    return extract_latents(
        decoder, task.texts(), spec=config.extraction, folder=config.caches, progress=progress, workers=workers
    )


def obtain_shards(
    config: RunConfig, texts: Iterable[Any], *, name: str, folder: Path, window: int, n_on_ray: int | None = None,
    watcher: Watcher = SILENT,
) -> ShardedCache:  # fmt: skip
    """Extract texts into shards in a folder, or go on there.

    Processes that were launched together share the work; so do `n_on_ray` workers on a Ray cluster, where given.
    """
    title = f"extracting {name}"
    if n_on_ray is not None:
        return extract_shards_on_ray(
            config.decoder, texts, folder=folder, workers=n_on_ray, spec=config.extraction, window=window,
            progress=watcher.extraction(title),
        )  # fmt: skip
    _refuse_spread(config, "device_map", "tp_plan")
    worker = place_worker(config.decoder.device)
    return extract_shards(
        load_decoder(replace(config.decoder, device=worker.device), report=watcher.say), texts, spec=config.extraction,
        folder=folder, window=window, progress=watcher.extraction(title) if worker.rank == 0 else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Sides:
    """Queries and documents that are read under different templates, and the configuration of the documents."""

    queries: Corpus
    documents: Corpus
    config: RunConfig


def find_sides(config: RunConfig, task: Task) -> Sides | None:
    """Tell queries and documents of a task apart, where the template does; None where one cache holds both."""
    template = config.extraction.template
    sides = task.sides()
    if sides is None or template.for_documents() == template:
        return None
    other = replace(config, extraction=config.extraction.with_template(template.for_documents()))
    return Sides(
        Corpus(f"queries of {task.name}", task.source, tuple(sides[0])),
        Corpus(f"documents of {task.name}", task.source, tuple(sides[1])),
        other,
    )


class EncoderShelf:
    """The autoencoders of a run by pooling, fitted when first asked for."""

    def __init__(self, config: RunConfig, cache: LatentCache | None, watcher: Watcher) -> None:
        self.config, self.cache, self.watcher = config, cache, watcher
        self.found: dict[str, SavedHead[LayerAutoencoder]] = {}

    def __call__(self, pooling: str) -> SavedHead[LayerAutoencoder]:
        """Return the autoencoders of a pooling."""
        if self.cache is None:
            raise TaskError("there is no corpus to fit autoencoders on; set `pretraining.corpus`.")
        if pooling not in self.found:
            spec = self.config.pretraining
            device = str(choose_device(self.config.decoder.device))
            what = Pretraining(self.cache, spec.autoencoder, spec.seed, device, Path(self.config.caches))
            report = self.watcher.epochs(f"{AUTOENCODER} ({pooling})", spec.seed)
            self.found[pooling] = obtain_autoencoder(what, pooling=pooling, report=report)
        return self.found[pooling]

    def describe(self, corpus: Corpus | None) -> dict[str, Any]:
        """Describe them for scores.json."""
        keys = (
            "layers", "codes", "seed", "best_epochs", "seconds", "history", "standardises_latents", "held_out_losses",
            "held_out_squared_errors", "n_texts",
        )  # fmt: skip
        return {
            "corpus": {"name": corpus.name, "source": corpus.source} if corpus else {},
            "cache": describe_cache(self.cache) if self.cache else {},
            "autoencoders": {
                pooling: {key: saved.record[key] for key in keys} for pooling, saved in self.found.items()
            },
        }


def obtain_corpus(config: RunConfig) -> Corpus | None:
    """Load the pretraining corpus of a run; None when no head of it starts from autoencoders."""
    spec = config.pretraining
    starts = [(options or {}).get("start", "fresh") for options in config.heads.values()]
    if not spec.corpus or all(start == "fresh" for start in starts):
        return None
    return load_corpus(spec.corpus, spec.texts, spec.options)
