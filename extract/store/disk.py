"""What a failed write means to a person."""

import errno
import os
import re
from pathlib import Path

from extract.errors import CacheError, DiskFullError

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def free_bytes(folder: Path) -> int:
    """Space an unprivileged process may still fill in a folder, or in its nearest parent that exists, in bytes."""
    while not folder.exists():
        folder = folder.parent
    numbers = os.statvfs(folder)
    return numbers.f_bavail * numbers.f_frsize


def explain_write_error(error: Exception, path: Path, *, needed: int | None) -> CacheError:
    """Turn a failed write into a sentence.

    Args:
        error: What the system, or HDF5 on its behalf, raised.
        path: The store.
        needed: Bytes of the whole store where it was being laid out; None where rows were being written.

    Returns:
        The error, to be raised by the caller: a `DiskFullError` where space ran out, else a `CacheError`.
    """
    number = _error_number(error)
    if number not in NO_SPACE:
        reason = os.strerror(number) if number else str(error).splitlines()[0]
        return CacheError(f"cache {str(path)!r} cannot be written: {reason}. Check the folder and its rights.")
    need = f"it needs {needed / 1e6:,.1f} MB and " if needed is not None else ""
    kept = "nothing was written" if needed is not None else "the rows written so far are kept"
    return DiskFullError(
        f"no space for cache {str(path)!r}: {need}{free_bytes(path.parent) / 1e6:,.1f} MB are free; {kept}. "
        "Free some space (or choose another folder, fewer layers, or storage_dtype float16) and run again to go on."
    )


def _error_number(error: Exception) -> int:
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = re.search(r"errno = (\d+)", str(error))  # HDF5 hands the system's number on in its text
    return int(found[1]) if found else 0
