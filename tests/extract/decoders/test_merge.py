"""Merging is a weighted sum of parameters; how alike two checkpoints are is a cosine per block."""

import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM

from extract.decoders import decoder as loading
from extract.decoders.decoder import Decoder, compare_weights, load_decoder, load_tokenizer
from extract.decoders.decoder_spec import DecoderSpec, MergePart, plain_decoder, read_plain_decoder
from extract.errors import DecoderError
from extract.run.extraction import describe_extraction
from extract.run.extraction_spec import ExtractionSpec
from tests.extract.tiny_decoders import MULTIMODAL, ROPE, save_decoder, save_multimodal

KEY = "layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    base = tmp_path_factory.mktemp("merged")
    return [str(save_decoder(base / f"tiny-{seed}", seed=seed)) for seed in range(3)]


def merged(folders: list[str], *weights: float, **how: Any) -> Decoder:
    parts = tuple(MergePart(name, weight) for name, weight in zip(folders, weights, strict=False))
    return load_decoder(DecoderSpec(device="cpu", merge=parts, **how))


def weights_of(decoder: Decoder) -> dict[str, torch.Tensor]:
    return dict(decoder.module.named_parameters())


def test_a_merge_is_the_weighted_sum_of_parameters(folders: list[str]) -> None:
    alone = [weights_of(load_decoder(folder)) for folder in folders]
    for weights in ((0.25, 0.75), (0.2, 0.5, 0.3), (1.5, -0.5)):
        found = weights_of(merged(folders, *weights))
        for key, tensor in found.items():
            expected = sum(weight * each[key].double() for weight, each in zip(weights, alone, strict=False))
            torch.testing.assert_close(tensor.double(), expected, atol=1e-6, rtol=1e-6)


def test_a_merge_with_itself_or_with_weight_one_is_the_checkpoint_itself(folders: list[str]) -> None:
    one, other = (load_decoder(folder).description.weight_digest for folder in folders[:2])
    assert merged([folders[0], folders[0]], 0.5, 0.5).description.weight_digest == one
    assert merged(folders[:2], 1.0, 0.0).description.weight_digest == one
    assert merged(folders[:2], 0.0, 1.0).description.weight_digest == other


def test_the_sum_is_taken_before_rounding(folders: list[str]) -> None:
    whole, half = merged(folders[:2], 0.5, 0.5), merged(folders[:2], 0.5, 0.5, dtype="bfloat16")
    assert half.description.dtype == "bfloat16"
    for key, tensor in weights_of(half).items():
        assert torch.equal(tensor, weights_of(whole)[key].bfloat16()), key


@pytest.mark.long
def test_no_third_checkpoint_is_ever_in_memory(folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0
    read = loading._read_adapted

    def watched(*args: Any, **how: Any) -> Any:
        nonlocal most
        model = read(*args, **how)
        alive.add(model)
        gc.collect()
        most = max(most, len(alive))
        return model

    monkeypatch.setattr(loading, "_read_adapted", watched)
    merged(folders, 0.2, 0.5, 0.3)
    assert most == 2


def test_a_merge_is_in_the_identity_and_another_decoder_has_no_such_field(folders: list[str]) -> None:
    def identity(decoder: Decoder) -> dict[str, Any]:
        found: dict[str, Any] = describe_extraction(decoder, ["ice"], ExtractionSpec()).identity.decoder
        return found

    plain, one, other = load_decoder(folders[0]), merged(folders, 0.4, 0.6), merged(folders, 0.6, 0.4)
    assert "merge" not in identity(plain)
    assert "merge" not in plain.description.to_dict()
    assert identity(one)["merge"] == ["0.4*tiny-0", "0.6*tiny-1"]
    assert one.description.name == "0.4*tiny-0+0.6*tiny-1"
    assert identity(one)["weight_digest"] != identity(other)["weight_digest"]
    assert one.description.tokenizer_digest == plain.description.tokenizer_digest
    spec = DecoderSpec(merge=(MergePart(folders[0], 1.0),))
    assert load_tokenizer(spec).get_vocab() == plain.tokenizer.get_vocab()


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_an_adapter_is_merged_into_its_part_first(folders: list[str], tmp_path: Path) -> None:
    import peft

    place = str(tmp_path / "lora")
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folders[1]), config).save_pretrained(place)
    parts = (MergePart(folders[0], 0.5), MergePart(folders[1], 0.5, adapter=place))
    found = load_decoder(DecoderSpec(device="cpu", merge=parts))
    assert found.description.merge == ("0.5*tiny-0", "0.5*tiny-1+lora")
    plain, adapted, bare = (
        weights_of(load_decoder(DecoderSpec(name, adapter=adapter, device="cpu")))
        for name, adapter in ((folders[0], None), (folders[1], place), (folders[1], None))
    )
    key = "layers.0.self_attn.q_proj.weight"
    assert not torch.equal(adapted[key], bare[key])
    for name, tensor in weights_of(found).items():
        torch.testing.assert_close(tensor, (plain[name] + adapted[name]) / 2, atol=1e-6, rtol=1e-6)


