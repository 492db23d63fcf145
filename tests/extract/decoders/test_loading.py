"""Loading from a local folder, in the asked dtype, or a sentence."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from extract import DecoderSpec, load_decoder
from extract.decoders.loading import choose_device, load_tokenizer
from extract.errors import DecoderError, UnknownNameError
from extract.wiring.capture import pool_batch
from tests.extract.tiny_decoders import SENTENCES, encode_batch, make_decoder, make_tokenizer, save_decoder

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
