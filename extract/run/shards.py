"""Large extractions: plans as a tree, shards of texts, and caches that are put together."""

import os
import platform
import shutil
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, count, islice, repeat
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder, code_as_now, is_split, load_decoder
from extract.decoders.decoder_spec import DecoderSource
from extract.errors import CacheError, CacheIdentityError, ConfigError, IcecoreError, InputError, NonFiniteLatentError
from extract.files import digest_json, digest_rows, open_unlinked, refuse_links
from extract.inputs.batches import Batch, stream_texts
from extract.inputs.joined_text import JoinedText, digest_texts
from extract.masks.mask_plan import CAUSAL_KIND, MaskPlan
from extract.run.extraction import (
    Extraction,
    Put,
    Session,
    check_texts,
    count_rows,
    describe_extraction,
    extract_latents,
    open_store,
    require_one_process,
    unique_texts,
    warn_truncated,
)
from extract.run.extraction_spec import (
    WINDOW_TEXTS,
    ExtractionProgress,
    ExtractionSpec,
    join_readings,
    require_one_reading,
    sweep_key,
)
from extract.store.cache import LatentCache, MeanCache, ShardedCache, cache_path, describe_shard, find_cache
from extract.store.format import (
    create_store,
    draft_path,
    explain_write_error,
    explained_errors,
    locked_file,
    require_locks,
)
from extract.store.items import keep_texts, move_texts
from extract.store.manifest import Manifest, of_all_texts, require_same
from extract.store.reader import INDEX, LocalFiles, Shard, ShardIndex, parse_index, require_shard, shared_identity
from extract.store.writer import StoreWriter
from extract.wiring.attention import Wiring
from extract.wiring.plan_wiring import masks_in_force, rest_in_force, sharing_in_force
from extract.wiring.states import Route, count_blocks, route_of, walk_plans

ROWS_AT_A_TIME = 1024
MOST_IDS = 500
"""Identities of parts that a certificate has room for."""
OPEN = ("poolings", "layers")
"""Fields of an identity of which a part may hold more."""


@dataclass(frozen=True)
class CachePart:
    """A whole cache, and those of its texts whose latents are copied."""

    cache: LatentCache
    texts: Sequence[str]


def compose_cache(
    parts: Sequence[CachePart], *, manifest: Manifest, folder: Path, stores_texts: bool = False
) -> LatentCache:
    """Write the cache that an extraction of the texts of all parts, each in one of them, would have written.

    The certificate is that of the last part, with the identities of all parts, or where they are many the digest of
    these. Texts are kept beside it where they are asked for, or kept beside every part.
    """
    for part in parts:
        actual = of_all_texts(part.cache.identity.like(manifest.identity))
        expected = of_all_texts(manifest.identity.like(part.cache.identity))
        covered = {key: expected[key] for key in OPEN if set(actual[key]) >= set(expected[key])}
        if "widths" in actual:
            covered["widths"] = {key: width for key, width in actual["widths"].items() if key in manifest.layers}
        require_same({**actual, **covered}, expected, where=repr(str(part.cache.path)))
    n_texts = sum(len(part.texts) for part in parts)
    if n_texts != manifest.n_rows:
        raise CacheError(f"the parts hold {n_texts} texts, but the cache is to hold {manifest.n_rows}.")
    path = cache_path(folder, manifest)
    # Rows are in another order than an extraction's, which must never resume this store half done.
    # Under this name a draft that a kill leaves behind is swept away by the next extraction of the same store.
    draft = draft_path(path)
    create_store(draft, manifest)
    try:
        with closing(StoreWriter(draft)) as writer, writer.locked():
            first = 0
            for part in parts:
                first = _copy(writer, part, first, manifest)
            ids: object = [part.cache.manifest.id for part in parts]
            if len(parts) > MOST_IDS:
                ids = {"n_caches": len(parts), "sha256": digest_json(ids)}
            writer.write_certificate({**parts[-1].cache.certificate, "composed_of": ids})
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    if stores_texts or all(part.cache.keeps_texts for part in parts):
        keep_texts(path, [text for part in parts for text in part.texts])
    return LatentCache(path, expected=manifest.identity)


