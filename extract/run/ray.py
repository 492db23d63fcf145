"""Extraction into shards on a Ray cluster; docs/decisions/ray-actors.md says why it is made of actors."""

import logging
import math
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from secrets import token_hex
from types import ModuleType

from torch import nn

from extract.decoders.decoder import Decoder, load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError, IcecoreError, InputError, first_line
from extract.inputs.batches import stream_texts
from extract.inputs.joined_text import JoinedText
from extract.registry import allow_code, allowed_code, require_extra
from extract.run.extraction import SPREADS, warn_truncated
from extract.run.extraction_spec import WINDOW_TEXTS, ExtractionProgress, ExtractionSpec, names_of_code
from extract.run.shards import DRAFTS, PATIENCE, abandon_empty, extract_shards, listed_in, require_shardable, stamp_of
from extract.store.cache import ShardedCache
from extract.store.format import require_locks
from extract.store.reader import INDEX

DEVICES = ("auto", "cpu", "cuda")
"""Devices that a decoder may name: Ray chooses the GPUs of a worker."""
QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}
LONGEST_TEMPORARY = 35
"""Most characters of a temporary folder that leave room for the names of Ray's sockets, 107 at most."""
FAILURES = (OSError, RuntimeError, ValueError, ImportError)
"""Errors of `ray.init`."""
LOOK = 1.0  # seconds between reads of the index
GRACE = 5.0  # seconds that workers have to end by themselves once all is listed, and again when they are killed
Maker = DecoderSpec | Callable[[], Decoder]


@dataclass(frozen=True)
class RayWorkers:
    """Number of Ray workers, and the CPUs and GPUs of each."""

    n_workers: int
    """Workers. Those for which the cluster has no room wait until it has; the others do their windows."""
    cpus: int | float = 1
    """CPUs of each, and as many threads, unless `OMP_NUM_THREADS` is set."""
    gpus: int | float | None = None
    """GPUs of each, such as 1, or 0.5 where two share one; absent: 1 where the cluster has GPUs, else none."""
    restarts: int = 10
    """How often a worker is restarted when its process or its node dies; -1: without limit."""

    def __post_init__(self) -> None:
        if self.n_workers < 1:
            raise ConfigError(f"the number of Ray workers is {self.n_workers}; allowed: a whole number, at least 1.")
        if self.cpus < 0 or (self.gpus or 0) < 0:
            raise ConfigError(f"each Ray worker gets {self.cpus} CPUs and {self.gpus} GPUs; allowed: none or more.")
        if self.restarts < -1:
            raise ConfigError(f"restarts is {self.restarts}; allowed: a whole number, or -1 for no limit.")


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

    Each worker calls `extract_shards` on the same texts and folder, with its own CPUs and GPUs. One that dies is
    restarted, on another node if need be, and its window goes on from the last batch.

    The cluster is the one that `ray.init` joined before, that of `RAY_ADDRESS`, or one that runs on this machine. Where
    there is none, Ray is started on this machine for the time of the call. Needs `pip install ray`, on every node.

    Args:
        decoder: The decoder that every worker loads; or a function without arguments that returns a decoder, called by
            all workers.
        texts: As for `extract_shards`, but read by every worker: a list, a path, `stream_texts(...)` or a column of a
            `Dataset`, whose files all nodes see; no generator.
        folder: As for `extract_shards`; all nodes see it, under the same path.
        workers: Number of workers, or that with the CPUs and GPUs of each.
        spec: What to extract.
        window: Texts of a shard.
        progress: Progress callback, called when shards are listed.
        patience: As for `extract_shards`.

    Returns:
        The shards as one cache.

    Raises:
        ConfigError: The extra is missing, Ray cannot be joined or started, or the decoder is in memory, spread over
            devices, or of a device that only Ray can choose.
        InputError: Texts that can be read only once.
        IcecoreError: As `extract_shards`, from the first worker that fails; the others are ended. Or all workers died
            more often than they are restarted.
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
    shards = Path(folder).absolute()
    watch, is_begun = ListedProgress(shards, progress or ExtractionProgress()), (shards / INDEX).exists()
    try:
        with joined_cluster(ray, workers):
            watch.start(n_rows=len(source) if isinstance(source, Sized) else 0)
            gpus = _gpus_of_each(ray, make, workers)
            if isinstance(make, DecoderSpec) and not gpus:
                make = replace(make, device="cpu")  # GPUs that Ray gave to nobody may be visible
            code = (*allowed_code(), *names_of_code(spec))
            worker = ShardWorker(make, str(Path.cwd()), str(shards), spec, window, patience, code)
            with _filling(ray, worker, source, replace(workers, gpus=gpus)) as calls:
                _wait(ray, calls, watch.look)
    except BaseException:
        if not is_begun and (shards / INDEX).exists():
            abandon_empty(shards)  # a killed worker cannot
        raise
    finally:
        watch.finish()
    shutil.rmtree(shards / DRAFTS, ignore_errors=True)  # those of workers that were slower than others
    cache = ShardedCache(folder)
    warn_truncated(cache, n_cut=sum(shard.n_truncated for shard in listed_in(shards)))
    return cache


