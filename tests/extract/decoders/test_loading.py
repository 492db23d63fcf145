"""Loading from a local folder, in the asked dtype, or a sentence."""

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from extract.decoders.decoder import choose_device, find_blocks, load_decoder, load_tokenizer
from extract.decoders.decoder_spec import (
    DecoderSpec,
    MergePart,
    as_decoder_spec,
    plain_decoder,
    read_plain_decoder,
)
from extract.errors import DecoderError, IcecoreError, UnknownNameError
from extract.masks.mask_plan import parse_plan
from extract.run.embed import embed_texts
from extract.run.extraction_spec import ExtractionSpec
from extract.wiring.certificate import check_influence
from extract.wiring.plan_wiring import plan_in_force
from extract.wiring.states import pool_batch
from tests.extract.mask_families import drift, id_batch, random_ids, run_layers
from tests.extract.tiny_decoders import (
    MULTIMODAL,
    SENTENCES,
    encode_batch,
    make_decoder,
    make_tokenizer,
    save_decoder,
    save_multimodal,
)

KEY, HEAD = "model.layers.1.mlp.up_proj.weight", "lm_head.weight"


def rewritten(folder: Path, copy: Path, change: dict[str, str | None]) -> Path:
    """Copy a decoder with some of its tensors renamed, or left out."""
    shutil.copytree(folder, copy)
    weights = load_file(copy / "model.safetensors")
    kept = {change.get(key, key): tensor for key, tensor in weights.items()}
    save_file({key: tensor for key, tensor in kept.items() if key}, copy / "model.safetensors", {"format": "pt"})
    return copy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder in hub layout."""
    return save_decoder(tmp_path_factory.mktemp("decoders") / "tiny-llama")


def test_a_folder_gives_the_same_decoder(folder: Path) -> None:
    loaded, made = load_decoder(str(folder)), make_decoder(adds_bos=True)
    assert loaded.description.weight_digest == made.description.weight_digest
    assert loaded.description.tokenizer_digest == made.description.tokenizer_digest
    assert (loaded.description.name, loaded.description.source) == ("tiny-llama", "folder")
    latents = [pool_batch(d, encode_batch(d, SENTENCES), poolings=("mean",), layers=d.layers) for d in (loaded, made)]
    assert torch.equal(*latents)


def test_random_weights_are_those_of_their_seed(folder: Path) -> None:
    trained, one, again, other = (
        load_decoder(DecoderSpec(f"{folder}{which}", device="cpu"))
        for which in ("", "@random-0", "@random-0", "@random-1")
    )
    digests = [decoder.description.weight_digest for decoder in (trained, one, again, other)]
    assert digests[1] == digests[2]
    assert len(set(digests)) == 3
    assert one.description.name == "tiny-llama@random-0"
    assert (one.layers, one.description.tokenizer_digest) == (trained.layers, trained.description.tokenizer_digest)
    buffers = dict(load_decoder(DecoderSpec(f"{folder}@random-0", dtype="bfloat16")).module.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in trained.module.named_buffers())
    state = torch.random.get_rng_state()
    load_decoder(f"{folder}@random-0")
    assert torch.equal(torch.random.get_rng_state(), state)
    with pytest.raises(DecoderError, match=r"random weights, which adapter 'mine' is not made for"):
        load_decoder(DecoderSpec(f"{folder}@random-0", adapter="mine"))


def test_an_adapter_that_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "adapter_model.safetensors").write_bytes(b"no header")
    for name, why in (("nowhere", "There is no such folder"), ("damaged", "Give a folder in peft's format")):
        with pytest.raises(DecoderError, match=rf"^adapter '.*{name}' cannot be read: .*{why}"):
            load_decoder({"name": str(folder), "adapter": str(tmp_path / name)})


def test_a_mistyped_folder_of_an_adapter_is_not_looked_for_at_the_hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    (tmp_path / "adapters" / "tiny").mkdir(parents=True)
    (tmp_path / "adapters" / "tiny" / "adapter_config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DecoderError, match=r"^there is no adapter 'adapters/tinny'; in that folder are adapters/tiny\."
    ):
        load_decoder({"name": str(folder), "adapter": "adapters/tinny"})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_lower_dtype_leaves_positions_alone(folder: Path, dtype: str) -> None:
    whole = load_decoder(str(folder))
    half = load_decoder(DecoderSpec(str(folder), dtype="bfloat16" if dtype == "bfloat16" else "float16"))
    assert half.description.dtype == dtype
    assert {parameter.dtype for parameter in half.module.parameters()} == {getattr(torch, dtype)}
    # Rotary frequencies rounded to half precision turn far positions by whole radians.
    buffers = dict(half.module.named_buffers())
    assert buffers
    for name, buffer in whole.module.named_buffers():
        assert torch.equal(buffers[name], buffer), name


def test_auto_is_float32_on_a_cpu(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "half", dtype=torch.bfloat16)
    assert load_decoder(DecoderSpec(str(folder), device="cpu")).description.dtype == "float32"
    assert load_decoder(DecoderSpec(str(folder), device="cpu", dtype="bfloat16")).description.dtype == "bfloat16"


def test_an_unknown_dtype_is_refused() -> None:
    spec = DecoderSpec()
    object.__setattr__(spec, "dtype", "bfloat61")  # as a caller without type checks would
    with pytest.raises(UnknownNameError, match="unknown compute dtype 'bfloat61': did you mean 'bfloat16'"):
        spec.__post_init__()


@pytest.mark.parametrize("name", ["quantum", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(DecoderError, match=f"device '{name}' cannot be used here .*allowed: auto, cpu"):
        choose_device(name)
    assert choose_device("cpu") == torch.device("cpu")


def test_apple_devices_are_refused_by_name_and_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DecoderError, match=r"device 'mps' is not supported: .* allowed: auto, cpu, cuda"):
        choose_device("mps")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("mps"))
    assert choose_device("auto") == torch.device("cpu")


def test_a_build_for_an_accelerator_that_is_not_there_computes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def current(check_available: bool = False) -> torch.device | None:
        return None if check_available else torch.device("cuda")  # as PyTorch for CUDA without a driver

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current)
    assert choose_device("auto") == torch.device("cpu")


def test_a_model_in_memory_is_taken_as_it_is(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    taken, loaded = load_decoder(model, tokenizer, name="mine"), load_decoder(str(folder))
    assert (taken.description.name, taken.description.source) == ("mine", "memory")
    assert taken.description.weight_digest == loaded.description.weight_digest
    assert not any(parameter.requires_grad for parameter in taken.module.parameters())
    for arguments, message in (
        ((model,), "there is no tokenizer; give that of the model"),
        ((torch.nn.Linear(2, 2), tokenizer), "the model is a Linear; allowed: a causal language model of transformers"),
        ((str(folder), tokenizer), "there is a tokenizer beside '.*'; it is for a model in memory"),
    ):
        with pytest.raises(DecoderError, match=message):
            load_decoder(*arguments)


def test_what_is_no_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DecoderError, match=r"folder '.*' holds no config\.json"):
        load_decoder(str(tmp_path))
    (tmp_path / "a.txt").touch()
    with pytest.raises(DecoderError, match=r"file '.*a\.txt' is not a decoder"):
        load_decoder(str(tmp_path / "a.txt"))
    with pytest.raises(DecoderError, match=r"there is no GGUF file '.*a\.gguf'"):
        load_decoder(str(tmp_path / "a.gguf"))
    with pytest.raises(DecoderError, match=r"there is no folder '.*nowhere/at/all'"):
        load_decoder(str(tmp_path / "nowhere/at/all"))
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llamma"}')
    with pytest.raises(DecoderError, match=r"cannot be loaded from folder .*llamma.* Give a causal LM in hub layout"):
        load_decoder(str(tmp_path))


def test_missing_weights_are_a_sentence(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    with pytest.raises(DecoderError, match=r"decoder '.*tiny' cannot be loaded from folder .*model\.safetensors"):
        load_decoder(str(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({KEY: None}, rf"its checkpoint lacks 1 weights, such as '{KEY}', so layers would hold random numbers"),
        ({KEY: f"{KEY}_renamed"}, rf"its checkpoint lacks 1 weights, such as '{KEY}'"),
        ({HEAD: f"{KEY}_more"}, rf"has, and the decoder does not, 1 weights, such as '{KEY}_more'"),
    ],
)
def test_a_checkpoint_that_leaves_weights_random_is_refused(
    change: dict[str, str | None], message: str, folder: Path, tmp_path: Path
) -> None:
    copied = rewritten(folder, tmp_path / "partial", change)
    with pytest.raises(DecoderError, match=message):
        load_decoder(str(copied))


def test_weights_of_the_head_may_be_missing(folder: Path, tmp_path: Path) -> None:
    headless = load_decoder(str(rewritten(folder, tmp_path / "headless", {HEAD: None})))
    assert headless.description.weight_digest == load_decoder(str(folder)).description.weight_digest


def test_weights_of_another_shape_are_refused(folder: Path, tmp_path: Path) -> None:
    copied = rewritten(folder, tmp_path / "shape", {})
    weights = load_file(copied / "model.safetensors")
    save_file({**weights, KEY: weights[KEY][:-1].clone()}, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(DecoderError, match=r"cannot be loaded|has another shape for"):
        load_decoder(str(copied))


def test_a_tokenizer_is_loaded_without_its_decoder(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer("a mouse")["input_ids"] == load_decoder(str(folder)).tokenizer("a mouse")["input_ids"]
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(DecoderError, match="cannot be loaded from folder"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("error", [pickle.UnpicklingError("invalid load key"), AttributeError("x"), EOFError()])
def test_whatever_loading_raises_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("extract.decoders.decoder.AutoTokenizer.from_pretrained", fail)
    with pytest.raises(DecoderError, match=r"cannot be loaded from .*Give a causal LM in hub layout"):
        load_tokenizer(str(folder))


OFTEN = ("gemma3", "qwen2_vl", "qwen3_vl", "qwen3_asr")


@pytest.mark.parametrize(
    "model_type", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in MULTIMODAL]
)
def test_a_checkpoint_of_images_or_sounds_gives_its_text_decoder(model_type: str, tmp_path: Path) -> None:
    whole = save_multimodal(tmp_path, model_type)
    decoder, (ids,) = load_decoder(str(tmp_path)), random_ids(9)
    with torch.no_grad():
        text = getattr(whole, "thinker", whole)
        expected = text(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    found = run_layers(decoder, id_batch([ids]))
    assert len(decoder.blocks) == 3
    assert drift(torch.stack([*found[:3], found[-1]]), torch.stack(expected)) <= 1e-6
    in_memory = load_decoder(whole, make_tokenizer())
    assert in_memory.description.weight_digest == decoder.description.weight_digest
    plan = parse_plan("nosink-bidirectional:2")
    with plan_in_force(decoder, plan):
        assert check_influence(decoder, plan, n_rows=4, n_tokens=12).is_as_planned


def test_a_checkpoint_that_writes_no_text_is_a_sentence(tmp_path: Path) -> None:
    AutoConfig.for_model("wav2vec2").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(DecoderError, match=r"loaded .*Wav2Vec2Config.*AutoModelForCausalLM\. Give a causal LM"):
        load_decoder(str(tmp_path))


def test_towers_as_deep_as_a_text_decoder_that_is_not_named_are_refused() -> None:
    module: Any = torch.nn.Module()
    module.tower, module.text = (torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3)) for _ in range(2))
    module.config = AutoConfig.for_model("qwen3_vl")
    with pytest.raises(DecoderError, match=r"'mine' decoder has several lists of 3 blocks"):
        find_blocks(module, 3, family="mine")
    module.config = module.config.text_config
    assert find_blocks(module, 3, family="mine") == tuple(module.tower)


of_peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def save_adapter(folder: Path, place: Path, **options: Any) -> Path:
    """Save a LoRA on the causal LM of a folder."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers deprecates
        peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config).save_pretrained(str(place))
    return place