def _copy(writer: StoreWriter, part: CachePart, first: int, manifest: Manifest) -> int:
    """Copy the rows of a part to those from `first` on; return the row after them."""
    cache, rows_of_texts = part.cache, part.cache.rows_of(part.texts).numpy()
    poolings, layers = manifest.identity.poolings, manifest.layers
    for start in range(0, len(part.texts), ROWS_AT_A_TIME):
        rows = rows_of_texts[start : start + ROWS_AT_A_TIME]
        latents = [[_stored(cache, layer, pooling, rows) for pooling in poolings] for layer in layers]
        facts = {
            "digest": digest_texts(part.texts[start : start + ROWS_AT_A_TIME]),
            "n_tokens": cache.n_tokens[rows],
            "is_truncated": cache.is_truncated[rows].astype(np.uint8),
        }
        writer.write_rows(first, latents, rows=facts)
        first += len(rows)
    return first


def _stored(cache: LatentCache, layer: str, pooling: str, rows: NDArray[np.int64]) -> NDArray[np.generic]:
    view = cache.layer(layer, pooling)[torch.from_numpy(rows)]
    stored: NDArray[np.generic] = (view.view(torch.uint16) if cache.storage_dtype == "bfloat16" else view).numpy()
    return stored


@dataclass(frozen=True)
class SweepCost:
    """Block passes of a sweep, and those of separate extractions."""

    n_plans: int
    n_blocks: int
    n_blocks_apart: int

    @property
    def ratio(self) -> float:
        """Share of the separate extractions' block passes."""
        return self.n_blocks / self.n_blocks_apart


def sweep_cost(plans: Sequence[MaskPlan], n_blocks: int) -> SweepCost:
    """Predict the cost of a sweep from its tree; a plan with a tail cannot share blocks (`ConfigError`)."""
    for plan in plans:
        if plan.has_tail:
            raise ConfigError(
                f"the plan {plan.text!r} cannot be part of a sweep; allowed: plans of masks and architectures, without "
                "~skip, ~tp and ~kv. Extract it by itself with extraction.plan."
            )
    routes = [route_of(plan, n_blocks) for plan in plans]
    return SweepCost(len(plans), count_blocks(routes), sum(map(len, routes)))


@dataclass(frozen=True, eq=False)
class _Branch:
    extraction: Extraction
    plan: MaskPlan
    route: Route
    was_done: NDArray[np.bool_]

    def prove(self, wiring: Wiring, *, is_closing: bool) -> None:
        """Prove batches, computed again without what plans share; as `BatchProof.prove`."""
        proof = self.extraction.proof
        if is_closing or proof.is_due:
            wiring.plan.kinds = list(self.plan.kinds(len(wiring.plan.kinds)))
            with rest_in_force(proof.decoder, wiring, self.plan):
                proof.prove()


def sweep_latents(
    decoder: Decoder,
    texts: Iterable[str | JoinedText],
    plans: Sequence[MaskPlan],
    *,
    spec: ExtractionSpec,
    folder: str | Path = "caches",
    progress: ExtractionProgress | None = None,
) -> list[LatentCache]:
    """Extract the same texts under many plans, into one cache per plan.

    Whole caches are reused and half-done ones resumed, as by `extract_latents`, whose latents are the same up to
    rounding. Plans with the same bottom blocks share that work. The plan of `spec` is not used. Progress counts a row
    for each text and plan. The caches are in the order of the plans.
    """
    if not plans:
        raise ConfigError("no plan was given to sweep over; give at least one.")
    n_blocks = len(decoder.blocks)
    sweep_cost(plans, n_blocks)
    texts = texts if isinstance(texts, str) else list(texts)
    unique = unique_texts(texts)
    if spec.views:
        with code_as_now(decoder):
            points = [spec.with_plan(plan) for plan in plans]
            return extract_readings(decoder, texts, points, folder=folder, progress=progress)
    if len(spec.members) > 1:
        with code_as_now(decoder):
            means = [describe_extraction(decoder, unique, spec.with_plan(plan)).identity for plan in plans]
            swept = [
                sweep_latents(decoder, unique, plans, spec=member, folder=folder, progress=progress)
                for member in spec.members
            ]
        return [MeanCache(parts, identity=mean) for parts, mean in zip(zip(*swept, strict=True), means, strict=True)]
    specs = {plan: spec.with_plan(plan) for plan in plans}
    if spec.reba_poolings:
        raise ConfigError("ReBA poolings need the causal plan alone; extract them by themselves, not in a sweep.")
    n_rows = count_rows(decoder, unique, spec)
    manifests = {plan: describe_extraction(decoder, unique, specs[plan], n_rows=n_rows) for plan in specs}
    missing = [plan for plan in specs if find_cache(Path(folder), manifests[plan].identity) is None]
    with ExitStack() as stack:
        branches, session = [], Session(decoder, progress)
        for plan in missing:
            path = cache_path(Path(folder), manifests[plan])
            if plan is missing[0]:
                check_texts(decoder, unique, specs[plan], path=path)
            writer = stack.enter_context(open_store(path, manifests[plan]))
            if writer.is_whole():  # another process finished it just before this one got its lock
                continue
            extraction = Extraction(decoder, unique, specs[plan], writer, session)
            branches.append(_Branch(extraction, plan, route_of(plan, n_blocks), writer.done_rows()))
        # A store that was started with another batching is finished by itself below.
        branches = [branch for branch in branches if branch.extraction.batching == branches[0].extraction.batching]
        if branches:
            wiring = stack.enter_context(masks_in_force(decoder, [CAUSAL_KIND] * n_blocks))
            if spec.shares_prefix(len(unique)):
                stack.enter_context(sharing_in_force(decoder, wiring))
            _fill(decoder, wiring, branches)
    caches = [
        find_cache(Path(folder), manifests[plan].identity)
        or extract_latents(decoder, unique, spec=specs[plan], folder=folder, progress=progress)
        for plan in plans
    ]
    if spec.store_texts:
        for cache in caches:
            keep_texts(cache.path, unique)
    warn_truncated(caches[0])
    return [cache.with_texts(texts) for cache in caches]


