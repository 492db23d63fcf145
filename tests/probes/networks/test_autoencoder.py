"""Layer-wise autoencoders: layers together equal layers alone, the best linear one is PCA, no layer sees another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.errors import HeadError, UnknownNameError
from extract.store.cache import LatentCache
from probes.fitting.fit import LayerFit, fit_layers
from probes.fitting.fit_options import FitOptions
from probes.latents.text_latents import Standardiser, TextLatents
from probes.networks.layerwise_networks import ENCODERS, LayerAutoencoder, LayerGroups
from tests.probes.corpus_latents import draw_planes, write_corpus
from tests.probes.planted_latents import LAYERS, WIDTH

L = len(LAYERS)
CODES = [4, 7, 4, 3, 7]  # interleaved groups
LEARNING_RATE = 2e-3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """A corpus of 120 texts; read-only."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c.h5")


@pytest.fixture(params=["oneDNN", "plain"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Products by oneDNN where this machine has them, and the same with oneDNN switched off."""
    if request.param == "plain":
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    return str(request.param)


def build(n_layers: int = L, *, codes: Any = CODES, seed: int = 0, **how: Any) -> LayerAutoencoder:
    torch.manual_seed(seed)
    return LayerAutoencoder(
        n_layers, WIDTH, bottleneck=codes, **{"dropout": 0.0, "learning_rate": LEARNING_RATE, **how}
    )


def take_layer(whole: LayerAutoencoder, k: int, kind: str, *, learning_rate: float = LEARNING_RATE) -> LayerAutoencoder:
    """Make the autoencoder of one layer by itself, with the same start and the learning rate it has among others."""
    single = build(1, codes=[whole.codes[k]], encoder=kind, seed=99, learning_rate=learning_rate * (1 + k / L))
    single.encoder.copy_layers(whole.encoder, [k])
    single.decoder.copy_layers(whole.decoder, [k])
    return single


def fit(module: LayerAutoencoder, data: TextLatents, *, max_epochs: int, patience: int = 99) -> LayerFit:
    options = FitOptions(batch_size=data.batch_size, max_epochs=max_epochs, patience=patience)
    return fit_layers(module, data, options=options)


def assert_same_layer(whole: LayerGroups, k: int, single: LayerGroups, *, atol: float = 1e-6) -> None:
    [place] = [g for g, layers in enumerate(whole.members) if k in layers]
    row = whole.members[place].index(k)
    for mine, theirs in zip(whole.groups[place].parameters(), single.groups[0].parameters(), strict=True):
        torch.testing.assert_close(mine[row], theirs[0], rtol=0, atol=atol)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "products"),
    [("linear", "oneDNN"), ("mlp", "oneDNN"), ("mlp", "plain"), ("normed-mlp", "oneDNN")],
    indirect=["products"],
)
@pytest.mark.usefixtures("products")
def test_layers_trained_together_equal_each_layer_trained_alone(kind: str, corpus: LatentCache) -> None:
    whole = build(encoder=kind)
    singles = [take_layer(whole, k, kind) for k in range(L)]
    data = TextLatents(corpus, batch_size=30, held_out=0.2, seed=3)
    together = fit(whole, data, max_epochs=4)
    assert set(together.best_epochs) == {4}
    for k, single in enumerate(singles):
        alone = fit(single, TextLatents(corpus, layers=LAYERS[k], batch_size=30, held_out=0.2, seed=3), max_epochs=4)
        assert alone.best_epochs == (4,)
        for ours, theirs in zip(together.history, alone.history, strict=True):
            assert ours[f"held_out_loss_{k}"] == pytest.approx(theirs["held_out_loss"], abs=1e-6)
        assert_same_layer(whole.encoder, k, single.encoder)
        assert_same_layer(whole.decoder, k, single.decoder)
    for ours in together.history:
        assert ours["held_out_loss"] == pytest.approx(np.mean([ours[f"held_out_loss_{k}"] for k in range(L)]), abs=1e-6)
    assert together.history[-1]["held_out_loss"] < 0.99 * together.history[0]["held_out_loss"]


@pytest.mark.long
def test_every_layer_keeps_the_epoch_it_would_keep_alone(tmp_path: Path) -> None:
    """On few texts layers lose again on held-out ones after a while, each at its own time."""
    few = write_corpus(tmp_path / "few.h5", n_texts=40)

    def data(layers: str = "all") -> TextLatents:
        return TextLatents(few, layers=layers, batch_size=8, held_out=0.3, seed=3)

    whole = build(encoder="mlp", learning_rate=1e-2)
    singles = [take_layer(whole, k, "mlp", learning_rate=1e-2) for k in range(L)]
    together = fit(whole, data(), max_epochs=25, patience=2)
    assert len(set(together.best_epochs)) >= 3
    assert min(together.best_epochs) + 2 < len(together.history) < 25  # one is done long before the last
    for k, single in enumerate(singles):
        alone = fit(single, data(LAYERS[k]), max_epochs=25, patience=2)
        assert alone.best_epochs == (together.best_epochs[k],)
        assert alone.held_out_losses[0] == pytest.approx(together.held_out_losses[k], abs=1e-4)
        for mine, theirs in ((whole.encoder, single.encoder), (whole.decoder, single.decoder)):
            assert_same_layer(mine, k, theirs, atol=1e-4)
        assert len(alone.history) == min(25, together.best_epochs[k] + 2)


def test_layers_that_are_done_leave_and_the_others_go_on_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = write_corpus(tmp_path / "few.h5", n_texts=40)
    n_computed: list[int] = []

    class Counting(LayerAutoencoder):
        def losses(self, latents: Tensor) -> Tensor:
            n_computed.append(len(latents))
            return super().losses(latents)

    def run() -> tuple[LayerAutoencoder, LayerFit]:
        torch.manual_seed(0)
        n_computed.clear()
        how: dict[str, Any] = {"encoder": "normed-mlp", "dropout": 0.3, "learning_rate": 1e-2}
        module = Counting(L, WIDTH, bottleneck=CODES, **how)
        return module, fit(module, TextLatents(few, batch_size=8, held_out=0.3, seed=3), max_epochs=25, patience=2)

    module, result = run()
    last = [min(25, epoch + 2) for epoch in result.best_epochs]
    epochs = range(1, len(result.history) + 1)
    n_steps = len(n_computed) // len(epochs)
    assert n_computed == [sum(epoch <= end for end in last) for epoch in epochs for _ in range(n_steps)]
    assert len(set(n_computed)) > 2
    for epoch, values in zip(epochs, result.history, strict=True):
        assert {k for k in range(L) if f"held_out_loss_{k}" in values} == {k for k in range(L) if epoch <= last[k]}
    for owner, name in ((LayerAutoencoder, "train_only"), (TextLatents, "read_only")):
        monkeypatch.setattr(owner, name, lambda *_: None)
    together, expected = run()
    assert set(n_computed) == {L}
    assert result.best_epochs == expected.best_epochs
    assert result.held_out_losses == pytest.approx(expected.held_out_losses, abs=1e-6)
    for found, value in zip(module.state_dict().values(), together.state_dict().values(), strict=True):
        torch.testing.assert_close(found, value, rtol=0, atol=1e-5)


def test_layers_without_a_finite_loss_are_named(corpus: LatentCache) -> None:
    module = build()
    with torch.no_grad():
        module.decoder.groups[0][-1].bias[1].fill_(float("nan"))  # type: ignore[index]
    [_, broken, *_] = module.decoder.members[0]
    with pytest.raises(HeadError, match=rf"the autoencoders of {LAYERS[broken]} had no epoch with a finite held-out"):
        fit(module, TextLatents(corpus, batch_size=30), max_epochs=2)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("kind", ENCODERS)
def test_the_loss_of_a_layer_reaches_no_other_layer(kind: str) -> None:
    module = build(encoder=kind)
    latents = torch.from_numpy(draw_planes(n_texts=20)).requires_grad_()
    stacks = [*module.encoder.stacks(), *module.decoder.stacks()]
    for k in range(L):
        losses = module.losses(latents)
        wanted = [latents, *(parameter for parameter, _ in stacks)]
        found = torch.autograd.grad(losses[k], wanted, allow_unused=True)
        for gradient, layers in zip(found, (tuple(range(L)), *(layers for _, layers in stacks)), strict=True):
            reached = set() if gradient is None else {layer for row, layer in enumerate(layers) if gradient[row].any()}
            assert reached == {k} & set(layers)


def train_in_whole_batches(module: LayerAutoencoder, latents: Tensor, *, n_steps: int) -> Tensor:
    """Take full-batch steps, the learning rate falling to nothing; give the loss of every layer."""
    optimiser = module.configure_optimizers()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, n_steps)
    for _ in range(n_steps):
        optimiser.zero_grad()
        module.losses(latents).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return module.losses(latents)


@pytest.mark.long
def test_a_linear_autoencoder_reaches_the_bound_of_pca() -> None:
    """The best code of H numbers loses the trailing eigenvalues of the correlation matrix, and none when H = D."""
    n_texts, codes = 200, [2, 5, WIDTH]
    latents = draw_planes(n_texts=n_texts, n_layers=3, noise=1.0)
    module = build(3, codes=codes, encoder="linear", weight_decay=0.0, learning_rate=2e-2)
    module.prepare(Standardiser(torch.from_numpy(latents.mean(1)), torch.from_numpy(latents.std(1, ddof=1))))
    found = train_in_whole_batches(module, torch.from_numpy(latents), n_steps=400)
    for k, code in enumerate(codes):
        eigenvalues = np.sort(np.linalg.eigvalsh(np.corrcoef(latents[k].astype(np.float64).T)))[::-1]
        bound = eigenvalues[code:].sum() / WIDTH * (n_texts - 1) / n_texts
        assert bound - 1e-4 <= float(found[k]) <= 1.03 * bound + 1e-3
        assert (bound > 0.05) == (code < WIDTH)  # there was something to lose


def test_predicting_the_mean_would_cost_one() -> None:
    latents = torch.from_numpy(draw_planes(n_texts=50))
    module = build(encoder="linear")
    module.prepare(Standardiser(latents.mean(1), latents.std(1, correction=0)))
    with torch.no_grad():
        for parameter in module.decoder.parameters():
            parameter.zero_()
        torch.testing.assert_close(module.losses(latents), torch.ones(L), rtol=0, atol=1e-4)


def test_held_out_losses_are_those_of_the_held_out_texts(corpus: LatentCache) -> None:
    module = build(encoder="mlp", dropout=0.5)
    data = TextLatents(corpus, batch_size=20, held_out=0.3)
    result = fit(module, data, max_epochs=3)
    assert not module.training
    standardiser = data.standardiser()
    rows = data.held_out_rows.rows
    expected = []
    with torch.no_grad():
        rebuilt = module(corpus.gather(rows, "mean"))
    for k, layer in enumerate(LAYERS):  # dropout off, each dimension in units of its training deviation
        wanted = (corpus.layer(layer, "mean")[rows] - standardiser.mean[k]) / standardiser.scale[k]
        expected.append(float(((rebuilt[k] - wanted) ** 2).mean()))
    assert list(result.held_out_losses) == pytest.approx(expected, rel=1e-5)
    for k, epoch in enumerate(result.best_epochs):
        losses = [step[f"held_out_loss_{k}"] for step in result.history]
        assert result.held_out_losses[k] == losses[epoch - 1] == min(losses)


def test_held_out_losses_weigh_rows_not_batches(corpus: LatentCache, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for n_rows in (512, 7):  # 36 texts: five batches of 7, one of 1
        monkeypatch.setattr("probes.latents.text_latents.EVALUATION_ROWS", n_rows)
        result = fit(build(), TextLatents(corpus, batch_size=40, held_out=0.3), max_epochs=1)
        found.append([result.history[0][f"held_out_loss_{k}"] for k in range(L)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_its_arguments_build_it_again() -> None:
    module = build(encoder="mlp", codes="D/4, upper half D/2", weight_decay=0.5)
    assert module.codes == (3, 3, 3, 6, 6)
    again = LayerAutoencoder(**module.arguments())
    again.load_state_dict(module.state_dict())
    latents = torch.from_numpy(draw_planes(n_texts=9))
    with torch.no_grad():
        assert torch.equal(module(latents), again(latents))
    assert (again.learning_rate, again.weight_decay) == (LEARNING_RATE, 0.5)


def test_what_it_cannot_be_built_with_is_told() -> None:
    with pytest.raises(HeadError, match="bottleneck is 'wide'; allowed: a size"):
        build(codes="wide")
    with pytest.raises(HeadError, match="bottleneck lists 2 sizes; allowed: one size for each of the 5 layers"):
        build(codes=[3, 4])
    with pytest.raises(UnknownNameError, match=r"unknown encoder 'mlq': did you mean 'mlp'\?"):
        build(encoder="mlq")
