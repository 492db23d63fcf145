"""Gathering leaves no more of a file mapped than it may, and gives the same rows as before."""

import pickle
import sys
from pathlib import Path

import pytest
import torch

from extract.store import reader
from extract.store.cache import LatentCache, open_cache
from tests.extract.tiny_decoders import make_texts, write_cache, write_shards

N_ROWS, WIDTH = 2000, 512
ALLOWED = 2 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="counts pages in /proc")


def mapped_bytes(folder: Path) -> int:
    """Bytes of the files of a folder that are resident in this process."""
    found, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            is_inside = str(folder) in line
        elif is_inside and first == "Rss:":
            found += int(line.split()[1]) * 1024
    return found


def make_cache(folder: Path, kind: str) -> LatentCache:
    texts = make_texts(N_ROWS)
    if kind == "one file":
        write_cache(folder / "one.h5", texts, width=WIDTH)
        return open_cache(folder / "one.h5")
    write_shards(folder / "many", texts, window=500, width=WIDTH)
    return open_cache(folder / "many")


@linux
@pytest.mark.parametrize("kind", ["one file", "shards"])
def test_pages_are_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    cache = make_cache(tmp_path, kind)
    whole = torch.stack([cache.layer(name, "mean").clone() for name in cache.layers])
    cache = pickle.loads(pickle.dumps(cache))  # one that has nothing mapped
    chance = torch.Generator().manual_seed(0)

    def gather_often() -> int:
        most = 0
        for k in range(50):
            rows = torch.randint(N_ROWS, (4,), generator=chance)
            assert torch.equal(cache.gather(rows, "mean"), whole[:, rows])
            most = max(most, mapped_bytes(tmp_path) if k % 5 == 0 else 0)
        return most

    gather_often()  # a small cache stays mapped
    assert mapped_bytes(tmp_path) > 2 * ALLOWED
    monkeypatch.setattr(reader, "MAPPED_BYTES", ALLOWED)
    for _ in range(3):
        cache.gather(list(range(100)), "mean")  # more than may stay
    assert gather_often() < 2 * ALLOWED, "pages of rows read long ago are still there"


@pytest.mark.parametrize("kind", ["one file", "shards"])
def test_rows_close_together_are_read_and_not_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    cache = make_cache(tmp_path, kind)
    rows = torch.cat([torch.arange(990, 1100, 2).flip(0), torch.tensor([1010, 490, 510])])
    whole = torch.stack([cache.layer(name, "mean").clone() for name in cache.layers])

    def refuse(*_: object) -> None:
        raise AssertionError("the file was mapped")

    some = rows[:-2]
    with monkeypatch.context() as patched:
        patched.setattr(reader.RowMaps, "map", refuse)
        assert torch.equal(cache.gather(some, "mean"), whole[:, some])
        with pytest.raises(AssertionError, match="was mapped"):
            cache.gather([0, 400], "mean")
    assert torch.equal(cache.gather(rows, "mean"), whole[:, rows])
    assert cache.gather([], "mean").shape == (len(whole), 0, WIDTH)


def test_a_changed_view_is_none_of_what_is_gathered(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, "one file")
    before = cache.gather([3], "mean")
    cache.layer(cache.layers[0], "mean")[3] = 7.0
    assert torch.equal(cache.gather([3], "mean"), before)


@linux
def test_few_files_are_open_at_once_however_many_shards_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MOST_MAPS", 3)
    texts = make_texts(40)
    write_shards(tmp_path / "many", texts, window=4)
    cache = open_cache(tmp_path / "many")
    whole = torch.stack([cache.layer(name, "mean").clone() for name in cache.layers])

    def n_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = n_open()
    for _ in range(2):
        rows = cache.rows_of(texts[::3])
        assert torch.equal(cache.gather(rows, "mean"), whole[:, rows])
    assert n_open() - before <= 4
