"""Where the files of a known word task are: a folder the user names, `$ICECORE_DATA`, or the hub."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from extract.errors import TaskError
from probes.readers.packed import PACKED
from probes.readers.sentences import SentenceTable
from probes.readers.token_rows import TokenColumns, read_token_repository

DATA_VARIABLE = "ICECORE_DATA"
Files = Mapping[str, tuple[str, ...]]
"""Split to the names its file may have, the published one first."""


def find_folder(name: str, folder: str | None) -> Path | None:
    """Find the folder of a task's files.

    Args:
        name: Of the folder in `$ICECORE_DATA`.
        folder: What the user named; taken as it is.

    Returns:
        The folder, or None if the user named none and `$ICECORE_DATA` has none of that name.
    """
    if folder is not None:
        return Path(folder).expanduser()
    data = os.environ.get(DATA_VARIABLE)
    found = Path(data).expanduser() / name if data else None
    return found if found is not None and found.is_dir() else None


def need_folder(name: str, folder: str | None, files: Files) -> Path:
    """Find the folder of a task that is read from local files only.

    Args:
        name: As for `find_folder`.
        folder: As for `find_folder`.
        files: Which files are looked for.

    Returns:
        The folder.

    Raises:
        TaskError: If there is none.
    """
    found = find_folder(name, folder)
    if found is None:
        value = os.environ.get(DATA_VARIABLE)
        state = f"${DATA_VARIABLE} ({value}) has no folder {name}" if value else f"{DATA_VARIABLE} is not set"
        raise TaskError(
            f"{state}: set it to the folder that holds {name}/{files['train'][0]} and its siblings, or give `folder`."
        )
    return found


def read_local(
    folder: Path, files: Files, read: Callable[[Path], SentenceTable]
) -> tuple[dict[str, SentenceTable], str]:
    """Read the file of each split.

    Args:
        folder: Where they are.
        files: The first name that is there is taken, as it is or with .gz after it.
        read: Reads one file.

    Returns:
        Split to its sentences, and one line that says where they came from.

    Raises:
        TaskError: If a split has no file, or a file is broken.
    """
    tables: dict[str, SentenceTable] = {}
    taken: list[str] = []
    for split, names in files.items():
        allowed = [folder / f"{name}{suffix}" for name in names for suffix in ("", PACKED)]
        path = next((path for path in allowed if path.is_file()), None)
        if path is None:
            raise TaskError(f"{folder} has no {split} file: put {' or '.join(names)} there, packed ({PACKED}) or not.")
        tables[split] = read(path)
        taken.append(path.name)
    return tables, f"{', '.join(taken)} in {_called(folder)}"


def _called(folder: Path) -> str:
    """Say how a report calls a folder: by its path only when the user gave one."""
    data = os.environ.get(DATA_VARIABLE)
    if data and folder.is_relative_to(Path(data).expanduser()):
        return f"${DATA_VARIABLE}/{folder.relative_to(Path(data).expanduser()).as_posix()}"
    return str(folder)


def read_hub(
    hub_id: str, tags: str, revision: str | None, *, name: str, files: Files
) -> tuple[dict[str, SentenceTable], str]:
    """Read a token dataset whose lists are named as the CoNLL tasks of the hub name them.

    Args:
        hub_id: A hub id, or a local folder laid out like one.
        tags: `ner` reads the list `ner_tags`, and so on; words are `tokens`, documents `document_id` if there.
        revision: Branch, tag or commit; None is the main branch. A folder has none, and the branch is left out.
        name: Of the folder in `$ICECORE_DATA`, to be named in an error.
        files: The files to be named in an error.

    Returns:
        Split (train, validation, test) to its sentences, and one line that says where they came from.

    Raises:
        TaskError: If the repository cannot be had or read, or lacks a split that `files` has.
        UnknownNameError: If a list is not there.
    """
    from probes.tasks.pairs.validate import canonical_split

    help_text = (
        f"set {DATA_VARIABLE} to a folder that holds {name}/{files['train'][0]} and its siblings, or give `folder`"
    )
    columns = TokenColumns(tags=f"{tags}_tags", document="document_id")
    if Path(hub_id).expanduser().is_dir():
        revision = None
    found, source = read_token_repository(hub_id, columns, revision=revision, help_text=help_text)
    tables = {canonical_split(split): table for split, table in found.items()}
    missing = [split for split in files if split not in tables]
    if missing:
        raise TaskError(f"{source} has no {missing[0]} split; its splits: {', '.join(found)}.")
    return {split: table for split, table in tables.items() if split is not None}, source
