"""FREEZE's networks as released, against plain torch: layers, sizes, scaling, first weights, raw errors."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from extract.errors import HeadError, UnknownNameError
from probes.fitting.fit import fit_layers
from probes.fitting.fit_options import FREEZE, FitOptions, find_protocol
from probes.heads.head_table import resolve_head
from probes.heads.pair_heads import check_autoencoder_options
from probes.latents.text_latents import PairLatents, TextLatents
from probes.networks.layerwise_networks import LayerAutoencoder, LayerGroups, LayerwiseLinear, LayerwiseNorm
from probes.networks.pair_networks import CosineLinear, CosineMLP, SiameseCosine, collect_similarities
from tests.probes.corpus_latents import write_corpus
from tests.probes.planted_latents import LAYERS, WIDTH

D, L = 1024, 24
"""GPT-2 medium."""
ENCODER = ("encoder", "bottleneck", "standardises_latents")


def released(**given: Any) -> dict[str, Any]:
    """Return the arguments of the siamese head of a rung; encoders that are taken over are the autoencoders'."""
    own: dict[str, Any] = dict(resolve_head("siamese-cosine", given, protocol=FREEZE).options)
    if given:
        arguments, _ = check_autoencoder_options(find_protocol(FREEZE).autoencoder)
        own |= {key: arguments[key] for key in ENCODER}
    return own


def siamese_encoder(n_in: int, n_out: int = 512) -> nn.Sequential:
    """Build the encoder of the second rung."""
    return nn.Sequential(
        nn.Linear(n_in, n_out),
        nn.LayerNorm(n_out),
        nn.GELU(),
        nn.Linear(n_out, n_out),
        nn.GELU(),
        nn.Linear(n_out, n_out),
    )


