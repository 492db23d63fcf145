from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError, InputError
from extract.masks.mask_plan import CAUSAL_KIND, parse_plan
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import sweep_cost, sweep_latents
from extract.store.cache import LatentCache
from extract.wiring.batch_proof import BatchProof
from extract.wiring.plan_wiring import masks_in_force, plan_in_force
from extract.wiring.states import count_blocks, pool_batch, route_of, walk_plans
from tests.extract.recorder import Recorder, interrupt_after
from tests.extract.tiny_decoders import encode_batch, make_decoder

PLANS = ("causal", "backward:1", "backward:2", "backward", "nosink-bidirectional:2+bidirectional:1", "backward@1-1")
SPEC = ExtractionSpec(poolings=("mean", "last"))


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None) -> None:
    """Save the time of checking shapes."""


def sweep(decoder: Decoder, texts: list[str], folder: Path, plans: tuple[str, ...] = PLANS) -> list[LatentCache]:
    return sweep_latents(decoder, texts, [parse_plan(plan) for plan in plans], spec=SPEC, folder=folder)


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "mistral", "opt"])
def test_a_sweep_equals_separate_extractions(family: str, texts: list[str], tmp_path: Path) -> None:
    decoder = make_decoder(family)
    caches = sweep(decoder, texts, tmp_path / "together")
    for plan, cache in zip(PLANS, caches, strict=True):
        alone = extract_latents(
            decoder, texts, spec=ExtractionSpec(plan=plan, poolings=SPEC.poolings), folder=tmp_path / "alone"
        )
        assert cache.identity == alone.identity
        for pooling in SPEC.poolings:
            torch.testing.assert_close(
                cache.gather(cache.rows_of(texts), pooling),
                alone.gather(alone.rows_of(texts), pooling),
                atol=1e-5,
                rtol=1e-5,
            )


