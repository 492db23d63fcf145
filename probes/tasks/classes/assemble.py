"""Checked examples to a task: classes numbered, missing splits drawn, and every decision written into the notes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extract.errors import TaskError
from probes.readers.splits import SPLITS
from probes.tasks.classes.audit import class_notes
from probes.tasks.classes.examples import Example, number_classes
from probes.tasks.classes.task import PAIR, TEXT, ClassTask, build_class_splits
from probes.tasks.splitting import MIN_CLASS_ROWS, SPLIT_NOTE, hold_out, rare_classes, split_three_ways

RARE = ("error", "drop")


@dataclass(frozen=True)
class TaskCard:
    """What is known of a task besides its rows; fields as in `ClassTask`."""

    name: str
    source: str
    metrics: tuple[str, ...] = ("f1-weighted",)
    licence: str = "unknown"
    class_names: tuple[str, ...] | None = None
    """None takes the labels that occur."""
    is_sample: bool = False
    look_both_ways_rows: int | None = None


@dataclass(frozen=True)
class SplitRule:
    """How splits that the source lacks are drawn."""

    seed: int = 0
    """Seed of the draw."""
    validation_fraction: float = 0.1
    """Part of the training rows that becomes validation when there is a test split and no validation split."""
    rare: str = "error"
    """What to do with classes of fewer than 3 rows when all splits are drawn: `error` or `drop`."""

    def __post_init__(self) -> None:
        if self.rare not in RARE:
            raise TaskError(f"`rare` is {self.rare!r}, but one of {', '.join(RARE)} is needed.")
        if not 0 < self.validation_fraction <= 0.5:
            raise TaskError(
                f"`validation_fraction` is {self.validation_fraction:g}, but a number above 0 and at most 0.5 is "
                "needed."
            )


def assemble_task(
    examples: Sequence[Example], card: TaskCard, *, rule: SplitRule | None = None, notes: Sequence[str] = ()
) -> ClassTask:
    """Build a task: official splits are kept, missing ones are drawn by the rule.

    Rows without a split, or in train alone, are drawn 80/10/10; with train and test, validation is drawn from train.
    Groups stay whole; else the draw is stratified.

    Args:
        examples: Checked rows in source order.
        card: What is known of the task.
        rule: How to draw splits; None is seed 0.
        notes: Remarks of the reader, kept in front.

    Returns:
        The task, its notes naming what was drawn and dropped, duplicates, conflicts, overlap and thin classes.

    Raises:
        TaskError: If there are no rows, no training rows, one class, labels of mixed type, only some rows have a split,
            or (with `rare: error`) a class is too small to be split.
        UnknownNameError: If a label is not in the card's class names.

    Example:
        >>> rows = [Example((f"text {i}",), "even" if i % 2 == 0 else "odd") for i in range(40)]
        >>> task = assemble_task(rows, TaskCard("parity", "made here"))
        >>> {split: len(rows) for split, rows in task.splits.items()}
        {'train': 32, 'validation': 4, 'test': 4}
    """
    rule = rule or SplitRule()
    if not examples:
        raise TaskError(f"task {card.name!r} has no rows: give at least three texts of each of two classes.")
    labels, names = number_classes(examples, card.class_names)
    said: list[str] = []
    if {example.split for example in examples} <= {None, "train"}:
        if rare_classes(labels):
            examples, note = _drop_rare(examples, labels, names, card=card, rule=rule)
            labels, names = number_classes(examples, card.class_names)
            said.append(note)
        parts, note = _draw_all(examples, labels, rule)
    else:
        parts, note = _keep_official(examples, labels, card=card, rule=rule)
    columns = {split: _columns(examples, labels, rows) for split, rows in parts.items()}
    splits = build_class_splits(columns)
    said += [note, *class_notes(columns, names)]
    return ClassTask(
        name=card.name,
        splits=splits,
        class_names=names,
        metrics=card.metrics,
        source=card.source,
        licence=card.licence,
        is_sample=card.is_sample,
        notes=(*notes, *filter(None, said)),
        look_both_ways_rows=card.look_both_ways_rows,
    )


def _drop_rare(
    examples: Sequence[Example], labels: Sequence[int], names: Sequence[str], *, card: TaskCard, rule: SplitRule
) -> tuple[list[Example], str]:
    rare = rare_classes(labels)
    listed = ", ".join(f"{names[label]!r}: {n}" for label, n in list(rare.items())[:5]) + (", ..." * (len(rare) > 5))
    if rule.rare == "error":
        raise TaskError(
            f"task {card.name!r} has {len(rare)} classes of fewer than {MIN_CLASS_ROWS} rows ({listed}), which cannot "
            "be in train, validation and test: add rows, set `rare: drop`, or give files that are split already."
        )
    kept = [example for example, label in zip(examples, labels, strict=True) if label not in rare]
    if not kept:
        raise TaskError(f"task {card.name!r} has no class of {MIN_CLASS_ROWS} rows or more ({listed}): add rows.")
    n_dropped = len(examples) - len(kept)
    return kept, f"{len(rare)} classes of fewer than {MIN_CLASS_ROWS} rows ({listed}) dropped, {n_dropped} rows in all"


def _draw_all(
    examples: Sequence[Example], labels: Sequence[int], rule: SplitRule
) -> tuple[dict[str, NDArray[np.int64]], str]:
    groups = _groups(examples)
    parts = split_three_ways(np.asarray(labels, dtype=np.int64), seed=rule.seed, groups=groups)
    how = "stratified by class" if groups is None else f"{len(set(groups))} groups kept whole"
    return parts, f"{SPLIT_NOTE}80/10/10 with seed {rule.seed}, {how}"


def _keep_official(
    examples: Sequence[Example], labels: Sequence[int], *, card: TaskCard, rule: SplitRule
) -> tuple[dict[str, NDArray[np.int64]], str]:
    parts: dict[str, NDArray[np.int64]] = {}
    for split in (*SPLITS, None):
        rows = [row for row, example in enumerate(examples) if example.split == split]
        if rows and split is None:
            raise TaskError(
                f"task {card.name!r} has {len(rows)} rows without a split beside others with one (the first in "
                f"{examples[rows[0]].place}): give every row a split, or none."
            )
        if rows and split is not None:
            parts[split] = np.asarray(rows, dtype=np.int64)
    if "validation" in parts or "train" not in parts:
        return parts, "" if "test" in parts else "no test split"
    train = parts["train"]
    groups = _groups([examples[row] for row in train])
    # Numbered by train alone: a class that only test has would move the numbers, and with them the draw.
    _, codes = np.unique(np.asarray(labels, dtype=np.int64)[train], return_inverse=True)
    marked = hold_out(codes, share=rule.validation_fraction, seed=rule.seed, groups=groups)
    how = "stratified by class" if groups is None else "groups kept whole"
    note = f"{SPLIT_NOTE}{marked.sum()} of {len(train)} training rows to validation with seed {rule.seed}, {how}"
    return {"train": train[~marked], "validation": train[marked], "test": parts["test"]}, note


def _groups(examples: Sequence[Example]) -> list[str] | None:
    groups = [example.group for example in examples if example.group is not None]
    return groups if len(groups) == len(examples) else None


def _columns(examples: Sequence[Example], labels: Sequence[int], rows: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Gather rows column by column; `row` keeps their place in the source."""
    chosen = [examples[row] for row in rows]
    names = TEXT if len(chosen[0].texts) == 1 else PAIR
    columns: dict[str, list[Any]] = {name: [each.texts[i] for each in chosen] for i, name in enumerate(names)}
    columns["label"] = [labels[row] for row in rows]
    columns["row"] = rows.tolist()
    groups = _groups(chosen)
    return columns if groups is None else {**columns, "group": groups}