def test_settings_are_read_back_as_they_were_written(folders: list[str]) -> None:
    assert "merge" not in plain_decoder(DecoderSpec())
    spec = DecoderSpec(merge=(MergePart(folders[0], 0.5), MergePart(folders[1], 0.5, adapter="mine")))
    assert read_plain_decoder(plain_decoder(spec)) == spec


def test_what_cannot_be_merged_is_named(folders: list[str], tmp_path: Path) -> None:
    with pytest.raises(DecoderError, match=r"weights of decoder\.merge are \[0\.5, 0\.4\], in all 0\.9; .* sum to 1"):
        merged(folders, 0.5, 0.4)
    with pytest.raises(DecoderError, match=r"decoder\.merge is set beside decoder\.adapter"):
        merged(folders, 1.0, adapter="mine")
    with pytest.raises(DecoderError, match=r"'nam': 'a'.*allowed: name and weight"):
        read_plain_decoder({"merge": [{"nam": "a", "weight": 1}]})
    wide = str(save_decoder(tmp_path / "wide", intermediate_size=40))
    with pytest.raises(
        DecoderError, match=r"'tiny-0' and 'wide' cannot be merged: 9 .*down_proj\.weight.* 32x48 .* 32x40"
    ):
        merged([folders[0], wide], 0.5, 0.5)
    turned = str(save_decoder(tmp_path / "turned", rope_parameters={"rope_type": "default", "rope_theta": 100.0}))
    with pytest.raises(DecoderError, match=r"their 'rotary_emb\.inv_freq' differ"):
        merged([folders[0], turned], 0.5, 0.5)


def test_cosines_are_those_of_the_concatenated_weights(folders: list[str]) -> None:
    one, other = (load_decoder(folder) for folder in folders[:2])
    found = compare_weights(one, other).set_index(["layer", "part"])
    for number, (a, b) in enumerate(zip(one.blocks, other.blocks, strict=True), 1):
        sides = [[p.detach().flatten() for k, p in block.named_parameters() if k.startswith("mlp")] for block in (a, b)]
        u, v = (torch.cat(side).double() for side in sides)
        row = found.loc[f"block_{number:02d}", "mlp"]
        assert row["cosine"] == pytest.approx(float(u @ v / (u.norm() * v.norm())), abs=1e-12)
        assert row["distance"] == pytest.approx(float((u - v).norm() / u.norm()), abs=1e-9)
        counts = found.loc[f"block_{number:02d}"]["n_parameters"]
        assert counts["block"] == counts["attention"] + counts["mlp"]
        assert counts["mlp"] == len(u)
    itself = compare_weights(one, one)
    assert itself["cosine"].to_numpy() == pytest.approx(1, abs=1e-12)
    assert itself["distance"].to_numpy() == pytest.approx(0, abs=1e-6)


def test_only_the_part_that_was_changed_differs(folders: list[str], tmp_path: Path) -> None:
    copied = tmp_path / "changed"
    shutil.copytree(folders[0], copied)
    weights = load_file(copied / "model.safetensors")
    weights[f"model.{KEY}"] = -weights[f"model.{KEY}"]
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    found = compare_weights(load_decoder(folders[0]), load_decoder(str(copied)))
    changed = found[found["cosine"] < 1 - 1e-9]
    assert set(zip(changed["layer"], changed["part"], strict=True)) == {("block_02", "mlp"), ("block_02", "block")}
    with pytest.raises(DecoderError, match=r"has 3 blocks and .* 2; allowed: checkpoints of one architecture"):
        compare_weights(
            load_decoder(folders[0]), load_decoder(str(save_decoder(tmp_path / "two", num_hidden_layers=2)))
        )


