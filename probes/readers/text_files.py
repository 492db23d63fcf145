"""Text files as bytes, text or lines; files that end in .gz are unpacked."""

import gzip
import io
import zlib
from pathlib import Path

from extract.errors import TaskError

PACKED = ".gz"


def read_bytes(path: Path) -> bytes:
    """Read a file, unpacked if its name ends in .gz; rejects one that is missing, unreadable or no gzip file."""
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise TaskError(f"{path} {what}: give the path of a file.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path} cannot be read ({error}).") from error
    if path.suffix.lower() != PACKED:
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        cause = str(error).rstrip(".")
        raise TaskError(
            f"{path} cannot be unpacked as gzip ({cause}): download it again, or unpack it yourself."
        ) from error


def inner_suffix(path: Path) -> str:
    """Return the suffix that tells the format of a file in lower case: the one before .gz where that is the last."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix == PACKED else suffix


def read_text(path: Path, *, fallback: str | None = None) -> str:
    """Read a UTF-8 file, with or without a byte order mark, its line ends unchanged; .gz is unpacked.

    A file that is not UTF-8 is read by the `fallback` encoding; without one it is rejected, with the line and the byte.
    """
    data = read_bytes(path)
    if not data.strip():
        raise TaskError(f"{path} is empty: it has no rows to read.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if fallback is not None:
            return data.decode(fallback, errors="replace")
        line = data[: error.start].count(b"\n") + 1
        raise TaskError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8: save the file as UTF-8."
        ) from error


def split_lines(text: str) -> list[str]:
    r"""Split a text at \n, \r\n and \r, but not at U+2028 or a form feed; the lines keep their ends."""
    return list(io.StringIO(text, newline=""))


def read_lines(path: Path, *, fallback: str | None = None) -> list[str]:
    """Read the lines of a text file as `read_text` and `split_lines` do, without their ends."""
    return [line.rstrip("\r\n") for line in split_lines(read_text(path, fallback=fallback))]
