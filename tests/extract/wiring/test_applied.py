"""Architectures and the skip equal slow, obvious references: loops over copied blocks under explicit masks."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.masks.mask_plan import parse_kind, parse_plan
from extract.masks.mask_rules import kind_matrix
from extract.wiring.plan_wiring import plan_in_force, run_batch
from extract.wiring.states import pool_batch
from tests.extract.mask_families import drift, hidden_under, id_batch, random_ids, run_layers
from tests.extract.tiny_decoders import make_decoder
from tests.thinned import thinned

L = 4
NAMES = ("inter-stack", "inter-block", "extra", "extend")
FAMILIES = ("llama", "gpt2", "gemma2", "mistral")
ROWS = random_ids(8)
SPANS = [[-1, 0, 0, -1, -1, 1, 1, -1]]


def tiny(family: str) -> Decoder:
    """Make a decoder of four blocks."""
    changes: dict[str, Any] = {"n_layer": L} if family == "gpt2" else {"num_hidden_layers": L}
    return make_decoder(family, **changes)


class Reference:
    """Copies of a decoder's blocks, each called by hand under an explicit mask."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = deepcopy(decoder)
        module: Any = self.decoder.module
        module.set_attn_implementation("eager")
        self.norm = module.ln_f if hasattr(module, "ln_f") else module.norm
        self.windows = [getattr(getattr(block, "self_attn", None), "sliding_window", None) for block in decoder.blocks]
        if decoder.description.family == "mistral":
            self.windows = [module.config.sliding_window] * L

    def run(self, index: int, hidden: Tensor, kind: str) -> Tensor:
        """Run a fresh copy of one block."""
        T, module = hidden.shape[1], self.decoder.module
        mask = kind_matrix(parse_kind(kind), T, spans=torch.tensor(SPANS[0]))
        order, window = torch.arange(T), self.windows[index]
        if window is not None:
            mask &= (order[:, None] - order).abs() < window
        options: dict[str, Any] = {"attention_mask": torch.where(mask, 0.0, float("-inf"))[None, None]}
        if hasattr(module, "rotary_emb"):
            rotary: Any = module.rotary_emb
            options["position_embeddings"] = rotary(hidden, order[None])
        output = deepcopy(self.decoder.blocks[index])(hidden, **options)
        changed: Tensor = output[0] if isinstance(output, tuple) else output
        return changed

    def climb(self, hidden: Tensor, first: int, end: int, kind: str) -> Tensor:
        """Run several blocks."""
        for index in range(first, end):
            hidden = self.run(index, hidden, kind)
        return hidden

    def top(self, name: str, kind: str, k: int, embedded: Tensor) -> Tensor:
        """Return what the final norm receives, as the design page says it."""
        own = self.climb(embedded, 0, L, "causal")
        if name == "extend":
            for _ in range(k):
                own = self.run(L - 1, own, kind)
        elif name == "extra":
            own = own + self.climb(embedded, 0, k, kind)
        elif name == "inter-stack":
            shared = self.climb(embedded, 0, L - k, "causal")
            own = self.climb(shared, L - k, L, "causal") + self.climb(shared, L - k, L, kind)
        elif name == "inter-block":
            own = self.climb(embedded, 0, L - k, "causal")
            for index in range(L - k, L):
                own = self.run(index, own, "causal") + self.run(index, own, kind)
        return own

    def skipping(self, kinds: tuple[str, ...], stride: int, first: int, embedded: Tensor) -> Tensor:
        """Run the blocks as the released code does with `res_connect`."""
        hidden, kept = embedded, torch.zeros_like(embedded)
        for index, kind in enumerate(kinds):
            if index >= first and (index - first) % stride == 0:
                hidden = hidden + kept
                kept = hidden
            hidden = self.run(index, hidden, kind)
        return hidden + kept


def assert_top(got: Tensor, reference: Reference, expected: Tensor) -> None:
    """Compare the last block and the final norm."""
    assert drift(got[-2:-1], expected[None]) <= 1e-5
    assert drift(got[-1:], reference.norm(expected)[None]) <= 1e-5


@pytest.mark.parametrize(("family", "name"), thinned(FAMILIES, NAMES, n=2))
@torch.no_grad()
def test_an_architecture_equals_its_reference(family: str, name: str) -> None:
    decoder = tiny(family)
    reference = Reference(decoder)
    batch = id_batch(ROWS, spans=SPANS)
    causal = hidden_under(decoder, batch, "causal")
    for kind, k in (("backward", 1), ("nosink-bidirectional", 2), ("hybrid", 3), ("causal", 2), ("bidirectional", L)):
        got = hidden_under(decoder, batch, f"{name}/{kind}:{k}")
        assert_top(got, reference, reference.top(name, kind, k, causal[0]))
        below = L - k if name == "inter-block" else L - 1
        assert torch.allclose(got[: below + 1], causal[: below + 1], atol=1e-5)
        assert drift(got[-2:-1], causal[-2:-1]) > 1e-2


