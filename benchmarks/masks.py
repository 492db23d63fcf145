"""The cost of a plan relative to causal, and the savings of a sweep over separate passes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.extraction import POOLINGS
from benchmarks.timing import Comparison, compare
from extract.decoders.decoder import Decoder
from extract.inputs.batches import Batch
from extract.masks.mask_plan import MaskPlan, parse_plan, plans_over_k, plans_over_k_and_k0
from extract.run.shards import sweep_cost
from extract.wiring.attention import wired
from extract.wiring.plan_wiring import plan_in_force
from extract.wiring.states import Route, pool_batch, route_of, walk_plans

PLANS = ("bidirectional", "backward", "nosink-bidirectional:10", "nosink-causal")


def compare_plans(decoder: Decoder, batches: list[Batch], *, repeats: int) -> list[Comparison]:
    """Compare extraction passes under other plans with causal ones on the same batches."""
    causal = ("causal", _passes(decoder, batches, [parse_plan("causal")]))
    found = []
    for plan in PLANS:
        other = (plan, _passes(decoder, batches, [parse_plan(plan)]))
        found.append(compare(f"plan {plan} vs causal", (other, causal), bar="<= 1.15", repeats=repeats))
    return found


def compare_sweeps(decoder: Decoder, batches: list[Batch], *, repeats: int) -> tuple[list[Comparison], dict[str, Any]]:
    """Compare sweeps with separate passes, with the ratios that their trees predict.

    Args:
        decoder: The decoder.
        batches: Few batches, large enough that the blocks and not Python dominate; every plan runs all of them.
        repeats: Timed pairs.

    Returns:
        The comparisons, sweep / separate, and for each the predicted ratio and the largest difference of latents.
    """
    n_blocks = len(decoder.blocks)
    steps = sorted({0, n_blocks // 6, n_blocks // 3, n_blocks // 2})
    sweeps = {
        "all k of nosink-bidirectional": plans_over_k(["nosink-bidirectional"], range(n_blocks + 1)),
        "a (k, k0) grid": plans_over_k_and_k0(steps, steps),
    }
    comparisons, facts = [], {}
    for name, plans in sweeps.items():
        cost = sweep_cost(plans, n_blocks)
        label = f"{name}, {len(plans)} plans: sweep vs separate"
        sides = (("sweep", _walk(decoder, batches, plans)), ("separate", _one_by_one(decoder, batches, plans)))
        bar = "<= 0.6" if name.startswith("all") else f"{cost.ratio:.2f}"
        comparisons.append(compare(label, sides, bar=bar, repeats=repeats))
        facts[name] = {"predicted": cost.ratio, "largest_difference": _difference(decoder, batches[0], plans)}
    return comparisons, facts


def _passes(decoder: Decoder, batches: list[Batch], plans: list[MaskPlan]) -> Callable[[], None]:
    def run() -> None:
        for plan in plans:
            with plan_in_force(decoder, plan):
                for batch in batches:
                    pool_batch(decoder, batch, poolings=POOLINGS, layers=decoder.layers)

    return run


def _one_by_one(decoder: Decoder, batches: list[Batch], plans: list[MaskPlan]) -> Callable[[], None]:
    """Pass by pass under one wiring, which favours the separate side: its proof is not paid for plan by plan."""
    kinds = [plan.kinds(len(decoder.blocks)) for plan in plans]

    def run() -> None:
        with wired(decoder.module, decoder.blocks, kinds[0], family=decoder.description.family) as wiring:
            for kind in kinds:
                wiring.plan.kinds = list(kind)
                for batch in batches:
                    pool_batch(decoder, batch, poolings=POOLINGS, layers=decoder.layers)

    return run


def _walk(decoder: Decoder, batches: list[Batch], plans: list[MaskPlan]) -> Callable[[], None]:
    routes = [route_of(plan, len(decoder.blocks)) for plan in plans]

    def run() -> None:
        kinds = [step.kind for step in routes[0]]
        with wired(decoder.module, decoder.blocks, kinds, family=decoder.description.family) as wiring:
            for batch in batches:
                walk_plans(
                    decoder, wiring, batch, routes, poolings=POOLINGS, layers=decoder.layers, emit=lambda _k, _l: None
                )

    return run


def _difference(decoder: Decoder, batch: Batch, plans: list[MaskPlan]) -> float:
    """Find the largest difference between latents of a sweep and of separate passes, relative to the largest latent."""
    swept: dict[Route, Tensor] = {}
    kinds = plans[0].kinds(len(decoder.blocks))
    routes = {plan: route_of(plan, len(decoder.blocks)) for plan in plans}
    options: dict[str, Any] = {"poolings": POOLINGS, "layers": decoder.layers}
    with wired(decoder.module, decoder.blocks, kinds, family=decoder.description.family) as wiring:
        walk_plans(
            decoder,
            wiring,
            batch,
            list(routes.values()),
            **options,
            emit=lambda route, latents: swept.update({route: latents.clone()}),
        )
    worst = 0.0
    for plan in plans:
        with plan_in_force(decoder, plan), torch.inference_mode():
            alone = pool_batch(decoder, batch, **options)
            worst = max(worst, float((alone - swept[routes[plan]]).abs().max() / alone.abs().max()))
    return worst
