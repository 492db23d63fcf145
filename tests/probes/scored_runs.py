"""Small finished runs on a tiny random decoder, and what they predicted, for tests of scoring."""

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

from extract.decoders.decoder_spec import DecoderSpec
from extract.inputs.template import InputTemplate
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from probes.runs.run import run
from probes.runs.run_config import RunConfig, TaskSpec
from tests.probes.worded_classes import OTHERS, write_worded_classes

QUICK: dict[str, Any] = {"max_epochs": 3, "epoch_steps": 20, "learning_rate": 3e-2}


def _run(base: Path, decoder: Path, **fields: Any) -> Path:
    values = {
        "name": "r",
        "decoder": DecoderSpec(str(decoder), device="cpu"),
        "bootstrap": 100,
        "caches": str(base / "caches"),
        "runs": str(base / "runs"),
        **fields,
    }
    return run(RunConfig(**values)).folder


def run_words(base: Path, decoder: Path, **fields: Any) -> Path:
    """Run the word sample, long sentences cut so that some words have no latent."""
    how = {
        "extraction": ExtractionSpec(words=WordSpec(("mean", "last")), template=InputTemplate(max_tokens=40)),
        "task": TaskSpec("words-sample", {"tags": "pos"}, pairs=24),
        "seeds": (0, 3),
        "heads": {"token-classifier": {**QUICK, "pooling": "mean+last"}, "token-mix": {**QUICK, "pooling": "last"}},
    }
    return _run(base, decoder, **{**how, **fields})


def run_classes(base: Path, decoder: Path) -> Path:
    """Run single texts of two classes."""
    return run_class_rows(base, decoder, write_worded_classes(base / "rows.csv", share_told=0.7))


def run_class_rows(base: Path, decoder: Path, rows: Path) -> Path:
    """Run the single texts of a file."""
    task = TaskSpec("class-files", {"files": str(rows)})
    extraction = ExtractionSpec(poolings=("last", "mean"))
    heads = {"logistic-probe": {"Cs": [0.1, 1.0], "pooling": "last+mean"}}
    return _run(base, decoder, task=task, extraction=extraction, heads=heads)


def run_class_pairs(base: Path, decoder: Path) -> Path:
    """Run pairs of questions of two classes."""
    (base / "mqp").mkdir(parents=True)
    with (base / "mqp" / "mqp.csv").open("w", encoding="utf-8", newline="") as file:
        for i in range(60):
            first = f"is {OTHERS[i % 10]} {OTHERS[i // 10]} bad for {OTHERS[(i + 3) % 10]}"
            same = f"is {OTHERS[i % 10]} bad for {OTHERS[(i + 3) % 10]} {OTHERS[i // 10]}"
            other = f"how do {OTHERS[(i + 5) % 10]} and {OTHERS[(i + 7) % 10]} get {i}"
            csv.writer(file).writerows([(i % 5, first, same, 1), (i % 5, first, other if i % 4 else same, 0)])
    heads = {"logistic-probe": {"Cs": [0.1]}, "cosine-threshold": {"pooling": "mean+last"}}
    extraction = ExtractionSpec(poolings=("mean", "last"))
    return _run(base, decoder, task=TaskSpec("mqp", {"folder": str(base / "mqp")}), extraction=extraction, heads=heads)


def predicted(folder: Path, split: str = "test") -> list[dict[str, str]]:
    """Read what a run predicted for a split: a row of predictions.csv each."""
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["split"] == split]


def by_sentence(folder: Path, column: str) -> list[list[str]]:
    """Read one column of the predictions of a run on words, sentence by sentence."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in predicted(folder):
        found[row["row"]].append(row[column])
    return list(found.values())
