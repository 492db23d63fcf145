"""Tiny random decoders of many families, and tokenizers made in memory: no weights, no network."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from extract.decoders.decoder import Decoder, quiet_loading, wrap_decoder
from extract.decoders.decoder_spec import layer_names
from extract.files import digest_rows
from extract.inputs.batches import Batch, collate
from extract.inputs.joined_text import JoinedText, digest_texts
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import TextEncoder
from extract.records import to_plain
from extract.store.cache import describe_shard
from extract.store.format import create_store
from extract.store.manifest import CacheIdentity, Manifest
from extract.store.reader import ShardIndex, shared_identity
from extract.store.writer import StoreWriter

N_VOCABULARY = 320
SIZES: dict[str, Any] = {
    "vocab_size": N_VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2_SIZES: dict[str, Any] = {"vocab_size": N_VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
FULL_HEADS = {**SIZES, "num_key_value_heads": 4}
# model_type -> configuration; the window of the sliding families is shorter than the texts.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "gpt2": GPT2_SIZES,
    "qwen2": SIZES,
    "qwen3": {**SIZES, "head_dim": 8},
    "qwen3_moe": {**SIZES, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gemma2": {**SIZES, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
    "gemma3_text": {**SIZES, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
    "mistral": {**SIZES, "sliding_window": 4},
    "phi3": SIZES,
    "olmo2": SIZES,
    "gpt_neox": FULL_HEADS,
    "opt": {**FULL_HEADS, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "stablelm": SIZES,
    "starcoder2": {**SIZES, "sliding_window": 4},
    "cohere": SIZES,
    "bloom": {"vocab_size": N_VOCABULARY, "hidden_size": 32, "n_layer": 3, "n_head": 4},
    "falcon": {**FULL_HEADS, "new_decoder_architecture": False, "multi_query": False, "alibi": False},
}
TOWER = {"hidden_size": 16, "intermediate_size": 16, "patch_size": 14}
EARS = {"d_model": 16, "encoder_layers": 3, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "num_mel_bins": 16}
EYES = {"depth": 3, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4}
SIGNS = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
# model_type -> configuration of a checkpoint with towers beside its text decoder, most of them as deep as that.
MULTIMODAL: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {**SIZES, "head_dim": 8, "sliding_window": 4},
        "vision_config": {**TOWER, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
        "mm_tokens_per_image": 4,
        "image_token_index": 5,
    },
    "llava": {
        "text_config": {**SIZES, "model_type": "llama"},
        "vision_config": {
            **TOWER,
            "model_type": "clip_vision_model",
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 28,
            "projection_dim": 16,
        },
        "image_token_index": 5,
    },
    "qwen2_vl": {
        "text_config": {**SIZES, "rope_parameters": ROPE},
        "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 14},
        **SIGNS,
    },
    "qwen3_vl": {
        "text_config": {**SIZES, "head_dim": 8, "rope_parameters": {**ROPE, "mrope_interleaved": True}},
        "vision_config": {**EYES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        **SIGNS,
    },
    "qwen3_asr": {
        "text_config": {**SIZES, "head_dim": 8},
        "audio_config": {**EARS, "output_dim": 32, "downsample_hidden_size": 8, "n_window": 4, "n_window_infer": 8},
        "audio_token_id": 5,
        "timestamp_token_id": 6,
    },
    "qwen2_audio": {
        "text_config": SIZES,
        "audio_config": {**EARS, "max_source_positions": 16},
        "audio_token_index": 5,
    },
    "voxtral": {
        "text_config": {**SIZES, "head_dim": 8},
        "audio_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_mel_bins": 16,
            "max_source_positions": 16,
        },
        "audio_token_id": 5,
    },
    "granite_speech": {
        "text_config": SIZES,
        "encoder_config": {
            "input_dim": 16,
            "num_layers": 3,
            "hidden_dim": 16,
            "num_heads": 2,
            "output_dim": 8,
            "context_size": 4,
            "max_pos_emb": 8,
        },
        "projector_config": {
            "hidden_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "encoder_hidden_size": 16,
        },
        "audio_token_index": 5,
        "has_lora_adapter": False,
    },
    "qwen2_5_omni": {
        "thinker_config": {
            "text_config": {**SIZES, "rope_parameters": ROPE},
            "audio_config": {**EARS, "output_dim": 32, "max_source_positions": 16, "n_window": 4},
            "vision_config": EYES,
        },
        "enable_audio_output": False,
    },
    "qwen3_omni_moe": {
        "thinker_config": {
            "text_config": {
                **{**SIZES, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
                "rope_parameters": {**ROPE, "mrope_interleaved": True},
            },
            "audio_config": {**EARS, "output_dim": 32, "max_source_positions": 16, "downsample_hidden_size": 8},
            "vision_config": {**EYES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        },
        "enable_audio_output": False,
    },
}
BLOCKS = {"gpt2": "h", "bloom": "h", "falcon": "h"}  # "layers" elsewhere

SENTENCES = (
    "The mouse ran under the table.",
    "A cold core was drilled through the ice sheet of Greenland in 1993.",
    "Ice!",
    "Snow fell on the quiet harbour, and nobody spoke.",
    "Ein Satz mit Umlauten: über, schön, groß.",
    "One two three four five six seven eight nine ten eleven twelve.",
    "a",
    "The drill stopped at a depth of 3053 metres.",
)


def make_texts(n_texts: int) -> list[str]:
    """Make distinct short texts of mixed lengths, the same ones each time."""
    return [f"{SENTENCES[i % len(SENTENCES)]} {i}" for i in range(n_texts)]


def make_tokenizer(*, adds_bos: bool = False, adds_eos: bool = False, has_bos: bool = True) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE on a few sentences; padding shares the id of the end of sentence."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    specials = ["<unused>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCABULARY,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([*SENTENCES, *["The mouse mouse mouse under the table"] * 20], trainer)
    if adds_bos or adds_eos:
        single = f"{'<s> ' if adds_bos else ''}$A{' </s>' if adds_eos else ''}"
        core.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    named = {"bos_token": "<s>"} if has_bos else {}
    wrap: Any = PreTrainedTokenizerFast
    made: PreTrainedTokenizerBase = wrap(tokenizer_object=core, eos_token="</s>", pad_token="</s>", **named)
    return made


def make_model(family: str = "llama", *, seed: int = 0, **changes: Any) -> Any:
    """Make a random causal language model of a family, in eval mode."""
    torch.manual_seed(seed)
    config: Any = AutoConfig.for_model(family, **{**FAMILIES.get(family, {}), **changes})
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config)
    # Larger weights than at initialisation, so that attention and norms matter to the output.
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.15)
        else:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def make_decoder(family: str = "llama", *, seed: int = 0, adds_bos: bool = False, **changes: Any) -> Decoder:
    """Make a tiny random decoder with its tokenizer."""
    return wrap_decoder(make_model(family, seed=seed, **changes), make_tokenizer(adds_bos=adds_bos))


def save_decoder(folder: Path, *, family: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Save a tiny decoder as a local folder in hub layout."""
    make_model(family, **changes).to(dtype).save_pretrained(folder)
    make_tokenizer(adds_bos=True).save_pretrained(folder)
    return folder


