"""Prove a plan block by block: every block gets rows that differ at one token, and only attention may spread it.

What reaches a layer is no proof of its mask: causal blocks below saturate it. So each block is looked at by itself, all
of them in one forward pass, and taken apart:

1. queries, keys and values of a token depend on that token alone;
2. attention equals the textbook formula under the mask of the plan, head by head;
3. with attention held fixed, the block's output at a token depends on that token alone.

Together: the block mixes tokens by attention under that mask and by nothing else. Step 2 is repeated on random vectors
at the batch size and row length of an extraction, where another code path could be taken.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.masks.plan import MaskPlan
from extract.masks.truth import LiteralPlan, literal_mask, literal_plan
from extract.proofs.isolation import BlockCall, look_at_blocks, moved_tokens
from extract.wiring.interface import AttentionCall, Wiring, only_causal, wired_attention
from extract.wiring.precision import in_float32
from extract.wiring.probe_rows import probe_spans
from extract.wiring.untouched import short_windows

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 5e-3}  # of attention, relative to a head's largest value
WHERE = (0, 1, 2, 3, 5, 8, 13)  # tokens looked at in long rows, counted from either end


def prove_blocks(decoder: Decoder, wiring: Wiring, plan: MaskPlan, *, n_rows: int, n_tokens: int) -> dict[str, Any]:
    """Certify the mask of every block, alone and in every head.

    Args:
        decoder: The decoder, the plan in force.
        wiring: Its wiring.
        plan: The plan.
        n_rows: Rows of a large batch of the extraction.
        n_tokens: Tokens of its longest row.

    Returns:
        Plain values for the cache.

    Raises:
        CertificateError: Names the block, the head and the tokens where decoder and plan differ.
        DecoderError: A block mixes tokens beside its attention, so that a plan would convert half of it.
    """
    with short_windows(decoder), wiring.windows_apart():
        with in_float32(decoder) as wide:
            calls = look_at_blocks(wide, wiring)
            held = look_at_blocks(wide, wiring, holds_attention=True)
        literal = require_runs(calls, decoder, plan)
        for call, still in zip(calls, held, strict=True):
            (_require_only_attention if call.attention else require_causal)(call, still, wide)
        worst = max(_check_call(call, decoder, wiring, plan, literal, (n_rows, n_tokens)) for call in calls)
    return {"n_calls": len(calls), "shape": [n_rows, n_tokens], "largest_error": worst}


def require_runs(calls: list[BlockCall], decoder: Decoder, plan: MaskPlan) -> LiteralPlan:
    """Check that the blocks ran that the plan runs, in its order; return the plan as its text reads."""
    literal = literal_plan(plan.text, len(decoder.blocks))
    runs = [(call.block, call.is_again) for call in calls]
    if runs != literal.runs:
        names, planned = (
            " ".join(f"{block + 1}{chr(39) * is_again}" for block, is_again in order) for order in (runs, literal.runs)
        )
        raise CertificateError(
            f"the plan {plan.text!r} did not take effect: blocks {names} ran, where {planned} are planned "
            f"(n' is block n run again). The family {decoder.description.family!r} cannot be extracted under this plan."
        )
    return literal


def _check_call(
    call: BlockCall, decoder: Decoder, wiring: Wiring, plan: MaskPlan, literal: LiteralPlan, shape: tuple[int, int]
) -> float:
    """Compare the attention of one call with the formula, as it was and at another shape; return the largest error."""
    dtype, kind = decoder.description.dtype, literal.kind_of(call.block, is_again=call.is_again)
    is_prefixed = call.block in literal.prefix
    errors = [0.0]
    for attention in call.attention:
        allowed = expected_mask(kind, attention.query.shape[2], window=attention.options.get("sliding_window"))
        wanted = textbook_attention(attention, allowed, is_prefixed=is_prefixed)
        error = _errors(attention.mixed, wanted)
        if float(error.max()) > TOLERANCE["float32"]:
            head = int(error.argmax())
            moved = moved_tokens(attention.mixed, "float32")[:, :, head]
            raise refuse(call, kind, decoder, plan, f"head {head + 1} {_say_difference(moved, allowed, error[head])}")
        errors.append(float(error.max()))
        proved = (call.block, kind, call.is_again, shape)
        if proved in wiring.proved:  # by an earlier plan of a sweep
            continue
        for is_padded in (False, True):
            narrow = replace(attention, query=attention.query.to(getattr(torch, dtype)))
            errors.append(_error_at(shape, call, narrow, literal=literal, wiring=wiring, is_padded=is_padded))
            if errors[-1] > TOLERANCE[dtype]:
                rows = f"{shape[0]} {'padded' if is_padded else 'unpadded'} rows of {shape[1]} tokens"
                raise refuse(call, kind, decoder, plan, f"in {rows} its attention differs by {errors[-1]:.2g}")
        wiring.proved.add(proved)
    return max(errors)


def refuse(call: BlockCall, kind: str, decoder: Decoder, plan: MaskPlan, what: str) -> CertificateError:
    """Build the error for a block whose mask is not the plan's."""
    return CertificateError(
        f"the plan {plan.text!r} did not take effect in block {call.block + 1}, planned as {kind!r}: {what}. "
        f"The family {decoder.description.family!r} cannot be extracted under this plan."
    )


