"""A frozen decoder and its description."""

import inspect
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from extract.decoders.bidirectional import bidirectional_flags
from extract.decoders.layers import layer_names
from extract.decoders.locate import Located
from extract.decoders.placement import computing_device
from extract.decoders.spec import MergePart
from extract.digest import digest_module, digest_tokenizer
from extract.errors import DecoderError

RARE = ("merge", "quantization", "bidirectional")
"""What is recorded only of decoders that have it: the identities of others stay what they were."""
UNBOUNDED = 1 << 20  # a window for decoders that state none, in tokens


@dataclass(frozen=True)
class DecoderDescription:
    """What a decoder is; stored with every cache."""

    name: str  # as asked for, a path shortened to its last part
    source: str  # `folder`, `gguf`, `hub`, `known` or `memory`
    revision: str  # hub commit or wheel version; empty for a local folder
    adapter: str  # as asked for, or empty
    family: str  # `model_type` of the configuration (`llama`, `gpt2` ...)
    n_layers: int  # blocks
    width: int  # dimension `D` of the hidden states
    n_parameters: int  # below the language-model head
    window: int  # longest row in tokens
    dtype: str  # of the computation
    attention: str  # attention implementation of transformers
    weight_digest: str  # SHA-256 over parameters and buffers as they are used
    tokenizer_digest: str  # SHA-256 over the tokenizer
    merge: tuple[str, ...] = ()  # weight and name of every checkpoint of a merge
    quantization: dict[str, Any] | None = None  # as asked for
    bidirectional: dict[str, Any] | None = None  # flags by which the checkpoint attends to both sides; off here

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain values; those that most decoders lack only where there is one."""
        values = asdict(self) | {"merge": list(self.merge)}
        return {key: value for key, value in values.items() if value or key not in RARE}


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

    def __repr__(self) -> str:
        found = self.description
        what = f"{found.family}, {found.n_layers} blocks, width {found.width}"
        return f"<decoder {found.name}: {what}, {found.dtype} on {self.device}>"

    @property
    def device(self) -> torch.device:
        """Device that inputs go to, that of the embedding; blocks may be on others (`devices`)."""
        return computing_device(self.module)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Device that each block computes on, bottom up."""
        return tuple(map(computing_device, self.blocks))

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of all layers, bottom up."""
        return layer_names(len(self.blocks))

    @cached_property
    def split_length(self) -> int | None:
        """Longest row, in tokens, before rotary frequencies change for the whole batch (longrope); None without.

        Rows on both sides of it must not share a batch: their latents would depend on their neighbours.
        """
        config: Any = self.module.config
        rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
        return rope.get("original_max_position_embeddings") if rope.get("rope_type") == "longrope" else None

    @cached_property
    def longest_dense_row(self) -> int | None:
        """Longest row, in tokens, of which a sparse indexer (DeepSeek V3.2) keeps every key; None without one.

        In longer rows it keeps the keys of the highest scores. Many scores are exactly 0, and which of those it keeps
        depends on the padded length of the batch.
        """
        config: Any = self.module.config
        return getattr(config.get_text_config(), "index_topk", None)

    @cached_property
    def takes_position_ids(self) -> bool:
        """Whether the forward call accepts `position_ids`."""
        return "position_ids" in inspect.signature(self.module.forward).parameters


def wrap_decoder(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, located: Located | None = None, adapter: str = "",
    merge: tuple[MergePart, ...] = (), quantization: dict[str, Any] | None = None,
) -> Decoder:  # fmt: skip
    """Freeze and describe a causal language model that is already in memory.

    Args:
        model: Any causal LM of transformers, moved and cast by the caller.
        tokenizer: Its fast tokenizer.
        located: Where it came from; in memory when absent.
        adapter: The adapter merged into it, for the description.
        merge: The checkpoints it was merged of, for the description.
        quantization: How its weights were quantised, for the description.

    Raises:
        DecoderError: Its blocks cannot be found.
    """
    located = located or Located(name="in-memory", source="memory", path="", revision="")
    module = body_of(model)
    module.eval().requires_grad_(False)
    config: Any = module.config
    text_config, n_layers, width = _sizes(config)
    blocks = find_blocks(module, n_layers, family=config.model_type)
    description = DecoderDescription(
        name=located.name,
        source=located.source,
        revision=located.revision,
        adapter=Path(adapter).name if Path(adapter).exists() else adapter,
        family=str(config.model_type),
        n_layers=len(blocks),
        width=width,
        n_parameters=sum(p.numel() for p in module.parameters()),
        window=_window(text_config),
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
        attention=str(config._attn_implementation or "own"),  # transformers offers no public name
        weight_digest=digest_module(module),
        tokenizer_digest=digest_tokenizer(tokenizer),
        merge=tuple(part.label for part in merge),
        quantization=quantization,
        bidirectional=bidirectional_flags(config) or None,
    )
    return Decoder(module, blocks, tokenizer, description)


def _sizes(config: Any) -> tuple[Any, int, int]:
    """Return the configuration of the text decoder, its number of blocks and its width."""
    try:
        text_config = config.get_text_config()
        return text_config, int(text_config.num_hidden_layers), int(text_config.hidden_size)
    except (AttributeError, ValueError, TypeError, NotImplementedError) as error:
        raise DecoderError(
            f"the configuration of the family {config.model_type!r} does not state one number of blocks and one width "
            "(several transformers in one, as over bytes and patches, are not read); allowed: causal language models "
            "with all blocks in one module list."
        ) from error


def find_blocks(module: nn.Module, n_layers: int, *, family: str) -> tuple[nn.Module, ...]:
    """Find the blocks of a decoder, bottom up: its first module list of `n_layers`; DecoderError when there is none."""
    for _, child in module.named_modules():
        if isinstance(child, nn.ModuleList) and len(child) == n_layers:
            return tuple(child)
    raise DecoderError(
        f"the {family!r} decoder has no list of {n_layers} blocks to read from; "
        "allowed: causal language models with all blocks in one module list."
    )


def body_of(model: nn.Module) -> nn.Module:
    """Return a causal language model without its head; that of its text decoder where it has several parts."""
    get_decoder = getattr(model, "get_decoder", None)
    body = get_decoder() if callable(get_decoder) else getattr(model, "base_model", model)
    if getattr(body, "lm_head", None) is not None:  # a model of several parts hands out its text model, head and all
        body = getattr(body, "model", body)
    if not hasattr(body, "config"):  # a head that is called `decoder` (ModernBERT)
        body = getattr(model, "base_model", model)
    return body if isinstance(body, nn.Module) else model


def _window(config: Any) -> int:
    for key in ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    return UNBOUNDED
