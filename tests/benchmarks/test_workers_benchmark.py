"""Shards that two processes wrote are compared with those of one in every array."""

from pathlib import Path

import pytest

from benchmarks.workers import require_equal
from extract.store.cache import ShardedCache
from extract.store.format import read_layout
from tests.extract.tiny_decoders import make_texts, write_shards


@pytest.mark.parametrize("name", ["/latents/mean/block_02", "/rows/n_tokens", "/rows/digest"])
def test_one_byte_is_a_difference(tmp_path: Path, name: str) -> None:
    for side in ("one", "other"):
        write_shards(tmp_path / side, make_texts(12), window=4)
    one, other = ShardedCache(tmp_path / "one"), ShardedCache(tmp_path / "other")
    assert require_equal(one, other) == 12 * 4 * 2
    damaged = tmp_path / "other" / "shard-000002.h5"
    offset = read_layout(damaged)[1][name].offset
    with damaged.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(RuntimeError, match=f"array {name} differs"):
        require_equal(one, other)


def test_other_texts_are_no_copy(tmp_path: Path) -> None:
    for side, n in (("one", 12), ("other", 8)):
        write_shards(tmp_path / side, make_texts(n), window=4)
    with pytest.raises(RuntimeError, match="different extractions"):
        require_equal(ShardedCache(tmp_path / "one"), ShardedCache(tmp_path / "other"))
