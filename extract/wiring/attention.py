"""Attention under a given mask: one function for every family that goes through the library's attention interface."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from extract.masks.kinds import additive

# What an attention layer may pass along that changes its result and that is not computed here: refused, never ignored.
DECIDING = {
    "position_bias", "head_mask", "attention_sink", "sinks", "logit_softcapping", "alibi", "indices", "block_indices",
}  # fmt: skip


def attend(
    query: Float[Tensor, "B Q T H"],
    key: Float[Tensor, "B K T H"],
    value: Float[Tensor, "B K T V"],
    *,
    mask: Tensor | str,
    scaling: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Float[Tensor, "B T Q V"]:
    """Compute attention.

    Args:
        query: `(B, heads, T, H)`.
        key: `(B, key heads, T, H)`; a number of heads that divides the query's is repeated.
        value: `(B, key heads, T, H)`.
        mask: `(B or 1, 1, T, T)` bool, or `"none"`, `"causal"` or `"backward"` for an unpadded batch, which need no
            mask in memory.
        scaling: Factor of the scores; `H ** -0.5` when absent.
        softcap: Scores are capped smoothly at this value (Gemma 2).
        sinks: `(heads,)` learned scores of a sink that takes part in the softmax and has no value (GPT-OSS).

    Returns:
        `(B, T, heads, H)`, contiguous.
    """
    n_groups = query.shape[1] // key.shape[1]
    if n_groups > 1:
        key, value = key.repeat_interleave(n_groups, dim=1), value.repeat_interleave(n_groups, dim=1)
    if softcap is None and sinks is None:
        mixed = _fast(query, key, value, mask, scaling)
    else:
        scores = attention_scores(query, key, mask=mask, scaling=scaling, softcap=softcap)
        mixed = _softmax(scores, sinks).to(value.dtype) @ value
    return mixed.transpose(1, 2).contiguous()


def _fast(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | str, scaling: float | None) -> Tensor:
    if isinstance(mask, Tensor):
        bias = additive(mask, query.dtype)
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
    if mask == "backward":  # causal attention on the row read from its end
        query, key, value = query.flip(2), key.flip(2), value.flip(2)
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).flip(2)
    return scaled_dot_product_attention(query, key, value, is_causal=mask == "causal", scale=scaling)


def attention_weights(
    query: Float[Tensor, "B Q T H"],
    key: Float[Tensor, "B K T H"],
    *,
    mask: Tensor | str,
    scaling: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Float[Tensor, "B Q T T"]:
    """Compute attention weights, arguments as in `attend`.

    Returns:
        `(B, heads, T, T)` float32; rows sum to 1, or to less where learned sinks take their share.
    """
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    return _softmax(attention_scores(query, key, mask=mask, scaling=scaling, softcap=softcap), sinks)


def attention_scores(
    query: Float[Tensor, "B Q T H"],
    key: Float[Tensor, "B Q T H"],
    *,
    mask: Tensor | str,
    scaling: float | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "B Q T T"]:
    """Compute masked attention scores before the softmax, in float32.

    Args:
        query: As in `attend`.
        key: As in `attend`, heads repeated already.
        mask: As in `attend`.
        scaling: As in `attend`.
        softcap: As in `attend`.

    Returns:
        `(B, heads, T, T)`, minus infinity where the mask forbids.
    """
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query @ key.transpose(2, 3) * factor).float()
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if isinstance(mask, str):
        table = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        mask = {"none": table, "causal": table.tril(), "backward": table.triu()}[mask]
    return scores.masked_fill(~mask, float("-inf"))


def _softmax(scores: Float[Tensor, "B Q T T"], sinks: Tensor | None) -> Float[Tensor, "B Q T T"]:
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.float().reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