def test_weights_that_one_side_alone_has_are_refused_from_both_sides(tmp_path: Path) -> None:
    plain = load_decoder(str(save_decoder(tmp_path / "plain", family="llama")))
    biased = load_decoder(str(save_decoder(tmp_path / "biased", family="llama", attention_bias=True)))
    for sides in ((plain, biased), (biased, plain)):
        with pytest.raises(DecoderError, match=r"bias' is .*absent.* allowed: checkpoints of one architecture"):
            compare_weights(*sides)


def forms(base: Path, family: str, form: str, **changes: Any) -> tuple[str, str]:
    """Save a text decoder, and a checkpoint whose body is of the same shape inside another model."""
    save_decoder(base / "text", family=family, **changes)
    save_multimodal(base / form, form, seed=1)
    return str(base / "text"), str(base / form)


OFTEN = ("qwen3_vl", "qwen3_asr")
FORMS = {
    "qwen3_vl": "qwen3",
    "qwen3_asr": "qwen3",
    "qwen2_audio": "qwen2",
    "voxtral": "llama",
    "granite_speech": "granite",
}


@pytest.mark.parametrize(
    "form", [form if form in OFTEN else pytest.param(form, marks=pytest.mark.long) for form in FORMS]
)
def test_a_text_decoder_merges_with_the_one_inside_another_model(form: str, tmp_path: Path) -> None:
    names = forms(tmp_path, FORMS[form], form, **MULTIMODAL[form]["text_config"])
    alone = [weights_of(load_decoder(name)) for name in names]
    for order in (0, 1), (1, 0):
        parts = tuple(MergePart(names[number], 0.5) for number in order)
        found = load_decoder(DecoderSpec(device="cpu", merge=parts))
        assert type(found.module) is type(load_decoder(names[order[0]]).module)
        for key, tensor in weights_of(found).items():
            torch.testing.assert_close(tensor, (alone[0][key] + alone[1][key]) / 2, atol=1e-6, rtol=1e-6)
    frame = compare_weights(*map(load_decoder, names)).set_index(["layer", "part"])
    u, v = (
        torch.cat([w.flatten() for k, w in side.items() if k.startswith("layers.1.mlp")]).double() for side in alone
    )
    assert frame.loc[("block_02", "mlp"), "cosine"] == pytest.approx(float(u @ v / (u.norm() * v.norm())), abs=1e-12)


def test_a_tower_stays_that_of_the_first_and_a_tied_head_counts_as_one(tmp_path: Path) -> None:
    text, vision = forms(tmp_path, "qwen3", "qwen3_vl", tie_word_embeddings=True)
    auto: Any = AutoModelForMultimodalLM
    first = dict(auto.from_pretrained(vision).named_parameters())
    embedding = weights_of(load_decoder(text))["embed_tokens.weight"]
    for weights in ((0.5, 0.5), (0.0, 1.0)):
        spec = DecoderSpec(device="cpu", merge=(MergePart(vision, weights[0]), MergePart(text, weights[1])))
        model, _, _ = loading._merge(spec, torch.device("cpu"), lambda _: None)
        found = dict(model.named_parameters())
        head = weights[0] * first["lm_head.weight"] + weights[1] * embedding
        torch.testing.assert_close(found["lm_head.weight"], head, atol=1e-6, rtol=1e-6)
        tower = [name for name in first if name.startswith("model.visual.")]
        assert len(tower) > 10
        assert all(torch.equal(found[name], first[name]) for name in tower)


def test_other_rotary_frequencies_inside_another_model_are_reported(tmp_path: Path) -> None:
    save_decoder(tmp_path / "text", family="qwen3")
    save_multimodal(
        tmp_path / "far", "qwen3_vl", rope_parameters={**ROPE, "mrope_interleaved": True, "rope_theta": 5e4}
    )
    remarks: list[str] = []
    parts = tuple(MergePart(str(tmp_path / name), 0.5) for name in ("text", "far"))
    found = load_decoder(DecoderSpec(device="cpu", merge=parts), report=remarks.append)
    assert any(line.startswith("text and far differ in 'rotary_emb.inv_freq'") for line in remarks)
    assert torch.equal(
        dict(found.module.named_buffers())["rotary_emb.inv_freq"],
        dict(load_decoder(str(tmp_path / "text")).module.named_buffers())["rotary_emb.inv_freq"],
    )
