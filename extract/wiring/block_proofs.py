"""Every block of a wired decoder by itself, run on rows that differ at one token each, all in one forward pass."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.inputs.batches import Batch
from extract.masks.mask_kinds import parse_kind
from extract.masks.mask_plan import MaskPlan
from extract.masks.truth import LiteralPlan, literal_mask, literal_plan
from extract.wiring.attention import AttentionCall, ScoreWatch, Wiring, only_causal, wired_attention
from extract.wiring.forward import (
    Visit,
    changing_input,
    in_float32,
    plain_batch,
    probe_ids,
    probe_spans,
    run_batch,
    seeing_output,
)
from extract.wiring.plan_wiring import layer_drift, short_windows

N_TOKENS = 8
MOVED = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}
"""Smallest change that counts, relative to a token's largest value."""
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 5e-3}
"""Of attention, relative to a head's largest value."""
WHERE = (0, 1, 2, 3, 5, 8, 13)
"""Tokens that are checked in long rows, counted from either end."""


@runtime_checkable
class Enter(Protocol):
    """Receives the input of a block before it runs."""

    def __call__(self, block: int, hidden: Tensor, *, is_again: bool = False) -> Tensor:
        """Return the input to use instead."""


@dataclass(eq=False)
class BlockCall:
    """One run of one block, observed by itself."""

    block: int
    """Its position, from 0."""
    is_again: bool
    """Whether the plan's architecture runs it a second time."""
    entered: Tensor
    """`(B, T, D)`, its input."""
    attention: list[AttentionCall] = field(default_factory=list)
    moved: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    """`(T, T)` bool, true at `[i, j]` where the output at token `i` changed with token `j`."""
    scores: list[Tensor] = field(default_factory=list)
    """Inputs of the softmax of its attention, `(B, heads, T, T)`, where masks go into arguments."""

    def measured(self, dtype: str) -> Bool[Tensor, "T T"]:
        """Measure the block's mask: whether attention at token `i`, or else the output, changed with token `j`."""
        if not self.attention:
            return self.moved
        return torch.stack([moved_tokens(call.mixed, dtype).any(-1) for call in self.attention]).any(0)


def look_at_blocks(
    decoder: Decoder,
    wiring: Wiring,
    *,
    n_tokens: int = N_TOKENS,
    holds_attention: bool = False,
    inputs: Sequence[Tensor] = (),
) -> list[BlockCall]:
    """Run every block of a wired decoder on rows that differ at one token each, in the order the plan runs them.

    `holds_attention` gives every row the attention of the first, so that only other mixing of tokens shows. `inputs`
    are those of the runs, where they must not depend on the blocks below.
    """
    calls: list[BlockCall] = []
    dtype = decoder.description.dtype

    def enter(block: int, hidden: Tensor, *, is_again: bool = False) -> Tensor:
        varied = inputs[len(calls)] if inputs else _varied(hidden, seed=block)
        calls.append(BlockCall(block, is_again, varied))
        return varied

    def leave(hidden: Tensor) -> None:
        calls[-1].moved = moved_tokens(hidden.unsqueeze(2), dtype).squeeze(-1)

    def watch(_: int, call: AttentionCall) -> Tensor | None:
        calls[-1].attention.append(call)
        return call.mixed[:1].expand_as(call.mixed) if holds_attention else None

    n_tokens = min(n_tokens, decoder.description.window)
    batch = plain_batch(probe_ids(decoder, n_tokens, seed=0).repeat(n_tokens + 1, 1), spans=probe_spans(n_tokens))

    def see(scores: Tensor) -> None:
        calls[-1].scores.append(scores.cpu())

    run_apart(decoder, wiring, batch, enter=enter, leave=leave, watch=watch, see=see)
    return calls


