from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import ShapleyValues

from extract.errors import InputError
from extract.linear import estimated_products
from probes.heads.pair_heads import Muted
from probes.layers.study import MOST_EXACT, Shapley, group_layers, shapley_values, worth_of_groups
from probes.metrics.bootstrap import correlation_scorer
from probes.networks.pair_networks import SiameseCosine


def _game(n: int, seed: int = 0) -> tuple[Any, list[int]]:
    """Make a game with synergies between all players, and count the sets it was asked for."""
    rng = np.random.default_rng(seed)
    weights, pairs = rng.normal(size=n), rng.normal(size=(n, n))
    asked: list[int] = []

    def worth(masks: np.ndarray) -> np.ndarray:
        asked.append(len(masks))
        ours = masks.astype(float)
        return np.asarray(np.tanh(ours @ weights + np.einsum("mi,ij,mj->m", ours, pairs, ours) / n))

    return worth, asked


def _by_enumeration(worth: Any, n: int) -> np.ndarray:
    found = np.zeros(n)
    orders = list(permutations(range(n)))
    for order in orders:
        mask = np.zeros((1, n), bool)
        before = worth(mask)[0]
        for player in order:
            mask[0, player] = True
            found[player] += worth(mask)[0] - before
            before = worth(mask)[0]
    return found / len(orders)


def test_exact_values_are_those_of_all_orders() -> None:
    worth, _ = _game(6)
    found = shapley_values(worth, 6)
    assert np.allclose(found.values, _by_enumeration(worth, 6), atol=1e-12)
    assert not found.errors.any()


@pytest.mark.parametrize("n", [5, 20])
def test_values_sum_to_what_all_have_over_none(n: int) -> None:
    worth, _ = _game(n)
    found = shapley_values(worth, n, n_orders=20)
    assert np.isclose(found.values.sum(), found.all - found.none, atol=1e-12)


def test_drawn_orders_come_within_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    worth, _ = _game(10)
    exact = shapley_values(worth, 10).values
    monkeypatch.setattr("probes.layers.study.MOST_EXACT", 4)
    drawn = shapley_values(worth, 10, n_orders=400)
    assert (np.abs(drawn.values - exact) < 4 * drawn.errors).all()
    assert 0 < drawn.errors.max() < 0.1
    fewer = shapley_values(worth, 10, n_orders=40)
    assert fewer.errors.mean() > 1.5 * drawn.errors.mean()


def test_a_game_without_synergies_needs_no_luck() -> None:
    gains = np.arange(20.0)
    found = shapley_values(lambda masks: masks @ gains, 20, n_orders=4)
    assert np.allclose(found.values, gains)
    assert np.allclose(found.errors, 0)


def test_no_set_is_scored_twice_and_resamples_go_along() -> None:
    worth, asked = _game(16)
    found = shapley_values(lambda masks: np.stack([worth(masks), 2 * worth(masks)], axis=1), 16, n_orders=10)
    assert found.values.shape == (16, 2)
    assert np.allclose(found.values[:, 1], 2 * found.values[:, 0])
    assert asked[0] <= 10 * 15 + 2


def test_two_alike_share_and_one_that_adds_nothing_gets_nothing() -> None:
    def worth(masks: np.ndarray) -> np.ndarray:
        return np.asarray(masks[:, 0] | masks[:, 1], float)

    assert np.allclose(shapley_values(worth, 3).values, [0.5, 0.5, 0.0])
    table = worth_of_groups(worth, ((0, 1), (2,)), 3)
    assert np.allclose(shapley_values(table, 2).values, [1.0, 0.0])


@pytest.mark.parametrize("n_orders", [2, 7])
def test_orders_come_in_pairs(n_orders: int) -> None:
    with pytest.raises(InputError, match="an even number of at least 4"):
        shapley_values(lambda masks: masks.sum(1), 20, n_orders=n_orders)


def test_groups_hold_every_layer_once_for_every_pooling() -> None:
    layers = ("embedding", *(f"block_{k:02}" for k in range(1, 8)), "final_norm")
    groups = group_layers(layers)
    assert sorted(k for part in groups.values() for k in part) == list(range(9))
    assert groups["lower third"] == (1, 2, 3)
    both = group_layers(tuple(f"{pooling}/{name}" for pooling in ("mean", "last") for name in layers))
    assert both["embedding"] == (0, 9)
    assert both["upper third"] == (6, 7, 15, 16)


@pytest.mark.parametrize("has_units", [True, False])
def test_products_of_an_estimate_are_rough_only_where_the_processor_is_made_for_it(
    has_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": has_units})
    backend: Any = torch.backends.mkldnn
    before = backend.matmul.fp32_precision
    with pytest.raises(RuntimeError, match="stopped"), estimated_products():
        assert backend.matmul.fp32_precision == ("bf16" if has_units else before)
        raise RuntimeError("stopped")
    assert backend.matmul.fp32_precision == before


@pytest.mark.skipif(not torch.cpu.get_capabilities().get("amx_bf16"), reason="no matrix units: nothing is rounded")
def test_rough_products_move_values_by_far_less_than_the_draw_of_orders() -> None:
    torch.manual_seed(0)
    cosines = torch.rand(MOST_EXACT + 4, 200)
    muted = Muted(SiameseCosine(len(cosines), 8, bottleneck=4, hidden=128).eval(), cosines, cosines.mean(1))
    scorer = correlation_scorer(cosines.mean(0).double().numpy(), metric="pearson")

    def values() -> Shapley:
        return shapley_values(lambda masks: np.nan_to_num(scorer.score(muted.predict(masks))), len(cosines), n_orders=8)

    exact = values()
    with estimated_products():
        rough = values()
    assert 0 < np.abs(rough.values - exact.values).max() < exact.errors.max() / 5


def test_values_of_a_head_are_those_of_captum() -> None:
    torch.manual_seed(0)
    cosines = torch.rand(5, 40)
    head = SiameseCosine(len(cosines), 8, bottleneck=4, hidden=16).eval()
    with torch.no_grad():
        next(head.network.parameters()).mul_(10)  # an untrained network is nearly linear
    muted = Muted(head, cosines, cosines.mean(1))
    scorer = correlation_scorer(cosines.mean(0).double().numpy() ** 3, metric="pearson")

    def worth(masks: Any) -> np.ndarray:
        return np.asarray(np.nan_to_num(scorer.score(muted.predict(masks))))

    oracle = ShapleyValues(lambda kept: torch.from_numpy(worth(kept.numpy() > 0.5)))
    wanted = oracle.attribute(torch.ones(1, len(cosines)), baselines=0.0)[0].numpy()
    assert np.abs(wanted).max() > 0.02
    assert np.allclose(shapley_values(worth, len(cosines)).values, wanted, atol=1e-6)