@pytest.fixture(scope="module")
def adapter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA that was saved on the causal LM."""
    place = tmp_path_factory.mktemp("adapters") / "lora"
    return save_adapter(folder, place, target_modules=["q_proj", "up_proj"])


def edited(adapter: Path, copy: Path, edit: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> str:
    """Copy an adapter with other tensors."""
    shutil.copytree(adapter, copy)
    save_file(edit(load_file(adapter / "adapter_model.safetensors")), copy / "adapter_model.safetensors")
    return str(copy)


@of_peft
def test_an_adapter_saved_on_the_body_is_that_of_the_causal_model(folder: Path, adapter: Path, tmp_path: Path) -> None:
    on_body = edited(
        adapter,
        tmp_path / "body",
        lambda tensors: {
            key.replace("base_model.model.model.", "base_model.model."): tensor for key, tensor in tensors.items()
        },
    )
    bare, whole, body = (
        load_decoder(DecoderSpec(str(folder), adapter=name, device="cpu")).description.weight_digest
        for name in (None, str(adapter), on_body)
    )
    assert whole == body != bare


@of_peft
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_that_adds_nothing_changes_no_bit(
    folder: Path, adapter: Path, tmp_path: Path, dtype: Literal["float32", "bfloat16"]
) -> None:
    base = Path(shutil.copytree(folder, tmp_path / "base"))
    weights = load_file(base / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.weight"][:2] = -0.0
    weights[KEY][0, 1:3] = torch.tensor([-0.0, 0.0])
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    untrained = edited(
        adapter,
        tmp_path / "untrained",
        lambda tensors: {key: tensor * ("lora_B" not in key) for key, tensor in tensors.items()},
    )
    bare, same, other = (
        load_decoder(DecoderSpec(str(base), adapter=name, device="cpu", dtype=dtype))
        for name in (None, untrained, str(adapter))
    )
    assert same.description.weight_digest == bare.description.weight_digest
    weight, changed = (decoder.blocks[0].get_parameter("self_attn.q_proj.weight") for decoder in (same, other))
    assert weight[:2].signbit().all()
    assert (changed[:2] != 0).all()


@of_peft
@pytest.mark.parametrize(
    ("without", "named"),
    [
        ("layers.1.", "lacks 4 tensors, such as 'base_model.model.model.layers.1"),
        ("lora_A", "lacks 6 tensors, such as .*lora_A"),
        ("lora_B", "lacks 6 tensors, such as .*lora_B"),
    ],
)
def test_an_adapter_without_all_its_tensors_is_refused(
    folder: Path, adapter: Path, tmp_path: Path, without: str, named: str
) -> None:
    for form, prefix in (("whole", "base_model.model.model."), ("body", "base_model.model.")):
        half = edited(
            adapter,
            tmp_path / form,
            lambda tensors, prefix=prefix: {  # type: ignore[misc]
                key.replace("base_model.model.model.", prefix): tensor
                for key, tensor in tensors.items()
                if without not in key
            },
        )
        with pytest.raises(DecoderError, match=named.replace("base_model.model.model.", prefix)):
            load_decoder(DecoderSpec(str(folder), adapter=half, device="cpu"))


@of_peft
@pytest.mark.parametrize("surplus", ["model.layers.7.self_attn.q_proj.lora_A.weight", "layers.0.mlp.other.weight"])
def test_an_adapter_with_a_tensor_that_has_no_place_is_refused(
    folder: Path, adapter: Path, tmp_path: Path, surplus: str
) -> None:
    more = edited(
        adapter, tmp_path / "more", lambda tensors: {**tensors, f"base_model.model.{surplus}": torch.ones(2, 2)}
    )
    with pytest.raises(DecoderError, match=rf"does not take, 1 tensors, such as .*{surplus.rpartition('.')[0]}"):
        load_decoder(DecoderSpec(str(folder), adapter=more, device="cpu"))


@of_peft
def test_an_adapter_without_the_biases_it_trained_is_refused(tmp_path: Path) -> None:
    base = save_decoder(tmp_path / "base", attention_bias=True)
    save_adapter(base, tmp_path / "lora", target_modules=["q_proj"], bias="lora_only")
    load_decoder(DecoderSpec(str(base), adapter=str(tmp_path / "lora"), device="cpu"))
    half = edited(
        tmp_path / "lora",
        tmp_path / "half",
        lambda tensors: {key: tensor for key, tensor in tensors.items() if not key.endswith(".bias")},
    )
    with pytest.raises(DecoderError, match=r"lacks 3 tensors, such as .*q_proj.*bias"):
        load_decoder(DecoderSpec(str(base), adapter=half, device="cpu"))


@of_peft
def test_adapters_are_stacked_in_their_order(folder: Path, adapter: Path, tmp_path: Path) -> None:
    """DoRA rescales the columns of the weights that it finds, so that two orders are two decoders."""
    second = str(save_adapter(folder, tmp_path / "dora", target_modules=["q_proj", "down_proj"], use_dora=True))
    auto: Any = AutoModelForCausalLM
    for number, place in enumerate([str(adapter), second]):  # one after the other, each saved
        base = folder if number == 0 else tmp_path / "merged-0"
        model: Any = peft.PeftModel.from_pretrained(auto.from_pretrained(base), place).merge_and_unload()
        model.save_pretrained(tmp_path / f"merged-{number}")
    expected = auto.from_pretrained(tmp_path / "merged-1").base_model.state_dict()
    stacked, typed, reversed_, alone = (
        load_decoder(DecoderSpec(str(folder), adapter=names, device="cpu"))
        for names in ((str(adapter), second), f"{adapter}, {second}", (second, str(adapter)), (second,))
    )
    assert stacked.description.adapter == "lora,dora"
    assert alone.description.adapter == "dora"
    assert typed.description == stacked.description
    for name, tensor in stacked.module.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=0)
    key = "layers.0.self_attn.q_proj.weight"
    for other in (reversed_, alone):
        assert drift(other.module.state_dict()[key], expected[key]) > 1e-3


def test_a_list_of_adapters_is_written_as_one_and_a_single_one_as_a_text() -> None:
    one, two = DecoderSpec("tiny", adapter=("a",)), DecoderSpec("tiny", adapter=("a", "b"))
    assert one == DecoderSpec("tiny", adapter="a")
    assert plain_decoder(one)["adapter"] == "a"
    assert plain_decoder(two)["adapter"] == ["a", "b"]
    assert read_plain_decoder(plain_decoder(two)) == two == DecoderSpec("tiny", adapter="a,b")
    assert as_decoder_spec({"name": "tiny", "adapter": ["a", "b"]}) == two
    assert DecoderSpec("tiny", adapter=("a,b",)).adapters == ("a,b",)  # a folder of that name
    merged = DecoderSpec(merge=(MergePart("tiny", 1.0, adapter=("a", "b")),))
    assert merged.name == "1*tiny+a+b"
    assert read_plain_decoder(plain_decoder(merged)) == merged
    for wrong in ("a,", ["a", 1], 5):
        with pytest.raises(DecoderError, match=r"decoder\.adapter is .*; allowed: an adapter, or a list of them"):
            read_plain_decoder({"name": "tiny", "adapter": wrong})


@of_peft
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"peft_type": "MULTITASK_PROMPT_TUNING", "prompt_tuning_init_state_dict_path": "x.pt"}, "is of the type"),
        ({"layer_replication": [[0, 2]] * 100_000}, "sets 'layer_replication', which is not read"),
        ({"alora_invocation_tokens": [1]}, "sets 'alora_invocation_tokens', which is not read"),
        ({"init_lora_weights": "pissa_niter_100000000"}, "began as 'pissa_niter_100000000', which changes the decoder"),
        ({"rank_pattern": {"([a-z_.0-9]+)+!": 4}}, "has rank_pattern or alpha_pattern with more than names in it"),
        ({"modules_to_save": ["([a-z_.0-9]+)+!"]}, "has modules_to_save with more than names in it"),
        ({"r": 10**9}, "has a rank of 1000000000, and no tensor of it is that large"),
        ({"rank_pattern": {"q_proj": 10**9}}, "has a rank of 1000000000, and no tensor of it is that large"),
    ],
)
def test_an_adapter_of_anybody_neither_hangs_nor_fills_the_memory(
    folder: Path, adapter: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    """Each of these patterns and numbers would keep peft busy for hours, or have it read a file of their choice."""
    copy = Path(shutil.copytree(adapter, tmp_path / "theirs"))
    settings = json.loads((copy / "adapter_config.json").read_text(encoding="utf-8"))
    (copy / "adapter_config.json").write_text(json.dumps({**settings, **changes}), encoding="utf-8")
    with pytest.raises(DecoderError, match=f"{sentence}.*; allowed: LoRA or DoRA whose settings are names and numbers"):
        load_decoder(DecoderSpec(str(folder), adapter=str(copy), device="cpu"))


@of_peft
def test_a_pattern_of_modules_stands_for_those_with_tensors(folder: Path, adapter: Path, tmp_path: Path) -> None:
    """A pattern is not matched, which may take for ever: the names of the tensors say the same."""
    digests = []
    plain = ["q_proj", "up_proj"]
    patterns = [(plain, None), (r".*\.(q_proj|up_proj)", None), ("([a-z_.0-9]+)+!", None), (plain, "([a-z_.0-9]+)+!")]
    for number, (targets, excluded) in enumerate([*patterns, ("all-linear", "([a-z_.0-9]+)+!")]):
        copy = Path(shutil.copytree(adapter, tmp_path / str(number)))
        settings = json.loads((copy / "adapter_config.json").read_text(encoding="utf-8"))
        settings |= {"target_modules": targets, "exclude_modules": excluded}
        (copy / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
        spec = DecoderSpec(str(folder), adapter=str(copy), device="cpu")
        digests.append(load_decoder(spec).description.weight_digest)
    assert len(set(digests)) == 1


@of_peft
def test_weights_of_elsewhere_are_refused(folder: Path, adapter: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "indexed"))
    (tmp_path / "mine.safetensors").write_bytes((copy / "model.safetensors").read_bytes())
    (copy / "model.safetensors").unlink()
    keys = dict.fromkeys(load_file(tmp_path / "mine.safetensors"), "../mine.safetensors")
    os.mkfifo(copy / "pipe.safetensors")
    for name in ("../mine.safetensors", str(tmp_path / "mine.safetensors"), "pipe.safetensors"):
        index = {"metadata": {}, "weight_map": dict.fromkeys(keys, name)}
        (copy / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        with pytest.raises(DecoderError, match=r"names .*, which is no file beside it"):
            load_decoder(str(copy))
    more = Path(shutil.copytree(folder, tmp_path / "more"))  # as many are: the index of a form that was not fetched
    index = {"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}}
    (more / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")
    load_decoder(str(more))
    both = Path(shutil.copytree(folder, tmp_path / "both"))
    shutil.copy(adapter / "adapter_config.json", both)
    with pytest.raises(DecoderError, match=r"holds an adapter, whose decoder is another; give that as decoder\.name"):
        load_decoder(str(both))
    pipe = Path(shutil.copytree(adapter, tmp_path / "pipe"))
    (pipe / "adapter_model.safetensors").unlink()
    os.mkfifo(pipe / "adapter_model.safetensors")
    with pytest.raises(DecoderError, match=r"adapter_model.safetensors of adapter .* is no plain file"):
        load_decoder(DecoderSpec(str(folder), adapter=str(pipe)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_hidden_layers": 10**8}, "has num_hidden_layers 100,000,000; allowed: up to 10,000"),
        ({"vision_config": {"depth": 10**8}}, "has depth 100,000,000; allowed: up to 10,000"),
        ({"attn_implementation": "evil/kernel"}, "names code of the hub for attention|kernels"),
        ({"transformers_weights": "sub/x.safetensors.index.json"}, "names its weights as transformers_weights"),
    ],
)
def test_a_configuration_of_anybody_ends_in_a_sentence(
    folder: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "theirs"))
    settings = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**settings, **changes}), encoding="utf-8")
    with pytest.raises(DecoderError, match=sentence):
        load_decoder(str(copy))


def test_a_panic_of_a_tokenizer_is_a_sentence(folder: Path, tmp_path: Path) -> None:
    """Its library is written in Rust, and ends such a pattern in what is no `Exception`."""
    copy = Path(shutil.copytree(folder, tmp_path / "theirs"))
    settings = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    split = {"type": "Split", "pattern": {"Regex": "(a|a|aa)+$"}, "behavior": "Isolated", "invert": False}
    settings["pre_tokenizer"] = split
    (copy / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(IcecoreError, match="the tokenizer cannot be run"):
        embed_texts(load_decoder(str(copy)), ["a" * 60 + "b"], spec=ExtractionSpec())


@of_peft
def test_an_empty_tensor_allows_no_rank(folder: Path, adapter: Path, tmp_path: Path) -> None:
    """It takes no byte of a file, whatever its other dimension."""
    name = edited(adapter, tmp_path / "theirs", lambda tensors: {**tensors, "x": torch.zeros(10**9, 0)})
    settings = json.loads((tmp_path / "theirs/adapter_config.json").read_text(encoding="utf-8"))
    (tmp_path / "theirs/adapter_config.json").write_text(json.dumps({**settings, "r": 10**6}), encoding="utf-8")
    with pytest.raises(DecoderError, match="has a rank of 1000000, and no tensor of it is that large"):
        load_decoder(DecoderSpec(str(folder), adapter=name, device="cpu"))