def extract_views(
    decoder: Decoder,
    texts: Iterable[str | JoinedText],
    *,
    spec: ExtractionSpec,
    folder: str | Path = "caches",
    progress: ExtractionProgress | None = None,
) -> LatentCache:
    """Extract views as `extract_latents` does, in one process; see `extract_readings`."""
    [cache] = extract_readings(decoder, texts, [spec], folder=folder, progress=progress)
    return cache


def extract_readings(
    decoder: Decoder,
    texts: Iterable[str | JoinedText],
    specs: Sequence[ExtractionSpec],
    *,
    folder: str | Path = "caches",
    progress: ExtractionProgress | None = None,
) -> list[LatentCache]:
    """Extract the same texts by several settings with views, into what `extract_latents` returns for each.

    What they all read is extracted once, and views that differ in their plans share their lower blocks.
    """
    texts = texts if isinstance(texts, str) else list(texts)
    unique = unique_texts(texts)
    groups: dict[ExtractionSpec, dict[str, ExtractionSpec]] = {}
    with code_as_now(decoder):
        for spec in specs:
            describe_extraction(decoder, unique, spec)  # refuses views that differ in what they must share
        for view in dict.fromkeys(view for spec in specs for view in spec.readings.values()):
            if find_cache(Path(folder), describe_extraction(decoder, unique, view).identity) is None:
                group = groups.setdefault(sweep_key(view), {})
                group[str(len(group))] = view
        for views in groups.values():
            plans = list(dict.fromkeys(view.mask_plan for view in views.values()))
            if len(plans) > 1 and not any(view.reba_poolings for view in views.values()):
                same = {name: view.with_plan(plans[0]) for name, view in views.items()}
                [(joined, _)] = join_readings(same)
                sweep_latents(decoder, unique, plans, spec=joined, folder=folder, progress=progress)
                continue
            for one, _ in join_readings(views):
                extract_latents(decoder, unique, spec=one, folder=folder, progress=progress)
        return [extract_latents(decoder, texts, spec=spec, folder=folder, progress=progress) for spec in specs]


def reading_routes(specs: Mapping[str, ExtractionSpec], n_blocks: int) -> dict[str, list[tuple[Hashable, ...]]]:
    """List the block passes of each setting: a route for every view and template, beginning with what it reads.

    Counted together (`count_blocks`), those that `extract_readings` or a sweep over plans computes once count once.
    """
    views = [view for spec in specs.values() for view in spec.readings.values()]
    keys = {view: sweep_key(view) for view in views}
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
    apart = {keys[view] for view in views if view.reba_poolings}  # no part of a sweep

    def routes(view: ExtractionSpec) -> Iterator[tuple[Hashable, ...]]:
        plan, key = view.mask_plan, keys[view]
        first, *rest = route_of(plan, n_blocks)
        for member in range(len(view.members)):
            yield ((numbers[key], member, plan.text if key in apart else "", first), *rest)

    return {name: [route for view in spec.readings.values() for route in routes(view)] for name, spec in specs.items()}


