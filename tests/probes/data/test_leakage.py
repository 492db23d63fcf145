"""Subsets of a split that training gives away, on a few rows by hand; training rows left out for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.pair_task import (
    SUBSETS,
    PairTask,
    audit_notes,
    drop_leaked_rows,
    final_punctuation,
    load_stsb_local,
    pair_is_in,
    sentence_is_in,
    subsets,
)
from probes.runs.run_config import TaskSpec

Rows = dict[str, Any]


def rows_of(*rows: tuple[str, str, float]) -> Rows:
    return {
        "sentence1": [row[0] for row in rows],
        "sentence2": [row[1] for row in rows],
        "score": [row[2] for row in rows],
    }


TRAIN = rows_of(("a", "b", 1), ("c", "d", 2), ("Who?", "e", 3))
TEST = rows_of(
    ("b", "a", 4),  # the pair, the other way round
    ("a", "b", 4),  # the pair itself; with the row above it stands twice
    ("c", "x", 1),  # a sentence of train
    ("x", "d", 1),
    ("a", "d", 2),  # two sentences of train, of different pairs
    ("Who", "y.", 2),  # "Who" is no sentence of train
    ("same.", "same", 5),
    ("t", "u", 1),
    ("u", "t", 3),  # the pair again, with another gold
    ("v", "w", 0),
)
EXPECTED = {
    "full": range(10),
    "clean": [5, 6, 7, 8, 9],
    "leaked": [0, 1, 2, 3, 4],
    "leaked pair": [0, 1],
    "punctuation": [5, 6],
    "same but punctuation": [6],
    "repeated": [0, 1, 7, 8],
    "conflicting gold": [7, 8],
}


def test_subsets_of_a_split_by_hand() -> None:
    found = subsets(TEST, TRAIN)
    assert list(found) == list(SUBSETS)
    assert {name: np.flatnonzero(marks).tolist() for name, marks in found.items()} == {
        name: list(rows) for name, rows in EXPECTED.items()
    }
    assert all(marks.dtype == np.bool_ for marks in found.values())


def test_every_row_is_clean_or_leaked_and_a_leaked_pair_is_leaked() -> None:
    found = subsets(TEST, TRAIN)
    assert (found["clean"] ^ found["leaked"]).all()
    assert not (found["leaked pair"] & found["clean"]).any()
    assert not (found["same but punctuation"] & ~found["punctuation"]).any()
    assert not (found["conflicting gold"] & ~found["repeated"]).any()


def test_the_order_of_the_texts_within_a_pair_does_not_matter() -> None:
    turned = {**TEST, "sentence1": TEST["sentence2"], "sentence2": TEST["sentence1"]}
    for name, marks in subsets(turned, TRAIN).items():
        np.testing.assert_array_equal(marks, subsets(TEST, TRAIN)[name], err_msg=name)


def test_two_equal_rows_are_repeated_but_do_not_conflict() -> None:
    found = subsets(rows_of(("a", "b", 1), ("b", "a", 1), ("c", "d", 2)), rows_of(("e", "f", 1)))
    assert found["repeated"].tolist() == [True, True, False]
    assert not found["conflicting gold"].any()


@pytest.mark.parametrize(
    ("a", "b", "differs", "only"),
    [
        ("A b.", "A b", True, True),
        ("A b.", "A b!", True, True),
        ("A b.", "A b.", False, False),
        ("A b", "C d", False, False),
        ("A b.", "C d", True, False),
        ("A b .", "A b.", False, False),  # spaces are no punctuation
        ("A b. ", "A b.", False, False),
        ("A b .", "A b ", True, True),
        ("A, b", "A. b", False, False),  # only the end counts
        ("A b...", "A b.", True, True),
        ("A b\u2019", "A b'", True, True),
        ('"A b."', '"A b.', True, True),
        ("A b).", "A b)", True, True),
        ("a b.", "A b", True, False),
        ("?", "!", True, True),
        ("", "", False, False),
        ("." * 200_000 + "a", "b", False, False),  # a pattern would try every dot
    ],
)
def test_final_punctuation(a: str, b: str, differs: bool, only: bool) -> None:
    for first, second in ((a, b), (b, a)):
        found = final_punctuation({"sentence1": [first], "sentence2": [second]})
        assert [marks.tolist() for marks in found] == [[differs], [only]]


def make_task() -> PairTask:
    """Fourteen training rows, of which the first five have something in common with validation or test."""
    leaked = [("v1", "v2", 1.0), ("t2", "t1", 2.0), ("v3", "n1", 3.0), ("n2", "t4", 4.0), ("t1", "v2", 5.0)]
    free = [(f"f{i}", f"g{i}", float(i % 5)) for i in range(9)]
    fill = {split: [(f"{split} {i}", f"{split} {i}'", float(i)) for i in range(5)] for split in ("v", "t")}
    return PairTask(
        "leaky",
        PairTask.hold(
            {
                "train": rows_of(*leaked, *free),
                "validation": rows_of(("v2", "v1", 0.0), ("v3", "v4", 1.0), ("v5", "v6", 2.0), *fill["v"]),
                "test": rows_of(("t1", "t2", 0.0), ("t3", "t4", 1.0), ("t5", "t6", 2.0), *fill["t"]),
            }
        ),
        (0.0, 5.0),
        "made up",
    )


@pytest.mark.parametrize(("by", "dropped"), [("pairs", [0, 1]), ("sentences", [0, 1, 2, 3, 4])])
def test_leaked_training_rows_can_be_left_out(by: Any, dropped: list[int]) -> None:
    task = make_task()
    found = drop_leaked_rows(task, by=by)
    kept = [i for i in range(14) if i not in dropped]
    for column in ("sentence1", "sentence2", "score"):
        before = task.splits["train"][column]
        assert list(found.splits["train"][column]) == [before[i] for i in kept]
    for split in ("validation", "test"):
        assert found.splits[split].to_dict() == task.splits[split].to_dict()
    assert found.notes[0] == f"train: {len(dropped)} of 14 rows left out, whose {by} are in validation or test"
    assert found.digest() != task.digest()
    assert (found.name, found.source, found.score_range) == (task.name, task.source, task.score_range)


@pytest.mark.parametrize("by", ["pairs", "sentences"])
def test_after_that_nothing_leaks(by: Any) -> None:
    found = drop_leaked_rows(make_task(), by=by)
    mark = pair_is_in if by == "pairs" else sentence_is_in
    for split in ("validation", "test"):
        assert not mark(found.splits["train"], found.splits[split]).any()
        assert not subsets(found.splits[split], found.splits["train"])["leaked pair"].any()
    if by == "sentences":
        assert subsets(found.splits["test"], found.splits["train"])["clean"].all()
        assert not any("also in train" in note or "with train" in note for note in found.notes)
    again = drop_leaked_rows(found, by=by)
    assert again.digest() == found.digest()


def test_a_task_without_training_rows_stays_as_it_is() -> None:
    task = make_task()
    bare = replace(
        task, splits=PairTask.hold({split: task.splits[split].to_dict() for split in ("validation", "test")})
    )
    assert drop_leaked_rows(bare, by="pairs") is bare


def test_too_few_rows_left_are_told() -> None:
    task = make_task()
    splits = {split: rows.to_dict() for split, rows in task.splits.items()}
    splits["train"] = {column: values[:9] for column, values in splits["train"].items()}
    with pytest.raises(TaskError, match="split 'train' of task 'leaky' has 4 rows, but a correlation needs at least 8"):
        drop_leaked_rows(replace(task, splits=PairTask.hold(splits)), by="sentences")


def write_pairs(folder: Path) -> str:
    lines = ["split\tsentence1\tsentence2\tscore"]
    for split, rows in make_task().splits.items():
        lines += [f"{split}\t{row['sentence1']}\t{row['sentence2']}\t{row['score']}" for row in rows]
    (folder / "p.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "p.tsv")


def test_a_configuration_can_ask_for_it(tmp_path: Path) -> None:
    options = {"files": write_pairs(tmp_path)}
    for by, n_left in (("none", 14), ("pairs", 12), ("sentences", 9)):
        found = TaskSpec("pair-files", options, drop_leaked=by).load()  # type: ignore[arg-type]
        assert len(found.splits["train"]) == n_left
        assert any("left out" in note for note in found.notes) == (by != "none")


@pytest.mark.parametrize("by", ["pairs", "sentences"])
def test_a_subset_still_tells_of_the_rows_left_out(by: Any) -> None:
    task = replace(make_task(), notes=("3 rows dropped", *audit_notes(make_task().splits)))
    assert any("also in train" in note for note in task.notes)
    dropped = drop_leaked_rows(task, by=by)
    small = dropped.subset(8)
    assert small.notes[0].startswith("a random subset of at most 8 rows per split")
    assert small.notes[1:3] == (dropped.notes[0], "3 rows dropped")
    assert "left out, whose" in dropped.notes[0]
    assert small.notes[3:] == audit_notes(small.splits)
    assert not any("pairs are also in train" in note for note in small.notes)  # said of the task as it was


def test_a_configuration_that_drops_rows_and_draws_a_subset_tells_both(tmp_path: Path) -> None:
    file = write_pairs(tmp_path)
    found = TaskSpec("pair-files", {"files": file}, pairs=8, drop_leaked="sentences").load()
    assert [note.partition(" of ")[0] for note in found.notes[:2]] == ["a random subset", "train: 5"]
    assert "rows left out, whose sentences are in validation or test" in found.notes[1]


def test_an_unknown_choice_of_rows_is_named() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown rows to drop 'pair': did you mean 'pairs'\? Allowed: pairs, s"
    ):
        drop_leaked_rows(make_task(), by="pair")


@pytest.mark.long
def test_stsb_test_is_leaked_as_published(icecore_data: Path) -> None:
    task = load_stsb_local(icecore_data / "stsb")
    tables = {
        split: {column: list(rows[column]) for column in ("sentence1", "sentence2", "score")}
        for split, rows in task.splits.items()
    }
    found = {name: int(marks.sum()) for name, marks in subsets(tables["test"], tables["train"]).items()}
    assert found["full"] == 1379
    assert (found["leaked"], found["clean"], found["leaked pair"]) == (249, 1130, 12)
    leaked = {split: sentence_is_in(tables["train"], tables[split]) for split in ("validation", "test")}
    kept = drop_leaked_rows(task, by="sentences").splits["train"]
    assert len(kept) == int((~(leaked["validation"] | leaked["test"])).sum()) < 5749
    after = subsets(tables["test"], {column: list(kept[column]) for column in ("sentence1", "sentence2", "score")})
    assert after["clean"].all()
