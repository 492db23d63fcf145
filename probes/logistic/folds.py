"""Folds that keep every class on both sides."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from torch import Tensor

from extract.errors import HeadError


def stratified_folds(
    codes: Int[Tensor, " N"], *, n_folds: int, seed: int, groups: Sequence[object] | None = None
) -> Bool[Tensor, "F N"]:
    """Draw folds in which every class keeps its share; gives True for the training rows of a fold.

    Whole groups (documents, abstracts), which no fold may part, may leave a fold without a class, which is then never
    predicted there. See `check_folds` for what is refused.

    Example:
        >>> folds = stratified_folds(torch.tensor([0, 1, 0, 1]), n_folds=2, seed=0)
        >>> folds.sum(1).tolist(), bool((folds[0] ^ folds[1]).all())
        ([2, 2], True)
    """
    check_folds(codes, n_folds=n_folds, groups=groups)
    gold = codes.numpy()
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    split = kind(n_folds, shuffle=True, random_state=seed).split(np.zeros(len(gold)), gold, groups)
    folds = torch.zeros(n_folds, len(gold), dtype=torch.bool)
    for fold, (training, _) in enumerate(split):
        folds[fold, torch.from_numpy(training)] = True
    return folds


def check_folds(
    codes: Int[Tensor, " N"],
    *,
    n_folds: int,
    groups: Sequence[object] | None = None,
    class_names: Sequence[str] | None = None,
) -> None:
    """Refuse with a HeadError fewer than two folds, or more than a class has rows, or than there are groups."""
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
