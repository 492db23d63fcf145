"""Causal language models: logits of chosen states are the model's own, and losses in chunks equal whole ones."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModel

from extract.errors import DecoderError
from extract.wiring.plan_wiring import states_with_gradients
from probes.adaptation import objectives
from probes.adaptation.objectives import LanguageModel, load_language_model
from tests.extract.tiny_decoders import FAMILIES, SENTENCES, encode_batch, make_model, make_tokenizer, save_decoder


def make(family: str) -> LanguageModel:
    return load_language_model(make_model(family), make_tokenizer())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_states_are_those_of_the_model_itself(family: str) -> None:
    whole = make(family)
    batch = encode_batch(whole.decoder, SENTENCES[:1])
    own = whole.model(input_ids=batch.ids).logits[0]
    hidden = states_with_gradients(whole.decoder, batch)[len(whole.decoder.blocks) + 1][0]
    torch.testing.assert_close(whole.logits(hidden), own)


def test_losses_and_gradients_in_chunks_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make("gemma2")  # caps its logits
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, whole.vocabulary, (11,), generator=generator)
    states = torch.randn(11, 32, generator=generator)
    results = []
    for limit in (1 << 25, 3 * whole.vocabulary):
        monkeypatch.setattr(objectives, "MOST_LOGITS", limit)
        hidden = states.clone().requires_grad_()
        losses = whole.losses(hidden, targets)
        torch.autograd.backward((losses * torch.arange(11)).sum())
        assert hidden.grad is not None
        results.append((losses.detach(), hidden.grad))
    plain = states.clone().requires_grad_()
    expected = cross_entropy(whole.logits(plain), targets, reduction="none")
    torch.autograd.backward((expected * torch.arange(11)).sum())
    for losses, gradient in results:
        torch.testing.assert_close(losses, expected.detach())
        torch.testing.assert_close(gradient, plain.grad)


def test_no_target_has_no_loss() -> None:
    assert make("llama").losses(torch.zeros(0, 32), torch.zeros(0, dtype=torch.long)).shape == (0,)


def test_the_body_is_the_model_s_own_again_afterwards() -> None:
    whole = make("llama")
    assert "forward" not in vars(whole.decoder.module)


def test_a_checkpoint_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "whole")
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path / "body")
    make_tokenizer().save_pretrained(tmp_path / "body")
    with pytest.raises(DecoderError, match=r"lacks 1 weights, such as 'lm_head.weight'"):
        load_language_model(str(tmp_path / "body"))


def test_a_body_alone_is_refused() -> None:
    with pytest.raises(DecoderError, match="has no language-model head"):
        load_language_model(make_model("llama").model, make_tokenizer())


def test_a_head_is_cast_once_where_products_are_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make("llama")
    generator = torch.Generator().manual_seed(0)
    states, targets = torch.randn(11, 32, generator=generator), torch.arange(11)
    before = whole.model.lm_head.weight
    monkeypatch.setattr(objectives, "MOST_LOGITS", 3 * whole.vocabulary)
    with torch.autocast("cpu", torch.bfloat16):
        expected = cross_entropy(whole.logits(states).float(), targets, reduction="none")
        seen = []
        whole.model.lm_head.register_forward_pre_hook(lambda head, _: seen.append(head.weight.dtype))
        losses = whole.losses(states.requires_grad_(), targets)
    torch.testing.assert_close(losses, expected)
    assert seen == [torch.bfloat16] * 4
    assert whole.model.lm_head.weight is before


def test_a_head_that_is_offloaded_scores_tokens(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "whole", tie_word_embeddings=False)
    plain = load_language_model({"name": str(folder), "device": "cpu"})
    moved = load_language_model({"name": str(folder), "device_map": {"model": "cpu", "lm_head": "disk"}})
    states, targets = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)), torch.arange(5)
    with torch.no_grad():
        torch.testing.assert_close(moved.losses(states, targets), plain.losses(states, targets))
