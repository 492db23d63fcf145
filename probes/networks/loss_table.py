"""Losses by name. A new one is a function in `losses`, and a row here."""

from collections.abc import Callable
from typing import Any

from extract.names import later

LOSSES: dict[str, tuple[Callable[..., Any], str]] = {
    "log-variance": (
        later("probes.networks.losses:log_variance_loss"),
        "log of the variance of the residuals (FREEZE)",
    ),
    "mse": (later("probes.networks.losses:mse_loss"), "mean squared error"),
    "cosent": (later("probes.networks.losses:cosent_loss"), "order of the gold within a batch (CoSENT)"),
}
COMPARING = ("log-variance", "cosent")
"""Losses that compare rows with each other."""
