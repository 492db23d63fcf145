"""The extraction: texts in, a whole cache out, resumable at any moment."""

import os
import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property, partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder, code_as_now, count_places, digest_custom_code, load_decoder
from extract.decoders.decoder_spec import DecoderSource, select_layers
from extract.errors import CertificateError, ConfigError, ConfigWarning, InputError, TruncationWarning
from extract.files import digest_bytes, digest_module, digest_rows
from extract.inputs.batches import Batch, collate_group, group_texts
from extract.inputs.joined_text import GivenSpans, JoinedText, digest_texts, plain_text, read_spans, require_words
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import digest_chat
from extract.linear import describe_products
from extract.masks.mask_plan import MaskPlan
from extract.masks.truth import require_reading
from extract.poolings.memory import HostCopies, HostCopy, keep_blocks, trim_heap
from extract.poolings.pooling_table import POOLINGS, REBA, SHIPPED, select_poolings, select_word_poolings
from extract.poolings.poolings import Joiner, require_no_padding
from extract.records import to_plain, with_values
from extract.registry import describe_own
from extract.run.embed import Encoder, make_encoder
from extract.run.extraction_spec import WINDOW_TEXTS, ExtractionProgress, ExtractionSpec, batch_limits, join_readings
from extract.store.cache import LatentCache, MeanCache, ViewCache, cache_path, find_cache
from extract.store.format import StoredArray, create_store, require_locks
from extract.store.items import keep_texts
from extract.store.manifest import CacheIdentity, Manifest, Plain, WordIdentity, require_same, view_identity
from extract.store.reader import require_sound
from extract.store.writer import StoreWriter, name_latent, read_report, refuse_latent, round_latents
from extract.threads import keep_threads
from extract.wiring.batch_proof import BatchProof
from extract.wiring.certificate import check_batch_invariance, check_devices, check_influence
from extract.wiring.plan_wiring import draw_placeholder, plan_in_force
from extract.wiring.states import layer_widths, pool_batch

SHARE = 0.01
"""Share of the time that comparing the weights in the middle of an extraction may take."""
DIGEST_BYTES_PER_SECOND = 1e9  # a guess for the first comparison, which is then timed
ITEMS_AHEAD = 3  # batches tokenised ahead at most
ITEMS_WAITING = 1  # batches that wait to be written at most: those of words are large
TRIM_ITEMS = 2  # written batches after which free pages of the heap go back to the system
T = TypeVar("T")
Step = Callable[[], object]
Put = Callable[[Step], None]


