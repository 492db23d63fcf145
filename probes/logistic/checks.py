"""What a logistic probe cannot be fitted on, each with a sentence that says so."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extract.errors import HeadError


def check_strengths(Cs: Sequence[float]) -> None:
    """Refuse with a HeadError an empty list of C, or a C that is no number above 0."""
    if len(Cs) == 0:
        raise HeadError("the list of C is empty; allowed: one C or more, each above 0. Try Cs=(0.01, 0.1, 1, 10, 100).")
    for value in Cs:
        if not (math.isfinite(value) and value > 0):
            raise HeadError(f"C is {value!r}; allowed: finite numbers above 0. A strong penalty is a small C, as 0.01.")


def check_codes(codes: Int[Tensor, " N"], *, n_classes: int, folds: Bool[Tensor, "F N"]) -> None:
    """Refuse with a HeadError codes of classes `0 .. K - 1` on which no probe can be fitted in every fold."""
    for fold, rows in enumerate(folds):
        where = "the training split" if len(folds) == 1 else f"the training split of fold {fold}"
        n_rows = int(rows.sum())
        if n_rows == 0:
            raise HeadError(f"{where} is empty (0 rows); allowed: rows of at least 2 classes. Check split and weights.")
        used = codes[rows]
        low, high = int(used.min()), int(used.max())
        if low < 0 or high >= n_classes:
            wrong = low if low < 0 else high
            raise HeadError(
                f"label code {wrong} is in {where}; allowed: 0 to {n_classes - 1}. Number the classes from 0."
            )
        n_present = len(torch.unique(used))
        if n_present < 2:
            raise HeadError(
                f"{where} holds one class only (code {high}, {n_rows} rows); allowed: at least 2 classes. "
                "Check the split, or leave this task out."
            )
        if n_classes > n_rows:
            raise HeadError(
                f"{where} holds {n_rows} rows for {n_classes} classes; allowed: at least as many rows as classes. "
                "Give more rows, or merge rare classes."
            )


def check_finite(
    latents: Float[Tensor, "L N D"], *, rows: Bool[Tensor, " N"], first_layer: int, where: str = ""
) -> None:
    """Refuse with a HeadError NaN and infinite features in rows that count; `where` begins the message."""
    # A sum is finite if and only if no term is NaN or infinite, short of an overflow that the second look sorts out.
    if bool(torch.isfinite(latents.sum(-1, dtype=torch.float64)[:, rows]).all()):
        return
    is_bad = ~torch.isfinite(latents) & rows[:, None].to(latents.device)
    for layer, row, dimension in is_bad.nonzero()[:1].tolist():
        raise HeadError(
            f"{where}layer {first_layer + layer}, row {row} holds {float(latents[layer, row, dimension])} in dimension "
            f"{dimension}; allowed: finite features. Extract that row again, or leave it out."
        )


def check_weights(weights: Float[Tensor, "F N"]) -> None:
    """Refuse with a HeadError weights (0 leaves a row out of a fold) that are negative or not finite."""
    is_bad = ~(torch.isfinite(weights) & (weights >= 0))
    for fold, row in is_bad.nonzero()[:1].tolist():
        raise HeadError(
            f"the weight of row {row} in fold {fold} is {float(weights[fold, row])}; allowed: finite numbers, 0 or "
            "more. A weight of 0 leaves the row out."
        )
