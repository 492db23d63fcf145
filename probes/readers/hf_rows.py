"""Rows through the `datasets` builders, without progress bars, log lines or files in the user's folders."""

import glob
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from extract.errors import TaskError, first_line


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Silence the progress bars and the log of `datasets` inside the block, and leave both as they were found."""
    import datasets

    # with the environment variable set, the user has chosen, and toggling would warn
    may_toggle = datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is None
    had_bars = not datasets.are_progress_bars_disabled()
    verbosity = datasets.logging.get_verbosity()
    if may_toggle:
        datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if may_toggle and had_bars:
            datasets.enable_progress_bars()


def read_parquet_rows(path: Path) -> tuple[tuple[str, ...], list[Mapping[str, Any]]]:
    """Read the columns and rows of a Parquet file through `datasets`, which keeps the types that the file declares."""
    import datasets

    with quiet_datasets(), TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        try:
            # the path is taken as a glob pattern otherwise
            files = {"train": glob.escape(str(path.absolute()))}
            table = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
            return tuple(table.column_names), table.to_list()
        except Exception as error:  # the builders raise a dozen unrelated types, all about this file
            cause = error.__cause__ or error
            raise TaskError(f"{path} cannot be read as Parquet ({first_line(cause)}): write it again.") from error
