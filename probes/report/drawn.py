"""What pages and figures were made from: they are made again only where their numbers or the drawing code changed.

The record lies beside a page, `report.drawn.json` beside `report.html`: a digest of what was drawn, of this library and
of the packages that draw, and digests of the files that were written. Code of a user's own leaves none.
"""

import json
import platform
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from extract import registry
from extract.errors import IcecoreError
from extract.files import digest_bytes, digest_json, read_file, write_file
from extract.records import Values
from probes.layers import FINDINGS, PREDICTED
from probes.report.predictions import PREDICTIONS, SCORED

SCHEMA = 1
READ = ("scores.json", "config.yaml", PREDICTIONS, SCORED, FINDINGS)
"""The files of a run that its pages and figures show."""


def digest_source(folders: Iterable[Path], *options: object) -> str:
    """Digest what decides pages of run folders, beside where they are; empty with code of the user's own."""
    if registry.ADDED:
        return ""
    shown = [[[path.name, _digest_file(path)] for path in _read_by_pages(folder)] for folder in folders]
    return digest_json([shown, list(options), digest_code(), *package_versions()])


def _read_by_pages(folder: Path) -> list[Path]:
    return [*(folder / name for name in READ), *sorted((folder / PREDICTED).glob("*.npz"))]


def is_drawn(page: Path, what: str, source: str) -> bool:
    """Whether `what` of a page was made of this source, and its files are as they were written."""
    made = _read(page).get(what)
    if not source or not isinstance(made, dict) or made.get("from") != source:
        return False
    files = made.get("files")
    return isinstance(files, dict) and all(_digest_file(page.parent / name) == digest for name, digest in files.items())


def note_drawn(page: Path, what: str, source: str, files: Iterable[str]) -> None:
    """Note of what source `what` of a page was made, and its files, named relative to the page's folder."""
    record = {**_read(page), "schema": SCHEMA}
    record[what] = {"from": source, "files": {name: _digest_file(page.parent / name) for name in files}}
    write_file(_record(page), json.dumps(record, indent=1) + "\n")


def _record(page: Path) -> Path:
    return page.with_suffix(".drawn.json")


def _read(page: Path) -> Values:
    """Read the record of a page; empty where there is none that can be read."""
    try:
        record = json.loads(read_file(_record(page)))
        return record if isinstance(record, dict) and record.get("schema") == SCHEMA else {}
    except (OSError, ValueError, RecursionError, IcecoreError):
        return {}


def _digest_file(path: Path) -> str:
    """Digest a file; empty where it cannot be read."""
    try:
        return digest_bytes(read_file(path))
    except (OSError, IcecoreError):
        return ""


@cache
def digest_code() -> str:
    """Digest every file of this library that decides what a run writes."""
    parts: dict[str, str] = {}
    for package in ("extract", "probes"):
        with resources.as_file(resources.files(package)) as root:
            for path in sorted(root.rglob("*")):
                if path.suffix in (".py", ".css", ".js", ".html", ".txt"):
                    parts[f"{package}/{path.relative_to(root)}"] = digest_bytes(path.read_bytes())
    return digest_json(parts)


@cache
def package_versions() -> tuple[str, ...]:
    """Name Python and the packages that this library needs, extras too where they are there, with their versions."""
    names = sorted({re.split(r"[^A-Za-z0-9._-]", text)[0] for text in requires("icecore") or ()})
    versions = [f"python {platform.python_version()}"]
    for name in ["icecore", "tokenizers", *names]:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} none")
    return tuple(versions)
