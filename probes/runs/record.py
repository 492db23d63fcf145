"""What a run records of itself: its folder, the cache, the task, the program."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from extract.digest import digest_json
from extract.errors import ConfigError
from extract.linear import describe_products
from extract.store.cache import LatentCache

PACKAGES = ("icecore", "torch", "transformers", "lightning", "scipy", "numpy")


def open_folder(runs: str, name: str, settings: dict[str, Any]) -> Path:
    """Open the folder of a run and write its settings, as plain values, to config.yaml.

    Other settings under the same name keep their own folder: nothing is overwritten.
    """
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    folder = Path(runs) / name
    taken = folder / "config.yaml"
    if taken.is_file() and taken.read_text(encoding="utf-8", errors="replace") != text:
        folder = folder.with_name(f"{name}-{digest_json(settings)[:8]}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the run folder {str(folder)!r} cannot be written ({error}); set `runs`.") from error
    return folder


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
    """Return this process's command line, the program by its name alone."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
