import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.tasks import TASKS
from probes.tasks.classes import CLASS_METRICS, CLASS_TASKS, load_class_task, look_both_ways_split


def test_the_table_names_its_entries_beside_the_pair_tasks() -> None:
    assert list(CLASS_TASKS) == [
        "class-sample", "banking77", "pubmedqa", "chemprot", "mqp", "rct", "financial-phrasebank", "fiqa-sa", "scotus",
        "unfair-tos", "class-files", "class-hub",
    ]  # fmt: skip
    pair_tasks = [name for name, entry in TASKS.items() if str(entry.kind) == "pairs"]
    assert not set(CLASS_TASKS) & set(pair_tasks)
    for name, entry in CLASS_TASKS.items():
        assert (entry.name, entry.kind) == (name, "classes")
        assert entry.description


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown task 'banking': did you mean 'banking77'\? Allowed: class-s"):
        load_class_task("banking")


def test_an_unknown_option_names_those_of_the_task() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown task option 'agrement': did you mean 'agreement'\? Allowed: f"
    ):
        load_class_task("financial-phrasebank", agrement="All")
    with pytest.raises(UnknownNameError, match=r"unknown task option 'folder': Allowed: \(none\)"):
        load_class_task("class-sample", folder="x")


def test_a_missing_option_is_named() -> None:
    with pytest.raises(TaskError, match="task 'class-hub' needs the option `hub_id`"):
        load_class_task("class-hub", text="question")


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [
        ("header", "false", "true or false"),
        ("text", 3, "a text"),
        ("seed", True, "a whole number"),
        ("seed", 1.5, "a whole number"),
        ("validation_share", "0.1", "a number"),
        ("bad_rows", True, "a text"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused(option: str, value: object, needed: str) -> None:
    with pytest.raises(TaskError) as caught:
        load_class_task("class-files", files={"train": "x.csv"}, **{option: value})
    assert f"task option `{option}` of 'class-files' is {value!r}, but {needed} is needed" in str(caught.value)


def test_importing_the_tasks_is_light() -> None:
    heavy = {"torch", "datasets", "pandas", "sklearn"}
    code = f"import sys, probes.tasks.classes; sys.exit(' '.join({heavy} & set(sys.modules)) or None)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_banking77_has_the_published_counts(icecore_data: Path) -> None:
    task = load_class_task("banking77", folder=str(icecore_data / "banking77"))
    assert {split: len(rows) for split, rows in task.splits.items()} == {
        "train": 9000,
        "validation": 1003,
        "test": 3080,
    }
    assert task.n_classes == 77
    assert (np.bincount(task.labels("test")) == 40).all()
    assert min(np.bincount(task.labels("validation"), minlength=77)) >= 3
    assert len(task.texts()) == 13083
    again = {split: len(rows) for split, rows in look_both_ways_split(task).splits.items()}
    assert again == {"train": 10466, "test": 2617}


def test_pubmedqa_has_the_published_counts(icecore_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICECORE_DATA", str(icecore_data))
    task = load_class_task("pubmedqa")
    assert {split: len(rows) for split, rows in task.splits.items()} == {"train": 400, "validation": 100, "test": 500}
    assert np.bincount(task.labels("test")).tolist() == [276, 169, 55]
    in_training = np.bincount(np.concatenate([task.labels("train"), task.labels("validation")]))
    assert in_training.tolist() == [276, 169, 55]
    assert task.source == "ori_pqal.json, test_ground_truth.json in $ICECORE_DATA/pubmedqa"
    assert all(text.startswith("Question:") and "Context" in text for text in task.texts())
    again = look_both_ways_split(task)
    assert {split: len(rows) for split, rows in again.splits.items()} == {"train": 800, "test": 200}
    assert set(task.metrics) <= set(CLASS_METRICS)
