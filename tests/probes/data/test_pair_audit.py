from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from probes.data.pair_task import (
    audit_notes,
    conflicting_pairs,
    load_stsb_local,
    pair_is_in,
    repeats_earlier_pair,
    sentence_is_in,
)
from probes.data.task import notes_by_split

Rows = dict[str, list[str] | list[float]]


def rows_of(*rows: tuple[str, str, float]) -> Rows:
    return {
        "sentence1": [row[0] for row in rows],
        "sentence2": [row[1] for row in rows],
        "score": [row[2] for row in rows],
    }


TRAIN = rows_of(("a", "b", 1), ("b", "a", 1), ("a", "b", 2), ("c", "d", 3), ("d", "c", 3), ("e", "f", 0))
TEST = rows_of(("b", "a", 4), ("c", "x", 1), ("y", "z", 2))


def test_repeats_count_later_rows_in_either_order() -> None:
    assert repeats_earlier_pair(TRAIN).tolist() == [False, True, True, False, True, False]


def test_conflicts_are_pairs_with_more_than_one_gold() -> None:
    assert conflicting_pairs(TRAIN) == [("a", "b")]


def test_overlap_between_splits() -> None:
    assert pair_is_in(TEST, TRAIN).tolist() == [True, False, False]
    assert sentence_is_in(TEST, TRAIN).tolist() == [True, True, False]


def test_notes_hold_every_count_and_leave_zeros_out() -> None:
    assert audit_notes({"train": TRAIN, "test": TEST}) == (
        "train: 3 of 6 rows repeat an earlier pair (in either order)",
        "train: 1 pair occurs more than once with different gold ('a' / 'b': 1, 2)",
        "test: 1 of 3 pairs are also in train",
        "test: 2 of 3 rows share a sentence with train",
    )
    assert audit_notes({"test": TEST}) == ()
    ends = rows_of(("a.", "b", 1), ("a.", "c.", 2), ("d", "e!", 3))
    assert audit_notes({"test": ends}) == ("test: the texts of 2 of 3 rows end in different punctuation",)


pairs = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd"), st.sampled_from([0.0, 1.0])), min_size=1)


@given(pairs, pairs)
def test_audit_does_not_depend_on_the_order_within_pairs(
    some: list[tuple[str, str, float]], other: list[tuple[str, str, float]]
) -> None:
    swapped = rows_of(*((b, a, score) for a, b, score in some))
    rows, known = rows_of(*some), rows_of(*other)
    assert np.array_equal(repeats_earlier_pair(rows), repeats_earlier_pair(swapped))
    assert np.array_equal(pair_is_in(rows, known), pair_is_in(swapped, known))
    assert conflicting_pairs(rows) == conflicting_pairs(swapped)
    assert not (pair_is_in(rows, known) & ~sentence_is_in(rows, known)).any()
    assert repeats_earlier_pair(rows).sum() == len(some) - len({frozenset(row[:2]) for row in some})


def without_punctuation(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum() or letter in "_ ").strip()


def test_known_facts_about_stsb(icecore_data: Path) -> None:
    task = load_stsb_local(icecore_data / "stsb")
    assert tuple(note.partition(" ('")[0] for note in task.notes) == (
        "train: 57 of 5749 rows repeat an earlier pair (in either order)",
        "train: 13 pairs occur more than once with different gold",
        "train: the texts of 325 of 5749 rows end in different punctuation",
        "validation: 3 of 1500 rows repeat an earlier pair (in either order)",
        "validation: the texts of 129 of 1500 rows end in different punctuation",
        "test: 2 of 1379 rows repeat an earlier pair (in either order)",
        "test: 1 pair occurs more than once with different gold",
        "test: the texts of 102 of 1379 rows end in different punctuation",
        "validation: 7 of 1500 pairs are also in train",
        "validation: 252 of 1500 rows share a sentence with train",
        "test: 12 of 1379 pairs are also in train",
        "test: 249 of 1379 rows share a sentence with train",
        "test: 4 of 1379 pairs are also in validation",
        "test: 101 of 1379 rows share a sentence with validation",
    )


def test_punctuation_explains_the_counts_others_give_for_stsb(icecore_data: Path) -> None:
    # Elsewhere 16 conflicting train pairs and 8 leaked dev pairs are counted: those differ in punctuation only.
    task = load_stsb_local(icecore_data / "stsb")
    plain: dict[str, Rows] = {}
    for split, rows in task.splits.items():
        plain[split] = {
            "sentence1": [without_punctuation(text) for text in rows["sentence1"]],
            "sentence2": [without_punctuation(text) for text in rows["sentence2"]],
            "score": list(rows["score"]),
        }
    assert len(conflicting_pairs(plain["train"])) == 16
    assert pair_is_in(plain["validation"], plain["train"]).sum() == 8
    assert pair_is_in(plain["test"], plain["train"]).sum() == 12


def test_notes_are_joined_by_split() -> None:
    notes = ("a sample", "train: 3 rows repeat", "test: 1 pair", "train: 2 pairs: 'a'", "odd: as it is")
    assert notes_by_split(notes) == ["a sample", "odd: as it is", "train: 3 rows repeat; 2 pairs: 'a'", "test: 1 pair"]
