"""The siamese head's starts (fresh, pretrained, frozen) and what it shows its network beside the cosines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import probes.heads.pair_heads
from extract.errors import ConfigError, HeadError, UnknownNameError
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask
from probes.fitting.fit import fit_head, predict_pairs
from probes.fitting.fit_options import EpochOptions, ignore_epoch
from probes.fitting.saved_fits import FitRecord, SavedHead
from probes.heads.head_table import resolve_head
from probes.heads.layer_head import FitContext, load_head
from probes.heads.pair_heads import FittedHead, PairFits, layer_contributions
from probes.latents.text_latents import PairLatents, Standardiser
from probes.metrics.prediction_metrics import read_calibration
from probes.networks.layerwise_networks import LayerAutoencoder
from probes.networks.pair_networks import STARTS, SiameseCosine
from tests.probes.finished_run import forbid
from tests.probes.heads.evaluating import evaluate, make_setting
from tests.probes.planted_latents import LAYERS, WIDTH, pair_data

Encoders = SavedHead[LayerAutoencoder]

L = len(LAYERS)
CODES = [4, 7, 4, 3, 7]  # interleaved groups
QUICK: dict[str, Any] = {"max_epochs": 2, "hidden": 8, "learning_rate": 3e-3, "batch_size": 40}
FEATURES: dict[str, Any] = {"pair_features": 3}


def make_autoencoders(layers: tuple[str, ...] = LAYERS, *, seed: int = 7, fit_id: str = "one") -> Encoders:
    """Make random autoencoders whose standardiser is like no data's."""
    torch.manual_seed(seed)
    codes = [CODES[k % L] for k in range(len(layers))]
    module = LayerAutoencoder(len(layers), WIDTH, bottleneck=codes, encoder="mlp", dropout=0.5).eval()
    module.prepare(Standardiser(torch.randn(len(layers), WIDTH), torch.rand(len(layers), WIDTH) + 0.5))
    return Encoders(module, FitRecord("autoencoder", layers=layers, fit_id=fit_id))


@pytest.fixture(scope="module")
def autoencoders() -> Encoders:
    """Autoencoders of all layers; read-only."""
    return make_autoencoders()


@pytest.fixture
def setting(cache: LatentCache, task: PairTask, tmp_path: Path, autoencoders: Encoders) -> FitContext:
    """A run with one seed and autoencoders at hand."""
    return make_setting(cache, task, tmp_path / "heads", autoencoders=lambda _: autoencoders, has_details=False)


def fit(setting: FitContext, **options: Any) -> FittedHead:
    resolved = resolve_head("siamese-cosine", {**QUICK, **options})
    return PairFits(SiameseCosine, resolved, setting).fit_seed(0, lambda _: ignore_epoch)


def head_of(fitted: FittedHead) -> SiameseCosine:
    assert isinstance(fitted.head, SiameseCosine)
    return fitted.head


def codes_of(module: SiameseCosine | LayerAutoencoder, latents: Tensor) -> list[Tensor]:
    """Return the code of every layer."""
    with torch.no_grad():
        parts = module.encoder.encode((latents - module.mean) / module.scale)
    return [
        parts[g][layers.index(k)]
        for k in range(module.n_layers)
        for g, layers in enumerate(module.encoder.members)
        if k in layers
    ]


def draw(n_rows: int = 9, *, n_layers: int = L) -> tuple[Tensor, Tensor]:
    a, b = torch.randn(2, n_layers, n_rows, WIDTH, generator=torch.Generator().manual_seed(4))
    return a, b


def assert_codes(head: SiameseCosine, autoencoders: Encoders, picks: list[int], *, are_equal: bool) -> None:
    latents, _ = draw(n_layers=autoencoders.head.n_layers)
    mine, theirs = codes_of(head, latents[picks]), codes_of(autoencoders.head, latents)
    for code, k in zip(mine, picks, strict=True):
        assert code.shape == theirs[k].shape
        assert torch.allclose(code, theirs[k], rtol=0, atol=1e-6) == are_equal


def weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def build_as_fitted(autoencoders: Encoders, **options: Any) -> SiameseCosine:
    """Build the head that `fit` starts from."""
    torch.manual_seed(0)
    head = SiameseCosine(L, WIDTH, hidden=8, encoder="mlp", bottleneck=CODES, **options)
    if head.start != "fresh":
        head.adopt(autoencoders.head.encoder, autoencoders.head.standardiser, picks=range(L))
    return head