def save_multimodal(folder: Path, model_type: str, *, seed: int = 0, **text: Any) -> Any:
    """Save a tiny checkpoint of images or sounds and text, with changes to its text configuration; return the model."""
    torch.manual_seed(seed)
    parts = MULTIMODAL[model_type]
    changed = {"text_config": {**parts["text_config"], **text}} if text else {}
    auto: Any = AutoModelForMultimodalLM
    with quiet_loading():
        model = auto.from_config(AutoConfig.for_model(model_type, **{**parts, **changed})).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.15)
        model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model


def encode_batch(decoder: Decoder, texts: Sequence[str], *, template: InputTemplate | None = None, **how: Any) -> Batch:
    """Encode texts and put them into one batch."""
    encoder = TextEncoder(decoder.tokenizer, template or InputTemplate(), window=decoder.description.window)
    return collate(encoder(texts), range(len(texts)), **how)


def plain_hidden_states(model: Any, ids: Sequence[int], *, family: str) -> dict[str, Tensor]:
    """Run one unpadded text through plain transformers and name its hidden states `(T, D)` as icecore does."""
    body = model.get_decoder() if family not in BLOCKS else model.transformer
    blocks = getattr(body, BLOCKS.get(family, "layers"))
    last: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        last.append((output[0] if isinstance(output, tuple) else output)[0])

    handle = blocks[-1].register_forward_hook(keep)
    with torch.no_grad():
        states = body(input_ids=torch.tensor([list(ids)]), output_hidden_states=True, use_cache=False).hidden_states
    handle.remove()
    names = layer_names(len(blocks))
    below = {name: states[i][0] for i, name in enumerate(names[:-2])}
    return {**below, names[-2]: last[0], names[-1]: states[-1][0]}


