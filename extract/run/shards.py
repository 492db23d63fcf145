"""Extraction window by window into shards: any number of texts, in memory that does not grow with it."""

from collections.abc import Iterable, Sized
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from extract.decoders.decoder import Decoder
from extract.decoders.placement import is_split
from extract.errors import ConfigError, InputError, NonFiniteLatentError
from extract.inputs.joined import JoinedText
from extract.inputs.streams import stream_texts
from extract.run.extraction import Extraction, open_store
from extract.run.progress import ExtractionProgress
from extract.run.runner import describe_extraction, warn_truncated
from extract.run.spec import WINDOW_TEXTS, ExtractionSpec
from extract.run.windows import PATIENCE, Claim, Ledger, Window, map_windows, read_windows
from extract.run.workers import require_one_process
from extract.store.disk import require_locks
from extract.store.reuse import cache_path
from extract.store.shards.cache import ShardedCache, describe_shard
from extract.store.shards.index import Shard


@dataclass(frozen=True, eq=False)
class ShardWriter:
    """Turns windows into shards; it needs nothing of the index, so many can work at once."""

    decoder: Decoder
    spec: ExtractionSpec
    progress: ExtractionProgress

    def __call__(self, window: Window, claim: Claim) -> tuple[Shard, Path]:
        """Extract a window into a draft, or go on with one; return what it is and where.

        Raises:
            IcecoreError: As `extract_latents`; names the window.
        """
        manifest = describe_extraction(self.decoder, window.texts, self.spec)
        draft = cache_path(claim.drafts, manifest)
        try:
            with open_store(draft, manifest) as writer:
                Extraction(self.decoder, window.texts, self.spec, writer, _Within(self.progress, claim)).run()
        except (InputError, NonFiniteLatentError) as error:
            raise type(error)(f"in {window}, counted in it: {error}") from error
        return describe_shard(draft, window=window.number, expected=manifest.identity), draft


def extract_shards(
    decoder: Decoder,
    texts: Iterable[str | JoinedText] | Path,
    *,
    folder: str | Path,
    spec: ExtractionSpec = ExtractionSpec(),  # noqa: B008 - frozen
    window: int = WINDOW_TEXTS,
    progress: ExtractionProgress | None = None,
    patience: float = PATIENCE,
) -> ShardedCache:
    """Extract latents of any number of texts into shards, window by window; memory does not grow with their number.

    A shard is a whole cache of the texts of one window. It is written as a draft, moved in place in one step, and then
    listed in `index.json`. Stopped or killed, the same call with the same texts goes on: a window whose shard is not
    listed, or not there any more, is computed; of the others the texts are read, and the file once, for its SHA-256.

    Make the same call in as many processes as there are devices, on one machine or on several that see the folder:
    they share the windows, and each returns when all are listed. See `map_windows`.

    Args:
        decoder: The frozen decoder.
        texts: Texts, all plain or all with their words, from anything that yields them: a list, a generator, a column
            of a `datasets.Dataset`, or the path of a file, which `stream_texts` reads. Repeats within a window are
            stored once.
        folder: Where the shards and their index are, and nothing else.
        spec: What to extract.
        window: Texts of a shard. They are in memory together and batched by length among themselves.
        progress: Receives what this process has done.
        patience: Seconds without a batch after which a window that a living process holds is done by another too.

    Returns:
        The shards as one cache.

    Raises:
        CacheIdentityError: The folder holds shards of something else or of other texts, which stay as they are.
        CacheError: A shard of an earlier call is not what was written: damaged, or under another's name; all stay.
        ConfigError: A window of no texts, a template that stands for several, or a decoder that is split over the
            processes (`tp_plan`), which cannot go through shards of their own.
        IcecoreError: As `extract_latents`; shards that are done stay.
    """
    require_shardable(spec, window)
    if is_split(decoder.module):
        require_one_process("tp_plan")
    require_locks()
    watch = progress or ExtractionProgress()
    source = stream_texts(texts) if isinstance(texts, Path) else texts
    windows = read_windows(source, window)
    first = next(windows)
    manifest = describe_extraction(decoder, first.texts, spec, n_rows=len(first.texts))  # tokenises nothing
    ledger = Ledger(Path(folder), manifest, window, patience=patience)
    index = ledger.index
    kept = replace(spec, batch_tokens=index.provenance["batching"]["batch_tokens"])  # the very same batches
    watch.start(n_rows=len(source) if isinstance(source, Sized) else 0, n_done=index.n_rows)
    try:
        for _ in map_windows(ShardWriter(decoder, kept, watch), chain([first], windows), ledger):
            pass
    except BaseException:
        ledger.abandon()
        raise
    finally:
        watch.finish()
    index = ledger.complete()
    cache = ShardedCache(folder)
    warn_truncated(cache, n_cut=sum(shard.n_truncated for shard in index.shards))
    return cache


def require_shardable(spec: ExtractionSpec, window: int) -> None:
    """Refuse windows of no texts, and a template that stands for several: `ConfigError`."""
    if window < 1:
        raise ConfigError(f"window is {window}; allowed: a whole number of texts, at least 1.")
    if len(spec.members) > 1:
        raise ConfigError(
            f"the template stands for {len(spec.members)} whose latents are averaged, and shards hold those of one; "
            "extract each of them into a folder of its own."
        )


class _Within(ExtractionProgress):
    """Passes on what a window reports, as part of the whole."""

    def __init__(self, whole: ExtractionProgress, claim: Claim) -> None:
        self.whole, self.claim = whole, claim

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        """A batch has been written."""
        self.claim.beat()
        self.whole.advance(n_rows=n_rows, n_tokens=n_tokens)
