"""The arrays of all shards of an index as those of one store."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from extract.errors import CacheError
from extract.store.reader import StoreReader
from extract.store.shards.files import ShardFiles, digest_file, open_files
from extract.store.shards.index import INDEX, Shard, ShardIndex, parse_index, require_arrays


def require_shard(files: ShardFiles, shard: Shard, index: ShardIndex, *, where: str) -> None:
    """Refuse a shard whose file is not what its index lists: `CacheError` names it. Reads the file whole."""
    digest = digest_file(files, shard.file)
    if digest == shard.sha256:
        return
    other = next((listed.file for listed in index.shards if listed.sha256 == digest), None)
    if other is not None:
        raise CacheError(
            f"shard {shard.file!r} of cache {where!r} holds what the index lists as {other!r}; give the files their "
            f"own names again, or delete {shard.file!r} and run the extraction again."
        )
    raise CacheError(
        f"shard {shard.file!r} of cache {where!r} is damaged: it is not what the index lists; delete this one file and "
        "run the extraction again."
    )


class ShardsReader(StoreReader):
    """Reads the arrays of shards, one after the other by their rows.

    Opening reads the index alone. `map` reads into new memory, and keeps what is not latents.

    Args:
        place: The folder or address of the index and its shards.
    """

    def __init__(self, place: str) -> None:
        self.path = Path(place)
        self.files = open_files(place)
        self.index = parse_index(self.files.read(INDEX), where=f"{place}/{INDEX}")
        require_arrays(self.index, where=f"{place}/{INDEX}")
        self.manifest = self.index.manifest
        self._maps: dict[str, NDArray[Any]] = {}
        self._names = [shard.file for shard in self.index.shards]
        self._rows = np.cumsum([0, *(shard.n_rows for shard in self.index.shards)])
        self._words = np.cumsum([0, *(shard.n_words for shard in self.index.shards)])

    @property
    def has_checksums(self) -> bool:
        """Always: the index has the SHA-256 of every shard."""
        return True

    @property
    def shard_of_row(self) -> Int[np.ndarray, " N"]:
        """Which shard each row is in."""
        return np.repeat(np.arange(len(self._names), dtype=np.int32), np.diff(self._rows))

    def n_rows_of(self, name: str) -> int:
        """Length of the first axis of an array over all shards."""
        return int(self._starts(name)[-1])

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Read rows of an array, all of them unless told otherwise, into new memory."""
        place = self.index.shards[0].layout[name]
        n_rows = self.n_rows_of(name) if stop is None else stop
        found = np.empty((n_rows - start, *place.shape[1:]), place.dtype)
        self.read_into(found, name, start)
        return found

    def map(self, name: str) -> NDArray[Any]:
        """Read an array into memory; the certificate is that of the first shard."""
        if name == "/certificate":
            return self._read_certificate()
        if name in self._maps:
            return self._maps[name]
        found = self.read(name)
        if name == "/rows/first_word":
            found += np.repeat(self._words[:-1], np.diff(self._rows))
        if name.count("/") < 3:  # no latents
            self._maps[name] = found
        return found

    def read_into(self, buffer: NDArray[Any], name: str, first: int) -> None:
        """Read the rows of an array from `first` on into contiguous memory, one range of each shard.

        Raises:
            CacheError: A shard that is not there or was cut short; names it.
        """
        starts, last = self._starts(name), first + len(buffer)
        for k in range(int(np.searchsorted(starts, first, side="right")) - 1, len(self._names)):
            start, stop = max(first, int(starts[k])), min(last, int(starts[k + 1]))
            if start >= stop:
                break
            place = self.index.shards[k].layout[name]
            view = buffer[start - first : stop - first].view(np.uint8).reshape(-1).data
            self.files.read_into(self._names[k], place.offset + (start - int(starts[k])) * place.row_bytes, view)

    def take(self, names: list[str], rows: Int[np.ndarray, " B"]) -> NDArray[Any]:
        """Gather rows of arrays of one width and dtype into new memory `(L, B, D)`, as they are stored."""
        starts = self._starts(names[0])
        owners = np.searchsorted(starts, rows, side="right") - 1
        layouts = [[shard.layout[name] for shard in self.index.shards] for name in names]
        first = np.array([[place.offset for place in layout] for layout in layouts])
        place = layouts[0][0]
        found = np.empty((len(names), len(rows), *place.shape[1:]), place.dtype)
        if len(rows):
            offsets = first[:, owners] + (rows - starts[owners]) * place.row_bytes
            self.files.take(self._names, owners, offsets, found)
        return found

    def _starts(self, name: str) -> Int[np.ndarray, " K"]:
        return self._words if name.startswith("/words/") else self._rows

    def _read_certificate(self) -> NDArray[Any]:
        if not self._names:
            raise CacheError(f"cache {str(self.path)!r} has no shards yet; run the extraction again to go on.")
        place = self.index.shards[0].layout["/certificate"]
        found = np.empty(place.shape, place.dtype)
        self.files.read_into(self._names[0], place.offset, found.data)
        return found
