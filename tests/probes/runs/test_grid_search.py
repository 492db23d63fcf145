"""Searches over planted surfaces: what they find, what they pay, and that they keep to their budget."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from extract.errors import ConfigError, UnknownNameError
from extract.masks.mask_plan import MaskPlan, parse_plan, plans_over_k, plans_over_k_and_k0
from extract.wiring.states import count_blocks, route_of
from probes.data.task_table import load_task
from probes.runs.grid_search import (
    STRATEGIES,
    Family,
    Ledger,
    Search,
    SearchSpace,
    Trial,
    count_texts,
    rows_of,
    search_points,
)

N_BLOCKS, N_ROWS = 12, 400
Surface = Callable[[int, int], float]


def space_of(
    plans: Sequence[MaskPlan], n_blocks: int, n_rows: int, n_texts: Callable[[int], int], *, fewest_rows: int = 1
) -> SearchSpace:
    named = {plan.text: plan for plan in plans}
    family = Family({name: [route_of(plan, n_blocks)] for name, plan in named.items()}, n_texts)
    return SearchSpace(tuple(named), (family,), n_rows, fewest_rows, named, n_texts)


def grid(step: int = 1, *, fewest_rows: int = 4) -> SearchSpace:
    counts = range(0, N_BLOCKS + 1, step)
    plans = plans_over_k_and_k0(counts, counts)
    return space_of(plans, N_BLOCKS, N_ROWS, lambda n_rows: 3 * n_rows // 2, fewest_rows=fewest_rows)


def without_kept_rows(space: SearchSpace) -> SearchSpace:
    return replace(space, families=tuple(replace(family, keeps_rows=False) for family in space.families))


def hill(top: tuple[int, int]) -> Surface:
    return lambda k, k0: -((k - top[0]) ** 2) - (k0 - top[1]) ** 2


def scorer(
    space: SearchSpace, surface: Surface, noise: float = 0.0, seed: int = 0
) -> Callable[[Trial], Sequence[float]]:
    """Score by a surface, with noise of the size that a mean over so many rows has; the same rows, the same noise."""
    points = {name: point for point, name in space.by_k_and_k0.items()}
    draws = np.random.default_rng(seed).normal(size=(len(points), N_ROWS)).cumsum(1)
    place = {plan: row for row, plan in enumerate(points)}

    def score(trial: Trial) -> list[float]:
        return [
            surface(*points[plan]) + noise * draws[place[plan], trial.n_rows - 1] / trial.n_rows
            for plan in trial.points
        ]

    return score


def replayed_cost(space: SearchSpace, found: Search) -> int:
    """Add up block passes x new texts anew, straight from the trees of what was tried."""
    known: dict[str, int] = {}
    total = 0
    for plans, n_rows in [(tuple(step.scores), step.n_rows) for step in found.trials] + [
        ((found.chosen,), space.n_rows)
    ]:
        n_texts = space.n_texts(n_rows)
        for had in {known.get(plan, 0) for plan in plans}:
            alike = [space.plans[plan].kinds(N_BLOCKS) for plan in plans if known.get(plan, 0) == had]
            total += count_blocks(alike) * max(0, n_texts - had)
        known.update(dict.fromkeys(plans, n_texts))
    return total


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("top", [(0, 0), (12, 12), (12, 0), (7, 3), (5, 5), (1, 0)])
def test_the_top_of_a_single_hill_is_found(strategy: str, top: tuple[int, int]) -> None:
    space = grid()
    found = search_points(strategy, space, scorer(space, hill(top)))
    assert found.chosen is space.by_k_and_k0[top]
    assert found.share <= 0.25


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_cost_is_that_of_the_trees(strategy: str) -> None:
    space = grid()
    found = search_points(strategy, space, scorer(space, hill((9, 4)), noise=20.0))
    assert found.full_cost == count_blocks([plan.kinds(N_BLOCKS) for plan in space.plans.values()]) * 600
    assert found.cost == replayed_cost(space, found)
    rest = N_BLOCKS * (600 - space.n_texts(found.trials[-1].n_rows))
    assert found.cost == sum(step.cost for step in found.trials) + rest
    assert found.share == found.cost / found.full_cost


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("budget", [0.12, 0.25, 0.5, 1.0])
def test_no_budget_is_exceeded_and_a_larger_one_buys_rows(strategy: str, budget: float) -> None:
    for step in (1, 2, 3):
        space = grid(step)
        try:
            found = search_points(strategy, space, scorer(space, hill((6, 3)), noise=5.0), budget=budget)
        except ConfigError as error:
            assert budget < 0.25
            [enough] = map(float, re.findall(r"Set --budget to ([\d.]+) or more", str(error)))
            search_points(strategy, space, scorer(space, hill((6, 3))), budget=enough)
            with pytest.raises(ConfigError, match="Set --budget to"):
                search_points(strategy, space, scorer(space, hill((6, 3))), budget=enough - 0.01)
        else:
            assert found.cost <= budget * found.full_cost
            more = search_points(strategy, space, scorer(space, hill((6, 3)), noise=5.0), budget=min(1.0, 2 * budget))
            assert more.trials[0].n_rows >= found.trials[0].n_rows


def test_a_search_with_the_whole_budget_scores_every_plan_on_all_rows() -> None:
    space = grid(3)
    found = search_points("halving", space, scorer(space, hill((3, 3)), noise=50.0), budget=1.0)
    assert tuple(found.trials[0].scores) == space.points
    assert found.cost <= found.full_cost


def test_rungs_hold_fewer_plans_and_more_rows() -> None:
    space = grid()
    found = search_points("halving", space, scorer(space, hill((6, 2)), noise=20.0))
    sizes = [len(step.scores) for step in found.trials]
    rows = [step.n_rows for step in found.trials]
    assert sizes[0] == len(space.points) == 91
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes) >= 3
    assert rows == sorted(rows)
    for before, after in zip(found.trials, found.trials[1:], strict=False):
        assert set(after.scores) <= set(before.scores)
        left = [score for plan, score in before.scores.items() if plan not in after.scores]
        assert min(before.scores[plan] for plan in after.scores) >= max(left)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_of_equal_plans_the_first_is_chosen(strategy: str) -> None:
    space = grid()
    assert search_points(strategy, space, scorer(space, lambda *_: 1.0)).chosen == "causal"
    plateau = search_points(strategy, space, scorer(space, lambda k, k0: float(min(k, 4) + min(k0, 2))))
    assert plateau.chosen is space.by_k_and_k0[4, 2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_noise_that_rows_average_out_costs_little(strategy: str) -> None:
    """In most draws of the noise what is lost is a fraction of what a plan taken at random would lose."""
    space, surface = grid(), hill((8, 5))
    points = {plan: point for point, plan in space.by_k_and_k0.items()}
    lost = []
    for seed in range(20):
        found = search_points(strategy, space, scorer(space, surface, noise=30.0, seed=seed))
        lost.append(-surface(*points[found.chosen]))
    assert np.median(lost) <= 5
    heights = -np.array([surface(*point) for point in points.values()])
    assert np.median(heights) > 15


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_without_a_score_is_not_chosen(strategy: str) -> None:
    space = grid()
    found = search_points(strategy, space, scorer(space, lambda k, k0: math.nan if k0 == 0 else float(-k - k0)))
    assert found.chosen is space.by_k_and_k0[1, 1]


def test_lines_go_through_the_best_plan_so_far() -> None:
    space = grid()
    found = search_points("coordinate", space, scorer(space, hill((7, 3))))
    points = {plan: point for point, plan in space.by_k_and_k0.items()}
    lines = [[points[plan] for plan in step.scores] for step in found.trials]
    assert lines[0] == [(k, k) for k in range(13)]
    assert lines[1] == [(5, k0) for k0 in range(5)]
    assert lines[2] == [(k, 3) for k in range(4, 13) if k != 5]
    assert lines[3] == [(7, k0) for k0 in (0, 1, 2, 4, 5, 6)]
    assert len({step.n_rows for step in found.trials}) == 1


def test_lists_of_other_plans_can_be_halved_only() -> None:
    plans = tuple(plans_over_k(["backward", "nosink-causal"], range(9)))
    space = space_of(plans, 8, 200, lambda n_rows: n_rows)
    scores = {plan.text: float(-abs(place - 6)) for place, plan in enumerate(plans)}
    found = search_points("halving", space, lambda trial: [scores[plan] for plan in trial.points])
    assert found.chosen == plans[6].text
    with pytest.raises(ConfigError, match="the plan 'backward:1' is no point of a"):
        search_points("coordinate", space, lambda trial: [scores[plan] for plan in trial.points])


def test_a_ledger_prices_new_texts_only() -> None:
    space = grid(6)
    ledger = Ledger(space, 1.0)
    two = space.points[1:3]
    assert ledger.charge(two, 100) == space.block_passes(two) * 150
    assert ledger.price(two, 100) == 0
    assert ledger.price(two, 200) == space.block_passes(two) * 150
    assert ledger.price(space.points[:2], 100) == N_BLOCKS * 150  # one of them is known
    assert ledger.spent == space.block_passes(two) * 150


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("budget", [0.25, 0.6, 1.0])
def test_where_rows_cannot_be_kept_every_trial_pays_for_all_of_its_rows(strategy: str, budget: float) -> None:
    space = without_kept_rows(grid())
    found = search_points(strategy, space, scorer(space, hill((8, 3))), budget=budget)
    assert found.chosen is space.by_k_and_k0[8, 3]
    assert found.cost <= budget * found.full_cost
    for step in found.trials:
        if strategy == "halving":
            assert step.cost == space.block_passes(step.scores) * space.n_texts(step.n_rows)
    last = found.trials[-1].n_rows
    assert found.cost == sum(step.cost for step in found.trials) + N_BLOCKS * 600 * (last < space.n_rows)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_budget_that_is_too_small_says_so(strategy: str) -> None:
    space = grid(fewest_rows=300)
    with pytest.raises(ConfigError, match=r"a budget of 0\.25 of the full grid leaves \d+ rows .* at least 300 are"):
        search_points(strategy, space, scorer(space, hill((0, 0))))
    for budget in (0.0, -1.0, 1.5):
        with pytest.raises(ConfigError, match=f"the search budget is {budget:g}; allowed"):
            search_points(strategy, space, scorer(space, hill((0, 0))), budget=budget)


def test_an_unknown_strategy_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown search strategy 'halfing': did you mean 'halving'"):
        search_points("halfing", grid(), lambda trial: [0.0] * len(trial.points))


@pytest.mark.parametrize(("share", "part", "rows"), [(0.53, 0.4, (95, 187, 4)), (0.79, 0.9, (254, 425, 3))])
def test_a_rung_never_asks_for_fewer_rows_than_were_scored(
    share: float, part: float, rows: tuple[int, int, int]
) -> None:
    """Where points share most blocks, more rows may cost less than completing the found point later."""
    plans = [parse_plan(f"{kind}:{n}") for kind in ("bidirectional", "nosink-causal", "backward") for n in (1, 2, 3, 4)]
    ledger = Ledger(space_of(plans, 18, 560, lambda n_rows: 2 * n_rows), share)
    first, second, n_left = rows
    ledger.charge(ledger.space.points, first)
    left = ledger.space.points[:n_left]
    ledger.charge(left, second)
    assert ledger.affordable_rows(left[:2], part=part) >= second


def test_documents_count_as_texts() -> None:
    retrieval, reranking = (load_task(f"{kind}-sample").without_test() for kind in ("retrieval", "reranking"))
    for task in (retrieval, reranking):
        n_texts = count_texts(task, 1)
        assert n_texts(rows_of(task)) == len(task.texts())
        drawn = task.subset(5)
        assert n_texts(5) == len(drawn.texts())