def run_apart(
    decoder: Decoder,
    wiring: Wiring,
    batch: Batch,
    *,
    enter: Enter,
    leave: Callable[[Tensor], None],
    watch: Callable[[int, AttentionCall], Tensor | None],
    see: Callable[[Tensor], None],
    visit: Visit = lambda *_: None,
) -> None:
    """Run a batch, and show the input, attention and output of every block; `enter` may change the input."""

    def around(block: int, hidden: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        output = run(enter(block, hidden, is_again=True))
        leave(output)
        return output

    with ExitStack() as stack:
        for index, block in enumerate(decoder.blocks):
            # In front of the hooks of architectures and skips: those keep and add the input of the isolated block.
            hook = block.register_forward_pre_hook(
                changing_input(partial(enter, index)), with_kwargs=True, prepend=True
            )
            stack.enter_context(hook)
            stack.enter_context(block.register_forward_hook(seeing_output(leave), prepend=True))
        stack.enter_context(wiring.observed(watch, around))
        if wiring.by_argument:
            stack.enter_context(ScoreWatch(wiring, lambda _block, scores, _weights: see(scores)))
        run_batch(decoder, batch, visit, depth=len(decoder.blocks))


def drift_when_watched(decoder: Decoder, wiring: Wiring) -> Float[Tensor, " L"]:
    """Run the probe as an extraction runs its batches, and again while it is watched; return the change per layer.

    What is proved of watched blocks holds for latents only where both give the same states.
    """
    n_tokens = min(N_TOKENS, decoder.description.window)
    rows = torch.stack([probe_ids(decoder, n_tokens, seed=seed) for seed in range(N_TOKENS)])
    batch = plain_batch(rows, spans=probe_spans(n_tokens))

    def enter(block: int, hidden: Tensor, *, is_again: bool = False) -> Tensor:  # noqa: ARG001
        return hidden

    unwatched: list[Tensor] = []
    watched: list[Tensor] = []
    run_batch(decoder, batch, lambda _, hidden: unwatched.append(hidden.float().cpu()), depth=len(decoder.blocks))
    run_apart(
        decoder,
        wiring,
        batch,
        enter=enter,
        leave=lambda _: None,
        watch=lambda *_: None,
        see=lambda _: None,
        visit=lambda _, hidden: watched.append(hidden.float().cpu()),
    )
    return layer_drift(torch.stack(watched), torch.stack(unwatched))


def measured_masks(
    decoder: Decoder, wiring: Wiring, *, n_tokens: int = N_TOKENS
) -> list[tuple[BlockCall, Bool[Tensor, "T T"]]]:
    """Measure the mask of every block, in the order the plan runs them."""
    dtype = decoder.description.dtype
    return [(call, call.measured(dtype)) for call in look_at_blocks(decoder, wiring, n_tokens=n_tokens)]


def _varied(hidden: Float[Tensor, "B T D"], *, seed: int) -> Float[Tensor, "B T D"]:
    """Repeat the first row, and add to row `1 + j` noise of its token's own size at token `j`."""
    noise = torch.randn(hidden.shape[1:], generator=torch.Generator().manual_seed(seed)).to(hidden)
    size = hidden[0].float().square().mean(-1, keepdim=True).sqrt().clamp(min=1e-3).to(hidden)
    varied = hidden[:1].repeat(len(hidden), 1, 1)
    tokens = torch.arange(hidden.shape[1])
    varied[tokens + 1, tokens] += noise * size
    return varied


def moved_tokens(values: Float[Tensor, "B T Q V"], dtype: str) -> Bool[Tensor, "T T Q"]:
    """Find where a value of token `i` in row `1 + j` differs from that of the first row by more than rounding."""
    base = values[0].float()
    change = (values[1:].float() - base).abs().amax(-1) / base.abs().amax(-1).clamp(min=1e-6)
    return (change > MOVED[dtype]).transpose(0, 1).cpu()


def prove_blocks(decoder: Decoder, wiring: Wiring, plan: MaskPlan, *, n_rows: int, n_tokens: int) -> dict[str, Any]:
    """Certify the mask of every block, alone and in every head, on short rows and in a batch as of the extraction.

    Returns plain values for the cache. `CertificateError` names the block, the head and the tokens where decoder and
    plan differ; `DecoderError` a block that mixes tokens beside its attention, of which a plan would convert half.
    """
    with short_windows(decoder), wiring.windows_apart():
        with in_float32(decoder) as wide:
            calls = look_at_blocks(wide, wiring)
            fixed = look_at_blocks(wide, wiring, holds_attention=True)
        literal = require_runs(calls, decoder, plan)
        for call, fixed_call in zip(calls, fixed, strict=True):
            if call.attention:
                _require_only_attention(call, fixed_call, wide)
            else:
                require_causal(call, wide)
        worst = max(_check_call(call, decoder, wiring, plan, literal, (n_rows, n_tokens)) for call in calls)
    return {"n_calls": len(calls), "shape": [n_rows, n_tokens], "largest_error": worst}


def require_runs(calls: list[BlockCall], decoder: Decoder, plan: MaskPlan) -> LiteralPlan:
    """Check that exactly the blocks of the plan ran, in its order; return the plan as its text reads."""
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
        error = _errors(attention.mixed, textbook_attention(attention, allowed, is_prefixed=is_prefixed))
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


def refuse(call: BlockCall, kind: str, decoder: Decoder, plan: MaskPlan, problem: str) -> CertificateError:
    """Build the error for a block whose mask is not the plan's."""
    return CertificateError(
        f"the plan {plan.text!r} did not take effect in block {call.block + 1}, planned as {kind!r}: {problem}. "
        f"The family {decoder.description.family!r} cannot be extracted under this plan."
    )


def _say_difference(moved: Bool[Tensor, "T T"], allowed: Bool[Tensor, "T T"], error: Tensor) -> str:
    for wrong, verb in ((moved & ~allowed, "depends on"), (allowed & ~moved, "ignores")):
        if len(pairs := wrong.nonzero()):
            return f"of token {int(pairs[0, 0])} {verb} token {int(pairs[0, 1])}"
    return f"differs by {float(error):.2g} of its largest value from softmax attention with its scale, cap and sinks"


def _require_only_attention(call: BlockCall, fixed: BlockCall, decoder: Decoder) -> None:
    """Check that nothing mixes tokens before attention, nor beside it, where attention is held fixed."""
    others = ~torch.eye(len(call.moved), dtype=torch.bool)
    inputs = [
        x.transpose(1, 2) for attention in call.attention for x in (attention.query, attention.key, attention.value)
    ]
    before = torch.stack([moved_tokens(x, decoder.description.dtype).any(-1) for x in inputs]).any(0)
    require_unmixed(call, before & others, "before", decoder)
    require_unmixed(call, fixed.moved & others, "beside", decoder)


def require_unmixed(call: BlockCall, mixed: Bool[Tensor, "T T"], where: str, decoder: Decoder) -> None:
    """Refuse a block that mixes pairs of tokens before or beside its attention (`DecoderError`)."""
    if len(pairs := mixed.nonzero()):
        i, j = pairs[0].tolist()
        raise only_causal(
            decoder.description.family,
            f"mixes tokens {where} its attention (block {call.block + 1}: token {i} depends on token {j}), where no "
            "mask plan reaches",
        )


def require_causal(call: BlockCall, decoder: Decoder) -> None:
    """Check that a recurrent block lets no token see a later one."""
    if len(pairs := call.moved.triu(1).nonzero()):
        i, j = pairs[0].tolist()
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
    queries, keys, values = (
        _random((n_rows, x.shape[1], n_tokens, x.shape[3]), seed).to(query)
        for seed, x in enumerate((query, attention.key, attention.value))
    )
    lengths = [n_tokens - (row * n_tokens // (2 * n_rows) if is_padded else 0) for row in range(n_rows)]
    is_real = torch.arange(n_tokens) < torch.tensor(lengths).unsqueeze(1)
    spans = probe_spans(n_tokens).repeat(n_rows, 1)
    wiring.begin(is_real.to(query.device), spans.to(query.device))
    with wiring.converted(call.block, parse_kind(kind)) if call.is_again else nullcontext(), torch.inference_mode():
        mixed, _ = wired_attention(attention.module, queries, keys, values, None, **attention.options)
    wiring.end()
    worst = 0.0
    for row in sorted({0, n_rows // 2, n_rows - 1}):
        n = lengths[row]
        at = torch.tensor(sorted({token % n for k in WHERE if k < n for token in (k, -1 - k)}))
        window = attention.options.get("sliding_window")
        allowed = expected_mask(kind, n, window=window, queries=at.tolist())
        one = replace(
            attention,
            query=queries[row : row + 1, :, at],
            key=keys[row : row + 1, :, :n],
            value=values[row : row + 1, :, :n],
        )
        formula = textbook_attention(one, allowed, is_prefixed=call.block in literal.prefix)
        worst = max(worst, float(_errors(mixed[row : row + 1, at], formula).max()))
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
    """Compute attention by its formula in float32, from the call of a block and a mask; slow and plain.

    Where it `is_prefixed`, every token also sees the key and the value of the last of these tokens once more.
    """
    query, key, value = (x.float() for x in (call.query, call.key, call.value))
    n_groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(n_groups, 1), value.repeat_interleave(n_groups, 1)
    if is_prefixed:
        key, value = (torch.cat([x[:, :, -1:], x], dim=2) for x in (key, value))
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


def _errors(mixed: Float[Tensor, "B T Q V"], formula: Float[Tensor, "B T Q V"]) -> Float[Tensor, " Q"]:
    """Largest difference of each head, relative to its largest value; infinite where it is NaN."""
    scale = formula.abs().amax(dim=(0, 1, 3)).clamp(min=1e-6)
    return ((mixed.float() - formula).abs().amax(dim=(0, 1, 3)) / scale).nan_to_num(nan=float("inf"))
