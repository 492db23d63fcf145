"""Where published files lie: a folder the user names, or one of `$ICECORE_DATA`."""

import os
from collections.abc import Sequence
from pathlib import Path

from extract.errors import TaskError
from probes.tasks.pairs.sts import DATA_VARIABLE


def has_local(name: str) -> bool:
    """Say whether `$ICECORE_DATA` has a folder of that name.

    Args:
        name: Folder of one dataset.

    Returns:
        False when the variable is not set, too.

    Example:
        >>> has_local("no-such-dataset")
        False
    """
    data = os.environ.get(DATA_VARIABLE)
    return bool(data) and (Path(str(data)).expanduser() / name).is_dir()


def find_folder(name: str, folder: str | Path | None, *, files: Sequence[str]) -> tuple[Path, str]:
    """Find the folder of one dataset.

    Args:
        name: Its folder in `$ICECORE_DATA`.
        folder: Where the user says it is; None is `$ICECORE_DATA/name`.
        files: What it must hold.

    Returns:
        The folder, and how a report should call it (a path only when the user gave one).

    Raises:
        TaskError: If neither is given, or a file is not there.

    Example:
        >>> import tempfile
        >>> found = Path(tempfile.mkdtemp())
        >>> _ = (found / "train.txt").write_text("x", encoding="utf-8")
        >>> find_folder("rct", found, files=["train.txt"])[0] == found
        True
    """
    if folder is None:
        data = os.environ.get(DATA_VARIABLE)
        if not data:
            raise TaskError(
                f"{DATA_VARIABLE} is not set: set it to the folder that holds {'/'.join([name, *files[:1]])}, or give "
                "`folder`."
            )
        found, called = Path(data).expanduser() / name, f"${DATA_VARIABLE}/{name}"
    else:
        found, called = Path(folder).expanduser(), str(folder)
    for wanted in (found, *(found / file for file in files)):
        if not wanted.exists():
            raise TaskError(f"{wanted} does not exist: give the folder that holds the published files as `folder`.")
    return found, called


def find_lexglue() -> Path | None:
    """Find a local copy of LexGLUE, laid out as on the hub.

    Returns:
        `$ICECORE_DATA/lex_glue`, or None where there is no such folder.

    Example:
        >>> found = find_lexglue()
    """
    return Path(os.environ[DATA_VARIABLE]).expanduser() / "lex_glue" if has_local("lex_glue") else None
