"""What every kind of task must hold, found from the tables of heads and of tasks."""

import json
from typing import Any

import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.task import Task
from probes.data.task_table import TASKS, load_task
from probes.data.zero_shot_task import CorpusTask
from probes.heads.head_table import HEADS
from probes.runs.task_kinds import KINDS as TASK_KINDS

KINDS = sorted({entry.kind for entry in HEADS.values()} | {entry.kind for entry in TASKS.values()})
SPLITS = ["train", "validation", "test"]
COMMON = {"kind", "name", "source", "is_sample", "metrics", "n_rows", "digest", "notes"}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def task(kind: str) -> Task:
    """The sample that ships with the project: the first task of the kind that needs no option and no file."""
    name = next(name for name, entry in TASKS.items() if entry.kind == kind and name.endswith("sample"))
    return load_task(name)


def test_every_kind_has_heads_and_tasks(kind: str) -> None:
    assert [name for name, entry in HEADS.items() if entry.kind == kind]
    assert [name for name, entry in TASKS.items() if entry.kind == kind]


def test_the_sample_is_a_whole_task_of_its_kind(kind: str, task: Task) -> None:
    assert task.kind == type(task).kind == kind
    assert task.is_sample
    assert list(task.splits) in (SPLITS, SPLITS[1:])
    assert "train" in task.splits or not TASK_KINDS[kind].needs_train
    assert task.metrics
    assert task.texts()
    assert len(set(task.texts())) == len(task.texts())
    with pytest.raises(UnknownNameError, match=r"unknown split 'tset': did you mean 'test'\?"):
        task.rows("tset")


def test_the_description_has_the_common_keys_and_plain_values(kind: str, task: Task) -> None:
    found = task.describe().to_plain()
    assert found.keys() >= COMMON
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["kind"], found["name"], found["metrics"]) == (kind, task.name, list(task.metrics))
    assert found["n_rows"] == {split: len(rows) for split, rows in task.splits.items()}
    assert found["digest"] == task.digest()
    assert not COMMON & task.describe_kind().keys()


def test_subsets_are_nested_and_say_so(task: Task) -> None:
    small, large = task.subset(12, seed=3), task.subset(18, seed=3)
    for split, rows in small.splits.items():
        assert len(rows) == min(12, len(task.splits[split]))
        known = [written(large, row) for row in large.splits[split]]
        places = [known.index(written(small, row)) for row in rows]
        assert places == sorted(places)
    assert "subset of at most 12" in small.notes[0]
    assert small.digest() == task.subset(12, seed=3).digest()
    assert len({small.digest(), large.digest(), task.digest(), task.subset(12, seed=4).digest()}) == 4
    with pytest.raises(TaskError, match="n_per_split is 0, but"):
        task.subset(0)


def written(task: Task, row: dict[str, Any]) -> str:
    """Write a row; documents are numbered within a draw, so these by their names."""
    if isinstance(task, CorpusTask):
        row = {**row, "documents": [task.corpus_ids[index] for index in row["documents"]]}
    return json.dumps(row, sort_keys=True)


def test_without_test_nothing_of_test_is_left(task: Task) -> None:
    rest = task.without_test()
    assert list(rest.splits) == list(task.splits)[:-1]
    assert list(task.splits)[-1] == "test"
    assert rest.digest() != task.digest()
    assert set(rest.texts()) <= set(task.texts())
    assert rest.without_test().digest() == rest.digest()


def test_the_digest_is_of_rows_and_not_of_names(task: Task) -> None:
    assert len(task.digest()) == 64
    assert task.replaced(name="another", source="elsewhere", notes=("a remark",)).digest() == task.digest()
    first = next(iter(task.splits))
    turned = task.keep_rows({first: list(range(len(task.splits[first])))[::-1]}, note="turned around")
    assert turned.digest() != task.digest()
    assert turned.notes[0] == "turned around"
