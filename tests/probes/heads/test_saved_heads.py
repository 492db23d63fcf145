"""Heads on disk: safetensors and JSON, and a sentence that names the folder when they cannot be read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from extract.errors import HeadError, UnknownNameError
from probes.heads.saved import load_head, save_head
from probes.networks.cosine_mlp import CosineMLP


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved head of three layers."""
    save_head(tmp_path / "seed_0", CosineMLP(3, 5, hidden=4), {"name": "cosine-mlp", "layers": [], "pooling": "mean"})
    return tmp_path / "seed_0"


def test_arguments_are_kept(folder: Path) -> None:
    found = load_head(folder)
    assert isinstance(found.head, CosineMLP)
    assert found.record["arguments"] == {
        "hidden": 4, "standardises_latents": True, "loss": "mse", "learning_rate": 3e-4, "weight_decay": 0.01,
    }  # fmt: skip
    assert (found.head.n_layers, found.head.width) == (3, 5)
    assert not any(path.suffix in (".pt", ".pkl", ".ckpt", ".bin") for path in folder.iterdir())


def spoil_json(folder: Path) -> None:
    (folder / "head.json").write_text('{"name": "cosine', encoding="utf-8")


def spoil_list(folder: Path) -> None:
    (folder / "head.json").write_text("[]", encoding="utf-8")


def spoil_key(folder: Path) -> None:
    (folder / "head.json").write_text('{"name": "cosine-mlp"}', encoding="utf-8")


def spoil_argument(folder: Path) -> None:
    record = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    record["arguments"]["hiden"] = 3
    (folder / "head.json").write_text(json.dumps(record), encoding="utf-8")


def drop_json(folder: Path) -> None:
    (folder / "head.json").unlink()


def drop_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def pickle_weights(folder: Path) -> None:
    torch.save({"weight": torch.ones(1)}, folder / "model.safetensors")


def swap_weights(folder: Path) -> None:
    save_file(CosineMLP(4, 5, hidden=4).state_dict(), folder / "model.safetensors")


def lose_a_weight(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state.pop("network.0.bias")
    save_file(state, folder / "model.safetensors")


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_json, spoil_list, spoil_key, spoil_argument, drop_json, drop_weights, cut_weights, pickle_weights,
        swap_weights, lose_a_weight,
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_folder(folder: Path, spoil: object) -> None:
    assert callable(spoil)
    spoil(folder)
    with pytest.raises(HeadError, match=r"folder '.*seed_0' holds no readable head \(\w+: .+\); allowed: a folder"):
        load_head(folder)


def test_a_head_of_another_version_is_named(folder: Path) -> None:
    record = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    (folder / "head.json").write_text(json.dumps({**record, "name": "cosine-mlq"}), encoding="utf-8")
    with pytest.raises(UnknownNameError, match=r"unknown head 'cosine-mlq': did you mean 'cosine-mlp'\?"):
        load_head(folder)


def test_a_head_of_another_schema_is_to_be_fitted_again(folder: Path) -> None:
    record = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    (folder / "head.json").write_text(json.dumps({**record, "schema": 1}), encoding="utf-8")
    with pytest.raises(HeadError, match=r"\(ValueError: its schema is 1, this version reads 2; fit it again\)"):
        load_head(folder)


def test_a_head_that_was_cut_short_is_no_head(folder: Path) -> None:
    (folder / "head.json").unlink()  # it is written last
    with pytest.raises(HeadError, match=r"FileNotFoundError"):
        load_head(str(folder))