class Session:
    """Fills any number of stores, and holds the rows written since the weights were last compared with their digest.

    Proved batches and equal weights close them. Rows that no comparison closed (killed, or something was wrong) do not
    count, and the next run computes them again. Every one of `proofs` proves batches, as `BatchProof.prove`. Weights of
    a decoder that is split over processes (`shares_decoder`) are read by all of them together, so only at the end.
    """

    def __init__(
        self, decoder: Decoder, progress: ExtractionProgress | None = None, *, shares_decoder: bool = False
    ) -> None:
        self.decoder, self.shares_decoder = decoder, shares_decoder
        self.progress = progress or ExtractionProgress()
        self.copies = HostCopies()
        self.proofs: list[Callable[..., None]] = []
        self._open: list[tuple[StoreWriter, int, int]] = []
        module = decoder.module
        self._seconds = sum(weights.nbytes for weights in module.parameters()) / DIGEST_BYTES_PER_SECOND
        self._compared = time.monotonic()

    def fill(
        self, batches: Iterator[Batch], compute: Callable[[Batch, Put], None], *, n_rows: int, n_done: int
    ) -> Plain:
        """Compute all batches and close their rows; return the certificate of the weights.

        `compute` puts what is to be done when the latents of a batch have arrived, such as writing them.
        """
        self.progress.start(n_rows=n_rows, n_done=n_done)
        try:
            with keep_blocks():
                self._pump(batches, compute)
        except CertificateError:  # the open rows of this run are not trusted
            raise
        except BaseException:
            if not self.shares_decoder:
                self.close_if_frozen()
            raise
        finally:
            self.progress.finish()
        certificate = self.require_frozen()
        self.close_rows()
        return certificate

    def _pump(self, batches: Iterator[Batch], compute: Callable[[Batch, Put], None]) -> None:
        """Tokenise, compute and write, all three in a thread of their own, with bounded queues between them."""
        with closing(Sink()) as sink, closing(Ahead(batches)) as ahead:
            for batch in ahead:
                compute(batch, sink.put)
                self.prove_batches()
                if self.is_due and not self.shares_decoder:
                    self.require_frozen()
                    sink.put(self.close_rows)  # after all rows computed before this comparison

    def add(self, writer: StoreWriter, first: int, n_rows: int) -> None:
        """Record consecutive rows that were written."""
        self._open.append((writer, first, n_rows))

    @property
    def is_due(self) -> bool:
        """Whether comparing the weights now keeps within its share of the time."""
        return (time.monotonic() - self._compared) * SHARE >= self._seconds

    def prove_batches(self, *, is_closing: bool = False) -> None:
        """Prove batches, at least those of rows that are about to be closed (`CertificateError`)."""
        try:
            for prove in self.proofs:
                prove(is_closing=is_closing)
        except CertificateError:
            self._require_equal_weights()  # changed ones would explain it better
            raise

    def require_frozen(self) -> Plain:
        """Prove batches and compare the weights with their digest, before rows are closed; return the certificate."""
        self.prove_batches(is_closing=True)
        return self._require_equal_weights()

    def _require_equal_weights(self) -> Plain:
        started = time.monotonic()
        before, digest = self.decoder.description.weight_digest, digest_module(self.decoder.module)
        self._compared = time.monotonic()
        self._seconds = self._compared - started
        if digest != before:
            raise CertificateError(
                f"the weights changed during the extraction: {digest[:12]} after, {before[:12]} before. The rows that "
                "this run wrote since it last compared them do not count; find what changed the weights, reload the "
                "decoder and run again."
            )
        return {"is_bit_identical": True, "weight_digest": digest}

    def close_rows(self) -> None:
        """Let the rows written so far count: all were computed before the last comparison of the weights."""
        for writer, first, n_rows in self._open:
            writer.close_rows(first, n_rows)
        self._open.clear()

    def close_if_frozen(self) -> None:
        """Close the rows of a session that an error or Ctrl-C ends, unless the weights changed or cannot be read."""
        with suppress(Exception):
            if self._open:
                self.require_frozen()
                self.close_rows()


class Sink:
    """A thread that takes steps in their order; the error of one surfaces at the next `put` or at `close`."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Step | None] = queue.Queue(ITEMS_WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="icecore-writer", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        for number in count(1):
            if (step := self._queue.get()) is None:
                return
            if self._error is None:
                try:
                    step()
                except BaseException as error:  # handed to the caller's thread
                    self._error = error
            del step  # else it would outlive the wait for the next one
            if number % TRIM_ITEMS == 0:
                trim_heap()

    def put(self, step: Step) -> None:
        """Queue a step, waiting while the queue is full."""
        if self._error is not None:
            raise self._error
        self._queue.put(step)

    def close(self) -> None:
        """Take all queued steps, end the thread, and raise its error if it has not surfaced yet."""
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error


class Ahead(Iterator[T]):
    """An iterator whose items are made in a thread, a few ahead; its error surfaces where the items are used."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="icecore-tokeniser")
        self._futures = deque(self._pool.submit(next, items) for _ in range(ITEMS_AHEAD))

    def __next__(self) -> T:
        item = self._futures[0].result()  # an error, or the end, stays first
        self._futures.popleft()
        self._futures.append(self._pool.submit(next, self._items))
        return item

    def close(self) -> None:
        """End the thread and drop unused items."""
        self._pool.shutdown(cancel_futures=True)


