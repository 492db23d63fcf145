"""Control tasks: rows with labels that mean nothing, to tell what a probe reads from what it memorises."""

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from extract.errors import TaskError, unknown_name
from probes.metrics.tags import convert_tags, split_tag
from probes.tasks.base import Same, Task, hold_columns

CONTROLS = {
    "type": "the label of a word type: of the word itself, of the first word of a text, of those of a pair",
    "text": "the label of a text; of a word, at its place in its sentence",
    "shuffled": "the gold of train in random order; that of the other splits stays",
}
GOLD = {"pairs": "score", "classes": "label", "numbers": "number", "words": "tags"}
"""Kind of task to its column of gold."""


def control_task(task: Same, how: str = "type", seed: int = 0) -> Same:
    """Give the rows of a task other labels, which say nothing about the texts (Hewitt and Liang 2019).

    Under `type` and `text` a label is drawn from the gold of train, as often as it occurs there, by the seed and the
    type or text alone: it is the same in every split and on every machine. Spans of a control are of one word each,
    so that no tag depends on the next. A text that train does not share has an arbitrary label, so a control by text
    is at chance outside train.

    Args:
        task: A task of any kind with a training split.
        how: A key of `CONTROLS`.
        seed: Seed of the labels.

    Returns:
        The task, with a note and a name that say so, and a digest of its own.

    Raises:
        UnknownNameError: Another control.
        TaskError: No training split, or labels that no head can be scored on, as of a task of few types.

    Example:
        >>> from probes.tasks import load_task
        >>> control = control_task(load_task("class-sample"), "type", seed=1)
        >>> control.name, control.n_classes
        ('class-sample, control by type (seed 1)', 6)
    """
    if how not in CONTROLS:
        raise unknown_name("control", how, CONTROLS)
    if "train" not in task.splits:
        raise TaskError(f"task {task.name!r} has no split 'train', whose gold the labels of a control are drawn from.")
    gold = GOLD[task.kind]
    made = _shuffled(task, seed) if how == "shuffled" else _drawn(task, how, seed)
    columns = {split: {**rows[:], gold: made.get(split, rows[gold])} for split, rows in task.splits.items()}
    splits = hold_columns(columns, task.rows("train").features)
    name = f"{task.name}, control by {how} (seed {seed})"
    return task.replace_splits(splits, note=f"a control: {CONTROLS[how]} (seed {seed})", name=name)


def _drawn(task: Task, how: str, seed: int) -> dict[str, list[Any]]:
    """Draw the label of every type or text."""
    gold = task.rows("train")[GOLD[task.kind]]
    if task.kind != "words":
        pool = sorted(gold)
        return {split: [_draw(key, pool, seed) for key in _text_keys(task, split, how)] for split in task.splits}
    is_spans = task.metrics[0] == "span-f1"
    pool = sorted(_alone(tag) if is_spans else tag for tags in gold for tag in tags)
    return {
        split: [
            [_draw(word if how == "type" else (place, *words), pool, seed) for place, word in enumerate(words)]
            for words in rows["words"]
        ]
        for split, rows in task.splits.items()
    }


def _shuffled(task: Task, seed: int) -> dict[str, list[Any]]:
    """Permute the gold of train, words over all of train."""
    rng, gold = np.random.default_rng(seed), list(task.rows("train")[GOLD[task.kind]])
    if task.kind != "words":
        return {"train": [gold[place] for place in rng.permutation(len(gold))]}
    flat = [tag for tags in gold for tag in tags]
    mixed = iter([flat[place] for place in rng.permutation(len(flat))])
    rows = [[next(mixed) for _ in tags] for tags in gold]
    return {"train": [convert_tags(tags) for tags in rows] if task.metrics[0] == "span-f1" else rows}


def _text_keys(task: Any, split: str, how: str) -> list[tuple[str, ...]]:
    """Name each row by its texts, or by their first words; a pair in either order is the same."""
    columns = [task.rows(split)[column] for column in task.text_columns]
    if how == "type":
        columns = [[(text.split() or [""])[0] for text in texts] for texts in columns]
    return [tuple(sorted(texts)) for texts in zip(*columns, strict=True)]


def _draw(key: Hashable, pool: Sequence[Any], seed: int) -> Any:
    """Draw from a pool by seed and key alone, the same on every machine."""
    digest = hashlib.sha256(repr((seed, key)).encode()).digest()
    return pool[int.from_bytes(digest[:8], "big") * len(pool) >> 64]


def _alone(tag: str) -> str:
    """Turn a tag into that of a span of one word."""
    return tag if tag == "O" else f"B-{split_tag(tag)[1]}"
