"""Shards read as one cache, and the one way to open a cache of either kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extract.errors import CacheIncompleteError
from extract.store.cache import LatentCache
from extract.store.layout import read_layout
from extract.store.manifest import require_same
from extract.store.shards.files import LocalFiles, digest_file
from extract.store.shards.index import INDEX, Shard, shard_file
from extract.store.shards.reader import ShardsReader, require_shard


class ShardedCache(LatentCache):
    """The shards of one extraction as one cache; nothing is copied, and opening reads the index alone.

    Rows are those of the first shard, then those of the second, and so on. A text that several windows hold has a row
    in each; `rows_of` gives the first. Its identity is that of a cache in one file but for `text_digest`.

    Args:
        place: The `index.json`, its folder, or its address, such as `s3://bucket/folder`.
        expected: Identity the cache must have; any when absent.
        allow_partial: Read the shards that are there while others are missing.

    Raises:
        CacheError: No index there, or it is damaged.
        CacheIdentityError: The shards hold something other than `expected`; names the differing fields.
        CacheIncompleteError: Some windows have no shard and `allow_partial` is off.
    """

    def __init__(
        self, place: str | Path, *, expected: dict[str, Any] | None = None, allow_partial: bool = False
    ) -> None:
        folder = str(place).removesuffix(INDEX).rstrip("/") or "."
        self._file: ShardsReader = ShardsReader(folder)
        self.path, self.manifest = self._file.path, self._file.manifest
        if expected is not None:
            require_same(self.manifest.identity, expected, where=repr(folder))
        if not allow_partial and not self.is_complete:
            raise CacheIncompleteError(
                f"cache {folder!r} is half done: {len(self)} rows in {self.n_shards} shards, the rest is missing. "
                "Run the extraction again to go on where it stopped."
            )

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return len(self._file.index.shards)

    @property
    def files(self) -> tuple[Path, ...]:
        """The index and every shard."""
        return (self.path / INDEX, *(self.path / shard.file for shard in self._file.index.shards))

    @property
    def n_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.n_bytes for shard in self._file.index.shards)

    @property
    def n_done(self) -> int:
        """Rows that are done: those of the shards that are listed."""
        return len(self)

    @property
    def is_complete(self) -> bool:
        """Whether the shards hold all texts."""
        return self._file.index.is_complete

    @property
    def certificate(self) -> dict[str, Any]:
        """The certificate of the first shard, and how many shards there are, each with its own."""
        return {**super().certificate, "n_shards": self.n_shards}

    def verify(self) -> None:
        """Compare the SHA-256 of every shard with the index, which reads all of them.

        Raises:
            CacheError: A shard is not what was written; names it.
        """
        for shard in self._file.index.shards:
            require_shard(self._file.files, shard, self._file.index, where=str(self.path))

    def _gather(
        self, rows: Int[Tensor, " B"], layers: Sequence[str], pooling: str, *, width: int
    ) -> Float[Tensor, "L B D"]:
        del width  # the index has it
        found = self._file.take([self._array(name, pooling) for name in layers], rows.numpy())
        return self._torch(found).to(torch.float32)


def describe_shard(path: Path, *, window: int, expected: dict[str, Any] | None = None) -> Shard:
    """Describe a whole cache as the shard of a window, for the index; raises as `LatentCache`."""
    cache = LatentCache(path, expected=expected)
    return Shard(
        window=window,
        file=shard_file(window),
        n_rows=len(cache),
        n_words=cache.n_words,
        n_bytes=path.stat().st_size,
        sha256=digest_file(LocalFiles(path.parent), path.name),
        text_digest=str(cache.identity["text_digest"]),
        n_tokens=int(cache.n_tokens.sum()),
        n_truncated=int(cache.is_truncated.sum()),
        layout=read_layout(path)[1],
    )


def open_cache(source: LatentCache | str | Path, *, allow_partial: bool = False) -> LatentCache:
    """Open a cache in one file or in shards, the same way; one that is open already is returned.

    Args:
        source: A cache file, the `index.json` of shards, the folder it is in, or the address of either of the latter.
        allow_partial: Read a half-done cache.

    Raises:
        CacheError: As by `LatentCache` and `ShardedCache`.
    """
    if isinstance(source, LatentCache):
        return source
    is_index = "://" in str(source) or Path(source).name == INDEX or (Path(source) / INDEX).is_file()
    kind = ShardedCache if is_index else LatentCache
    return kind(source, allow_partial=allow_partial)