def _fill(decoder: Decoder, wiring: Wiring, branches: list[_Branch]) -> None:
    certificates = []
    for branch in branches:
        wiring.plan.kinds = list(branch.plan.kinds(len(decoder.blocks)))
        with rest_in_force(decoder, wiring, branch.plan):
            certificates.append(branch.extraction.certify())
    first = branches[0].extraction
    was_done = np.stack([branch.was_done for branch in branches])
    # The word pooling that `auto` stands for differs between plans, so all are computed and each plan stores its own.
    poolings = list(dict.fromkeys(name for branch in branches for name in branch.extraction.manifest.poolings))

    def compute(batch: Batch, put: Put) -> None:
        needed: dict[Route, list[Extraction]] = {}
        for branch in branches:
            if not branch.was_done[batch.rows].all():
                needed.setdefault(branch.route, []).append(branch.extraction)

        def emit(route: Route, latents: Tensor) -> None:
            for extraction in needed[route]:
                chosen = [latents[:, poolings.index(name)] for name in extraction.manifest.poolings]
                extraction.take(batch, torch.stack(chosen, dim=1), put)  # a copy

        walk_plans(decoder, wiring, batch, list(needed), poolings=poolings, layers=first.manifest.layers, emit=emit)

    session = first.session
    session.proofs += [partial(branch.prove, wiring) for branch in branches]
    frozen = session.fill(
        first.batches(np.asarray(was_done.all(axis=0))), compute, n_rows=was_done.size, n_done=int(was_done.sum())
    )
    for branch, certificate in zip(branches, certificates, strict=True):
        proved = {"frozen": frozen, "batches": branch.extraction.proof.result, "swept_with": len(branches)}
        branch.extraction.writer.write_certificate(certificate | proved)


DRAFTS = "drafts"
"""Folder of the shards that are being written, and of the claims to them."""
LOCK = ".lock"
PATIENCE = 600.0
"""Seconds without a batch after which a window that a living process has claimed is computed by another too."""
PAUSE = 0.2  # seconds between checks of windows that others have claimed


def extract_shards(
    decoder: Decoder | DecoderSource,
    texts: Iterable[str | JoinedText] | Path,
    *,
    folder: str | Path,
    spec: ExtractionSpec = ExtractionSpec(),  # noqa: B008 - frozen
    window: int = WINDOW_TEXTS,
    progress: ExtractionProgress | None = None,
    patience: float = PATIENCE,
) -> ShardedCache:
    """Extract latents of any number of texts into shards, window by window; memory does not grow with their number.

    A shard is a whole cache of the texts of one window. It is written as a draft, renamed in one step, and then listed
    in `index.json`. Stopped or killed, the same call with the same texts goes on: a window whose shard is not listed,
    or whose file is gone, is computed; of the others the texts are read, and the file once, for its SHA-256.

    Make the same call in as many processes as there are devices, on one machine or on several that see the folder:
    they share the windows, and each returns when all are listed. See `map_windows`.

    Args:
        decoder: The frozen decoder, or what `load_decoder` loads.
        texts: Texts, all plain or all with their words, from anything that yields them: a list, a generator, a column
            of a `datasets.Dataset`, or the path of a file, which `stream_texts` reads. Repeats within a window are
            stored once.
        folder: Folder of the shards and their index, and nothing else.
        spec: What to extract.
        window: Texts of a shard. They are in memory together and batched by length among themselves.
        progress: Progress callback for the batches of this process.
        patience: Seconds without a batch after which a window that a living process has claimed is computed by another
            too.

    Returns:
        The shards as one cache.

    Raises:
        CacheIdentityError: The folder holds shards of something else or of other texts, which stay as they are.
        CacheError: A shard of an earlier call is damaged, or has the file name of another; all stay.
        ConfigError: A window of no texts, a template that stands for several, drafts that are a link, or a decoder
            that is split over the processes (`tp_plan`), which cannot compute different shards.
        IcecoreError: As `extract_latents`; finished shards stay.
    """
    require_shardable(spec, window)
    decoder = _as_begun(load_decoder(decoder), Path(folder))
    if is_split(decoder.module):
        require_one_process("tp_plan")
    require_locks()
    progress = progress or ExtractionProgress()
    source = stream_texts(texts) if isinstance(texts, Path) else texts
    windows = read_windows(source, window)
    first = next(windows)
    manifest = describe_extraction(decoder, first.texts, spec, n_rows=len(first.texts))  # tokenises nothing
    ledger = Ledger(Path(folder), manifest, window, patience=patience)
    index = ledger.index
    spec = replace(spec, batch_tokens=index.provenance["batching"]["batch_tokens"])  # the same batches everywhere
    write = partial(write_shard, decoder=decoder, spec=spec, progress=progress)
    progress.start(n_rows=len(source) if isinstance(source, Sized) else 0, n_done=index.n_rows)
    try:
        for _ in map_windows(write, chain([first], windows), ledger, stores_texts=spec.store_texts):
            pass
    except BaseException:
        abandon_empty(ledger.folder)
        raise
    finally:
        progress.finish()
    index = ledger.complete()
    cache = ShardedCache(folder)
    warn_truncated(cache, n_cut=sum(shard.n_truncated for shard in index.shards))
    return cache


