"""A mask plan in force on a decoder: its masks, its architecture and its skip, over the very same frozen parameters.

Architectures run blocks again, with the arguments their own call received, as hooks on the blocks; no weight is copied.
Sums are taken before the final norm, so `block_L` and `final_norm` are those of the converted decoder.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extract.decoders.decoder import Decoder, changed, flags_off
from extract.decoders.decoder_spec import FINAL_NORM
from extract.errors import DecoderError
from extract.inputs.batches import Batch, collate
from extract.inputs.joined_text import CONTEXT, SPECIAL, TEXT
from extract.inputs.tokens import EncodedText
from extract.linear import QuickLinear
from extract.masks.mask_plan import CAUSAL_KIND, MaskKind, MaskPlan
from extract.masks.mask_rules import is_closed
from extract.poolings.memory import send
from extract.wiring.attention import (
    Arguments,
    Keywords,
    Run,
    SharedPrefix,
    Wiring,
    only_causal,
    require_attention,
    require_windows,
    wired,
    wiring_of,
)

FAMILY_FAULTS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)
"""What the code of a family raises where it cannot run as it is configured."""
Visit = Callable[[int, Tensor], None]
Blocks = tuple[nn.Module, ...]
Output = Tensor | Arguments
"""What a module of a block returns: its hidden states, alone or before others."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class _EnoughError(Exception):
    """Raised by a hook once the topmost wanted layer has been seen, so that higher blocks are not computed."""


def run_batch(decoder: Decoder, batch: Batch, visit: Visit, *, depth: int | None = None) -> None:
    """Run a batch through a decoder and show every layer's hidden states to a visitor.

    `visit` is called bottom up with the position of the layer (0 is the embedding, `L + 1` the final norm) and its
    hidden states `(B, T, D)`, which it must not keep. Blocks above the position `depth` are not computed.
    """
    top = len(decoder.blocks) + 1
    if wiring := wiring_of(decoder.blocks):
        wiring.begin(batch, decoder.device)
    flags = decoder.description.bidirectional or {}
    with (
        torch.inference_mode(),
        QuickLinear(varied=True),
        flags_off(decoder.module, decoder.blocks, flags),
        _tapped(decoder, visit, top if depth is None else depth, tuple(batch.ids.shape)),
        _packed(decoder.blocks, wiring, batch),
    ):
        try:
            output = decoder.module(**forward_inputs(decoder, batch))
        except _EnoughError:
            return
        except FAMILY_FAULTS as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            why = " ".join(str(error).split()) or type(error).__name__
            raise DecoderError(
                f"the forward pass of the family {decoder.description.family!r} fails on a batch of "
                f"{tuple(batch.ids.shape)} tokens ({type(error).__name__}: {why[:200]}); it cannot be "
                "extracted with this release of transformers and this configuration."
            ) from error
        final = output.last_hidden_state
        if final.shape[-1] != decoder.description.width:
            raise DecoderError(
                f"the {decoder.description.family!r} decoder projects its output from {decoder.description.width} to "
                f"{final.shape[-1]} dimensions; choose layers without {FINAL_NORM!r}, for instance 'blocks'."
            )
        visit(top, final)


def states_with_gradients(
    decoder: Decoder, batch: Batch, positions: Collection[int] = ()
) -> dict[int, Float[Tensor, "B T D"]]:
    """Run a batch while torch records gradients; return the states of some layers by position, the final norm's too.

    The parameters that a caller trains must be in the decoder already (LoRA).
    """
    states: dict[int, Tensor] = {}
    if wiring := wiring_of(decoder.blocks):
        wiring.begin(batch, decoder.device)

    def keep(position: int, hidden: Tensor) -> None:
        if position in positions:
            states[position] = hidden

    flags = decoder.description.bidirectional or {}
    top = len(decoder.blocks) + 1
    with flags_off(decoder.module, decoder.blocks, flags), _tapped(decoder, keep, top, tuple(batch.ids.shape)):
        states[top] = decoder.module(**forward_inputs(decoder, batch)).last_hidden_state
    return states


def forward_inputs(decoder: Decoder, batch: Batch) -> Keywords:
    """Build the arguments of the forward call; an unpadded batch has no mask, which is plain causal and fastest."""
    inputs: Keywords = {"input_ids": send(batch.ids, decoder.device), "use_cache": False}
    if batch.is_padded:
        is_real = send(batch.is_real, decoder.device)
        inputs["attention_mask"] = is_real.long()
        if decoder.takes_position_ids:
            inputs["position_ids"] = (is_real.long().cumsum(1) - 1).clamp(min=0)
    return inputs


