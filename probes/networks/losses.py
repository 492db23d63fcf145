"""Losses between predicted and gold similarities, both in [0, 1]; their names are in `loss_table`."""

import torch
from jaxtyping import Float
from torch import Tensor

from extract.errors import HeadError

MIN_BATCH = 2
"""Fewest rows of a loss that compares rows with each other: one has no variance and no order."""


def log_variance_loss(
    predicted: Float[Tensor, " B"], gold: Float[Tensor, " B"], *, epsilon: float = 1e-6
) -> Float[Tensor, ""]:
    """Logarithm of the variance of the residuals (FREEZE section 4.1.1).

    The variance is the unbiased one, so the loss ignores a constant offset; calibrate before reading a prediction as
    a score. The logarithm is biased low in small batches (by about 1 / (B - 1)): use 32 rows or more. `epsilon` keeps
    loss and gradient finite where all residuals are equal. Fewer than two rows, which have no variance, raise
    `HeadError`.
    """
    if len(predicted) < MIN_BATCH:
        raise HeadError(
            f"the log-variance loss got a batch of {len(predicted)}; allowed: at least {MIN_BATCH} rows "
            "(32 or more to keep its bias small). Raise batch_size."
        )
    return torch.log((predicted - gold).var(correction=1) + epsilon)


def mse_loss(predicted: Float[Tensor, " B"], gold: Float[Tensor, " B"]) -> Float[Tensor, ""]:
    """Mean squared error; unlike torch's, of one shape only."""
    return torch.nn.functional.mse_loss(predicted, gold)


def cosent_loss(predicted: Float[Tensor, " B"], gold: Float[Tensor, " B"], *, scale: float = 20.0) -> Float[Tensor, ""]:
    """Logarithm of one plus the sum, over pairs of rows in the wrong order, of the exponential of their distance.

    `log(1 + sum over gold_i > gold_j of exp(scale * (predicted_j - predicted_i)))` (CoSENT, J. Su 2022): only the
    order of the gold counts, as for a Spearman correlation, so that, as for log-variance, an offset is ignored. The
    larger `scale`, the more the worst pair of rows counts. The loss is 0 when every gold is the same; fewer than two
    rows, which have no order, raise `HeadError`.
    """
    if len(predicted) < MIN_BATCH:
        raise HeadError(
            f"the CoSENT loss got a batch of {len(predicted)}; allowed: at least {MIN_BATCH} rows. Raise batch_size."
        )
    wrong = scale * (predicted.unsqueeze(0) - predicted.unsqueeze(1))  # [i, j]: how far j stands above i
    wrong = wrong[gold.unsqueeze(1) > gold.unsqueeze(0)]
    return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), dim=0)