@pytest.mark.parametrize("extra", [{}, FEATURES], ids=["cosines", "pair features"])
def test_frozen_encoders_stay_bit_identical_while_the_network_learns(
    setting: FitContext, autoencoders: Encoders, extra: dict[str, Any]
) -> None:
    before = weights(autoencoders.head)
    start = build_as_fitted(autoencoders, start="frozen", **extra)
    head = head_of(fit(setting, start="frozen", **extra))
    for mine, theirs in zip(head.encoder.parameters(), start.encoder.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert_codes(head, autoencoders, list(range(L)), are_equal=True)
    for part, fresh in ((head.network, start.network), (head.projections, start.projections)):
        for mine, theirs in zip(part.parameters(), fresh.parameters(), strict=True):
            assert not torch.equal(mine, theirs)
    assert len(head.projections) == (3 if extra else 0)
    assert all(torch.equal(now, then) for now, then in zip(autoencoders.head.parameters(), before, strict=True))


def test_pretrained_encoders_start_there_and_are_trained_on(setting: FitContext, autoencoders: Encoders) -> None:
    before = weights(autoencoders.head)
    start = build_as_fitted(autoencoders, start="pretrained")
    assert_codes(start.eval(), autoencoders, list(range(L)), are_equal=True)
    head = head_of(fit(setting, start="pretrained"))
    assert_codes(head, autoencoders, list(range(L)), are_equal=False)
    assert all(parameter.requires_grad for parameter in head.encoder.parameters())
    for mine, theirs in zip(head.encoder.parameters(), start.encoder.parameters(), strict=True):
        assert not torch.equal(mine, theirs)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0.15)  # a dozen steps away, not another start
    assert all(torch.equal(now, then) for now, then in zip(autoencoders.head.parameters(), before, strict=True))


@pytest.mark.parametrize("start", STARTS)
def test_latents_are_standardised_as_the_encoders_saw_them(
    setting: FitContext, autoencoders: Encoders, start: str
) -> None:
    fitted = fit(setting, start=start, max_epochs=1)
    own, theirs = fitted.data.standardiser(), autoencoders.head.standardiser
    expected = own if start == "fresh" else theirs
    assert torch.equal(fitted.head.mean.squeeze(1), expected.mean)
    assert torch.equal(fitted.head.scale.squeeze(1), expected.scale)
    assert not torch.equal(own.mean, theirs.mean)


@pytest.mark.parametrize("start", ["pretrained", "frozen"])
@pytest.mark.parametrize("layers", [["block_01", "final_norm"], ["embedding"], ["blocks"]])
def test_a_choice_of_layers_gets_the_encoders_of_those_layers(
    setting: FitContext, autoencoders: Encoders, layers: list[str], start: str
) -> None:
    fitted = fit(setting, start=start, layers=layers, max_epochs=1, learning_rate=0.0)
    picks = [LAYERS.index(layer) for layer in fitted.data.layers]
    assert len(picks) < L
    assert_codes(head_of(fitted), autoencoders, picks, are_equal=True)
    assert torch.equal(fitted.head.mean, autoencoders.head.mean[picks])
    assert torch.equal(fitted.head.scale, autoencoders.head.scale[picks])
    assert fitted.head.arguments()["bottleneck"] == [CODES[k] for k in picks]
    assert fitted.head.arguments()["encoder"] == "mlp"


@pytest.mark.parametrize(
    ("own", "told"),
    [({"encoder": "linear"}, "encoder"), ({"bottleneck": 4}, "bottleneck"), ({"bottleneck": CODES}, "")],
)
def test_encoders_of_another_shape_than_the_autoencoders_are_refused(
    setting: FitContext, own: dict[str, Any], told: str
) -> None:
    if not told:
        assert fit(setting, start="frozen", max_epochs=1, **own).head.arguments()["bottleneck"] == CODES
        return
    with pytest.raises(ConfigError, match=rf"option {told} of head 'siamese-cosine' is .*, but it starts from autoenc"):
        fit(setting, start="frozen", **own)
    assert not setting.folder.exists()


def test_both_poolings_get_the_encoders_of_both(setting: FitContext) -> None:
    asked = []
    channels = tuple(f"{pooling}/{layer}" for pooling in ("last", "mean") for layer in LAYERS)
    both = make_autoencoders(channels)

    def give(pooling: str) -> Encoders:
        asked.append(pooling)
        return both

    how = {"start": "frozen", "pooling": "last+mean", "layers": ["block_02", "block_03"], "max_epochs": 1}
    fitted = fit(replace(setting, autoencoders=give), **how)
    assert asked == ["last+mean"]
    assert fitted.data.layers == ("last/block_02", "last/block_03", "mean/block_02", "mean/block_03")
    assert_codes(head_of(fitted), both, [channels.index(name) for name in fitted.data.layers], are_equal=True)


def test_frozen_encoders_drop_nothing_in_training(autoencoders: Encoders) -> None:
    a, b = draw(64)
    found = {}
    for start in ("frozen", "pretrained"):
        head = build_as_fitted(autoencoders, start=start, dropout=0.5).train()
        assert head.training
        assert head.network.training
        found[start] = [head.similarities(a, b) for _ in range(2)]
    assert torch.equal(*found["frozen"])
    assert not torch.equal(*found["pretrained"])


