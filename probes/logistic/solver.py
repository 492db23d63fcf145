"""Multinomial L2 logistic regression of every layer, C and fold at once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extract.errors import HeadError
from probes.logistic.checks import check_codes, check_finite, check_strengths, check_weights
from probes.logistic.design import Designs, Targets, build_design, standardise_rows
from probes.logistic.options import SolverOptions
from probes.logistic.path import follow_path
from probes.logistic.result import ConvergenceReport, LogisticFit

DEFAULT = SolverOptions()


@dataclass(frozen=True)
class Rows:
    """Class codes of all rows, float64 weights of each fold, and the number of classes."""

    codes: Int[Tensor, " N"]
    weights: Float[Tensor, "F N"]
    n_classes: int

    @property
    def n_padded(self) -> int:
        """Rows of the largest fold."""
        return int((self.weights > 0).sum(1).max())


def fit_logistic(
    latents: Float[Tensor, "_ _ D"] | Iterable[Float[Tensor, "_ _ D"]],
    labels: Int[Tensor, " N"],
    *,
    Cs: Sequence[float],
    weights: Tensor | None = None,
    n_classes: int | None = None,
    options: SolverOptions = DEFAULT,
) -> LogisticFit:
    """Fit a logistic probe for every layer, C and fold.

    The objective is scikit-learn's: `C * summed log-loss + 0.5 * squared weights`, the intercept free, on features
    standardised by the training rows of the fold; two classes are one sigmoid. Layers and folds are solved together,
    from the strongest penalty to the weakest, each from the solution before. A HeadError names what cannot be fitted.

    Args:
        latents: `(L, N, D)` latents, or chunks of layers, bottom up, so that not all need to be in memory.
        labels: Class codes `0 .. K - 1`.
        Cs: Inverse strengths of the penalty, in any order.
        weights: `(F, N)` sample weights, or booleans, one row per fold; a row of weight 0 is not of the fold. One fold
            of all rows by default.
        n_classes: Classes `K`; the largest code + 1 by default.
        options: Tolerances, precision, device and memory.

    Example:
        >>> latents = torch.tensor([[[0.0], [1.0], [2.0], [3.0]]])
        >>> fit = fit_logistic(latents, torch.tensor([0, 0, 1, 1]), Cs=[1.0, 100.0])
        >>> fit.logits(latents).argmax(-1)[0, 0].tolist()
        [0, 0, 1, 1]
    """
    check_strengths(Cs)
    rows = _rows(labels, weights, n_classes)
    solved: list[list[Tensor]] = []
    n_layers = 0
    for chunk in [latents] if isinstance(latents, Tensor) else latents:
        if chunk.shape[1] != len(labels):
            raise HeadError(
                f"latents have {chunk.shape[1]} rows for {len(labels)} labels; allowed: one label per row. "
                "Check that both come from the same split."
            )
        check_finite(chunk, rows=(rows.weights > 0).any(0), first_layer=n_layers)
        for designs, *moments in _batches(chunk, rows, options):
            solved.append([*moments, *follow_path(designs, Cs=Cs, options=options)])
        n_layers += len(chunk)
    if not n_layers:
        raise HeadError("there are 0 layers of latents; allowed: 1 or more. Check the layers that were asked for.")
    return _collect(solved, n_layers=n_layers, Cs=Cs, options=options)


def _rows(labels: Tensor, weights: Tensor | None, n_classes: int | None) -> Rows:
    codes = labels.cpu().long()
    folds = torch.ones(1, len(codes)) if weights is None else weights.cpu()
    if folds.ndim != 2 or folds.shape[1] != len(codes):
        raise HeadError(
            f"weights have shape {tuple(folds.shape)}; allowed: (folds, {len(codes)}). Give one row per fold."
        )
    folds = folds.double()
    check_weights(folds)
    n_classes = n_classes if n_classes is not None else int(codes.max()) + 1 if len(codes) else 0
    check_codes(codes, n_classes=n_classes, folds=folds > 0)
    return Rows(codes, folds, n_classes)


def _batches(chunk: Tensor, rows: Rows, options: SolverOptions) -> Iterator[tuple[Designs, Tensor, Tensor]]:
    """Build the designs of a chunk of layers, as many at a time as the memory allows, with their means and scales."""
    n_outputs = 1 if rows.n_classes == 2 else rows.n_classes
    n_padded, width = rows.n_padded, chunk.shape[2]
    n_columns = min(n_padded, width) + 1
    # Rows, logits thrice, and per iteration of the history a step and a change.
    n_numbers = n_padded * (n_columns + 3 * n_outputs) + n_columns * n_outputs * (2 * options.history + 6)
    n_together = max(1, options.chunk_bytes // (n_numbers * options.dtype.itemsize))
    pairs = [(layer, fold) for layer in range(len(chunk)) for fold in range(len(rows.weights))]
    for start in range(0, len(pairs), n_together):
        yield _designs(chunk, rows, pairs[start : start + n_together], options)


@torch.no_grad()
def _designs(
    chunk: Tensor, rows: Rows, pairs: list[tuple[int, int]], options: SolverOptions
) -> tuple[Designs, Tensor, Tensor]:
    device, n_padded = torch.device(options.device), rows.n_padded
    built, moments, codes, weights = [], [], [], []
    for layer, fold in pairs:
        is_used = rows.weights[fold] > 0
        weight = rows.weights[fold, is_used].to(device)
        x = chunk[layer][is_used.to(chunk.device)].to(device, torch.float64)
        moments.append(standardise_rows(x, weight, is_standardised=options.is_standardised))
        built.append(build_design(x, weight, n_padded=n_padded, dtype=options.dtype))
        filling = (0, n_padded - len(x))
        codes.append(torch.nn.functional.pad(rows.codes[is_used].to(device), filling))
        weights.append(torch.nn.functional.pad(weight, filling))
    features, energy, rotation = (torch.stack(parts) for parts in zip(*built, strict=True))
    targets = _targets(torch.stack(codes), torch.stack(weights).to(options.dtype), rows.n_classes)
    total = torch.stack(weights).sum(1)
    mean, scale = (torch.stack(parts).cpu() for parts in zip(*moments, strict=True))
    return Designs(features, energy, rotation, total, targets, tuple(range(len(pairs)))), mean, scale


def _targets(codes: Tensor, weights: Tensor, n_classes: int) -> Targets:
    plain = Targets(codes, None if bool((weights == 1).all()) else weights, None, n_classes)
    is_absent = plain.class_weights()[..., None] == 0
    if not bool(is_absent.any()):
        return plain
    return replace(plain, offset=torch.zeros_like(is_absent, dtype=weights.dtype).masked_fill_(is_absent, -torch.inf))


def _collect(solved: list[list[Tensor]], *, n_layers: int, Cs: Sequence[float], options: SolverOptions) -> LogisticFit:
    """Put designs, which are layers times folds, in the order of the result."""
    whole = [torch.cat(parts) for parts in zip(*solved, strict=True)]
    mean, scale, *by_c = (part.reshape(n_layers, -1, *part.shape[1:]) for part in whole)
    weight, bias, objective, norm, gap, n_iterations = (part.transpose(1, 2) for part in by_c)
    is_converged = (norm <= options.tol) & (gap <= options.gap_tol)
    report = ConvergenceReport(objective, norm, gap, n_iterations, is_converged)
    return LogisticFit(weight.contiguous(), bias.contiguous(), mean, scale, tuple(Cs), report)
