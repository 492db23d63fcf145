"""Files as bytes, those that end in .gz unpacked: some tasks are published that way."""

import gzip
import zlib
from pathlib import Path

from extract.errors import TaskError

PACKED = ".gz"


def read_bytes(path: Path) -> bytes:
    """Read a file, unpacked if its name ends in .gz.

    Args:
        path: A local file.

    Returns:
        The content.

    Raises:
        TaskError: If a .gz file is no gzip file, or a broken one.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "train.txt.gz"
        >>> _ = path.write_bytes(gzip.compress(b"Ice NN"))
        >>> read_bytes(path)
        b'Ice NN'
    """
    data = path.read_bytes()
    if path.suffix.lower() != PACKED:
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        cause = str(error).rstrip(".")
        raise TaskError(
            f"{path} cannot be unpacked as gzip ({cause}): fetch it anew, or unpack it yourself."
        ) from error


def inner_suffix(path: Path) -> str:
    """Name the format of a file, packed or not.

    Args:
        path: A file, which need not exist.

    Returns:
        The suffix in lower case, the one before .gz where that is the last.

    Example:
        >>> inner_suffix(Path("a.JSONL.gz")), inner_suffix(Path("a.conllu"))
        ('.jsonl', '.conllu')
    """
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix == PACKED else suffix
