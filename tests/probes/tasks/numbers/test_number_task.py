"""Number tasks: the sample, files by column names, and what is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.tasks import load_task
from probes.tasks.numbers import NumberTask, load_number_sample, read_number_files
from probes.tasks.numbers.task import build_number_splits
from tests.probes.tasks.numbers.planted_numbers import make_number_task


def test_the_sample_has_every_rating_in_every_split_and_no_text_twice() -> None:
    task = load_number_sample()
    assert task.n_rows() == {"train": 70, "validation": 25, "test": 25}
    assert len(task.texts()) == 120
    assert task.audit() == ()
    for split in task.splits:
        assert set(task.numbers(split)) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert Counter(np.concatenate([task.numbers(split) for split in task.splits])) == dict.fromkeys(range(1, 6), 24)


def test_files_are_read_by_their_column_names(tmp_path: Path) -> None:
    rows = [f"'text {i}'\t{i / 4:.2f}\tby {i // 2}" for i in range(10)]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["review\tstars\tauthor", *rows]), encoding="utf-8")
    files = {split: str(tmp_path / f"{split}.tsv") for split in ("train", "dev")}
    task = load_task("number-files", files=files, text="review", number="stars", group="author")
    assert isinstance(task, NumberTask)
    assert list(task.splits) == ["train", "validation"]
    assert task.numbers("train").tolist() == [i / 4 for i in range(10)]
    assert (task.groups("train") or ())[:3] == ("by 0", "by 0", "by 1")
    assert task.describe()["has_groups"]
    assert task.notes == ("validation: 10 of 10 texts are also in train",)
    assert not load_number_sample().describe()["has_groups"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("many", r"line 10.*column 'number' holds 'many', but a number is needed"),
        ("", "column 'number' is missing or empty .* but a number is needed"),
        ("inf", "but a number is needed"),
    ],
)
def test_a_number_that_is_none_is_refused_with_its_place_or_dropped(tmp_path: Path, value: str, message: str) -> None:
    rows = [f"text {i},{i},train" for i in range(8)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["text,number,split", *rows, f"text 8,{value},train"]), encoding="utf-8")
    with pytest.raises(TaskError, match=message):
        read_number_files(path)
    task = read_number_files(path, bad_rows="drop")
    assert task.n_rows() == {"train": 8}
    assert "1 of 9 rows dropped" in task.notes[0]


def make(numbers: list[float], **columns: Any) -> NumberTask:
    texts = [f"text {i % 9}" for i in range(len(numbers))]
    return NumberTask("t", build_number_splits({"train": {"text": texts, "number": numbers, **columns}}), "made up")


def test_rows_without_a_correlation_are_refused() -> None:
    with pytest.raises(TaskError, match="split 'train' of task 't' has 7 rows, but a correlation needs at least 8"):
        make([float(i) for i in range(7)])
    with pytest.raises(TaskError, match=r"has the same gold 2\.5 in all 8 rows"):
        make([2.5] * 8)
    with pytest.raises(TaskError, match="holds a number that is not finite"):
        make([1.0, float("nan"), *map(float, range(8))])
    with pytest.raises(UnknownNameError, match="unknown column 'number'"):
        NumberTask("t", build_number_splits({"train": {"text": ["a"] * 8}}), "made up")


def test_repeats_are_counted_and_groups_are_in_the_digest() -> None:
    numbers = [float(i) for i in range(10)]
    assert make(numbers).audit() == ("train: 1 of 10 rows repeat an earlier text",)
    assert make(numbers).digest() != make(numbers, group=["g"] * 10).digest()
    assert make_number_task().digest() != make_number_task(shuffled=("test",)).digest()
    assert make_number_task().without_test().digest() == make_number_task(shuffled=("test",)).without_test().digest()
