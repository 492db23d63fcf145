"""Extraction into shards on a Ray cluster; docs/decisions/ray-actors.md says why it is made of actors."""

import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from extract.decoders.decoder import Decoder
from extract.decoders.spec import DecoderSpec
from extract.errors import ConfigError, IcecoreError, InputError, first_line
from extract.inputs.joined import JoinedText
from extract.inputs.streams import stream_texts
from extract.names import require_extra
from extract.own.gate import allowed_code
from extract.run.on_ray.cluster import joined_cluster, silent_ray
from extract.run.on_ray.workers import Maker, RayWorkers, ShardWorker, require_maker
from extract.run.progress import ExtractionProgress
from extract.run.runner import warn_truncated
from extract.run.shards import require_shardable
from extract.run.spec import WINDOW_TEXTS, ExtractionSpec, names_of_code
from extract.run.windows import DRAFTS, PATIENCE, abandon_empty, listed_in, stamp_of
from extract.store.disk import require_locks
from extract.store.shards.cache import ShardedCache
from extract.store.shards.index import INDEX

LOOK = 1.0  # seconds between looks at what is listed
GRACE = 5.0  # seconds that workers have to end, by themselves once all is listed, then killed


def extract_shards_on_ray(
    decoder: DecoderSpec | str | Callable[[], Decoder],
    texts: Iterable[str | JoinedText] | Path,
    *,
    folder: str | Path,
    workers: RayWorkers | int,
    spec: ExtractionSpec = ExtractionSpec(),  # noqa: B008 - frozen
    window: int = WINDOW_TEXTS,
    progress: ExtractionProgress | None = None,
    patience: float = PATIENCE,
) -> ShardedCache:
    """Extract texts into shards by workers on a Ray cluster; the shards are those of `extract_shards`.

    Each worker calls `extract_shards` on the same texts and folder, with CPUs and GPUs that are its own. One that dies
    is started again, on another node if need be, and the window that it was at goes on from its last batch.

    The cluster is the one that `ray.init` joined before, that of `RAY_ADDRESS`, or one that runs on this machine. Where
    there is none, Ray is started on this machine for the time of the call. Needs `pip install ray`, on every
    node.

    Args:
        decoder: What every worker loads; or a function without arguments that returns a decoder, called by each.
        texts: As for `extract_shards`, but read by every worker: a list, a path, `stream_texts(...)` or a column of a
            `Dataset`, whose files all nodes see; no generator.
        folder: As for `extract_shards`; all nodes see it, under the same path.
        workers: How many workers, or how many and what each gets.
        spec: What to extract.
        window: Texts of a shard.
        progress: Receives every shard when it is listed.
        patience: As for `extract_shards`.

    Returns:
        The shards as one cache.

    Raises:
        ConfigError: The extra is missing, Ray cannot be joined or started, or the decoder is in memory, spread over
            devices, or of a device that only Ray can choose.
        InputError: Texts that can be read only once.
        IcecoreError: As `extract_shards`, from the worker that meets it first; the others are ended. Or all workers
            died more often than they are started again.
    """
    require_shardable(spec, window)
    require_locks()
    workers = RayWorkers(workers) if isinstance(workers, int) else workers
    make = require_maker(decoder)
    if isinstance(texts, Iterator):
        raise InputError(
            f"texts is a {type(texts).__name__}, which can be read only once, and every Ray worker reads them; "
            "allowed: a list, the path of a file, stream_texts(...), or a column of a Dataset."
        )
    ray = require_extra("ray")
    source = stream_texts(texts.absolute()) if isinstance(texts, Path) else texts
    place = Path(folder).absolute()
    watch, is_begun = ListedProgress(place, progress or ExtractionProgress()), (place / INDEX).exists()
    try:
        with joined_cluster(ray, workers):
            watch.start(n_rows=len(source) if isinstance(source, Sized) else 0)
            gpus = _gpus_of_each(ray, make, workers)
            if isinstance(make, DecoderSpec) and not gpus:
                make = replace(make, device="cpu")  # GPUs that Ray gave to nobody may be in sight
            code = (*allowed_code(), *names_of_code(spec))
            worker = ShardWorker(make, str(Path.cwd()), str(place), spec, window, patience, code)
            with _filling(ray, worker, source, replace(workers, gpus=gpus)) as calls:
                _wait(ray, calls, watch.look)
    except BaseException:
        if not is_begun and (place / INDEX).exists():
            abandon_empty(place)  # which a worker that is killed cannot do itself
        raise
    finally:
        watch.finish()
    shutil.rmtree(place / DRAFTS, ignore_errors=True)  # of workers that were behind when all was done
    cache = ShardedCache(folder)
    warn_truncated(cache, n_cut=sum(shard.n_truncated for shard in listed_in(place)))
    return cache


