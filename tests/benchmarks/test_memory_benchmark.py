"""The benchmark of memory runs extractions of texts and of words in processes of their own."""

from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.run import show
from tests.extract.tiny_decoders import save_decoder

pytestmark = pytest.mark.long


def test_the_peak_counts_every_byte_an_extraction_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = str(save_decoder(tmp_path / "tiny-llama", max_position_embeddings=64))
    bare = memory.peak_bytes(decoder, 3, n_made=6, of="texts")
    extraction = "    extract_latents("
    assert extraction in memory.CHILD
    monkeypatch.setattr(
        memory, "CHILD", memory.CHILD.replace(extraction, f"    held = b'x' * 400_000_000\n{extraction}")
    )
    laden = memory.peak_bytes(decoder, 3, n_made=6, of="words")
    assert laden - bare == pytest.approx(400e6, rel=0.2)


def test_growth_is_of_ten_times_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, str]] = []

    def peak(_: str, n_rows: int, *, n_made: int, of: str) -> int:
        asked.append((n_rows, n_made, of))
        return 1000 + n_rows

    monkeypatch.setattr(memory, "peak_bytes", peak)
    found = memory.memory_growth("any", n_rows=10, of="words")
    assert asked == [(10, 100, "words"), (100, 100, "words")]
    assert found == {"rows": 10, "bytes": 1010, "bytes_10x": 1100, "growth": pytest.approx(90 / 1010)}


def test_both_growths_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    results = {
        "device": "cpu",
        "decoder": {"name": "tiny", "dtype": "float32"},
        "memory": {"bytes": 1e8, "bytes_10x": 1.01e8, "growth": 0.01},
        "memory_of_words": {"bytes": 1e8, "bytes_10x": 1.2e8, "growth": 0.2},
    }
    show([], results)
    lines = capsys.readouterr().out.splitlines()
    assert ["growth of peak memory with 10x the rows" in line and "1.00%" in line for line in lines].count(True) == 1
    assert "10x the rows of words" in lines[-1]
    assert "20.00%" in lines[-1]