def _as_begun(decoder: Decoder, folder: Path) -> Decoder:
    """Leave out the digest of the configuration where a folder was begun by an early version, which had none."""
    path = folder / INDEX
    if path.is_file() and "config_digest" not in parse_index(path.read_bytes(), where=str(path)).identity["decoder"]:
        return replace(decoder, description=replace(decoder.description, config_digest=""))
    return decoder


def require_shardable(spec: ExtractionSpec, window: int) -> None:
    """Refuse windows of no texts, views, and a template that stands for several: `ConfigError`."""
    require_one_reading(spec, "a folder of shards holds one extraction")
    if window < 1:
        raise ConfigError(f"window is {window}; allowed: a whole number of texts, at least 1.")
    if len(spec.members) > 1:
        raise ConfigError(
            f"the template stands for {len(spec.members)} whose latents are averaged, and shards hold those of one; "
            "extract each of them into a folder of its own."
        )


@dataclass(frozen=True)
class Window:
    """Consecutive texts that become one shard."""

    number: int
    """Position among the windows."""
    first: int
    """Position of its first text."""
    n_texts: int
    """Repeats included."""
    texts: list[str | JoinedText]
    """Each once."""

    def __str__(self) -> str:
        return f"window {self.number} (texts {self.first} to {self.first + self.n_texts - 1})"

    @cached_property
    def digest(self) -> str:
        """The digest of its texts, in their order."""
        return digest_rows(digest_texts(self.texts))


def read_windows(texts: Iterable[str | JoinedText], size: int) -> Iterator[Window]:
    """Read texts window by window, one at a time; raises as `unique_texts`."""
    if isinstance(texts, str):
        unique_texts(texts)  # refuses it
    items, has_words = iter(texts), False
    for number in count():
        some = list(islice(items, size))
        if number and not some:
            return
        unique, first = unique_texts(some, first_index=number * size), number * size
        has_words = isinstance(unique[0], JoinedText) if number == 0 else has_words
        if isinstance(unique[0], JoinedText) != has_words:
            raise InputError(
                f"text {first} is {unique[0]!r}; allowed: either plain texts or texts with their words, not both."
            )
        yield Window(number, first, len(some), unique)


@dataclass(frozen=True)
class Claim:
    """The right of this process to compute a window, which ends with the process."""

    file: Path
    """Its lock is the claim."""
    descriptor: int
    """Of the open file."""

    @property
    def drafts(self) -> Path:
        """Folder of the draft."""
        return self.file.parent

    def beat(self) -> None:
        """Tell the other processes that this one is at work."""
        with suppress(OSError):  # removed, as another process was faster
            os.utime(self.descriptor)


def write_shard(
    window: Window, claim: Claim, *, decoder: Decoder, spec: ExtractionSpec, progress: ExtractionProgress
) -> tuple[Shard, Path]:
    """Extract a window into a draft, or go on with one; return the shard and the draft. The index is not touched."""
    manifest = describe_extraction(decoder, window.texts, spec)
    draft = cache_path(claim.drafts, manifest)
    try:
        with open_store(draft, manifest) as writer:
            session = Session(decoder, _ClaimProgress(progress, claim))
            Extraction(decoder, window.texts, spec, writer, session).run()
    except (InputError, NonFiniteLatentError) as error:
        raise type(error)(f"in {window}, counted in it: {error}") from error
    if spec.store_texts:
        keep_texts(draft, window.texts)
    return describe_shard(draft, window=window.number, expected=manifest.identity), draft


