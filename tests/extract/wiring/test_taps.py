"""Taps inside blocks equal what the modules of a family are seen to do, in every family that shows them."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.decoders.decoder import Decoder, wrap_decoder
from extract.errors import CacheError, DecoderError
from extract.masks.mask_plan import parse_plan
from extract.run.embed import embed_texts
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import sweep_latents
from extract.store.cache import find_cache
from extract.wiring.plan_wiring import plan_in_force
from extract.wiring.states import find_taps, layer_widths, pool_batch
from tests.extract.tiny_decoders import SENTENCES, encode_batch, make_decoder, make_model, make_tokenizer

TEXTS = SENTENCES[:4]
TAPPED = tuple(f"block_02.{tap}" for tap in ("value", "attention", "mid"))
SIDES: tuple[Literal["right", "left"], ...] = ("right", "left")
# Where a family computes its values and what is added to the residual, read off its source.
PARTS = {
    "llama": ("self_attn.v_proj", "self_attn", "self_attn"),
    "gemma2": ("self_attn.v_proj", "self_attn", "post_attention_layernorm"),
    "olmo2": ("self_attn.v_proj", "self_attn", "post_attention_layernorm"),
    "gpt2": ("attn.c_attn", "attn", "attn"),
    "opt": ("self_attn.v_proj", "self_attn", "self_attn"),
}


def reference(family: str, decoder: Decoder, text: str) -> list[Tensor]:
    """Compute value, attention and mid `(T, D)` of the second block by plain transformers and hooks on its modules."""
    block: Any = decoder.blocks[1]
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_: object, __: object, output: Any) -> None:
            seen[name] = (output[0] if isinstance(output, tuple) else output)[0]

        return hook

    handles = [block.get_submodule(name).register_forward_hook(keep(name)) for name in set(PARTS[family])]
    handles.append(block.register_forward_pre_hook(lambda _, args: seen.update(entered=args[0][0])))
    with torch.no_grad():
        decoder.module(torch.tensor([decoder.tokenizer(text)["input_ids"]]))
    for handle in handles:
        handle.remove()
    value, attention, added = (seen[name] for name in PARTS[family])
    value = value.chunk(3, -1)[2] if family == "gpt2" else value
    return [value, attention, seen["entered"] + added]


@pytest.mark.parametrize("family", PARTS)
def test_taps_equal_the_modules_of_the_family(family: str) -> None:
    decoder = wrap_decoder(make_model(family), make_tokenizer())
    wanted = [reference(family, decoder, text) for text in TEXTS]
    with plan_in_force(decoder, parse_plan("causal"), looks_inside=True):
        for side in SIDES:
            batch = encode_batch(decoder, TEXTS, side=side, pad_id=2)
            found = pool_batch(decoder, batch, poolings=("mean", "last"), layers=TAPPED)
            for k, tap in enumerate(TAPPED):
                mean = torch.stack([states[k].mean(0) for states in wanted])
                last = torch.stack([states[k][-1] for states in wanted])
                got = found[k, :, :, : mean.shape[-1]]
                torch.testing.assert_close(got, torch.stack([mean, last]), atol=1e-4, rtol=1e-4, msg=tap)
                assert not found[k, :, :, mean.shape[-1] :].any()


def test_values_of_grouped_heads_have_their_own_width_and_others_that_of_the_decoder() -> None:
    decoder = make_decoder("llama")  # 4 heads over 2 key heads of 8
    assert layer_widths(decoder, parse_plan("causal"), [*decoder.layers, *TAPPED]) == {"block_02.value": 16}
    assert find_taps(decoder) is find_taps(decoder)


def test_a_cache_holds_taps_beside_layers_and_all_asks_for_none(tmp_path: Path) -> None:
    decoder = make_decoder("llama")
    plain, spec = ExtractionSpec(), ExtractionSpec(layers=("all", "taps:value", "block_02.mid"))
    assert "widths" not in describe_extraction(decoder, TEXTS, plain).identity.to_plain()
    cache = extract_latents(decoder, TEXTS, spec=spec, folder=tmp_path)
    names = cache.layers
    assert names[:6] == ("embedding", "block_01.value", "block_01", "block_02.value", "block_02.mid", "block_02")
    assert cache.identity.widths == dict.fromkeys([f"block_0{k}.value" for k in (1, 2, 3)], 16)
    embedded = embed_texts(decoder, TEXTS, spec=spec)
    rows = cache.rows_of(TEXTS)
    for k, name in enumerate(names):
        stored = cache.layer(name, "mean")[rows]
        np.testing.assert_allclose(stored, embedded[k, 0, :, : stored.shape[1]], atol=1e-5)
        assert stored.shape[1] == (16 if name.endswith(".value") else 32)
    assert cache.gather(rows, "mean", layers="taps:value").shape == (3, 4, 16)
    assert cache.read(0, 2, "mean", layers="block_02.mid,blocks").shape == (4, 2, 32)
    with pytest.raises(CacheError, match=r"differ in width \(final_norm is 32 wide, block_03.value is 16 wide\)"):
        cache.gather(rows, "mean")
    with pytest.raises(CacheError, match="choose layers of one width"):
        _ = cache.width
    # What is wanted without taps, and a part of the taps, is found in it.
    for wanted in (plain, ExtractionSpec(layers=("block_01.value",))):
        found = find_cache(tmp_path, describe_extraction(decoder, TEXTS, wanted).identity)
        assert found is not None and found.path == cache.path
    assert found is not None and found.width == 16
    values = embed_texts(decoder, TEXTS, spec=ExtractionSpec(layers=("taps:value",)))  # as a head of them is served
    torch.testing.assert_close(values[:, 0], cache.gather(rows, "mean", layers="taps:value"))


@pytest.mark.long
def test_a_sweep_reads_the_taps_that_extractions_read(tmp_path: Path) -> None:
    decoder = make_decoder("gemma2")
    spec = ExtractionSpec(layers=TAPPED)
    plans = [parse_plan(text) for text in ("causal", "bidirectional:1", "backward")]
    swept = sweep_latents(decoder, TEXTS, plans, spec=spec, folder=tmp_path / "swept")
    for plan, cache in zip(plans, swept, strict=True):
        alone = embed_texts(decoder, TEXTS, spec=spec.with_plan(plan))
        for k, tap in enumerate(TAPPED):
            stored = cache.layer(tap, "mean")[cache.rows_of(TEXTS)]
            torch.testing.assert_close(stored, alone[k, 0, :, : stored.shape[1]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "layer", "sentence"),
    [
        ("gpt_neox", "block_02.mid", "'mid' of block 2 cannot be read: the family 'gpt_neox' computes attention and "),
        ("bloom", "block_01.value", "computes attention past the library's interface, which hides its values"),
        ("bloom", "block_01.attention", "adds the residual inside its attention"),
        ("mamba", "block_01.mid", "the family 'mamba' has no attention in this block"),
    ],
)
def test_a_tap_that_a_family_does_not_show_is_refused_by_name(family: str, layer: str, sentence: str) -> None:
    sizes: dict[str, Any] = (
        {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4} if family == "mamba" else {}
    )
    with pytest.raises(DecoderError, match=sentence):
        layer_widths(make_decoder(family, **sizes), parse_plan("causal"), [layer])


def test_taps_of_blocks_that_run_twice_are_refused() -> None:
    spec = ExtractionSpec(plan="extend/backward:1", layers=("all", "taps:attention"))
    with pytest.raises(DecoderError, match=r"runs blocks twice, so the tap 'block_01.attention' has no one state"):
        describe_extraction(make_decoder(), TEXTS, spec)