LONGEST, MOST_ROWS = 8, 64  # texts tried for the longest row, and rows of the batch that a plan is proved on
MOST_COUNTED = 200  # texts whose tokens are counted to estimate the time that is left
PACKAGES = ("icecore", "torch", "transformers", "tokenizers")
PlacementKey = Literal["device_map", "tp_plan"]
SPREADS: dict[PlacementKey, str] = {
    "device_map": "spreads one decoder over all devices of one process",
    "tp_plan": "splits one decoder over all processes, while each computes shards of its own",
}
"""What the keys of a decoder do that exclude several processes."""
Text = TypeVar("Text", bound=str | JoinedText)


@dataclass(frozen=True)
class Workers:
    """The position of this process in a group (torchrun, SLURM) that writes one store together."""

    rank: int = 0
    """0 for the process that creates and certifies the store."""
    world_size: int = 1
    barrier: Callable[[], None] = lambda: None
    """Waits for all processes."""
    device: str = "auto"
    shares_decoder: bool = False
    """Whether one decoder is split over all processes: then each computes every batch, and the first writes them."""

    @property
    def writes(self) -> bool:
        """Whether this process writes what it computes."""
        return self.rank == 0 or not self.shares_decoder

    def computes(self, batch: int) -> bool:
        """Whether this process computes a batch, by its number."""
        return self.shares_decoder or batch % self.world_size == self.rank


def extract_latents(
    decoder: Decoder | DecoderSource,
    texts: Iterable[str | JoinedText],
    *,
    spec: ExtractionSpec = ExtractionSpec(),  # noqa: B008 - frozen
    folder: str | Path = "caches",
    progress: ExtractionProgress | None = None,
    workers: Workers = Workers(),
    store_texts: bool = False,
) -> LatentCache:
    """Extract latents of texts, or of their words, into a cache, unless a cache already holds them.

    Args:
        decoder: The frozen decoder, or what `load_decoder` loads: a name, a path, settings or a `DecoderSpec`.
        texts: Texts, all plain or all with their words; repeats are stored once.
        spec: What to extract.
        folder: Folder of caches. A whole cache of the same identity, or one that holds more, is reused; a half-done
            one is resumed.
        progress: Progress callback; silent by default.
        workers: The position of this process in a group that writes one store together.
        store_texts: Keep the texts beside the cache, as `spec.store_texts` says too; also beside one that is there.

    Returns:
        The whole cache; a `MeanCache` of several where the template's name is that of several, a `ViewCache` where the
        spec has views. `numpy.asarray` of it has these texts in their order, repeats included.

    Raises:
        InputError: A text that cannot be pooled; named.
        CacheLockedError: Another process is writing this cache.
        DiskFullError: No space left; rows that are done stay.
        NonFiniteLatentError: A latent that cannot be stored; names layer, pooling, text and value.
        CertificateError: The plan did not take effect, latents depend on padding, or weights changed.
        KeyboardInterrupt: Rows that are done stay.
    """
    texts = texts if isinstance(texts, str) else list(texts)
    unique = unique_texts(texts)
    spec = with_values(spec, store_texts=True) if store_texts else spec
    decoder = load_decoder(decoder)
    if spec.views:
        with code_as_now(decoder):
            views = _extract_views(decoder, unique, spec, folder=folder, progress=progress, workers=workers)
        return ViewCache(views).with_texts(texts)
    manifest = describe_extraction(decoder, unique, spec)
    if len(spec.members) > 1:
        with code_as_now(decoder):
            parts = [
                extract_latents(decoder, unique, spec=member, folder=folder, progress=progress, workers=workers)
                for member in spec.members
            ]
        return MeanCache(parts, identity=manifest.identity).with_texts(texts)
    if workers.rank == 0:
        _warn_without_spans(unique, spec.template)
    cache = find_cache(Path(folder), manifest.identity)
    if cache is None:
        require_locks()  # before texts are tokenised
        path = cache_path(Path(folder), manifest)
        check_texts(decoder, unique, spec, path=path)
        with open_store(path, manifest, workers=workers) as writer:
            session = Session(decoder, progress, shares_decoder=workers.shares_decoder)
            Extraction(decoder, unique, spec, writer, session, workers).run()
        cache = LatentCache(path, expected=manifest.identity)
    if workers.rank == 0:
        if spec.store_texts:
            keep_texts(cache.path, unique)
        warn_truncated(cache)
    return cache.with_texts(texts)