def _say_difference(moved: Bool[Tensor, "T T"], allowed: Bool[Tensor, "T T"], error: Tensor) -> str:
    for wrong, verb in ((moved & ~allowed, "depends on"), (allowed & ~moved, "ignores")):
        if len(places := wrong.nonzero()):
            return f"of token {int(places[0, 0])} {verb} token {int(places[0, 1])}"
    return f"differs by {float(error):.2g} of its largest value from softmax attention with its scale, cap and sinks"


def _require_only_attention(call: BlockCall, held: BlockCall, decoder: Decoder) -> None:
    """Check that nothing mixes tokens before attention, nor beside it."""
    others = ~torch.eye(len(call.moved), dtype=torch.bool)
    sides = [side.transpose(1, 2) for found in call.attention for side in (found.query, found.key, found.value)]
    for what, moved in (
        ("before", torch.stack([moved_tokens(side, decoder.description.dtype).any(-1) for side in sides]).any(0)),
        ("beside", held.moved),
    ):
        if len(places := (moved & others).nonzero()):
            i, j = places[0].tolist()
            raise only_causal(
                decoder.description.family,
                f"mixes tokens {what} its attention (block {call.block + 1}: token {i} depends on token {j}), where no "
                "mask plan reaches",
            )


def require_causal(call: BlockCall, _: BlockCall, decoder: Decoder) -> None:
    """Check that a recurrent block lets no token see a later one."""
    if len(places := call.moved.triu(1).nonzero()):
        i, j = places[0].tolist()
        why = f"lets token {i} depend on the later token {j} in block {call.block + 1}, which has no attention to mask"
        raise only_causal(decoder.description.family, why)


def _error_at(
    shape: tuple[int, int],
    call: BlockCall,
    attention: AttentionCall,
    *,
    literal: LiteralPlan,
    wiring: Wiring,
    is_padded: bool,
) -> float:
    """Run a block's attention on random vectors of another shape, and compare some of its tokens with the formula."""
    (n_rows, n_tokens), query = shape, attention.query
    kind = literal.kind_of(call.block, is_again=call.is_again)
    sides = [
        _random((n_rows, side.shape[1], n_tokens, side.shape[3]), seed).to(query)
        for seed, side in enumerate((query, attention.key, attention.value))
    ]
    lengths = [n_tokens - (row * n_tokens // (2 * n_rows) if is_padded else 0) for row in range(n_rows)]
    is_real = torch.arange(n_tokens) < torch.tensor(lengths).unsqueeze(1)
    spans = probe_spans(n_tokens).repeat(n_rows, 1)
    wiring.begin(is_real.to(query.device), spans.to(query.device))
    with wiring.converted(call.block, kind) if call.is_again else nullcontext(), torch.inference_mode():
        mixed, _ = wired_attention(attention.module, sides[0], sides[1], sides[2], None, **attention.options)
    wiring.end()
    worst = 0.0
    for row in sorted({0, n_rows // 2, n_rows - 1}):
        n = lengths[row]
        at = torch.tensor(sorted({place % n for k in WHERE if k < n for place in (k, -1 - k)}))
        window = attention.options.get("sliding_window")
        allowed = expected_mask(kind, n, window=window, queries=at.tolist())
        one = replace(
            attention,
            query=sides[0][row : row + 1, :, at],
            key=sides[1][row : row + 1, :, :n],
            value=sides[2][row : row + 1, :, :n],
        )
        wanted = textbook_attention(one, allowed, is_prefixed=call.block in literal.prefix)
        worst = max(worst, float(_errors(mixed[row : row + 1, at], wanted).max()))
    return worst


@lru_cache(maxsize=3)
def _random(shape: tuple[int, ...], seed: int) -> Tensor:
    """Draw the same vectors for every block of one shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected_mask(
    kind: str, n_tokens: int, *, window: int | None, queries: Sequence[int] | None = None
) -> Bool[Tensor, "Q T"]:
    """Build the mask of one row, or some of its queries, as `masks.truth` states it, within its block's window."""
    return literal_mask(kind, n_tokens, window=window, spans=probe_spans(n_tokens), queries=queries)


def textbook_attention(
    call: AttentionCall, allowed: Bool[Tensor, "*B I T"], *, is_prefixed: bool = False
) -> Float[Tensor, "B I Q V"]:
    """Compute attention by its formula in float32, from what a block passed and a mask; slow and plain.

    Where it `is_prefixed`, every token also sees the key and the value of the last of these tokens once more.
    """
    query, key, value = (side.float() for side in (call.query, call.key, call.value))
    n_groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(n_groups, 1), value.repeat_interleave(n_groups, 1)
    if is_prefixed:
        key, value = (torch.cat([side[:, :, -1:], side], dim=2) for side in (key, value))
        allowed = torch.cat([torch.ones_like(allowed[:, :1]), allowed], dim=1)
    scaling, softcap, sinks = (call.options.get(name) for name in ("scaling", "softcap", "s_aux"))
    scores = torch.einsum("bqih,bqjh->bqij", query, key) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~allowed.to(scores.device), float("-inf"))
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks.float().reshape(1, -1, 1, 1) - top).exp()
    return torch.einsum("bqij,bqjv->biqv", weights / total, value)


def _errors(found: Float[Tensor, "B T Q V"], wanted: Float[Tensor, "B T Q V"]) -> Float[Tensor, " Q"]:
    """Largest difference of each head, relative to its largest value; infinite where it is NaN."""
    scale = wanted.abs().amax(dim=(0, 1, 3)).clamp(min=1e-6)
    return ((found.float() - wanted).abs().amax(dim=(0, 1, 3)) / scale).nan_to_num(nan=float("inf"))
