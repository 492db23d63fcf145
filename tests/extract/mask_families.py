"""Tiny decoders of every family the mask plans are tried on, and their hidden states under a plan."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.inputs.batches import Batch, collate
from extract.inputs.joined_text import CONTEXT, TEXT
from extract.inputs.tokens import EncodedText
from extract.masks.mask_plan import parse_kind, parse_plan
from extract.wiring.plan_wiring import masks_in_force, plan_in_force, run_batch
from tests.extract.tiny_decoders import FAMILIES, FULL_HEADS, GPT2_SIZES, N_VOCABULARY, SIZES, make_decoder

Side = Literal["right", "left"]
SIDES: tuple[Side, ...] = ("right", "left")
HEADS_OF_8 = {**SIZES, "head_dim": 8}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
NO_KEYS = {"vocab_size": N_VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
WINDOWED = {**SIZES, "sliding_window": 4}
LATENT_HEADS = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
MAMBA = {"use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}

# Name -> `model_type` and configuration. The families get every theorem, the others the most telling ones.
WORKING: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, config) for name, config in FAMILIES.items() if name not in ("bloom", "falcon")},
    # A soft cap and a window so low that they decide.
    "gemma2": ("gemma2", {**FAMILIES["gemma2"], "attn_logit_softcapping": 0.5}),
    "qwen2-windowed": ("qwen2", {**WINDOWED, "use_sliding_window": True, "max_window_layers": 1}),
    "gpt_oss": ("gpt_oss", {**HEADS_OF_8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}),
    "lfm2-attention": ("lfm2", {**SIZES, "block_ff_dim": 48, "layer_types": ["full_attention"] * 3}),
}
ALSO_WORKING: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("gemma", HEADS_OF_8),
    "vaultgemma": ("vaultgemma", {**HEADS_OF_8, "sliding_window": 4, "query_pre_attn_scalar": 8}),
    "mixtral": ("mixtral", {**WINDOWED, "num_local_experts": 4}),
    "smollm3": ("smollm3", SIZES),
    "granite": ("granite", SIZES),
    "olmo": ("olmo", SIZES),
    "olmo3": ("olmo3", WINDOWED),
    "olmoe": ("olmoe", SIZES),
    "cohere2": ("cohere2", WINDOWED),
    "exaone4": ("exaone4", WINDOWED),
    "glm4": ("glm4", HEADS_OF_8),
    "nemotron": ("nemotron", SIZES),
    "ernie4_5": ("ernie4_5", SIZES),
    "helium": ("helium", HEADS_OF_8),
    "phi": ("phi", SIZES),
    "persimmon": ("persimmon", FULL_HEADS),
    "biogpt": ("biogpt", FULL_HEADS),
    "gpt_bigcode": ("gpt_bigcode", GPT2_SIZES),
    "ctrl": ("ctrl", {**GPT2_SIZES, "dff": 48}),
    "qwen2_moe": ("qwen2_moe", {**SIZES, **EXPERTS, "num_experts": 4}),
    "deepseek_v3": (
        "deepseek_v3",
        {**FULL_HEADS, **EXPERTS, **LATENT_HEADS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    ),
}
# Past the library's attention interface, or with masks of their own: reached by the mask argument.
BY_ARGUMENT: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", FAMILIES["bloom"]),
    "falcon": ("falcon", FAMILIES["falcon"]),
    "falcon-alibi": ("falcon", {**FAMILIES["falcon"], "alibi": True}),
    "mpt": ("mpt", {**NO_KEYS, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64}),
    "gpt_neo": (
        "gpt_neo",
        {
            **NO_KEYS,
            "hidden_size": 32,
            "num_layers": 3,
            "num_heads": 4,
            "max_position_embeddings": 64,
            "attention_types": [[["global", "local", "global"], 1]],
            "window_size": 4,
        },
    ),
    "gptj": ("gptj", {**NO_KEYS, **GPT2_SIZES, "rotary_dim": 4}),
    "codegen": ("codegen", {**NO_KEYS, **GPT2_SIZES, "n_ctx": 64, "rotary_dim": 4}),
    "xglm": ("xglm", {**NO_KEYS, "d_model": 32, "num_layers": 3, "attention_heads": 4, "ffn_dim": 48}),
    "phimoe": ("phimoe", {**WINDOWED, "num_local_experts": 4}),
    "doge": ("doge", SIZES),
}
RECURRENT = r"the family {family!r} computes block 1 without the attention .*\(recurrent, .*"
# Blocks without attention stay causal. Name -> `model_type`, configuration, a plan of the attention blocks alone.
HYBRIDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "jamba": ("jamba", {**SIZES, **MAMBA, "num_experts": 2, "num_experts_per_tok": 1}, "bidirectional@2-2"),
    "lfm2": (
        "lfm2",
        {**SIZES, "block_ff_dim": 48, "layer_types": ["conv", "full_attention", "full_attention"]},
        "bidirectional@2-3",
    ),
    "qwen3_next": (
        "qwen3_next",
        {
            **HEADS_OF_8,
            **EXPERTS,
            **LINEAR,
            "num_experts": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        "bidirectional@2-2",
    ),
}
# Name -> `model_type`, configuration, and what refuses a plan.
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "mamba": (
        "mamba",
        {**NO_KEYS, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8},
        RECURRENT + "as every block; only the plan 'causal' works",
    ),
    **{
        name: (family, config, RECURRENT + f"convert the other blocks alone, for instance '{plan}'")
        for name, (family, config, plan) in HYBRIDS.items()
    },
}


@cache
def family_decoder(name: str) -> Decoder:
    """Make the tiny decoder of a family, once; read-only."""
    family, config = (REFUSED[name] if name in REFUSED else {**WORKING, **ALSO_WORKING, **BY_ARGUMENT}[name])[:2]
    return make_decoder(family, **config)


def random_ids(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Draw rows of token ids of given lengths."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[list[int]] = [torch.randint(3, N_VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    return rows


def id_batch(
    rows: Sequence[Sequence[int]], *, side: Side = "right", spans: Sequence[Sequence[int]] | None = None
) -> Batch:
    """Put rows of token ids into one batch; spans are given per real token."""
    encoded = [
        EncodedText(np.asarray(row, np.int64), np.full(len(row), TEXT, np.int8), is_truncated=False) for row in rows
    ]
    batch = collate(encoded, range(len(rows)), side=side, pad_id=7)
    if spans is None:
        return batch
    numbers = torch.full(batch.ids.shape, CONTEXT)
    numbers[batch.is_real] = torch.tensor([number for row in spans for number in row])
    return replace(batch, spans=numbers)


def run_layers(decoder: Decoder, batch: Batch) -> Tensor:
    """Run a batch under whatever is in force; hidden states `(L, B, T, D)` of every layer."""
    kept: list[Tensor] = []
    run_batch(decoder, batch, lambda _, hidden: kept.append(hidden.clone()))
    return torch.stack(kept)


def hidden_under(decoder: Decoder, batch: Batch, plan: str) -> Tensor:
    """Run a batch under a plan; hidden states `(L, B, T, D)` of every layer."""
    with plan_in_force(decoder, parse_plan(plan)):
        return run_layers(decoder, batch)


def hidden_through_wiring(decoder: Decoder, batch: Batch, kinds: Sequence[str]) -> Tensor:
    """Run a batch through the wiring whatever the kinds; a causal plan in force would go past it."""
    with masks_in_force(decoder, [parse_kind(kind) for kind in kinds]):
        return run_layers(decoder, batch)


def drift(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors `(L, ...)`, relative to the largest value of its layer."""
    scale = other.flatten(1).abs().amax(1).clamp(min=1e-6)
    return float(((one - other).flatten(1).abs().amax(1) / scale).nan_to_num(nan=float("inf")).max())


def real_rows(layers: Tensor, batch: Batch) -> list[Tensor]:
    """Cut hidden states `(L, B, T, D)` into the real tokens `(L, n, D)` of every row."""
    return [layers[:, b, batch.is_real[b]] for b in range(len(batch.rows))]
