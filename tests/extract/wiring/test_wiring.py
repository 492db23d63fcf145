"""The wiring changes one decoder for the length of a block, and refuses the families that would not obey."""

import pytest
import torch

from extract.errors import DecoderError, UnknownNameError
from extract.masks.mask_plan import parse_plan
from extract.wiring import attention as wiring
from extract.wiring.attention import wiring_of
from extract.wiring.certificate import check_influence
from extract.wiring.plan_wiring import plan_in_force
from tests.extract.mask_families import (
    REFUSED,
    WORKING,
    drift,
    family_decoder,
    hidden_through_wiring,
    hidden_under,
    id_batch,
    random_ids,
    run_layers,
)
from tests.extract.tiny_decoders import make_decoder

TOLERANCE = 1e-5
ROWS = random_ids(9, 6, 3)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gpt_oss", "mistral"])
def test_shortcuts_equal_explicit_masks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, batch = family_decoder(name), id_batch(ROWS[:1] * 2)
    kinds = list(wiring.SHORTCUTS)
    short = [hidden_through_wiring(decoder, batch, [kind] * 3) for kind in kinds]
    monkeypatch.setattr(wiring, "SHORTCUTS", {})
    for kind, hidden in zip(kinds, short, strict=True):
        assert drift(hidden, hidden_through_wiring(decoder, batch, [kind] * 3)) <= TOLERANCE, kind


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
def test_other_models_of_the_process_are_untouched(name: str) -> None:
    decoder, other = family_decoder(name), make_decoder(*WORKING[name][:1], seed=1)
    batch = id_batch(ROWS)
    before = run_layers(other, batch)
    with plan_in_force(decoder, parse_plan("bidirectional")):
        assert other.module.config._attn_implementation == "sdpa"
        assert torch.equal(run_layers(other, batch), before)
        changed = run_layers(decoder, batch)
    assert drift(changed, hidden_under(decoder, batch, "causal")) > 1e-2


@pytest.mark.parametrize("plan", ["backward", "extra/backward:2~skip1@0"])
def test_a_decoder_is_left_as_it_was_found(plan: str) -> None:
    decoder = family_decoder("llama")
    batch = id_batch(ROWS)
    before, config = run_layers(decoder, batch), decoder.module.config
    with pytest.raises(ZeroDivisionError, match=r"^inside$"), plan_in_force(decoder, parse_plan(plan)):
        assert config._attn_implementation == wiring.NAME
        run_layers(decoder, batch)
        assert hasattr(config, wiring.MARK)
        raise ZeroDivisionError("inside")
    assert config._attn_implementation == "sdpa"
    assert wiring_of(decoder.blocks) is None
    carried = [*decoder.module.modules(), config]
    assert not any(hasattr(part, wiring.MARK) for part in carried)
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in decoder.blocks)
    assert torch.equal(run_layers(decoder, batch), before)


def test_a_shared_configuration_is_refused() -> None:
    decoder = make_decoder("llama")
    body = type(decoder.module)(decoder.module.config)
    message = "a LlamaAttention that was never wired .* shares its configuration object .* a configuration of its own"
    with plan_in_force(decoder, parse_plan("backward")), pytest.raises(DecoderError, match=message):
        body(input_ids=torch.tensor(ROWS[:1]))


def test_a_wired_decoder_is_not_run_on_its_own() -> None:
    decoder = family_decoder("llama")
    message = "a wired decoder was called on its own; run it through icecore"
    with plan_in_force(decoder, parse_plan("backward")), pytest.raises(DecoderError, match=message):
        decoder.module(input_ids=torch.tensor(ROWS[:1]))


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_cannot_obey_is_refused_by_name(name: str) -> None:
    family, _, message = REFUSED[name]
    decoder, plan = family_decoder(name), parse_plan("bidirectional")
    batch = id_batch(ROWS)
    before = run_layers(decoder, batch)
    found = decoder.module.config._attn_implementation
    with pytest.raises(DecoderError, match=message.format(family=family)), plan_in_force(decoder, plan):
        check_influence(decoder, plan)
    assert decoder.module.config._attn_implementation == found
    assert torch.equal(run_layers(decoder, batch), before)
    causal = parse_plan("causal")
    with plan_in_force(decoder, causal):  # what the sentence says works does
        assert check_influence(decoder, causal).is_as_planned


def test_a_plan_with_more_blocks_than_the_decoder_is_refused() -> None:
    decoder, plan = family_decoder("llama"), parse_plan("backward:4")
    with pytest.raises(UnknownNameError, match="'backward:4' needs 4 blocks"), plan_in_force(decoder, plan):
        pass
