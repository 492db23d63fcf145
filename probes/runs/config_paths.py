"""Paths in a configuration: relative to its file, in the folder of a run to where the run was made."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from extract.decoders.decoder_spec import list_adapters, read_adapters, split_random
from extract.errors import ConfigWarning
from extract.records import Values

FILES = {
    "task.options": ("files", "folder"),
    "pretraining.options": ("files", "folder", "file"),
    "corpus": ("files",),
    "objectives.sscl": ("files",),
}
"""Settings that are paths, by section."""
NAMES = {
    "decoder": ("name", "adapter"),
    "extraction.template": ("spans",),
    "task.options": ("hub_id",),
    "pretraining.options": ("repository",),
}
"""Settings that may be a path or another name."""
LISTS = {"decoder.merge": "decoder", "corpus": "corpus"}
"""Lists of sections, and the section that each part has the paths of."""


def recorded_place(folder: Path, runs: str) -> Path:
    """Return the folder of a run as its recorded paths see it: from the working folder in which it was made."""
    return Path(runs) / folder.resolve().name


def from_run(folder: Path, runs: str, path: str) -> Path:
    """Return a path that a run recorded, seen from the run's folder, wherever the working folder is."""
    return folder.resolve() / os.path.relpath(path, recorded_place(folder, runs))


def home_of(file: str, values: Values) -> tuple[Path, Path]:
    """Return the folder of a config, and how its paths see that folder: as `.`, or in that of a run as recorded."""
    folder, runs = Path(file).parent, values.get("runs")
    is_of_run = Path(file).name == "config.yaml" and any(
        (folder / name).exists() for name in ("scores.json", "manifests")
    )
    return folder, recorded_place(folder, runs) if is_of_run and isinstance(runs, str) else Path()


def exists(path: str) -> bool:
    """Whether there is such a file or folder; not for a text that is no path."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False


class ConfigPaths:
    """Rewrites paths that are seen from where `folder` is `seen_as` so that they are relative to the working folder.

    What is in the working folder alone stays as it is, with a warning where the config is not that of a run; so does
    what is in neither, which `missing` describes by key. `source` is the configuration, for these sentences.
    """

    def __init__(self, folder: Path, seen_as: Path, source: str) -> None:
        self.folder, self.seen_as, self.source = folder.resolve(), seen_as, source
        self.missing: dict[str, str] = {}

    def read(self, values: Values, section: str = "") -> dict[str, Any]:
        """Return a section, or the whole where it has no name, with its paths rewritten."""
        return {key: self._value(str(key), value, section) for key, value in values.items()}

    def _value(self, key: str, value: object, section: str) -> Any:
        name = f"{section}.{key}".removeprefix(".")
        is_file = key in FILES.get(section, ())
        if isinstance(value, Mapping):  # files by split, or a section
            return (
                {k: self._path(v, f"{name}.{k}", is_file=True) for k, v in value.items()}
                if is_file
                else self.read(value, name)
            )
        if name in LISTS and isinstance(value, list):
            return [self.read(part, LISTS[name]) if isinstance(part, Mapping) else part for part in value]
        if name == "decoder.adapter" and isinstance(value, str | list):
            adapters = [self._path(part, name, is_file=False) for part in list_adapters(read_adapters(value))]
            return adapters[0] if len(adapters) == 1 else adapters or value
        return self._path(value, name, is_file=is_file) if is_file or key in NAMES.get(section, ()) else value

    def _path(self, value: object, name: str, *, is_file: bool) -> Any:
        if not isinstance(value, str) or not value or value[0] == "~" or Path(value).is_absolute():
            return value
        plain = split_random(value)[0]
        is_file = is_file or value[0] == "." or value.count("/") > 1 or value.endswith(".gguf")
        path, home = (self.folder / os.path.relpath(part, self.seen_as) for part in (plain, "."))
        places = dict.fromkeys((str(home.resolve()), str(Path.cwd())))
        near = exists(plain)
        if exists(str(path)) and path.resolve() != Path(plain).resolve():
            return os.path.relpath(path) + value.removeprefix(plain)
        if is_file and not near:
            self.missing[name] = (
                f"{name} of {self.source!r} is {value!r}, which is not in {' nor in '.join(map(repr, places))}; a "
                "path of a config is relative to the config."
            )
        elif is_file and len(places) > 1 and self.seen_as == Path():
            text = f"{name} of {self.source!r}: {value!r} is in the working folder, and not beside the config; "
            warnings.warn(f"{text}a path of a config is relative to the config.", ConfigWarning, stacklevel=2)
        return value
