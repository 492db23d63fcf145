"""Windows over a long text: every word that fits is whole in one, where it has most context."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.inputs.tokens import PlacedWords, place_words


def place(words: list[tuple[int, int]], n_tokens: int, room: int) -> PlacedWords:
    """Place words given as pairs of tokens."""
    starts, ends = np.array(words, np.int64).reshape(-1, 2).T
    return place_words(starts, ends, n_tokens=n_tokens, room=room)


def context(start: int, end: int, opens: int, *, n_tokens: int, room: int) -> int:
    """Count the tokens before or after a word in a window, whichever is less; -1 where it is not whole there."""
    if not opens <= start <= end <= opens + room:
        return -1
    before = n_tokens if opens == 0 else start - opens
    after = n_tokens if opens + room == n_tokens else opens + room - end
    return min(before, after)


@st.composite
def long_texts(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int, int]:
    """Draw words over tokens, some without any, some sharing one with the word before; and a smaller room."""
    words: list[tuple[int, int]] = []
    end = 0
    for length in draw(st.lists(st.integers(0, 7), min_size=1, max_size=40)):
        start = max(0, end - draw(st.sampled_from([0, 0, 0, 1, -1])))
        if length:
            end = max(start, end - 1) + length
        words.append((start, end) if length and start < end else (0, 0))
    n_tokens = end + draw(st.integers(2, 5))
    return words, n_tokens, draw(st.integers(1, n_tokens - 1))


@settings(max_examples=300, deadline=None, database=None)
@given(long_texts())
def test_every_word_that_fits_is_whole_where_it_has_most_context(case: tuple[list[tuple[int, int]], int, int]) -> None:
    words, n_tokens, room = case
    placed = place(words, n_tokens, room)
    assert placed.is_whole.tolist() == [0 < end - start <= room for start, end in words]
    assert (np.diff(placed.starts) > 0).all()
    assert placed.starts[0] >= 0
    assert placed.starts[-1] <= n_tokens - room
    assert (np.diff(placed.window_of) >= 0).all()
    assert np.unique(placed.window_of).tolist() == list(range(len(placed.starts)))
    for (start, end), window, is_whole in zip(words, placed.window_of, placed.is_whole, strict=True):
        if is_whole:
            every = [context(start, end, int(opens), n_tokens=n_tokens, room=room) for opens in placed.starts]
            assert every[window] == max(every)
            assert every[window] >= (room - (end - start) - room // 2) // 2 - 1


def test_a_text_is_covered_in_steps_of_half_a_window() -> None:
    placed = place([(i, i + 1) for i in range(20)], 20, 8)
    assert placed.starts.tolist() == [0, 4, 8, 12]
    # The borders of the text cost no context: its first and last words go with the outer windows.
    assert placed.window_of.tolist() == [0] * 6 + [1] * 4 + [2] * 4 + [3] * 6


def test_a_word_across_the_borders_of_all_windows_has_one_of_its_own() -> None:
    placed = place([(0, 1), (3, 9), (19, 20)], 20, 8)
    assert placed.starts.tolist() == [0, 2, 12]
    assert placed.is_whole.tolist() == [True, True, True]


def test_a_word_longer_than_a_window_is_cut_and_goes_with_its_neighbours() -> None:
    placed = place([(0, 2), (2, 12), (0, 0), (12, 14)], 14, 4)
    assert placed.is_whole.tolist() == [True, False, False, True]
    assert placed.starts.tolist() == [0, 10]
    assert placed.window_of.tolist() == [0, 0, 0, 1]


def test_words_before_the_first_that_fits_go_with_it() -> None:
    placed = place([(0, 0), (0, 12), (12, 14)], 14, 4)
    assert (placed.starts.tolist(), placed.window_of.tolist()) == ([10], [0, 0, 0])
    placed = place([(0, 0), (0, 14)], 14, 4)
    assert (placed.starts.tolist(), placed.window_of.tolist()) == ([0], [0, 0])
    assert not placed.is_whole.any()
