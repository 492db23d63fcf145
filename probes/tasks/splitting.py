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
    """Count the classes of fewer than 3 rows, which are too small to be split three ways."""
    return {label: n for label, n in sorted(Counter(labels).items()) if n < MIN_CLASS_ROWS}


def split_three_ways(
    labels: Int[np.ndarray, " N"], *, seed: int, groups: Sequence[str] | None = None
) -> dict[str, NDArray[np.int64]]:
    """Draw 80/10/10: stratified by class, or with whole groups and classes as even as groups allow.

    Stratified parts are drawn class by class, at least one row of each to every part: scikit-learn's own stratified
    split rejects classes of fewer than ten rows when it is applied twice. Without groups each class needs 3 rows, with
    them there must be 10 groups and a class of 10 rows. Row numbers come in rising order.
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
    """Mark a validation part of training rows, stratified by class or in whole groups.

    The share is above 0 and at most 0.5; a class with a single row stays in training.
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
    """Mark a validation part of training rows that have no classes; neither part may be empty."""
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

    A longer beginning holds every shorter one.
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
