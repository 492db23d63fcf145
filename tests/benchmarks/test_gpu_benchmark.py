"""The benchmark of a GPU runs from end to end where there is none, and says that it measured no card."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu

CPU = torch.device("cpu")


def test_without_a_card_it_measures_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for given in ([], ["--quick"]):
        monkeypatch.setattr(sys, "argv", ["gpu", *given])
        with pytest.raises(SystemExit, match="no GPU was found; try the benchmark on a CPU with --quick --out FILE"):
            gpu.main()


def test_operations_by_hand() -> None:
    tiny = gpu.Shape("tiny", width=4, inner=8, n_blocks=2, n_heads=2, n_key_heads=1, vocabulary=9)
    weights = 4 * 4 + 4 * 2 + 4 * 2 + 4 * 4 + 3 * 4 * 8  # queries, keys, values, output, the MLP
    n_pairs = 10 * 6 / 2  # ten tokens in rows of six, of which a token sees half
    assert tiny.flops(10, 6) == 2 * (2 * 10 * weights + n_pairs * 2 * 2 * 4)


@pytest.mark.long
def test_every_part_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **how: Any) -> Any:
        raise RuntimeError(f"no compiler for {how}")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(gpu, "LENGTHS", (16,))
    monkeypatch.setattr(gpu, "N_BATCHES", 1)
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["gpu", "--quick", "--repeats", "1", "--out", str(out)])
    gpu.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["device"].startswith("cpu, ")
    assert found["is_of_a_card"] is False
    (each,) = found["extractions"]
    assert (each["tokens_of_a_text"], each["tokens_per_batch"]) == (16, 2048)
    assert each["tokens_per_second"] > 0
    assert each["share_of_matmul_rate"] > 0
    assert [option["failed"] for option in each["options"]] == [
        "RuntimeError: no compiler for {}",
        "RuntimeError: no compiler for {'mode': 'reduce-overhead'}",
    ]
    assert len(found["heads"]["comparisons"]) == 3
