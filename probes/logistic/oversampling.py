"""SMOTE inside a training fold, on rows that are scaled or raw, through imbalanced-learn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import HeadError, unknown_name
from probes.logistic.checks import check_codes, check_finite
from probes.logistic.design import standardise_rows
from probes.logistic.options import SolverOptions
from probes.logistic.result import LogisticFit
from probes.logistic.solver import fit_logistic

MODES = {
    "balance": "every class gets as many rows as the largest",
    "times-5": "every class gets five times its rows, so the shares stay (look-both-ways' released code)",
}
NEIGHBOURS = 5
FACTOR = 5


@dataclass(frozen=True)
class Oversampled:
    """The rows of a training fold with synthetic ones after them.

    Attributes:
        latents: Centred rows, scaled where that was asked for, the given ones first.
        codes: Class codes.
        mean: Float64 mean of the given rows, already taken off.
        scale: Float64 standard deviation of the given rows, already divided by; 1 where nothing was scaled.
    """

    latents: Float[Tensor, "L M D"]
    codes: Int[Tensor, " M"]
    mean: Float[Tensor, "L D"]
    scale: Float[Tensor, "L D"]


def oversample(
    latents: Float[Tensor, "L N D"],
    codes: Int[Tensor, " N"],
    *,
    mode: str,
    seed: int,
    is_standardised: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Oversampled:
    """Standardise the rows of a training fold and add synthetic ones (SMOTE, Chawla et al., 2002).

    Every layer has neighbours of its own; a class draws from `min(5, rows - 1)` of them, and under `times-5` every
    class from as many as the smallest can. Fit on the result with
    `SolverOptions(is_standardised=False)` and take the fit back to raw latents with `LogisticFit.before(mean, scale)`.

    Args:
        latents: Latents of the training rows of one fold, and of no others.
        codes: Class codes.
        mode: A name from `MODES`.
        seed: Seed of the draws.
        is_standardised: Whether rows are scaled before neighbours are looked for. The mean is taken off anyway: it
            moves no neighbour, and with a free intercept no prediction.
        dtype: Of the rows given back.

    Raises:
        UnknownNameError: Unknown mode.
        HeadError: imbalanced-learn is missing, or rows that no probe can be fitted on.
    """
    if mode not in MODES:
        raise unknown_name("oversampling mode", mode, MODES)
    everything = torch.ones(1, len(codes), dtype=torch.bool)
    check_codes(codes, n_classes=int(codes.max()) + 1 if len(codes) else 0, folds=everything)
    check_finite(latents, rows=everything[0], first_layer=0)
    wanted = plan_growth(codes, mode)
    gold, layers, moments = codes.numpy(), [], []
    for layer in latents:
        x = layer.to(torch.float64, copy=True)
        moments.append(standardise_rows(x, x.new_ones(len(x)), is_standardised=is_standardised))
        layers.append(_grown(x.to(dtype).numpy(), gold, wanted, seed=seed))
    added = [codes.new_full((extra,), code) for code, (_, extra, _) in wanted.items()]
    return Oversampled(
        latents=torch.from_numpy(np.stack(layers)),
        codes=torch.cat([codes, *added]),
        mean=torch.stack([mean for mean, _ in moments]),
        scale=torch.stack([scale for _, scale in moments]),
    )


def fit_oversampled(
    latents: Float[Tensor, "L N D"],
    codes: Int[Tensor, " N"],
    *,
    Cs: Sequence[float],
    mode: str,
    seed: int,
    n_classes: int,
    options: SolverOptions,
) -> LogisticFit:
    """Fit probes of raw latents on rows that are oversampled first, and scaled before that where the options say so."""
    more = oversample(
        latents, codes, mode=mode, seed=seed, is_standardised=options.is_standardised, dtype=options.dtype
    )
    scaled = replace(options, is_standardised=False)
    fit = fit_logistic(more.latents, more.codes, Cs=Cs, n_classes=n_classes, options=scaled)
    return fit.before(more.mean, more.scale)


def describe_oversampling(codes: Int[Tensor, " N"], *, mode: str, class_names: Sequence[str]) -> dict[str, Any]:
    """Describe what `oversample` does to the rows of some classes, without doing it.

    Returns:
        Plain values: `mode`, `n_rows` and `n_synthetic` over all classes, `clipped` (class to its neighbours, where it
        has fewer than SMOTE's 5) and `duplicated` (classes of one row, which is repeated).
    """
    wanted = plan_growth(codes, mode)
    return {
        "mode": mode,
        "n_rows": len(codes),
        "n_synthetic": sum(extra for _, extra, _ in wanted.values()),
        "clipped": {class_names[code]: k for code, (_, _, k) in wanted.items() if 0 < k < NEIGHBOURS},
        "duplicated": [class_names[code] for code, (_, _, k) in wanted.items() if k == 0],
    }


def plan_growth(codes: Int[Tensor, " N"], mode: str) -> dict[int, tuple[int, int, int]]:
    """Count rows, new rows and neighbours (none where a row is repeated) of each class that gets new rows.

    `times-5` has one number of neighbours for all classes, as released: those of the smallest that has any.
    """
    counts = {code: int(n) for code, n in enumerate(torch.bincount(codes)) if n > 0}
    largest = max(counts.values())
    extra = {code: largest - n if mode == "balance" else (FACTOR - 1) * n for code, n in counts.items()}
    fewest = min((n for n in counts.values() if n > 1), default=1)
    most = NEIGHBOURS if mode == "balance" else min(NEIGHBOURS, fewest - 1)
    return {code: (n, extra[code], min(most, n - 1)) for code, n in counts.items() if extra[code]}


def _grown(
    x: NDArray[np.floating], gold: NDArray[np.int64], wanted: dict[int, tuple[int, int, int]], *, seed: int
) -> NDArray[np.floating]:
    """Put the new rows of each class after the given ones."""
    parts = [x]
    for code, (n_rows, n_extra, n_neighbours) in wanted.items():
        if n_neighbours == 0:
            parts.append(np.repeat(x[gold == code], n_extra, axis=0))
            continue
        # One class at a time, for each has its own number of neighbours; the others only fill the second label.
        sampler = _smote({1: n_rows + n_extra}, n_neighbours, seed=seed + code)
        grown, _ = sampler.fit_resample(x, (gold == code).astype(np.int64))
        parts.append(grown[len(x) :].astype(x.dtype))
    return np.concatenate(parts)


def _smote(strategy: dict[int, int], n_neighbours: int, *, seed: int) -> Any:
    try:
        over_sampling = import_module("imblearn.over_sampling")
    except ImportError as error:
        raise HeadError(
            f"oversampling needs imbalanced-learn, which cannot be imported ({error}); allowed: an environment that "
            "has it. Run: pip install imbalanced-learn."
        ) from error
    return over_sampling.SMOTE(sampling_strategy=strategy, k_neighbors=n_neighbours, random_state=seed)
