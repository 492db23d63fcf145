"""Draws of splits that a dataset lacks: stratified by class, or by group where rows belong together."""

import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from extract.errors import TaskError

MIN_CLASS_ROWS = 3
"""A class with fewer rows cannot be in train, validation and test."""
SPLIT_NOTE = "splits drawn: "
"""Start of a note about splits that are not official."""
N_FOLDS = 10
"""Groups are cut into ten parts: eight to train, one each to validation and test."""


def rare_classes(labels: Sequence[int]) -> dict[int, int]:
    """Count the classes that are too small to be split three ways.

    Args:
        labels: One class per row.

    Returns:
        Class to its number of rows, for classes with fewer than 3.

    Example:
        >>> rare_classes([0, 0, 0, 1, 1])
        {1: 2}
    """
    return {label: n for label, n in sorted(Counter(labels).items()) if n < MIN_CLASS_ROWS}


def split_three_ways(
    labels: Int[np.ndarray, " N"], *, seed: int, groups: Sequence[str] | None = None
) -> dict[str, NDArray[np.int64]]:
    """Draw 80/10/10: stratified by class, or with whole groups and classes as even as groups allow.

    Stratified parts are drawn class by class, at least one row of each to every part: scikit-learn's own stratified
    split rejects classes of fewer than ten rows when it is applied twice.

    Args:
        labels: `(N,)` classes; without groups each class has at least 3 rows.
        seed: Seed of the draw.
        groups: One name per row: rows of one name stay together.

    Returns:
        `train`, `validation` and `test`, each with its row numbers in rising order.

    Raises:
        TaskError: If there are fewer than 10 groups, or no class has 10 rows.

    Example:
        >>> parts = split_three_ways(np.repeat([0, 1], 50), seed=0)
        >>> {split: len(rows) for split, rows in parts.items()}
        {'train': 80, 'validation': 10, 'test': 10}
    """
    if groups is not None:
        folds = _group_folds(labels, groups, n_folds=N_FOLDS, seed=seed)
        test, validation = folds == 0, folds == 1
    else:
        test, validation = np.zeros((2, len(labels)), dtype=bool)
        for rows in _shuffled_classes(labels, seed):
            n_part = max(1, round(len(rows) / N_FOLDS))
            test[rows[:n_part]] = True
            validation[rows[n_part : 2 * n_part]] = True
    marks = {"train": ~(test | validation), "validation": validation, "test": test}
    return {split: np.flatnonzero(mark) for split, mark in marks.items()}


def hold_out(
    labels: Int[np.ndarray, " N"], *, share: float, seed: int, groups: Sequence[str] | None = None
) -> Bool[np.ndarray, " N"]:
    """Mark a validation part of training rows.

    Args:
        labels: `(N,)` classes of the training rows.
        share: Part of the rows to mark, above 0 and at most 0.5.
        seed: Seed of the draw.
        groups: One name per row: rows of one name stay together.

    Returns:
        `(N,)` True for validation; a class with a single row stays in training.

    Raises:
        TaskError: If the share is out of range, or there are too few groups for it.

    Example:
        >>> int(hold_out(np.repeat([0, 1], 50), share=0.2, seed=0).sum())
        20
    """
    if not 0 < share <= 0.5:
        raise TaskError(f"the validation share is {share:g}, but a number above 0 and at most 0.5 is needed.")
    if groups is not None:
        return np.asarray(_group_folds(labels, groups, n_folds=round(1 / share), seed=seed) == 0)
    marked = np.zeros(len(labels), dtype=bool)
    for rows in _shuffled_classes(labels, seed):
        if len(rows) > 1:
            marked[rows[: max(1, round(share * len(rows)))]] = True
    return marked


def hold_out_any(n_rows: int, *, fraction: float, seed: int) -> Bool[np.ndarray, " N"]:
    """Mark a validation part of training rows that have no classes.

    Args:
        n_rows: Number of training rows.
        fraction: Part of the rows to mark.
        seed: Seed of the draw.

    Returns:
        `(N,)` True for validation.

    Raises:
        TaskError: Validation or training would be empty.
    """
    n_held = round(n_rows * fraction)
    if not 0 < n_held < n_rows:
        raise TaskError(
            f"`validation_fraction` is {fraction:g}, which holds out {n_held} of {n_rows} sentences: choose a share "
            "between 0 and 1 that leaves both splits some."
        )
    marked = np.zeros(n_rows, dtype=bool)
    marked[np.random.default_rng(seed).permutation(n_rows)[:n_held]] = True
    return marked


def draw_order(labels: Int[np.ndarray, " N"], *, seed: int) -> Int[np.ndarray, " N"]:
    """Order rows so that every beginning of the order is a stratified draw, one row of each class first.

    Args:
        labels: `(N,)` classes.
        seed: Seed of the draw.

    Returns:
        `(N,)` row numbers; a longer beginning holds every shorter one.

    Example:
        >>> labels = np.repeat([0, 1, 2], [70, 20, 10])
        >>> np.bincount(labels[draw_order(labels, seed=0)[:10]]).tolist()
        [7, 2, 1]
    """
    place = np.empty(len(labels))
    for rows in _shuffled_classes(labels, seed):
        place[rows] = np.arange(len(rows)) / len(rows)
    ties = np.random.default_rng([seed, len(labels)]).random(len(labels))
    return np.asarray(np.lexsort((ties, place)))


def _shuffled_classes(labels: NDArray[np.integer], seed: int) -> list[NDArray[np.int64]]:
    """Row numbers of each class in a random order that does not depend on the other classes."""
    return [
        np.random.default_rng([seed, int(label)]).permutation(np.flatnonzero(labels == label))
        for label in np.unique(labels)
    ]


def _group_folds(labels: NDArray[np.integer], groups: Sequence[str], *, n_folds: int, seed: int) -> NDArray[np.int64]:
    from sklearn.model_selection import StratifiedGroupKFold

    n_groups = len(set(groups))
    largest = max(Counter(labels.tolist()).values(), default=0)
    if n_groups < n_folds or largest < n_folds:
        raise TaskError(
            f"{n_groups} groups with at most {largest} rows of one class cannot be cut into {n_folds} parts: give at "
            f"least {n_folds} groups and rows, or files that are split already."
        )
    folds = np.zeros(len(labels), dtype=np.int64)
    with warnings.catch_warnings():
        # A class with fewer rows than folds is absent from some; the task's notes say which.
        warnings.filterwarnings("ignore", message="The least populated class")
        cut = StratifiedGroupKFold(n_folds, shuffle=True, random_state=seed).split(labels, labels, groups)
        for number, (_, rows) in enumerate(cut):
            folds[rows] = number
    return folds
