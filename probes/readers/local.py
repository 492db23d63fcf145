"""Local copies of published data: a folder the user names, else one in `$ICECORE_DATA`."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from extract.errors import TaskError
from probes.readers.text_files import PACKED

DATA_VARIABLE = "ICECORE_DATA"
Files = Mapping[str, Sequence[str]]
"""Split to the names its file may have, the published name first."""
Table = TypeVar("Table")


@dataclass(frozen=True)
class LocalFolder:
    """A folder of published files."""

    path: Path
    called: str
    """What reports call it: a path only where the user gave one."""

    def find(self, *names: str) -> Path:
        """Find a file by the first of its possible names that is there, as it is or with .gz appended."""
        allowed = [self.path / f"{name}{suffix}" for name in names for suffix in ("", PACKED)]
        found = next((path for path in allowed if path.is_file()), None)
        if found is None:
            raise TaskError(
                f"{self.path / names[0]} does not exist: give the folder that holds {' or '.join(names)}, packed "
                f"({PACKED}) or not, as `folder`."
            )
        return found

    def read(self, files: Files, read: Callable[[Path], Table]) -> tuple[dict[str, Table], str]:
        """Read the file of each split, and say in one line where they came from."""
        paths = {split: self.find(*names) for split, names in files.items()}
        return {split: read(path) for split, path in paths.items()}, self.source(*paths.values())

    def source(self, *files: str | Path) -> str:
        """Return one line that says where files came from."""
        return f"{', '.join(Path(file).name for file in files)} in {self.called}"


def find_local(name: str, folder: str | Path | None = None) -> LocalFolder | None:
    """Find a local copy of a dataset: the folder the user named, taken as it is, else that name in `$ICECORE_DATA`."""
    if folder is not None:
        return LocalFolder(Path(folder).expanduser(), str(folder))
    data = os.environ.get(DATA_VARIABLE)
    found = Path(data).expanduser() / name if data else None
    return LocalFolder(found, f"${DATA_VARIABLE}/{name}") if found is not None and found.is_dir() else None


def need_local(name: str, folder: str | Path | None, *, example: str) -> LocalFolder:
    """Find a local copy of a dataset that has no other source; the error names `example`, one of its files."""
    found = find_local(name, folder)
    if found is None:
        data = os.environ.get(DATA_VARIABLE)
        state = f"${DATA_VARIABLE} ({data}) has no folder {name}" if data else f"{DATA_VARIABLE} is not set"
        raise TaskError(f"{state}: set it to the folder that holds {name}/{example}, or give `folder`.")
    return found


def data_hint(name: str, example: str = "") -> str:
    """Say what to do where the hub cannot be reached, as the end of a sentence."""
    return f"set {DATA_VARIABLE} to a folder that holds {name}/{example}, or give `folder`"
