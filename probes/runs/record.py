"""What a run records of itself: its folder, the cache, the task, the program."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from extract.digest import digest_json
from extract.errors import CacheError, ConfigError, printable
from extract.files import read_file, refuse_links, write_file
from extract.linear import describe_products
from extract.store.cache import LatentCache
from extract.store.manifest import Manifest, differences, flatten

CONFIG, MANIFESTS = "config.yaml", "manifests"
PLACES = ("caches", "runs")
"""Settings that do not say what a run is of, so no folder is named after them."""
SPEAKING = ("extraction.plan", "decoder.name", "task.name", "protocol")
"""Settings whose values say what they are of."""
MOST_LETTERS = 60
"""Of what a folder is named after beside its run."""
PATH_KEYS = ("caches", "runs", "name", "adapter", "spans")
"""Settings that name a place whether it is there or not."""
WORDING = ("instruction", "document_instruction", "task", "suffix", "joiner", "system", "answer")
"""Settings that are text as it is, even where it begins with a slash."""
LOOKS = ("figures", "loggers")
"""Settings of how a report looks, not of what it says: a run again with others goes to the same folder."""
PACKAGES = ("icecore", "torch", "transformers", "lightning", "scipy", "numpy")


def open_folder(
    runs: str,
    name: str,
    settings: dict[str, Any],
    cache: LatentCache | None = None,
    *,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Open the folder of a run and write its settings, as plain values, to config.yaml.

    `sources` says by dotted key where values came from; it is written beside them as comments.

    Other settings under the same name keep their own folder, named after what differs, and so does another cache, whose
    manifest is written to `manifests/`: nothing is overwritten. No absolute path is written.

    Raises:
        ConfigError: The folder cannot be written, or holds a link.
    """
    portable, kept = without_absolute_paths(settings), _without_looks(settings)
    cache_id = cache.manifest.id if cache else ""
    place = Path(runs) / name
    digests = (digest_json(kept)[:8], digest_json([kept, cache_id])[:8])
    older, last = (place.with_name(f"{name}-{digest}") for digest in digests)
    telling = place.with_name(f"{name}-{_what_differs(place, portable)}".rstrip("-"))
    folders = (place, *[older] * older.exists(), telling, last.with_name(f"{telling.name}-{digests[0]}"))
    folder = next((each for each in folders if _is_ours(each, portable, cache_id)), last)
    refuse_links(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if cache:
            (folder / MANIFESTS).mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the run folder {str(folder)!r} cannot be written ({error}); set `runs`.") from error
    if cache:  # first: from then on no other cache takes this folder
        write_file(folder / MANIFESTS / f"{cache.path.stem}.json", cache.manifest.to_json() + "\n")
    write_file(folder / CONFIG, _with_sources(portable, sources))
    return folder


def _without_looks(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in LOOKS}


def _as_yaml(settings: Any) -> str:
    text: str = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return text


def _with_sources(settings: dict[str, Any], sources: Mapping[str, str]) -> str:
    """Write settings with the source of each as a comment; those that are not in the settings follow at the end."""
    text = _as_yaml(settings)
    lines, rest = text.split("\n"), {key: " ".join(printable(source).split()) for key, source in sources.items()}
    for key, number in _lines_of_keys(yaml.compose(text)):
        if key in rest:
            lines[number] += f"  # {rest.pop(key)}"
    rest = {key: source for key, source in rest.items() if key not in flatten(settings)}
    commented = "\n".join([*lines, *(f"# {key}: {source}\n" for key, source in sorted(rest.items()))])
    return commented if yaml.safe_load(commented) == yaml.safe_load(text) else text


def _lines_of_keys(node: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Pair the dotted keys of a document with the numbers of their lines."""
    for name, value in node.value:
        key, line = f"{prefix}{name.value}", name.start_mark.line
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _lines_of_keys(value, f"{key}.")
        elif value.start_mark.line > line or value.end_mark.line == line:
            yield key, line


def _what_differs(folder: Path, settings: dict[str, Any]) -> str:
    """Name the settings that differ from those of a folder, as part of a file name; empty where that is too much.

    A value says enough by itself, as that of a plan does, or follows the last part of its key.
    """
    try:
        kept = yaml.safe_load(read_file(folder / CONFIG))
        unequal = differences(_without_looks(settings), _without_looks(kept))
    except (OSError, ValueError, RecursionError, AttributeError, yaml.YAMLError):
        return ""
    parts = []
    for key, (value, _) in unequal.items():
        if key in PLACES:
            continue
        word = "" if key in SPEAKING or isinstance(value, dict) else key.rpartition(".")[2]
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(f"{word} {Path(text).name if key == 'decoder.name' else text}")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(parts)).strip("-.")
    return name if len(name) <= MOST_LETTERS else ""


def _is_ours(folder: Path, settings: dict[str, Any], cache_id: str) -> bool:
    """Whether a folder is free, or holds a run of the same settings on the same cache."""
    try:
        manifests = (folder / MANIFESTS).glob("[!.]*.json")  # no drafts
        found = {Manifest.from_json(read_file(path).decode()).id for path in manifests}
        taken = folder / CONFIG
        kept = yaml.safe_load(read_file(taken)) if taken.exists() else settings
        kept, settings = _without_looks(without_absolute_paths(kept)), _without_looks(settings)
        return _as_yaml(kept) == _as_yaml(settings) and found <= {cache_id}
    except (OSError, ValueError, RecursionError, CacheError, yaml.YAMLError):
        return False  # something else, or damaged: left alone


def without_absolute_paths(value: Any, key: str = "") -> Any:
    """Return plain values with every absolute path relative to the working folder, as paths of a config are read."""
    if isinstance(value, dict):
        return {name: without_absolute_paths(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [without_absolute_paths(item, key) for item in value]
    is_path = isinstance(value, str) and len(value) > 1 and Path(value).is_absolute() and key not in WORDING
    return os.path.relpath(value) if is_path and (key in PATH_KEYS or _exists(value)) else value


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False


def describe_cache(cache: LatentCache) -> dict[str, Any]:
    """Describe a cache, for a record of results."""
    identity = cache.identity
    return {
        "file": cache.path.name,
        "id": cache.manifest.id,
        "plan": identity["plan"],
        "template": identity["template"],
        "poolings": list(cache.poolings),
        "storage_dtype": cache.storage_dtype,
        "n_rows": len(cache),
        "n_truncated": int(cache.is_truncated.sum()),
        "certificate": cache.certificate,
    }


def describe_program() -> dict[str, Any]:
    """Describe commit, versions and what computes products, for a record of results."""
    versions = {package: version(package) for package in PACKAGES}
    return {"commit": _commit(), "versions": versions, "products": describe_products()}


def _commit() -> str:
    """Commit of the checkout this code runs from; empty when installed from a wheel."""
    if not (Path(__file__).parents[2] / ".git").exists():  # a wheel may lie inside somebody else's checkout
        return ""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def command_line() -> str:
    """Return this process's command line, the program by its name alone and absolute paths as seen from here."""
    words = (word.rpartition("=") for word in sys.argv[1:])
    shown = (f"{key}{equals}{without_absolute_paths(value, 'name')}" for key, equals, value in words)
    return " ".join([Path(sys.argv[0]).name, *shown])
