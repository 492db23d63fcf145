"""Sentences whose class is one of their words, in a file with its own splits."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

OTHERS = ["mouse", "snow", "harbour", "night", "bread", "letter", "quiet", "old", "green", "paper"]


def write_worded_classes(path: Path, *, share_told: float = 1.0, test_gold: Sequence[str] | None = None) -> Path:
    """Write 60, 40 and 40 sentences of two classes.

    Args:
        path: The file, with columns `text`, `label` and `split`.
        share_told: Share of sentences that hold the word of their class, about.
        test_gold: Labels of test that replace the true ones.

    Returns:
        The file.
    """
    rng = np.random.default_rng(0)
    rows = []
    for split, n in (("train", 60), ("validation", 40), ("test", 40)):
        for i in range(n):
            label = ("cold", "warm")[i % 2]
            others = rng.choice(OTHERS, size=4).tolist()
            said = label if rng.random() < share_told else "sleet"
            told = test_gold[i] if test_gold is not None and split == "test" else label
            rows.append((f"{others[0]} {said} {others[1]} {others[2]} {others[3]} {split} {i}", told, split))
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label", "split"), *rows])
    return path
