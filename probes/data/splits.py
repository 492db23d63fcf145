"""Splits: their names, their files, and the draw of those that a dataset lacks."""

import re
import warnings
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from extract.errors import TaskError, looked_in, require_name, unknown_name

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SPLIT_ALIASES: dict[str, Split] = {"dev": "validation", "valid": "validation", "val": "validation"}
_FILE_MARKS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("dev", "devel", "development", "val", "valid", "validation", "testa"),
    "test": ("test", "testing", "testb"),
}
"""Parts of a file name that name its split; a part is a run of letters, without `set` at its end."""
Table = TypeVar("Table")


def order_splits(splits: Mapping[str, object]) -> list[str]:
    """Order split names: train, validation, test, then any other."""
    return [*(split for split in SPLITS if split in splits), *(split for split in splits if split not in SPLITS)]


def canonical_split(value: object) -> Split | None:
    """Map the name of a split, or an alias such as `dev`, to train, validation or test; None for any other name."""
    name = str(value).strip().lower()
    return next((split for split in SPLITS if split == SPLIT_ALIASES.get(name, name)), None)


def name_splits(
    tables: Mapping[str, Table], source: str, splits: Mapping[str, str] | None = None, *, hint: str = ""
) -> dict[str, Table]:
    """Name the splits of a repository as train, validation and test.

    `splits` maps a split to its name in the repository; None takes the usual names, `validation` before an alias such
    as `dev`, and leaves other splits out. `hint` is advice where no split has a usual name, or several have one, as the
    end of a sentence.
    """
    if splits is None:
        usual: dict[str, list[str]] = {}
        for name in tables:
            if split := canonical_split(name):
                usual.setdefault(split, []).append(name)
        if not usual:
            raise TaskError(
                f"{source} has no split named train, validation or test; its splits: {', '.join(tables)}{hint}."
            )
        for wanted, alike in usual.items():
            if len(alike) > 1 and wanted not in alike:
                advice = hint or "; give local files, one for each split"
                raise TaskError(f"{source} has more than one {wanted} split, {' and '.join(alike)}{advice}.")
        return {wanted: tables[wanted if wanted in alike else alike[0]] for wanted, alike in usual.items()}
    if not isinstance(splits, Mapping) or not splits:
        raise TaskError(f"`splits` is {splits!r}, but a mapping is needed, such as {{train: train, test: unseen}}.")
    for name in splits.values():
        require_name("split", name, tables, hint=f"These are the splits of {source}.")
    names = by_split(splits, option="splits", noun="its name in the repository")
    return {split: tables[name] for split, name in names.items()}


def by_split(values: Mapping[str, Table], *, option: str, noun: str) -> dict[str, Table]:
    """Replace aliases such as `dev` in an option that maps splits to a `noun`; rejects two keys for one split."""
    named: dict[str, Table] = {}
    for key, value in values.items():
        split = canonical_split(key)
        if split is None:
            raise unknown_name("split", key, SPLITS, hint=f"`{option}` maps a split to {noun}.")
        if split in named:
            raise TaskError(f"`{option}` names the {split} split twice ({named[split]} and {value}): leave one out.")
        named[split] = value
    return named


def files_by_split(files: Mapping[str, str | Path]) -> dict[str, Path]:
    """Read an option that maps each split, or an alias such as `dev`, to its file; at least one."""
    if not files:
        raise TaskError(f"`files` names no file: give at least one of {', '.join(SPLITS)}.")
    paths = by_split(files, option="files", noun="its file")
    return {split: Path(path).expanduser() for split, path in paths.items()}


def find_split_files(folder: Path) -> dict[str, Path]:
    """Find one file per split in a folder, by train, dev, valid or test (testa, testb) as a part of their names.

    Rejects a folder in which no file, or more than one, fits a split, or a file fits two.
    """
    if not folder.is_dir():
        problem = "is a file" if folder.is_file() else "does not exist"
        raise TaskError(
            f"{folder} {problem}: give `files` as a folder, or map each of {', '.join(SPLITS)} to its "
            f"file{looked_in(folder)}."
        )
    paths: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = None if path.name.startswith(".") or not path.is_file() else _split_of(path)
        if split is None:
            continue
        if split in paths:
            raise TaskError(
                f"{folder} has two files for the {split} split, {paths[split].name} and {path.name}: map each split to "
                "its file with `files`."
            )
        paths[split] = path
    if not paths:
        raise TaskError(
            f"{folder} has no file with train, dev, valid or test in its name: map each split to its file with `files`."
        )
    return {split: paths[split] for split in order_splits(paths)}


def _split_of(path: Path) -> Split | None:
    parts = [part.removesuffix("set") for part in re.split("[^a-z]+", path.name.lower())]
    splits = [split for split, marks in _FILE_MARKS.items() if any(part in marks for part in parts)]
    if len(splits) > 1:
        either = f"the {splits[0]} or the {splits[1]} split"
        raise TaskError(f"{path} may be {either} by its name: map each split to its file with `files`.")
    return splits[0] if splits else None


