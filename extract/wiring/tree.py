"""Plans as a tree: what they share at the bottom is computed once per batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
from extract.masks.mask_plan import CAUSAL, MaskPlan
from extract.wiring.attention import AttentionCall, ScoreWatch, Wiring
from extract.wiring.forward import run_batch
from extract.wiring.plan_wiring import Replay, Skip, add_across, masks_in_force, skip_in_force
from extract.wiring.states import Pooler

Kinds = tuple[str, ...]
_norms: "WeakKeyDictionary[Decoder, nn.Module | None]" = WeakKeyDictionary()


def route_of(plan: MaskPlan, n_blocks: int) -> Kinds:
    """Write down the block passes of a plan as labels, such that plans with equal beginnings share those passes.

    An architecture follows the causal blocks that it builds on, so `extend` and `extra` of one kind share a stack.

    Example:
        >>> from extract.masks.mask_plan import parse_plan
        >>> route_of(parse_plan("extend/backward:1"), 2)
        ('causal', 'causal', 'extend/backward')
    """
    kind, count = plan.converted
    if plan.architecture == "inplace":
        return plan.kinds(n_blocks)
    name = plan.architecture if plan.architecture in ("extend", "extra") else f"{plan.architecture}:{count}"
    # The causal run of the lowest block that runs twice at each is that of the trunk.
    n_trunk, n_own = (n_blocks - count + 1, 2 * count - 1) if plan.architecture == "inter-block" else (n_blocks, count)
    return (*plan.kinds(n_blocks)[:n_trunk], *[f"{name}/{kind}"] * n_own)


def count_blocks(plans: Sequence[Kinds]) -> int:
    """Count the block passes that plans need when the beginnings they share are computed once.

    Example:
        >>> count_blocks([("causal", "causal"), ("causal", "backward")])
        3
    """
    return len({plan[:depth] for plan in plans for depth in range(1, len(plan) + 1)})


def walk_plans(
    decoder: Decoder,
    wiring: Wiring,
    batch: Batch,
    plans: Sequence[Kinds],
    *,
    poolings: Sequence[str],
    layers: Sequence[str],
    emit: Callable[[Kinds, Float[Tensor, "L P N D"]], None],
) -> None:
    """Compute the latents of a batch under several plans, going through their tree depth first.

    Poolings, layers and latents are those of `Pooler`; a plan is given as its kinds per block, bottom up, or by
    `route_of`. `emit` is called with each plan and its latents, in sorted order, architectures first; the tensor is
    used again for the next plan, so what is kept must be copied.

    Raises:
        DecoderError: The final norm of this family cannot be found.
    """
    n_blocks = len(decoder.blocks)
    trunk = (CAUSAL,) * n_blocks
    routes = [plan for plan in sorted(set(plans)) if len(plan) > n_blocks or "/" in plan[-1]]
    # Causal blocks come first where architectures build on them.
    ordered = sorted(
        set(plans) - set(routes), key=lambda plan: [(bool(routes) and kind != CAUSAL, kind) for kind in plan]
    )
    if routes and trunk not in ordered:
        ordered.insert(0, trunk)
    pool = Pooler(decoder, batch, poolings=poolings, layers=layers)
    path: list[Tensor] = []

    def visit(position: int, hidden: Tensor) -> None:
        path.append(hidden)
        pool(position, hidden)

    def show(states: Mapping[int, Tensor]) -> None:
        for position, hidden in states.items():
            pool(position, hidden)
        pool(n_blocks + 1, states[n_blocks] if norm is None else norm(states[n_blocks]))

    replay = Replay(decoder.blocks, wiring)
    wiring.set_kinds(ordered[0])
    with pool.watching(decoder), replay.noting(), torch.inference_mode(), QuickLinear(varied=True):
        run_batch(decoder, batch, visit)
        final = path.pop()
        if decoder not in _norms:
            _norms[decoder] = _final_norm(decoder, path[n_blocks], final)
        norm = _norms[decoder]
        if ordered[0] in plans:
            emit(ordered[0], pool.latents)
        climb = _Climb(replay, path)
        for route in routes:
            show(changed := climb.states(route))
            emit(route, pool.latents)
            show({position: path[position] for position in changed})
        for before, plan in pairwise(ordered):
            shared = next(depth for depth in range(n_blocks) if before[depth] != plan[depth])
            for block in range(shared, n_blocks):
                path[block + 1] = replay.run(block, path[block], plan[block])
            show({block + 1: path[block + 1] for block in range(shared, n_blocks)})
            emit(plan, pool.latents)


class _Climb:
    """Runs the blocks that an architecture adds to a causal trunk, as `applied.architecture_in_force` does.

    The stack of the last architecture is kept, since the next may only go on with it.
    """

    def __init__(self, replay: Replay, path: Sequence[Tensor]) -> None:
        self.replay, self.path = replay, path
        self._stack: list[Tensor] = []
        self._label = ""

    def states(self, route: Kinds) -> dict[int, Tensor]:
        """Compute what the outputs of blocks become, by their position from 1."""
        label, top = route[-1], len(self.path) - 1
        architecture, _, kind = label.partition("/")
        name = architecture.partition(":")[0]
        if name == "inter-block":
            return self._summed(kind, route.count(label) // 2 + 1)
        count = route.count(label)
        blocks, first = {
            "extend": ([top - 1] * count, self.path[top]),
            "extra": (range(count), self.path[0]),
            "inter-stack": (range(top - count, top), self.path[top - count]),
        }[name]
        self._stack, self._label = self._stack if label == self._label else [first], label
        for block in blocks[len(self._stack) - 1 :]:
            self._stack.append(self.replay.run(block, self._stack[-1], kind))
        stacked = self._stack[count]
        return {top: stacked if name == "extend" else add_across(self.path[top], stacked)}

    def _summed(self, kind: str, count: int) -> dict[int, Tensor]:
        first, states = len(self.path) - 1 - count, {}
        hidden = self.path[first]
        for block in range(first, len(self.path) - 1):
            own = self.path[block + 1] if block == first else self.replay.run(block, hidden, CAUSAL)
            hidden = states[block + 1] = own + self.replay.run(block, hidden, kind)
        return states


def _final_norm(decoder: Decoder, hidden: Tensor, final: Tensor) -> nn.Module | None:
    """Find the module that makes the final norm out of the last block's output; None when nothing does."""
    if torch.equal(hidden.to(final.device), final):
        return None
    for child in decoder.module.children():
        if isinstance(child, nn.ModuleList | nn.Embedding | nn.Dropout):
            continue
        try:
            found = child(hidden)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
            continue
        if isinstance(found, Tensor) and torch.equal(found, final):
            return child
    raise DecoderError(
        f"the final norm of the {decoder.description.family!r} decoder cannot be identified; "
        "extract its plans one by one instead of as a sweep."
    )


