"""Commands that read a cache by its file say nothing of a damaged one."""

from pathlib import Path

import pytest

from extract.errors import CacheError
from extract.store.cache import LatentCache
from probes.runs.run_caches import open_named
from tests.extract.tiny_decoders import make_texts, write_cache


def test_a_flipped_latent_is_refused(tmp_path: Path) -> None:
    write_cache(tmp_path / "a.h5", make_texts(5))
    assert len(open_named(tmp_path / "a.h5")) == 5
    content = bytearray((tmp_path / "a.h5").read_bytes())
    content[LatentCache(tmp_path / "a.h5")._file.layouts[0]["/latents/mean/block_01"].offset + 9] ^= 1
    (tmp_path / "a.h5").write_bytes(content)
    with pytest.raises(CacheError, match="damaged"):
        open_named(tmp_path / "a.h5")
