"""Overlap between splits: subsets to score apart, and training rows to leave out."""

from collections import Counter

import numpy as np
from jaxtyping import Bool

from extract.errors import unknown_name
from probes.tasks.pairs.audit import (
    Columns,
    conflicting_pairs,
    final_punctuation,
    pair_is_in,
    pair_keys,
    sentence_is_in,
)
from probes.tasks.pairs.task import PairTask

SUBSETS = {
    "full": "every row",
    "clean": "no sentence of the row is in train",
    "leaked": "a sentence of the row is in train",
    "leaked pair": "the very pair is in train",
    "punctuation": "the two texts end in different punctuation, or one of them in none",
    "same but punctuation": "the two texts differ in final punctuation and nothing else",
    "repeated": "the pair is in the split more than once, in either order",
    "conflicting gold": "the pair is also in the split with another gold",
}
DROPS = {
    "pairs": "training rows whose pair, in either order, is in validation or test",
    "sentences": "training rows with any sentence in common with validation or test",
}


def subsets(rows: Columns, train: Columns) -> dict[str, Bool[np.ndarray, " N"]]:
    """Mark the rows of a split that should be scored apart, by the names of `SUBSETS`."""
    keys = pair_keys(rows)
    counts = Counter(keys)
    conflicting = set(conflicting_pairs(rows))
    leaked = sentence_is_in(rows, train)
    differs, only = final_punctuation(rows)
    return {
        "full": np.ones(len(keys), dtype=bool),
        "clean": ~leaked,
        "leaked": leaked,
        "leaked pair": pair_is_in(rows, train),
        "punctuation": differs,
        "same but punctuation": only,
        "repeated": np.array([counts[key] > 1 for key in keys], dtype=bool),
        "conflicting gold": np.array([key in conflicting for key in keys], dtype=bool),
    }


def drop_leaked_rows(task: PairTask, *, by: str) -> PairTask:
    """Leave out the training rows that overlap with validation or test, and say so in the notes.

    `by` is a name from `DROPS`. A task without training rows stays as it is; one of which too few are left is refused.
    """
    if by not in DROPS:
        raise unknown_name("rows to drop", by, DROPS)
    if "train" not in task.splits:
        return task
    mark = pair_is_in if by == "pairs" else sentence_is_in
    train = task.splits["train"]
    leaked = np.zeros(len(train), dtype=bool)
    for split, rows in task.splits.items():
        if split != "train":
            leaked |= mark(train, rows)
    note = f"train: {int(leaked.sum())} of {len(leaked)} rows left out, whose {by} are in validation or test"
    return task.keep_rows({"train": np.flatnonzero(~leaked)}, note=note)
