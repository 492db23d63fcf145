"""Every layer of every family equals plain transformers, however the batch is padded."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from extract.decoders.decoder import Decoder, wrap_decoder
from extract.errors import DecoderError
from extract.inputs.batches import collate
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import TextEncoder
from extract.wiring.plan_wiring import forward_inputs, run_batch
from extract.wiring.states import pool_batch
from tests.extract.tiny_decoders import (
    FAMILIES,
    SENTENCES,
    encode_batch,
    make_decoder,
    make_model,
    make_tokenizer,
    plain_hidden_states,
)

TOLERANCE = 1e-4


def plain_latents(model: Any, decoder: Decoder, *, family: str) -> Tensor:
    """Pool the last token and the mean of each sentence from plain transformers: `(L, 2, B, D)`."""
    rows = []
    for sentence in SENTENCES:
        states = plain_hidden_states(model, decoder.tokenizer(sentence)["input_ids"], family=family)
        rows.append(torch.stack([torch.stack([h[-1], h.mean(0)]) for h in (states[name] for name in decoder.layers)]))
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_equals_plain_transformers(family: str) -> None:
    model = make_model(family)
    decoder = wrap_decoder(model, make_tokenizer())
    expected = plain_latents(model, decoder, family=family)
    assert expected.shape[0] == 5
    encoder = TextEncoder(decoder.tokenizer, InputTemplate(), window=64)
    alone = [
        pool_batch(decoder, collate(encoder([text]), [0]), poolings=("last", "mean"), layers=decoder.layers)
        for text in SENTENCES
    ]
    got = {"unpadded": torch.cat(alone, dim=2)}
    sides: tuple[Literal["right", "left"], ...] = ("right", "left")
    for side in sides:
        batch = encode_batch(decoder, SENTENCES, side=side, pad_id=2)
        assert batch.is_padded
        got[side] = pool_batch(decoder, batch, poolings=("last", "mean"), layers=decoder.layers)
    for how, latents in got.items():
        drift = (latents - expected).abs().amax(dim=(1, 2, 3))
        assert float(drift.max()) < TOLERANCE, (how, dict(zip(decoder.layers, drift.tolist(), strict=True)))


def test_the_last_block_is_not_normed() -> None:
    decoder = make_decoder()
    latents = pool_batch(decoder, encode_batch(decoder, SENTENCES), poolings=("last",), layers=decoder.layers)
    below, above = latents[-2, 0], latents[-1, 0]
    assert not torch.allclose(below, above, atol=1e-2)
    assert torch.allclose(decoder.module.norm(below), above, atol=1e-5)  # type: ignore[operator]


def test_the_window_of_mistral_is_shorter_than_the_text() -> None:
    text = [SENTENCES[1]]
    narrow, wide = make_decoder("mistral"), make_decoder("mistral", sliding_window=None)
    one, other = (
        pool_batch(d, encode_batch(d, text), poolings=("last",), layers=("block_03",)) for d in (narrow, wide)
    )
    assert not torch.allclose(one, other, atol=1e-3)


def test_left_padding_of_absolute_positions_needs_positions() -> None:
    decoder = make_decoder("gpt2")
    batch = encode_batch(decoder, SENTENCES, side="left")
    inputs = forward_inputs(decoder, batch)
    shortest = int(batch.n_tokens.argmin())
    n_pads = batch.ids.shape[1] - int(batch.n_tokens[shortest])
    assert n_pads > 0
    assert inputs["position_ids"][shortest, n_pads:].tolist() == list(range(int(batch.n_tokens[shortest])))
    expected = pool_batch(decoder, encode_batch(decoder, SENTENCES), poolings=("mean",), layers=("block_01",))
    assert torch.allclose(
        pool_batch(decoder, batch, poolings=("mean",), layers=("block_01",)), expected, atol=TOLERANCE
    )
    # Without positions the shorter texts come out wrong: the check above has teeth.
    del inputs["position_ids"]
    kept: list[Tensor] = []
    handle = decoder.blocks[0].register_forward_hook(lambda *call: kept.append(call[2]))
    with torch.no_grad():
        decoder.module(**inputs)
    handle.remove()
    wrong = kept[0][shortest, -1]
    right = pool_batch(decoder, batch, poolings=("last",), layers=("block_01",))[0, 0, shortest]
    assert not torch.allclose(wrong, right, atol=1e-2)


def test_an_unpadded_batch_passes_no_mask(decoder: Decoder) -> None:
    batch = encode_batch(decoder, [SENTENCES[0]])
    assert not batch.is_padded
    assert set(forward_inputs(decoder, batch)) == {"input_ids", "use_cache"}


def test_pad_ids_do_not_matter(decoder: Decoder) -> None:
    one, other = (
        pool_batch(decoder, encode_batch(decoder, SENTENCES, pad_id=pad), poolings=("mean",), layers=decoder.layers)
        for pad in (0, 77)
    )
    assert torch.equal(one, other)


def test_an_end_of_sentence_inside_a_text_is_no_padding() -> None:
    decoder = make_decoder()
    assert decoder.tokenizer.pad_token_id == decoder.tokenizer.eos_token_id == 2
    text = "Ice</s>"
    batch = encode_batch(decoder, [text, SENTENCES[1]], pad_id=2)
    assert batch.ids[0, int(batch.n_tokens[0]) - 1] == 2
    alone = pool_batch(decoder, encode_batch(decoder, [text]), poolings=("last", "mean"), layers=decoder.layers)
    together = pool_batch(decoder, batch, poolings=("last", "mean"), layers=decoder.layers)
    assert torch.allclose(together[:, :, 0], alone[:, :, 0], atol=TOLERANCE)


def test_layers_above_the_topmost_wanted_one_are_not_computed(decoder: Decoder) -> None:
    computed: list[int] = []
    handles = [
        block.register_forward_pre_hook(lambda *_, i=i: computed.append(i)) for i, block in enumerate(decoder.blocks, 1)
    ]
    batch = encode_batch(decoder, [SENTENCES[0]])
    few = pool_batch(decoder, batch, poolings=("mean",), layers=("embedding", "block_01"))
    seen = list(computed)
    every = pool_batch(decoder, batch, poolings=("mean",), layers=decoder.layers)
    for handle in handles:
        handle.remove()
    assert seen == [1]
    assert computed == [1, 1, 2, 3]
    assert torch.equal(few, every[:2])


def test_visits_come_bottom_up_and_leave_no_hook(decoder: Decoder) -> None:
    visited: list[int] = []
    run_batch(decoder, encode_batch(decoder, [SENTENCES[0]]), lambda position, _: visited.append(position))
    assert visited == [0, 1, 2, 3, 4]
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in decoder.blocks)


def test_hooks_are_removed_after_an_error(decoder: Decoder) -> None:
    def fail(position: int, _: Tensor) -> None:
        raise ZeroDivisionError(position)

    with pytest.raises(ZeroDivisionError, match=r"^0$"):
        run_batch(decoder, encode_batch(decoder, [SENTENCES[0]]), fail)
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in decoder.blocks)


def test_latents_keep_no_hidden_states_alive(decoder: Decoder) -> None:
    batch = encode_batch(decoder, SENTENCES)
    latents = pool_batch(decoder, batch, poolings=("last",), layers=decoder.layers)
    assert latents.untyped_storage().nbytes() == latents.numel() * 4
    assert latents.shape == (5, 1, len(SENTENCES), 32)


class _Pairs(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> list[Tensor]:
        return [self.block(hidden_states, **kwargs)]


def test_a_block_that_hands_on_no_tensor_is_refused() -> None:
    body = make_model().get_decoder()
    body.layers[0] = _Pairs(body.layers[0])
    made = make_decoder()
    decoder = Decoder(body, tuple(body.layers), made.tokenizer, made.description)
    message = r"a block of the 'llama' decoder returns a list, not one tensor \(1, 9, D\)"
    with pytest.raises(DecoderError, match=message):
        run_batch(decoder, encode_batch(decoder, [SENTENCES[0]]), lambda *_: None)


def test_an_output_of_another_width_is_refused() -> None:
    decoder = make_decoder("opt", word_embed_proj_dim=16)
    batch = encode_batch(decoder, SENTENCES)
    with pytest.raises(DecoderError, match="the 'opt' decoder projects its output from 32 to 16 dimensions"):
        pool_batch(decoder, batch, poolings=("mean",), layers=decoder.layers)
    assert pool_batch(decoder, batch, poolings=("mean",), layers=("block_03",)).shape == (1, 1, len(SENTENCES), 32)
