"""Writing a file whole, so that a kill leaves the old content or the new; reading one that is a plain file."""

import errno
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from extract.errors import ConfigError, DiskFullError, IcecoreError

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file in one step, as `replacing_file` does; raises the same."""
    with replacing_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file piece by piece: it holds its old content or all of the new, whenever the process is killed.

    The content is written to a draft beside the file, synced and renamed when the `with` block ends. A link in the
    file's place is replaced and never followed. The draft of a killed process is removed by the next one that writes
    the same file.

    Raises:
        DiskFullError: No space; the file is as it was.
        ConfigError: The folder cannot be written; the file is as it was.
    """
    draft = path.with_name(f".new-{os.getpid()}-{path.name}")
    try:
        _sweep_drafts(path)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                _lock(descriptor)  # a draft without a lock is a leftover
                yield file
                file.flush()
                os.fsync(descriptor)
                draft.replace(path)
        finally:
            with suppress(OSError):
                draft.unlink()
        _sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(error, path) from error


def remove_file(path: Path) -> None:
    """Remove a file, if it is there, for good: a crash does not bring it back."""
    try:
        path.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(error, path) from error


def read_file(path: Path) -> bytes:
    """Read a plain file; anything else, such as a pipe that would never end, is an `OSError`."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return path.read_bytes()


def refuse_links(folder: Path) -> None:
    """Refuse a folder that is a link or holds one, in which writing would reach other places; it may be absent."""
    for parent, folders, files in os.walk(folder):
        for path in [Path(parent), *(Path(parent, name) for name in (*folders, *files))]:
            if path.is_symlink():
                raise ConfigError(
                    f"{str(path)!r} is a link, and nothing is written through links; allowed: a folder of plain files "
                    "and folders. Remove the link, or choose another folder or name."
                )


def _sweep_drafts(path: Path) -> None:
    for leftover in path.parent.glob(f".new-*-{glob.escape(path.name)}"):
        with suppress(OSError):
            if leftover.is_symlink() or not leftover.is_file():  # never ours
                leftover.unlink()
                continue
            with leftover.open("rb") as file:
                if _lock(file.fileno()):
                    leftover.unlink()


def _lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; False where a living process holds the lock or there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename or removal last; not every file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _unwritable(error: OSError, path: Path) -> IcecoreError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in NO_SPACE:
        return DiskFullError(
            f"no space for {str(path)!r} ({reason}); what was there is kept. Free some space and run again."
        )
    return ConfigError(
        f"file {str(path)!r} cannot be written ({reason}); allowed: a folder that can be written. Check its "
        "permissions, or choose another."
    )
