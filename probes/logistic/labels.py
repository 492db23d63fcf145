"""Labels as class codes, and the folds that keep every class on both sides."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from torch import Tensor

from extract.errors import HeadError


@dataclass(frozen=True)
class EncodedLabels:
    """Labels as codes.

    Attributes:
        classes: The `K` labels in order.
        codes: `(N,)` int64 places in `classes`.
    """

    classes: tuple[Any, ...]
    codes: Int[Tensor, " N"]


def encode_labels(labels: Sequence[object], *, classes: Sequence[object] | None = None) -> EncodedLabels:
    """Turn labels into class codes.

    Args:
        labels: `N` texts, or whole numbers, never both.
        classes: The classes of the training split, for labels of another one; those of `labels`, sorted, by default.

    Returns:
        Classes and codes.

    Raises:
        HeadError: No label, labels of more than one type, or a label that is no class; names row and value.

    Example:
        >>> encoded = encode_labels(["no", "yes", "no"])
        >>> encoded.classes, encoded.codes.tolist()
        (('no', 'yes'), [0, 1, 0])
    """
    if len(labels) == 0:
        raise HeadError("the split is empty (0 labels); allowed: 1 or more. Check the split's name and its filters.")
    kind = str if isinstance(labels[0], str) else int
    for row, label in enumerate(labels):
        if type(label) is bool or not isinstance(label, str if kind is str else Integral):
            raise HeadError(
                f"label {label!r} of row {row} is of type {type(label).__name__}, where row 0 holds {labels[0]!r} of "
                f"type {type(labels[0]).__name__}; allowed: all texts, or all whole numbers. Convert the column."
            )
    plain: list[Any] = [kind(label) for label in labels]  # type: ignore[call-overload]
    known = tuple(sorted(set(plain)) if classes is None else classes)
    places = {label: code for code, label in enumerate(known)}
    for row, label in enumerate(plain):
        if label not in places:
            raise HeadError(
                f"label {label!r} of row {row} is none of the {len(known)} classes of the training split; "
                f"allowed: {', '.join(map(repr, known[:10]))}{', ...' if len(known) > 10 else ''}. Check the split."
            )
    return EncodedLabels(known, torch.tensor([places[label] for label in plain]))


def stratified_folds(
    codes: Int[Tensor, " N"], *, n_folds: int, seed: int, groups: Sequence[object] | None = None,
    class_names: Sequence[str] | None = None,
) -> Bool[Tensor, "F N"]:  # fmt: skip
    """Draw folds in which every class keeps its share.

    Args:
        codes: `(N,)` class codes.
        n_folds: Folds `F`, 2 or more.
        seed: Seed of the draw.
        groups: `N` names of groups (documents, abstracts) that no fold may part.
        class_names: Name of each code, for messages; the code itself by default.

    Returns:
        `(F, N)`: True for the training rows of a fold; the others are its validation rows.

    Raises:
        HeadError: Fewer than two folds, or a class with fewer rows than folds where rows stand alone; whole groups may
            leave a fold without a class, which is then never predicted there.

    Example:
        >>> folds = stratified_folds(torch.tensor([0, 1, 0, 1]), n_folds=2, seed=0)
        >>> folds.sum(1).tolist(), bool((folds[0] ^ folds[1]).all())
        ([2, 2], True)
    """
    check_folds(codes, n_folds=n_folds, groups=groups, class_names=class_names)
    gold = codes.numpy()
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    split = kind(n_folds, shuffle=True, random_state=seed).split(np.zeros(len(gold)), gold, groups)
    folds = torch.zeros(n_folds, len(gold), dtype=torch.bool)
    for fold, (training, _) in enumerate(split):
        folds[fold, torch.from_numpy(training)] = True
    return folds


def check_folds(
    codes: Int[Tensor, " N"], *, n_folds: int, groups: Sequence[object] | None = None,
    class_names: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Refuse folds that cannot be drawn.

    Args:
        codes: `(N,)` class codes.
        n_folds: Folds.
        groups: `N` names of groups that no fold may part.
        class_names: Name of each code, for messages; the code itself by default.

    Raises:
        HeadError: Fewer than two folds, a class with fewer rows than folds where rows stand alone, or fewer groups than
            folds; names it.
    """
    if n_folds < 2:
        raise HeadError(f"n_folds is {n_folds}; allowed: 2 or more. Use a validation split where one exists.")
    counts = torch.bincount(codes)
    if groups is not None:
        n_groups, largest = len(set(groups)), int(counts.max())
        if min(n_groups, largest) < n_folds:
            raise HeadError(
                f"{n_groups} groups with at most {largest} rows of one class cannot be cut into {n_folds} folds; "
                "allowed: at least one group, and one row of the largest class, per fold. Use fewer folds, or give a "
                "validation split."
            )
        return
    for code in ((counts > 0) & (counts < n_folds)).nonzero()[:1, 0].tolist():
        rows = "a single row" if counts[code] == 1 else f"{int(counts[code])} rows"
        name = code if class_names is None else repr(class_names[code])
        raise HeadError(
            f"class {name} has {rows} for {n_folds} folds; allowed: at least one row per fold. "
            "Merge or drop the class, use fewer folds, or give a validation split."
        )
