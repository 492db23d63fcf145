"""Commands that only read finished runs import neither torch nor Lightning, which take most of ten seconds.

Lightning is imported only where a head is fitted by its loop.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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


@pytest.mark.long
def test_lightning_is_imported_only_where_a_head_is_fitted(finished: Finished, tmp_path: Path) -> None:
    config = yaml.safe_load(finished.config.read_text(encoding="utf-8"))
    heads = {"layer-cosine": {}, "siamese-cosine": {"max_epochs": 1, "batch_size": 16, "hidden": 8, "bottleneck": 4}}
    config |= {"heads": heads, "seeds": [0], "runs": str(tmp_path), "figures": ["svg"]}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    def run() -> tuple[bool, bool]:
        command = [sys.executable, "-c", PROGRAM, "run", "tiny.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
        code, imported = json.loads(done.stderr.splitlines()[-1])
        assert code == 0, done.stderr
        return "torch" in imported, "lightning" in imported

    assert run() == (True, True)
    (tmp_path / "tiny" / "stamp.json").unlink()  # so that it goes the whole way
    assert run() == (True, False)
