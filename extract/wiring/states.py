"""States of a forward pass: taps inside blocks, fused attention, and everything pooled on the device.

Where the taps of a family are is seen in one forward pass. The attention module of a block is the one that asks for
its mask. The state between attention and MLP (`mid`) is the first input of a later module that is the block's own input
plus an output since attention: modules, norms and scales in between differ between families. Parallel blocks have none.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import FINAL_NORM, TAPS, split_tap
from extract.errors import DecoderError
from extract.inputs.batches import Batch
from extract.masks.mask_kinds import CAUSAL_KIND
from extract.masks.mask_plan import MaskPlan
from extract.poolings.memory import empty_in_pages, send
from extract.poolings.pooling_table import REBA, WORD_POOLINGS, Pooling, RebaOptions, find_pooling
from extract.poolings.poolings import PoolingIndex, WordIndex, backward_weights, index_rows, index_words, move_index
from extract.wiring.attention import Arguments, AttentionCall, Keywords, ScoreWatch, Wiring, wiring_of
from extract.wiring.plan_wiring import in_float32, masks_in_force, plain_batch, probe_ids, run_batch, seeing_output

N_TOKENS = 6
PARALLEL = 1e-2  # what is left of a sum beside its part, relative to the sum
Tap = tuple[int, str]
"""Position of a block from 0, and a name from `TAPS`."""
_taps: "WeakKeyDictionary[Decoder, TapModules]" = WeakKeyDictionary()


@dataclass(frozen=True)
class TapModules:
    """Where the taps of a decoder can be read."""

    family: str
    width: int
    """`D` of the hidden states."""
    modules: dict[Tap, str] = field(default_factory=dict)
    """Names inside the block: of its attention module, and of the module whose input is the state `mid`."""
    value_widths: dict[int, int] = field(default_factory=dict)
    """Width of the values of each block, key heads side by side."""
    refusals: dict[Tap, str] = field(default_factory=dict)
    """Why a tap cannot be read."""

    def require(self, tap: Tap) -> Tap:
        """Return a tap that can be read; `DecoderError` for others."""
        if tap in self.refusals:
            raise DecoderError(
                f"the tap {tap[1]!r} of block {tap[0] + 1} cannot be read: the family {self.family!r} "
                f"{self.refusals[tap]}. Choose other layers."
            )
        return tap

    def width_of(self, tap: Tap) -> int:
        """Return the width of a tap; `DecoderError` for one that cannot be read."""
        block, name = self.require(tap)
        return self.value_widths[block] if name == "value" else self.width


def layer_widths(decoder: Decoder, plan: MaskPlan, layers: Sequence[str]) -> dict[str, int]:
    """Find the widths of taps that are not as wide as hidden states; `DecoderError` for one without a single state."""
    tapped = [layer for layer in layers if split_tap(layer)[1]]
    if not tapped:
        return {}
    if plan.architecture != "inplace":
        raise DecoderError(
            f"the plan {plan.text!r} runs blocks twice, so the tap {tapped[0]!r} has no one state; allowed with taps: "
            "plans that swap masks only."
        )
    taps = find_taps(decoder)
    widths = {layer: taps.width_of(tap) for layer in tapped if isinstance(tap := state_of(decoder, layer), tuple)}
    return {layer: width for layer, width in widths.items() if width != decoder.description.width}


def state_of(decoder: Decoder, layer: str) -> int | Tap:
    """Return the position of a layer, from 0 for the embedding, or the tap that a layer's name stands for."""
    name, tap = split_tap(layer)
    position = decoder.layers.index(name)
    return (position - 1, tap) if tap else position


