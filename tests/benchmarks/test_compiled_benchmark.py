"""The benchmark of compiled blocks: time saved, start-up, and reports of failures and of changed results."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import compiled
from tests.extract.tiny_decoders import make_decoder, save_decoder


def test_rows_to_pay_by_hand() -> None:
    found = {"name": "b", "start_up_seconds": 30.0, "comparison": {"seconds": {"plain": 5.0, "b": 4.0}}}
    assert compiled.rows_to_pay(found, 100) == 3000  # a hundredth of a second saved per row
    found["comparison"] = {"seconds": {"plain": 4.0, "b": 4.0}}
    assert compiled.rows_to_pay(found, 100) is None


def test_each_way_is_compared_and_a_broken_one_says_why() -> None:
    decoder = make_decoder()
    ids = torch.tensor([[1, 5, 6]])

    def look() -> Tensor:
        states: Tensor = decoder.module(input_ids=ids).last_hidden_state
        return states

    def broken(_: torch.nn.Module) -> Any:
        raise RuntimeError("no compiler\nat all")

    ways = {
        "same": lambda block: block.forward,
        "broken": broken,
        "other": lambda block: lambda x, *args, **kwargs: 2 * block.__class__.forward(block, x, *args, **kwargs),
    }
    with torch.inference_mode():
        same, failed, other = compiled.compare_ways(decoder, ways, plain=look, run=look, look=look, repeats=2)
    assert same["largest_difference"] == 0 < other["largest_difference"]
    assert set(same["comparison"]["seconds"]) == {"plain", "same"}
    assert failed == {"name": "broken", "failed": "RuntimeError: no compiler"}
    assert not any("forward" in vars(block) for block in decoder.blocks)


def test_products_of_an_extraction_are_taken_as_they_are() -> None:
    x, weight, bias = torch.randn(2, 3, 8), torch.randn(5, 8), torch.randn(5)
    with torch.inference_mode():
        found = compiled.quick_linear(x, weight, bias)
    torch.testing.assert_close(found, torch.nn.functional.linear(x, weight, bias))
    torch.library.opcheck(compiled.quick_linear, (x, weight, None), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.long
def test_the_command_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = save_decoder(tmp_path / "tiny-llama", max_position_embeddings=256)
    monkeypatch.setattr(compiled, "WAYS", {"plain again": lambda block: block.forward})
    out = tmp_path / "compiled.json"
    compiled.main(["--decoder", str(place), "--sentences", "12", "--repeats", "1", "--out", str(out)])
    found = json.loads(out.read_text("utf-8"))
    (way,) = found["ways"]
    assert found["n_rows"] == 12
    assert way["largest_difference"] == 0
    assert "rows_to_pay" in way