class _ClaimProgress(ExtractionProgress):
    """Reports the batches of a window to the progress of the whole and to the other processes."""

    def __init__(self, whole: ExtractionProgress, claim: Claim) -> None:
        self.whole, self.claim = whole, claim

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        """A batch has been written."""
        self.claim.beat()
        self.whole.advance(n_rows=n_rows, n_tokens=n_tokens)


def map_windows(
    write: Callable[[Window, Claim], tuple[Shard, Path]],
    windows: Iterable[Window],
    ledger: "Ledger",
    *,
    stores_texts: bool = False,
) -> Iterator[Shard]:
    """Compute the windows that no process has computed, and yield their shards when they are listed; end when all are.

    Several processes share the windows without talking to each other: the first at a window claims it, and the others
    go on to the next. The window of a process that died is computed by the next free one.
    """
    waiting: list[Window] = []
    for next_window in chain(windows, repeat(None)):
        todo, waiting = [*waiting, *([] if next_window is None else [next_window])], []
        for window in todo:
            if ledger.has(window):
                if stores_texts:
                    ledger.keep_texts(window)
                continue
            with ledger.claimed(window) as claim:
                if claim is None:
                    waiting.append(window)
                    continue
                shard = None if ledger.has(window) else _write(write, window, claim, ledger)  # it may be done by now
                claim.file.unlink(missing_ok=True)  # a process that opened it before sees the window listed
            if shard is not None:
                yield shard
        if next_window is None:
            if not waiting:
                return
            time.sleep(PAUSE)


def _write(
    write: Callable[[Window, Claim], tuple[Shard, Path]], window: Window, claim: Claim, ledger: "Ledger"
) -> Shard | None:
    """Compute a window and list it; None where another process was faster."""
    try:
        shard, draft = write(window, claim)
        ledger.list_shard(shard, draft)
    except (IcecoreError, OSError):
        if ledger.has(window):
            return None
        raise
    return shard


