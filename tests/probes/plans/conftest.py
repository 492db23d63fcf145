"""Sweeps and searches are tested without checks of shapes, and their figures are not rendered."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None, sketched_figures: None) -> None:
    """Save the time of checking shapes and of rendering."""
