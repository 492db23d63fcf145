"""What other programs read of a cache is what the cache holds."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open

from extract.errors import CacheError, ConfigError, InputError, UnknownNameError
from extract.inputs.joined_text import WORD_CUT, WORD_SHARED
from extract.store import writer as exports
from extract.store.cache import LatentCache
from tests.extract.tiny_decoders import write_cache
from tests.extract.word_stores import words, write_word_cache

TEXTS = ["ice", "snow", "water", "fog", "rain"]
SENTENCES = [words(["the", "ice", "melts"]), words(["snow"])]
FLAGS = np.array([0, WORD_SHARED, WORD_CUT, 0], np.uint8)


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> LatentCache:
    path = tmp_path / "texts.h5"
    write_cache(path, TEXTS, storage_dtype=request.param)
    return LatentCache(path)


@pytest.fixture
def word_cache(tmp_path: Path) -> LatentCache:
    path = tmp_path / "words.h5"
    # The pieces are stored in another order than the texts come in.
    write_word_cache(path, SENTENCES, [(1, 0, 1), (0, 0, 2), (0, 2, 1)], flags=FLAGS[[3, 0, 1, 2]])
    return LatentCache(path)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "BLOCK_BYTES", 600)


def latents_of(cache: LatentCache, name: str) -> np.ndarray:
    pooling, layer = name.split("/")
    return cache.layer(layer, pooling).float().numpy()


def names(cache: LatentCache) -> list[str]:
    return [f"{pooling}/{layer}" for pooling in cache.poolings for layer in cache.layers]


def test_arrays_and_datasets_hold_what_the_cache_holds(cache: LatentCache) -> None:
    found = cache.to_dataset().with_format("numpy")
    assert len(found) == len(TEXTS)
    for name in names(cache):
        pooling, layer = name.split("/")
        np.testing.assert_array_equal(found[:][name].astype(np.float32), latents_of(cache, name))
        np.testing.assert_array_equal(cache.to_numpy(layer, pooling).astype(np.float32), latents_of(cache, name))
    with pytest.raises(CacheError, match=r"2 poolings \(mean, last\)"):
        cache.to_numpy("block_01")


def test_a_dataset_of_all_rows_copies_nothing(cache: LatentCache) -> None:
    if cache.storage_dtype == "bfloat16":
        pytest.skip("Arrow has no bfloat16, so it is converted")
    name = names(cache)[0]
    table = cache.to_dataset().data.table
    pooling, layer = name.split("/")
    assert table[name].chunk(0).values.buffers()[1].address == cache.layer(layer, pooling).data_ptr()


def test_texts_choose_and_order_the_rows(cache: LatentCache) -> None:
    asked = ["rain", "ice", "rain"]
    found = cache.to_dataset(layers=-1, poolings=["last"], texts=asked)
    assert found["text"][:] == asked
    name = f"last/{cache.layers[-1]}"
    assert [column for column in found.column_names if "/" in column] == [name]
    expected = latents_of(cache, name)[cache.rows_of(asked).numpy()]
    np.testing.assert_array_equal(np.array(found[name][:], np.float32), expected)
    frame = cache.to_frame(asked)
    assert frame["text"].tolist() == asked
    assert frame["text_id"][0] == frame["text_id"][2] != frame["text_id"][1]
    np.testing.assert_array_equal(frame["n_tokens"], cache.n_tokens[cache.rows_of(asked).numpy()])


@pytest.mark.usefixtures("small_blocks")
def test_parquet_and_arrow_files_are_read_back_by_datasets(cache: LatentCache, tmp_path: Path) -> None:
    parquet, arrow = (cache.export(tmp_path / f"latents.{each}") for each in ("parquet", "arrow"))
    read: Any = pq.ParquetFile(parquet)
    assert read.num_row_groups > 1, "one block holds everything"
    assert json.loads(read.schema_arrow.metadata[b"icecore"]) == cache.identity.to_plain()
    for table in (read.read(), datasets.Dataset.from_file(str(arrow)).data.table):
        for name in names(cache):
            stored = np.concatenate([chunk.flatten().to_numpy() for chunk in table[name].chunks])
            np.testing.assert_array_equal(stored.astype(np.float32), latents_of(cache, name).ravel())
        assert table["text_id"].to_pylist() == cache.to_frame()["text_id"].tolist()


@pytest.mark.usefixtures("small_blocks")
def test_safetensors_keep_the_stored_dtype_bit_for_bit(cache: LatentCache, tmp_path: Path) -> None:
    path = cache.export(tmp_path / "latents.safetensors", layers="blocks")
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["icecore"]) == cache.identity.to_plain()
        latents = [key for key in list(file.keys()) if "/" in key]
        assert sorted(latents) == sorted(name for name in names(cache) if "/block_" in name)
        for name in latents:
            pooling, layer = name.split("/")
            assert torch.equal(file.get_tensor(name), cache.layer(layer, pooling))
        assert file.get_tensor("n_tokens").tolist() == cache.n_tokens.tolist()


def test_words_come_with_their_number_and_flags(word_cache: LatentCache, tmp_path: Path) -> None:
    frame = word_cache.to_frame(SENTENCES)
    assert frame["word"].tolist() == ["the", "ice", "melts", "snow"]
    assert frame["word_number"].tolist() == [0, 1, 2, 0]
    assert frame["has_latent"].tolist() == [True, True, False, True]
    assert frame["is_shared"].tolist() == [False, True, False, False]
    places = word_cache.words_of(SENTENCES).positions
    stored = word_cache.to_frame()
    assert stored["text_id"].to_numpy()[places].tolist() == frame["text_id"].tolist()
    found = pq.read_table(word_cache.export(tmp_path / "words.parquet", texts=SENTENCES))
    for name in names(word_cache):
        np.testing.assert_array_equal(np.stack(found[name].to_numpy()), latents_of(word_cache, name)[places])


def test_plain_texts_are_not_looked_up_among_words(word_cache: LatentCache) -> None:
    with pytest.raises(CacheError, match=f"does not hold the text {SENTENCES[0].text!r}"):
        word_cache.to_frame([SENTENCES[0].text])


def test_memory_stays_that_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "texts.h5"
    write_cache(path, [f"text {i}" for i in range(1000)], width=256)
    cache = LatentCache(path)
    size = cache.layer("block_01", "mean").nbytes * len(names(cache))
    monkeypatch.setattr(exports, "BLOCK_BYTES", size // 50)
    before = pa.total_allocated_bytes()
    read = 0

    class Counting(exports.Selection):
        def read(self, start: int, stop: int, pooling: str, layer: str) -> torch.Tensor:
            nonlocal read
            found = super().read(start, stop, pooling, layer)
            assert found.nbytes <= exports.BLOCK_BYTES
            read += found.nbytes
            return found

    tracemalloc.start()
    exports.export_cache(Counting(cache), tmp_path / "latents.safetensors")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == size
    assert peak < size / 4
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("suffix", exports.WRITERS)
def test_no_texts_are_no_file(cache: LatentCache, tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InputError, match="there are no texts to export; give at least one"):
        cache.export(tmp_path / f"a{suffix}", texts=[])
    assert not (tmp_path / f"a{suffix}").exists()


def test_other_suffixes_poolings_and_folders_are_refused(cache: LatentCache, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"'\.npz'.*\.parquet, \.arrow, \.safetensors"):
        cache.export(tmp_path / "latents.npz")
    with pytest.raises(UnknownNameError, match="'median'"):
        cache.to_dataset(poolings=["median"])
    with pytest.raises(ConfigError, match="cannot be written"):
        cache.export(tmp_path / "missing" / "latents.parquet")
    with pytest.raises(CacheError, match="'hail'"):
        cache.export(tmp_path / "latents.parquet", texts=["hail"])
    assert list(tmp_path.iterdir()) == [cache.path], "a refused export left something behind"