class Ledger:
    """The index of a folder of shards and the claims to its windows; any number of processes share it.

    `manifest` is that of the first window. A folder of something else is a `CacheIdentityError`. A claim no longer
    counts after `patience` seconds without a batch.
    """

    def __init__(self, folder: Path, manifest: Manifest, window_texts: int, *, patience: float = PATIENCE) -> None:
        self.folder, self.patience, self.n_windows = folder, patience, 0
        self._new = ShardIndex(shared_identity(manifest.identity), manifest.provenance, window_texts)
        self._read: tuple[tuple[int, ...], ShardIndex] = (), self._new
        self._seen: dict[Path, tuple[int, float]] = {}
        refuse_links(self.folder / DRAFTS)
        with locked_folder(self.folder):
            index = self.index
            self._unread = {shard.window for shard in index.shards}  # of earlier calls, not compared with their digests
            require_same(index.identity, self._new.identity, where=repr(str(folder)))
            if index.window_texts != window_texts:
                raise CacheIdentityError(
                    f"the shards in {str(folder)!r} are of windows of {index.window_texts} texts, and {window_texts} "
                    "were asked for; ask for the same, or choose another folder."
                )
            if index is self._new:
                index.write(folder)  # from now on all processes compute the same batches

    @property
    def index(self) -> ShardIndex:
        """The index as it is now."""
        try:
            with (self.folder / INDEX).open("rb") as file:
                stamp = stamp_of(os.fstat(file.fileno()))
                if stamp != self._read[0]:
                    self._read = stamp, parse_index(file.read(), where=str(self.folder / INDEX))
        except FileNotFoundError:
            self._read = (), self._new
        return self._read[1]

    def has(self, window: Window) -> bool:
        """Whether the shard of a window is listed and its file exists; one of other texts, or damaged, is refused."""
        self.n_windows = max(self.n_windows, window.number + 1)
        shard = self.index.find(window.number)
        if shard is not None and shard.text_digest != window.digest:
            raise CacheIdentityError(
                f"shard {shard.file!r} in {str(self.folder)!r} is not of the texts of {window}; give the texts that "
                "the extraction was begun with, in their order, or choose another folder."
            )
        if shard is None or not self._has_file(shard):
            return False
        if window.number in self._unread:
            require_shard(LocalFiles(self.folder), shard, self.index, where=str(self.folder))
            self._unread.remove(window.number)
        return True

    def keep_texts(self, window: Window) -> None:
        """Write the texts of a window beside its shard, which is listed, unless they are there."""
        if (shard := self.index.find(window.number)) is not None:
            keep_texts(self.folder / shard.file, window.texts)

    @contextmanager
    def claimed(self, window: Window) -> Iterator[Claim | None]:
        """Hold the claim to a window until the `with` block or the process ends; None where another is at work on it.

        Where that writes no batch for `patience` seconds, another claim is allowed, with drafts in another folder.
        """
        with ExitStack() as stack:
            yield self._claim(window, stack)

    def list_shard(self, shard: Shard, draft: Path) -> None:
        """Move a draft in place and list it, unless another process has done so."""
        with locked_folder(self.folder):
            index = self.index
            listed = index.find(shard.window)
            if listed is not None and self._has_file(listed):
                draft.unlink(missing_ok=True)
                return
            if listed is not None:  # its file is gone, and another one comes
                index = index.without(shard.window)
                index.write(self.folder)
            move_texts(draft, self.folder / shard.file)
            draft.replace(self.folder / shard.file)
            index = index.with_shard(shard)
            index.write(self.folder)
            self._read = stamp_of((self.folder / INDEX).stat()), index  # thousands of shards take long to read back

    def complete(self) -> ShardIndex:
        """Mark the index as complete; CacheIdentityError if there are shards of windows after the last text."""
        with locked_folder(self.folder):
            index = self.index
            numbers = [shard.window for shard in index.shards]
            if max(numbers, default=-1) >= self.n_windows:
                raise CacheIdentityError(
                    f"there are {self.n_windows} windows of texts, but {str(self.folder)!r} has a shard of window "
                    f"{max(numbers)}; give all texts that the extraction was begun with, or choose another folder."
                )
            missing = {*range(self.n_windows)} - {*numbers}
            if missing:
                raise CacheError(
                    f"the index in {str(self.folder)!r} has lost window {min(missing)}, which a shared file system "
                    "that shows old files may do; run the extraction again, which does that window again."
                )
            index = replace(index, is_complete=True)
            if not self.index.is_complete:
                index.write(self.folder)
            shutil.rmtree(self.folder / DRAFTS, ignore_errors=True)
        return index

    def _has_file(self, shard: Shard) -> bool:
        file = self.folder / shard.file
        return file.is_file() and file.stat().st_size == shard.n_bytes

    def _claim(self, window: Window, stack: ExitStack) -> Claim | None:
        for attempt in count():
            path = self.folder / DRAFTS / (f"again-{attempt}" if attempt else "") / f"window-{window.number:06d}.claim"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(open_unlinked(path, "ab"))
            except FileNotFoundError:  # the drafts were removed this moment: all is done
                return None
            except OSError as error:
                raise explain_write_error(error, path) from error
            try:
                stack.enter_context(locked_file(file.fileno()))
            except BlockingIOError:
                if not self._is_stale(path, os.fstat(file.fileno()).st_mtime_ns):
                    return None
                continue
            file.write(f"{platform.node()} {os.getpid()}\n".encode())
            file.flush()
            return Claim(path, file.fileno())
        raise AssertionError("unreachable")

    def _is_stale(self, path: Path, beat: int) -> bool:
        """Whether a claim has not changed for too long, by the clock of this process alone."""
        last, since = self._seen.get(path, (None, 0.0))
        if last != beat:
            self._seen[path] = (beat, time.monotonic())
            return False
        return time.monotonic() - since > self.patience


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of shards, which is created; others hold it for moments only."""
    with explained_errors(folder / LOCK):
        folder.mkdir(parents=True, exist_ok=True)
        file = open_unlinked(folder / LOCK, "wb")
    with file, locked_file(file.fileno(), waits=True):
        yield


def listed_in(folder: Path) -> tuple[Shard, ...]:
    """Return the shards that are listed in a folder, none where there is no index; raises as `parse_index`."""
    try:
        return parse_index((folder / INDEX).read_bytes(), where=str(folder / INDEX)).shards
    except FileNotFoundError:
        return ()


def abandon_empty(folder: Path) -> None:
    """Remove an index that lists nothing, so that the folder can be used for something else."""
    with locked_folder(folder):
        if not listed_in(folder):
            (folder / INDEX).unlink(missing_ok=True)


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes when a file is replaced."""
    return (status.st_ino, status.st_mtime_ns, status.st_size)