def autoencoder_part(n_in: int, n_out: int) -> nn.Sequential:
    """Build the encoder of an autoencoder."""
    parts: list[nn.Module] = []
    for a, b in ((n_in, (n_in + n_out) // 2), ((n_in + n_out) // 2, n_out)):
        parts += [nn.Linear(a, b), nn.LayerNorm(b), nn.Dropout(0.1), nn.GELU()]
    return nn.Sequential(*parts)


def network(n_layers: int, *, depth: int, dropout: float, hidden: int = 512) -> nn.Sequential:
    """Build what combines the cosines."""
    parts: list[nn.Module] = []
    for n_in in (n_layers, *[hidden] * (depth - 1)):
        parts += [nn.Linear(n_in, hidden), nn.LayerNorm(hidden), nn.Dropout(dropout), nn.GELU()]
    return nn.Sequential(*parts, nn.Linear(hidden, 1), nn.Hardsigmoid())


def count(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_the_fourth_rung_has_fewer_parameters_than_the_second() -> None:
    """Section 4.2.3 says "more than 600,000 fewer"."""
    with torch.device("meta"):
        second = count(SiameseCosine(L, D, **released()))
        fourth = count(SiameseCosine(L, D, **released(start="pretrained")))
        assert count(SiameseCosine(L, D, **released(start="pretrained", loss="mse"))) == fourth
        assert second == count(*(siamese_encoder(D) for _ in range(L)), network(L, depth=1, dropout=0.0))
        widths = [256] * 12 + [512] * 12
        assert fourth == count(*(autoencoder_part(D, h) for h in widths), network(L, depth=3, dropout=0.1))
    assert second - fourth == 635_392


def copy_layer(encoders: LayerGroups, layer: int, plain: nn.Sequential) -> None:
    """Give a plain encoder the weights of one layer."""
    [(group, row)] = [
        (group, layers.index(layer))
        for group, layers in zip(encoders.groups, encoders.members, strict=True)
        if layer in layers
    ]
    for mine, theirs in zip(plain.parameters(), group.parameters(), strict=True):
        found = theirs[row].detach()
        mine.data.copy_(found.T if found.ndim == 2 and mine.ndim == 2 else found.reshape(mine.shape))


@pytest.mark.parametrize("given", [{}, {"start": "pretrained"}])
def test_the_siamese_networks_are_the_released_ones(given: dict[str, Any]) -> None:
    torch.manual_seed(0)
    n_layers, width = 5, 20
    head = SiameseCosine(n_layers, width, **{**released(**given), "bottleneck": [4, 4, 4, 6, 6]}).eval()
    a, b = torch.randn(2, n_layers, 7, width) * 30 + 5  # far from standardised
    cosines = []
    for k, size in enumerate([4, 4, 4, 6, 6]):
        plain = (autoencoder_part if given else siamese_encoder)(width, size).eval()
        copy_layer(head.encoder, k, plain)
        cosines.append(nn.functional.cosine_similarity(plain(a[k]), plain(b[k])))
    combine = network(n_layers, depth=3 if given else 1, dropout=0.1 if given else 0.0).eval()
    for mine, theirs in zip(combine.parameters(), head.network.parameters(), strict=True):
        mine.data.copy_(theirs)
    torch.testing.assert_close(head(a, b), combine(torch.stack(cosines, 1)).squeeze(1), rtol=1e-4, atol=1e-6)
    kinds = [type(part).__name__ for part in head.network.modules() if not list(part.children())]
    plain_kinds = [type(part).__name__ for part in combine.modules() if not list(part.children())]
    assert kinds == plain_kinds  # and so in the same order
    rates = {part.p for part in head.modules() if isinstance(part, nn.Dropout)}
    assert rates == ({0.1} if given else {0.0})


def test_autoencoders_begin_with_narrow_xavier_weights() -> None:
    torch.manual_seed(0)
    arguments, options = check_autoencoder_options(find_protocol(FREEZE).autoencoder)
    module = LayerAutoencoder(4, 40, **{**arguments, "bottleneck": 10})
    maps = [part for part in module.modules() if isinstance(part, LayerwiseLinear)]
    assert [tuple(part.weight.shape[1:]) for part in maps] == [(40, 25), (25, 10), (10, 25), (25, 40)]
    for part in maps:
        bound = 0.5 * (6 / sum(part.weight.shape[1:])) ** 0.5
        assert 0.95 * bound < float(part.weight.detach().abs().max()) <= bound
        assert not part.bias.any()
    for group, n_norms in ((module.encoder.groups[0], 2), (module.decoder.groups[0], 1)):
        assert sum(isinstance(part, LayerwiseNorm) for part in group.children()) == n_norms
    assert (options.batch_size, options.max_epochs) == (64, 250)


@pytest.mark.parametrize("is_raw", [True, False])
def test_errors_are_kept_in_the_units_of_the_latents(tmp_path: Any, is_raw: bool) -> None:
    cache = write_corpus(tmp_path / "c.h5")
    data = TextLatents(cache, batch_size=20)
    torch.manual_seed(0)
    module = LayerAutoencoder(len(LAYERS), WIDTH, bottleneck=4, standardises_latents=not is_raw)
    found = fit_layers(module, data, options=FitOptions(batch_size=20, max_epochs=3, patience=3))
    latents = torch.cat(list(data.val_dataloader()), dim=1)
    with torch.no_grad():
        rebuilt = module(latents) if is_raw else module(latents) * module.scale + module.mean
    wanted = ((rebuilt - latents) ** 2).mean(dim=(1, 2))
    np.testing.assert_allclose(found.held_out_squared_errors, wanted, rtol=1e-4)
    assert bool(module.mean.any()) == (not is_raw)
    is_same = np.allclose(found.held_out_squared_errors, found.held_out_losses, rtol=1e-4)
    assert is_same == is_raw


def scaled(head: CosineMLP, data: PairLatents) -> Tensor:
    head.prepare(data, data.standardiser())
    return (collect_similarities(head, data, "train") - head.cosine_mean) / head.cosine_scale


def test_cosines_are_scaled_by_layer_globally_or_not(data: PairLatents) -> None:
    makes = {how: CosineMLP(len(LAYERS), WIDTH, cosine_scaling=how) for how in ("layer", "global", "none")}
    values = {how: scaled(head, data) for how, head in makes.items()}
    raw = values["none"]
    torch.testing.assert_close(values["layer"].std(1), torch.ones(len(LAYERS)))
    torch.testing.assert_close(values["global"], (raw - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-5)
    assert float(values["global"].mean(1).abs().max()) > 0.01  # layers differ, and stay different
    assert raw.abs().max() <= 1 + 1e-6


@pytest.mark.parametrize("network", [CosineMLP, CosineLinear])
def test_unknown_names_are_refused(network: type[CosineMLP] | type[CosineLinear]) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown cosine scaling 'all'.*Allowed: layer, global, none"):
        network(2, 4, cosine_scaling="all")
    with pytest.raises(UnknownNameError, match=r"unknown activation 'tanh'.*Allowed: gelu, relu"):
        CosineMLP(2, 4, activation="tanh")


def test_a_network_of_no_layers_or_too_many_is_refused() -> None:
    for n in (0, 101):
        with pytest.raises(HeadError, match=f"hidden_layers is {n}; allowed: 1 to 100"):
            SiameseCosine(2, 4, hidden_layers=n)


def test_the_first_rung_is_the_released_one() -> None:
    resolved = resolve_head("cosine-mlp", {}, protocol=FREEZE)
    head = CosineMLP(L, D, **resolved.options)
    assert [type(part).__name__ for part in head.network.children()] == ["Linear", "ReLU", "Linear"]
    assert [tuple(part.weight.shape) for part in head.network.children() if isinstance(part, nn.Linear)] == [
        (128, L),
        (1, 128),
    ]
    assert (head.cosine_scaling, head.standardises_latents, head.loss_name) == ("global", False, "mse")