def _extract_views(
    decoder: Decoder,
    texts: Sequence[str | JoinedText],
    spec: ExtractionSpec,
    *,
    folder: str | Path,
    progress: ExtractionProgress | None,
    workers: Workers,
) -> dict[str, LatentCache]:
    """Extract every view, or find it; those that differ in their poolings alone are one pass."""
    identities = {name: describe_extraction(decoder, texts, view).identity for name, view in spec.readings.items()}
    view_identity(identities)  # refuses views that differ in what they must share
    caches = {name: find_cache(Path(folder), identity) for name, identity in identities.items()}
    missing = {name: view for name, view in spec.readings.items() if caches[name] is None}
    for one, _ in join_readings(missing):
        extract_latents(decoder, texts, spec=one, folder=folder, progress=progress, workers=workers)
    views = {}
    for name, view in spec.readings.items():
        cache = caches[name]
        if cache is None:  # extracted above, maybe with others
            cache = find_cache(Path(folder), identities[name])
        elif view.store_texts:
            cache = extract_latents(decoder, texts, spec=view, folder=folder, workers=workers)
        elif workers.rank == 0:
            warn_truncated(cache)
        views[name] = cache or extract_latents(
            decoder, texts, spec=view, folder=folder, progress=progress, workers=workers
        )
    return views


def warn_truncated(cache: LatentCache, *, n_cut: int | None = None) -> None:
    """Warn, with counts, where texts of a cache were longer than the longest row; `n_cut` saves a count."""
    n_cut, template = int(cache.is_truncated.sum()) if n_cut is None else n_cut, cache.identity.template
    if not n_cut:
        return
    most, window = template["max_tokens"] or template["window"], template["window"]
    remedy = f"raise template.max_tokens (this decoder takes {window})" if most < window else "shorten or split them"
    warnings.warn(
        f"{n_cut:,} of {len(cache):,} texts have more than {min(most, window)} tokens, and their ends were left out; "
        f"{remedy}, or set template.on_long to 'error'.",
        TruncationWarning,
        stacklevel=3,
    )


def _warn_without_spans(texts: Sequence[str | JoinedText], template: InputTemplate) -> None:
    """Warn of a file of spans that names none of the texts, under which no token is in a span."""
    spans = read_spans(template.spans)
    if texts and isinstance(spans, GivenSpans) and not any(plain_text(text) in spans for text in texts):
        warnings.warn(
            f"template.spans is {template.spans!r}, which names none of the {len(texts):,} texts, so no token is in a "
            "span; a text must be the same to the last character.",
            ConfigWarning,
            stacklevel=3,
        )


def unique_texts(texts: Iterable[Text], *, first_index: int = 0) -> list[Text]:
    """Drop repeated texts, keeping the first of each; equal texts with other words are different.

    `first_index` is the position of the first in the caller's list, for messages.
    """
    if isinstance(texts, str):
        raise InputError(f"texts is the single string {texts[:40]!r}; give a list of texts.")
    unique: dict[Text, None] = {}
    for i, text in enumerate(texts, first_index):
        if isinstance(text, JoinedText):
            require_words(text, i)
        elif not isinstance(text, str) or not text.strip():
            raise InputError(f"text {i} is {repr(text)[:60]}; allowed: a string with at least one visible character.")
        if unique and isinstance(text, JoinedText) != isinstance(next(iter(unique)), JoinedText):
            raise InputError(f"text {i} is {text!r}; allowed: either plain texts or texts with their words, not both.")
        unique[text] = None
    if not unique:
        raise InputError("there are no texts to extract; give at least one.")
    return list(unique)


