"""States inside blocks: where a family computes them, found once by a forward pass, and hooks that read them.

The attention module of a block is the one that asks for its mask. The state between attention and MLP is the first
that a module after it is given and that is the block's input plus something of what attention brought: modules, norms
and scales in between differ between families. Where there is none, as in parallel blocks, it is refused.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import FINAL_NORM, TAPS, layer_names, split_tap
from extract.errors import DecoderError
from extract.inputs.batches import Batch
from extract.masks.mask_plan import CAUSAL, MaskPlan
from extract.poolings.memory import empty_in_pages, send
from extract.poolings.pooling_table import REBA, WORD_POOLINGS, RebaOptions, find_pooling
from extract.poolings.poolings import backward_weights, index_rows, index_words, place_index
from extract.wiring.attention import AttentionCall, ScoreWatch, Wiring, wiring_of
from extract.wiring.forward import in_float32, plain_batch, probe_ids, run_batch
from extract.wiring.plan_wiring import masks_in_force

N_TOKENS = 6
PARALLEL = 1e-2  # what is left of a sum beside its part, relative to the sum
Tap = tuple[int, str]
"""Position of a block from 0, and a name from `TAPS`."""
_found: "WeakKeyDictionary[Decoder, TapPlaces]" = WeakKeyDictionary()


@dataclass(frozen=True)
class TapPlaces:
    """Where the taps of a decoder are, by block and tap.

    Attributes:
        family: The family of the decoder.
        width: `D` of its hidden states.
        modules: Names inside the block: of the attention module, and of the module that the state `mid` is given to.
        values: Width of the values, key heads side by side.
        refusals: Why a tap cannot be read.
    """

    family: str
    hidden: int
    modules: dict[Tap, str] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    refusals: dict[Tap, str] = field(default_factory=dict)

    def require(self, tap: Tap) -> Tap:
        """Return a tap that can be read; `DecoderError` for others."""
        if tap in self.refusals:
            raise DecoderError(
                f"the tap {tap[1]!r} of block {tap[0] + 1} cannot be read: the family {self.family!r} "
                f"{self.refusals[tap]}. Choose other layers."
            )
        return tap

    def width(self, tap: Tap) -> int:
        """Return the width of a tap; `DecoderError` for one that cannot be read."""
        block, name = self.require(tap)
        return self.values[block] if name == "value" else self.hidden


def layer_widths(decoder: Decoder, plan: MaskPlan, layers: Sequence[str]) -> dict[str, int]:
    """Find the widths of those layers that are not as wide as hidden states; a decoder without taps is not run.

    Raises:
        DecoderError: A tap that this family does not show, or a plan that runs blocks twice.
    """
    tapped = [layer for layer in layers if split_tap(layer)[1]]
    if not tapped:
        return {}
    if plan.architecture != "inplace":
        raise DecoderError(
            f"the plan {plan.text!r} runs blocks twice, so the tap {tapped[0]!r} has no one state; allowed with taps: "
            "plans that swap masks only."
        )
    places, names = find_taps(decoder), layer_names(len(decoder.blocks))
    widths = {}
    for layer in tapped:
        block, tap = split_tap(layer)
        widths[layer] = places.width((names.index(block) - 1, tap))
    return {layer: width for layer, width in widths.items() if width != decoder.description.width}


def find_taps(decoder: Decoder) -> TapPlaces:
    """Find the taps of a decoder, once, by a forward pass of a short row; `DecoderError` where it cannot be wired."""
    if decoder not in _found:
        with ExitStack() as stack:
            wiring = wiring_of(decoder.blocks)
            if wiring is None:
                try:
                    wiring = stack.enter_context(masks_in_force(decoder, [CAUSAL] * len(decoder.blocks)))
                except DecoderError as error:
                    raise DecoderError(f"states inside blocks cannot be read: {error}") from error
            _found[decoder] = _look(decoder, wiring)
            wiring.end()
    return _found[decoder]


@contextmanager
def tapping(decoder: Decoder, taps: Collection[Tap], see: Callable[[Tap, Tensor], None]) -> Iterator[None]:
    """Show the states `(B, T, D)` of taps, in every run of their block, until the `with` block ends.

    Raises:
        DecoderError: A tap that the family does not show, or a decoder that is not wired.
    """
    if not taps:
        yield
        return
    wiring = wiring_of(decoder.blocks)
    if wiring is None:
        raise DecoderError("states inside blocks are read from a wired decoder; put its plan in force for that.")
    places = find_taps(decoder)
    wanted = {places.require(tap) for tap in taps}

    def show(tap: Tap, state: Any) -> None:
        hidden = _first(state)
        see(tap, hidden.reshape(*wiring.batch_shape, -1))  # OPT flattens rows before its MLP

    def watch(block: int, call: AttentionCall) -> None:
        if (block, "value") in wanted:
            see((block, "value"), _values(call))

    with ExitStack() as stack:
        for tap in wanted:
            block, name = tap
            if name != "value":
                module = decoder.blocks[block].get_submodule(places.modules[tap])
                stack.enter_context(_reading(module, partial(show, tap), is_input=name == "mid"))
        stack.enter_context(wiring.watched(watch))
        yield


def _reading(module: nn.Module, see: Callable[[Any], None], *, is_input: bool) -> Any:
    """Hook what a module is given first, or what it returns."""

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(args or tuple(kwargs.values()))

    def after(_: nn.Module, __: Any, output: Any) -> None:
        see(output)

    if is_input:
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)


def _first(value: Any) -> Tensor:
    found: Tensor = value[0] if isinstance(value, tuple) else value
    return found


def _values(call: AttentionCall) -> Tensor:
    return call.value.transpose(1, 2).flatten(2)


class _Event(NamedTuple):
    """One module of a block that is called, or done."""

    what: Literal["called", "done"]
    module: nn.Module
    state: Tensor
    others: tuple[Tensor, ...] = ()  # what it is called with beside its first argument


def _look(decoder: Decoder, wiring: Wiring) -> TapPlaces:
    """Run a short row and see what every module of every block is given and returns."""
    places = TapPlaces(decoder.description.family, decoder.description.width)
    events: list[list[_Event]] = [[] for _ in decoder.blocks]

    def note(block: int) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if given:
                events[block].append(_Event("called", module, given[0].cpu(), tuple(each.cpu() for each in given[1:])))

        def after(module: nn.Module, _: Any, output: Any) -> None:
            if isinstance(_first(output), Tensor):
                events[block].append(_Event("done", module, _first(output).cpu()))

        return before, after

    def watch(block: int, call: AttentionCall) -> None:
        places.values[block] = _values(call).shape[-1]

    n_tokens = min(N_TOKENS, decoder.description.window)
    row = plain_batch(probe_ids(decoder, n_tokens, seed=0).unsqueeze(0))
    with ExitStack() as stack:
        for block, parts in enumerate(decoder.blocks):
            before, after = note(block)
            for part in parts.modules():
                stack.enter_context(part.register_forward_pre_hook(before, with_kwargs=True))
                stack.enter_context(part.register_forward_hook(after))
        stack.enter_context(wiring.watched(watch))
        stack.enter_context(wiring.windows_apart())
        stack.enter_context(in_float32(decoder))
        run_batch(decoder, row, lambda *_: None, depth=len(decoder.blocks))
    for block, seen in enumerate(events):
        _place(places, block, seen, wiring.carriers.get(block), decoder.blocks[block])
    return places


def _place(places: TapPlaces, block: int, seen: Sequence[_Event], carrier: nn.Module | None, parts: nn.Module) -> None:
    """Work out the taps of one block from what its modules were seen to do."""
    if carrier is None:
        places.refusals.update({(block, tap): "has no attention in this block" for tap in TAPS})
        return
    if block not in places.values:
        places.refusals[block, "value"] = "computes attention past the library's interface, which hides its values"
    names = {module: name for name, module in parts.named_modules()}
    entered = seen[0].state
    call = next(event for event in seen if event.module is carrier)
    keeps_residual = any(torch.equal(other, entered) for other in call.others if other.shape == entered.shape)
    if keeps_residual:
        places.refusals[block, "attention"] = "adds the residual inside its attention"
    else:
        places.modules[block, "attention"] = names[carrier]
    done = next(k for k, event in enumerate(seen) if event.what == "done" and event.module is carrier)
    brought = [seen[done].state]
    for event in seen[done + 1 :]:
        if event.what == "done":
            brought.append(event.state)
        elif event.state.numel() == entered.numel():
            state = event.state.reshape(entered.shape)
            if torch.equal(state, brought[0]) if keeps_residual else _is_sum(state, entered, brought):
                places.modules[block, "mid"] = names[event.module]
                return
    places.refusals[block, "mid"] = "computes attention and MLP side by side, with no state between them"


def _is_sum(state: Tensor, entered: Tensor, parts: Sequence[Tensor]) -> bool:
    """Whether a state is what entered the block plus one of several parts, perhaps scaled."""
    added = (state - entered).flatten()
    if not bool(added.any()):
        return False
    for part in (each.reshape(-1) for each in parts if each.numel() == added.numel()):
        scale = (added @ part) / (part @ part).clamp(min=1e-12)
        if float((added - scale * part).norm()) < PARALLEL * float(added.norm()):
            return True
    return False


# Attention fused over blocks and heads while a batch is computed: the running maximum, never a stack of maps.


class FusedAttention:
    """The largest attention weight of each pair of tokens, over heads, and over blocks unless only the last counts.

    Attributes:
        largest: `(B, T, T)` float32, at `[b, i, j]` that of token i on token j.
    """

    def __init__(self, batch: Batch, options: RebaOptions, *, n_blocks: int, device: torch.device) -> None:
        n_rows, n_tokens = batch.ids.shape
        self.largest = torch.zeros(n_rows, n_tokens, n_tokens, device=device)
        self._blocks = range(n_blocks) if options.attention == "all" else (n_blocks - 1,)

    @contextmanager
    def watching(self, wiring: Wiring) -> Iterator[None]:
        """Take in the attention of a wired decoder until the `with` block ends."""
        with wiring.watched(self._watch):
            if not wiring.by_argument:
                yield
                return
            with ScoreWatch(wiring, lambda block, _scores, weights: self._take(block, weights)):
                yield

    def _watch(self, block: int, call: AttentionCall) -> None:
        if block in self._blocks:
            for weights in call.weights_by_key_head():
                self._take(block, weights)

    def _take(self, block: int, weights: Tensor) -> None:
        if block in self._blocks:
            torch.maximum(self.largest, weights.float().amax(1).to(self.largest.device), out=self.largest)


# One forward pass, pooled at every layer on the device: only pooled vectors leave it.


class Pooler:
    """Pools the hidden states that it is shown, each on its own device, into `latents`.

    Poolings are `P` names that `find_pooling` knows, or from `WORD_POOLINGS` where the batch has words; layers are `L`
    names of the decoder's and its taps, bottom up. The decoder is wired where there are taps or ReBA poolings. For
    these the states of a batch are kept until the attention of every block is known.

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
        places = {layer: decoder.layers.index(split_tap(layer)[0]) for layer in layers}
        self._slots: dict[int | Tap, int] = {
            (place - 1, tap) if (tap := split_tap(layer)[1]) else place: slot
            for slot, (layer, place) in enumerate(places.items())
        }
        self.depth = None if FINAL_NORM in layers else max(places.values())
        self.taps = [tap for tap in self._slots if isinstance(tap, tuple)]
        self._pools: list[Callable[[Tensor, Any], Tensor]]
        device = decoder.device
        with torch.inference_mode():
            index: Any
            if batch.words is None:
                n_pooled = len(batch.rows)
                index = index_rows(batch, device)
                self._pools = [find_pooling(name) for name in poolings]
            else:
                n_pooled = len(batch.words.flags)
                index = index_words(batch.words, device)
                self._pools = [WORD_POOLINGS[name][0] for name in poolings]
            widths = [find_taps(decoder).width(tap) for tap in self.taps]
            shape = (len(layers), len(poolings), n_pooled, max(decoder.description.width, *widths, 0))
            self.latents = empty_in_pages(shape, torch.float32, device=device)
            if set(widths) - {decoder.description.width}:
                self.latents.zero_()
        self._indices: dict[torch.device, Any] = {device: index}
        self._late = [p for p, name in enumerate(poolings) if name in REBA]
        self._kept: dict[int, Tensor] = {}
        self._device, self._copies, self._direction = device, send(batch.copies, device), reba.direction
        self._fused = None
        if self._late:
            self.depth = None
            self._fused = FusedAttention(batch, reba, n_blocks=len(decoder.blocks), device=device)

    def _index_on(self, device: torch.device) -> Any:
        if device not in self._indices:
            self._indices[device] = place_index(self._indices[self._device], device)
        return self._indices[device]

    def __call__(self, place: int | Tap, hidden: Tensor) -> None:
        """Pool the hidden states `(B, T, D)` of a layer or tap, if it is wanted; place 0 is the embedding."""
        slot = self._slots.get(place)
        if slot is not None:
            index = self._index_on(hidden.device)
            for p, pool in enumerate(self._pools):
                if p not in self._late:
                    self.latents[slot, p, :, : hidden.shape[-1]] = pool(hidden, index)
            if self._late:
                self._kept[slot] = hidden

    @contextmanager
    def watching(self, decoder: Decoder) -> Iterator[None]:
        """Take in what is read inside blocks until the `with` block ends, and then pool what needs all of it."""
        wiring = wiring_of(decoder.blocks)
        with tapping(decoder, self.taps, self), ExitStack() as stack:
            if self._fused is not None:
                if wiring is None:
                    raise DecoderError("ReBA reads the attention of a wired decoder; put its plan in force for that.")
                stack.enter_context(self._fused.watching(wiring))
            yield
        if self._fused is not None:
            self._finish(self._fused.largest)

    def _finish(self, largest: Tensor) -> None:
        with torch.inference_mode():
            weights = backward_weights(largest, self._copies, direction=self._direction)
            self._indices = {self._device: replace(self._indices[self._device], reba=weights)}
            for slot, hidden in self._kept.items():
                index = self._index_on(hidden.device)
                for p in self._late:
                    self.latents[slot, p, :, : hidden.shape[-1]] = self._pools[p](hidden, index)
        self._kept.clear()


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
