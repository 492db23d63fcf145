"""Words and tokens of one text, brought together by their characters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, UInt8
from numpy.typing import NDArray

WORD_SHARED = 1  # begins inside a token that the word before also uses
WORD_CUT = 2  # a token of it was dropped; no latent
WORD_LOST = 4  # no token covers it; no latent


@dataclass(frozen=True, eq=False)
class AlignedWords:
    """Which tokens each of the `W` words of a text uses."""

    starts: NDArray[np.int64]  # first token of each word
    ends: NDArray[np.int64]  # one past its last token; equal to `starts` where no token covers the word

    @property
    def is_lost(self) -> Bool[np.ndarray, " W"]:
        """Whether no token covers the word."""
        is_lost: NDArray[np.bool_] = self.starts == self.ends
        return is_lost

    @property
    def is_shared(self) -> Bool[np.ndarray, " W"]:
        """Whether the word begins inside a token that the word before also uses."""
        # Lost words stand between two others without parting them.
        reached: NDArray[np.int64] = np.maximum.accumulate(np.where(self.is_lost, 0, self.ends))
        is_shared = np.zeros(len(reached), np.bool_)
        is_shared[1:] = (self.starts[1:] < reached[:-1]) & ~self.is_lost[1:]
        return is_shared

    @property
    def flags(self) -> UInt8[np.ndarray, " W"]:
        """Bits `WORD_SHARED` and `WORD_LOST`."""
        flags: NDArray[np.uint8] = (self.is_shared * WORD_SHARED + self.is_lost * WORD_LOST).astype(np.uint8)
        return flags


def align_words(offsets: Int[np.ndarray, "T 2"], spans: Sequence[tuple[int, int]]) -> AlignedWords:
    """Find the tokens of each word: all whose characters meet the word's.

    A token of no width (a byte of a character that another token stands for, or a blank that the tokenizer trims)
    belongs to no word. Where offsets do not run upwards, as around characters that a normaliser puts in another
    order, a word's tokens are all from the first to the last that meets it.

    Args:
        offsets: First and one past the last character of each token of the text.
        spans: The same of each word, in order and without overlap.

    Example:
        >>> aligned = align_words(np.array([[0, 3], [3, 5], [5, 9]]), [(0, 2), (2, 5), (6, 9)])
        >>> aligned.starts.tolist(), aligned.ends.tolist(), aligned.flags.tolist()
        ([0, 0, 2], [1, 2, 3], [0, 1, 0])
    """
    words = np.asarray(spans, np.int64).reshape(-1, 2)
    tokens = np.flatnonzero(offsets[:, 0] < offsets[:, 1])
    firsts, lasts = offsets[tokens].T
    if (np.diff(firsts) >= 0).all() and (np.diff(lasts) >= 0).all():
        starts = np.searchsorted(lasts, words[:, 0], side="right")
        ends = np.searchsorted(firsts, words[:, 1], side="left")
    else:
        starts, ends = _search(firsts, lasts, words)
    is_met = (starts < ends) & (words[:, 0] < words[:, 1])
    found = np.zeros((2, len(words)), np.int64)
    found[0, is_met] = tokens[starts[is_met]]
    found[1, is_met] = tokens[ends[is_met] - 1] + 1
    return AlignedWords(*found)


def _search(
    firsts: Int[np.ndarray, " T"], lasts: Int[np.ndarray, " T"], words: Int[np.ndarray, "W 2"]
) -> tuple[Int[np.ndarray, " W"], Int[np.ndarray, " W"]]:
    """Look at every token for every word."""
    found = np.zeros((2, len(words)), np.int64)
    for k, (start, end) in enumerate(words):
        meeting = np.flatnonzero((firsts < end) & (lasts > start))
        if len(meeting):
            found[:, k] = meeting[0], meeting[-1] + 1
    return found[0], found[1]
