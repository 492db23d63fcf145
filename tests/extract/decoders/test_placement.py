"""Decoders over several devices: the same decoder, wherever its weights wait, or a sentence."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from transformers import PreTrainedConfig

from extract.decoders.decoder import Decoder, describe_offload, is_offloaded, load_decoder, placing_options
from extract.decoders.decoder_spec import DecoderSpec, MergePart, plain_decoder, read_plain_decoder
from extract.errors import CertificateError, DecoderError, UnknownNameError
from extract.files import digest_module
from extract.masks.mask_plan import parse_plan
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.wiring.certificate import check_batch_invariance, check_influence
from extract.wiring.plan_wiring import in_float32, plan_in_force
from extract.wiring.states import pool_batch
from tests.extract.tiny_decoders import SENTENCES, encode_batch, make_decoder, make_model, make_tokenizer, save_decoder

FAMILIES = ("llama", "gpt2", "bloom")  # rotary, learned positions, and masks by argument with tied weights
PLANS = ("causal", "nosink-bidirectional:2", "backward:2")
STACKS = {"gpt2": ("transformer", "h"), "bloom": ("transformer", "h")}


def on_disk(model: Any, family: str, *, first: int = 1) -> dict[str, str | int]:
    """Map all blocks from the first given one on to the disk, and everything else to the CPU."""
    stack, blocks = STACKS.get(family, ("model", "layers"))
    rest = [f"{stack}.{name}" for name, _ in model.named_children() if name != blocks]
    places: dict[str, str | int] = {f"{stack}.{blocks}.{i}": "disk" if i >= first else "cpu" for i in range(3)}
    return {**dict.fromkeys([*rest, "lm_head"], "cpu"), **places}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder in hub layout."""
    family: str = request.param
    return save_decoder(tmp_path_factory.mktemp("decoders") / family, family=family)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in hub layout."""
    return save_decoder(tmp_path_factory.mktemp("decoders") / "tiny-llama")


def latents_under(decoder: Decoder, plan: str) -> torch.Tensor:
    """Compute latents of padded rows under a plan."""
    batch = encode_batch(decoder, SENTENCES)
    assert batch.is_padded
    with plan_in_force(decoder, parse_plan(plan)):
        return pool_batch(decoder, batch, poolings=("mean", "last"), layers=decoder.layers)


def require_same(found: Decoder, plain: Decoder, *, plans: Sequence[str] = PLANS) -> None:
    """Check that two decoders are the same one, and give the very same latents."""
    assert found.description == plain.description
    for plan in plans:
        assert torch.equal(latents_under(found, plan), latents_under(plain, plan)), plan
    assert digest_module(found.module) == plain.description.weight_digest


@pytest.mark.parametrize("plan", PLANS)
def test_certificates_are_those_of_the_plain_decoder(llama: Path, plan: str) -> None:
    plain = load_decoder(str(llama))
    found = load_decoder(DecoderSpec(str(llama), device_map=on_disk(plain.module, "llama")))
    certificates = []
    for decoder in (plain, found):
        with plan_in_force(decoder, parse_plan(plan)):
            influence = check_influence(decoder, parse_plan(plan), n_rows=4, n_tokens=9)
            certificates.append([influence, check_batch_invariance(decoder)])
    assert certificates[0] == certificates[1]


def test_blocks_on_disk_are_the_same_decoder(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    plain = load_decoder(str(folder))
    spec = DecoderSpec(str(folder), device_map=on_disk(plain.module, folder.name), offload_folder=str(tmp_path))
    found = load_decoder(spec, report=said.append)
    assert [is_offloaded(block) for block in found.blocks] == [False, True, True]
    assert found.devices == (torch.device("cpu"),) * 3
    assert any(line.startswith("2 of 3 blocks are on cpu/disk; expect ") for line in said)
    require_same(found, plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_that_hooks_bring_in_are_the_same_decoder(family: str) -> None:
    model = make_model(family)
    plain = load_decoder(make_model(family), make_tokenizer(), name="mine")
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    found = load_decoder(model, make_tokenizer(), name="mine")
    require_same(found, plain)
    assert all(map(is_offloaded, found.blocks))


def test_certificates_widen_offloaded_weights_and_give_them_back(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "half", dtype=torch.bfloat16)
    half = DecoderSpec(str(folder), dtype="bfloat16")
    plain = load_decoder(half)
    found = load_decoder(replace(half, device_map=on_disk(plain.module, "llama")))
    with in_float32(found) as wide, in_float32(plain) as other:
        batch = encode_batch(plain, SENTENCES)
        wanted = pool_batch(other, batch, poolings=("mean",), layers=plain.layers)
        assert torch.equal(pool_batch(wide, batch, poolings=("mean",), layers=plain.layers), wanted)
    assert {parameter.dtype for parameter in found.module.parameters()} == {torch.bfloat16}
    require_same(found, plain, plans=["backward:2"])


def test_a_checkpoint_in_other_dtype_is_widened_from_disk(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "half", dtype=torch.bfloat16)
    plain = load_decoder(str(folder))
    found = load_decoder(DecoderSpec(str(folder), device_map=on_disk(plain.module, "llama", first=0)))
    assert found.description.dtype == "float32"
    require_same(found, plain, plans=["causal"])


@pytest.mark.parametrize("name", ["auto", "balanced"])
def test_accelerate_chooses_and_memory_bounds_it(llama: Path, name: str) -> None:
    plain = load_decoder(str(llama))
    assert load_decoder(DecoderSpec(str(llama), device_map=name)).description == plain.description
    spec = DecoderSpec(str(llama), device_map=name, max_memory={"cpu": "160KB"})
    found = load_decoder(spec)
    assert 0 < sum(map(is_offloaded, found.blocks)) < 3
    require_same(found, plain, plans=["causal"])


def test_weights_made_in_memory_are_spread_too(llama: Path, tmp_path: Path) -> None:
    places = on_disk(load_decoder(str(llama)).module, "llama")
    drawn, merge = f"{llama}@random-3", (MergePart(str(llama), 0.5), MergePart(f"{llama}@random-1", 0.5))
    for spec in (DecoderSpec(drawn), DecoderSpec(merge=merge)):
        found = load_decoder(replace(spec, device_map=places, offload_folder=str(tmp_path / "away")))
        assert is_offloaded(found.blocks[2])
        require_same(found, load_decoder(spec), plans=["causal"])
    with pytest.raises(DecoderError, match=r"is made in memory, and decoder\.device_map puts parts of it on disk"):
        load_decoder(DecoderSpec(drawn, device_map=places))


def test_the_cache_is_the_same_one_and_says_where_blocks_were(llama: Path, tmp_path: Path) -> None:
    plain = load_decoder(str(llama))
    found = load_decoder(DecoderSpec(str(llama), device_map=on_disk(plain.module, "llama")))
    manifests = [describe_extraction(each, SENTENCES, ExtractionSpec()) for each in (plain, found)]
    assert manifests[0].identity == manifests[1].identity
    assert manifests[1].provenance.pop("blocks") == {"cpu": 1, "cpu, offloaded": 2}
    assert manifests[0].provenance == manifests[1].provenance
    cache = extract_latents(found, SENTENCES, folder=tmp_path)
    assert extract_latents(plain, SENTENCES, folder=tmp_path).path == cache.path


def test_weights_that_change_on_disk_void_the_rows(llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama, tmp_path / "copy")
    found = load_decoder(DecoderSpec(str(folder), device_map=on_disk(load_decoder(str(llama)).module, "llama")))
    before = digest_module(found.module)
    other = save_decoder(tmp_path / "other", seed=1)
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    assert digest_module(found.module) != before
    with pytest.raises(CertificateError, match=rf"the weights changed during the extraction: .* {before[:12]} before"):
        extract_latents(found, SENTENCES, folder=tmp_path / "caches")


def test_numbers_are_gpus_however_they_are_written() -> None:
    memory: dict[str | int, str] = {0: "1GiB", "1": "2GiB", "cpu": "3GiB"}
    spec = DecoderSpec("tiny", device_map={"model.layers": "1", "model.norm": "cpu"}, max_memory=memory)
    options = placing_options(spec, PreTrainedConfig(), torch.float32)
    assert options["device_map"] == {"model.layers": 1, "model.norm": "cpu"}
    assert options["max_memory"] == {0: "1GiB", 1: "2GiB", "cpu": "3GiB"}


def test_nothing_offloaded_costs_nothing() -> None:
    assert describe_offload(make_decoder().blocks) == ""


def test_weights_that_nobody_holds_are_refused() -> None:
    model = make_model().to("meta")
    with pytest.raises(DecoderError, match=r"'embed_tokens.weight' is on no device"):
        load_decoder(model, make_tokenizer())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"device_map": "sequential"}, "unknown device map 'sequential'"),
        ({"device_map": "auto", "device": "cpu"}, "decoder.device_map is set beside decoder.device 'cpu'"),
        ({"tp_plan": "auto", "device": "cuda:1"}, "decoder.tp_plan is set beside decoder.device 'cuda:1'"),
        ({"tp_plan": "auto", "device_map": "auto"}, "decoder.tp_plan is set beside decoder.device_map"),
        ({"tp_plan": "auto", "quantization": {"bits": 4}}, "decoder.tp_plan is set beside decoder.quantization"),
        (
            {"tp_plan": "auto", "name": "x@random-1"},
            "decoder.tp_plan is set for 'x@random-1', whose weights are made",
        ),
        ({"quantization": {"bits": 8}, "adapter": "a"}, "decoder.quantization is set for .*, whose weights are made"),
        ({"max_memory": {"0": "1GiB"}}, "decoder.max_memory is set without decoder.device_map"),
        ({"offload_folder": "away"}, "decoder.offload_folder is set without decoder.device_map"),
        ({"quantization": {"bits": 3}}, r"decoder.quantization is {'bits': 3}; allowed: {bits: 4} or {bits: 8}"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises((DecoderError, UnknownNameError), match=sentence):
        DecoderSpec(**values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"tp_plan": "auto"}, "start the command with torchrun --nproc-per-node N"),
        (
            {"device_map": {"model.layers.0": "cpu", "model.layers.1": "disk"}},
            "does not give any device for .* Check decoder.device_map",
        ),
        ({"quantization": {"bits": 4}}, "needs the extra package bitsandbytes|needs a GPU, and torch finds none"),
    ],
)
def test_what_is_missing_here_is_said(
    llama: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], sentence: str
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DecoderError, match=sentence):
        load_decoder(DecoderSpec(str(llama), **values))


def test_a_family_without_a_tensor_parallel_plan_is_refused(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "bloom", family="bloom")
    with pytest.raises(DecoderError, match=r"bloom. has no tensor-parallel plan"):
        load_decoder(DecoderSpec(str(folder), tp_plan="auto"))


def test_records_hold_placement_only_where_it_is_given() -> None:
    old = plain_decoder(DecoderSpec("tiny"))
    assert set(old) == {"name", "revision", "adapter", "dtype", "device", "trust_remote_code"}
    spec = DecoderSpec("tiny", device_map={"model": "cpu"}, max_memory={"cpu": "1GiB"}, offload_folder="away")
    assert read_plain_decoder(plain_decoder(spec)) == spec
    quantised = make_decoder()
    described = replace(quantised.description, quantization={"bits": 4})
    manifest = describe_extraction(replace(quantised, description=described), SENTENCES, ExtractionSpec())
    assert manifest.identity.decoder["quantization"] == {"bits": 4}
    assert "quantization" not in describe_extraction(quantised, SENTENCES, ExtractionSpec()).identity.decoder


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights_are_described_and_certified(tmp_path: Path, bits: int) -> None:
    pytest.importorskip("bitsandbytes")
    folder = save_decoder(tmp_path / "wide", hidden_size=64, intermediate_size=128)
    plain, found = (load_decoder(DecoderSpec(str(folder), quantization=each)) for each in (None, {"bits": bits}))
    assert found.description.quantization == {"bits": bits}
    assert found.description.weight_digest != plain.description.weight_digest
    wanted, latents = (latents_under(each, "backward:2") for each in (plain, found))
    assert 0 < float((latents - wanted).norm()) < 0.5 * float(wanted.norm())


@pytest.mark.gpu
def test_blocks_on_a_gpu_and_in_main_memory_are_the_same_decoder(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "tiny-llama")
    whole = load_decoder(DecoderSpec(str(folder), dtype="float32"))
    places = on_disk(whole.module, "llama")
    spread: dict[str, str | int] = {module: "0" if place == "cpu" else "cpu" for module, place in places.items()}
    found = load_decoder(DecoderSpec(str(folder), dtype="float32", device_map=spread))
    assert [is_offloaded(block) for block in found.blocks] == [False, True, True]
    require_same(found, whole)
