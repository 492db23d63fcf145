"""Autoencoders of a corpus: fitted once, found again under the very same circumstances, never under others."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import probes.heads.pair_heads
from extract.errors import ConfigError, HeadError, UnknownNameError
from extract.store.cache import LatentCache
from probes.fitting.fit_options import FitOptions
from probes.fitting.saved_fits import SavedHead
from probes.heads.layer_head import load_head
from probes.heads.pair_heads import FOLDER, Pretraining, check_autoencoder_options, obtain_autoencoder
from probes.networks.layerwise_networks import LayerAutoencoder
from tests.probes.corpus_latents import N_TEXTS, write_corpus
from tests.probes.finished_run import forbid
from tests.probes.planted_latents import LAYERS, WIDTH

OPTIONS: dict[str, Any] = {"bottleneck": "3, upper half 4", "max_epochs": 2, "batch_size": 40, "learning_rate": 2e-3}

VARYING = ("seconds", "record_sha256")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """A corpus of 120 texts; read-only."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c.h5")


@pytest.fixture
def what(corpus: LatentCache, tmp_path: Path) -> Pretraining:
    """A quick fit, kept under a temporary folder."""
    return Pretraining(corpus, OPTIONS, 0, "cpu", tmp_path)


def latents_of(cache: LatentCache) -> torch.Tensor:
    return cache.gather(range(len(cache)), "mean")


def assert_same(one: SavedHead[LayerAutoencoder], other: SavedHead[LayerAutoencoder]) -> None:
    for key, value in one.head.state_dict().items():
        assert torch.equal(value, other.head.state_dict()[key]), key
    without = [
        {key: value for key, value in saved.record.to_plain().items() if key not in VARYING} for saved in (one, other)
    ]
    assert without[0] == without[1]


def test_they_are_fitted_once_and_found_again(what: Pretraining, monkeypatch: pytest.MonkeyPatch) -> None:
    first = obtain_autoencoder(what, pooling="mean")
    forbid(monkeypatch, probes.heads.pair_heads, "fit_layers")
    again = obtain_autoencoder(what, pooling="mean")
    assert_same(first, again)
    latents = latents_of(what.cache)
    with torch.no_grad():
        assert torch.equal(first.head(latents), again.head(latents))
    assert not first.head.training
    assert not again.head.training


def changes(corpus: LatentCache, folder: Path) -> dict[str, Callable[[Pretraining], Pretraining]]:
    def option(name: str, value: Any) -> Callable[[Pretraining], Pretraining]:
        return lambda what: replace(what, options={**OPTIONS, name: value})

    return {
        "bottleneck": option("bottleneck", 3),
        "encoder": option("encoder", "linear"),
        "dropout": option("dropout", 0.2),
        "learning rate": option("learning_rate", 1e-3),
        "epochs": option("max_epochs", 3),
        "patience": option("patience", 1),
        "batch": option("batch_size", 39),
        "seed": lambda what: replace(what, seed=1),
        "device": lambda what: replace(what, device="cuda:0"),
        "corpus": lambda what: replace(what, cache=write_corpus(folder / "other.h5", seed=1)),
        "fewer texts": lambda what: replace(what, cache=write_corpus(folder / "fewer.h5", n_texts=len(corpus) - 1)),
    }


