"""A run that the command line has finished on a tiny random decoder, for tests to look at."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from extract.digest import digest_bytes
from probes.report.scores import seal_scores
from probes.tasks import load_task

SIZES = {"train": 64, "validation": 32, "test": 32}


@dataclass(frozen=True)
class Finished:
    """A run that `icecore run` has finished."""

    base: Path
    config: Path
    folder: Path
    scores: dict[str, Any]

    @property
    def cache(self) -> Path:
        """The one cache."""
        [path] = (self.base / "caches").glob("*.h5")
        return path


def write_config(base: Path, decoder: Path) -> Path:
    """Write a small task and a configuration with one head of each kind."""
    sample = load_task("sts-sample")
    lines = ["split\tsentence1\tsentence2\tscore"]
    for split, n in SIZES.items():
        part = sample.splits[split].select(range(n))
        lines += [
            f"{split}\t{a}\t{b}\t{s}"
            for a, b, s in zip(part["sentence1"], part["sentence2"], part["score"], strict=True)
        ]
    (base / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config: dict[str, Any] = {
        "name": "tiny",
        "decoder": {"name": str(decoder), "device": "cpu"},
        "extraction": {"poolings": ["mean", "last"]},
        "task": {"name": "pair-files", "options": {"files": str(base / "pairs.tsv"), "name": "tiny-pairs"}},
        "heads": {
            "layer-cosine": {"pooling": "last"},
            "cosine-mlp": {"max_epochs": 4, "batch_size": 16, "hidden": 8},
            "siamese-cosine": {"max_epochs": 4, "batch_size": 16, "hidden": 8, "bottleneck": 4, "layers": ["blocks"]},
        },
        "seeds": [0, 3],
        "bootstrap": 100,
        "caches": str(base / "caches"),
        "runs": str(base / "runs"),
    }
    (base / "tiny.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return base / "tiny.yaml"


def forbid(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(module, name, refuse)


def without_times(scores: dict[str, Any]) -> dict[str, Any]:
    times = ("seconds", "command", "commit", "sha256")
    return {key: value for key, value in scores.items() if key not in times}


def edit_config(folder: Path, change: Callable[[Any], object]) -> None:
    """Change the config.yaml of a run folder, and seal the folder again, as whoever made it can."""
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    change(config)
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    edit_scores(folder, lambda _: None)


def edit_scores(folder: Path, change: Callable[[Any], object]) -> None:
    """Change the scores.json of a run folder, and seal the folder again."""
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    change(scores)
    scores["config_sha256"] = digest_bytes((folder / "config.yaml").read_bytes())
    text = json.dumps({**scores, "sha256": seal_scores(scores)})
    (folder / "scores.json").write_text(text, encoding="utf-8")


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}
