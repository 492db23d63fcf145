"""States of a forward pass: taps inside blocks, fused attention, and everything pooled on the device.

Where the taps of a family are is seen in one forward pass. The attention module of a block is the one that asks for
its mask. The state between attention and MLP (`mid`) is the first input of a later module that is the block's own input
plus an output since attention: modules, norms and scales in between differ between families. Parallel blocks have none.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import FINAL_NORM, TAPS, split_tap
from extract.errors import ConfigError, DecoderError
from extract.inputs.batches import Batch, collate
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import TextEncoder
from extract.linear import QuickLinear
from extract.masks.mask_plan import CAUSAL_KIND, MaskKind, MaskPlan
from extract.poolings.memory import empty_in_pages, send
from extract.poolings.pooling_table import REBA, WORD_POOLINGS, Pooling, RebaOptions, find_pooling
from extract.poolings.poolings import PoolingIndex, WordIndex, backward_weights, index_rows, index_words, move_index
from extract.wiring.attention import Arguments, AttentionCall, Keywords, ScoreWatch, Wiring, wiring_of
from extract.wiring.plan_wiring import (
    Replay,
    Skip,
    add_across,
    in_float32,
    masks_in_force,
    plain_batch,
    probe_ids,
    run_batch,
    seeing_output,
    skip_in_force,
)

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


# Plans as a tree: what they share at the bottom is computed once per batch.


SINK_POSITIONS = 4
"""First positions whose share of the attention `attention_maps` reports."""
_norms: "WeakKeyDictionary[Decoder, nn.Module | None]" = WeakKeyDictionary()


class Pass(NamedTuple):
    """One run of a block in a plan's route."""

    kind: MaskKind
    stack: str = ""
    """Architecture that adds the run; empty for a block of the decoder's own stack."""
    n_converted: int = 0
    """Blocks that the architecture converts, where the run depends on it."""

    @property
    def text(self) -> str:
        """What passes are sorted by."""
        count = f":{self.n_converted}" if self.n_converted else ""
        return f"{self.stack}{count}/{self.kind}" if self.stack else self.kind.text


Route = tuple[Pass, ...]


def route_of(plan: MaskPlan, n_blocks: int) -> Route:
    """List the block passes of a plan, such that plans with equal beginnings share those passes.

    An architecture follows the causal blocks that it builds on, so `extend` and `extra` of one kind share a stack.

    Example:
        >>> from extract.masks.mask_plan import parse_plan
        >>> [step.text for step in route_of(parse_plan("extend/backward:1"), 2)]
        ['causal', 'causal', 'extend/backward']
    """
    trunk = tuple(map(Pass, plan.kinds(n_blocks)))
    kind, count = plan.converted
    if plan.architecture == "inplace":
        return trunk
    if plan.architecture in ("extend", "extra"):
        return (*trunk, *[Pass(kind, plan.architecture)] * count)
    added = Pass(kind, plan.architecture, count)
    if plan.architecture == "inter-block":  # the causal run of the lowest block that runs twice is that of the trunk
        return (*trunk[: n_blocks - count + 1], *[added] * (2 * count - 1))
    return (*trunk, *[added] * count)


def count_blocks(routes: Sequence[tuple[Hashable, ...]]) -> int:
    """Count the block passes that routes need when the beginnings they share are computed once.

    Example:
        >>> count_blocks([("causal", "causal"), ("causal", "backward")])
        3
    """
    return len({route[:depth] for route in routes for depth in range(1, len(route) + 1)})


def walk_plans(
    decoder: Decoder,
    wiring: Wiring,
    batch: Batch,
    routes: Sequence[Route],
    *,
    poolings: Sequence[str],
    layers: Sequence[str],
    emit: Callable[[Route, Float[Tensor, "L P N D"]], None],
) -> None:
    """Compute the latents of a batch under several plans, by their routes, depth first through the tree they form.

    Poolings, layers and latents are those of `Pooler`. `emit` is called with each route and its latents, in sorted
    order, causal blocks before others; the tensor is reused for the next route, so `emit` must copy what it keeps.
    """
    n_blocks = len(decoder.blocks)
    trunk = (Pass(CAUSAL_KIND),) * n_blocks
    added = sorted({route for route in routes if route[-1].stack}, key=lambda route: [step.text for step in route])
    # Causal blocks come first: architectures build on them, and rows share what they begin with in the first route's.
    plain = sorted(
        {route for route in routes if not route[-1].stack},
        key=lambda route: [(step.kind != CAUSAL_KIND, step.text) for step in route],
    )
    if added and trunk not in plain:
        plain.insert(0, trunk)
    pool = Pooler(decoder, batch, poolings=poolings, layers=layers)
    path: list[Tensor] = []

    def visit(position: int, hidden: Tensor) -> None:
        path.append(hidden)
        pool(position, hidden)

    def pool_states(states: Mapping[int, Tensor]) -> None:
        for position, hidden in states.items():
            pool(position, hidden)
        pool(n_blocks + 1, states[n_blocks] if norm is None else norm(states[n_blocks]))

    replay = Replay(decoder.blocks, wiring)
    wiring.plan.kinds = [step.kind for step in plain[0]]
    with pool.watching(decoder), replay.noting(), torch.inference_mode(), QuickLinear(varied=True):
        run_batch(decoder, batch, visit)
        final = path.pop()
        if decoder not in _norms:
            _norms[decoder] = _final_norm(decoder, path[n_blocks], final)
        norm = _norms[decoder]
        if plain[0] in routes:
            emit(plain[0], pool.latents)
        climb = _Climb(replay, path)
        for route in added:
            pool_states(changed := climb.states(route))
            emit(route, pool.latents)
            pool_states({position: path[position] for position in changed})
        for before, route in pairwise(plain):
            shared = next(depth for depth in range(n_blocks) if before[depth] != route[depth])
            for block in range(shared, n_blocks):
                path[block + 1] = replay.run(block, path[block], route[block].kind)
            pool_states({block + 1: path[block + 1] for block in range(shared, n_blocks)})
            emit(route, pool.latents)


