"""Heads on disk: every head reads back the same, and a broken folder is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from extract.errors import HeadError, UnknownNameError
from probes.fitting.saved_fits import SCHEMA, FitRecord, FittedModule, save_fitted
from probes.heads.head_table import HEADS
from probes.heads.layer_head import load_head
from probes.networks.layerwise_networks import LayerAutoencoder
from probes.networks.pair_networks import CosineMLP

L, B, D, K = 3, 20, 8, 4
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "cosine-mlp": ((L, D), {"hidden": 4}),
    "siamese-cosine": ((L, D), {"hidden": 4, "bottleneck": 3}),
    "layer-cosine": ((L, D), {}),
    "autoencoder": ((L, D), {"bottleneck": 3}),
    "token-classifier": ((L, D, K), {"dropout": 0.2, "seed": 3}),
    "token-mix": ((L, D, K), {"dropout": 0.2, "seed": 3}),
    "logistic-probe": ((D, ["a", "b", "c"]), {"precision": "float64"}),
    "cosine-threshold": ((D, ["a", "b"]), {"kind": "standardised", "above": 1, "threshold": 0.25}),
}


def make_head(name: str) -> Any:
    """Build a head whose every float tensor differs from a fresh one's."""
    sizes, options = ARGUMENTS[name]
    build: Any = HEADS[name].build if name in HEADS else LayerAutoencoder
    head = build(*sizes, **options)
    with torch.no_grad():
        for value in head.state_dict().values():
            if value.is_floating_point():
                value.add_(torch.rand_like(value))
    return head.eval()


def score(name: str, head: FittedModule) -> torch.Tensor:
    a, b = torch.randn(2, L, B, D, generator=torch.Generator().manual_seed(5))
    reads_pairs = name in ("cosine-mlp", "siamese-cosine", "layer-cosine", "cosine-threshold")
    sides = (a, b) if reads_pairs else (a,)
    of_one_layer = name in ("logistic-probe", "cosine-threshold")
    found: torch.Tensor = head(*(side[0] if of_one_layer else side for side in sides))
    return found


@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_a_head_reads_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    head = make_head(name)
    save_fitted(tmp_path / "deep" / "head", head, FitRecord(name, "mean", ("x", "y", "z")))
    state = torch.get_rng_state()
    saved = load_head(tmp_path / "deep" / "head")
    assert torch.equal(torch.get_rng_state(), state)  # reading draws nothing
    assert torch.equal(score(name, saved.head), score(name, head))
    assert isinstance(saved.head, nn.Module)
    assert not saved.head.training
    assert saved.head.arguments() == head.arguments()
    assert (saved.record.schema, saved.record.layers) == (SCHEMA, ("x", "y", "z"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved head of three layers."""
    save_fitted(tmp_path / "seed_0", CosineMLP(3, 5, hidden=4), FitRecord("cosine-mlp", "mean"))
    return tmp_path / "seed_0"


def test_files_hold_arguments_and_no_pickle(folder: Path) -> None:
    assert load_head(folder).record.arguments == {
        "n_layers": 3,
        "width": 5,
        "hidden": 4,
        "standardises_latents": True,
        "loss": "mse",
        "learning_rate": 3e-4,
        "weight_decay": 0.01,
        "cosine_scaling": "layer",
        "activation": "gelu",
    }
    assert sorted(path.name for path in folder.iterdir()) == ["head.json", "model.safetensors"]


def test_a_pair_head_of_schema_2_still_opens(folder: Path) -> None:
    edit(folder, schema=2, n_layers=3, width=5, arguments={"hidden": 4})
    found = load_head(folder).head
    assert isinstance(found, CosineMLP)
    assert (found.n_layers, found.width) == (3, 5)


def test_a_token_head_of_schema_1_still_opens(tmp_path: Path) -> None:
    head = make_head("token-mix")
    save_fitted(tmp_path, head, FitRecord("token-mix"))
    edit(tmp_path, schema=1)
    assert torch.equal(score("token-mix", load_head(tmp_path).head), score("token-mix", head))


@pytest.mark.parametrize(
    ("name", "schema", "message"),
    [
        ("cosine-mlp", 1, "its schema is 1, this version reads cosine-mlp from 2 on; fit it again"),
        ("logistic-probe", 1, "its schema is 1, this version reads logistic-probe from 3 on; fit it again"),
        ("token-mix", 5, "its schema is 5, this version reads 1 to 4; fit it again"),
    ],
)
def test_another_schema_says_to_fit_again(name: str, schema: int, message: str, tmp_path: Path) -> None:
    save_fitted(tmp_path, make_head(name), FitRecord(name, schema=schema))
    with pytest.raises(HeadError, match=rf"\(ValueError: {message}\)"):
        load_head(tmp_path)


def edit(folder: Path, **values: Any) -> None:
    """Change a record into one of schema 3, which had no digests to notice it by."""
    record = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    early = {key: value for key, value in record.items() if not key.endswith("_sha256")} | {"schema": 3}
    (folder / "head.json").write_text(json.dumps({**early, **values}), encoding="utf-8")


def cut_weights(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def lose_a_weight(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state.pop("network.0.bias")
    save_file(state, folder / "model.safetensors")


SPOILS: dict[str, Callable[[Path], object]] = {
    "half a record": lambda folder: (folder / "head.json").write_text('{"name": "cosine', encoding="utf-8"),
    "a list": lambda folder: (folder / "head.json").write_text("[]", encoding="utf-8"),
    "no arguments": lambda folder: (folder / "head.json").write_text('{"name": "cosine-mlp", "schema": 3}'),
    "unknown argument": lambda folder: edit(folder, arguments={"hiden": 3}),
    "another head": lambda folder: edit(folder, name="token-mix"),
    "no record": lambda folder: (folder / "head.json").unlink(),  # written last: the save was cut short
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "half the weights": cut_weights,
    "pickled weights": lambda folder: torch.save({"weight": torch.ones(1)}, folder / "model.safetensors"),
    "weights of another size": lambda folder: save_file(
        CosineMLP(4, 5, hidden=4).state_dict(), folder / "model.safetensors"
    ),
    "a weight missing": lose_a_weight,
}


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("spoil", list(SPOILS))
def test_a_broken_folder_is_named(folder: Path, spoil: str, is_sealed: bool) -> None:
    if not is_sealed:
        edit(folder)
    SPOILS[spoil](folder)
    with pytest.raises(HeadError, match=r"folder '.*seed_0' holds no readable head \(\w+: .+\); allowed: a folder"):
        load_head(folder)


def test_an_unknown_head_is_named(folder: Path) -> None:
    edit(folder, name="cosine-mlq")
    with pytest.raises(UnknownNameError, match=r"unknown head 'cosine-mlq': did you mean 'cosine-mlp'\?"):
        load_head(folder)