MIN_CLASS_ROWS = 3
"""A class with fewer rows cannot be in train, validation and test."""
SPLIT_NOTE = "splits drawn: "
"""Start of a note about splits that are not official."""
N_FOLDS = 10
"""Groups are cut into ten parts: eight to train, one each to validation and test."""
MOST_FOLDS = 20
"""Folds of groups, of three each, of which as many are held out as come nearest to a share; more for a smaller one."""
RARE, SPLIT = ("error", "drop"), ("auto", "given")


@dataclass(frozen=True)
class SplitRule:
    """The draw of splits that the source lacks."""

    seed: int = 0
    """Seed of the draw."""
    validation_fraction: float = 0.1
    """Part of the training rows that becomes validation when there is a test split and no validation split."""
    rare: str = "error"
    """Classes of fewer than 3 rows, when all splits are drawn: `error` or `drop`."""
    split: str | None = "auto"
    """`auto` draws, `given` leaves the splits as they are in the source; None is `auto` where there are none."""

    def __post_init__(self) -> None:
        for name, allowed in (("rare", RARE), ("split", (*SPLIT, None))):
            if getattr(self, name) not in allowed:
                raise TaskError(
                    f"`{name}` is {getattr(self, name)!r}, but one of {', '.join(filter(None, allowed))} is needed."
                )
        if not 0 < self.validation_fraction <= 0.5:
            raise TaskError(
                f"`validation_fraction` is {self.validation_fraction:g}, but a number above 0 and at most 0.5 is "
                "needed."
            )


def draw_missing(
    splits: Sequence[str | None], keys: Sequence[Hashable], rule: SplitRule, *, task: str, fewest: int = 1
) -> tuple[dict[str, NDArray[np.int64]], str]:
    """Return the rows of each split, in their order, with a note if splits were missing and drawn.

    Rows without a split, or in train alone, are drawn 80/10/10; with train and test, validation is drawn from train.
    Rows of equal keys never end up in two drawn splits, which have `fewest` rows or more.
    """
    named, parts = set(splits), rows_by_split(splits)
    is_auto = rule.split == "auto" or (rule.split is None and named == {None})
    draws_all = named <= {None, "train"}
    if not is_auto or not (draws_all or named == {"train", "test"}):
        if None in named:
            raise TaskError(f"task {task!r} has rows without a split: name their column, or set `split: auto`.")
        return parts, ""
    share = 1 / N_FOLDS if draws_all else rule.validation_fraction
    source = np.arange(len(splits)) if draws_all else parts["train"]
    groups = shuffle_groups(source, keys, rule.seed)
    n_groups, n_held = len(groups), max(fewest, round(len(source) * share))
    for split in ("test", "validation") if draws_all else ("validation",):
        parts[split] = take_groups(groups, n_held)
    parts["train"] = take_groups(groups, len(source))
    if min(map(len, parts.values())) < fewest:
        raise TaskError(
            f"task {task!r} has {len(source)} rows, {n_groups} of them different, too few to draw splits of at "
            f"least {fewest} rows each: add rows, or give files that are split already."
        )
    parts = {split: parts[split] for split in SPLITS if split in parts}
    counted = ", ".join(f"{len(rows)} {split}" for split, rows in parts.items())
    return parts, f"{SPLIT_NOTE}{counted} with seed {rule.seed}"


def rows_by_split(splits: Sequence[str | None]) -> dict[str, NDArray[np.int64]]:
    """Return the rows of train, validation and test, of those that have some."""
    return {split: np.flatnonzero([name == split for name in splits]) for split in SPLITS if split in set(splits)}


