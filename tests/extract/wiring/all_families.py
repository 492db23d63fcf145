"""Every causal LM type of the installed transformers, tiny and random: right, refused by name, or not built.

`python -m tests.extract.wiring.all_families` writes the table of docs/families.md; it takes some minutes.
"""

import csv
import re
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from extract.decoders.decoder import Decoder, wrap_decoder
from extract.errors import IcecoreError
from extract.masks.mask_plan import parse_plan
from extract.wiring.certificate import check_batch_invariance, check_influence
from extract.wiring.plan_wiring import plan_in_force
from tests.extract.tiny_decoders import N_VOCABULARY, SIZES, make_tokenizer

TABLE = Path(__file__).parents[3] / "docs" / "tables" / "families.csv"
PLANS = ("causal", "nosink-bidirectional:1", "backward")
MOST_PARAMETERS = 300_000_000  # towers for images stay large
WIDTH, BLOCKS, HEADS = 32, 3, 4
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "model_dim", "word_embed_proj_dim", "d_embed"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), BLOCKS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), HEADS),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "dff", "decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("block_ff_dim", "n_inner", "ffn_hidden_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"), 64),
    **dict.fromkeys(("head_dim", "rotary_dim", "v_head_dim", "attention_head_size"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_intermediate_size"), 16),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "state_size", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 4),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("sliding_window", "attention_window_size"), 4),
    "vocab_size": N_VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_mamba_kernels": False,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "attn_layer_indices": [1],
    "layer_group_size": 2,
    "mamba_d_head": 8,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "mamba_d_ssm": 64,
}

TEXT: dict[str, Any] = {**SIZES, "head_dim": 8}
WINDOWED: dict[str, Any] = {
    **TEXT,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
GEMMA: dict[str, Any] = {**WINDOWED, "global_head_dim": 8, "num_kv_shared_layers": 0}
PER_LAYER: dict[str, Any] = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": N_VOCABULARY}
PART: dict[str, Any] = {**TEXT, "num_key_value_heads": 4}
TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_blocks": 2,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "ext_pw_out_channel": 32,
    "nemo_conv_channels": 32,
    "depthwise_separable_out_channel": 32,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SPELT_OUT: dict[str, dict[str, Any]] = {
    "blt": {
        "vocab_size": N_VOCABULARY,
        "hidden_size": 32,
        "max_position_embeddings": 64,
        "encoder_hash_byte_group_vocab": 100,
        "global_config": PART,
        "patcher_config": PART,
        "encoder_config": {**PART, "hidden_size_global": 32},
        "decoder_config": {**PART, "hidden_size_global": 32},
    },
    "cohere_compass_text": {**WINDOWED, "rope_parameters": {"sliding_attention": ROPE, "full_attention": ROPE}},
    "dbrx": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 3,
        "max_seq_len": 64,
        "vocab_size": N_VOCABULARY,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "gemma3n_text": {
        **WINDOWED,
        **PER_LAYER,
        "intermediate_size": [48] * 3,
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0] * 3,
    },
    "gemma4_text": {**GEMMA, **PER_LAYER},
    "gemma4_unified_text": GEMMA,
    "lfm2_moe": {
        **SIZES,
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_dense_layers": 1,
        "layer_types": ["conv", "full_attention", "full_attention"],
    },
    "modernbert-decoder": {**SIZES, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2},
    "moss_transcribe_diarize": {"text_config": {**TEXT, "model_type": "qwen3"}, "audio_config": TOWER},
    "phi4_multimodal": {
        **SIZES,
        "vision_config": {**TOWER, "image_size": 28, "patch_size": 14},
        "audio_config": TOWER,
    },
    "prophetnet": {
        "vocab_size": N_VOCABULARY,
        "hidden_size": 32,
        "num_encoder_layers": 3,
        "num_decoder_layers": 3,
        "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 64,
        "is_decoder": True,
        "is_encoder_decoder": False,
        "add_cross_attention": False,
    },
    "reformer": {
        "vocab_size": N_VOCABULARY,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "attention_head_size": 8,
        "feed_forward_size": 48,
        "max_position_embeddings": 64,
        "axial_pos_embds": False,
        "is_decoder": True,
        "attn_layers": ["local", "lsh", "local"],
        "num_buckets": 2,
        "local_attn_chunk_length": 64,
        "lsh_attn_chunk_length": 64,
    },
    "xlnet": {"vocab_size": N_VOCABULARY, "d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48},
    "zamba": {
        **SIZES,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_hidden_layers": 5,
        "n_mamba_heads": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
        "mamba_d_state": 8,
    },
}
"""Types that attributes of common names do not make small."""


@dataclass(frozen=True)
class Outcome:
    """What became of one type under one plan."""

    plan: str
    state: str
    why: str = ""


def build(model_type: str) -> Decoder:
    """Make a tiny random decoder of a type; whatever its library says when it cannot is raised."""
    if model_type in SPELT_OUT:
        return _make(AutoConfig.for_model(model_type, **SPELT_OUT[model_type]))
    config: Any = AutoConfig.for_model(model_type)
    changes = _small(config)
    try:
        config = AutoConfig.for_model(model_type, **changes)
    except Exception:  # some check what they are given against defaults of their own
        _change(config, changes)
    inner = config.get_text_config()
    if inner is not config:
        _change(inner, _small(inner))
    whole = AutoConfig.for_model(model_type).get_text_config()
    for each in (config, inner):
        for name in ("layer_types", "mlp_layer_types", "layers_block_type", "block_types"):
            with suppress(AttributeError, TypeError):  # some are worked out from other attributes
                setattr(each, name, _varied(list(getattr(whole, name))))
    try:
        return _make(config)
    except Exception:  # some types of layers must come in their own order
        for each in (config, inner):
            with suppress(AttributeError):
                each.layer_types = AutoConfig.for_model(model_type).get_text_config().layer_types[:BLOCKS]
        return _make(config)


def _make(config: Any) -> Decoder:
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        n_parameters = sum(parameter.numel() for parameter in auto.from_config(config).parameters())
    if n_parameters > MOST_PARAMETERS:
        raise ValueError(f"{n_parameters:,} parameters although everything was made small")
    torch.manual_seed(0)
    model = auto.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.15)
    return wrap_decoder(model.float().eval(), make_tokenizer())


def _small(config: Any) -> dict[str, Any]:
    """Choose what makes a configuration small, among what it has."""
    values = dict(SMALL)
    if _has(config, "qk_rope_head_dim"):  # latent attention: as many key heads as heads, of the rotary dimension
        values |= {"head_dim": values["qk_rope_head_dim"], "num_key_value_heads": HEADS}
    return {name: value for name, value in values.items() if _has(config, name) and _can_set(config, name)}


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # attributes that differ between layers refuse to be read
        return False


def _can_set(config: Any, name: str) -> bool:
    found = getattr(type(config), name, None)
    return not isinstance(found, property) or found.fset is not None


def _change(config: Any, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        setattr(config, name, value)


def _varied(types: list[str]) -> list[str]:
    """Keep three layers, of every type there is."""
    kinds = list(dict.fromkeys(types))
    if kinds == ["linear_attention"]:  # a hybrid whose defaults have no attention
        kinds.append("full_attention")
    return (kinds + types)[:BLOCKS] if len(types) >= BLOCKS else (types * BLOCKS)[:BLOCKS]


def outcomes(model_type: str) -> list[Outcome]:
    """Certify a type under every plan."""
    try:
        decoder = build(model_type)
    except IcecoreError as error:
        return [Outcome(plan, "refused", _first(error)) for plan in PLANS]
    except Exception as error:
        return [Outcome(plan, "not built", f"{type(error).__name__}: {_first(error)}") for plan in PLANS]
    found = [_certify(decoder, plan) for plan in PLANS]
    works = re.search(r"other blocks alone, for instance '([^']+)'", found[-1].why)
    return [*found, _certify(decoder, works[1])] if works else found


def _certify(decoder: Decoder, text: str) -> Outcome:
    plan = parse_plan(text)
    try:
        with plan_in_force(decoder, plan):
            check_influence(decoder, plan, n_rows=12, n_tokens=20)
            check_batch_invariance(decoder)
    except IcecoreError as error:
        return Outcome(text, "refused", _first(error))
    except Exception as error:
        return Outcome(text, "RAW", f"{type(error).__name__}: {_first(error)}")
    return Outcome(text, "right")


def _first(error: Exception) -> str:
    return " ".join(str(error).split()).replace("|", "/")[:300]


def main() -> None:
    """Write a row per type; of types that are named, print it instead."""
    warnings.simplefilter("ignore")
    rows = [["type", *PLANS, "attention blocks alone", "why not"]]
    for model_type in sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        results = outcomes(model_type)
        whys = dict.fromkeys(result.why for result in results if result.why)
        states = [*(result.state for result in results), ""][: len(PLANS) + 1]
        rows.append([model_type, *states, "; ".join(whys)])
        sys.stdout.write(f"{', '.join(rows[-1])}\n")
        sys.stdout.flush()
    if not sys.argv[1:]:
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
