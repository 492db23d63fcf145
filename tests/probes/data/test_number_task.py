"""Number tasks: the sample, and files by column names."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from extract.errors import TaskError
from probes.data.class_task import NumberTask
from probes.data.task_table import load_task
from tests.probes.data.planted_numbers import make_number_task, number_task


def test_the_sample_has_every_rating_in_every_split_and_no_text_twice() -> None:
    task = load_task("number-sample")
    assert isinstance(task, NumberTask)
    assert (len(task.texts()), task.audit(), task.describe().of_kind["has_groups"]) == (120, (), False)
    assert all(set(task.numbers(split)) == {1.0, 2.0, 3.0, 4.0, 5.0} for split in task.splits)
    assert Counter(np.concatenate([task.numbers(split) for split in task.splits])) == dict.fromkeys(range(1, 6), 24)


def test_files_are_read_by_their_column_names_and_bad_rows_dropped(tmp_path: Path) -> None:
    rows = [f"'text {i}'\t{i / 4:.2f}\tby {i // 2}" for i in range(10)]
    files = {split: str(tmp_path / f"{split}.tsv") for split in ("train", "dev")}
    for path in files.values():
        Path(path).write_text("\n".join(["review\tstars\tauthor", *rows, "text\tmany\tme"]), encoding="utf-8")
    names = {"text": "review", "number": "stars", "group": "author"}
    with pytest.raises(TaskError, match=r"line 12: column 'stars' holds 'many', but a number is needed"):
        load_task("number-files", files=files, **names)
    task = load_task("number-files", files=files, **names, bad_rows="drop")
    assert isinstance(task, NumberTask)
    assert list(task.splits) == ["train", "validation"]
    assert task.numbers("train").tolist() == [i / 4 for i in range(10)]
    assert (task.groups("train") or ())[:3] == ("by 0", "by 0", "by 1")
    assert task.describe().of_kind["has_groups"]
    assert [note.partition(": ")[2][:20] for note in task.notes[:2]] == ["1 of 11 rows dropped"] * 2
    assert task.notes[2:] == ("validation: 10 of 10 texts are also in train",)


def test_splits_of_one_file_are_drawn_with_groups_whole(tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    path.write_text("\n".join(["text\tnumber\tby", *(f"text {i}\t{i % 7}\tby {i // 2}" for i in range(100))]))
    task = load_task("number-files", files=str(path), group="by")
    assert task.n_rows() == {"train": 80, "validation": 10, "test": 10}
    found = [set(task.groups(split) or ()) for split in task.splits]
    assert sum(map(len, found)) == len(set().union(*found)) == 50
    assert task.notes[0] == "splits drawn: 80 train, 10 validation, 10 test with seed 0"


def test_repeats_are_counted_and_groups_are_in_the_digest() -> None:
    columns = {"text": [f"text {i % 9}" for i in range(10)], "number": range(10)}
    assert number_task({"train": columns}).audit() == (
        "train: 1 of 10 rows repeat an earlier text",
        "train: 1 text occurs more than once with different numbers ('text 0': 0, 9)",
    )
    assert number_task({"train": columns}).digest() != number_task({"train": {**columns, "group": ["g"] * 10}}).digest()
    assert make_number_task().digest() != make_number_task(shuffled=("test",)).digest()