def describe_extraction(
    decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec, *, n_rows: int | None = None
) -> Manifest:
    """Build the manifest of an extraction of unique texts; `n_rows` saves a `count_rows`."""
    if spec.views:
        views = {name: describe_extraction(decoder, texts, view) for name, view in spec.readings.items()}
        identity = view_identity({name: view.identity for name, view in views.items()})
        return Manifest(identity, next(iter(views.values())).provenance)
    plan = spec.mask_plan
    plan.kinds(len(decoder.blocks))  # a plan that does not fit is refused before anything is written
    words = _describe_words(decoder, texts, spec)
    layers = select_layers(spec.layers, len(decoder.blocks))
    widths = layer_widths(decoder, plan, layers)
    n_pooled = 0 if words is None else len(words.poolings) * len(layers)
    token_bytes = n_pooled * decoder.description.width * 4
    batch_tokens, min_tokens = batch_limits(spec, decoder.device, token_bytes=token_bytes)
    placeholder: Plain | None = None
    if plan.prepend is not None:  # random; its seed gives it again
        state = draw_placeholder(decoder.description.width, plan.prepend[2]).numpy()
        placeholder = {"seed": plan.prepend[2], "sha256": digest_bytes(state.astype("<f4").tobytes())}
    own = describe_own(own_names(plan, spec.poolings, None if words is None else words.poolings))
    poolings = {*(spec.poolings if words is None else words.poolings)}
    about = decoder.description.to_dict()
    if code := digest_custom_code(decoder):  # now, since hooks may come and go
        about["code_digest"] = code
    identity = CacheIdentity(
        decoder=about,
        plan=plan.text,
        architecture=plan.architecture,
        template={**spec.template.to_dict(), "window": decoder.description.window},
        poolings=tuple(select_poolings(spec.poolings)) if words is None else (),
        layers=tuple(layers),
        storage_dtype=spec.storage_dtype,
        n_rows=count_rows(decoder, texts, spec) if n_rows is None else n_rows,
        text_digest=digest_rows(digest_texts(texts)),
        versions=dict(_versions()),
        words=words,
        rules=plan.rules or None,
        widths=widths or None,
        placeholder=placeholder,
        reba=asdict(spec.reba) if REBA & poolings else None,
        own={key: record["sha256"] for key, record in own.items()} or None,
        chat=digest_chat(decoder.tokenizer) if any(t.chat != "none" for t in spec.template.members) else None,
    )
    provenance = {
        "decoder": about,
        "device": str(decoder.device),
        # Of a tensor like the weights while they are used; offloaded ones are elsewhere meanwhile.
        "products": describe_products(
            torch.empty(1, dtype=next(decoder.module.parameters()).dtype, device=decoder.device)
        ),
        **({"blocks": placed} if (placed := count_places(decoder.blocks)).keys() - {str(decoder.device)} else {}),
        "batching": {"batch_tokens": batch_tokens, "min_tokens": min_tokens, "window_texts": WINDOW_TEXTS},
        "threads": torch.get_num_threads(),
        **({"own": own} if own else {}),
    }
    return Manifest(identity, provenance)


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    """Read the versions once: a sweep describes hundreds of extractions, and reading parses a file per package."""
    return tuple((package, version(package)) for package in PACKAGES)


def _describe_words(decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec) -> WordIdentity | None:
    joined = [text for text in texts if isinstance(text, JoinedText)]
    if not joined:
        return None
    poolings, *others = {
        select_word_poolings(spec.words.poolings, spec.mask_plan, len(decoder.blocks), n_copies=template.repeat)
        for template in spec.template.members
    }
    if others:
        raise InputError(
            f"the templates {spec.template.name!r} read words by {' and '.join(map('+'.join, (poolings, *others)))}; "
            "set words.poolings, or extract each template by itself."
        )
    return WordIdentity(tuple(poolings), spec.words.shift, spec.words.on_lost, sum(len(text.spans) for text in joined))


def own_names(plan: MaskPlan, poolings: Iterable[str], word_poolings: Iterable[str] | None) -> list[tuple[str, str]]:
    """List the nouns and names that may be a user's own; `word_poolings` are None where whole texts are pooled."""
    noun, names = ("pooling", poolings) if word_poolings is None else ("word pooling", word_poolings)
    return [*(("mask kind", name) for name in plan.kind_names), *((noun, name) for name in names)]


def count_rows(decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec) -> int:
    """Count the rows that texts take: one each, unless words are read in windows, which takes a tokenisation."""
    return _count_encoded(decoder, texts, spec) if spec.template.on_long == "windows" else len(texts)


