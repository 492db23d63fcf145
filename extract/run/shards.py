"""Extraction window by window into shards: any number of texts, in memory that does not grow with it."""

import shutil
from collections.abc import Iterable, Iterator, Sized
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path

from extract.decoders.decoder import Decoder
from extract.digest import digest_rows
from extract.errors import CacheIdentityError, CacheLockedError, ConfigError, InputError, NonFiniteLatentError
from extract.inputs.joined import JoinedText, digest_texts
from extract.inputs.streams import stream_texts
from extract.run.extraction import Extraction, open_store
from extract.run.progress import ExtractionProgress
from extract.run.runner import describe_extraction, unique_texts, warn_truncated
from extract.run.spec import WINDOW_TEXTS, ExtractionSpec
from extract.store.disk import explain_write_error, locked_file, require_locks
from extract.store.manifest import Manifest, require_same
from extract.store.reuse import cache_path
from extract.store.shards.cache import ShardedCache, describe_shard
from extract.store.shards.index import INDEX, Shard, ShardIndex, parse_index, shared_identity

DRAFTS = "drafts"
"""Folder of the shards that are being written."""
LOCK = ".lock"


@dataclass(frozen=True)
class Window:
    """Consecutive texts that become one shard.

    Attributes:
        number: Position among the windows.
        first: Position of its first text.
        n_texts: Texts, repeats included.
        texts: Its texts, each once.
    """

    number: int
    first: int
    n_texts: int
    texts: list[str | JoinedText]

    def __str__(self) -> str:
        return f"window {self.number} (texts {self.first} to {self.first + self.n_texts - 1})"


def read_windows(texts: Iterable[str | JoinedText], size: int) -> Iterator[Window]:
    """Read texts window by window, one at a time; raises as `unique_texts`."""
    if isinstance(texts, str):
        unique_texts(texts)  # refuses it
    items, kind = iter(texts), None
    for number in count():
        some = list(islice(items, size))
        if number and not some:
            return
        unique, first = unique_texts(some, first_index=number * size), number * size
        kind = kind or type(unique[0])
        if type(unique[0]) is not kind:
            raise InputError(
                f"text {first} is {unique[0]!r}; allowed: either plain texts or texts with their words, not both."
            )
        yield Window(number, first, len(some), unique)


@dataclass(frozen=True, eq=False)
class ShardWriter:
    """Turns windows into shards of a folder; it needs nothing of the index, so many can work at once."""

    decoder: Decoder
    spec: ExtractionSpec
    folder: Path
    progress: ExtractionProgress

    def __call__(self, window: Window) -> Shard:
        """Extract a window into a draft, or go on with one, and move it in place in one step.

        Raises:
            IcecoreError: As `extract_latents`; names the window.
        """
        manifest = describe_extraction(self.decoder, window.texts, self.spec)
        draft = cache_path(self.folder / DRAFTS, manifest)
        try:
            with open_store(draft, manifest) as writer:
                Extraction(self.decoder, window.texts, self.spec, writer, _Within(self.progress)).run()
        except (InputError, NonFiniteLatentError) as error:
            raise type(error)(f"in {window}, counted in it: {error}") from error
        shard = describe_shard(draft, window=window.number, expected=manifest.identity)
        draft.replace(self.folder / shard.file)
        return shard


