"""Frozen decoders: loaded from a known name, a hub id, a local folder or a GGUF file, and described."""

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from extract.digest import digest_module, digest_tokenizer
from extract.errors import DecoderError, unknown_name
from extract.layers import layer_names
from extract.locate import Located, locate_decoder
from extract.quiet import quiet_loading

ComputeDtype = Literal["auto", "float32", "bfloat16", "float16"]
COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNBOUNDED = 1 << 20  # a window for decoders that state none, in tokens


@dataclass(frozen=True)
class DecoderSpec:
    """Which decoder, and how it is to be held."""

    name: str = "smollm2-135m-instruct"
    """A known name (`icecore list decoders`), a hub id, a local folder, or a .gguf file."""
    revision: str | None = None
    """Hub revision: branch, tag or commit; the default branch when absent. The commit is recorded."""
    adapter: str | None = None
    """PEFT/LoRA adapter (hub id or folder), merged into the frozen weights in memory."""
    dtype: ComputeDtype = "auto"
    """Compute dtype; auto: float32 on CPU, on a GPU the checkpoint's own with float16 widened to bfloat16."""
    device: str = "auto"
    """Device, for instance `cpu` or `cuda:1`; auto: the first GPU, else the CPU."""
    trust_remote_code: bool = False
    """Run code that comes with the checkpoint; off unless asked for."""


