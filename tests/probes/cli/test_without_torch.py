"""Commands that only read finished runs import neither torch nor Lightning, which take most of ten seconds.

Lightning is imported only where a head is fitted by its loop.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.probes.finished_run import Finished

WATCHED = ("torch", "lightning", "transformers")
PROGRAM = f"""
import json, sys
from probes.cli.main import main
code = main(sys.argv[1:])
print(json.dumps([code, [name for name in {WATCHED!r} if name in sys.modules]]), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def twins(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A finished run twice, so that it can be compared."""
    folder = tmp_path_factory.mktemp("twins")
    return [str(shutil.copytree(classes, folder / name)) for name in ("one", "other")]


@pytest.mark.parametrize(
    "command",
    [
        ("table",),
        ("table", "--format", "tidy"),
        ("compare",),
        ("compare", "--across", "--out", "across"),
        ("report", "--out", "both.html"),
    ],
    ids=" ".join,
)
def test_a_command_that_reads_runs_imports_no_torch(command: tuple[str, ...], twins: list[str], tmp_path: Path) -> None:
    name, *options = command
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, *twins, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    code, imported = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    assert imported == []


def test_the_program_notices_an_import(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import torch\n{PROGRAM}", "list", "heads"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert json.loads(done.stderr.splitlines()[-1]) == [0, ["torch"]]


@pytest.mark.parametrize("head", ["", "siamese-cosine"], ids=["all fits are there", "one is missing"])
def test_lightning_is_imported_only_where_a_head_is_fitted(head: str, finished: Finished, tmp_path: Path) -> None:
    folder = shutil.copytree(finished.folder, tmp_path / "runs" / "tiny")
    (folder / "stamp.json").unlink()
    if head:
        shutil.rmtree(folder / "heads" / head)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "run", str(finished.config), "--runs", "runs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    code, imported = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    assert ("torch" in imported, "lightning" in imported) == (True, bool(head))