# Attention maps: how a decoder spreads its attention under a plan, and how much of it the first token gets.

SINK_POSITIONS = 4
"""First positions whose share of the attention is told."""


@dataclass(frozen=True)
class AttentionMaps:
    """Attention under a plan, averaged over heads, and over texts where lengths allow.

    Attributes:
        blocks: Block names, bottom up.
        sink_mass: `(blocks, 4)` mean attention on each of the first four real tokens, of the tokens after it, 0 to 1;
            where the first is hidden, the sink may shift to the next (LBW, Figure 3 I to L). 0 beyond the texts.
        maps: `(blocks, T, T)` mean attention over heads and texts, cut to the shortest text.
        tokens: The tokens of the first text, cut to the same length.
    """

    blocks: tuple[str, ...]
    sink_mass: Float[Tensor, "L 4"]
    maps: Float[Tensor, "L T T"]
    tokens: tuple[str, ...]


def attention_maps(
    decoder: Decoder,
    texts: Sequence[str],
    plan: MaskPlan,
    *,
    template: InputTemplate = InputTemplate(),  # noqa: B008
) -> AttentionMaps:
    """Compute attention maps of a handful of texts of two tokens or more, one at a time.

    Of a text that is read in windows it is the first window's.

    Raises:
        ConfigError: No texts, or a plan that is more than masks and a skip.
        DecoderError: The family does not let its attention be chosen.
        InputError: A text without tokens.
    """
    if not texts:
        raise ConfigError("no text was given to draw attention for; give at least one.")
    if plan.architecture != "inplace" or plan.prepend or plan.prefix:
        raise ConfigError(f"the plan {plan.text!r} is more than masks; allowed here: plans that swap masks only.")
    encoder = TextEncoder(decoder.tokenizer, template, window=decoder.description.window)
    encoded = [item.rows[0] for item in encoder(list(texts))]  # of a text in windows, the first
    n_blocks, n_tokens = len(decoder.blocks), min(len(item.ids) for item in encoded)
    maps = torch.zeros(n_blocks, n_tokens, n_tokens)
    sink, n_queries = torch.zeros(n_blocks, SINK_POSITIONS), torch.zeros(SINK_POSITIONS)

    def watch(block: int, call: AttentionCall) -> None:
        add(block, call.weights())

    def add(block: int, weights: Tensor) -> None:
        mean = weights[0].float().mean(0).cpu()
        maps[block] += mean[:n_tokens, :n_tokens]
        seen = mean.tril(-1).sum(0)[:SINK_POSITIONS]
        sink[block, : len(seen)] += seen

    skip = Skip.of(plan)
    with masks_in_force(decoder, plan.kinds(n_blocks)) as wiring, skip_in_force(decoder.blocks, plan, skip):
        wiring.watch = watch
        for item in encoded:
            n_queries += (len(item.ids) - 1 - torch.arange(SINK_POSITIONS)).clamp(min=0)
            with ScoreWatch(wiring, lambda block, _scores, weights: add(block, weights)):
                run_batch(decoder, collate([item], [0]), lambda _position, _hidden: None)
    names = tuple(decoder.layers[1:-1])
    tokens = tuple(decoder.tokenizer.convert_ids_to_tokens(encoded[0].ids[:n_tokens].tolist()))
    return AttentionMaps(names, sink / n_queries.clamp(min=1), maps / len(texts), tokens)
