"""Duplicates, overlap between splits and final punctuation of pairs, counted for the reader; nothing is removed."""

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Bool

from probes.tasks.audit import conflict_notes, conflicting, remarks, text_keys

_FINAL = re.compile(r"[\s.!?;:,\"'\u2019\u201d)\]]*$")
Columns = Any
"""Anything with `rows["sentence1"]`, `rows["sentence2"]`, `rows["score"]`: a `datasets.Dataset` or a dict of lists."""


def pair_keys(rows: Columns) -> list[tuple[str, ...]]:
    """Name each pair so that (a, b) and (b, a) are the same pair."""
    return text_keys(rows, ("sentence1", "sentence2"))


def repeats_earlier_pair(rows: Columns) -> Bool[np.ndarray, " N"]:
    """Mark the rows whose pair is also in an earlier row of the same split, in either order."""
    first: dict[tuple[str, ...], int] = {}
    return np.array([first.setdefault(key, row) < row for row, key in enumerate(pair_keys(rows))], dtype=bool)


def conflicting_pairs(rows: Columns) -> list[tuple[str, ...]]:
    """List the unordered pairs of one split that have more than one gold score, each once, in the order first seen."""
    return conflicting(pair_keys(rows), rows["score"])


def pair_is_in(rows: Columns, other: Columns) -> Bool[np.ndarray, " N"]:
    """Mark the rows whose pair, in either order, is also a pair of another split, usually train."""
    known = set(pair_keys(other))
    return np.array([key in known for key in pair_keys(rows)], dtype=bool)


def sentence_is_in(rows: Columns, other: Columns) -> Bool[np.ndarray, " N"]:
    """Mark the rows of which at least one sentence is also a sentence of another split, usually train.

    `~sentence_is_in(test, train)` is the clean subset of test.
    """
    known = {*other["sentence1"], *other["sentence2"]}
    return np.array([a in known or b in known for a, b in pair_keys(rows)], dtype=bool)


def final_punctuation(rows: Columns) -> tuple[Bool[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """Mark the rows whose texts end in different punctuation, and those that differ in nothing else.

    The last token is then another one in either text, which last-token pooling sees and mean pooling hardly does.
    """
    differs, only = [], []
    for a, b in zip(rows["sentence1"], rows["sentence2"], strict=True):
        ends = [_FINAL.search(text.rstrip()) for text in (a, b)]
        tails = ["".join(end.group().split()) if end else "" for end in ends]
        stems = [text.rstrip()[: end.start()] if end else text for text, end in zip((a, b), ends, strict=True)]
        differs.append(tails[0] != tails[1])
        only.append(tails[0] != tails[1] and stems[0] == stems[1])
    return np.array(differs, dtype=bool), np.array(only, dtype=bool)


def audit_notes(splits: Mapping[str, Columns]) -> tuple[str, ...]:
    """Count duplicates, overlap between splits and final punctuation.

    Texts are compared exactly, pairs in either order; splits come in the order train, validation, test. Returns only
    the remarks whose count is not zero.
    """
    # one read of the columns: a datasets column decodes again on every access
    tables = {
        split: {column: list(rows[column]) for column in ("sentence1", "sentence2", "score")}
        for split, rows in splits.items()
    }
    counts: list[tuple[int, str]] = []
    for split, rows in tables.items():
        n_rows = len(rows["score"])
        repeats = int(repeats_earlier_pair(rows).sum())
        counts.append((repeats, f"{split}: {repeats} of {n_rows} rows repeat an earlier pair (in either order)"))
        n_conflicts, conflicts = conflict_notes(pair_keys(rows), rows["score"], "pair", "gold")
        counts.append((n_conflicts, f"{split}: {conflicts}"))
        n_differ = int(final_punctuation(rows)[0].sum())
        counts.append((n_differ, f"{split}: the texts of {n_differ} of {n_rows} rows end in different punctuation"))
    for (other, known), (split, rows) in combinations(tables.items(), 2):
        n_rows = len(rows["score"])
        n_pairs = int(pair_is_in(rows, known).sum())
        counts.append((n_pairs, f"{split}: {n_pairs} of {n_rows} pairs are also in {other}"))
        n_shared = int(sentence_is_in(rows, known).sum())
        counts.append((n_shared, f"{split}: {n_shared} of {n_rows} rows share a sentence with {other}"))
    return remarks(counts)
