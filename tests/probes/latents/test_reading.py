"""Chunks: every word with a latent is read exactly once, in stretches of bounded length."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.inputs.joined_text import WORD_CUT
from extract.store.items import WordPlaces
from probes.latents.word_latents import GAP_WORDS, PIECE_WORDS, plan_chunks


def make_rows(starts: list[int], lengths: list[int], missing: set[int] = frozenset()) -> WordPlaces:  # type: ignore[assignment]
    places = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)])
    flags = np.array([WORD_CUT * (k in missing) for k in range(len(places))], dtype=np.uint8)
    return WordPlaces(places.astype(np.int64), np.cumsum([0, *lengths]), flags)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=30),
    gaps=st.lists(st.integers(0, 200), min_size=30, max_size=30),
    shown=st.lists(st.integers(0, 29), min_size=1, max_size=40),
    chunk_words=st.integers(1, 1000),
    seed=st.integers(0, 99),
)
def test_every_word_with_a_latent_is_in_one_piece_of_one_chunk(
    lengths: list[int], gaps: list[int], shown: list[int], chunk_words: int, seed: int
) -> None:
    starts = np.cumsum([0, *(n + gap for n, gap in zip(lengths, gaps, strict=False))])
    rows = [k % len(lengths) for k in shown]  # in any order, some more than once
    is_lost = np.random.default_rng(seed).random(int(starts[-1])) < 0.2  # by place: what is shown twice is lost twice
    places = np.concatenate([np.arange(starts[k], starts[k] + lengths[k]) for k in rows])
    missing = set(np.flatnonzero(is_lost[places]).tolist())
    found = make_rows([int(starts[k]) for k in rows], [lengths[k] for k in rows], missing)
    chunks = plan_chunks(found, chunk_words=chunk_words)
    read = [word for chunk in chunks for piece in chunk.pieces for word in piece]
    assert sorted(read) == np.flatnonzero(found.has_latent).tolist()
    most_words = min(chunk_words, PIECE_WORDS)
    for chunk in chunks:
        assert len(chunk) <= chunk_words
        for piece in chunk.pieces:
            assert len(piece) <= most_words
            assert chunk.start <= found.positions[piece].min()
            assert found.positions[piece].max() < chunk.stop
            sentence = np.searchsorted(found.offsets, piece, side="right")
            assert len(set(sentence.tolist())) == 1
    read_by = [set(found.positions[np.concatenate(chunk.pieces)].tolist()) for chunk in chunks]
    assert len(set().union(*read_by)) == sum(map(len, read_by))
    begins = [chunk.start for chunk in chunks]
    assert begins == sorted(begins)


def test_neighbours_are_read_together_and_far_words_apart() -> None:
    chunks = plan_chunks(make_rows([0, 10, 20, 200], [10, 10, 10, 10]), chunk_words=512)
    assert [(chunk.start, chunk.stop, len(chunk.pieces)) for chunk in chunks] == [(0, 30, 3), (200, 210, 1)]
    near = plan_chunks(make_rows([0, 10 + GAP_WORDS], [10, 10]), chunk_words=512)
    assert [(chunk.start, chunk.stop) for chunk in near] == [(0, 20 + GAP_WORDS)]
    assert len(plan_chunks(make_rows([0, 11 + GAP_WORDS], [10, 10]), chunk_words=512)) == 2


def test_equal_sentences_are_read_once_and_are_pieces_each() -> None:
    (chunk,) = plan_chunks(make_rows([30, 0, 30], [4, 5, 4]), chunk_words=512)
    assert (chunk.start, chunk.stop) == (0, 34)
    assert [piece.tolist() for piece in chunk.pieces] == [[4, 5, 6, 7, 8], [0, 1, 2, 3], [9, 10, 11, 12]]


def test_a_sentence_without_any_latent_is_in_no_chunk() -> None:
    (chunk,) = plan_chunks(make_rows([0, 3], [3, 2], {0, 1, 2}), chunk_words=512)
    assert [piece.tolist() for piece in chunk.pieces] == [[3, 4]]
    assert plan_chunks(make_rows([0], [2], {0, 1}), chunk_words=512) == []


def test_fifty_thousand_words_are_read_in_pieces() -> None:
    chunks = plan_chunks(make_rows([0], [50_000]), chunk_words=512)
    assert max(len(chunk) for chunk in chunks) <= 512
    assert sum(len(chunk.pieces) for chunk in chunks) == -(-50_000 // PIECE_WORDS)


def test_a_sentence_that_lies_in_several_places_is_cut_at_the_seams() -> None:
    places = np.array([5, 6, 7, 100, 101, 20, 21], dtype=np.int64)
    rows = WordPlaces(places, np.array([0, 7]), np.zeros(7, np.uint8))
    chunks = plan_chunks(rows, chunk_words=512)
    assert [[piece.tolist() for piece in chunk.pieces] for chunk in chunks] == [[[0, 1, 2], [5, 6]], [[3, 4]]]
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(5, 22), (100, 102)]