def test_similarities_are_fixed_for_frozen_cosines_only(autoencoders: Encoders) -> None:
    fixed = {
        (start, n): build_as_fitted(autoencoders, start=start, pair_features=n).has_fixed_similarities
        for start in STARTS
        for n in (0, 3)
    }
    assert {key for key, value in fixed.items() if value} == {("frozen", 0)}


def test_similarities_computed_once_train_as_those_of_every_epoch(
    data: PairLatents, autoencoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cosines differ in their last bit between the two ways, so plain gradient steps, which keep a difference small.

    Adam's first steps follow the sign of a gradient, however small: they make 1e-3 of 1e-7 on some processors.
    """
    monkeypatch.setattr(SiameseCosine, "configure_optimizers", lambda head: torch.optim.SGD(head.parameters(), lr=3.0))
    predictions, histories = [], []
    for is_fixed in (True, False):
        if not is_fixed:
            monkeypatch.setattr(SiameseCosine, "has_fixed_similarities", False)
        head = build_as_fitted(autoencoders, start="frozen")
        before = predict_pairs(head, data, "test")
        result = fit_head(head, data, options=EpochOptions(batch_size=40, max_epochs=3))
        assert set(data.fixed) == ({"train", "validation"} if is_fixed else set())
        predictions.append(predict_pairs(head, data, "test"))
        histories.append([step["train_loss"] for step in result.history])
        assert np.abs(predictions[-1] - before).max() > 3e-3
    np.testing.assert_allclose(predictions[0], predictions[1], atol=1e-5)
    assert histories[0] == pytest.approx(histories[1], rel=1e-4)


@pytest.mark.parametrize("start", ["pretrained", "frozen"])
def test_a_start_without_autoencoders_is_refused(setting: FitContext, data: PairLatents, start: str) -> None:
    with pytest.raises(
        HeadError, match=rf"option start is '{start}', but there are no autoencoders; set `pretraining.corpus`, or"
    ):
        fit(replace(setting, autoencoders=None), start=start)
    head = SiameseCosine(L, WIDTH, bottleneck=4, hidden=8, start=start)
    with pytest.raises(
        HeadError, match=rf"option start is '{start}', but no autoencoders were given; allowed: 'fresh'"
    ):
        fit_head(head, data, options=EpochOptions(batch_size=40, max_epochs=1))


def test_an_unknown_start_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown start 'forzen': did you mean 'frozen'\? Allowed: fresh, pre"):
        resolve_head("siamese-cosine", {"start": "forzen"})


def test_a_fresh_head_asks_for_no_autoencoders(setting: FitContext) -> None:
    def refuse(_: str) -> Encoders:
        raise AssertionError("autoencoders were asked for")

    fit(replace(setting, autoencoders=refuse), max_epochs=1, bottleneck=4)
    with pytest.raises(AssertionError, match="autoencoders were asked for"):
        fit(replace(setting, autoencoders=refuse), max_epochs=1, start="frozen")


@pytest.mark.parametrize("start", ["pretrained", "frozen"])
def test_a_kept_head_is_found_again_unless_its_autoencoders_changed(
    setting: FitContext, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fit(setting, start=start, max_epochs=1)
    saved = load_head(setting.folder / "siamese-cosine" / "seed_0")
    for key, value in first.head.state_dict().items():
        assert torch.equal(value, saved.head.state_dict()[key])
    forbid(monkeypatch, probes.heads.pair_heads, "fit_head")
    again = fit(setting, start=start, max_epochs=1)
    for split, values in first.predictions.items():
        np.testing.assert_array_equal(values, again.predictions[split])
    with pytest.raises(AssertionError, match="fit_head was called"):
        fit(replace(setting, autoencoders=lambda _: make_autoencoders(fit_id="another")), start=start, max_epochs=1)


@pytest.mark.parametrize("extra", [{}, FEATURES], ids=["cosines", "pair features"])
@pytest.mark.parametrize("codes", [4, CODES], ids=["one width", "several"])
def test_it_is_symmetric(codes: Any, extra: dict[str, Any]) -> None:
    """In exact arithmetic; a row's place in a product decides which kernel sums it, hence a tolerance of float32."""
    torch.manual_seed(0)
    head = SiameseCosine(L, WIDTH, bottleneck=codes, hidden=8, **extra).eval()
    a, b = draw()
    with torch.no_grad():
        torch.testing.assert_close(head.similarities(a, b), head.similarities(b, a), rtol=0, atol=2e-6)
        torch.testing.assert_close(head(a, b), head(b, a), rtol=0, atol=2e-6)
        assert not torch.allclose(head(a, b), head(a, b.flip(1)), rtol=0, atol=1e-4)  # the texts do matter


@pytest.mark.parametrize("codes", [4, CODES], ids=["one width", "several"])
def test_pair_features_stand_behind_the_cosines_in_blocks_of_layers(codes: Any) -> None:
    """Row `j * L + k` is number `j` that layer k's projection takes from product and difference of its unit codes."""
    torch.manual_seed(0)
    head = SiameseCosine(L, WIDTH, bottleneck=codes, hidden=8, **FEATURES).eval()
    plain = SiameseCosine(L, WIDTH, bottleneck=codes, hidden=8).eval()
    plain.encoder.load_state_dict(head.encoder.state_dict())
    a, b = draw()
    of_a, of_b = codes_of(head, a), codes_of(head, b)
    with torch.no_grad():
        found, cosines = head.similarities(a, b), plain.similarities(a, b)
        assert found.shape == (L * 4, 9)
        torch.testing.assert_close(found[:L], cosines, rtol=0, atol=1e-6)
        for k in range(L):
            [group] = [g for g, layers in enumerate(head.encoder.members) if k in layers]
            row = head.encoder.members[group].index(k)
            project = head.projections[group]
            u, v = (code / code.norm(dim=1, keepdim=True) for code in (of_a[k], of_b[k]))
            torch.testing.assert_close(found[k], (u * v).sum(1), rtol=0, atol=1e-5)
            seen = torch.cat([u * v, (u - v).abs()], dim=1)
            expected = seen @ project.weight[row] + project.bias[row]  # type: ignore[index]
            torch.testing.assert_close(found[L + k :: L], expected.T, rtol=0, atol=1e-5)


def test_identical_texts_get_a_constant_only_without_pair_features() -> None:
    torch.manual_seed(0)
    plain = SiameseCosine(L, WIDTH, bottleneck=4, hidden=8).eval()
    a, _ = draw()
    constant = plain.identical_similarity()
    assert constant is not None
    with torch.no_grad():
        torch.testing.assert_close(plain(a, a), torch.full((9,), constant), rtol=0, atol=1e-5)
        head = SiameseCosine(L, WIDTH, bottleneck=4, hidden=8, **FEATURES).eval()
        nn.init.normal_(head.network[0].weight)  # type: ignore[arg-type]
        assert head(a, a).std() > 1e-3  # it depends on the text
    assert head.identical_similarity() is None


def test_an_anchor_for_identical_texts_needs_a_constant(setting: FitContext, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, probes.heads.pair_heads, "fit_head")  # told before anything is fitted
    with pytest.raises(
        HeadError,
        match=r"anchor_identical is true, but head 'siamese-cosine' predicts no constant .* pair_features to 0",
    ):
        fit(replace(setting, anchor_identical=True), bottleneck=4, **FEATURES)
    assert not (setting.folder / "siamese-cosine").exists()


@pytest.mark.parametrize("calibration", ["linear", "isotonic"])
def test_the_anchor_gives_identical_texts_the_highest_score(setting: FitContext, calibration: str) -> None:
    fitted = fit(replace(setting, anchor_identical=True, calibration=calibration), bottleneck=4, max_epochs=6)
    identical = fitted.head.identical_similarity()
    assert identical is not None
    [found] = read_calibration(fitted.record.details["calibration"])(np.array([identical]))
    assert found == pytest.approx(5.0, abs=1e-2)
    free = fit(replace(setting, calibration=calibration, folder=setting.folder / "free"), bottleneck=4, max_epochs=6)
    [unanchored] = read_calibration(free.record.details["calibration"])(np.array([identical]))
    assert unanchored < 4.9  # otherwise this shows nothing


def test_scores_say_null_where_there_is_no_constant(setting: FitContext) -> None:
    found = evaluate("siamese-cosine", {**QUICK, "bottleneck": 4, "max_epochs": 1, **FEATURES}, setting)
    assert [entry["identical_similarity"] for entry in found.seeds] == [None]
    contributions = found.extras["contributions"]
    assert len(contributions["alone"]) == len(contributions["without"]) == L


def test_muting_a_layer_mutes_its_pair_features_too(cache: LatentCache, task: PairTask) -> None:
    """A network that reads nothing but the features of one layer loses everything without that layer."""
    torch.manual_seed(0)
    head = SiameseCosine(L, WIDTH, bottleneck=CODES, hidden=8, **FEATURES).eval()
    with torch.no_grad():
        first = head.network[0]
        assert isinstance(first, nn.Linear)
        first.weight.zero_()
        first.weight[:, [L + 3, 2 * L + 3, 3 * L + 3]] = torch.randn(8, 3) * 3
    found = layer_contributions(head, pair_data(cache, task))
    without = np.array(found.without)
    assert np.isnan(without[3])  # a constant has no correlation
    np.testing.assert_allclose(np.delete(without, 3), 0, atol=1e-6)