def _gpus_of_each(ray: Any, make: Maker, workers: RayWorkers) -> int | float:
    if workers.gpus is not None:
        return workers.gpus
    is_for_cpus = isinstance(make, DecoderSpec) and make.device == "cpu"
    return int(not is_for_cpus and ray.cluster_resources().get("GPU", 0) > 0)


@contextmanager
def _filling(ray: Any, worker: ShardWorker, texts: Any, workers: RayWorkers) -> Iterator[list[Any]]:
    """Let actors fill the folder, and end them with the `with` block; yields their calls."""
    actor = ray.remote(
        num_cpus=workers.cpus,
        num_gpus=workers.gpus,
        max_restarts=workers.restarts,
        max_task_retries=-1,  # as often as the actor is restarted
        scheduling_strategy="SPREAD",
    )(ShardWorker)
    actors, calls = list[Any](), list[Any]()
    try:
        try:
            given = ray.put(texts)
            for _ in range(workers.n_workers):
                actors.append(actor.remote(**vars(worker)))
                calls.append(actors[-1].fill.remote(given))
        except (TypeError, pickle.PicklingError) as error:
            raise ConfigError(
                f"the texts or the decoder cannot be sent to Ray workers ({first_line(error)}); allowed: paths, names, "
                "and what can be pickled."
            ) from error
        yield calls
        ray.wait(calls, num_returns=len(calls), timeout=GRACE)
    finally:
        with silent_ray():  # which else says of each that it will be started again
            for each in actors:
                ray.kill(each)
            ray.wait(calls, num_returns=len(calls), timeout=GRACE)


def _wait(ray: Any, calls: Sequence[Any], look: Callable[[], None]) -> None:
    """Wait until one worker has seen all windows listed; raise what one meets, or when all have died."""
    why: Exception | None = None
    while calls:
        done, calls = ray.wait(calls, timeout=LOOK)
        look()
        for call in done:
            try:
                error = ray.get(call)
            except ray.exceptions.RayTaskError:  # no sentence for a person, so the worker's own traceback
                raise
            except ray.exceptions.RayError as died:
                why = died
                continue
            if error is not None:
                raise error
            return
    reason = (str(why).strip().splitlines() or [""])[-1][:200]
    raise IcecoreError(
        f"all Ray workers died, each as often as it may be started again ({reason}); give them more memory, or fix "
        "what kills them, and run the same extraction again to go on."
    ) from why


class ListedProgress:
    """Reports what is listed in a folder of shards, whoever lists it."""

    def __init__(self, folder: Path, progress: ExtractionProgress) -> None:
        self._folder, self._progress = folder, progress
        self._seen: tuple[int, int] = 0, 0
        self._stamp: tuple[int, ...] = ()

    def start(self, *, n_rows: int) -> None:
        """Report what is listed already."""
        self._seen = self._count()
        self._progress.start(n_rows=n_rows, n_done=self._seen[0])

    def look(self) -> None:
        """Report what has been listed since."""
        (rows, tokens), before = self._count(), self._seen
        if rows > before[0]:
            self._progress.advance(n_rows=rows - before[0], n_tokens=tokens - before[1])
            self._seen = rows, tokens

    def finish(self) -> None:
        """Report the end."""
        self._progress.finish()

    def _count(self) -> tuple[int, int]:
        """Count rows and tokens of the shards that are listed; the index is read when it has changed."""
        try:
            status = (self._folder / INDEX).stat()
        except FileNotFoundError:
            return self._seen
        stamp = stamp_of(status)
        if stamp == self._stamp:
            return self._seen
        self._stamp, shards = stamp, listed_in(self._folder)
        return sum(shard.n_rows for shard in shards), sum(shard.n_tokens for shard in shards)