@pytest.mark.parametrize(("family", "skip"), thinned(FAMILIES, [(1, 0), (3, 0), (2, 1), (3, 3), (3, 1)], n=2))
@torch.no_grad()
def test_the_skip_equals_its_reference(family: str, skip: tuple[int, int]) -> None:
    stride, first = skip
    decoder = tiny(family)
    reference = Reference(decoder)
    batch = id_batch(ROWS, spans=SPANS)
    for plan in ("causal", "nosink-bidirectional:2"):
        got = hidden_under(decoder, batch, f"{plan}~skip{stride}@{first}")
        assert_top(
            got, reference, reference.skipping(tuple(map(str, parse_plan(plan).kinds(L))), stride, first, got[0])
        )


@pytest.mark.parametrize(("stride", "first"), [(1, 0), (3, 0), (2, 1), (1, 2), (1, 3)])
@pytest.mark.parametrize("name", ["inter-stack", "extra", "extend"])
@torch.no_grad()
def test_the_skip_of_a_second_stack_equals_the_released_one(name: str, stride: int, first: int) -> None:
    """What the released code loops over is its one stack, of the converted blocks and of those that both share.

    The causal stack starts from what the converted one received, addition included, and gets none itself; only where
    there is no second stack is the kept state added before the final norm.
    """
    decoder, k = tiny("llama"), 3
    reference = Reference(decoder)
    batch = id_batch(ROWS, spans=SPANS)
    got = hidden_under(decoder, batch, f"{name}/backward:{k}~skip{stride}@{first}")
    blocks = {"inter-stack": range(L), "extra": range(k), "extend": [*range(L), *[L - 1] * k]}[name]
    n_causal = {"inter-stack": L - k, "extra": 0, "extend": L}[name]
    hidden, kept, shared = got[0], torch.zeros_like(got[0]), got[0]
    for position, index in enumerate(blocks):
        if position >= first and (position - first) % stride == 0:
            hidden = hidden + kept
            kept = hidden
        shared = hidden if position == n_causal else shared
        hidden = reference.run(index, hidden, "causal" if position < n_causal else "backward")
    beside = kept if name == "extend" else reference.climb(shared, n_causal, L, "causal")
    assert_top(got, reference, hidden + beside)


@pytest.mark.parametrize("name", NAMES)
def test_no_weight_is_copied(name: str) -> None:
    decoder = tiny("llama")
    seen: set[int] = set()

    def addresses() -> set[int]:
        return {tensor.data_ptr() for tensor in (*decoder.module.parameters(), *decoder.module.buffers())}

    def look(block: Any, _: Any, __: Any) -> None:
        seen.update(parameter.data_ptr() for parameter in block.parameters())

    before, n_modules = addresses(), len(list(decoder.module.modules()))
    with plan_in_force(decoder, parse_plan(f"{name}/backward:2")):
        linear = [module for block in decoder.blocks for module in block.modules() if not list(module.children())]
        handles = [module.register_forward_hook(look) for module in linear]
        run_layers(decoder, id_batch(ROWS))
        assert addresses() == before
        assert len(list(decoder.module.modules())) == n_modules
    for handle in handles:
        handle.remove()
    assert seen <= before  # what ran was made of the decoder's own weights


@pytest.mark.parametrize(
    "plan", [*(f"{name}/backward:2" for name in NAMES), "causal~skip1@1", "extra/backward:1~skip2@0"]
)
def test_nothing_is_left_behind(plan: str) -> None:
    decoder = tiny("llama")
    batch = id_batch(ROWS)
    before = run_layers(decoder, batch)
    hidden_under(decoder, batch, plan)
    with pytest.raises(ZeroDivisionError, match=r"^2$"), plan_in_force(decoder, parse_plan(plan)):
        run_batch(decoder, batch, stop_at_two)
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in decoder.blocks)
    assert torch.equal(run_layers(decoder, batch), before)


def stop_at_two(position: int, _: Tensor) -> None:
    """Fail in the middle of a forward pass."""
    if position == 2:
        raise ZeroDivisionError(position)


@pytest.mark.parametrize("name", NAMES)
def test_no_converted_block_is_causal(name: str) -> None:
    decoder, batch = tiny("llama"), id_batch(ROWS)
    assert torch.equal(hidden_under(decoder, batch, f"{name}/backward:0"), hidden_under(decoder, batch, "causal"))


@pytest.mark.parametrize("plan", [*(f"{name}/backward:2" for name in NAMES), "backward:2~skip1@1"])
def test_a_pass_that_stops_early_leaves_the_next_one_right(plan: str) -> None:
    decoder, batch = tiny("llama"), id_batch(random_ids(8, 5))
    with plan_in_force(decoder, parse_plan(plan)):
        whole = pool_batch(decoder, batch, poolings=("mean",), layers=decoder.layers)
        low = pool_batch(decoder, batch, poolings=("mean",), layers=decoder.layers[:3])
        again = pool_batch(decoder, batch, poolings=("mean",), layers=decoder.layers)
    assert torch.equal(low, whole[:3])
    assert torch.equal(again, whole)
