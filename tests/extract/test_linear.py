"""Linear maps through oneDNN give what PyTorch gives, and only where they are asked for."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from extract import linear
from extract.linear import QuickLinear, bfloat16_gain, has_quick_linear, round_rows
from extract.masks.mask_plan import parse_plan
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import sweep_latents
from tests.extract.tiny_decoders import SENTENCES, encode_batch, make_decoder

needs_quick = pytest.mark.skipif(not has_quick_linear(), reason="no AVX-512 or no oneDNN: PyTorch's own products serve")


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the weights that went through oneDNN, in turn."""
    has_quick_linear()  # its own trial does not count
    seen: list[tuple[int, ...]] = []
    plain = linear.quick_product

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(tuple(weight.shape))
        return plain(x, weight, bias)

    monkeypatch.setattr(linear, "quick_product", noted)
    return seen


@needs_quick
@pytest.mark.parametrize("shape", [(7, 33), (2, 5, 33), (2, 1, 4, 33)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_linear_map_equals_pytorchs(shape: tuple[int, ...], has_bias: bool, products: list[tuple[int, ...]]) -> None:
    module, x = nn.Linear(33, 65, bias=has_bias), torch.randn(shape)
    with torch.no_grad():
        expected = module(x)
        with QuickLinear():
            found = module(x)
    assert products == [(65, 33)]
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@needs_quick
def test_a_transposed_input_equals_pytorchs(products: list[tuple[int, ...]]) -> None:
    module, x = nn.Linear(6, 9), torch.randn(6, 4).t()
    with torch.no_grad(), QuickLinear():
        found = module(x)
    assert products == [(9, 6)]
    torch.testing.assert_close(found, x @ module.weight.t() + module.bias, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("n", "rounded"), [(1, 1), (15, 15), (17, 18), (1024, 1024), (1025, 1152), (2047, 2048)])
def test_few_numbers_of_rows_are_left(n: int, rounded: int) -> None:
    assert round_rows(n) == rounded
    assert len({round_rows(k) for k in range(1024, 2048)}) == 9
    assert all(k <= round_rows(k) <= 9 * k / 8 for k in range(1, 5000))


@needs_quick
@pytest.mark.parametrize("has_bias", [True, False])
def test_rows_in_many_numbers_are_filled_up_to_few(has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    has_quick_linear()
    plain, seen = linear.quick_product, set()

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.add(x.shape[0])
        return plain(x, weight, bias)

    monkeypatch.setattr(linear, "quick_product", noted)
    module = nn.Linear(33, 65, bias=has_bias)
    with torch.no_grad():
        for n in range(65, 96):
            x = torch.randn(n, 33)
            with QuickLinear(varied=True):
                alone, in_rows = module(x), module(x.unsqueeze(1))
            torch.testing.assert_close(alone, module(x), atol=1e-5, rtol=1e-5)
            assert alone.is_contiguous()
            assert in_rows.shape == (n, 1, 65)
            torch.testing.assert_close(in_rows[:, 0], alone)
    assert seen == {72, 80, 88, 96}


@needs_quick
def test_gradients_and_other_kinds_of_tensors_take_pytorchs_way(products: list[tuple[int, ...]]) -> None:
    module = nn.Linear(8, 4)
    with QuickLinear():
        module(torch.randn(3, 8)).sum().backward()
        with torch.no_grad():
            module(torch.randn(8))
            module(torch.randn(0, 8))
            nn.Linear(8, 4, dtype=torch.bfloat16)(torch.randn(3, 8, dtype=torch.bfloat16))
            torch.addmm(torch.randn(3, 4), torch.randn(3, 8), torch.randn(8, 4))
    assert module.weight.grad is not None
    assert products == []


@needs_quick
def test_other_threads_and_what_follows_are_untouched(products: list[tuple[int, ...]]) -> None:
    module, x = nn.Linear(8, 4), torch.randn(3, 8)
    with torch.no_grad(), QuickLinear(), ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: module(x).detach()).result()
    with torch.no_grad():
        module(x)
    assert products == []


@needs_quick
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_linear_map_of_a_decoder_goes_this_way(family: str, products: list[tuple[int, ...]]) -> None:
    from transformers.pytorch_utils import Conv1D

    decoder = make_decoder(family)
    maps = [m for m in decoder.module.modules() if isinstance(m, nn.Linear | Conv1D)]
    latents = decoder_latents(decoder)
    assert len(products) == len(maps) > 0
    assert torch.isfinite(latents).all()


@needs_quick
@pytest.mark.parametrize("plans", [["causal"], ["causal", "bidirectional:1", "backward:2"]])
def test_no_extraction_computes_rows_in_every_number(
    plans: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_quick_linear()
    plain, seen = linear.quick_product, set()

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.add(x.numel() // x.shape[-1])
        return plain(x, weight, bias)

    monkeypatch.setattr(linear, "quick_product", noted)
    texts = [" ".join(["a", "bcd", "e"] * n) + str(k) for n in range(1, 9) for k in range(n)]
    decoder, spec = make_decoder(), ExtractionSpec(batch_tokens=300)
    if len(plans) == 1:
        extract_latents(decoder, texts, spec=spec, folder=tmp_path)
    else:
        sweep_latents(decoder, texts, [parse_plan(plan) for plan in plans], spec=spec, folder=tmp_path)
    assert {round_rows(n) for n in seen} == seen
    assert max(seen) > 16  # up to there every number is its own rounding


def decoder_latents(decoder: object) -> Tensor:
    """Pool every layer of a padded batch."""
    from extract.decoders.decoder import Decoder
    from extract.wiring.states import pool_batch

    assert isinstance(decoder, Decoder)
    return pool_batch(decoder, encode_batch(decoder, SENTENCES), poolings=("mean",), layers=decoder.layers)


@needs_quick
def test_it_can_be_switched_off(products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    decoder_latents(make_decoder())
    assert products == []


def test_without_onednn_the_decoder_computes_as_pytorch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_decoder()
    quick = decoder_latents(decoder)
    monkeypatch.setattr(linear, "has_quick_linear", lambda: False)
    torch.testing.assert_close(decoder_latents(decoder), quick, atol=1e-5, rtol=1e-5)


def test_an_operator_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(linear, "quick_product", lambda x, weight, _=None: torch.zeros(*x.shape[:-1], len(weight)))
    assert not has_quick_linear.__wrapped__()


def test_a_build_without_the_operator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Tensor:
        raise AttributeError("_linear_pointwise")

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(linear, "quick_product", missing)
    assert not has_quick_linear.__wrapped__()


def test_a_processor_without_avx512_keeps_pytorchs_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not has_quick_linear.__wrapped__()


def test_the_gain_of_bfloat16_is_measured_only_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(64, 32)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True, "avx2": True})
    gain = bfloat16_gain(weight, n_rows=8, repeats=1)
    assert gain is not None
    assert gain > 0
    assert bfloat16_gain(weight.bfloat16()) is None
    assert bfloat16_gain(weight.to("meta")) is None
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False, "avx2": True})
    assert bfloat16_gain(weight) is None


def test_the_gain_of_bfloat16_is_that_of_the_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    ticks = iter([0, 9, 0, 1, *[0, 3, 0, 2] * 3])  # the first pair is not counted
    monkeypatch.setattr("extract.linear.time.perf_counter", lambda: next(ticks))
    assert bfloat16_gain(torch.randn(64, 32), n_rows=8, repeats=3) == 1.5