def extract_shards(
    decoder: Decoder, texts: Iterable[str | JoinedText] | Path, *, folder: str | Path,
    spec: ExtractionSpec = ExtractionSpec(),  # noqa: B008 - frozen
    window: int = WINDOW_TEXTS, progress: ExtractionProgress | None = None,
) -> ShardedCache:  # fmt: skip
    """Extract latents of any number of texts into shards, window by window; memory does not grow with their number.

    A shard is a whole cache of the texts of one window. It is written as a draft, moved in place in one step, and then
    listed in `index.json`. Stopped or killed, the same call with the same texts goes on: a window whose shard is not
    listed, or not there any more, is computed; the texts of the others are only read.

    Args:
        decoder: The frozen decoder.
        texts: Texts, all plain or all with their words, from anything that yields them: a list, a generator, a column
            of a `datasets.Dataset`, or the path of a file, which `stream_texts` reads. Repeats within a window are
            stored once.
        folder: Where the shards and their index are, and nothing else.
        spec: What to extract.
        window: Texts of a shard. They are in memory together and batched by length among themselves.
        progress: Receives what has been done.

    Returns:
        The shards as one cache.

    Raises:
        CacheIdentityError: The folder holds shards of something else or of other texts, which stay as they are.
        CacheLockedError: Another process is writing there.
        ConfigError: A window of no texts, or a template that stands for several.
        IcecoreError: As `extract_latents`; shards that are done stay.
    """
    if window < 1:
        raise ConfigError(f"window is {window}; allowed: a whole number of texts, at least 1.")
    if len(spec.members) > 1:
        raise ConfigError(
            f"the template stands for {len(spec.members)} whose latents are averaged, and shards hold those of one; "
            "extract each of them into a folder of its own."
        )
    require_locks()
    place, watch = Path(folder), progress or ExtractionProgress()
    source = stream_texts(texts) if isinstance(texts, Path) else texts
    windows = read_windows(source, window)
    first = next(windows)
    manifest = describe_extraction(decoder, first.texts, spec)
    with _locked(place):
        index = _open_index(place, manifest, window)
        kept = replace(spec, batch_tokens=index.provenance["batching"]["batch_tokens"])  # the very same batches
        write = ShardWriter(decoder, kept, place, watch)
        watch.start(n_rows=len(source) if isinstance(source, Sized) else 0, n_done=index.n_rows)
        number = 0
        try:
            for each in chain([first], windows):
                number = each.number
                if _is_there(index, each, place):
                    continue
                if index.find(number):  # its file is gone, and another one comes
                    index = index.without(number)
                    index.write(place)
                index = index.with_shard(write(each))
                index.write(place)
        finally:
            watch.finish()
        _require_none_after(index, number, place)
        index = replace(index, is_complete=True)
        index.write(place)
        shutil.rmtree(place / DRAFTS, ignore_errors=True)
    cache = ShardedCache(place)
    warn_truncated(cache, n_cut=sum(shard.n_truncated for shard in index.shards))
    return cache


def _open_index(folder: Path, manifest: Manifest, window: int) -> ShardIndex:
    """Read the index of a folder, or begin one; CacheIdentityError if its shards are of something else."""
    file, identity = folder / INDEX, shared_identity(manifest.identity)
    if not file.exists():
        return ShardIndex(identity, manifest.provenance, window)
    found = parse_index(file.read_bytes(), where=str(file))
    require_same(found.identity, identity, where=repr(str(folder)))
    if found.window_texts != window:
        raise CacheIdentityError(
            f"the shards in {str(folder)!r} are of windows of {found.window_texts} texts, and {window} were asked for; "
            "ask for the same, or choose another folder."
        )
    return found


def _is_there(index: ShardIndex, window: Window, folder: Path) -> bool:
    """Whether the shard of a window is listed and its file there; CacheIdentityError if it is of other texts."""
    shard = index.find(window.number)
    if shard is None:
        return False
    if shard.text_digest != digest_rows(digest_texts(window.texts)):
        raise CacheIdentityError(
            f"shard {shard.file!r} in {str(folder)!r} is not of the texts of {window}; give the texts that the "
            "extraction was begun with, in their order, or choose another folder."
        )
    file = folder / shard.file
    return file.is_file() and file.stat().st_size == shard.n_bytes


def _require_none_after(index: ShardIndex, last: int, folder: Path) -> None:
    if index.shards[-1].window > last:
        raise CacheIdentityError(
            f"there are {last + 1} windows of texts, but {str(folder)!r} has a shard of window "
            f"{index.shards[-1].window}; give all texts that the extraction was begun with, or choose another folder."
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("wb")
    except OSError as error:
        raise explain_write_error(error, folder / LOCK, needed=None) from error
    with closing(file):
        try:
            with locked_file(file.fileno()):
                yield
        except BlockingIOError as error:
            raise CacheLockedError(
                f"shards in {str(folder)!r} are being written by another process; wait for it, or stop it and run "
                "again (no shard that is done is lost)."
            ) from error


class _Within(ExtractionProgress):
    """Passes on what a window reports, as part of the whole."""

    def __init__(self, whole: ExtractionProgress) -> None:
        self.whole = whole

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        """A batch has been written."""
        self.whole.advance(n_rows=n_rows, n_tokens=n_tokens)