class _Climb:
    """Runs what an architecture adds to a causal trunk, and keeps the last stack, which the next may continue."""

    def __init__(self, replay: Replay, path: Sequence[Tensor]) -> None:
        self.replay, self.path = replay, path
        self._stack: list[Tensor] = []
        self._last: Pass | None = None

    def states(self, route: Route) -> dict[int, Tensor]:
        """Compute what the outputs of blocks become, by their position from 1."""
        added, top = route[-1], len(self.path) - 1
        if added.stack == "inter-block":
            return self._summed(added.kind, added.n_converted)
        count = route.count(added)
        blocks, first = {
            "extend": ([top - 1] * count, self.path[top]),
            "extra": (range(count), self.path[0]),
            "inter-stack": (range(top - count, top), self.path[top - count]),
        }[added.stack]
        self._stack, self._last = self._stack if added == self._last else [first], added
        for block in blocks[len(self._stack) - 1 :]:
            self._stack.append(self.replay.run(block, self._stack[-1], added.kind))
        stacked = self._stack[count]
        return {top: stacked if added.stack == "extend" else add_across(self.path[top], stacked)}

    def _summed(self, kind: MaskKind, count: int) -> dict[int, Tensor]:
        first, states = len(self.path) - 1 - count, {}
        hidden = self.path[first]
        for block in range(first, len(self.path) - 1):
            causal = self.path[block + 1] if block == first else self.replay.run(block, hidden, CAUSAL_KIND)
            hidden = states[block + 1] = causal + self.replay.run(block, hidden, kind)
        return states


def _final_norm(decoder: Decoder, hidden: Tensor, final: Tensor) -> nn.Module | None:
    """Find the module that makes the final norm out of the last block's output; None when nothing does."""
    if torch.equal(hidden.to(final.device), final):
        return None
    for child in decoder.module.children():
        if isinstance(child, nn.ModuleList | nn.Embedding | nn.Dropout):
            continue
        try:
            output = child(hidden)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
            continue
        if isinstance(output, Tensor) and torch.equal(output, final):
            return child
    raise DecoderError(
        f"the final norm of the {decoder.description.family!r} decoder cannot be identified; "
        "extract its plans one by one instead of as a sweep."
    )


@dataclass(frozen=True)
class AttentionMaps:
    """Attention under a plan, averaged over heads, and over texts where lengths allow."""

    blocks: tuple[str, ...]
    """Block names, bottom up."""
    sink_mass: Float[Tensor, "L 4"]
    """Mean attention on each of the first four real tokens, of the tokens after it, 0 to 1; 0 beyond the texts.

    Where the first is hidden, the sink may shift to the next (LBW, Figure 3 I to L).
    """
    maps: Float[Tensor, "L T T"]
    """Mean attention over heads and texts, cut to the shortest text."""
    tokens: tuple[str, ...]
    """The tokens of the first text, cut to the same length."""


def attention_maps(
    decoder: Decoder,
    texts: Sequence[str],
    plan: MaskPlan,
    *,
    template: InputTemplate = InputTemplate(),  # noqa: B008
) -> AttentionMaps:
    """Compute attention maps of texts of two tokens or more, one at a time; of windows the first one's."""
    if not texts:
        raise ConfigError("there is no text to draw attention for; give at least one.")
    if plan.architecture != "inplace" or plan.prepend or plan.prefix:
        raise ConfigError(f"the plan {plan.text!r} is more than masks; allowed here: plans that swap masks only.")
    encoder = TextEncoder(decoder.tokenizer, template, window=decoder.description.window)
    rows = [text.rows[0] for text in encoder(list(texts))]
    n_blocks, n_tokens = len(decoder.blocks), min(len(row.ids) for row in rows)
    maps = torch.zeros(n_blocks, n_tokens, n_tokens)
    sink, n_queries = torch.zeros(n_blocks, SINK_POSITIONS), torch.zeros(SINK_POSITIONS)

    def add(block: int, weights: Tensor) -> None:
        mean = weights[0].float().mean(0).cpu()
        maps[block] += mean[:n_tokens, :n_tokens]
        received = mean.tril(-1).sum(0)[:SINK_POSITIONS]
        sink[block, : len(received)] += received

    with ExitStack() as stack:
        wiring = stack.enter_context(masks_in_force(decoder, plan.kinds(n_blocks)))
        stack.enter_context(skip_in_force(decoder.blocks, plan, Skip.of(plan)))
        stack.enter_context(wiring.watched(lambda block, call: add(block, call.weights())))
        stack.enter_context(ScoreWatch(wiring, lambda block, _scores, weights: add(block, weights)))
        for row in rows:
            n_queries += (len(row.ids) - 1 - torch.arange(SINK_POSITIONS)).clamp(min=0)
            run_batch(decoder, collate([row], [0]), lambda _position, _hidden: None)
    tokens = tuple(decoder.tokenizer.convert_ids_to_tokens(rows[0].ids[:n_tokens].tolist()))
    return AttentionMaps(tuple(decoder.layers[1:-1]), sink / n_queries.clamp(min=1), maps / len(texts), tokens)
