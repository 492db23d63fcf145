"""Reading words: places by text, pieces in any order of rows, plain reads of ranges, and clear refusals."""

import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.errors import CacheError, CacheIncompleteError, UnknownNameError
from extract.inputs.joined_text import WORD_CUT, WORD_LOST, WORD_SHARED, join_words
from extract.store.cache import LatentCache, find_cache
from extract.store.manifest import WordIdentity
from tests.extract.tiny_decoders import make_manifest, write_cache
from tests.extract.word_stores import Piece, make_word_manifest, write_word_cache

TEXTS = [
    join_words(["Ice", "floats", "on", "water", "."], [True, True, True, False, False]),
    join_words(["snow"], [False]),
    join_words(["one", "two", "three"], [True, True, False]),
    join_words(["snow", "ice"], [True, False]),
]
# The first text in three pieces, stored neither together nor in order.
PIECES: list[Piece] = [(0, 2, 2), (3, 0, 2), (0, 0, 2), (1, 0, 1), (0, 4, 1), (2, 0, 3)]
N_WORDS = 11


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A place for a cache."""
    return tmp_path / "a.h5"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_word_is_found_at_its_place(path: Path, dtype: str) -> None:
    latents = write_word_cache(path, TEXTS, PIECES, storage_dtype=dtype)
    cache = LatentCache(path)
    assert (cache.is_words, cache.n_words, len(cache), cache.poolings) == (True, N_WORDS, 6, ("mean", "last"))
    which = [2, 0, 0, 3, 1]
    places = cache.words_of([TEXTS[i] for i in which])
    assert places.offsets.tolist() == [0, 3, 8, 13, 15, 16]
    assert places.positions.dtype == places.offsets.dtype == np.int64
    wanted = [latents[i, word] for i in which for word in range(len(TEXTS[i].spans))]
    for p, pooling in enumerate(cache.poolings):
        gathered = cache.gather(places.positions, pooling)
        assert torch.equal(gathered, torch.stack([item[:, p] for item in wanted], dim=1))
        for k, layer in enumerate(cache.layers):
            assert torch.equal(cache.layer(layer, pooling)[places.positions].float(), gathered[k])
    assert sorted(cache.words_of(TEXTS).positions.tolist()) == list(range(N_WORDS))
    assert (len(cache.words_of([]).positions), cache.words_of([]).offsets.tolist()) == (0, [0])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["words", "texts"])
def test_ranges_are_read_as_they_are_gathered(path: Path, kind: str, dtype: str) -> None:
    if kind == "words":
        write_word_cache(path, TEXTS, PIECES, storage_dtype=dtype)
    else:
        write_cache(path, [text.text for text in TEXTS * 1], storage_dtype=dtype)
    cache = LatentCache(path)
    n_places = N_WORDS if kind == "words" else 4
    for start, stop in ((0, n_places), (1, 3), (n_places, n_places), (2, 2)):
        found = cache.read(start, stop, "last")
        assert (found.dtype, found.shape) == (torch.float32, (4, stop - start, 6))
        assert torch.equal(found, cache.gather(range(start, stop), "last"))
    assert torch.equal(cache.read(1, 4, "mean", layers="block_02"), cache.gather([1, 2, 3], "mean", layers="block_02"))
    for start, stop in ((0, n_places + 1), (-1, 2), (3, 2)):
        with pytest.raises(
            CacheError, match=rf"range {start}-{stop} is outside this cache; allowed: within 0-{n_places}"
        ):
            cache.read(start, stop, "mean")
    with pytest.raises(UnknownNameError, match="unknown pooling 'max'"):
        cache.read(0, 1, "max")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the maps of the process from /proc")
def test_reading_ranges_maps_nothing(path: Path) -> None:
    write_cache(path, [f"text {i}" for i in range(2000)], width=256)

    def n_mapped() -> int:
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
        return sum(int(end, 16) - int(start, 16) for start, end in (line[0].split("-") for line in lines))

    cache = LatentCache(path)
    before = n_mapped()
    for layer in cache.layers:
        cache.read(0, 2000, "mean", layers=layer)
    assert n_mapped() == before < 200_000
    cache.gather([1], "mean")
    assert n_mapped() > 4 * 2000 * 256 * 4  # the check above has teeth


def test_a_file_cut_while_it_is_read_is_told(path: Path) -> None:
    write_word_cache(path, TEXTS, PIECES)
    cache = LatentCache(path)
    with path.open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(CacheError, match=r"ends at byte 5000, inside an array: it was cut short"):
        cache.read(0, N_WORDS, "last", layers="final_norm")


def test_flags_and_their_report(path: Path) -> None:
    flags = np.array([0, WORD_SHARED, WORD_CUT, 0, 0, WORD_LOST, WORD_CUT | WORD_SHARED, 0, 0, 0, 0], np.uint8)
    write_word_cache(path, TEXTS, PIECES, flags=flags)
    cache = LatentCache(path)
    places = cache.words_of(TEXTS)
    assert places.flags.tolist() == flags[places.positions].tolist()
    assert places.has_latent.tolist() == [flag in (0, WORD_SHARED) for flag in places.flags]
    assert cache.word_report() == {"n_words": N_WORDS, "n_shared": 2, "n_cut": 2, "n_lost": 1, "n_windows": 1}


def test_a_text_that_is_not_there_is_named(path: Path) -> None:
    write_word_cache(path, TEXTS, PIECES)
    cache = LatentCache(path)
    message = r"does not hold these 2 words of the text 'hail rain' \(2 of 3 are missing\)"
    with pytest.raises(CacheError, match=message):
        cache.words_of([TEXTS[0], join_words(["hail", "rain"], [True, True]), join_words(["x"], [True])])
    # The same text with other words is another text.
    with pytest.raises(CacheError, match="does not hold these 1 words of the text 'snow ice'"):
        cache.words_of([join_words(["snow ice"], [True])])


def test_either_kind_refuses_the_questions_of_the_other(path: Path, tmp_path: Path) -> None:
    write_word_cache(path, TEXTS, PIECES)
    with pytest.raises(CacheError, match=r"'.*a\.h5' holds words and no whole texts; ask it with words_of"):
        LatentCache(path).rows_of(["snow"])
    write_cache(tmp_path / "b.h5", ["snow"])
    cache = LatentCache(tmp_path / "b.h5")
    with pytest.raises(CacheError, match=r"'.*b\.h5' holds whole texts and no words; ask it with rows_of"):
        cache.words_of(TEXTS[1:2])
    with pytest.raises(CacheError, match="holds whole texts and no words"):
        cache.word_report()
    assert (cache.is_words, cache.n_words) == (False, 0)


@pytest.mark.parametrize("word", [N_WORDS, -1])
def test_words_outside_are_refused(path: Path, word: int) -> None:
    write_word_cache(path, TEXTS, PIECES)
    with pytest.raises(CacheError, match=f"word {word} is outside this cache; allowed: 0 to {N_WORDS - 1}"):
        LatentCache(path).gather([0, word], "mean")
    with pytest.raises(CacheError, match="words are of dtype bool; allowed: whole numbers from 0 to 10"):
        LatentCache(path).gather([True, False], "mean")


@pytest.mark.parametrize("n_done", [0, 1, 3, 5])
def test_a_half_done_store_never_gives_a_part_of_a_text(path: Path, n_done: int) -> None:
    latents = write_word_cache(path, TEXTS, PIECES, n_done=n_done)
    with pytest.raises(CacheIncompleteError, match=f"{n_done} of 6 rows"):
        LatentCache(path)
    cache = LatentCache(path, allow_partial=True)
    for i, text in enumerate(TEXTS):
        if all((i, word) in latents for word in range(len(text.spans))):
            assert len(cache.words_of([text]).positions) == len(text.spans)
        else:
            with pytest.raises(CacheError, match=r"does not hold these|holds only some of these words"):
                cache.words_of([text])


def test_a_cache_of_words_can_be_pickled(path: Path) -> None:
    write_word_cache(path, TEXTS, PIECES)
    cache = LatentCache(path)
    expected = cache.gather(cache.words_of(TEXTS).positions, "mean")
    again = pickle.loads(pickle.dumps(cache))
    assert torch.equal(again.gather(again.words_of(TEXTS).positions, "mean"), expected)


@pytest.mark.parametrize(
    ("wanted", "is_found"),
    [
        ({}, True),
        ({"word_poolings": ["last"]}, True),
        ({"word_poolings": ["last", "mean"], "layers": ["block_02"]}, True),
        ({"word_poolings": ["first"]}, False),
        ({"word_poolings": ["mean", "first"]}, False),
        ({"layers": ["block_03"]}, False),
        ({"plan": "backward"}, False),
        ({"poolings": ["mean"]}, False),
    ],
)
def test_more_words_cover_fewer(path: Path, wanted: dict[str, Any], is_found: bool) -> None:
    write_word_cache(path, TEXTS, PIECES)
    found = find_cache(path.parent, make_word_manifest(TEXTS, len(PIECES), **wanted).identity)
    assert (found is not None) == is_found


def test_words_never_cover_texts_nor_texts_words(path: Path, tmp_path: Path) -> None:
    write_word_cache(path, TEXTS, PIECES)
    write_cache(tmp_path / "b.h5", ["snow", "ice"])
    as_texts = replace(make_word_manifest(TEXTS, len(PIECES)).identity, words=None)
    assert find_cache(tmp_path, as_texts) is None
    words = WordIdentity(("mean",), shift=False, on_lost="error", n_words=2)
    assert find_cache(tmp_path, make_manifest(["snow", "ice"], words=words).identity) is None
    assert find_cache(tmp_path, make_manifest(["snow", "ice"]).identity) is not None


def test_memory_that_is_given_is_filled_and_nothing_else(path: Path) -> None:
    write_word_cache(path, TEXTS, PIECES)
    cache = LatentCache(path)
    memory = torch.full((8, 5, 6), 7.0)
    found = cache.read(2, 5, "mean", out=memory[:4, :3])
    assert found.data_ptr() == memory.data_ptr()
    assert torch.equal(memory[:4, :3], cache.gather([2, 3, 4], "mean"))
    assert (memory[4:] == 7).all()
    assert (memory[:, 3:] == 7).all()
    refused: list[tuple[Tensor, str]] = [
        (torch.empty(4, 2, 6), r"\(4, 2, 6\) torch.float32"),
        (torch.empty(3, 3, 6), r"\(3, 3, 6\)"),
        (torch.empty(4, 3, 6, dtype=torch.float64), "torch.float64"),
        (torch.empty(4, 6, 3).transpose(1, 2), "each layer contiguous"),
        (torch.empty(4, 3, 12)[:, :, :6], "each layer contiguous"),
    ]
    for out, message in refused:
        with pytest.raises(CacheError, match=rf"the memory to fill is .*{message}"):
            cache.read(2, 5, "mean", out=out)
