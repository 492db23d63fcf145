"""Fit a head once: the next run under the same circumstances loads it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from extract.errors import IcecoreError
from probes.fitting.saved import M, SavedHead, load_fitted, save_fitted


def fit_or_load(
    folder: Path, fit_id: str, fit: Callable[[], tuple[M, dict[str, Any]]], build: Callable[[dict[str, Any]], M]
) -> SavedHead[M]:
    """Load the head of a folder if it was fitted under the same circumstances; otherwise fit and save it.

    Args:
        folder: Where the head is kept.
        fit_id: Digest of everything that decides the fit.
        fit: Fits the head; returns it with its record (plain values, `name` among them).
        build: Builds the module, without its weights, from a record.
    """
    try:
        saved = load_fitted(folder, build)
        if saved.record.get("fit_id") == fit_id:
            return saved
    except IcecoreError:
        pass  # absent, cut short, of another version or another head: fitted again
    head, record = fit()
    return save_fitted(folder, head, {**record, "fit_id": fit_id})
