"""How many threads compute: as typed or set in the environment, else as many as there are cores that others leave free.

A thread that waits for a core holds up every parallel product: where the cores were busy, two threads on two cores took
five times as long as one. Loads no torch.
"""

import os
import sys
from math import ceil
from pathlib import Path

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables by which a user asks for a number."""
_adapted: list[str] = []


def usable_cores(root: Path = Path("/")) -> int:
    """Count the cores that this process may use: by its affinity, and by the quota of its control group."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    group = root / "sys/fs/cgroup"
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = map(float, " ".join((group / file).read_text() for file in files).split())
        except (OSError, ValueError):  # no such group, or `max`: no quota
            continue
        if quota > 0 and period > 0:
            n_cores = min(n_cores, ceil(quota / period))
    return max(1, n_cores)


def busy_cores(root: Path = Path("/")) -> float:
    """Estimate how many cores others keep busy, now and over the last minute; 0 where the system does not say.

    The lower of the two counts: a minute's mean still holds what has just ended, and one look may catch a moment.
    """
    try:
        words = (root / "proc/loadavg").read_text().split()
        return max(0.0, min(float(words[0]), float(words[3].partition("/")[0]) - 1))  # this process runs as well
    except (OSError, ValueError, IndexError):
        return 0.0


def free_cores(n_usable: int, n_all: int, n_busy: float) -> int:
    """Count the usable cores that are free, at least 1.

    Example:
        >>> free_cores(8, 8, 2.4), free_cores(2, 2, 13.0), free_cores(4, 64, 20.0)
        (6, 1, 4)
    """
    return max(1, min(n_usable, round(n_all - n_busy)))


def set_threads(n_threads: int | None = None) -> int | None:
    """Compute with so many threads from here on; by default adapt to the cores that are free.

    Returns:
        The number where it was adapted to busy cores; None where it was asked for, or all cores are free.
    """
    for name in _adapted:  # by an earlier command of this process
        os.environ.pop(name, None)
    was_adapted = bool(_adapted)
    _adapted.clear()
    if n_threads is not None:
        _apply(n_threads)
        return None
    if any(os.environ.get(name) for name in VARIABLES):
        return None
    n_usable = usable_cores()
    n_free = free_cores(n_usable, os.cpu_count() or 1, busy_cores())
    if n_free == os.cpu_count():
        if was_adapted:
            _set_torch(n_free)
        return None
    _apply(n_free)
    _adapted.extend(VARIABLES)
    return n_free


def keep_threads(n_threads: int | None) -> None:
    """Go on with the number of threads that something was begun with, so that it ends with the same bits.

    Nothing changes where the user asked for a number.
    """
    if n_threads and _adapted:
        _set_torch(n_threads)


def _apply(n_threads: int) -> None:
    os.environ.update(dict.fromkeys(VARIABLES, str(n_threads)))  # for what is imported later
    _set_torch(n_threads)


def _set_torch(n_threads: int) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(n_threads)
