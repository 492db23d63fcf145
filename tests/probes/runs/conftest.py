"""Whole runs are tested without checks of shapes."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None) -> None:
    """Save the time of checking shapes."""
