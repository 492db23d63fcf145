"""Keeping the progress bars of other packages off the screen while ours is on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence the progress bars of transformers inside the block, and leave its setting as it was found."""
    from transformers.utils import logging as untyped

    logging: Any = untyped

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
