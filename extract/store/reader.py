"""The arrays of a store, mapped or read. The file is never held open, and nothing here is POSIX only."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extract.errors import CacheError
from extract.store.layout import ArrayPlace, read_layout


class StoreReader:
    """Reads the arrays of a laid-out store. It can be pickled; another process makes its own maps.

    Args:
        path: The store.

    Raises:
        CacheError: As `read_layout`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest, self._places = read_layout(path)
        self._maps: dict[str, NDArray[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave the maps behind."""
        return {**self.__dict__, "_maps": {}}

    def map(self, name: str) -> NDArray[Any]:
        """Map an array copy-on-write: changing it never changes the file.

        Args:
            name: HDF5 path of the array.

        Returns:
            The array; bytes are read when they are touched.
        """
        if name not in self._maps:
            place = self._places[name]
            self._maps[name] = np.memmap(self.path, place.dtype, "c", offset=place.offset, shape=place.shape)
        return self._maps[name]

    def read_into(self, buffer: NDArray[Any], name: str, first: int) -> None:
        """Read consecutive rows of an array into memory that the caller owns; nothing is mapped.

        Args:
            buffer: Contiguous, of the stored dtype; its first axis counts rows.
            name: HDF5 path of the array.
            first: First row.

        Raises:
            CacheError: The file ends before these rows do.
        """
        place: ArrayPlace = self._places[name]
        view = buffer.view(np.uint8).reshape(-1).data
        with self.path.open("rb", buffering=0) as file:
            file.seek(place.offset + first * place.row_bytes)
            while view:
                n_read = file.readinto(view)
                if not n_read:
                    raise CacheError(
                        f"cache {str(self.path)!r} ends at byte {file.tell()}, inside {name}: it was cut short while "
                        "it was read; copy it again or extract again."
                    )
                view = view[n_read:]
