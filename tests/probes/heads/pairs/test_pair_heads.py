"""What the network of every registered pair head must hold; tests/conformance has what all heads must."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.registry import resolve
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask
from probes.fitting.fit import FitResult, fit_head, predict_pairs
from probes.fitting.fit_options import EpochOptions
from probes.heads.head_table import HEADS, resolve_head
from probes.heads.pair_heads import layer_contributions
from probes.latents.text_latents import PairLatents, Standardiser
from probes.metrics.prediction_metrics import pearson
from probes.networks.network_options import LOSSES, code_widths
from probes.networks.pair_networks import JoinedCosine, PairHead, SiameseCosine, UntrainedCosine
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH, make_task, pair_data

# Options that make a head quick on planted latents; one that is not named here is fitted as the registry says.
QUICK: dict[str, dict[str, Any]] = {
    "cosine-linear": {"max_epochs": 12, "learning_rate": 3e-3, "batch_size": 40},
    "cosine-mlp": {"max_epochs": 12, "learning_rate": 3e-3, "batch_size": 40},
    "siamese-cosine": {
        "max_epochs": 12,
        "learning_rate": 3e-3,
        "batch_size": 40,
        "bottleneck": 24,
        "hidden": 32,
        "dropout": 0.1,
    },
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, QUICK.get(name, {})) for name, entry in HEADS.items() if entry.kind == "pairs"},
    "siamese-cosine mlp": ("siamese-cosine", {**QUICK["siamese-cosine"], "encoder": "mlp", "loss": "mse"}),
    "siamese-cosine widths": (
        "siamese-cosine",
        {**QUICK["siamese-cosine"], "bottleneck": "16, upper half 24", "loss": "cosent", "max_epochs": 8},
    ),
    "siamese-cosine pairs": (
        "siamese-cosine",
        {**QUICK["siamese-cosine"], "bottleneck": [16, 24, 24, 24, 16], "pair_features": 2, "max_epochs": 8},
    ),
}
TRAINED = [case for case, (name, _) in CASES.items() if resolve(HEADS[name].sources[0]).is_trained]


@dataclass(frozen=True)
class Fitted:
    """A head that was fitted on the planted latents."""

    head: PairHead
    result: FitResult
    data: PairLatents


def build(case: str, *, n_layers: int = len(LAYERS), seed: int = 0, **changes: Any) -> PairHead:
    name, options = CASES[case]
    torch.manual_seed(seed)
    head = HEADS[name].sources[0](n_layers, WIDTH, **{**resolve_head(name, options).options, **changes})
    assert isinstance(head, PairHead)
    return head.eval()


def fit(case: str, cache: LatentCache, task: PairTask, *, seed: int = 0, **changes: Any) -> Fitted:
    name, options = CASES[case]
    head, data = build(case, seed=seed), pair_data(cache, task, seed=seed)
    _, *fit_options = resolve_head(name, {**options, **changes}).values
    return Fitted(head, fit_head(head, data, options=[*fit_options, EpochOptions()][0], seed=seed), data)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fitted(case: str, cache: LatentCache, task: PairTask) -> Fitted:
    return fit(case, cache, task)


def take_layer(case: str, head: PairHead, k: int) -> PairHead:
    """Make the head of one layer alone, with the parameters that the layer has in a fitted one."""
    if isinstance(head, SiameseCosine):
        [group] = [g for g, layers in enumerate(head.encoder.members) if k in layers]
        row = head.encoder.members[group].index(k)
        code = code_widths(head.arguments()["bottleneck"], head.n_layers, width=WIDTH)[k]
        single = build(case, n_layers=1, bottleneck=code)
        assert isinstance(single, SiameseCosine)
        single.adopt(head.encoder, Standardiser(head.mean.squeeze(1), head.scale.squeeze(1)), picks=[k])
        if head.projections:
            shared = head.projections[group].state_dict()
            single.projections[0].load_state_dict({key: value[row : row + 1] for key, value in shared.items()})
        return single
    single = build(case, n_layers=1)
    state = single.state_dict()
    for key, value in head.state_dict().items():
        if value.shape == state[key].shape:
            state[key] = value
        elif value.shape[0] == len(LAYERS) and state[key].shape[0] == 1:
            state[key] = value[k : k + 1]
    single.load_state_dict(state)
    return single


def draw(n_rows: int = 9, *, n_layers: int = len(LAYERS)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    a, b = torch.randn(2, n_layers, n_rows, WIDTH, generator=generator)
    return a, b


def test_similarity_is_symmetric(fitted: Fitted) -> None:
    a, b = draw()
    with torch.no_grad():
        torch.testing.assert_close(fitted.head(a, b), fitted.head(b, a), rtol=0, atol=1e-6)
        torch.testing.assert_close(fitted.head.similarities(a, b), fitted.head.similarities(b, a), rtol=0, atol=1e-6)


def test_two_predictions_agree(fitted: Fitted) -> None:
    fitted.head.train()  # predicting must put dropout off by itself
    one = predict_pairs(fitted.head, fitted.data, "test")
    assert not fitted.head.training
    np.testing.assert_array_equal(one, predict_pairs(fitted.head, fitted.data, "test"))


def test_a_prediction_does_not_depend_on_its_batch(fitted: Fitted) -> None:
    a, b = draw()
    with torch.no_grad():
        alone = torch.cat([fitted.head(a[:, i : i + 1], b[:, i : i + 1]) for i in range(a.shape[1])])
        torch.testing.assert_close(alone, fitted.head(a, b), rtol=0, atol=1e-5)


def test_a_layer_alone_equals_the_layer_among_others(fitted: Fitted, case: str) -> None:
    a, b = draw()
    with torch.no_grad():
        together = fitted.head.similarities(a, b)
        assert together.shape[0] % len(LAYERS) == 0
        for k in range(len(LAYERS)):
            alone = take_layer(case, fitted.head, k).similarities(a[k : k + 1], b[k : k + 1])
            torch.testing.assert_close(alone, together[k :: len(LAYERS)], rtol=0, atol=1e-6)


def test_predictions_are_finite_and_in_range(fitted: Fitted) -> None:
    low = 0.0 if fitted.head.is_trained else -1.0
    for split in fitted.data.splits:
        predicted = predict_pairs(fitted.head, fitted.data, split)
        assert predicted.dtype == np.float32
        assert predicted.shape == (len(fitted.data.split(split)),)
        assert (predicted >= low).all()
        assert (predicted <= 1 + 1e-6).all()


def test_identical_texts_get_the_identical_similarity(fitted: Fitted) -> None:
    a, _ = draw()
    with torch.no_grad():
        predicted = fitted.head(a, a).numpy()
    constant = fitted.head.identical_similarity()
    if constant is None:  # pair features depend on the text
        assert fitted.head.arguments()["pair_features"]
        with torch.no_grad():
            assert (fitted.head.similarities(a, a)[len(LAYERS) :].std(1) > 1e-4).all()
    else:
        np.testing.assert_allclose(predicted, constant, atol=1e-5)


def test_the_planted_layer_is_found(fitted: Fitted) -> None:
    predicted = predict_pairs(fitted.head, fitted.data, "test")
    assert pearson(predicted, fitted.data.split("test").gold.numpy()) > 0.4
    found = layer_contributions(fitted.head, fitted.data)
    assert found.layers == ((PLANTED,) if isinstance(fitted.head, JoinedCosine) else tuple(LAYERS))  # those it reads
    assert found.split == "validation"
    k = found.layers.index(PLANTED)
    assert int(np.argmax(found.alone)) == k
    assert found.alone[k] > 0.4
    if not isinstance(fitted.head, UntrainedCosine):
        assert int(np.argmax(found.without)) == k
        assert max(abs(value) for i, value in enumerate(found.without) if i != k) < 0.3 * found.without[k]
    else:  # without its one layer nothing is left that could correlate
        assert np.isnan(found.without[k])
        assert PLANTED in str(fitted.head.choice(LAYERS))
        assert int(np.argmax(fitted.head.curves(fitted.data, "test")["spearman"][0])) == LAYERS.index(PLANTED)


@pytest.mark.long
def test_shuffled_gold_scores_at_chance(case: str, cache: LatentCache) -> None:
    shuffled = fit(case, cache, make_task(shuffled=["train", "validation"]))
    gold = shuffled.data.split("validation").gold.numpy()
    best = float(pearson(predict_pairs(shuffled.head, shuffled.data, "validation"), gold))
    assert best < 0.35  # the best of several epochs and layers, where chance has a standard deviation of 0.09


@pytest.mark.parametrize("case", TRAINED, scope="function")
def test_gradients_reach_every_parameter(case: str) -> None:
    head = build(case).train()
    a, b = draw(32)
    gold = torch.rand(32, generator=torch.Generator().manual_seed(5))
    LOSSES[head.loss_name][0](head(a, b), gold).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name
