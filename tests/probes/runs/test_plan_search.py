"""Searches over planted surfaces: what they find, what they pay, and that they keep to their budget."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from extract.errors import ConfigError, UnknownNameError
from extract.masks.mask_plan import MaskPlan, plans_over_k, plans_over_k_and_k0
from extract.wiring.states import count_blocks
from probes.runs.plan_search import STRATEGIES, Ledger, PlanSpace, Search, Trial, search_plans

N_BLOCKS, N_ROWS = 12, 400
Surface = Callable[[int, int], float]


def grid(step: int = 1, *, fewest_rows: int = 4) -> PlanSpace:
    counts = range(0, N_BLOCKS + 1, step)
    plans = tuple(plans_over_k_and_k0(counts, counts))
    return PlanSpace(plans, N_BLOCKS, N_ROWS, n_texts=lambda n_rows: 3 * n_rows // 2, fewest_rows=fewest_rows)


def hill(top: tuple[int, int]) -> Surface:
    return lambda k, k0: -((k - top[0]) ** 2) - (k0 - top[1]) ** 2


def scorer(space: PlanSpace, surface: Surface, noise: float = 0.0, seed: int = 0) -> Callable[[Trial], Sequence[float]]:
    """Score by a surface, with noise of the size that a mean over so many rows has; the same rows, the same noise."""
    points = {plan: point for point, plan in space.points.items()}
    draws = np.random.default_rng(seed).normal(size=(len(points), N_ROWS)).cumsum(1)
    place = {plan: row for row, plan in enumerate(points)}

    def score(trial: Trial) -> list[float]:
        return [
            surface(*points[plan]) + noise * draws[place[plan], trial.n_rows - 1] / trial.n_rows for plan in trial.plans
        ]

    return score


def replayed_cost(space: PlanSpace, found: Search) -> int:
    """Add up block passes x new texts anew, straight from the trees of what was tried."""
    known: dict[MaskPlan, int] = {}
    total = 0
    for plans, n_rows in [(step.trial.plans, step.trial.n_rows) for step in found.steps] + [
        ((found.chosen,), space.n_rows)
    ]:
        n_texts = space.n_texts(n_rows)
        for had in {known.get(plan, 0) for plan in plans}:
            alike = [plan.kinds(space.n_blocks) for plan in plans if known.get(plan, 0) == had]
            total += count_blocks(alike) * max(0, n_texts - had)
        known.update(dict.fromkeys(plans, n_texts))
    return total


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("top", [(0, 0), (12, 12), (12, 0), (7, 3), (5, 5), (1, 0)])
def test_the_top_of_a_single_hill_is_found(strategy: str, top: tuple[int, int]) -> None:
    space = grid()
    found = search_plans(strategy, space, scorer(space, hill(top)))
    assert found.chosen is space.points[top]
    assert found.share <= 0.25


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_cost_is_that_of_the_trees(strategy: str) -> None:
    space = grid()
    found = search_plans(strategy, space, scorer(space, hill((9, 4)), noise=20.0))
    assert found.full_cost == count_blocks([plan.kinds(N_BLOCKS) for plan in space.plans]) * 600
    assert found.cost == replayed_cost(space, found)
    rest = N_BLOCKS * (600 - space.n_texts(found.steps[-1].trial.n_rows))
    assert found.cost == sum(step.cost for step in found.steps) + rest
    assert found.share == found.cost / found.full_cost


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("budget", [0.12, 0.25, 0.5, 1.0])
def test_no_budget_is_exceeded_and_a_larger_one_buys_rows(strategy: str, budget: float) -> None:
    for step in (1, 2, 3):
        space = grid(step)
        try:
            found = search_plans(strategy, space, scorer(space, hill((6, 3)), noise=5.0), budget=budget)
        except ConfigError as error:
            assert "Raise --budget" in str(error)
            assert budget < 0.25
        else:
            assert found.cost <= budget * found.full_cost
            more = search_plans(strategy, space, scorer(space, hill((6, 3)), noise=5.0), budget=min(1.0, 2 * budget))
            assert more.steps[0].trial.n_rows >= found.steps[0].trial.n_rows


def test_a_search_with_the_whole_budget_scores_every_plan_on_all_rows() -> None:
    space = grid(3)
    found = search_plans("halving", space, scorer(space, hill((3, 3)), noise=50.0), budget=1.0)
    assert found.steps[0].trial.plans == space.plans
    assert found.cost <= found.full_cost


def test_rungs_hold_fewer_plans_and_more_rows() -> None:
    space = grid()
    found = search_plans("halving", space, scorer(space, hill((6, 2)), noise=20.0))
    sizes = [len(step.trial.plans) for step in found.steps]
    rows = [step.trial.n_rows for step in found.steps]
    assert sizes[0] == len(space.plans) == 91
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes) >= 3
    assert rows == sorted(rows)
    for before, after in zip(found.steps, found.steps[1:], strict=False):
        kept = dict(zip(before.trial.plans, before.scores, strict=True))
        assert set(after.trial.plans) <= set(before.trial.plans)
        left = [score for plan, score in kept.items() if plan not in after.trial.plans]
        assert min(kept[plan] for plan in after.trial.plans) >= max(left)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_of_equal_plans_the_first_is_chosen(strategy: str) -> None:
    space = grid()
    assert search_plans(strategy, space, scorer(space, lambda *_: 1.0)).chosen.text == "causal"
    plateau = search_plans(strategy, space, scorer(space, lambda k, k0: float(min(k, 4) + min(k0, 2))))
    assert plateau.chosen is space.points[4, 2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_noise_that_rows_average_out_costs_little(strategy: str) -> None:
    """In most draws of the noise what is lost is a fraction of what a plan taken at random would lose."""
    space, surface = grid(), hill((8, 5))
    points = {plan: point for point, plan in space.points.items()}
    lost = []
    for seed in range(20):
        found = search_plans(strategy, space, scorer(space, surface, noise=30.0, seed=seed))
        lost.append(-surface(*points[found.chosen]))
    assert np.median(lost) <= 5
    heights = -np.array([surface(*point) for point in points.values()])
    assert np.median(heights) > 15


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_without_a_score_is_not_chosen(strategy: str) -> None:
    space = grid()
    found = search_plans(strategy, space, scorer(space, lambda k, k0: math.nan if k0 == 0 else float(-k - k0)))
    assert found.chosen is space.points[1, 1]


def test_lines_go_through_the_best_plan_so_far() -> None:
    space = grid()
    found = search_plans("coordinate", space, scorer(space, hill((7, 3))))
    points = {plan: point for point, plan in space.points.items()}
    lines = [[points[plan] for plan in step.trial.plans] for step in found.steps]
    assert lines[0] == [(k, k) for k in range(13)]
    assert lines[1] == [(5, k0) for k0 in range(5)]
    assert lines[2] == [(k, 3) for k in range(4, 13) if k != 5]
    assert lines[3] == [(7, k0) for k0 in (0, 1, 2, 4, 5, 6)]
    assert len({step.trial.n_rows for step in found.steps}) == 1


def test_lists_of_other_plans_can_be_halved_only() -> None:
    plans = tuple(plans_over_k(["backward", "nosink-causal"], range(9)))
    space = PlanSpace(plans, 8, 200, n_texts=lambda n_rows: n_rows)
    scores = {plan: float(-abs(place - 6)) for place, plan in enumerate(plans)}
    found = search_plans("halving", space, lambda trial: [scores[plan] for plan in trial.plans])
    assert found.chosen is plans[6]
    with pytest.raises(ConfigError, match="the plan 'backward:1' is no point of a"):
        search_plans("coordinate", space, lambda trial: [scores[plan] for plan in trial.plans])


def test_a_ledger_prices_new_texts_only() -> None:
    space = grid(6)
    ledger = Ledger(space, 1.0)
    two = space.plans[1:3]
    assert ledger.charge(two, 100) == space.block_passes(two) * 150
    assert ledger.price(two, 100) == 0
    assert ledger.price(two, 200) == space.block_passes(two) * 150
    assert ledger.price(space.plans[:2], 100) == N_BLOCKS * 150  # one of them is known
    assert ledger.spent == space.block_passes(two) * 150


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("budget", [0.25, 0.6, 1.0])
def test_where_rows_cannot_be_kept_every_trial_pays_for_all_of_its_rows(strategy: str, budget: float) -> None:
    space = replace(grid(), keeps_rows=False)
    found = search_plans(strategy, space, scorer(space, hill((8, 3))), budget=budget)
    assert found.chosen is space.points[8, 3]
    assert found.cost <= budget * found.full_cost
    for step in found.steps:
        if strategy == "halving":
            assert step.cost == space.block_passes(step.trial.plans) * space.n_texts(step.trial.n_rows)
    last = found.steps[-1].trial.n_rows
    assert found.cost == sum(step.cost for step in found.steps) + N_BLOCKS * 600 * (last < space.n_rows)


def test_rows_are_found_by_their_texts() -> None:
    space = PlanSpace(grid().plans, N_BLOCKS, 50, n_texts=lambda n_rows: min(60, 2 * n_rows))
    assert [space.rows_within(n) for n in (0.0, 1.0, 2.0, 3.0, 59.9, 60.0, 1e3)] == [0, 0, 1, 1, 29, 50, 50]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_budget_that_is_too_small_says_so(strategy: str) -> None:
    space = grid(fewest_rows=300)
    with pytest.raises(ConfigError, match=r"a budget of 0\.25 of the full grid leaves \d+ rows .* at least 300 are"):
        search_plans(strategy, space, scorer(space, hill((0, 0))))
    for budget in (0.0, -1.0, 1.5):
        with pytest.raises(ConfigError, match=f"the search budget is {budget:g}; allowed"):
            search_plans(strategy, space, scorer(space, hill((0, 0))), budget=budget)


def test_an_unknown_strategy_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown search strategy 'halfing': did you mean 'halving'"):
        search_plans("halfing", grid(), lambda trial: [0.0] * len(trial.plans))
