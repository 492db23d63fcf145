"""Finding the rows of texts in a store by their digests."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, UInt8
from numpy.typing import NDArray

from extract.alignment import WORD_CUT, WORD_LOST


@dataclass(frozen=True, eq=False)
class WordPlaces:
    """Where the words of texts are in a cache.

    Attributes:
        positions: `(W,)` int64 place of each word in the cache, texts one after the other, words in text order.
        offsets: `(N + 1,)` int64 where the words of each text start in `positions`.
        flags: `(W,)` uint8, bits `WORD_SHARED` (1), `WORD_CUT` (2) and `WORD_LOST` (4) of `extract.alignment`.
    """

    positions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    flags: NDArray[np.uint8]

    @property
    def has_latent(self) -> Bool[np.ndarray, " W"]:
        """`(W,)` whether the word has a latent: it was neither truncated nor lost."""
        has_latent: NDArray[np.bool_] = (self.flags & (WORD_CUT | WORD_LOST)) == 0
        return has_latent


class RowLookup:
    """The rows of a store by their digests; rows of one digest are the pieces of one text.

    Args:
        digests: `(N, 16)` uint8.
        word_start: `(N,)` first word of its text that each row holds; None where each text is one row.
    """

    def __init__(self, digests: UInt8[np.ndarray, "N 16"], word_start: Int[np.ndarray, " N"] | None = None) -> None:
        keys = digests.view(np.uint64)
        pieces = np.zeros(len(keys), np.int64) if word_start is None else word_start
        self.order: NDArray[np.int64] = np.lexsort((pieces, keys[:, 1], keys[:, 0]))
        ordered = keys[self.order]
        is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
        self._begins = np.flatnonzero(is_new)
        self.counts: NDArray[np.int64] = np.diff(np.append(self._begins, len(keys)))
        self._keys = ordered[self._begins]

    def find(self, wanted: UInt8[np.ndarray, "B 16"]) -> tuple[Int[np.ndarray, " B"], Int[np.ndarray, " B"]]:
        """Find the rows of texts.

        Args:
            wanted: `(B, 16)` uint8 digests.

        Returns:
            `(B,)` place of each text's first row in `order`, and `(B,)` its number of rows, 0 where it is missing.
        """
        keys = np.ascontiguousarray(wanted).view(np.uint64)
        group = np.searchsorted(self._keys[:, 0], keys[:, 0]).clip(max=len(self._keys) - 1)
        is_found = (self._keys[group] == keys).all(axis=1)
        return self._begins[group], self.counts[group] * is_found


def ranges(starts: Int[np.ndarray, " N"], counts: Int[np.ndarray, " N"]) -> Int[np.ndarray, " M"]:
    """Write out ranges one after the other.

    Args:
        starts: `(N,)` first value of each.
        counts: `(N,)` number of values of each.

    Returns:
        `(M,)` int64, the values.

    Example:
        >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
        [5, 6, 0, 1, 2]
    """
    before = np.cumsum(counts) - counts
    written: NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return written