def test_whatever_changes_is_fitted_anew(
    what: Pretraining, corpus: LatentCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    obtain_autoencoder(what, pooling="mean")
    forbid(monkeypatch, probes.heads.pair_heads, "fit_layers")
    for name, change in changes(corpus, tmp_path).items():
        with pytest.raises(AssertionError, match="fit_layers was called"):
            obtain_autoencoder(change(what), pooling="mean")
            pytest.fail(f"another {name} was served the same autoencoders")
    for pooling in ("last", "mean+last"):
        with pytest.raises(AssertionError, match="fit_layers was called"):
            obtain_autoencoder(what, pooling=pooling)
    obtain_autoencoder(what, pooling="mean")  # still there


def test_defaults_that_are_spelled_out_change_nothing(what: Pretraining, monkeypatch: pytest.MonkeyPatch) -> None:
    first = obtain_autoencoder(what, pooling="mean")
    forbid(monkeypatch, probes.heads.pair_heads, "fit_layers")
    same = {**OPTIONS, "patience": 5, "batch_size": "40", "learning_rate": "2e-3"}  # as YAML may give them
    again = obtain_autoencoder(replace(what, options=same), pooling="mean")
    assert again.record == first.record


def edit_early(folder: Path, **values: str) -> None:
    """Change a record into one of schema 3, which had no digests to notice it by."""
    record = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    early = {key: value for key, value in record.items() if not key.endswith("_sha256")}
    (folder / "head.json").write_text(json.dumps({**early, "schema": 3, **values}), encoding="utf-8")


def spoil(folder: Path, how: str) -> None:
    if how == "no record":  # it is written last
        (folder / "head.json").unlink()
    elif how == "half a record":
        (folder / "head.json").write_text('{"name": "autoenc', encoding="utf-8")
    elif how == "half the weights":
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    else:
        edit_early(folder, fit_id="0")


@pytest.mark.parametrize("how", ["no record", "half a record", "half the weights", "another fit"])
def test_a_folder_that_was_cut_short_is_fitted_anew(what: Pretraining, how: str) -> None:
    first = obtain_autoencoder(what, pooling="mean")
    [folder] = (what.folder / FOLDER).iterdir()
    spoil(folder, how)
    assert_same(first, obtain_autoencoder(what, pooling="mean"))
    assert list((what.folder / FOLDER).iterdir()) == [folder]
    found = load_head(folder)
    assert isinstance(found.head, LayerAutoencoder)
    assert_same(first, SavedHead(found.head, found.record))


class Scripted(LayerAutoencoder):
    """Loses in every epoch what the script says, the top layer in the reverse order, and remembers its weights then."""

    script = (0.9, 0.5, 0.7, 0.4, 0.6)
    seen: ClassVar[list[list[torch.Tensor]]] = []

    def on_validation_epoch_end(self) -> None:
        self._seen.clear()
        loss = self.script[len(self.seen)]
        self.seen.append([group.state_dict()["0.weight"].clone() for group in self.encoder.groups])
        self.loop.log("held_out_loss", loss)
        for k in range(self.n_layers):
            self.loop.log(f"held_out_loss_{k}", loss * (k + 1) if k < self.n_layers - 1 else 2 - loss)


def test_the_epoch_with_the_lowest_held_out_loss_is_kept(what: Pretraining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes.heads.pair_heads, "LayerAutoencoder", Scripted)
    monkeypatch.setattr(Scripted, "seen", [])
    told: list[tuple[int, float]] = []
    saved = obtain_autoencoder(
        replace(what, options={**OPTIONS, "max_epochs": 5}),
        pooling="mean",
        report=lambda epoch, values: told.append((epoch, values["held_out_loss"])),
    )
    assert [epoch for epoch, _ in told] == [1, 2, 3, 4, 5]
    assert [loss for _, loss in told] == pytest.approx(Scripted.script)
    assert saved.record.details["best_epochs"] == [4, 4, 4, 4, 1]
    assert saved.record.details["held_out_losses"] == pytest.approx([0.4, 0.8, 1.2, 1.6, 1.1])
    lower, upper = (group.state_dict()["0.weight"] for group in saved.head.encoder.groups)
    assert [torch.equal(lower, weight) for weight, _ in Scripted.seen] == [False, False, False, True, False]
    assert [torch.equal(upper[-1], weight[-1]) for _, weight in Scripted.seen] == [True, False, False, False, False]
    assert [torch.equal(upper[:-1], weight[:-1]) for _, weight in Scripted.seen] == [False, False, False, True, False]


def test_the_losses_on_record_are_those_of_the_saved_weights(what: Pretraining) -> None:
    saved = obtain_autoencoder(replace(what, options={**OPTIONS, "dropout": 0.5}), pooling="mean")
    held_out = torch.randperm(N_TEXTS, generator=torch.Generator().manual_seed(0))[:6]  # a twentieth, by the seed
    with torch.no_grad():
        direct = saved.head.losses(what.cache.gather(held_out, "mean")).tolist()
    assert saved.record.details["held_out_losses"] == pytest.approx(direct, rel=1e-4)


def test_fitting_stops_after_epochs_without_a_lower_loss(what: Pretraining) -> None:
    stuck = {**OPTIONS, "learning_rate": 0.0, "max_epochs": 50, "patience": 2}
    saved = obtain_autoencoder(replace(what, options=stuck), pooling="mean")
    assert (set(saved.record.details["best_epochs"]), len(saved.record.details["history"])) == ({1}, 3)


def test_the_record_says_what_they_are(
    what: Pretraining, read_json: Callable[[Path], Any], listing: Callable[[Path], list[str]]
) -> None:
    saved = obtain_autoencoder(what, pooling="mean+last")
    [folder] = (what.folder / FOLDER).iterdir()
    assert listing(folder) == ["head.json", "model.safetensors"]
    record = read_json(folder / "head.json")
    names = [f"{pooling}/{layer}" for pooling in ("mean", "last") for layer in LAYERS]
    assert (record["name"], record["pooling"], record["layers"]) == ("autoencoder", "mean+last", names)
    assert record["codes"] == [3] * 5 + [4] * 5
    assert (record["seed"], record["n_texts"]) == (0, {"train": 114, "held_out": 6})
    assert len(record["held_out_losses"]) == 10
    assert all(set(step) == {"train_loss", "held_out_loss"} for step in record["history"])
    assert (record["arguments"]["n_layers"], record["arguments"]["width"]) == (10, WIDTH)
    assert record["arguments"]["bottleneck"] == "3, upper half 4"
    assert saved.head.n_layers == 10


def test_standardisation_is_that_of_the_training_texts(what: Pretraining) -> None:
    saved = obtain_autoencoder(what, pooling="last")
    held_out = torch.randperm(N_TEXTS, generator=torch.Generator().manual_seed(0))[:6].tolist()
    train = np.setdiff1d(np.arange(N_TEXTS), held_out)
    latents = what.cache.gather(train, "last").double().numpy()
    np.testing.assert_allclose(saved.head.standardiser.mean.numpy(), latents.mean(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(saved.head.standardiser.scale.numpy(), latents.std(1, ddof=1), rtol=1e-4)


def test_global_generators_are_left_alone(what: Pretraining) -> None:
    before = torch.get_rng_state()
    obtain_autoencoder(what, pooling="mean")
    obtain_autoencoder(what, pooling="mean")  # loaded
    assert torch.equal(torch.get_rng_state(), before)


def test_a_pair_head_is_no_autoencoder(what: Pretraining, tmp_path: Path) -> None:
    obtain_autoencoder(what, pooling="mean")
    [folder] = (what.folder / FOLDER).iterdir()
    edit_early(folder, name="cosine-mlp")
    with pytest.raises(HeadError, match=rf"folder '{folder}' holds no readable head \(TypeError: "):
        load_head(folder)
    with pytest.raises(HeadError, match="holds no readable head"):
        load_head(tmp_path / "nowhere")


def test_options_are_sorted_and_checked() -> None:
    arguments, fit = check_autoencoder_options({})
    assert arguments == {}
    assert fit == FitOptions(batch_size=64, max_epochs=20, patience=5)
    arguments, fit = check_autoencoder_options({"bottleneck": [3, 4], "learning_rate": "1e-3", "max_epochs": 3})
    assert arguments == {"bottleneck": [3, 4], "learning_rate": 1e-3}
    assert fit == FitOptions(batch_size=64, max_epochs=3, patience=5)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"botleneck": 3}, UnknownNameError, r"unknown autoencoder option 'botleneck': did you mean 'bottleneck'\?"),
        ({"loss": "mse"}, UnknownNameError, "unknown autoencoder option 'loss'"),
        ({"encoder": "mlq"}, UnknownNameError, r"unknown encoder 'mlq': did you mean 'mlp'\?"),
        ({"bottleneck": "wide"}, HeadError, "bottleneck is 'wide'; allowed"),
        ({"bottleneck": [4, 0]}, HeadError, r"bottleneck is \[4, 0\]; allowed"),
        ({"max_epochs": 0}, ConfigError, "option max_epochs of head 'autoencoder' is 0; allowed: a whole number"),
        ({"dropout": 3}, ConfigError, r"head 'autoencoder' cannot be built with \{'dropout': 3.0\}"),
    ],
)
def test_options_that_cannot_be_used_are_told(
    what: Pretraining, options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        check_autoencoder_options(options)
    with pytest.raises(error, match=sentence):
        obtain_autoencoder(replace(what, options=options), pooling="mean")
    assert not (what.folder / FOLDER).exists()


@pytest.mark.parametrize(
    ("options", "pooling", "error", "sentence"),
    [
        ({"batch_size": 115}, "mean", HeadError, "batch_size is 115; allowed: 1 to 114, the texts that are trained on"),
        ({"bottleneck": [4, 4]}, "mean", HeadError, "bottleneck lists 2 sizes; .* one size for each of the 5 layers"),
        ({}, "meen", UnknownNameError, r"unknown pooling 'meen': did you mean 'mean'\?"),
        (
            {"learning_rate": 1e30},
            "mean",
            HeadError,
            "the autoencoders of embedding, .* had no epoch with a finite held-out loss",
        ),
    ],
)
def test_a_corpus_that_cannot_be_fitted_leaves_nothing_behind(
    what: Pretraining, options: dict[str, Any], pooling: str, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        obtain_autoencoder(replace(what, options={**OPTIONS, **options}), pooling=pooling)
    assert not (what.folder / FOLDER).exists()
