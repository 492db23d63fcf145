"""Names of splits, and which file or table holds which split."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from extract.errors import TaskError, unknown_name

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SPLIT_ALIASES: dict[str, Split] = {"dev": "validation", "valid": "validation", "val": "validation"}
_FILE_MARKS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("dev", "devel", "development", "val", "valid", "validation", "testa"),
    "test": ("test", "testing", "testb"),
}
"""Parts of a file name that tell its split. A part is a run of letters, without `set` at its end."""
Table = TypeVar("Table")


def order_splits(splits: Mapping[str, Any]) -> list[str]:
    """Order split names: train, validation, test, then any other."""
    return [*(split for split in SPLITS if split in splits), *(split for split in splits if split not in SPLITS)]


def canonical_split(value: object) -> Split | None:
    """Map the name of a split, or an alias such as `dev`, to train, validation or test; None for any other name."""
    name = str(value).strip()
    return next((split for split in SPLITS if split == SPLIT_ALIASES.get(name, name)), None)


def name_splits(
    found: Mapping[str, Table], source: str, splits: Mapping[str, str] | None = None, *, hint: str = ""
) -> dict[str, Table]:
    """Name the splits of a repository as train, validation and test.

    Args:
        found: What the repository calls each split, to its table.
        source: The repository, for messages.
        splits: Split to what the repository calls it; None takes the usual names and leaves other splits out.
        hint: What to do where no split has a usual name, as the end of a sentence.

    Returns:
        Split to its table, in the order of the repository, or of `splits`.

    Raises:
        TaskError: No split has a usual name, or `splits` is no mapping or names a split twice.
        UnknownNameError: `splits` names an unknown split.
    """
    if splits is None:
        named: dict[str, Table] = {split: found[name] for name in found if (split := canonical_split(name))}
        if not named:
            raise TaskError(
                f"{source} has no split named train, validation or test; its splits: {', '.join(found)}{hint}."
            )
        return named
    if not isinstance(splits, Mapping) or not splits:
        raise TaskError(f"`splits` is {splits!r}, but a mapping is needed, such as {{train: train, test: unseen}}.")
    for theirs in splits.values():
        if theirs not in found:
            raise unknown_name("split", theirs, found, hint=f"These are the splits of {source}.")
    named_by_user = by_split(splits, option="splits", what="its name in the repository")
    return {split: found[theirs] for split, theirs in named_by_user.items()}


def by_split(given: Mapping[str, Table], *, option: str, what: str) -> dict[str, Table]:
    """Replace aliases such as `dev` in an option that maps splits to something; rejects two keys for one split.

    `option` and `what` it maps a split to are for messages.
    """
    named: dict[str, Table] = {}
    for key, value in given.items():
        split = canonical_split(key)
        if split is None:
            raise unknown_name("split", key, SPLITS, hint=f"`{option}` maps a split to {what}.")
        if split in named:
            raise TaskError(f"`{option}` names the {split} split twice ({named[split]} and {value}): leave one out.")
        named[split] = value
    return named


def files_by_split(files: Mapping[str, str | Path]) -> dict[str, Path]:
    """Read an option that maps each split, or an alias such as `dev`, to its file; at least one."""
    if not files:
        raise TaskError(f"`files` names no file: give at least one of {', '.join(SPLITS)}.")
    named = by_split(files, option="files", what="its file")
    return {split: Path(path).expanduser() for split, path in named.items()}


def find_split_files(folder: Path) -> dict[str, Path]:
    """Find one file per split in a folder, by train, dev, valid or test (testa, testb) as a part of their names.

    Rejects a folder in which no file, or more than one, fits a split, or a file fits two.
    """
    if not folder.is_dir():
        what = "is a file" if folder.is_file() else "does not exist"
        raise TaskError(f"{folder} {what}: give `files` as a folder, or map each of {', '.join(SPLITS)} to its file.")
    paths: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = None if path.name.startswith(".") or not path.is_file() else _split_of(path)
        if split is None:
            continue
        if split in paths:
            raise TaskError(
                f"{folder} has two files for the {split} split, {paths[split].name} and {path.name}: map each split to "
                "its file with `files`."
            )
        paths[split] = path
    if not paths:
        raise TaskError(
            f"{folder} has no file with train, dev, valid or test in its name: map each split to its file with `files`."
        )
    return {split: paths[split] for split in order_splits(paths)}


def _split_of(path: Path) -> Split | None:
    parts = [part.removesuffix("set") for part in re.split("[^a-z]+", path.name.lower())]
    found = [split for split, marks in _FILE_MARKS.items() if any(part in marks for part in parts)]
    if len(found) > 1:
        raise TaskError(
            f"{path} may be the {found[0]} or the {found[1]} split by its name: map each split to its file with "
            "`files`."
        )
    return found[0] if found else None