def shuffle_groups(rows: NDArray[np.int64], keys: Sequence[Hashable], seed: int) -> list[list[int]]:
    """Gather the rows of each key, and shuffle these groups."""
    groups: dict[Hashable, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(keys[row], []).append(row)
    of_key = list(groups.values())
    return [of_key[k] for k in np.random.default_rng(seed).permutation(len(of_key))]


def take_groups(groups: list[list[int]], n_rows: float | int) -> NDArray[np.int64]:
    """Take groups off the end of a list until they have that many rows, which come in rising order."""
    taken: list[int] = []
    while groups and len(taken) < n_rows:
        taken += groups.pop()
    return np.sort(np.array(taken, dtype=np.int64))


def rare_classes(labels: Sequence[int], copies: Sequence[str] | None = None) -> dict[int, int]:
    """Count the classes of fewer than 3 rows, copies counted once, which are too small to be split three ways."""
    firsts, _ = _firsts(copies, len(labels))
    counts = Counter(dict.fromkeys(labels, 0))
    counts.update(labels[row] for row in firsts)
    return {label: n for label, n in sorted(counts.items()) if n < MIN_CLASS_ROWS}


def split_three_ways(
    labels: Int[np.ndarray, " N"],
    *,
    seed: int,
    groups: Sequence[str] | None = None,
    copies: Sequence[str] | None = None,
) -> dict[str, NDArray[np.int64]]:
    """Draw 80/10/10: stratified by class, or with whole groups and classes as even as groups allow.

    Without groups, rows of one name in `copies` stay together, and count as one row of the class of the first.
    Stratified parts are drawn class by class, at least one row of each to every part: scikit-learn's own stratified
    split rejects classes of fewer than ten rows when it is applied twice. Without groups each class needs 3 rows, with
    them there must be 10 groups and a class of 10 rows. Row numbers come in rising order.
    """
    if groups is not None:
        folds = _group_folds(labels, groups, n_folds=N_FOLDS, seed=seed)
        test, validation = folds == 0, folds == 1
    else:
        firsts, copy_of = _firsts(copies, len(labels))
        parts = np.zeros((2, len(firsts)), dtype=bool)
        for rows in _shuffled_classes(labels[firsts], seed):
            n_part = max(1, round(len(rows) / N_FOLDS))
            parts[0, rows[:n_part]] = True
            parts[1, rows[n_part : 2 * n_part]] = True
        test, validation = parts[:, copy_of]
    marks = {"train": ~(test | validation), "validation": validation, "test": test}
    return {split: np.flatnonzero(mark) for split, mark in marks.items()}


def hold_out(
    labels: Int[np.ndarray, " N"],
    *,
    share: float,
    seed: int,
    groups: Sequence[str] | None = None,
    copies: Sequence[str] | None = None,
) -> Bool[np.ndarray, " N"]:
    """Mark a validation part of training rows, stratified by class or in whole groups; copies as in `split_three_ways`.

    The share is above 0 and at most 0.5; a class with a single row stays in training.
    """
    if not 0 < share <= 0.5:
        raise TaskError(f"the validation share is {share:g}, but a number above 0 and at most 0.5 is needed.")
    if groups is not None:
        n_possible = min(MOST_FOLDS, len(set(groups)) // 3, max(Counter(labels.tolist()).values(), default=0))
        part = Fraction(share).limit_denominator(max(n_possible, round(1 / share)))
        return np.asarray(_group_folds(labels, groups, n_folds=part.denominator, seed=seed) < part.numerator)
    firsts, copy_of = _firsts(copies, len(labels))
    marked = np.zeros(len(firsts), dtype=bool)
    for rows in _shuffled_classes(labels[firsts], seed):
        if len(rows) > 1:
            marked[rows[: max(1, round(share * len(rows)))]] = True
    return np.asarray(marked[copy_of])


def _firsts(copies: Sequence[str] | None, n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of every set of copies, in row order, and the set of each row."""
    numbers: dict[Hashable, int] = {}
    copy_of = np.array([numbers.setdefault(name, len(numbers)) for name in copies or range(n_rows)], dtype=np.int64)
    return np.unique(copy_of, return_index=True)[1], copy_of


def hold_out_any(
    n_rows: int, *, fraction: float, seed: int, copies: Sequence[str] | None = None
) -> Bool[np.ndarray, " N"]:
    """Mark a validation part of training rows that have no classes, copies whole; neither part may be empty."""
    n_held = round(n_rows * fraction)
    if not 0 < n_held < n_rows:
        raise TaskError(
            f"`validation_fraction` is {fraction:g}, which holds out {n_held} of {n_rows} sentences: choose a share "
            "between 0 and 1 that leaves both splits some."
        )
    groups = shuffle_groups(np.arange(n_rows), copies or range(n_rows), seed)
    marked = np.zeros(n_rows, dtype=bool)
    marked[take_groups(groups[::-1], n_held)] = True
    if marked.all():
        raise TaskError(
            f"{n_rows} training sentences, {len(groups)} of them different, are too few to hold some out for "
            "validation: add sentences, or give a validation split."
        )
    return marked


def draw_order(labels: Int[np.ndarray, " N"], *, seed: int) -> Int[np.ndarray, " N"]:
    """Order rows so that the first n, for every n, are a stratified draw, one row of each class first."""
    position = np.empty(len(labels))
    for rows in _shuffled_classes(labels, seed):
        position[rows] = np.arange(len(rows)) / len(rows)
    ties = np.random.default_rng([seed, len(labels)]).random(len(labels))
    return np.asarray(np.lexsort((ties, position)))


def _shuffled_classes(labels: NDArray[np.integer], seed: int) -> list[NDArray[np.int64]]:
    """Shuffle the row numbers of each class, independently of the other classes."""
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
        # the task's notes name the classes that are absent from a fold
        warnings.filterwarnings("ignore", message="The least populated class")
        cut = StratifiedGroupKFold(n_folds, shuffle=True, random_state=seed).split(labels, labels, groups)
        for number, (_, rows) in enumerate(cut):
            folds[rows] = number
    return folds