@dataclass(frozen=True)
class DecoderDescription:
    """What a decoder is; stored with every cache.

    Attributes:
        name: As asked for, a path shortened to its last part.
        source: `folder`, `gguf`, `hub` or `known`.
        revision: Hub commit, or wheel version, or empty for a local folder.
        adapter: Adapter as asked for, or empty.
        family: `model_type` of the configuration (`llama`, `gpt2` ...).
        n_layers: Blocks.
        width: Dimension `D` of the hidden states.
        n_parameters: Parameters below the language-model head.
        window: Longest row in tokens.
        dtype: Compute dtype.
        attention: Attention implementation of transformers.
        weight_digest: SHA-256 over parameters and buffers as they are used.
        tokenizer_digest: SHA-256 over the tokenizer.
    """

    name: str
    source: str
    revision: str
    adapter: str
    family: str
    n_layers: int
    width: int
    n_parameters: int
    window: int
    dtype: str
    attention: str
    weight_digest: str
    tokenizer_digest: str

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain values."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Decoder:
    """A frozen decoder without its language-model head, in eval mode and without gradients.

    Attributes:
        module: The decoder; its output is the normed last hidden state.
        blocks: Its transformer blocks, bottom up.
        tokenizer: Its tokenizer.
        description: What it is.
    """

    module: nn.Module
    blocks: tuple[nn.Module, ...]
    tokenizer: PreTrainedTokenizerBase
    description: DecoderDescription

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.module.parameters()).device

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of all layers, bottom up."""
        return layer_names(len(self.blocks))

    @cached_property
    def takes_position_ids(self) -> bool:
        """Whether the forward call accepts `position_ids`."""
        return "position_ids" in inspect.signature(self.module.forward).parameters


def load_decoder(
    spec: DecoderSpec | str = DecoderSpec(),  # noqa: B008 - frozen
    *,
    report: Callable[[str], None] = lambda line: None,
) -> Decoder:
    """Load a decoder, frozen.

    Args:
        spec: What to load; a string stands for `DecoderSpec(name)`.
        report: Receives one-line remarks (where the decoder comes from).

    Returns:
        The decoder on its device, described.

    Raises:
        DecoderError: It cannot be found, read or wired; the sentence says what was tried.
    """
    spec = DecoderSpec(spec) if isinstance(spec, str) else spec
    located = locate_decoder(spec.name, revision=spec.revision, report=report)
    device = choose_device(spec.device)
    model, tokenizer = _read(located, spec, device)
    return wrap_decoder(model, tokenizer, located=located, adapter=spec.adapter or "")


def wrap_decoder(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, located: Located | None = None, adapter: str = ""
) -> Decoder:
    """Freeze and describe a causal language model that is already in memory.

    Args:
        model: Any causal LM of transformers, moved and cast by the caller.
        tokenizer: Its fast tokenizer.
        located: Where it came from; in memory when absent.
        adapter: The adapter merged into it, for the description.

    Returns:
        The decoder.

    Raises:
        DecoderError: Its blocks cannot be found.
    """
    located = located or Located(name="in-memory", source="memory", path="", revision="")
    module = _body(model)
    module.eval().requires_grad_(False)
    config: Any = module.config
    text_config = config.get_text_config()
    blocks = find_blocks(module, int(text_config.num_hidden_layers), family=config.model_type)
    description = DecoderDescription(
        name=located.name,
        source=located.source,
        revision=located.revision,
        adapter=Path(adapter).name if Path(adapter).exists() else adapter,
        family=str(config.model_type),
        n_layers=len(blocks),
        width=int(text_config.hidden_size),
        n_parameters=sum(p.numel() for p in module.parameters()),
        window=_window(text_config),
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
        attention=str(config._attn_implementation or "own"),  # noqa: SLF001 - transformers offers no public name
        weight_digest=digest_module(module),
        tokenizer_digest=digest_tokenizer(tokenizer),
    )
    return Decoder(module, blocks, tokenizer, description)


def choose_device(name: str) -> torch.device:
    """Resolve a device name.

    Args:
        name: `auto` or a torch device.

    Returns:
        The device; `auto` is the accelerator torch reports, else the CPU.

    Raises:
        DecoderError: A device torch does not know or does not have.
    """
    if name == "auto":
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise DecoderError(
            f"device {name!r} cannot be used here ({str(error).splitlines()[0]}); allowed: auto, cpu"
            f"{', cuda' if torch.cuda.is_available() else ''}."
        ) from error
    return device


def find_blocks(module: nn.Module, n_layers: int, *, family: str) -> tuple[nn.Module, ...]:
    """Find the transformer blocks of a decoder: the first module list as long as the configuration says.

    Args:
        module: The decoder without its head.
        n_layers: Number of blocks in its configuration.
        family: Its `model_type`, for the message.

    Returns:
        The blocks, bottom up.

    Raises:
        DecoderError: There is no such list.
    """
    for _, child in module.named_modules():
        if isinstance(child, nn.ModuleList) and len(child) == n_layers:
            return tuple(child)
    raise DecoderError(
        f"the {family!r} decoder has no list of {n_layers} blocks to read from; "
        "allowed: causal language models whose blocks stand in one module list."
    )


def _read(located: Located, spec: DecoderSpec, device: torch.device) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    revision = {"revision": located.revision} if located.source == "hub" and located.revision else {}
    options: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code, **revision}
    try:
        with quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(located.path, **options)
            model = AutoModelForCausalLM.from_pretrained(located.path, dtype="auto", **options)
            if spec.adapter:
                model = _merge_adapter(model, spec.adapter)
            return model.to(device=device, dtype=_choose_dtype(spec.dtype, model.dtype, device)), tokenizer
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise DecoderError(
            f"decoder {spec.name!r} cannot be loaded from {located.source} {located.path}: {_first_line(error)} "
            "Give a causal LM in hub layout (config.json, safetensors, tokenizer.json), a .gguf file, or a known name."
        ) from error


def _merge_adapter(model: nn.Module, adapter: str) -> Any:
    try:
        from peft import PeftModel
    except ImportError as error:
        raise DecoderError(
            f"adapter {adapter!r} needs the extra package peft; install it with: pip install 'icecore[adapters]'."
        ) from error
    return PeftModel.from_pretrained(model, adapter).merge_and_unload()  # type: ignore[arg-type]


def _choose_dtype(asked: str, checkpoint: torch.dtype, device: torch.device) -> torch.dtype:
    if asked in COMPUTE_DTYPES:
        return COMPUTE_DTYPES[asked]
    if asked != "auto":
        raise unknown_name("compute dtype", asked, ["auto", *COMPUTE_DTYPES])
    if device.type != "cuda":
        return torch.float32
    if checkpoint == torch.float16 and torch.cuda.is_bf16_supported():
        return torch.bfloat16  # massive activations overflow float16
    return checkpoint


def _body(model: nn.Module) -> nn.Module:
    get_decoder = getattr(model, "get_decoder", None)
    body = get_decoder() if callable(get_decoder) else getattr(model, "base_model", model)
    return body if isinstance(body, nn.Module) else model


def _window(config: Any) -> int:
    for key in ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    return UNBOUNDED


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0].rstrip(".") if lines else type(error).__name__) + "."