def make_manifest(texts: Sequence[str] | Sequence[JoinedText], **changes: Any) -> Manifest:
    """Make the manifest of a small store without a decoder."""
    decoder = {
        "name": "tiny",
        "source": "memory",
        "revision": "",
        "adapter": "",
        "family": "llama",
        "n_layers": 2,
        "width": 6,
        "n_parameters": 1,
        "window": 64,
        "dtype": "float32",
        "attention": "sdpa",
        "weight_digest": "ab" * 32,
        "tokenizer_digest": "cd" * 32,
    }
    fields: dict[str, Any] = {
        "decoder": {**decoder, **{k: changes.pop(k) for k in list(changes) if k in decoder}},
        "plan": "causal",
        "architecture": "inplace",
        "template": InputTemplate().to_dict(),
        "poolings": ("mean", "last"),
        "layers": layer_names(2),
        "storage_dtype": "float32",
        "n_rows": len(texts),
        "text_digest": digest_rows(digest_texts(texts)),
        "versions": {"icecore": "0.1.0"},
    }
    identity = CacheIdentity.from_plain(to_plain({**fields, **changes}))
    return Manifest(identity, {"decoder": decoder, "batching": {"batch_tokens": 64, "min_tokens": 8}})


def write_cache(
    path: Path, texts: Sequence[str], *, is_whole: bool = True, seed: int = 0, **changes: Any
) -> NDArray[np.float32]:
    """Write a store without a decoder; return its latents `(L, P, N, D)` in float32."""
    manifest = make_manifest(texts, **changes)
    identity = manifest.identity
    create_store(path, manifest)
    shape = (len(identity.layers), len(identity.poolings), len(texts), identity.decoder["width"])
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    stored = latents.to(getattr(torch, identity.storage_dtype))
    raw = (stored.view(torch.uint16) if stored.dtype == torch.bfloat16 else stored).numpy()
    rows: dict[str, NDArray[Any]] = {
        "digest": digest_texts(texts),
        "n_tokens": np.arange(1, len(texts) + 1, dtype=np.int32),
        "is_truncated": np.arange(len(texts), dtype=np.uint8) % 2,
    }
    n_rows = len(texts) if is_whole else len(texts) - 1
    writer = StoreWriter(path)
    writer.write_rows(
        0,
        raw[:, :, :n_rows],
        rows={name: values[:n_rows] for name, values in rows.items()},
    )
    writer.close_rows(0, n_rows)
    if is_whole:
        writer.write_certificate({"frozen": {"is_bit_identical": True}})
    writer.close()
    written: NDArray[np.float32] = stored.float().numpy()
    return written


def write_shards(folder: Path, texts: Sequence[str], *, window: int, **changes: Any) -> NDArray[np.float32]:
    """Write shards and their index without a decoder; return their latents `(L, P, N, D)` in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = make_manifest(texts, **changes)
    index = ShardIndex(shared_identity(manifest.identity), manifest.provenance, window)
    parts = []
    for number, start in enumerate(range(0, len(texts), window)):
        path = folder / f"shard-{number:06d}.h5"
        parts.append(write_cache(path, texts[start : start + window], seed=number, **changes))
        index = index.with_shard(describe_shard(path, window=number))
    replace(index, is_complete=True).write(folder)
    return np.concatenate(parts, axis=2)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read every array of a store but its certificate, which holds the time taken, with h5py alone."""
    arrays: dict[str, NDArray[Any]] = {}
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    arrays.pop("certificate")
    arrays.pop("checksums/certificate", None)
    return arrays


def assert_same_arrays(one: Path, other: Path) -> None:
    """Compare two stores bit for bit."""
    a, b = read_arrays(one), read_arrays(other)
    assert a.keys() == b.keys()
    assert len(a) > 4
    for name, values in a.items():
        assert values.tobytes() == b[name].tobytes(), name
