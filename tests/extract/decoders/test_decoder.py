"""A decoder in memory: frozen, described, refused where it cannot be read."""

from typing import Any

import pytest
from torch import nn

from extract.decoders.decoder import UNBOUNDED, find_blocks, wrap_decoder
from extract.decoders.fetch import Located
from extract.errors import DecoderError
from extract.masks.mask_plan import parse_plan
from extract.wiring.certificate import check_influence
from extract.wiring.plan_wiring import plan_in_force
from tests.extract.tiny_decoders import FAMILIES, make_decoder, make_model, make_tokenizer
from tests.extract.wiring.all_families import build


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_frozen_and_described(family: str) -> None:
    model = make_model(family).train()
    decoder = wrap_decoder(model, make_tokenizer())
    assert not decoder.module.training
    assert not any(parameter.requires_grad for parameter in decoder.module.parameters())
    about = decoder.description
    assert (about.family, about.n_layers, about.width, about.dtype) == (family, 3, 32, "float32")
    assert (about.name, about.source, about.revision, about.adapter) == ("in-memory", "memory", "", "")
    assert about.window == (UNBOUNDED if family == "bloom" else 64)
    assert about.n_parameters == sum(parameter.numel() for parameter in decoder.module.parameters())
    assert len(about.weight_digest) == len(about.tokenizer_digest) == 64
    assert decoder.layers == ("embedding", "block_01", "block_02", "block_03", "final_norm")
    assert not any("lm_head" in name for name, _ in decoder.module.named_parameters())


def test_it_says_what_it_is() -> None:
    found = make_decoder("llama")
    what = f"llama, {len(found.blocks)} blocks, width {found.description.width}, float32 on cpu"
    assert repr(found) == f"<decoder {found.description.name}: {what}>"


def test_weights_in_float64_are_refused() -> None:
    with pytest.raises(DecoderError, match=r"the weights of 'in-memory' are float64; allowed: float32, bfloat16, floa"):
        wrap_decoder(make_model().double(), make_tokenizer())


def test_equal_weights_equal_digests() -> None:
    digests = [make_decoder(seed=seed).description.weight_digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


def test_paths_stay_out_of_the_description(tmp_path: Any) -> None:
    located = Located("tiny", "folder", str(tmp_path), "")
    about = wrap_decoder(make_model(), make_tokenizer(), located=located, adapter=str(tmp_path)).description
    assert (about.name, about.adapter) == ("tiny", tmp_path.name)
    assert str(tmp_path) not in str(about.to_dict())
    assert wrap_decoder(make_model(), make_tokenizer(), adapter="owner/lora").description.adapter == "owner/lora"


def test_blocks_are_the_list_of_the_right_length() -> None:
    module = nn.Module()
    module.experts = nn.ModuleList([nn.Linear(1, 1)] * 2)
    module.stack = nn.ModuleList([nn.Linear(1, 1) for _ in range(3)])
    assert find_blocks(module, 3, family="made-up") == tuple(module.stack)
    with pytest.raises(DecoderError, match="the 'made-up' decoder has no list of 5 blocks to read from"):
        find_blocks(module, 5, family="made-up")


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("plan", ["causal", pytest.param("backward", marks=pytest.mark.long)])
def test_a_head_that_is_called_decoder_is_passed_over(plan: str) -> None:
    """ModernBERT's causal model calls its projection to the vocabulary `decoder`."""
    decoder, text = build("modernbert-decoder"), parse_plan(plan)
    assert decoder.blocks == tuple(decoder.module.layers)  # type: ignore[arg-type]
    with plan_in_force(decoder, text):
        assert check_influence(decoder, text, n_rows=4, n_tokens=12).is_as_planned


def test_several_transformers_in_one_are_refused() -> None:
    with pytest.raises(DecoderError, match=r"family 'blt' does not state one number of blocks and one width \(several"):
        build("blt")