def check_texts(decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec, *, path: Path) -> None:
    """Refuse texts that cannot be read before a store for them is laid out at `path`: `InputError`, naming the text.

    Tokenising takes less than a hundredth of the extraction.
    """
    if spec.template.on_long != "windows" and not path.exists():  # counting the rows has read those already
        _count_encoded(decoder, texts, spec)


def _count_encoded(decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec) -> int:
    encoder = make_encoder(decoder, spec, has_words=isinstance(texts[0], JoinedText))
    starts = range(0, len(texts), WINDOW_TEXTS)
    return sum(len(encoder(texts[start : start + WINDOW_TEXTS], first_index=start)) for start in starts)


@contextmanager
def open_store(path: Path, manifest: Manifest, *, workers: Workers = Workers()) -> Iterator[StoreWriter]:
    """Open a store for writing, laid out if it is not there; one of another identity, or a damaged one, is refused.

    The first process of a group holds its lock, under which the others write, until the `with` block ends.
    """
    if workers.rank == 0 and not path.exists():
        create_store(path, manifest)
    workers.barrier()
    writer = StoreWriter(path)
    try:
        require_same(writer.manifest.identity.to_plain(), manifest.identity.to_plain(), where=repr(str(path)))
        with writer.locked() if workers.rank == 0 else nullcontext():
            if workers.rank == 0:
                require_sound(path)
            yield writer
    finally:
        writer.close()