def require_maker(decoder: object) -> Maker:
    """Return the recipe by which every worker makes its decoder; one in memory, or spread over devices, is refused."""
    if isinstance(decoder, str):
        return DecoderSpec(decoder)
    if isinstance(decoder, DecoderSpec):
        for key, effect in SPREADS.items():
            if getattr(decoder, key) is not None:
                raise ConfigError(f"decoder.{key} {effect}, and every Ray worker has its own; leave decoder.{key} out.")
        if decoder.device not in DEVICES:
            raise ConfigError(
                f"decoder.device is {decoder.device!r}, and Ray chooses the GPU of each worker; allowed: "
                f"{', '.join(DEVICES)}."
            )
        return decoder
    if isinstance(decoder, Decoder | nn.Module) or not callable(decoder):
        raise ConfigError(
            f"the decoder is a {type(decoder).__name__}, and every Ray worker makes its own; allowed: a name, a "
            "DecoderSpec, or a function without arguments that returns a decoder."
        )
    return decoder


def _gpus_of_each(ray: ModuleType, make: Maker, workers: RayWorkers) -> int | float:
    if workers.gpus is not None:
        return workers.gpus
    is_for_cpus = isinstance(make, DecoderSpec) and make.device == "cpu"
    return int(not is_for_cpus and ray.cluster_resources().get("GPU", 0) > 0)


@dataclass
class ShardWorker:
    """An actor on Ray, which fills a folder of shards together with others."""

    make: Maker
    started_in: str
    folder: str
    spec: ExtractionSpec
    window: int
    patience: float
    allowed: tuple[str, ...] = ()
    """Code that the spec may name, as the driver has imported it."""

    def fill(self, texts: Iterable[str | JoinedText]) -> IcecoreError | OSError | None:
        """Return when all windows are listed; or return the error, for which Ray would raise pages."""
        with suppress(OSError):  # a folder that this node lacks; then only absolute paths work
            os.chdir(self.started_in)
        try:
            decoder = load_decoder(self.make) if isinstance(self.make, DecoderSpec) else self.make()
            with allow_code(self.allowed):
                extract_shards(
                    decoder, texts, folder=self.folder, spec=self.spec, window=self.window, patience=self.patience
                )
        except (IcecoreError, OSError) as error:
            return error
        return None


@contextmanager
def _filling(
    ray: ModuleType, worker: ShardWorker, texts: Iterable[str | JoinedText], workers: RayWorkers
) -> Iterator[list[object]]:
    """Let actors fill the folder, and end them with the `with` block; yields their calls."""
    actor = ray.remote(
        num_cpus=workers.cpus,
        num_gpus=workers.gpus,
        max_restarts=workers.restarts,
        max_task_retries=-1,  # as often as the actor is restarted
        scheduling_strategy="SPREAD",
    )(ShardWorker)
    actors, calls = list[object](), list[object]()
    try:
        try:
            shared_texts = ray.put(texts)
            for _ in range(workers.n_workers):
                actors.append(running := actor.remote(**vars(worker)))
                calls.append(running.fill.remote(shared_texts))
        except (TypeError, pickle.PicklingError) as error:
            raise ConfigError(
                f"the texts or the decoder cannot be sent to Ray workers ({first_line(error)}); allowed: paths, names, "
                "and what can be pickled."
            ) from error
        yield calls
        ray.wait(calls, num_returns=len(calls), timeout=GRACE)
    finally:
        with silent_ray():  # it would announce a restart of each
            for running in actors:
                ray.kill(running)
            ray.wait(calls, num_returns=len(calls), timeout=GRACE)


def _wait(ray: ModuleType, calls: Sequence[object], look: Callable[[], None]) -> None:
    """Wait until one worker has seen all windows listed; raise the error of one, or one when all have died."""
    cause: Exception | None = None
    while calls:
        done, calls = ray.wait(calls, timeout=LOOK)
        look()
        for call in done:
            try:
                error = ray.get(call)
            except ray.exceptions.RayTaskError:  # a bug, so with the worker's traceback
                raise
            except ray.exceptions.RayError as died:
                cause = died
                continue
            if error is not None:
                raise error
            return
    reason = (str(cause).strip().splitlines() or [""])[-1][:200]
    raise IcecoreError(
        f"all Ray workers died, each as often as it may be restarted ({reason}); give them more memory, or fix "
        "what kills them, and run the same extraction again to go on."
    ) from cause


