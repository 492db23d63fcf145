"""The Ray cluster of an extraction: the one there is, or Ray on this machine alone, ended afterwards."""

import logging
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from secrets import token_hex
from typing import Any

from extract.errors import ConfigError, first_line
from extract.run.on_ray.workers import RayWorkers

QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}
LONGEST_TEMPORARY = 35
"""Characters of a temporary folder in which the names of Ray's sockets, 107 at most, have room."""
FAILURES = (OSError, RuntimeError, ValueError, ImportError)
"""What `ray.init` raises."""


@contextmanager
def joined_cluster(ray: Any, workers: RayWorkers) -> Iterator[None]:
    """Hold a connection to a Ray cluster until the `with` block ends.

    It is the one that `ray.init` joined before, that of `RAY_ADDRESS`, or one that runs on this machine; where there is
    none, Ray is started here, with room for all workers, and leaves neither processes nor files.

    Raises:
        ConfigError: The cluster cannot be joined, or Ray cannot be started.
    """
    with redirect_stdout(sys.stderr), ExitStack() as stack:  # Ray writes to it when a worker dies
        if not ray.is_initialized():
            with _kept_sigterm():
                if not _joins(ray, stack, os.environ.get("RAY_ADDRESS", "")):
                    _start(ray, stack, workers)
        try:
            yield
        finally:
            with silent_ray():
                stack.close()


@contextmanager
def silent_ray() -> Iterator[None]:
    """Drop what Ray writes to the standard output until the `with` block ends."""
    with redirect_stdout(StringIO()):
        yield


def _joins(ray: Any, stack: ExitStack, address: str) -> bool:
    """Join a cluster; False where none is named and none runs on this machine."""
    if address == "local":
        return False
    stack.callback(ray.shutdown)
    try:
        ray.init(address=address or "auto", **QUIET)
    except FAILURES as error:
        if not address and isinstance(error, ConnectionError):
            return False
        raise ConfigError(
            f"the Ray cluster at {address or 'this machine'!r} cannot be joined ({first_line(error)}); set RAY_ADDRESS "
            "to one with this version of Ray and Python, or to 'local', which starts Ray on this machine."
        ) from error
    return True


def _start(ray: Any, stack: ExitStack, workers: RayWorkers) -> None:
    """Start Ray on this machine; it ends, and what it has written goes, with the stack."""
    place = tempfile.gettempdir()
    place = place if len(place) <= LONGEST_TEMPORARY else "/tmp"
    files = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir=place, ignore_cleanup_errors=True))
    stack.enter_context(_environment(RAY_USAGE_STATS_ENABLED="0", **_own_key()))
    stack.callback(ray.shutdown)
    n_cpus = max(os.cpu_count() or 1, math.ceil(workers.n_workers * workers.cpus))
    try:
        ray.init(address="local", num_cpus=n_cpus, include_dashboard=False, _temp_dir=files, **QUIET)
    except FAILURES as error:
        raise ConfigError(
            f"Ray cannot be started on this machine ({first_line(error)}); start it with 'ray start --head', or "
            "extract without Ray."
        ) from error


@cache  # as Ray reads it once in a process
def _own_key() -> dict[str, str]:
    """Make the key of clusters started here, which Ray else writes into the home folder; nothing where one is there."""
    has_key = "RAY_AUTH_TOKEN_PATH" in os.environ or Path("~/.ray/auth_token").expanduser().exists()
    return {} if has_key else {"RAY_AUTH_TOKEN": token_hex(32)}


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for Ray that are not set, until the `with` block ends; Ray itself may set others in it."""
    before = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    os.environ.update({**values, **before})
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _kept_sigterm() -> Iterator[None]:
    """Let SIGTERM be answered as before, though `ray.init` takes it over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
