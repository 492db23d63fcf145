"""Plans as a tree: what they share at the bottom is computed once per batch."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError, DecoderError
from extract.inputs.batches import Batch, collate
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import TextEncoder
from extract.linear import QuickLinear
from extract.masks.mask_kinds import CAUSAL_KIND, MaskKind
from extract.masks.mask_plan import MaskPlan
from extract.wiring.attention import ScoreWatch, Wiring
from extract.wiring.plan_wiring import Replay, Skip, add_across, masks_in_force, run_batch, skip_in_force
from extract.wiring.states import Pooler

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
    order, architectures first; the tensor is reused for the next route, so `emit` must copy what it keeps.
    """
    n_blocks = len(decoder.blocks)
    trunk = (Pass(CAUSAL_KIND),) * n_blocks
    added = sorted({route for route in routes if route[-1].stack}, key=lambda route: [step.text for step in route])
    # Causal blocks come first where architectures build on them.
    plain = sorted(
        {route for route in routes if not route[-1].stack},
        key=lambda route: [(bool(added) and step.kind != CAUSAL_KIND, step.text) for step in route],
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
