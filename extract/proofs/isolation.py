"""Every block of a wired decoder by itself, run on rows that differ at one token each, all in one forward pass."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from extract.decoders.decoder import Decoder
from extract.inputs.batching import Batch
from extract.wiring.arguments import ScoreWatch
from extract.wiring.forward import Visit, run_batch
from extract.wiring.interface import AttentionCall, Wiring
from extract.wiring.probe_rows import plain_batch, probe_ids, probe_spans
from extract.wiring.untouched import layer_drift

N_TOKENS = 8
MOVED = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}  # smallest change, relative to a token's largest value


@runtime_checkable
class Enter(Protocol):
    """Receives what a block is about to be given."""

    def __call__(self, block: int, hidden: Tensor, *, is_again: bool = False) -> Tensor:
        """Return what the block is given instead."""


@dataclass(eq=False)
class BlockCall:
    """One run of one block, looked at by itself.

    Attributes:
        block: Its position, from 0.
        is_again: Whether the plan's architecture runs it a second time.
        attention: The calls of its attention.
        moved: `(T, T)` bool, true at `[i, j]` where the output at token `i` changed with token `j`.
        entered: `(B, T, D)`, what it was given.
        scores: What the softmax of its attention was given, `(B, heads, T, T)`, where masks go into arguments.
    """

    block: int
    is_again: bool
    entered: Tensor
    attention: list[AttentionCall] = field(default_factory=list)
    moved: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    scores: list[Tensor] = field(default_factory=list)

    def measured(self, dtype: str) -> Bool[Tensor, "T T"]:
        """Measure the block's mask: whether attention at token `i` changed with token `j`, in any head.

        Where attention cannot be seen by itself, whether the block's output did.
        """
        if not self.attention:
            return self.moved
        return torch.stack([moved_tokens(call.mixed, dtype).any(-1) for call in self.attention]).any(0)


def look_at_blocks(
    decoder: Decoder,
    wiring: Wiring,
    *,
    n_tokens: int = N_TOKENS,
    holds_attention: bool = False,
    instead: Sequence[Tensor] = (),
) -> list[BlockCall]:
    """Run every block of a wired decoder on rows that differ at one token each, in the order the plan runs them.

    `holds_attention` gives every row the attention of the first, so that only other mixing of tokens shows. `instead`
    holds what each run is given, where that is not to depend on the blocks below.
    """
    calls: list[BlockCall] = []
    dtype = decoder.description.dtype

    def enter(block: int, hidden: Tensor, *, is_again: bool = False) -> Tensor:
        varied = instead[len(calls)] if instead else _varied(hidden, seed=block)
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
    """Run a batch, and show what goes into, out of and through the attention of every block; `enter` may change it."""

    def around(block: int, hidden: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        output = run(enter(block, hidden, is_again=True))
        leave(output)
        return output

    with ExitStack() as stack:
        for index, block in enumerate(decoder.blocks):
            # In front of the hooks of architectures and skips: those keep and add what the isolated block was given.
            hook = block.register_forward_pre_hook(_entering(index, enter), with_kwargs=True, prepend=True)
            stack.enter_context(hook)
            stack.enter_context(block.register_forward_hook(_leaving(leave), prepend=True))
        stack.enter_context(wiring.observed(watch, around))
        if wiring.by_argument:
            stack.enter_context(ScoreWatch(wiring, lambda _block, scores, _weights: see(scores)))
        run_batch(decoder, batch, visit, depth=len(decoder.blocks))


def drift_when_watched(decoder: Decoder, wiring: Wiring) -> Float[Tensor, " L"]:
    """Run the probe as an extraction runs its batches, and again while it is watched; return the change per layer.

    What is proved of watched blocks holds for latents only where nobody can tell the two apart.
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


def _entering(block: int, enter: Enter) -> Callable[..., Any]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (enter(block, args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": enter(block, kwargs["hidden_states"])}

    return hook


def _leaving(leave: Callable[[Tensor], None]) -> Callable[..., None]:
    def hook(_: nn.Module, __: Any, output: Any) -> None:
        leave(output[0] if isinstance(output, tuple) else output)

    return hook