def test_plans_of_a_sweep_differ_from_each_other(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    tops = [cache.gather(cache.rows_of(texts), "mean")[-1] for cache in sweep(decoder, texts, tmp_path)]
    for i, one in enumerate(tops):
        for other in tops[:i]:
            assert float((one - other).abs().max()) > 1e-3


def test_a_sweep_computes_exactly_the_nodes_of_its_tree(
    decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [parse_plan(f"bidirectional:{k}") for k in range(4)]
    cost = sweep_cost(plans, len(decoder.blocks))
    assert (cost.n_blocks, cost.n_blocks_apart) == (3 + 1 + 2 + 3, 12)
    calls: list[int] = []
    monkeypatch.setattr("extract.run.shards.Extraction.certify", lambda _self: {"influence": {"n_layers": 5}})
    monkeypatch.setattr(BatchProof, "prove", lambda *_, **__: None)

    def count(inner: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **options: Any) -> Any:
            calls.append(1)
            return inner(*args, **options)

        return forward

    for block in decoder.blocks:
        monkeypatch.setattr(block, "forward", count(block.forward))
    short = texts[:3]
    sweep_latents(decoder, short, plans, spec=ExtractionSpec(batch_tokens=1000), folder=tmp_path)
    lengths = len({len(decoder.tokenizer(text).input_ids) for text in short})
    probes = 2 * 3  # the wiring is compared with the untouched decoder first
    assert (len(calls) - probes) % cost.n_blocks == 0
    assert 1 <= (len(calls) - probes) // cost.n_blocks <= lengths


def test_a_grid_of_k_and_k0_costs_what_its_tree_says() -> None:
    n_blocks = 6
    grid = [
        parse_plan(f"nosink-bidirectional:{k0}+bidirectional:{k - k0}").kinds(n_blocks)
        for k in range(n_blocks + 1)
        for k0 in range(k + 1)
    ]
    brute = {plan[:depth] for plan in grid for depth in range(1, n_blocks + 1)}
    assert count_blocks(grid) == len(brute)
    assert count_blocks(grid) < 0.5 * n_blocks * len(grid)


@pytest.mark.long
def test_an_interrupted_sweep_goes_on_and_ends_with_the_same_numbers(
    decoder: Decoder, texts: list[str], tmp_path: Path
) -> None:
    progress = Recorder(on_advance=interrupt_after(4))
    plans = [parse_plan(plan) for plan in PLANS]
    spec = ExtractionSpec(poolings=SPEC.poolings, batch_tokens=60)
    with pytest.raises(KeyboardInterrupt):
        sweep_latents(decoder, texts, plans, spec=spec, folder=tmp_path / "cut", progress=progress)
    assert progress.n_done < progress.n_rows
    half = [LatentCache(path, allow_partial=True) for path in sorted((tmp_path / "cut").glob("*.h5"))]
    assert 0 < sum(cache.n_done for cache in half) < len(texts) * len(PLANS)
    resumed = sweep_latents(decoder, texts, plans, spec=spec, folder=tmp_path / "cut")
    whole = sweep_latents(decoder, texts, plans, spec=spec, folder=tmp_path / "whole")
    for one, other in zip(resumed, whole, strict=True):
        torch.testing.assert_close(
            one.gather(range(len(one)), "mean"), other.gather(range(len(other)), "mean"), atol=1e-6, rtol=0
        )


def test_a_whole_sweep_is_found_again(
    decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sweep(decoder, texts, tmp_path)

    def forbid(*_args: object, **_options: object) -> None:
        raise AssertionError("a block was computed")

    monkeypatch.setattr("extract.run.shards.walk_plans", forbid)
    assert [cache.path for cache in sweep(decoder, texts, tmp_path)] == [cache.path for cache in first]


def test_the_order_in_which_plans_are_walked_changes_no_bit(decoder: Decoder, texts: list[str]) -> None:
    """A block that runs again for another plan computes what it does for that plan alone."""
    batch, how = encode_batch(decoder, texts[:6]), {"poolings": ("mean", "last"), "layers": decoder.layers}
    routes = [route_of(parse_plan(plan), len(decoder.blocks)) for plan in PLANS]

    def walk(some: list[Any]) -> dict[Any, Any]:
        latents: dict[Any, Any] = {}
        walk_plans(decoder, wiring, batch, some, emit=lambda r, part: latents.update({r: part.clone()}), **how)
        return latents

    with masks_in_force(decoder, [CAUSAL_KIND] * len(decoder.blocks)) as wiring:
        together = walk(routes)
        for route in routes:
            assert torch.equal(together[route], walk([route])[route])


def test_a_plan_that_cannot_share_blocks_is_refused(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'causal~tp1-2' cannot be part of a sweep"):
        sweep(decoder, texts, tmp_path, plans=("causal", "causal~tp1-2"))
    with pytest.raises(ConfigError, match="no plan was given"):
        sweep(decoder, texts, tmp_path, plans=())
    assert list(tmp_path.iterdir()) == []


def test_a_plan_in_hand_is_not_read_from_text_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, hybrid = parse_plan("backward:2"), parse_plan("hybrid:2")
    wanted = ExtractionSpec(plan="backward:2", poolings=SPEC.poolings)

    def forbid(text: str) -> None:
        raise AssertionError(f"{text} was parsed")

    monkeypatch.setattr("extract.run.extraction_spec.parse_plan", forbid)
    assert SPEC.with_plan(plan) == wanted
    assert SPEC.with_plan(plan).mask_plan is plan
    assert (SPEC.plan, SPEC.mask_plan) == ("causal", parse_plan("causal"))
    with pytest.raises(InputError, match="the plan 'hybrid:2' needs spans and none are given"):
        SPEC.with_plan(hybrid)


ARCHITECTURES = (
    "extend/backward:1",
    "extend/backward:3",
    "extra/bidirectional:1",
    "extra/bidirectional:2",
    "inter-stack/backward:2",
    "inter-block/backward:2",
    "inter-block/backward:1",
    "bidirectional:1",
    "backward",
)


@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.long)])
def test_architectures_in_a_sweep_equal_separate_runs_and_share_their_trunk(family: str, texts: list[str]) -> None:
    decoder, n_blocks = make_decoder(family), 3
    batch = encode_batch(decoder, texts[:6])
    how: dict[str, Any] = {"poolings": ("mean", "last"), "layers": decoder.layers}
    plans = {route_of(parse_plan(plan), n_blocks): parse_plan(plan) for plan in ARCHITECTURES}
    swept: dict[Any, Any] = {}
    n_passes = []
    handles = [part.register_forward_hook(lambda *_: n_passes.append(1)) for part in mlps(decoder)]
    with masks_in_force(decoder, [CAUSAL_KIND] * n_blocks) as wiring:
        n_passes.clear()
        walk_plans(
            decoder, wiring, batch, list(plans), emit=lambda r, latents: swept.update({r: latents.clone()}), **how
        )
        assert len(n_passes) == count_blocks([*plans, route_of(parse_plan("causal"), n_blocks)])
    for handle in handles:
        handle.remove()
    assert swept.keys() == plans.keys()
    for route, plan in plans.items():
        with plan_in_force(decoder, plan):
            torch.testing.assert_close(
                swept[route], pool_batch(decoder, batch, **how), atol=1e-5, rtol=1e-5, msg=plan.text
            )


def mlps(decoder: Decoder) -> list[Any]:
    return [block.get_submodule("mlp") for block in decoder.blocks]


def test_passes_of_architectures_are_counted_by_what_they_share() -> None:
    def cost(*plans: str) -> tuple[int, int]:
        found = sweep_cost([parse_plan(plan) for plan in plans], 4)
        return found.n_blocks, found.n_blocks_apart

    assert cost("extend/backward:2", "extend/backward:3", "extra/backward:1") == (4 + 3 + 1, 6 + 7 + 5)
    assert cost("inter-block/backward:2", "causal") == (4 + 3, 6 + 4)
    assert cost("inter-stack/backward:1", "inter-stack/backward:2") == (4 + 1 + 2, 5 + 6)


@pytest.mark.long
def test_caches_of_a_sweep_with_architectures_are_those_of_extractions(texts: list[str], tmp_path: Path) -> None:
    decoder, plans = make_decoder(), ("causal", *ARCHITECTURES[:6])
    for plan, cache in zip(plans, sweep(decoder, texts, tmp_path / "together", plans), strict=True):
        spec = ExtractionSpec(plan=plan, poolings=SPEC.poolings)
        alone = extract_latents(decoder, texts, spec=spec, folder=tmp_path / "alone")
        assert cache.identity == alone.identity
        torch.testing.assert_close(
            cache.gather(cache.rows_of(texts), "mean"), alone.gather(alone.rows_of(texts), "mean"), atol=1e-5, rtol=1e-5
        )
