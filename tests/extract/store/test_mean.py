"""Means of caches whose rows are in different orders; further tests are in `tests/extract/run/test_templates.py`."""

from pathlib import Path

import torch

from extract.files import digest_rows
from extract.inputs.joined_text import digest_texts
from extract.store.cache import LatentCache, MeanCache
from tests.extract.tiny_decoders import make_texts, write_cache


def test_rows_are_matched_by_their_texts(tmp_path: Path) -> None:
    texts = make_texts(6)
    digest = digest_rows(digest_texts(texts))
    one = torch.from_numpy(write_cache(tmp_path / "one.h5", texts))
    other = torch.from_numpy(write_cache(tmp_path / "other.h5", texts[::-1], text_digest=digest))
    mean = MeanCache([LatentCache(tmp_path / "one.h5"), LatentCache(tmp_path / "other.h5")])
    wanted = (one + other.flip(2)) / 2
    rows = mean.rows_of(texts)
    for p, pooling in enumerate(mean.poolings):
        torch.testing.assert_close(mean.gather(rows, pooling), wanted[:, p])
        torch.testing.assert_close(mean.read(1, 4, pooling), wanted[:, p, 1:4])
    assert mean.n_tokens.tolist() == [1 + 6, 2 + 5, 3 + 4, 4 + 3, 5 + 2, 6 + 1]
    assert mean.is_truncated.tolist() == [True] * 6, "one of the two is, as every other row"