class ListedProgress:
    """Reports the shards that any process lists in a folder."""

    def __init__(self, folder: Path, progress: ExtractionProgress) -> None:
        self._folder, self._progress = folder, progress
        self._seen: tuple[int, int] = 0, 0
        self._stamp: tuple[int, ...] = ()

    def start(self, *, n_rows: int) -> None:
        """Report the shards of earlier calls."""
        self._seen = self._count()
        self._progress.start(n_rows=n_rows, n_done=self._seen[0])

    def look(self) -> None:
        """Report new shards."""
        (rows, tokens), before = self._count(), self._seen
        if rows > before[0]:
            self._progress.advance(n_rows=rows - before[0], n_tokens=tokens - before[1])
            self._seen = rows, tokens

    def finish(self) -> None:
        """Report the end."""
        self._progress.finish()

    def _count(self) -> tuple[int, int]:
        """Count rows and tokens of the listed shards; the index is read when it has changed."""
        try:
            status = (self._folder / INDEX).stat()
        except FileNotFoundError:
            return self._seen
        stamp = stamp_of(status)
        if stamp == self._stamp:
            return self._seen
        self._stamp, shards = stamp, listed_in(self._folder)
        return sum(shard.n_rows for shard in shards), sum(shard.n_tokens for shard in shards)


@contextmanager
def joined_cluster(ray: ModuleType, workers: RayWorkers) -> Iterator[None]:
    """Hold a connection to a Ray cluster, as `extract_shards_on_ray` chooses it, until the `with` block ends.

    One that is started here has room for all workers, and leaves neither processes nor files.
    """
    with redirect_stdout(sys.stderr), ExitStack() as stack:  # Ray writes to it when a worker dies
        if not ray.is_initialized():
            with _restored_sigterm():
                if not _joins(ray, stack, os.environ.get("RAY_ADDRESS", "")):
                    _start(ray, stack, workers)
        try:
            yield
        finally:
            with silent_ray():
                stack.close()


@contextmanager
def silent_ray() -> Iterator[None]:
    """Drop Ray's standard output until the `with` block ends."""
    with redirect_stdout(StringIO()):
        yield


def _joins(ray: ModuleType, stack: ExitStack, address: str) -> bool:
    """Join a cluster; return False where none is named and none runs on this machine."""
    if address == "local":
        return False
    stack.callback(ray.shutdown)
    try:
        ray.init(address=address or "auto", **QUIET)
    except FAILURES as error:
        if not address and isinstance(error, ConnectionError):
            return False
        raise ConfigError(
            f"the Ray cluster at {address or 'this machine'!r} cannot be joined ({first_line(error)}); set RAY_ADDRESS "
            "to one with this version of Ray and Python, or to 'local', which starts Ray on this machine."
        ) from error
    return True


def _start(ray: ModuleType, stack: ExitStack, workers: RayWorkers) -> None:
    """Start Ray on this machine; it ends with the stack, which removes its files."""
    parent = tempfile.gettempdir()
    parent = parent if len(parent) <= LONGEST_TEMPORARY else "/tmp"
    files = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir=parent, ignore_cleanup_errors=True))
    stack.enter_context(_environment(RAY_USAGE_STATS_ENABLED="0", **_cluster_key()))
    stack.callback(ray.shutdown)
    n_cpus = max(os.cpu_count() or 1, math.ceil(workers.n_workers * workers.cpus))
    try:
        ray.init(address="local", num_cpus=n_cpus, include_dashboard=False, _temp_dir=files, **QUIET)
    except FAILURES as error:
        raise ConfigError(
            f"Ray cannot be started on this machine ({first_line(error)}); start it with 'ray start --head', or "
            "extract without Ray."
        ) from error


@cache  # as Ray reads it once in a process
def _cluster_key() -> dict[str, str]:
    """Make the key of clusters started here, unless the user has one; Ray would write it into the home folder."""
    has_key = "RAY_AUTH_TOKEN_PATH" in os.environ or Path("~/.ray/auth_token").expanduser().exists()
    return {} if has_key else {"RAY_AUTH_TOKEN": token_hex(32)}


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for Ray that are not set, and restore all of Ray's when the `with` block ends."""
    before = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    os.environ.update({**values, **before})
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _restored_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM, which `ray.init` replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
