"""A run that the command line has finished on a tiny random decoder, for tests to look at."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from extract.files import digest_bytes
from probes.data.task_table import load_task
from probes.report.scores import seal_scores

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


def opening(folder: Path) -> str:
    """Read what a summary says first, after its title."""
    return (folder / "summary.md").read_text(encoding="utf-8").split("\n\n")[1]


def require_opening(folder: Path) -> None:
    """Compare the two sentences that the summary of a finished run, sweep or search opens with to its scores."""
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    what = scores["what"]
    results = scores["heads"] if what == "run" else _chosen(scores)
    ranked = sorted(results, key=lambda name: -results[name]["selection_score"])
    best, text = results[ranked[0]], opening(folder)
    first, second = re.split(r"\. (?=On )", text)
    plan = scores["cache"]["plan"] if what == "run" else scores["chosen"][ranked[0]]["plan"]
    here, there = (best["summary"][split][best["metric"]] for split in ("validation", "test"))
    assert f"`{ranked[0]}` ({best['chosen'].get('layer', 'all layers')}" in first
    assert f"`{plan}`" in first
    assert f" {100 * here['mean']:.1f}" in first
    if there["mean"] is None:
        assert second.startswith("On test it has no score: a correlation is undefined where all predictions")
    else:
        assert second.startswith(f"On test it has {100 * there['mean']:.1f}")
        if there["low"] == there["high"] == 1:
            assert "(every row is right, so resampling says nothing about new ones)" in second
        else:
            assert f"(95 % interval {100 * there['low']:.1f} to {100 * there['high']:.1f})" in second
    if what == "run" and len(ranked) > 1:
        other = results[ranked[1]]["summary"]["validation"][best["metric"]]["mean"]
        assert f"the next head, `{ranked[1]}`" in first
        assert f"{100 * other:.1f}" in first.partition("the next head")[2]
    elif what != "run":
        choice = scores["chosen"][ranked[0]]
        gain, lead = choice.get("gain"), choice.get("lead")
        if gain is not None and gain["over"] != plan:
            assert f"the plan `{gain['over']}` " in second
            assert f"({100 * gain['default']:.1f}" in second or f"has {100 * gain['default']:.1f}" in second
            assert lead is None or f"n = {lead['n_units']:,})" in second
    internal = {key for key in scores if "_" in key}
    written = (folder / "summary.md").read_text(encoding="utf-8")
    assert not {key for key in internal if key in written}, "keys of scores.json are no words"


def _chosen(scores: dict[str, Any]) -> dict[str, Any]:
    """Return, for every head of a sweep or search, its result under the plan that was chosen for it."""
    by_plan = {row["plan"]: row["heads"] for row in scores["plans"]}
    return {name: by_plan[choice["plan"]][name] for name, choice in scores["chosen"].items()}
