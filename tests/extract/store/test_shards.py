"""Shards read as one cache, from a folder and from addresses."""

import functools
import json
import pickle
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from extract.errors import CacheError, CacheIdentityError, CacheIncompleteError, UnknownNameError
from extract.files import digest_json
from extract.store.cache import LatentCache, ShardedCache, open_cache
from extract.store.reader import parse_index
from tests.extract.tiny_decoders import make_texts, write_cache, write_shards

TEXTS = make_texts(23)
WINDOW = 8
ARRAY = "/latents/mean/block_01"
POOLINGS = ("mean", "last")


class Ranges(SimpleHTTPRequestHandler):
    """Serves files, and ranges of them."""

    asked: ClassVar[list[str]] = []

    def log_message(self, *_: Any) -> None:
        """Keep silent."""

    def do_GET(self) -> None:
        """Answer a request for a range of bytes, or for a whole file."""
        wanted = self.headers.get("Range")
        self.asked.append(f"{Path(self.path).name} {wanted}")
        if wanted is None:
            super().do_GET()
            return
        start, stop = (int(number) for number in re.findall(r"\d+", wanted))
        part = Path(self.translate_path(self.path)).read_bytes()[start : stop + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/*")
        self.end_headers()
        self.wfile.write(part)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[np.float32]]:
    """Three shards, read-only, and their latents."""
    folder = tmp_path_factory.mktemp("shards") / "some"
    return folder, write_shards(folder, TEXTS, window=WINDOW)


@pytest.fixture
def copied(written: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of the shards."""
    return Path(shutil.copytree(written[0], tmp_path / "copied"))


@pytest.fixture(params=["folder", "index.json", "memory", pytest.param("http", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, written: tuple[Path, Any]) -> Iterator[str | Path]:
    """The shards, in turn in a folder, by their index, in an object store in memory, and on a web server."""
    folder = written[0]
    if request.param == "folder":
        yield folder
    elif request.param == "index.json":
        yield folder / "index.json"
    elif request.param == "memory":
        store = fsspec.filesystem("memory")
        for path in folder.iterdir():
            store.pipe_file(f"/bucket/some/{path.name}", path.read_bytes())
        yield "memory://bucket/some/index.json"
        store.rm("/bucket", recursive=True)
    else:
        asked: list[str] = []
        Ranges.asked = asked
        with HTTPServer(("127.0.0.1", 0), functools.partial(Ranges, directory=str(folder.parent))) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/some"
            server.shutdown()
        assert asked.count("index.json None") == len([line for line in asked if line.startswith("index.json")])
        assert not [line for line in asked if ".h5 None" in line], "a shard was read whole"


def test_every_place_reads_alike(place: str | Path, written: tuple[Path, NDArray[np.float32]]) -> None:
    cache, latents = open_cache(place), torch.from_numpy(written[1])
    assert isinstance(cache, ShardedCache)
    assert (len(cache), cache.n_shards, cache.is_complete, cache.width) == (23, 3, True, 6)
    rows = cache.rows_of(TEXTS[::-1])
    assert rows.tolist() == list(range(22, -1, -1))
    chosen = [22, 0, 7, 8, 8, 15, 16]
    for p, pooling in enumerate(POOLINGS):
        assert torch.equal(cache.gather(chosen, pooling), latents[:, p, chosen])
        assert torch.equal(cache.gather(chosen, pooling, layers=[1, "final_norm"]), latents[[1, 3]][:, p, chosen])
        assert torch.equal(cache.read(6, 19, pooling), latents[:, p, 6:19])
        assert torch.equal(cache.layer("block_02", pooling), latents[2, p])
    assert cache.gather([], "mean").shape == (4, 0, 6)
    assert cache.read(8, 8, "mean").shape == (4, 0, 6)
    assert cache.n_tokens.tolist() == [*range(1, 9), *range(1, 9), *range(1, 8)]
    assert cache.certificate["frozen"]["is_bit_identical"]
    cache.verify()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("width", [6, 7])
def test_every_dtype_and_width(dtype: str, width: int, tmp_path: Path) -> None:
    latents = torch.from_numpy(write_shards(tmp_path, TEXTS, window=WINDOW, storage_dtype=dtype, width=width))
    cache = ShardedCache(tmp_path)
    rows = torch.randperm(23)
    assert torch.equal(cache.gather(rows, "last"), latents[:, 1, rows])
    assert torch.equal(cache.read(3, 21, "last"), latents[:, 1, 3:21])
    assert cache.layer("block_01", "last").dtype == getattr(torch, dtype)


def test_what_is_not_there_is_refused(written: tuple[Path, Any]) -> None:
    cache = ShardedCache(written[0])
    with pytest.raises(UnknownNameError, match="unknown pooling 'max'"):
        cache.gather([0], "max")
    with pytest.raises(UnknownNameError, match="unknown layer 'block_09'"):
        cache.gather([0], "mean", layers="block_09")
    with pytest.raises(CacheError, match="row 23 is outside this cache; allowed: 0 to 22"):
        cache.gather([23], "mean")
    with pytest.raises(CacheError, match="range 20-24 is outside this cache"):
        cache.read(20, 24, "mean")
    with pytest.raises(CacheError, match="does not hold the text 'Basalt'"):
        cache.rows_of(["Basalt"])
    with pytest.raises(CacheIdentityError, match="plan is 'causal', expected 'backward'"):
        ShardedCache(written[0], expected=replace(cache.identity, plan="backward"))


def test_a_text_in_several_shards_has_the_row_of_the_first(tmp_path: Path) -> None:
    write_shards(tmp_path, ["Ice.", "Snow.", "Rain.", "Ice.", "Snow.", "Hail."], window=3)
    assert ShardedCache(tmp_path).rows_of(["Snow.", "Hail.", "Ice."]).tolist() == [1, 5, 0]


def test_it_can_be_pickled(written: tuple[Path, NDArray[np.float32]]) -> None:
    cache = ShardedCache(written[0])
    before = cache.gather([20], "mean")
    found = pickle.dumps(cache)
    assert len(found) < 50_000, "latents or maps were pickled"
    assert torch.equal(pickle.loads(found).gather([20], "mean"), before)


def test_a_byte_that_changed_is_found(copied: Path) -> None:
    path = copied / "shard-000001.h5"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CacheError, match=r"shard 'shard-000001\.h5' of cache .* is damaged"):
        open_cache(copied).verify()


@pytest.mark.parametrize("read", ["gather", "read"])
def test_a_shard_that_is_gone_or_cut_is_named(read: str, copied: Path) -> None:
    """Unlike a virtual dataset, which would give its fill value."""
    path = copied / "shard-000001.h5"

    def use() -> None:
        cache = open_cache(copied)
        cache.gather([9], "mean") if read == "gather" else cache.read(0, 20, "mean")

    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(CacheError, match=r"shard-000001\.h5' ends at byte 9000, inside an array"):
        use()
    path.unlink()
    with pytest.raises(CacheError, match=r"shard-000001\.h5' cannot be read \(FileNotFoundError"):
        use()


def test_one_that_is_half_done_is_refused(copied: Path) -> None:
    index = parse_index((copied / "index.json").read_bytes(), where="here")
    index.without(2).write(copied)
    with pytest.raises(CacheIncompleteError, match="is half done: 16 rows in 2 shards, the rest is missing"):
        open_cache(copied)
    assert len(open_cache(copied, allow_partial=True)) == 16


def test_a_damaged_index_is_refused(copied: Path) -> None:
    path = copied / "index.json"
    text = path.read_text()
    assert '"plan":"causal"' in text
    path.write_text(text.replace('"plan":"causal"', '"plan":"backward"'))
    with pytest.raises(CacheError, match="is damaged: it does not match its digest"):
        open_cache(copied)
    path.write_text(text.replace('"icecore_index":1', '"icecore_index":2'))
    with pytest.raises(CacheError, match="has schema 2; this version reads schema 1"):
        open_cache(copied)
    for other in ("{}", "[]", "core", ""):
        path.write_text(other)
        with pytest.raises(CacheError, match=r"index\.json' is no index of shards"):
            open_cache(copied)
    with pytest.raises(CacheError, match=r"cannot be opened \(ValueError: Protocol not known: ice"):
        open_cache("ice://bucket/some")
    with pytest.raises(CacheError, match=r"bucket/none/index\.json' cannot be read \(FileNotFoundError"):
        open_cache("memory://bucket/none")


def test_one_file_is_opened_alike(tmp_path: Path) -> None:
    write_cache(tmp_path / "one.h5", TEXTS)
    cache = open_cache(tmp_path / "one.h5")
    assert type(cache) is LatentCache
    assert open_cache(cache) is cache


def test_the_index_says_where_arrays_are(written: tuple[Path, NDArray[np.float32]]) -> None:
    folder, latents = written
    index = json.loads((folder / "index.json").read_text())
    assert len(index["layouts"]) == 2, "shards of as many rows share one layout"
    for shard in index["shards"]:
        layout = index["layouts"][shard["layout"]]
        with h5py.File(folder / shard["file"], "r") as file:
            for name, (offset, dtype, shape) in layout.items():
                dataset: Any = file[name]
                assert (dataset.id.get_offset(), dataset.dtype, list(dataset.shape)) == (offset, np.dtype(dtype), shape)
        offset, dtype, shape = layout["/latents/last/block_01"]
        raw = np.fromfile(folder / shard["file"], dtype, shape[0] * shape[1], offset=offset).reshape(shape)
        first = shard["first_row"]
        assert (raw == latents[1, 1, first : first + shard["n_rows"]]).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda index: index["shards"][0].update(file="../../other.h5"), r"window 0 is '\.\./\.\./other\.h5'"),
        (lambda index: index["shards"][1].update(window="1"), "is not valid"),
        (lambda index: index["shards"][0].update(n_rows=9), "array /latents/.* is "),
        (lambda index: index["shards"][0].update(n_bytes=100), "end at byte .* of 100"),
        (lambda index: index["shards"][0].update(layout=7), "is not valid"),
        (
            lambda index: index["layouts"][0]["/latents/mean/block_01"].__setitem__(0, -8),
            "array /latents/mean/block_01",
        ),
        (
            lambda index: index["layouts"][0]["/latents/mean/block_01"].__setitem__(1, "|O"),
            "array /latents/mean/block_01",
        ),
        (lambda index: index["layouts"][0].pop("/rows/digest"), "/rows/digest"),
        (lambda index: index["identity"].pop("poolings"), "poolings"),
        (lambda index: index.update(shards=None), "is not valid"),
    ],
)
def test_an_index_that_a_stranger_wrote_leads_nowhere(change: Callable[[Any], Any], said: str, copied: Path) -> None:
    """Its digest is right, as whoever writes an index can make it so."""
    value = json.loads((copied / "index.json").read_text())
    change(value)
    value["digest"] = digest_json({key: each for key, each in value.items() if key != "digest"})
    (copied / "index.json").write_text(json.dumps(value))
    with pytest.raises(CacheError, match=said):
        open_cache(copied)
