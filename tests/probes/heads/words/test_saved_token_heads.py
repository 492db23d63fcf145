"""Token heads on disk: what is read back predicts the same, and a broken folder gets a sentence."""

import json
from pathlib import Path

import pytest
import torch

from extract.errors import HeadError
from probes.heads.words.saved import TOKEN_HEADS, load_token_head, save_token_head
from probes.latents.standardise import Standardiser
from probes.networks.token_heads import TokenHead

L, W, D, K = 3, 20, 8, 4
RECORD = {"classes": ["A", "B", "C", "D"], "layers": ["x", "y", "z"], "pooling": "mean"}


def make_head(name: str) -> TokenHead:
    head = TOKEN_HEADS[name](L, D, K, dropout=0.2, seed=3)  # type: ignore[call-arg]
    x = torch.randn(L, W, D) * 4
    head.set_standardiser(Standardiser(x.mean(1), x.std(1)))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
    return head.eval()


@pytest.mark.parametrize("name", list(TOKEN_HEADS))
def test_what_is_read_back_says_the_same(name: str, tmp_path: Path) -> None:
    head = make_head(name)
    save_token_head(tmp_path / "deep" / "head", head, {"name": name, **RECORD})
    torch.manual_seed(0)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    saved = load_token_head(tmp_path / "deep" / "head")
    assert torch.equal(torch.rand(1), drawn)  # reading draws nothing
    x = torch.randn(L, W, D)
    assert torch.equal(saved.head(x), head(x))
    assert not saved.head.training
    assert saved.head.arguments() == head.arguments()
    assert {key: saved.record[key] for key in RECORD} == RECORD


@pytest.mark.parametrize("fault", ["no folder", "no JSON", "another head", "no weights", "other sizes"])
def test_a_broken_folder_is_told_in_a_sentence(fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    save_token_head(folder, make_head("token-classifier"), {"name": "token-classifier", **RECORD})
    record = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    if fault == "no folder":
        folder = tmp_path / "nowhere"
    elif fault == "no JSON":
        (folder / "head.json").write_text("{", encoding="utf-8")
    elif fault == "another head":
        (folder / "head.json").write_text(json.dumps({**record, "name": "cosine-mlp"}), encoding="utf-8")
    elif fault == "no weights":
        (folder / "model.safetensors").write_bytes(b"short")
    else:
        record["arguments"]["width"] = D + 1
        (folder / "head.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(HeadError, match=rf"{folder.name}' holds no readable token head \(.*\); allowed: a folder with"):
        load_token_head(folder)