@dataclass(frozen=True, eq=False)
class Extraction:
    """One run over the rows of an open store that are not done yet.

    Texts are unique, all plain or all with their words. Poolings, layers, storage and batching come from the store.
    """

    decoder: Decoder
    texts: Sequence[str | JoinedText]
    spec: ExtractionSpec
    writer: StoreWriter
    session: Session
    """In a sweep one for all stores."""
    workers: Workers = field(default_factory=Workers)

    @cached_property
    def proof(self) -> BatchProof:
        """Proves batches of this extraction."""
        return BatchProof(
            self.decoder,
            self.spec.mask_plan,
            self.manifest.poolings,
            self.manifest.layers,
            reba=self.spec.reba,
            storage=self.manifest.storage_dtype,
        )

    @cached_property
    def encoder(self) -> Encoder:
        """Turns the texts into rows of tokens."""
        return make_encoder(self.decoder, self.spec, has_words=isinstance(self.texts[0], JoinedText))

    @cached_property
    def joiner(self) -> Joiner:
        """Joins the windows of texts."""
        return Joiner(self.manifest.poolings)

    @cached_property
    def by_length(self) -> NDArray[np.int64]:
        """Positions of the texts, the shortest first."""
        return np.argsort([len(plain_text(text)) for text in self.texts], kind="stable")

    @property
    def manifest(self) -> Manifest:
        """What the store holds."""
        return self.writer.manifest

    @property
    def batching(self) -> dict[str, int]:
        """The batching that the store was started with; a resumed run keeps it and so computes the same batches."""
        return dict(self.manifest.provenance["batching"])

    def run(self) -> None:
        """Fill the store and write its certificate, unless others did just before; raises as `extract_latents`."""
        spec, was_whole = self.spec, self.writer.is_whole()
        if was_whole and self.workers.world_size == 1:
            return
        shares = spec.shares_prefix(len(self.texts))
        with plan_in_force(self.decoder, spec.mask_plan, looks_inside=spec.looks_inside, shares=shares):
            started = time.monotonic()
            keep_threads(self.manifest.provenance.get("threads"))
            is_done = self.writer.done_rows()
            certificate = self.certify()
            self.session.proofs.append(self.proof.prove)
            self.session.progress.expect(n_tokens=self.estimate_tokens(int((~is_done).sum()) / len(is_done)))
            frozen = self.session.fill(
                self.batches(is_done), self._compute, n_rows=len(is_done), n_done=int(is_done.sum())
            )
            certificate |= {"frozen": frozen, "batches": self.proof.result}
            self.workers.barrier()
            if self.workers.rank == 0 and not was_whole and self.writer.done_rows().all():
                self.writer.write_certificate({**certificate, "seconds": round(time.monotonic() - started, 3)})
            self.workers.barrier()

    def certify(self) -> Plain:
        """Certify the plan in force before anything is computed with it."""
        n_rows, n_tokens = self.largest_batch()
        require_reading(self.spec.plan, len(self.decoder.blocks))
        if not isinstance(self.texts[0], JoinedText):
            custom = [name for name in self.manifest.poolings if name in POOLINGS and name not in SHIPPED["pooling"]]
            require_no_padding({name: POOLINGS[name][0] for name in custom}, self.decoder.description.width)
        certificate: Plain = {
            "influence": to_plain(check_influence(self.decoder, self.spec.mask_plan, n_rows=n_rows, n_tokens=n_tokens)),
            "batch_invariance": to_plain(check_batch_invariance(self.decoder)),
        }
        if len({*self.decoder.devices, self.decoder.device}) > 1:
            certificate["devices"] = to_plain(check_devices(self.decoder))
        return certificate

    def largest_batch(self) -> tuple[int, int]:
        """Estimate rows and tokens of a batch of the longest texts."""
        longest = [self.texts[i] for i in self.by_length[-LONGEST:]]
        n_tokens = max(len(row.ids) for item in self.encoder(longest) for row in item.rows)
        return min(MOST_ROWS, max(1, self.batching["batch_tokens"] // n_tokens)), n_tokens

    def estimate_tokens(self, share: float) -> int:
        """Estimate the tokens of a share of the rows from texts of every length."""
        ranks = np.unique(np.linspace(0, len(self.texts) - 1, MOST_COUNTED).round().astype(int))
        some = [self.texts[i] for i in self.by_length[ranks]]
        n_tokens = sum(len(row.ids) for item in self.encoder(some) for row in item.rows)
        return round(share * n_tokens * len(self.texts) / len(some))

    def _compute(self, batch: Batch, put: Put) -> None:
        latents = pool_batch(
            self.decoder,
            batch,
            poolings=self.manifest.poolings,
            layers=self.manifest.layers,
            reba=self.spec.reba,
        )
        self.take(batch, latents, put)

    def batches(self, is_done: NDArray[np.bool_]) -> Iterator[Batch]:
        """Yield the batches of this process that are not done, in the order their rows and words are stored."""
        number = row = word = 0
        batching = self.batching
        for start in range(0, len(self.texts), batching["window_texts"]):
            encoded = self.encoder(self.texts[start : start + batching["window_texts"]], first_index=start)
            groups = group_texts(
                encoded,
                batch_tokens=batching["batch_tokens"],
                min_tokens=batching["min_tokens"],
                split_length=self.decoder.split_length,
            )
            for group in groups:
                items = [encoded[i] for i in group]
                rows, first_word = range(row, row + len(group)), word
                row += len(group)
                word += sum(len(item.words.flags) for item in items if item.words is not None)
                number += 1
                if self.workers.computes(number) and not is_done[rows].all():
                    yield from collate_group(items, rows, batch_tokens=batching["batch_tokens"], first_word=first_word)

    def take(self, batch: Batch, latents: Float[Tensor, "L P N D"], put: Put) -> None:
        """Put the writing of a batch, with its latents in transit to the host; of windows, once a text has all of them.

        The latents are rounded on their device, which reports on those that do not fit; `write` reads the report.
        """
        self.proof.add(batch, latents)
        joined = self.joiner.add(batch, latents)
        if joined is None:
            return
        whole, latents = joined
        stored, report = round_latents(latents, self.manifest.storage_dtype)
        if self.workers.shares_decoder:  # the others wait for each other in the next batch, so all stop at this one
            self.require_fit(whole, report.cpu(), stored.shape)
        put(partial(self.write, whole, self.session.copies.start(stored, report)))

    def require_fit(self, batch: Batch, report: Tensor, shape: Sequence[int]) -> None:
        """Refuse latents of a batch by the report on them, in main memory: `NonFiniteLatentError` names the first."""
        unfit = read_report(report, shape)
        if unfit is None:
            return
        layer, pooling, number, column = unfit.indices
        where = (
            f"layer {self.manifest.layers[layer]}, pooling {self.manifest.poolings[pooling]}, dimension {column}, "
            f"{name_latent(batch, number, self.texts)}"
        )
        raise refuse_latent(
            unfit.value, where=where, storage=self.manifest.storage_dtype, dtype=self.decoder.description.dtype
        )

    def write(self, batch: Batch, copy: HostCopy) -> None:
        """Write the latents of a batch once they have arrived; nothing of it where one does not fit."""
        with copy as (stored, report):
            self.require_fit(batch, report, stored.shape)
            if self.workers.writes:
                self._write(batch, (stored.view(torch.uint16) if stored.dtype == torch.bfloat16 else stored).numpy())

    def _write(self, batch: Batch, latents: StoredArray) -> None:
        rows: dict[str, StoredArray] = {
            "digest": digest_texts([self.texts[i] for i in batch.positions]),
            "n_tokens": batch.n_tokens,
            "is_truncated": batch.is_truncated.astype(np.uint8),
        }
        first, words = int(batch.rows[0]), batch.words
        if words is not None:
            first_words = words.first_word + np.cumsum(words.n_words, dtype=np.int64) - words.n_words
            rows |= {"first_word": first_words, "n_words": words.n_words, "word_start": words.word_start}
        self.writer.write_rows(
            first, latents, rows=rows, words=None if words is None else (words.first_word, words.flags)
        )
        self.session.add(self.writer, first, len(batch.rows))
        self.session.progress.advance(n_rows=len(batch.rows), n_tokens=int(batch.n_tokens.sum()))


class Launch(NamedTuple):
    """The place of this process among those that torchrun or SLURM launched; alone where neither did."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    n_nodes: int = 1


def launched_size() -> int:
    """Count the processes that torchrun or SLURM launched, this one included."""
    return _launched().size


def _launched() -> Launch:
    """Read the place of this process; torchrun counts before SLURM, inside whose allocation it may run."""
    if "WORLD_SIZE" in os.environ and "RANK" in os.environ:
        names = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "GROUP_WORLD_SIZE": 1}
    elif "SLURM_NTASKS" in os.environ and "SLURM_PROCID" in os.environ and "SLURM_STEP_ID" in os.environ:
        names = {"SLURM_PROCID": 0, "SLURM_LOCALID": 0, "SLURM_NTASKS": 1, "SLURM_NNODES": 1}
    else:
        return Launch()
    return Launch(*(int(os.environ.get(name, default)) for name, default in names.items()))


def require_one_process(key: PlacementKey) -> None:
    """Refuse several processes where a decoder was placed by a key of `SPREADS` (`ConfigError`)."""
    if launched_size() > 1:
        raise ConfigError(
            f"{launched_size()} processes were started, and decoder.{key} {SPREADS[key]}; start one process, or leave "
            f"decoder.{key} out."
        )


def place_worker(device: str = "auto") -> Workers:
    """Choose rank and device of this process among those launched, without joining them: none waits for another."""
    launch = _launched()
    n_devices = torch.cuda.device_count() if launch.size > 1 and device == "auto" else 0
    return Workers(launch.rank, launch.size, device=f"cuda:{launch.local_rank % n_devices}" if n_devices else device)


def join_workers(device: str = "auto", *, shares_decoder: bool = False) -> Workers:
    """Join the group of this process through Lightning Fabric, on `auto` or a torch device; alone, this is free."""
    launch = _launched()
    if launch.size == 1:
        return Workers(device=device)
    from lightning.fabric import Fabric

    accelerator, on_node = "cpu" if device == "cpu" else "auto", launch.size // launch.n_nodes
    fabric = Fabric(accelerator=accelerator, devices=on_node, num_nodes=launch.n_nodes, strategy="ddp")
    fabric.launch()
    device = "auto" if shares_decoder else str(fabric.device)
    return Workers(fabric.global_rank, fabric.world_size, fabric.barrier, device, shares_decoder)
