"""Reading: views without copies, rows by text, shared with workers, and no heavy import."""

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from extract.errors import CacheError, CacheIdentityError, UnknownNameError
from extract.store.cache import LatentCache
from tests.extract.tiny_decoders import make_manifest, make_texts, write_cache

TEXTS = make_texts(24)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A place for a cache."""
    return tmp_path / "a.h5"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_layers_and_gathers_agree(path: Path, dtype: str) -> None:
    latents = torch.from_numpy(write_cache(path, TEXTS, storage_dtype=dtype))
    cache = LatentCache(path)
    assert (len(cache), cache.width, cache.storage_dtype, cache.poolings) == (24, 6, dtype, ("mean", "last"))
    assert repr(cache).splitlines()[0] == f"<cache a.h5: 24 texts, 4 layers, mean+last, {dtype}"
    rows = [5, 0, 23, 5]
    for p, pooling in enumerate(cache.poolings):
        gathered = cache.gather(rows, pooling)
        assert (gathered.dtype, gathered.shape) == (torch.float32, (4, 4, 6))
        assert torch.equal(gathered, latents[:, p, rows])
        for k, layer in enumerate(cache.layers):
            view = cache.layer(layer, pooling)
            assert view.dtype == getattr(torch, dtype)
            assert torch.equal(view.float(), latents[k, p])
            assert torch.equal(view[rows].float(), gathered[k])
    assert torch.equal(cache.gather(torch.tensor(rows), "last", layers="blocks"), latents[1:3, 1, rows])
    assert torch.equal(cache.gather(np.array(rows), "last", layers=["final_norm"]), latents[3:, 1, rows])
    assert cache.gather([], "mean").shape == (4, 0, 6)


def test_a_layer_is_a_view_and_writing_to_it_harms_nothing(path: Path) -> None:
    write_cache(path, TEXTS)
    before = path.read_bytes()
    cache = LatentCache(path)
    view = cache.layer("block_01", "mean")
    assert view.data_ptr() == cache.layer("block_01", "mean").data_ptr()
    assert view.untyped_storage().nbytes() == 24 * 6 * 4
    view.fill_(9)
    assert bool((cache.layer("block_01", "mean") == 9).all())  # one memory, so no copy was made
    assert path.read_bytes() == before
    assert not bool((LatentCache(path).layer("block_01", "mean") == 9).any())


def test_what_is_known_of_rows(path: Path) -> None:
    write_cache(path, TEXTS)
    cache = LatentCache(path)
    assert cache.n_tokens.tolist() == list(range(1, 25))
    assert cache.is_truncated.tolist() == [False, True] * 12
    assert cache.certificate == {"frozen": {"is_bit_identical": True}}


def test_rows_of_texts(path: Path) -> None:
    write_cache(path, TEXTS)
    cache = LatentCache(path)
    assert cache.rows_of([TEXTS[7], TEXTS[0], TEXTS[7]]).tolist() == [7, 0, 7]
    assert cache.rows_of(TEXTS).tolist() == list(range(24))
    assert cache.rows_of([]).tolist() == []
    with pytest.raises(CacheError, match=r"does not hold the text 'not there' \(2 of 3 are missing\)"):
        cache.rows_of([TEXTS[0], "not there", TEXTS[1] + " "])


def test_undone_rows_are_not_found(path: Path) -> None:
    write_cache(path, TEXTS, is_whole=False)
    cache = LatentCache(path, allow_partial=True)
    assert (cache.n_done, cache.is_complete, cache.certificate) == (23, False, {})
    assert cache.rows_of(TEXTS[:23]).tolist() == list(range(23))
    with pytest.raises(CacheError, match=r"\(1 of 1 are missing\)"):
        cache.rows_of(TEXTS[23:])


@pytest.mark.parametrize("row", [24, -1, 1000])
def test_rows_outside_are_refused(path: Path, row: int) -> None:
    write_cache(path, TEXTS)
    with pytest.raises(CacheError, match="the rows have 2 dimensions; allowed: one, as a list of positions"):
        LatentCache(path).gather(np.argwhere([True, False, True]), "mean")
    with pytest.raises(CacheError, match=f"row {row} is outside this cache; allowed: 0 to 23"):
        LatentCache(path).gather([0, row], "mean")


def test_a_mask_is_no_list_of_rows(path: Path) -> None:
    write_cache(path, TEXTS)
    with pytest.raises(CacheError, match="rows are of dtype bool; allowed: whole numbers from 0 to 23"):
        LatentCache(path).gather([True, False], "mean")


def test_unknown_names_get_the_nearest_match(path: Path) -> None:
    write_cache(path, TEXTS)
    cache = LatentCache(path)
    with pytest.raises(UnknownNameError, match="unknown layer 'block_2': did you mean 'block_02'"):
        cache.layer("block_2", "mean")
    with pytest.raises(UnknownNameError, match=r"unknown pooling 'max'.* Allowed: mean, last\. Extract it"):
        cache.layer("block_02", "max")
    with pytest.raises(UnknownNameError, match="unknown layer 'final_nrm': did you mean 'final_norm'"):
        cache.gather([0], "mean", layers="final_nrm")


def test_another_identity_is_refused(path: Path) -> None:
    write_cache(path, TEXTS)
    assert len(LatentCache(path, expected=make_manifest(TEXTS).identity)) == 24
    wanted = make_manifest(TEXTS, weight_digest="ef" * 32, plan="backward").identity
    with pytest.raises(
        CacheIdentityError, match=r"decoder\.weight_digest is 'ab.*; plan is 'causal', expected 'backward'"
    ):
        LatentCache(path, expected=wanted)


def test_a_cache_can_be_pickled(path: Path) -> None:
    latents = write_cache(path, TEXTS)
    cache = LatentCache(path)
    cache.gather(list(range(24)), "mean")
    cache.rows_of(TEXTS)
    packed = pickle.dumps(cache)
    assert len(packed) < latents.nbytes + 4000
    again = pickle.loads(packed)
    assert np.array_equal(again.gather([3, 1], "last").numpy(), latents[:, 1, [3, 1]])
    assert again.rows_of(TEXTS[4:5]).tolist() == [4]


class Rows(Dataset[tuple[int, Tensor]]):
    """Rows of a cache for a DataLoader."""

    def __init__(self, cache: LatentCache) -> None:
        self.cache = cache

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, row: int) -> tuple[int, Tensor]:
        return row, self.cache.gather([row], "mean")[:, 0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_read_the_right_rows(path: Path, start: str) -> None:
    latents = torch.from_numpy(write_cache(path, TEXTS))[:, 0]
    cache = LatentCache(path)
    assert torch.equal(cache.gather([0], "mean"), latents[:, :1])  # the map is open before the fork
    loader: DataLoader[Any] = DataLoader(Rows(cache), batch_size=4, num_workers=2, multiprocessing_context=start)
    seen = []
    for rows, values in loader:
        assert torch.equal(values, latents[:, rows].transpose(0, 1))
        seen += rows.tolist()
    assert seen == list(range(24))


def test_reading_needs_no_decoder(path: Path) -> None:
    write_cache(path, TEXTS)
    code = (
        "import sys; from extract import LatentCache; cache = LatentCache(sys.argv[1]); cache.gather([1], 'mean');"
        "heavy = {'transformers', 'tokenizers', 'lightning', 'datasets'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_array_of_a_cache_needs_its_texts(path: Path) -> None:
    write_cache(path, TEXTS)
    cache = LatentCache(path)
    with pytest.raises(CacheError, match=r"'a.h5' was opened from its file, which holds no texts"):
        np.asarray(cache)
    with pytest.raises(CacheError, match="has the poolings mean, last, which are no single array"):
        np.asarray(cache.with_texts(TEXTS))
    shown = cache.shown_as(replace(cache.identity, poolings=("mean",))).with_texts([TEXTS[3], TEXTS[0], TEXTS[3]])
    expected = cache.gather(cache.rows_of([TEXTS[3], TEXTS[0], TEXTS[3]]), "mean").numpy()
    np.testing.assert_array_equal(np.asarray(shown), expected)
    assert np.asarray(shown, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="leave copy=False out"):
        np.array(shown, copy=False)
    with pytest.raises(CacheError, match="was opened from its file"):  # no texts go to a worker
        np.asarray(pickle.loads(pickle.dumps(shown)))


def test_a_layer_has_a_number(path: Path) -> None:
    write_cache(path, TEXTS)
    cache = LatentCache(path)
    for number, name in ((0, cache.layers[0]), (-1, cache.layers[-1]), (np.int64(1), "block_01")):
        assert torch.equal(cache.layer(number, "mean"), cache.layer(name, "mean"))
        np.testing.assert_array_equal(cache.to_numpy(number, "mean"), cache.to_numpy(name, "mean"))
    with pytest.raises(UnknownNameError, match="layer 9 is not there"):
        cache.layer(9, "mean")
    with pytest.raises(UnknownNameError, match="layer 'all' names 4 layers; allowed: one"):
        cache.layer("all", "mean")


def test_a_cache_prints_itself_in_a_notebook(path: Path) -> None:
    write_cache(path, TEXTS)
    html = LatentCache(path)._repr_html_()
    assert "<b>Cache a.h5</b>" in html
    assert "<th>texts</th><td>24, 12 texts truncated</td>" in html
    assert len(repr(LatentCache(path)).splitlines()) == 2


def test_a_cache_says_which_texts_it_holds(path: Path) -> None:
    write_cache(path, TEXTS)
    assert LatentCache(path).holds([TEXTS[2], "another", TEXTS[0]]).tolist() == [True, False, True]
