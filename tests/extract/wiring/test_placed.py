"""Blocks on several devices, pretended on the CPU: everything follows its block, and certificates hold for each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError, DecoderError
from extract.inputs.joined_text import JoinedText
from extract.masks.mask_plan import CAUSAL_KIND, parse_plan
from extract.run.embed import embed_words
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.wiring.attention import WiredBatch
from extract.wiring.certificate import DeviceProof, PlanProof, check_batch_invariance, check_devices, check_influence
from extract.wiring.plan_wiring import masks_in_force, plan_in_force
from extract.wiring.states import Route, pool_batch, route_of, walk_plans
from tests.extract.pretended import spread
from tests.extract.tiny_decoders import SENTENCES, encode_batch, make_decoder

PARTS = {
    "llama": (("embed_tokens", "rotary_emb"), "layers", "norm"),
    "gpt2": (("wte", "wpe"), "h", "ln_f"),
    "bloom": (("word_embeddings", "word_embeddings_layernorm"), "h", "ln_f"),  # masks by argument
}
PLANS = (
    "causal",
    "nosink-bidirectional:2",
    "backward:2",
    "causal~tp1-2",
    "causal~kv2-3",
    "bidirectional:1~skip2@0",
    "extra/backward:2",
    "inter-stack/backward:2",
    "inter-block/backward:2",
    "extend/backward:2",
)


def places(family: str) -> dict[str, str]:
    """Put the embedding and the first block on one device, and each further block on its own."""
    first, blocks, norm = PARTS[family]
    rest = {f"{blocks}.{i}": f"lazy:{i}" for i in range(3)}
    return {**dict.fromkeys(first, "lazy:0"), **rest, norm: "lazy:2"}


def latents(decoder: Decoder, plan: str, **how: Any) -> Tensor:
    """Compute latents of padded rows under a plan, on the CPU."""
    batch = encode_batch(decoder, SENTENCES)
    asked = {"poolings": ("mean", "last", "median"), "layers": decoder.layers, **how}
    inside = any("." in layer for layer in asked["layers"]) or "reba-mean" in asked["poolings"]
    with plan_in_force(decoder, parse_plan(plan), looks_inside=inside):
        return pool_batch(decoder, batch, **asked).cpu()


def require_close(found: Tensor, wanted: Tensor) -> None:
    """Check that two tensors agree to rounding: what PyTorch computes on another device takes other paths."""
    assert float((found - wanted).abs().max()) < 1e-5 * float(wanted.abs().max())


def check_follows(family: str, plan: str) -> None:
    """Check that a spread decoder gives the latents of one that is not, under a plan."""
    plain, other = make_decoder(family), make_decoder(family)
    wanted = latents(plain, plan)
    with spread(other.module, places(family)):
        assert [str(device) for device in other.devices] == ["lazy:0", "lazy:1", "lazy:2"]
        require_close(latents(other, plan), wanted)


@pytest.mark.parametrize("plan", ["causal", "nosink-bidirectional:2"])
def test_everything_follows_the_device_of_its_block(plan: str) -> None:
    check_follows("llama", plan)


@pytest.mark.long
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("family", PARTS)
def test_in_every_family_and_plan_too(family: str, plan: str) -> None:
    if family == "bloom" and "~kv" in plan:
        pytest.skip("ALiBi is computed where no key can be prepended")
    check_follows(family, plan)


@pytest.mark.long
def test_taps_attention_and_words_follow_too() -> None:
    plain, other = make_decoder(), make_decoder()
    inside: dict[str, Any] = {"layers": ("block_02.value", "block_02.mid", "block_03.attention")}
    fused: dict[str, Any] = {"poolings": ("reba-mean", "last")}
    words = [JoinedText("The mouse ran.", ((0, 3), (4, 9), (10, 13))), JoinedText("Ice!", ((0, 3),))]
    spec = ExtractionSpec(plan="nosink-bidirectional:2")
    wanted = [latents(plain, "causal", **how) for how in (inside, fused)]
    of_words = embed_words(plain, words, spec=spec).latents
    with spread(other.module, places("llama")):
        for how, latent in zip((inside, fused), wanted, strict=True):
            require_close(latents(other, "causal", **how), latent)
        require_close(embed_words(other, words, spec=spec).latents, of_words)


@pytest.mark.long
def test_a_tree_of_plans_follows_too() -> None:
    plain, other = make_decoder(), make_decoder()
    plans = [route_of(parse_plan(text), 3) for text in ("backward:1", "extra/backward:2", "inter-block/backward:2")]

    def walk(decoder: Decoder) -> dict[Route, Tensor]:
        found: dict[Route, Tensor] = {}
        batch = encode_batch(decoder, SENTENCES)

        def emit(plan: Route, latents: Tensor) -> None:
            found[plan] = latents.cpu().clone()

        with masks_in_force(decoder, [CAUSAL_KIND] * 3) as wiring:
            walk_plans(decoder, wiring, batch, plans, poolings=("mean",), layers=decoder.layers, emit=emit)
        return found

    wanted = walk(plain)
    with spread(other.module, places("llama")):
        for plan, found in walk(other).items():
            require_close(found, wanted[plan])


def certify(decoder: Decoder, plan: str) -> tuple[PlanProof, DeviceProof]:
    """Certify a plan as an extraction does."""
    with plan_in_force(decoder, parse_plan(plan)):
        influence = check_influence(decoder, parse_plan(plan), n_rows=3, n_tokens=9)
        check_batch_invariance(decoder)
        return influence, check_devices(decoder)


@pytest.mark.parametrize("plan", ["causal", "nosink-bidirectional:2"])
def test_certificates_hold_on_every_device(plan: str) -> None:
    decoder = make_decoder()
    with spread(decoder.module, places("llama")):
        influence, devices = certify(decoder, plan)
    assert devices == DeviceProof(("lazy:0", "lazy:1", "lazy:2"), n_layers=5)
    assert influence.is_as_planned


@pytest.mark.long
def test_an_extraction_is_certified_on_every_device(tmp_path: Path) -> None:
    decoder, plain = make_decoder(), make_decoder()
    whole = extract_latents(plain, SENTENCES, folder=tmp_path / "whole")
    with spread(decoder.module, places("llama")):
        cache = extract_latents(decoder, SENTENCES, folder=tmp_path)
    assert cache.identity == whole.identity
    assert cache.certificate["devices"]["devices"] == ["lazy:0", "lazy:1", "lazy:2"]
    assert cache.manifest.provenance["blocks"] == {"lazy:0": 1, "lazy:1": 1, "lazy:2": 1}
    for layer in cache.layers:
        require_close(cache.layer(layer, "mean"), whole.layer(layer, "mean"))


def test_a_mask_that_stays_on_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WiredBatch, "on_device", lambda _, tensor, __: tensor)
    decoder = make_decoder()
    with (
        spread(decoder.module, places("llama")),
        pytest.raises(DecoderError, match=r"expected all tensors .* on one device, found .*'lazy:0', 'lazy:1'"),
    ):
        certify(decoder, "nosink-bidirectional:2")


def zeroed(hidden: Tensor) -> Tensor:
    """Arrive as zeros."""
    return torch.zeros_like(hidden)


def half(hidden: Tensor) -> Tensor:
    """Lose the second half of the dimensions of what is as wide as a hidden state."""
    kept = hidden.clone()
    kept[..., hidden.shape[-1] // 2 :] = 0
    return kept if hidden.is_floating_point() and hidden.dim() == 3 else hidden


@pytest.mark.parametrize("copy", [zeroed, half])
def test_copies_between_devices_that_lose_numbers_are_refused(copy: Callable[[Tensor], Tensor]) -> None:
    decoder = make_decoder()
    with (
        spread(decoder.module, places("llama"), copy=copy),
        pytest.raises(CertificateError, match="layer embedding changes on its way from lazy:0 to lazy:1"),
    ):
        check_devices(decoder)


def test_latents_that_are_lost_on_their_way_are_refused() -> None:
    decoder = make_decoder()

    def lose(found: Tensor) -> Tensor:
        return torch.zeros_like(found) if found.shape == (1, decoder.description.width) else found

    with (
        spread(decoder.module, places("llama"), copy=lose),
        pytest.raises(CertificateError, match="layer block_02 changes on its way from lazy:1 to lazy:0"),
    ):
        check_devices(decoder)


@pytest.mark.parametrize("plan", ["causal", "backward:1"])
def test_a_later_block_that_hands_on_zeros_is_refused(plan: str) -> None:
    decoder = make_decoder()

    def lose(_: nn.Module, __: Any, output: Any) -> Any:
        return torch.zeros_like(output[0] if isinstance(output, tuple) else output)

    with spread(decoder.module, places("llama")):
        handle = decoder.blocks[1].register_forward_hook(lose)
        with handle, pytest.raises((CertificateError, DecoderError), match=r"block_02|block 2"):
            certify(decoder, plan)
