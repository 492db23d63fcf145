"""Bytes of a cache that change on the disk: the file is refused, or its numbers are the same."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from extract.errors import CacheError, CacheWarning, IcecoreError
from extract.inputs.joined_text import join_words
from extract.store.cache import LatentCache, find_cache
from tests.extract.tiny_decoders import make_manifest, make_texts, write_cache
from tests.extract.word_stores import write_word_cache
from tests.probes.fuzz.settings import bounded

TEXTS = make_texts(12)
WORDS = [join_words(text.split(), [True] * len(text.split())) for text in make_texts(4)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A cache of texts and one of words."""
    folder = tmp_path_factory.mktemp("whole")
    write_cache(folder / "texts.h5", TEXTS)
    write_word_cache(folder / "words.h5", WORDS, [(i, 0, len(text.spans)) for i, text in enumerate(WORDS)])
    return folder / "texts.h5", folder / "words.h5"


def numbers(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read all that a run reads of a cache, once it has been verified."""
    cache = LatentCache(path)
    cache.verify()
    if cache.is_words:
        places = cache.words_of(WORDS)
        rows, facts = places.positions, {"flags": places.flags, "offsets": places.offsets}
    else:
        rows = cache.rows_of(TEXTS).numpy()
        facts = {"n_tokens": cache.n_tokens[rows], "is_truncated": cache.is_truncated[rows]}
    latents = {pooling: cache.gather(rows, pooling).numpy() for pooling in cache.poolings}
    return {**facts, **latents, "layers": np.array(cache.layers), "id": np.array([cache.manifest.id])}


def assert_refused_or_same(path: Path, whole: dict[str, NDArray[np.generic]]) -> bool:
    """Whether a damaged cache is refused; if not, its numbers must be the same."""
    try:
        found = numbers(path)
    except IcecoreError:
        return True
    assert found.keys() == whole.keys()
    assert all(found[name].tobytes() == values.tobytes() for name, values in whole.items())
    return False


@bounded(75)
@given(which=st.integers(0, 1), share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_refused_or_harmless(
    stores: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory, which: int, share: float, bit: int
) -> None:
    content = bytearray(stores[which].read_bytes())
    content[int(share * len(content))] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped.h5"
    path.write_bytes(content)
    assert_refused_or_same(path, numbers(stores[which]))


def test_every_flip_in_what_was_written_is_refused(stores: tuple[Path, Path], tmp_path: Path) -> None:
    """Latents, facts of rows, checksums and certificate: none of their bytes may change unnoticed."""
    for store in stores:
        content, whole = store.read_bytes(), numbers(store)
        cache = LatentCache(store)
        refused = 0
        names = [name for name in cache._file.layouts[0] if name != "/certificate"]
        for number, name in enumerate(names):
            place = cache._file.layouts[0][name]
            flipped = bytearray(content)
            flipped[place.offset + number % place.n_bytes] ^= 1 << number % 8
            (tmp_path / "a.h5").write_bytes(flipped)
            refused += assert_refused_or_same(tmp_path / "a.h5", whole)
        spared = {"/rows/is_done"}  # another value but zero is done as well; checksums beyond a block are not read
        assert refused >= len(names) - len(spared) - 2


def test_a_flip_is_seen_when_the_cache_is_reused(stores: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    shutil.copy(stores[0], path)
    identity = make_manifest(TEXTS).identity
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_cache(tmp_path, identity) is not None
    place = LatentCache(path)._file.layouts[0]["/latents/mean/block_01"]
    content = bytearray(path.read_bytes())
    content[place.offset + 5] ^= 4
    path.write_bytes(content)
    with pytest.warns(CacheWarning, match=r"a\.h5 .* is passed over: .* 12 of 12 finished rows do not match"):
        assert find_cache(tmp_path, identity) is None
    with pytest.raises(CacheError, match="is damaged: 12 of 12 finished rows"):
        LatentCache(path).verify()
