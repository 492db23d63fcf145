from typing import Any

import pytest
import torch

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.wiring.states import attention_maps
from tests.extract.tiny_decoders import make_decoder

TEXTS = ["The mouse ran under the table.", "Snow fell on the quiet harbour, and nobody spoke."]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_maps_equal_the_attentions_of_the_library(family: str) -> None:
    decoder = make_decoder(family)
    found = attention_maps(decoder, TEXTS[:1], parse_plan("causal"))
    ids = torch.tensor([decoder.tokenizer(TEXTS[0]).input_ids])
    model: Any = decoder.module
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(ids, output_attentions=True).attentions
    for block, expected in enumerate(attentions):
        torch.testing.assert_close(found.maps[block], expected[0].mean(0), atol=1e-5, rtol=0)
        sink = [float(expected[0].mean(0)[place + 1 :, place].mean()) for place in range(4)]
        assert found.sink_mass[block].tolist() == pytest.approx(sink, abs=1e-5)


def test_rows_of_a_map_sum_to_one_for_a_single_text(decoder: Decoder) -> None:
    found = attention_maps(decoder, TEXTS[:1], parse_plan("bidirectional"))
    torch.testing.assert_close(found.maps.sum(-1), torch.ones(found.maps.shape[:2]), atol=1e-5, rtol=0)
    assert found.blocks == decoder.layers[1:-1]
    assert len(found.tokens) == found.maps.shape[-1]


def test_a_nosink_plan_leaves_nothing_on_the_first_token_of_its_blocks(decoder: Decoder) -> None:
    found = attention_maps(decoder, TEXTS, parse_plan("nosink-bidirectional:1"))
    assert float(found.sink_mass[-1, 0]) == 0
    assert (found.sink_mass[-1, 1:] > 0).all()
    assert (found.sink_mass[:-1] > 0).all()


def test_a_text_shorter_than_the_positions_has_no_mass_beyond_its_end(decoder: Decoder) -> None:
    found = attention_maps(decoder, ["a"], parse_plan("causal"))
    n_tokens = len(found.tokens)
    assert n_tokens < 5
    assert (found.sink_mass[:, n_tokens - 1 :] == 0).all()


def test_the_sink_role_goes_to_a_forced_bos() -> None:
    decoder = make_decoder("llama", adds_bos=False)
    forced = attention_maps(decoder, TEXTS, parse_plan("causal"), template=InputTemplate(bos="force"))
    assert forced.tokens[0] == decoder.tokenizer.bos_token


def test_maps_are_refused_for_blocks_that_run_twice_and_without_texts(decoder: Decoder) -> None:
    with pytest.raises(ConfigError, match="'extend/backward:1' is more than masks"):
        attention_maps(decoder, TEXTS, parse_plan("extend/backward:1"))
    with pytest.raises(ConfigError, match="there is no text to draw"):
        attention_maps(decoder, [], parse_plan("causal"))
