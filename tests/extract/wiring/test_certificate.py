"""Certificates notice decoders that do not do what was asked of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from extract.errors import CertificateError, DecoderError
from extract.masks.mask_plan import parse_plan
from extract.run.extraction import extract_latents
from extract.wiring.certificate import PlanProof, check_batch_invariance, check_influence, influence
from tests.extract.tiny_decoders import FAMILIES, make_decoder, make_texts


def attend_without(monkeypatch: pytest.MonkeyPatch, *, is_causal: bool) -> None:
    """Make SDPA forget the mask it is given, and causality too unless it is asked for."""
    attend = functional.scaled_dot_product_attention

    def forgetful(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return attend(query, key, value, **{**options, "attn_mask": None, "is_causal": is_causal})

    monkeypatch.setattr(functional, "scaled_dot_product_attention", forgetful)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_causal_and_blind_to_padding(family: str) -> None:
    decoder = make_decoder(family)
    assert check_influence(decoder, parse_plan("causal")) == PlanProof(n_tokens=6, n_layers=5)
    drift = check_batch_invariance(decoder)
    assert max(drift.left, drift.right) < 1e-5


def test_influence_of_a_causal_decoder() -> None:
    moved = influence(make_decoder(), n_tokens=5)
    assert torch.equal(moved[0], torch.eye(5, dtype=torch.bool))
    for layer in moved[1:]:
        assert torch.equal(layer, torch.ones(5, 5).tril().bool())


def test_rounding_in_many_blocks_is_no_influence() -> None:
    decoder = make_decoder(num_hidden_layers=40)
    moved = influence(decoder)
    assert not bool(moved.triu(1).any())


def test_a_bidirectional_decoder_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attend_without(monkeypatch, is_causal=False)
    decoder = make_decoder()
    message = "the plan 'causal' did not take effect: output 0 of layer block_01 depends on input 1"
    with pytest.raises(CertificateError, match=message):
        check_influence(decoder, parse_plan("causal"))
    with pytest.raises(CertificateError, match=message):
        extract_latents(decoder, make_texts(3), folder=tmp_path)


def test_a_decoder_that_looks_at_nothing_is_caught() -> None:
    decoder = make_decoder()
    for block in decoder.blocks:
        block.self_attn.o_proj.weight.data.zero_()  # type: ignore[union-attr, operator]
    with pytest.raises(CertificateError, match="output 1 of layer block_01 ignores input 0"):
        check_influence(decoder, parse_plan("causal"))


def test_attention_to_padding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    attend_without(monkeypatch, is_causal=False)
    with pytest.raises(CertificateError, match=r"latents depend on right padding: layer \w+ drifts by \d"):
        check_batch_invariance(make_decoder())


def test_padding_on_the_left_which_no_extraction_uses_is_only_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    attend_without(monkeypatch, is_causal=True)
    found = check_batch_invariance(make_decoder())
    assert found.left > found.allowed > 10 * found.right


def test_a_forward_pass_that_fails_is_a_sentence() -> None:
    decoder = make_decoder()
    fault = RuntimeError("The size of tensor a (2) must match the size of tensor b (4)")
    decoder.blocks[1].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(fault))
    message = r"forward pass of the family 'llama' fails on a batch of .* \(RuntimeError: The size of tensor a \(2\)"
    with pytest.raises(DecoderError, match=message):
        check_influence(decoder, parse_plan("causal"))


def test_memory_that_runs_out_is_not_the_fault_of_a_family() -> None:
    decoder = make_decoder()
    decoder.blocks[1].register_forward_pre_hook(
        lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("out of memory"))
    )
    with pytest.raises(torch.OutOfMemoryError):
        check_influence(decoder, parse_plan("causal"))


def test_latents_that_are_no_numbers_are_caught() -> None:
    decoder = make_decoder()
    decoder.blocks[2].register_forward_hook(lambda *call: call[2] * float("nan"))
    with pytest.raises(CertificateError, match="layer block_03 drifts by inf"):
        check_batch_invariance(decoder)


def test_windows_shorter_than_the_probes_are_kept() -> None:
    decoder = make_decoder("gpt2", n_positions=5)
    assert check_influence(decoder, parse_plan("causal")).n_tokens == 5
    assert check_batch_invariance(decoder).left < 1e-5


def test_a_vocabulary_of_three_is_enough() -> None:
    decoder = make_decoder("gpt2", vocab_size=3, bos_token_id=0, eos_token_id=0)
    assert check_influence(decoder, parse_plan("causal")).is_as_planned
