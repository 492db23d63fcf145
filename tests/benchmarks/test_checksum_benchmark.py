"""The benchmark of checksums counts their time, and leaves them out on the other side."""

import time
import zlib
from pathlib import Path
from typing import Any

import pytest

import extract.store.writer
from benchmarks import checksums
from extract.decoders.decoder import load_decoder
from extract.inputs.joined_text import join_words
from tests.extract.tiny_decoders import save_decoder

WORDS = [join_words(["ice", "is", word], [True] * 3) for word in ("cold", "old")]


@pytest.mark.parametrize("texts", [["ice", "cold ice"], WORDS])
def test_shares_are_of_the_time_of_the_extraction(texts: list[Any], tmp_path: Path) -> None:
    decoder = load_decoder(str(save_decoder(tmp_path / "tiny-llama")))
    found, shares = checksums.compare_checksums(decoder, texts, repeats=1)
    assert set(found.seconds) == {"with", "without"}
    assert 0 < shares["writing"] < 0.5
    assert shares["reading"] > 0
    assert vars(extract.store.writer)["zlib"] is zlib


def test_the_time_of_a_checksum_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: bytes) -> int:
        ends = time.thread_time() + 0.01
        while time.thread_time() < ends:
            pass
        return 7

    monkeypatch.setattr(zlib, "crc32", slow)
    timed = checksums.Timed()
    assert timed(b"a") == timed(b"b") == 7
    assert 0.02 <= timed.seconds < 1
