"""Joining the windows of a long text: their pooled vectors, each over the tokens it represents, become one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import InputError
from extract.inputs.batching import Batch, BatchWindows
from extract.poolings.transfer import send


def _by_count(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return counts


def _by_rank(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    ends = np.cumsum(counts)
    return np.diff(ends * (ends + 1) // 2, prepend=0)


def _first_only(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    weights = np.zeros_like(counts)
    weights[0] = 1
    return weights


def _last_only(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return _first_only(counts)[::-1]


JOINS: dict[str, Callable[[NDArray[np.int64]], NDArray[np.int64]] | None] = {
    "last": _last_only,
    "mean": _by_count,
    "weighted-mean": _by_rank,
    "first": _first_only,
    "max": None,
}
"""Weights of a text's windows in each pooling, by the tokens each represents; None where the largest value counts."""


def require_joinable(poolings: Iterable[str]) -> None:
    """Refuse poolings that cannot be joined from windows: `InputError` names the first."""
    for name in poolings:
        if name not in JOINS:
            raise InputError(
                f"on_long is 'windows', and the pooling {name!r} of a long text cannot be joined from its windows; "
                f"allowed: {', '.join(JOINS)}, or on_long 'truncate' or 'error'."
            )


class Joiner:
    """Joins the latents of the windows of each text, over the batches that hold them in turn."""

    def __init__(self, poolings: Sequence[str]) -> None:
        self._poolings = poolings
        self._joined: Tensor | None = None

    def add(self, batch: Batch, latents: Float[Tensor, "L P N D"]) -> tuple[Batch, Float[Tensor, "L P M D"]] | None:
        """Add the latents of a batch.

        Returns:
            Batch and latents as they are if they are of whole texts or words; the one row of a text with the last of
            its windows; None before.
        """
        windows = batch.windows
        if windows is None:
            return batch, latents
        if windows.first == 0:
            self._joined = None
        parts = torch.stack([self._join(name, windows, latents[:, p]) for p, name in enumerate(self._poolings)], dim=1)
        if self._joined is not None:
            is_max = send(torch.tensor([JOINS[name] is None for name in self._poolings]), parts.device)[:, None]
            parts = torch.where(is_max, torch.maximum(self._joined, parts), self._joined + parts)
        self._joined = parts
        if windows.first + len(batch.rows) < len(windows.counts):
            return None
        whole = replace(
            batch,
            rows=batch.rows[:1],
            positions=batch.positions[:1],
            is_truncated=batch.is_truncated[:1],
            n_tokens=np.array([windows.n_tokens], np.int32),
            windows=None,
        )
        return whole, parts.unsqueeze(2)

    @staticmethod
    def _join(name: str, windows: BatchWindows, latents: Float[Tensor, "L B D"]) -> Float[Tensor, "L D"]:
        weigh = JOINS[name]
        if weigh is None:
            return latents.amax(1)
        weights = weigh(windows.counts)
        shares = torch.from_numpy((weights / weights.sum())[windows.first : windows.first + latents.shape[1]])
        shares = send(shares.to(torch.float32), latents.device)[:, None]
        return (latents * shares).masked_fill(shares == 0, 0.0).sum(1)  # what does not count may not be finite
