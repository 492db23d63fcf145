"""Long texts in overlapping windows of tokens, each word or token read where it has most context."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from extract.inputs.roles import ELSEWHERE, TEXT
from extract.inputs.spans import SpanSource
from extract.inputs.tokenised import EncodedText, TokenisedText, Tokeniser, no_room


@dataclass(frozen=True, eq=False)
class PlacedWords:
    """Windows over the tokens of one text, all with words, and the window of each of its `W` words."""

    starts: NDArray[np.int64]  # first token of each window, upwards
    window_of: NDArray[np.int64]  # `(W,)`, upwards; a word that is not whole in any goes with its neighbours
    is_whole: NDArray[np.bool_]  # `(W,)`, all tokens of the word are in its window


def place_words(starts: Int[np.ndarray, " W"], ends: Int[np.ndarray, " W"], *, n_tokens: int, room: int) -> PlacedWords:
    """Lay windows over a text and give each word the one in which it has most context.

    Windows begin every half window, and the last one ends with the text. A word that fits into a window but lies
    across the borders of all of these gets a window of its own, around it. A word's context in a window is the number
    of tokens before or after it, whichever is less; a side on which the text itself ends does not count.

    Args:
        starts: First token that each word needs.
        ends: One past the last; equal to `starts` for a word without tokens.
        n_tokens: Tokens of the text, more than `room`.
        room: Tokens of a window, at least 1.

    Example:
        >>> placed = place_words(np.array([0, 3, 6]), np.array([3, 6, 8]), n_tokens=8, room=4)
        >>> placed.starts.tolist(), placed.window_of.tolist(), placed.is_whole.tolist()
        ([0, 2, 4], [0, 1, 2], [True, True, True])
    """
    last = n_tokens - room
    grid = np.append(np.arange(0, last, max(1, room // 2)), last)
    is_word = (starts < ends) & (ends - starts <= room)
    homeless = is_word & (_candidates(grid, starts, ends, room)[1] < 1)
    around = starts[homeless] - (room - (ends - starts)[homeless]) // 2
    grid = np.unique(np.concatenate([grid, around.clip(0, last)]))
    best = _best_windows(grid, starts, ends, n_tokens=n_tokens, room=room)
    best = _with_neighbours(best, is_word)
    used, window_of = np.unique(best, return_inverse=True)
    opens = grid[used][window_of]
    is_whole = is_word & (opens <= starts) & (ends <= opens + room)
    return PlacedWords(grid[used], window_of, is_whole)


def lay_windows(
    item: TokenisedText, starts: Int[np.ndarray, " W"], ends: Int[np.ndarray, " W"], *, max_tokens: int
) -> tuple[PlacedWords, list[NDArray[np.int64]]]:
    """Place the words of a text that is longer than a row, as `place_words` does.

    Returns:
        The words, and the columns of each window: the instruction and all specials, and what fits beside them.

    Raises:
        InputError: Instruction and specials leave no room; names the text.
    """
    others, columns = np.flatnonzero(item.roles != TEXT), item.text_columns
    room = max_tokens - len(others)
    if room < 1:
        raise no_room(item, len(others), max_tokens)
    placed = place_words(starts, ends, n_tokens=len(columns), room=room)
    return placed, [np.sort(np.append(others, columns[start : start + room])) for start in placed.starts]


def split_tokens(
    item: TokenisedText, tokenise: Tokeniser, *, max_tokens: int, spans: SpanSource | None
) -> tuple[EncodedText, ...]:
    """Split a text that is longer than a row into windows, each token of role `TEXT` in the one with most context.

    In the other windows that hold it a token has the role `ELSEWHERE`: it is read, and not pooled over.

    Raises:
        InputError: As `lay_windows`, and as `Tokeniser.row`.
    """
    columns = item.text_columns
    first = np.arange(len(columns))
    placed, kept_columns = lay_windows(item, first, first + 1, max_tokens=max_tokens)
    numbers = item.number_spans(spans, np.arange(len(item.ids)))
    owner = np.full(len(item.ids), -1)
    owner[columns] = placed.window_of
    windows = []
    for window, kept in enumerate(kept_columns):
        is_away = (owner[kept] >= 0) & (owner[kept] != window)
        row = tokenise.row(item, kept, is_truncated=False, spans=None if numbers is None else numbers[kept])
        windows.append(replace(row, roles=np.where(is_away, ELSEWHERE, row.roles).astype(np.int8)))
    return tuple(windows)


def _candidates(
    grid: Int[np.ndarray, " P"], starts: Int[np.ndarray, " W"], ends: Int[np.ndarray, " W"], room: int
) -> tuple[Int[np.ndarray, " W"], Int[np.ndarray, " W"]]:
    """Find the first window in which each word is whole, and in how many it is."""
    first = np.searchsorted(grid, ends - room, side="left")
    return first, np.searchsorted(grid, starts, side="right") - first


def _best_windows(
    grid: Int[np.ndarray, " P"], starts: Int[np.ndarray, " W"], ends: Int[np.ndarray, " W"], *, n_tokens: int, room: int
) -> Int[np.ndarray, " W"]:
    first, count = _candidates(grid, starts, ends, room)
    best, most = first.clip(max=len(grid) - 1), np.full(len(starts), -1)
    for step in range(int(count.max(initial=0))):
        window = (first + step).clip(max=len(grid) - 1)
        opens = grid[window]
        before = np.where(opens == 0, n_tokens, starts - opens)
        after = np.where(opens + room == n_tokens, n_tokens, opens + room - ends)
        context = np.minimum(before, after)
        is_better = (step < count) & (context > most)
        best, most = np.where(is_better, window, best), np.where(is_better, context, most)
    return best


def _with_neighbours(best: Int[np.ndarray, " W"], is_word: Bool[np.ndarray, " W"]) -> Int[np.ndarray, " W"]:
    """Assign words without a window the one of the word before, or of the first that has one; keep windows upwards."""
    if not is_word.any():
        return np.zeros_like(best)
    leading = best[is_word][0]
    return np.maximum.accumulate(np.where(is_word, best, leading))