@contextmanager
def _tapped(decoder: Decoder, visit: Visit, depth: int, shape: tuple[int, ...]) -> Iterator[None]:
    def check(output: object) -> Tensor:
        hidden = output[0] if isinstance(output, tuple) else output
        if not isinstance(hidden, Tensor) or tuple(hidden.shape[:2]) != shape or hidden.dim() != 3:
            got = f"a tensor {tuple(hidden.shape)}" if isinstance(hidden, Tensor) else f"a {type(hidden).__name__}"
            raise DecoderError(
                f"a block of the {decoder.description.family!r} decoder returns {got}, not one tensor "
                f"({shape[0]}, {shape[1]}, D); this family cannot be read layer by layer."
            )
        return hidden

    def see(position: int, hidden: Tensor) -> None:
        visit(position, hidden)
        if position >= depth:
            raise _EnoughError

    def before(_: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        see(0, check(args[0] if args else kwargs.get("hidden_states")))

    def after(position: int) -> Callable[..., None]:
        return lambda _, __, output: see(position, check(output))

    with ExitStack() as hooks:
        hooks.enter_context(decoder.blocks[0].register_forward_pre_hook(before, with_kwargs=True))
        for position, block in enumerate(decoder.blocks, start=1):
            hooks.enter_context(block.register_forward_hook(after(position)))
        yield


SHARED = 0.1
"""Fewest tokens that a batch is to save by a shared prefix, of all of its tokens: packing rows costs a little."""


def shared_prefix(wiring: Wiring | None, batch: Batch) -> SharedPrefix | None:
    """Find the tokens that a batch computes once, and in which blocks; None where each row computes its own.

    Whoever watches attention sees whole rows.
    """
    if wiring is None or not wiring.n_sharing or wiring.watch is not None:
        return None
    (n_rows, n_columns), n_tokens = batch.ids.shape, batch.n_shared
    if n_tokens * (n_rows - 1) < SHARED * batch.ids.numel():
        return None
    is_closed_under = {kind: is_closed(kind, n_tokens, n_columns) for kind in set(wiring.plan.kinds)}
    kinds = takewhile(is_closed_under.__getitem__, wiring.plan.kinds[: wiring.n_sharing])
    n_blocks = len(list(kinds))
    return SharedPrefix(n_tokens, n_blocks, (n_rows, n_columns)) if n_blocks else None


@contextmanager
def _packed(blocks: Blocks, wiring: Wiring | None, batch: Batch) -> Iterator[None]:
    """Let the lower blocks compute the shared prefix of a batch once, until the `with` block ends."""
    shared = shared_prefix(wiring, batch)
    if wiring is None or shared is None:
        yield
        return

    def enter(_: nn.Module, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
        return _pack(args, shared), _pack(kwargs, shared)

    wiring.shared = shared
    with ExitStack() as hooks:
        hooks.enter_context(changed(wiring.current, shared=shared))
        hooks.enter_context(changed(shared, last=(None, None)))  # a whole layer, which the next batch need not wait for
        for block in blocks[: shared.n_blocks]:
            # Next to the block itself: every other hook on a block sees whole rows.
            hooks.enter_context(block.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(block.register_forward_hook(changing_output(shared.unpack), prepend=True))
        yield


def _pack(value: Any, shared: SharedPrefix) -> Any:
    """Pack what a block receives, wherever it has a place for each token."""
    n_rows, n_columns = shared.shape
    if isinstance(value, Tensor):
        if value.dim() == 1 and len(value) == n_columns:
            return shared.pack(value.unsqueeze(0)).squeeze(0)
        is_packed = value.dim() > 1 and value.shape[0] in (1, n_rows) and value.shape[1] == n_columns
        return shared.pack(value) if is_packed else value
    if isinstance(value, dict):
        return {name: _pack(item, shared) for name, item in value.items()}
    return type(value)(_pack(item, shared) for item in value) if type(value) in (tuple, list) else value


def hidden_of(output: Output) -> Tensor:
    """Return the hidden states of a module's output, which comes alone or before others."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


def changing_input(change: Run) -> Callable[[nn.Module, Arguments, Keywords], tuple[Arguments, Keywords]]:
    """Make a forward pre-hook, with keywords, that changes the hidden states that a block receives."""

    def hook(_: nn.Module, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

    return hook


def changing_output(change: Run) -> Callable[[nn.Module, Arguments, Output], Output]:
    """Make a forward hook that changes the hidden states that a block returns."""

    def hook(_: nn.Module, __: Arguments, output: Output) -> Output:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return hook


def seeing_output(see: Callable[[Tensor], None]) -> Callable[[nn.Module, Arguments, Output], None]:
    """Make a forward hook that shows the hidden states that a module returns."""
    return lambda _, __, output: see(hidden_of(output))


@contextmanager
def in_float32(decoder: Decoder) -> Iterator[Decoder]:
    """Compute in float32 until the `with` block ends, and yield the decoder as one of that dtype.

    Certificates need it: rounding then flips no router and hides no small influence. Weights are widened,
    which is exact, one module at a time while it runs, and are their old tensors again afterwards.
    """
    if decoder.description.dtype == "float32":
        yield decoder
        return
    with ExitStack() as stack:
        for part in decoder.module.modules():
            narrow_weights = {name: p for name, p in part.named_parameters(recurse=False) if p.is_floating_point()}
            if narrow_weights:
                before, after = _widening(part, narrow_weights)
                stack.callback(after)
                stack.enter_context(part.register_forward_pre_hook(before, with_kwargs=True))
                stack.enter_context(part.register_forward_hook(after, always_call=True))
        yield replace(decoder, description=replace(decoder.description, dtype="float32"))


def _widening(
    part: nn.Module, narrow_weights: dict[str, nn.Parameter]
) -> tuple[Callable[..., tuple[Arguments, Keywords]], Callable[..., None]]:
    # Parameters are replaced and not changed: accelerate puts others in their place while an offloaded module runs, in
    # the dtype that it finds.
    def before(_: nn.Module, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
        for name, weight in narrow_weights.items():
            setattr(part, name, nn.Parameter(weight.data.float(), requires_grad=False))
        return tuple(map(_wide, args)), {name: _wide(value) for name, value in kwargs.items()}

    def after(*_: object) -> None:
        for name, weight in narrow_weights.items():
            setattr(part, name, weight)

    return before, after


def _wide(value: object) -> object:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value


def hidden_states(decoder: Decoder, batch: Batch) -> Float[Tensor, "L B T D"]:
    """Compute the hidden states of a batch in float32, from the embedding to the last block, on the CPU."""
    states: list[Tensor] = []
    with in_float32(decoder):
        run_batch(decoder, batch, lambda _, hidden: states.append(hidden.float().cpu()), depth=len(decoder.blocks))
    return torch.stack(states)


def has_experts(decoder: Decoder) -> bool:
    """Whether a router chooses experts for each token, so that rounding can change a latent by any amount."""
    return any((getattr(decoder.text_config, name, None) or 0) > 1 for name in EXPERTS)


def vocabulary_size(decoder: Decoder) -> int:
    """Return how many tokens a decoder knows."""
    return int(decoder.text_config.vocab_size)


def probe_ids(decoder: Decoder, n_tokens: int, *, seed: int) -> Int[Tensor, " T"]:
    """Draw tokens from the whole vocabulary of a decoder."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary_size(decoder), (n_tokens,), generator=generator)


def encode_ids(ids: Int[Tensor, " T"]) -> EncodedText:
    """Make a text without specials of tokens."""
    return EncodedText(ids.numpy(), np.full(len(ids), TEXT, np.int8), is_truncated=False)


def plain_batch(ids: Int[Tensor, "B T"], *, spans: Int[Tensor, " T"] | None = None) -> Batch:
    """Make a batch of rows of one length, all with the same spans."""
    batch = collate([encode_ids(row) for row in ids], range(len(ids)))
    return replace(batch, spans=None if spans is None else spans.repeat(len(ids), 1))


def probe_spans(n_tokens: int) -> Int[Tensor, " T"]:
    """Put one span over the third and fourth token, so that a hybrid mask shows itself."""
    spans = torch.full((n_tokens,), CONTEXT)
    spans[2:4] = 0
    return spans


INFLUENCE_TOKENS = 6
"""Tokens of the rows that a decoder is tried on."""
DRIFT_ALLOWED = {"float32": 1e-3, "bfloat16": 1e-1, "float16": 3e-2}
"""Relative to the largest latent of the layer."""
SHORT_WINDOW = 4
WINDOW_NAMES = ("sliding_window", "window_size", "sliding_window_size")


@contextmanager
def short_windows(decoder: Decoder) -> Iterator[None]:
    """Shorten every sliding window to `SHORT_WINDOW` tokens until the `with` block ends."""
    owners: list[object] = [decoder.module.config, decoder.text_config, *decoder.module.modules()]
    with ExitStack() as stack:
        for owner in owners:
            windows = {name: vars(owner).get(name) for name in WINDOW_NAMES}
            long = [name for name, n in windows.items() if type(n) is int and n > SHORT_WINDOW]
            stack.enter_context(changed(owner, **dict.fromkeys(long, SHORT_WINDOW)))
        yield


def probe_layers(decoder: Decoder) -> Float[Tensor, "L T D"]:
    """Compute hidden states of one short row in float32, from the embedding to the last block, on the CPU."""
    ids = probe_ids(decoder, min(INFLUENCE_TOKENS, decoder.description.window), seed=0)
    return hidden_states(decoder, plain_batch(ids.unsqueeze(0)))[:, 0]


def looks_ahead(decoder: Decoder) -> bool:
    """Whether the first token of a short row changes with the last one, in a decoder that is not wired."""
    n_tokens = min(INFLUENCE_TOKENS, decoder.description.window)
    row, other = (probe_ids(decoder, n_tokens, seed=seed) for seed in (0, 1))
    rows = torch.stack([row, torch.cat([row[:1], other[1:]])])
    first = hidden_states(decoder, plain_batch(rows))[:, :, 0]
    change = (first[:, 1] - first[:, 0]).abs().amax(1)
    return bool((change > 1e-6 * first.abs().amax((1, 2))).any())


def require_equal(untouched: Float[Tensor, "L T D"], wired: Float[Tensor, "L T D"], decoder: Decoder) -> None:
    """Check that wiring a decoder, causal at every block, changes no layer by more than rounding (`DecoderError`)."""
    drift = layer_drift(wired, untouched)
    wrong = (drift > DRIFT_ALLOWED["float32"]).nonzero()
    if len(wrong):
        layer = int(wrong[0])
        raise only_causal(
            decoder.description.family,
            "gives other results through the wiring than without it "
            f"(layer {decoder.layers[layer]} differs by {float(drift[layer]):.2g} under causal masks)",
        )


def layer_drift(states: Float[Tensor, "L *N"], reference: Float[Tensor, "L *N"]) -> Float[Tensor, " L"]:
    """Largest difference per layer, relative to the largest value of the reference; infinite where it is NaN."""
    scale = reference.abs().flatten(1).amax(1).clamp(min=1e-6)
    return ((states - reference).abs().flatten(1).amax(1) / scale).nan_to_num(nan=float("inf"))


@dataclass(eq=False)
class Replay:
    """The blocks of a wired decoder, which can be run again with the arguments of the last forward pass."""

    blocks: Blocks
    wiring: Wiring
    inputs: dict[int, Tensor] = field(default_factory=dict)
    """Hidden states `(B, T, D)` that each block received, by its position from 0."""
    _calls: dict[int, tuple[Arguments, Keywords]] = field(default_factory=dict)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note every call of a block until the `with` block ends."""
        with ExitStack() as hooks:
            for index, block in enumerate(self.blocks):
                hooks.enter_context(block.register_forward_pre_hook(partial(self._note, index), with_kwargs=True))
            hooks.callback(self.inputs.clear)
            hooks.callback(self._calls.clear)
            yield

    def run(self, index: int, hidden: Tensor, kind: MaskKind) -> Tensor:
        """Run a block of the last forward pass once more, on other hidden states `(B, T, D)` and under a mask kind."""
        args, kwargs = self._calls[index]

        def forward(hidden: Tensor) -> Tensor:
            # `forward` and not the call itself: hooks of the outer pass must not fire for an inner one.
            output: Output = self.blocks[index].forward(hidden, *args, **kwargs)
            return hidden_of(output)

        with self.wiring.converted(index, kind):
            return self.wiring.around(index, hidden, forward)

    def _note(self, index: int, _: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        self.inputs[index] = args[0] if args else kwargs["hidden_states"]
        self._calls[index] = (args[1:], {k: v for k, v in kwargs.items() if k != "hidden_states"})


class Skip:
    """LBW's extra skip (`res_connect` in its released code): an earlier hidden state is added again.

    For a stride `n` from `f` on, before block `i` (from 0) with `i >= f` and `(i - f)` divisible by `n`: `h += s`, then
    `s = h`, with `s = 0` at the start of every pass.
    """

    def __init__(self, stride: int, first: int) -> None:
        self.stride, self.first = stride, first
        self.state: Tensor | None = None

    @classmethod
    def of(cls, plan: MaskPlan) -> "Skip | None":
        """Make the skip of a plan; None where it has none."""
        return None if plan.skip is None else cls(*plan.skip)

    def acts_at(self, index: int) -> bool:
        """Whether it adds before a block."""
        return index >= self.first and (index - self.first) % self.stride == 0

    def before(self, index: int, hidden: Tensor) -> Tensor:
        """Return what a block receives instead of the hidden states before it."""
        if not self.acts_at(index):
            return hidden
        self.state = hidden if self.state is None or index == self.first else add_across(hidden, self.state)
        return self.state

    def on_top(self, hidden: Tensor) -> Tensor:
        """Return what the final norm receives: the hidden states plus the skipped state once more."""
        return hidden if self.state is None else add_across(hidden, self.state)


@contextmanager
def architecture_in_force(blocks: Blocks, wiring: Wiring, plan: MaskPlan, skip: Skip | None = None) -> Iterator[None]:
    """Put a plan's architecture, other than `inplace`, in force; the wiring is causal at every block."""
    stack = Replay(blocks, wiring)
    kind, n_converted = plan.converted
    last = len(blocks) - 1
    top = range(len(blocks) - n_converted, len(blocks))

    def rerun(indices: Iterable[int], hidden: Tensor, *, skips_from: int) -> Tensor:
        for position, index in enumerate(indices, start=skips_from):
            hidden = hidden if skip is None else skip.before(position, hidden)
            hidden = stack.run(index, hidden, kind)
        return hidden

    def one_more(index: int, hidden: Tensor) -> Tensor:
        return hidden + stack.run(index, stack.inputs[index], kind)

    def second_stack(hidden: Tensor) -> Tensor:
        # The input that both stacks share has the addition of its own block in it.
        converted = stack.run(top[0], stack.inputs[top[0]], kind)
        return add_across(hidden, rerun(top[1:], converted, skips_from=top[0] + 1))

    changes: Mapping[int, Run]
    if plan.architecture == "inter-block":
        changes = {index: partial(one_more, index) for index in top}
    elif plan.architecture == "extend":
        changes = {last: lambda hidden: rerun([last] * n_converted, hidden, skips_from=last + 1)}
    elif plan.architecture == "extra":
        changes = {last: lambda hidden: add_across(hidden, rerun(range(n_converted), stack.inputs[0], skips_from=0))}
    else:
        changes = {last: second_stack}
    with ExitStack() as hooks:
        for index, change in changes.items():
            hooks.enter_context(blocks[index].register_forward_hook(changing_output(change)))
        with stack.noting():
            yield


def add_across(hidden: Tensor, other: Tensor) -> Tensor:
    """Add what another block computed, perhaps on another device."""
    return hidden + other.to(hidden.device)


@contextmanager
def skip_in_force(blocks: Blocks, plan: MaskPlan, skip: Skip | None) -> Iterator[None]:
    """Put LBW's extra skip in force, as its released code does, until the `with` block ends; nothing without one.

    Where a converted stack runs beside the causal one (`extra`, `inter-stack`), the skip acts in the converted one and
    in the blocks that both share; the causal stack is left alone, and nothing is added before the final norm.
    """
    if skip is None:
        yield
        return
    n_blocks, n_converted = len(blocks), plan.converted[1]
    n_skipping = {"extra": 0, "inter-stack": n_blocks - n_converted + 1}.get(plan.architecture, n_blocks)

    with ExitStack() as hooks:
        for index in filter(skip.acts_at, range(n_skipping)):
            # In front of other hooks: a block that an architecture runs again starts from the same input.
            hook = changing_input(partial(skip.before, index))
            handle = blocks[index].register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
            hooks.enter_context(handle)
        if plan.architecture in ("inplace", "extend"):
            hooks.enter_context(blocks[-1].register_forward_hook(changing_output(skip.on_top)))
        yield


def draw_placeholder(width: int, seed: int) -> Float[Tensor, " D"]:
    """Draw the state that a placeholder enters the first block with, from a standard normal distribution."""
    return torch.randn(width, generator=torch.Generator().manual_seed(seed))


@contextmanager
def prepending_in_force(decoder: Decoder, wiring: Wiring, plan: MaskPlan) -> Iterator[None]:
    """Let the placeholder of every row take the last token's state after some blocks (Token Prepending).

    The state that it enters the first block with is random. The outputs of those blocks hold the copy already; no
    pooling reads the placeholder.
    """
    if plan.prepend is None:
        yield
        return
    first, last, seed = plan.prepend
    draw = draw_placeholder(decoder.description.width, seed)
    copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def put(hidden: Tensor, *, is_drawn: bool) -> Tensor:
        batch = wiring.batch
        if batch is None or batch.placeholder is None:
            return hidden
        device = hidden.device
        rows = torch.arange(len(hidden), device=device)
        placeholder, end = batch.on_device(batch.placeholder, device), batch.on_device(batch.last, device)
        if is_drawn and (device, hidden.dtype) not in copies:
            copies[device, hidden.dtype] = draw.to(hidden)
        copied = hidden.clone()
        copied[rows, placeholder] = copies[device, hidden.dtype] if is_drawn else hidden[rows, end]
        return copied

    with ExitStack() as hooks:
        hooks.enter_context(changed(wiring.plan, prepends=True))
        enter, leave = changing_input(partial(put, is_drawn=True)), changing_output(partial(put, is_drawn=False))
        hooks.enter_context(decoder.blocks[0].register_forward_pre_hook(enter, with_kwargs=True))
        for block in decoder.blocks[first - 1 : last]:
            hooks.enter_context(block.register_forward_hook(leave))
        yield


@contextmanager
def masks_in_force(decoder: Decoder, kinds: Sequence[MaskKind]) -> Iterator[Wiring]:
    """Wire a decoder with a mask kind per block, in the first way in which wired causal masks change nothing."""
    refusals: list[DecoderError] = []
    family, causal = decoder.description.family, [CAUSAL_KIND] * len(decoder.blocks)
    with short_windows(decoder):
        untouched = probe_layers(decoder)
    for by_argument in (False, True):
        with ExitStack() as stack:
            try:
                wire = wired(decoder.module, decoder.blocks, causal, family=family, by_argument=by_argument)
                wiring = stack.enter_context(wire)
                with short_windows(decoder), wiring.windows_apart():
                    require_equal(untouched, probe_layers(decoder), decoder)
                    require_windows(wiring)
                if by_argument and len(wiring.silent) == len(causal):
                    raise only_causal(family, "gives its attention no mask to replace")
            except DecoderError as error:
                refusals.append(error)
                continue
            wiring.end()
            wiring.plan.kinds = list(kinds)
            yield wiring
            return
    if looks_ahead(decoder):
        raise DecoderError(
            f"the family {family!r} attends to later tokens by itself, past what plans replace; no plan works for it."
        ) from refusals[-1]
    raise refusals[-1]


SHARED_TOKENS, OWN_TOKENS = 3, (6, 4, 1)
"""Of the rows on which sharing is tried, with `SHORT_WINDOW`s."""
SHARING_DRIFT = 1e-5
"""Largest difference that sharing may make to them, in float32, relative to the largest latent of the layer."""


@contextmanager
def sharing_in_force(
    decoder: Decoder, wiring: Wiring, untouched: Float[Tensor, "L N D"] | None = None
) -> Iterator[None]:
    """Let rows share the tokens they begin with, until the `with` block ends, where it is tried and changes nothing.

    What it is to equal are the states of `sharing_trial` under the plan, or those that the untouched decoder had.
    Blocks from the first one up that computes no attention, as recurrent ones, share none; nor do those of a sparse
    indexer, which keeps fewer keys of a packed row than of its parts, and of experts in half precision, whose batches
    are not proved.
    """
    is_excused = has_experts(decoder) and decoder.description.dtype != "float32"
    is_tried = not (wiring.by_argument or is_excused or decoder.longest_dense_row is not None)
    with changed(wiring, n_sharing=_try_sharing(decoder, wiring, untouched) if is_tried else 0):
        yield


def sharing_trial(decoder: Decoder) -> Batch:
    """Make short rows that begin alike, on which sharing is tried."""
    first = probe_ids(decoder, SHARED_TOKENS, seed=0)
    rows = [encode_ids(torch.cat([first, probe_ids(decoder, n, seed=n)])) for n in OWN_TOKENS]
    roles = [np.repeat(np.array([SPECIAL, TEXT], np.int8), [SHARED_TOKENS, n]) for n in OWN_TOKENS]
    return collate([replace(row, roles=role) for row, role in zip(rows, roles, strict=True)], range(len(rows)))


def _try_sharing(decoder: Decoder, wiring: Wiring, untouched: Float[Tensor, "L N D"] | None) -> int:
    """Compute short rows with and without what they share; return the number of blocks that do so rightly."""
    batch, n_sharing = sharing_trial(decoder), min([*wiring.silent, len(decoder.blocks)])
    if batch.ids.shape[1] > decoder.description.window:
        return 0
    with short_windows(decoder), wiring.windows_apart():
        apart = hidden_states(decoder, batch)[:, batch.is_real] if untouched is None else untouched
        try:
            with changed(wiring, n_sharing=n_sharing):
                together = hidden_states(decoder, batch)[:, batch.is_real]
            shared = wiring.shared
        except DecoderError:  # a block receives what cannot be packed
            return 0
        finally:
            wiring.end()
    is_equal = float(layer_drift(together, apart).max()) <= SHARING_DRIFT
    return shared.n_blocks if shared is not None and is_equal else 0


@contextmanager
def plan_in_force(
    decoder: Decoder, plan: MaskPlan, *, looks_inside: bool = False, shares: bool = False
) -> Iterator[Wiring | None]:
    """Put a plan in force until the `with` block ends.

    A plan that is causal at every block leaves the decoder alone, on the path of transformers itself, and yields None;
    unless `looks_inside`, where something inside blocks is read: then it is wired, causal at every block. So it is
    where rows are to share what they begin with (`shares`) and can; other plans than masks alone share nothing.
    """
    kinds = plan.kinds(len(decoder.blocks))
    shares = shares and not looks_inside and plan.architecture == "inplace" and not plan.has_tail
    with ExitStack() as stack:
        if plan.is_untouched and not looks_inside:
            yield _wire_to_share(decoder, stack) if shares else None
            return
        wiring = stack.enter_context(masks_in_force(decoder, kinds))
        require_attention(wiring, plan)
        stack.enter_context(rest_in_force(decoder, wiring, plan))
        if shares:
            stack.enter_context(sharing_in_force(decoder, wiring))
        yield wiring


def _wire_to_share(decoder: Decoder, stack: ExitStack) -> Wiring | None:
    """Wire a decoder, causal at every block, until a stack is closed, if its rows can share a prefix then.

    They are to equal those of the decoder as it is, on the path of transformers.
    """
    batch = sharing_trial(decoder)
    if batch.ids.shape[1] > decoder.description.window:
        return None
    with short_windows(decoder):
        untouched = hidden_states(decoder, batch)[:, batch.is_real]
    try:
        wiring = stack.enter_context(masks_in_force(decoder, [CAUSAL_KIND] * len(decoder.blocks)))
    except DecoderError:
        return None
    stack.enter_context(sharing_in_force(decoder, wiring, untouched))
    if wiring.n_sharing:
        wiring.only_shares = True
        return wiring
    stack.close()
    return None


@contextmanager
def rest_in_force(decoder: Decoder, wiring: Wiring, plan: MaskPlan) -> Iterator[None]:
    """Put the parts of a plan other than its masks in force on a wired decoder, until the `with` block ends."""
    skip = Skip.of(plan)
    with ExitStack() as stack:
        if plan.architecture != "inplace":
            stack.enter_context(architecture_in_force(decoder.blocks, wiring, plan, skip))
        stack.enter_context(skip_in_force(decoder.blocks, plan, skip))
        stack.enter_context(prepending_in_force(decoder, wiring, plan))
        if plan.prefix is not None:
            if wiring.by_argument:
                raise only_causal(wiring.family, "computes attention where no key can be prepended")
            stack.enter_context(changed(wiring.plan, prefixed=range(plan.prefix[0] - 1, plan.prefix[1])))
        yield