def find_taps(decoder: Decoder) -> TapModules:
    """Find the taps of a decoder, once, by a forward pass of a short row; `DecoderError` where it cannot be wired."""
    if decoder not in _taps:
        with ExitStack() as stack:
            wiring = wiring_of(decoder.blocks)
            if wiring is None:
                try:
                    wiring = stack.enter_context(masks_in_force(decoder, [CAUSAL_KIND] * len(decoder.blocks)))
                except DecoderError as error:
                    raise DecoderError(f"states inside blocks cannot be read: {error}") from error
            _taps[decoder] = _look(decoder, wiring)
            wiring.end()
    return _taps[decoder]


@contextmanager
def tapping(decoder: Decoder, taps: Collection[Tap], see: Callable[[Tap, Tensor], None]) -> Iterator[None]:
    """Show the states `(B, T, D)` of taps, in every run of their block, until the `with` block ends."""
    if not taps:
        yield
        return
    wiring = wiring_of(decoder.blocks)
    if wiring is None:
        raise DecoderError("states inside blocks are read from a wired decoder; put its plan in force for that.")
    modules = find_taps(decoder)
    readable = {modules.require(tap) for tap in taps}

    def show(tap: Tap, state: Tensor) -> None:
        see(tap, state.reshape(*wiring.current.shape, -1))  # OPT flattens rows before its MLP

    def on_input(tap: Tap) -> Callable[[nn.Module, Arguments, Keywords], None]:
        return lambda _, args, kwargs: show(tap, (*args, *kwargs.values())[0])

    def watch(block: int, call: AttentionCall) -> None:
        if (block, "value") in readable:
            see((block, "value"), _values(call))

    with ExitStack() as stack:
        for block, name in readable:
            if name != "value":
                module = decoder.blocks[block].get_submodule(modules.modules[block, name])
                if name == "mid":
                    hook = module.register_forward_pre_hook(on_input((block, name)), with_kwargs=True)
                else:
                    hook = module.register_forward_hook(seeing_output(partial(show, (block, name))))
                stack.enter_context(hook)
        stack.enter_context(wiring.watched(watch))
        yield


def _values(call: AttentionCall) -> Tensor:
    return call.value.transpose(1, 2).flatten(2)


class _Event(NamedTuple):
    """The call or the return of one module of a block."""

    step: Literal["call", "return"]
    module: nn.Module
    state: Tensor
    others: tuple[Tensor, ...] = ()
    """Arguments of a call beside the first."""


