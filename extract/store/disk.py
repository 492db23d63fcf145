"""What a store needs of the system: free space, a lock on the file, and a sentence for a failed write.

Writing a store is POSIX only (`flock`, `pwrite`, `posix_fallocate` where there is one). On Windows it is refused with
one sentence; reading a store works everywhere.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from extract.errors import CacheError, DiskFullError, first_line
from extract.files import NO_SPACE


def require_locks() -> None:
    """Refuse to write caches on a system (Windows) that has no POSIX locks: `CacheError`."""
    try:
        import fcntl  # noqa: F401
    except ImportError as error:
        raise CacheError(
            "icecore cannot write caches on this system: that takes POSIX file locks and positioned writes, which "
            "Windows lacks. Extract under WSL 2 or Linux; the cache can then be read here."
        ) from error


@contextmanager
def locked_file(descriptor: int, *, waits: bool = False) -> Iterator[None]:
    """Hold the exclusive lock of an open file until the `with` block ends or the process dies.

    The file may be closed inside the block.

    Raises:
        BlockingIOError: Somebody else holds the lock, and `waits` is off.
        CacheError: The system (Windows) or the file system has no such locks.
    """
    require_locks()
    import fcntl  # absent on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        raise CacheError(
            f"a cache cannot be written here, because its file system has no file locks ({first_line(error)}); choose "
            "another folder for caches, on a local disk."
        ) from error
    try:
        yield
    finally:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except OSError as error:
            if error.errno != errno.EBADF:  # closing the file released the lock
                raise


def free_bytes(folder: Path) -> int:
    """Return the bytes that this process may still write to a folder, or to its nearest existing parent."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def explain_write_error(error: Exception, path: Path, *, needed: int | None) -> CacheError:
    """Build the error for a failed write: a `DiskFullError` if space ran out, else a `CacheError`.

    Args:
        error: What the system raised, or HDF5, which may not pass the system's error number on.
        path: The store.
        needed: Bytes of the whole store while it is laid out; None once rows are written.
    """
    number = error.errno if isinstance(error, OSError) else None
    free = free_bytes(path.parent)
    if number not in NO_SPACE and (number or needed is None or free >= needed):
        reason = os.strerror(number) if number else str(error).splitlines()[0]
        return CacheError(f"cache {str(path)!r} cannot be written: {reason}. Check the folder and its permissions.")
    if number == errno.EFBIG:
        return DiskFullError(
            f"cache {str(path)!r} exceeds the file-size limit of this process or of the file system; raise the limit "
            "(ulimit -f), or choose fewer layers or storage_dtype float16, and run again to continue."
        )
    need = f"it needs {needed / 1e6:,.1f} MB and " if needed is not None else ""
    kept = "nothing was written" if needed is not None else "the rows written so far are kept"
    return DiskFullError(
        f"no space for cache {str(path)!r}: {need}{free / 1e6:,.1f} MB are free; {kept}. "
        "Free some space (or choose another folder, fewer layers, or storage_dtype float16) and run again to continue."
    )
