"""Control labels: seeded, equal across splits, as frequent as the gold of train, and nothing that a text gives away."""

from collections import Counter
from typing import Any

import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.task import Task
from probes.data.task_table import load_task
from probes.layers.study import CONTROLS, control_task
from probes.metrics.prediction_metrics import convert_tags
from probes.runs.task_kinds import KINDS

TASKS: dict[str, dict[str, Any]] = {"sts-sample": {}, "class-sample": {}, "number-sample": {}, "words-sample": {}}


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return load_task(request.param, **TASKS[request.param])


def labelled(task: Any, how: str) -> list[tuple[Any, Any]]:
    """Every unit that a control labels, over all splits, and its label."""
    found: list[tuple[Any, Any]] = []
    gold = KINDS[task.kind].gold_column
    for rows in task.splits.values():
        if task.kind == "words":
            for words, tags in zip(rows["words"], rows["tags"], strict=True):
                keys = words if how == "type" else [(tuple(words), k) for k in range(len(words))]
                found += zip(keys, tags, strict=True)
            continue
        texts = [list(rows[name]) for name in task.text_columns]
        if how == "type":
            texts = [[text.split()[0] for text in side] for side in texts]
        found += zip([tuple(sorted(each)) for each in zip(*texts, strict=True)], rows[gold], strict=True)
    return found


@pytest.mark.parametrize("how", ["type", "text"])
def test_a_label_is_that_of_its_type_or_text_in_every_split(task: Task, how: str) -> None:
    labels: dict[Any, set[Any]] = {}
    for key, label in labelled(control_task(task, KINDS[task.kind], how, seed=1), how):
        labels.setdefault(key, set()).add(label)
    assert all(len(each) == 1 for each in labels.values())
    assert len({next(iter(each)) for each in labels.values()}) > 1


@pytest.mark.parametrize("how", CONTROLS)
def test_a_control_is_its_seed_and_nothing_else(task: Task, how: str) -> None:
    made = control_task(task, KINDS[task.kind], how, seed=1)
    assert made.digest() == control_task(task, KINDS[task.kind], how, seed=1).digest()
    assert len({made.digest(), control_task(task, KINDS[task.kind], how, seed=2).digest(), task.digest()}) == 3
    assert made.texts() == task.texts()  # so that every cache of the task serves
    assert made.notes[0].startswith("a control: ")
    gold = KINDS[task.kind].gold_column
    for split, rows in task.splits.items():
        others = [name for name in rows.column_names if name != gold]
        assert [made.rows(split)[name][:] for name in others] == [rows[name][:] for name in others]
        is_kept = made.rows(split)[gold][:] == rows[gold][:]
        assert is_kept == (how == "shuffled" and split != "train")


def test_the_labels_of_a_type_do_not_depend_on_the_other_rows() -> None:
    task = load_task("words-sample", tags="pos")
    whole = dict(labelled(control_task(task, KINDS[task.kind], "type"), "type"))
    kept = task.keep_rows({"validation": [3, 1], "test": [0]}, note="fewer")
    assert dict(labelled(control_task(kept, KINDS[task.kind], "type"), "type")).items() <= whole.items()


def test_labels_are_as_frequent_as_the_gold_of_train() -> None:
    task = load_task("words-sample", tags="pos")
    gold = Counter(tag for tags in task.rows("train")["tags"] for tag in tags)
    controls = [control_task(task, KINDS[task.kind], "type", seed) for seed in range(5)]
    drawn = Counter(label for control in controls for label in dict(labelled(control, "type")).values())
    for tag, n in gold.most_common(5):
        assert drawn[tag] / drawn.total() == pytest.approx(n / gold.total(), abs=0.03)


def test_shuffling_keeps_what_is_shuffled(task: Task) -> None:
    made = control_task(task, KINDS[task.kind], "shuffled")
    before, after = (each.rows("train")[KINDS[each.kind].gold_column] for each in (task, made))
    if task.kind == "words":
        before, after = ([tag for tags in side for tag in tags] for side in (before, after))
        assert Counter(tag[2:] for tag in before) == Counter(tag[2:] for tag in after)  # a B may become an I
    else:
        assert sorted(before) == sorted(after)


def test_spans_of_a_control_are_of_one_word() -> None:
    task = load_task("words-sample", tags="ner")
    for how in CONTROLS:
        for tags in control_task(task, KINDS[task.kind], how).rows("train")["tags"]:
            assert convert_tags(tags) == tags
            assert how == "shuffled" or not any(tag.startswith("I-") for tag in tags)


def test_what_is_no_control_is_refused() -> None:
    task = load_task("class-sample")
    with pytest.raises(UnknownNameError, match="unknown control 'tyep'"):
        control_task(task, KINDS[task.kind], "tyep")
    pairs = load_task("sts-sample").keep_rows({}, note="all")
    alone = pairs.replaced(splits=type(pairs.splits)({"test": pairs.rows("test")}))
    with pytest.raises(TaskError, match="'sts-sample' has no split 'train'"):
        control_task(alone, KINDS[alone.kind])
