"""A damaged structure of a file is noticed without HDF5, which may never return from one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from extract.errors import CacheError, CacheWarning
from extract.store import structure
from extract.store.cache import LatentCache, MeanCache, open_cache, whole_caches
from extract.store.writer import StoreWriter
from tests.extract.tiny_decoders import make_texts, write_cache, write_shards

TEXTS = make_texts(5)


def flip_heap_size(path: Path) -> None:
    """Flip one bit in the size of HDF5's heap, from which HDF5 does not return."""
    content = bytearray(path.read_bytes())
    content[content.index(b"GCOL\x01") + 9] ^= 1
    path.write_bytes(content)


def remove_seal(path: Path) -> None:
    """Make a store like those of earlier versions."""
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"\nicecore structure ")])


def test_hdf5_itself_does_not_return(tmp_path: Path) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    flip_heap_size(tmp_path / "a.h5")
    code = "import h5py, sys; f = h5py.File(sys.argv[1], locking=False); print('open', flush=True); f.attrs['manifest']"
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "a.h5")], timeout=2, capture_output=True, check=False
        )
    assert caught.value.stdout == b"open\n"


def test_a_flipped_bit_of_the_structure_is_refused_before_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    write_cache(tmp_path / "b.h5", TEXTS)
    flip_heap_size(tmp_path / "a.h5")
    opened: list[Path] = []
    ask = structure.ask_hdf5

    def note(path: Path) -> structure.Structure:
        opened.append(path)
        return ask(path)

    monkeypatch.setattr(structure, "ask_hdf5", note)
    with pytest.raises(CacheError, match=r"a\.h5' is not a readable .*\(its structure does not match the digest"):
        LatentCache(tmp_path / "a.h5")
    with pytest.warns(CacheWarning, match=r"^a\.h5 in the caches folder is passed over: .*does not match") as warned:
        assert [cache.path.name for cache in whole_caches(tmp_path)] == ["b.h5"]
    assert len(warned) == 1
    assert opened == [tmp_path / "b.h5"]


def test_every_byte_that_is_no_array_is_under_the_digest(tmp_path: Path) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    content = (tmp_path / "a.h5").read_bytes()
    places = LatentCache(tmp_path / "a.h5")._file.layouts[0].values()
    in_arrays = {k for place in places for k in range(place.offset, place.offset + place.n_bytes)}
    end = content.rindex(b"\nicecore structure ")
    others = [k for k, byte in enumerate(content[:end]) if byte and k not in in_arrays]
    assert len(others) > 2_000
    for position in [*others[::101], end + 30, len(content) - 4]:
        changed = bytearray(content)
        changed[position] ^= 4
        (tmp_path / "a.h5").write_bytes(changed)
        with pytest.raises(CacheError, match="is not a readable HDF5 file"):
            LatentCache(tmp_path / "a.h5")


def test_a_file_without_a_digest_is_asked_under_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    remove_seal(tmp_path / "a.h5")
    assert LatentCache(tmp_path / "a.h5").rows_of(TEXTS[:2]).tolist() == [0, 1]
    flip_heap_size(tmp_path / "a.h5")
    monkeypatch.setattr(structure, "SECONDS", 2.0)
    with pytest.raises(CacheError, match="HDF5 did not come to an end in 2 seconds"):
        LatentCache(tmp_path / "a.h5")


@pytest.mark.parametrize("name", ["shard-000001.h5", "index.json"])
def test_a_pipe_in_the_place_of_a_shard_is_refused(tmp_path: Path, name: str) -> None:
    write_shards(tmp_path / "s", TEXTS, window=3)
    (tmp_path / "s" / name).unlink()
    os.mkfifo(tmp_path / "s" / name)
    with pytest.raises(CacheError, match="not a plain file"):
        open_cache(tmp_path / "s" / "index.json").layer("block_01", "mean")


def test_the_second_name_that_a_kill_leaves_is_removed(tmp_path: Path) -> None:
    write_cache(tmp_path / "a.h5", TEXTS, is_whole=False)
    os.link(tmp_path / "a.h5", tmp_path / ".a.h5.new-123")
    (tmp_path / ".a.h5.new-124").write_bytes(b"the draft of somebody else")
    StoreWriter(tmp_path / "a.h5").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.h5.new-124", "a.h5"]


def test_a_mean_names_the_files_of_all_its_parts(tmp_path: Path) -> None:
    parts = []
    for name in ("a.h5", "b.h5"):
        write_cache(tmp_path / name, TEXTS)
        parts.append(LatentCache(tmp_path / name))
    mean = MeanCache(parts)
    assert mean.files == (tmp_path / "a.h5", tmp_path / "b.h5")
    assert mean.n_bytes == sum(path.stat().st_size for path in mean.files)


@pytest.mark.parametrize("ranges", [[[0, 100], [0, 100]], [[50, 100], [0, 20]], [[100, 50]]])
def test_a_seal_names_no_byte_twice(tmp_path: Path, ranges: list[list[int]]) -> None:
    """Thousands of times a whole file would be hashed for days."""
    write_cache(tmp_path / "a.h5", TEXTS)
    content = (tmp_path / "a.h5").read_bytes()
    end = content.rindex(structure.SEAL)
    seal = {"ranges": ranges, "sha256": ""}
    (tmp_path / "a.h5").write_bytes(content[:end] + structure.SEAL + json.dumps(seal).encode())
    with pytest.raises(CacheError, match="is outside the file, or was read before"):
        LatentCache(tmp_path / "a.h5")
