"""Attention under a given mask: one function for every family that goes through the library's attention interface."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from extract.masks.matrices import additive

# What an attention layer may pass along that changes its result and that is not computed here: refused, never ignored.
DECIDING = {
    "position_bias",
    "head_mask",
    "attention_sink",
    "sinks",
    "logit_softcapping",
    "alibi",
    "indices",
    "block_indices",
}


def attend(
    query: Float[Tensor, "B Q T H"],
    key: Float[Tensor, "B K S H"],
    value: Float[Tensor, "B K S V"],
    *,
    mask: Tensor | str,
    scaling: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Float[Tensor, "b 1 T S"] | None = None,
) -> Float[Tensor, "B T Q V"]:
    """Compute attention.

    Args:
        query: `(B, heads, T, H)`.
        key: `(B, key heads, S, H)`; a number of heads that divides the query's is repeated.
        value: `(B, key heads, S, V)`.
        mask: `(B or 1, 1, T, S)` bool, or `"none"`, `"causal"` or `"backward"` for an unpadded batch, which need no
            mask in memory.
        scaling: Factor of the scores; `H ** -0.5` when absent.
        softcap: Scores are capped smoothly at this value (Gemma 2).
        sinks: `(heads,)` learned scores of a sink that takes part in the softmax and has no value (GPT-OSS).
        bias: The mask as what is added to scores, in the dtype of the queries, if it has been made already.

    Returns:
        `(B, T, heads, V)`, contiguous.
    """
    value = _repeat_heads(value, query.shape[1])
    if softcap is None and sinks is None:
        mixed = _fast(query, _repeat_heads(key, query.shape[1]), value, mask if bias is None else bias, scaling)
    else:
        weights = attention_weights(query, key, mask=mask, scaling=scaling, softcap=softcap, sinks=sinks)
        mixed = weights.to(value.dtype) @ value
    return mixed.transpose(1, 2).contiguous()


def prefix_last(
    key: Float[Tensor, "B K T H"], value: Float[Tensor, "B K T V"], mask: Tensor | str, last: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B K S H"], Float[Tensor, "B K S V"], Bool[Tensor, "b 1 T S"]]:
    """Prepend the key and the value of the `last` token of each row, which every query sees (KV-Embedding).

    The key keeps the rotation of its own place, and no bias is added to its scores.
    """
    rows = torch.arange(len(last), device=last.device)
    shown = written_out(mask, key.new_empty(1, 1, key.shape[2], key.shape[2]))
    mask = torch.cat([torch.ones_like(shown[..., :1]), shown], dim=-1)
    key, value = (torch.cat([side[rows, :, last].unsqueeze(2), side], dim=2) for side in (key, value))
    return key, value, mask


def _repeat_heads(x: Float[Tensor, "B K T H"], n_heads: int) -> Float[Tensor, "B Q T H"]:
    n_groups = n_heads // x.shape[1]
    return x.repeat_interleave(n_groups, dim=1) if n_groups > 1 else x


def _fast(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | str, scaling: float | None) -> Tensor:
    if isinstance(mask, Tensor):
        bias = mask if mask.is_floating_point() else additive(mask, query.dtype)
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
    if mask == "backward":  # causal attention on the row read from its end
        query, key, value = query.flip(2), key.flip(2), value.flip(2)
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).flip(2)
    return scaled_dot_product_attention(query, key, value, is_causal=mask == "causal", scale=scaling)


def attention_weights(
    query: Float[Tensor, "B Q T H"],
    key: Float[Tensor, "B K S H"],
    *,
    mask: Tensor | str,
    scaling: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Float[Tensor, "B Q T S"]:
    """Compute attention weights in float32, arguments as in `attend`; learned sinks take their share of each row."""
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query @ _repeat_heads(key, query.shape[1]).transpose(2, 3) * factor).float()
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~written_out(mask, scores), float("-inf"))
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.float().reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


def written_out(mask: Tensor | str, like: Float[Tensor, "*B T S"]) -> Bool[Tensor, "*b T S"]:
    """Write a shortcut out as a mask for scores such as these."""
    if isinstance(mask, Tensor):
        return mask
    table = torch.ones(1, 1, *like.shape[-2:], dtype=torch.bool, device=like.device)
    return {"none": table, "causal": table.tril(), "backward": table.triu()}[mask]