def _look(decoder: Decoder, wiring: Wiring) -> TapModules:
    """Run a short row and record the inputs and outputs of every module of every block."""
    taps = TapModules(decoder.description.family, decoder.description.width)
    events: list[list[_Event]] = [[] for _ in decoder.blocks]

    def on_call(block: int, module: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        tensors = [value.cpu() for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if tensors:
            events[block].append(_Event("call", module, tensors[0], tuple(tensors[1:])))

    def on_return(block: int, module: nn.Module, _: Arguments, output: object) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if isinstance(hidden, Tensor):
            events[block].append(_Event("return", module, hidden.cpu()))

    def watch(block: int, call: AttentionCall) -> None:
        taps.value_widths[block] = _values(call).shape[-1]

    n_tokens = min(N_TOKENS, decoder.description.window)
    row = plain_batch(probe_ids(decoder, n_tokens, seed=0).unsqueeze(0))
    with ExitStack() as stack:
        for block, module in enumerate(decoder.blocks):
            for part in module.modules():
                stack.enter_context(part.register_forward_pre_hook(partial(on_call, block), with_kwargs=True))
                stack.enter_context(part.register_forward_hook(partial(on_return, block)))
        stack.enter_context(wiring.watched(watch))
        stack.enter_context(wiring.windows_apart())
        stack.enter_context(in_float32(decoder))
        run_batch(decoder, row, lambda *_: None, depth=len(decoder.blocks))
    for block, module in enumerate(decoder.blocks):
        _locate(taps, block, events[block], wiring.carriers.get(block), module)
    return taps


def _locate(
    taps: TapModules, block: int, events: Sequence[_Event], carrier: nn.Module | None, module: nn.Module
) -> None:
    """Work out the taps of one block from the calls and returns of its modules."""
    if carrier is None:
        taps.refusals.update({(block, tap): "has no attention in this block" for tap in TAPS})
        return
    if block not in taps.value_widths:
        taps.refusals[block, "value"] = "computes attention past the library's interface, which hides its values"
    names = {part: name for name, part in module.named_modules()}
    entered = events[0].state
    call = next(event for event in events if event.module is carrier)
    # BLOOM's attention is given the residual and adds it; elsewhere the block does.
    keeps_residual = any(torch.equal(other, entered) for other in call.others if other.shape == entered.shape)
    if keeps_residual:
        taps.refusals[block, "attention"] = "adds the residual inside its attention"
    else:
        taps.modules[block, "attention"] = names[carrier]
    returned = next(k for k, event in enumerate(events) if event.step == "return" and event.module is carrier)
    attention = events[returned].state
    outputs = [attention]
    for event in events[returned + 1 :]:
        if event.step == "return":
            outputs.append(event.state)
        elif event.state.numel() == entered.numel():
            state = event.state.reshape(entered.shape)
            is_mid = torch.equal(state, attention) if keeps_residual else _is_sum(state, entered, outputs)
            if is_mid:
                taps.modules[block, "mid"] = names[event.module]
                return
    taps.refusals[block, "mid"] = "computes attention and MLP side by side, with no state between them"


def _is_sum(state: Tensor, entered: Tensor, outputs: Sequence[Tensor]) -> bool:
    """Whether a state is the block's input plus one of several outputs, perhaps scaled."""
    added = (state - entered).flatten()
    if not bool(added.any()):
        return False
    for output in (output.reshape(-1) for output in outputs if output.numel() == added.numel()):
        scale = (added @ output) / (output @ output).clamp(min=1e-12)
        if float((added - scale * output).norm()) < PARALLEL * float(added.norm()):
            return True
    return False


class FusedAttention:
    """The running maximum of attention weights, over heads, and over blocks unless only the last counts.

    `largest`, `(B, T, T)` float32, holds at `[b, i, j]` the weight of token i on token j.
    """

    def __init__(self, batch: Batch, options: RebaOptions, *, n_blocks: int, device: torch.device) -> None:
        n_rows, n_tokens = batch.ids.shape
        self.largest = torch.zeros(n_rows, n_tokens, n_tokens, device=device)
        self._blocks = range(n_blocks) if options.attention == "all" else (n_blocks - 1,)

    @contextmanager
    def watching(self, wiring: Wiring) -> Iterator[None]:
        """Gather the attention of a wired decoder until the `with` block ends."""
        with wiring.watched(self._watch):
            if not wiring.by_argument:
                yield
                return
            with ScoreWatch(wiring, lambda block, _scores, weights: self._gather(block, weights)):
                yield

    def _watch(self, block: int, call: AttentionCall) -> None:
        if block in self._blocks:
            for weights in call.weights_by_key_head():
                self._gather(block, weights)

    def _gather(self, block: int, weights: Tensor) -> None:
        if block in self._blocks:
            torch.maximum(self.largest, weights.float().amax(1).to(self.largest.device), out=self.largest)


class Pooler:
    """Pools the hidden states of a forward pass, each on its own device, into `latents`; only those leave the device.

    Poolings are `P` names that `find_pooling` accepts, or from `WORD_POOLINGS` where the batch has words; layers are
    `L` names of the decoder's and its taps, bottom up. The decoder is wired where there are taps or ReBA poolings. For
    these the states of a batch are kept until the attention of every block has been computed.

    Attributes:
        latents: `(L, P, N, D)` float32 on the decoder's device, `N` texts or words in the order of the batch; beyond
            the width of a tap, zeros.
        depth: Topmost position that a forward pass must reach; None for the final norm.
    """

    def __init__(
        self,
        decoder: Decoder,
        batch: Batch,
        *,
        poolings: Sequence[str],
        layers: Sequence[str],
        reba: RebaOptions = RebaOptions(),  # noqa: B008 - frozen
    ) -> None:
        self._slots = {state_of(decoder, layer): slot for slot, layer in enumerate(layers)}
        self.taps = [state for state in self._slots if isinstance(state, tuple)]
        top = max(state[0] + 1 if isinstance(state, tuple) else state for state in self._slots)
        self.depth = None if FINAL_NORM in layers else top
        self._pools: list[Pooling]
        device = decoder.device
        with torch.inference_mode():
            index: PoolingIndex | WordIndex
            if batch.words is None:
                n_pooled = len(batch.rows)
                index = index_rows(batch, device)
                self._pools = [find_pooling(name) for name in poolings]
            else:
                n_pooled = len(batch.words.flags)
                index = index_words(batch.words, device)
                self._pools = [WORD_POOLINGS[name][0] for name in poolings]
            widths = [find_taps(decoder).width_of(tap) for tap in self.taps]
            shape = (len(layers), len(poolings), n_pooled, max(decoder.description.width, *widths, 0))
            self.latents = empty_in_pages(shape, torch.float32, device=device)
            if set(widths) - {decoder.description.width}:
                self.latents.zero_()
        self._indices = {device: index}
        self._reba = [p for p, name in enumerate(poolings) if name in REBA]
        self._plain = [p for p in range(len(poolings)) if p not in self._reba]
        self._states: dict[int, Tensor] = {}  # for ReBA, by slot
        self._device, self._copies, self._direction = device, send(batch.copies, device), reba.direction
        self._attention = None
        if self._reba:
            self.depth = None
            self._attention = FusedAttention(batch, reba, n_blocks=len(decoder.blocks), device=device)

    def __call__(self, state: int | Tap, hidden: Tensor) -> None:
        """Pool the hidden states `(B, T, D)` of a layer, by its position from 0, or a tap, if it is selected."""
        slot = self._slots.get(state)
        if slot is None:
            return
        self._pool(slot, hidden, self._plain)
        if self._reba:
            self._states[slot] = hidden

    @contextmanager
    def watching(self, decoder: Decoder) -> Iterator[None]:
        """Read states inside blocks until the `with` block ends, and then compute the ReBA poolings."""
        wiring = wiring_of(decoder.blocks)
        with tapping(decoder, self.taps, self), ExitStack() as stack:
            if self._attention is not None:
                if wiring is None:
                    raise DecoderError("ReBA reads the attention of a wired decoder; put its plan in force for that.")
                stack.enter_context(self._attention.watching(wiring))
            yield
        if self._attention is not None:
            with torch.inference_mode():
                weights = backward_weights(self._attention.largest, self._copies, direction=self._direction)
                self._indices = {self._device: replace(self._indices[self._device], reba=weights)}
                for slot, hidden in self._states.items():
                    self._pool(slot, hidden, self._reba)
            self._states.clear()

    def _pool(self, slot: int, hidden: Tensor, poolings: Sequence[int]) -> None:
        if hidden.device not in self._indices:
            self._indices[hidden.device] = move_index(self._indices[self._device], hidden.device)
        for p in poolings:
            self.latents[slot, p, :, : hidden.shape[-1]] = self._pools[p](hidden, self._indices[hidden.device])


def pool_batch(
    decoder: Decoder,
    batch: Batch,
    *,
    poolings: Sequence[str],
    layers: Sequence[str],
    reba: RebaOptions = RebaOptions(),  # noqa: B008 - frozen
) -> Float[Tensor, "L P N D"]:
    """Compute the latents of a batch; arguments, result and order as of `Pooler`, errors as by `run_batch`."""
    pooler = Pooler(decoder, batch, poolings=poolings, layers=layers, reba=reba)
    with pooler.watching(decoder):
        run_batch(decoder, batch, pooler, depth=pooler.depth)
    return pooler.latents
