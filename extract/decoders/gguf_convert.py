"""One GGUF file to a folder of safetensors, config and fast tokenizer, once, through transformers."""

import contextlib
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

from extract.errors import DecoderError

DIGIT_SPLITTING = frozenset({"smollm", "starcoder", "refact", "command-r"})
"""`tokenizer.ggml.pre` whose original tokenizer cuts every digit off before the byte-level split."""

PLAIN_BYTE_LEVEL = frozenset({"gpt-2", "gpt2", "phi-2", "mpt", "olmo"})
"""`tokenizer.ggml.pre` for which GPT-2's split is the original one."""


def require_gguf_modules() -> None:
    """Refuse to go on without the packages that a conversion needs."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise DecoderError(f"reading a GGUF file needs {' and '.join(missing)}: run pip install {' '.join(missing)}")


def convert_gguf(gguf: Path, folder: Path) -> str:
    """Convert a GGUF file to float32 safetensors with config and fast tokenizer, in an empty or missing folder.

    Progress bars of transformers are silenced by lending this process another stderr while it converts.

    Returns:
        How text is split before the merges: `"smollm: digits, byte level"`; a name that neither transformers nor
        this module knows ends in `"unknown, split as GPT-2 does"`.

    Raises:
        DecoderError: A package is missing, the file is no GGUF, or transformers cannot read it.
    """
    require_gguf_modules()
    _check_magic(gguf)
    # Imported before stderr is lent away: the logging handlers of transformers keep the stderr they first see.
    import transformers.modeling_gguf_pytorch_utils  # noqa: F401

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            _convert_model(gguf.resolve(), folder)
            return _convert_tokenizer(gguf.resolve(), folder)
    except Exception as error:  # readers of foreign files raise whatever the bytes make them raise
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise DecoderError(f"cannot convert GGUF file {gguf.name!r}: transformers says {text}") from error


def _check_magic(gguf: Path) -> None:
    with gguf.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise DecoderError(f"{str(gguf)!r} is not a GGUF file: it starts with {magic!r}, not b'GGUF'")


def _convert_model(gguf: Path, folder: Path) -> None:
    import torch
    import transformers

    options: dict[str, Any] = {"dtype": torch.float32}
    if hasattr(transformers, "GgufConfig"):  # older versions always unpack, and have no such switch
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    # The empty folder stands for the checkpoint, so that no other file beside the GGUF is ever read.
    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), gguf_file=str(gguf), **options)
    model.save_pretrained(folder)


def _convert_tokenizer(gguf: Path, folder: Path) -> str:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), gguf_file=str(gguf))
    if not tokenizer.is_fast:
        raise ValueError(f"the tokenizer {type(tokenizer).__name__} is not a fast one, so it gives no offsets")
    split = _restore_digit_split(tokenizer, _stated_pre_tokenizer(gguf))
    tokenizer.save_pretrained(folder)
    return split


def _stated_pre_tokenizer(gguf: Path) -> str:
    from gguf import GGUFReader

    field = GGUFReader(gguf).fields.get("tokenizer.ggml.pre")
    return str(field.contents()) if field is not None else ""


def _restore_digit_split(tokenizer: Any, stated: str) -> str:
    """Put back the digit split that transformers drops; say how the text is split now."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    backend = tokenizer.backend_tokenizer
    now = json.loads(backend.to_str())["pre_tokenizer"]
    if now is None or now["type"] != "ByteLevel":
        return f"{stated or 'unstated'}: as transformers reads it"
    if stated in DIGIT_SPLITTING:
        byte_level = ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), byte_level])
        return f"{stated}: digits, byte level"
    if stated in PLAIN_BYTE_LEVEL:
        return f"{stated}: byte level"
    return f"{stated or 'unstated'}: unknown, split as GPT-2 does"
