"""The notebooks: built from their scripts, free of this machine, and running; one of them on the real decoder."""

# nbformat has no annotations
# mypy: disable-error-code=no-untyped-call

import base64
import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from PIL import Image

from tests.extract.tiny_decoders import save_decoder

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
SHOWN = {
    "quickstart": (
        4,
        ("cosine-mlp", "no-sink is better than causal", "token-logistic"),
    ),  # rows enough to tell them apart
    "layers": (2, ("statistically tied with the best", "logistic-probe")),
    "masks": (6, ("nosink-bidirectional", "causal")),
    "freeze_ladder": (1, ("siamese-cosine", "cosine-mlp")),
}
"""Notebook to the number of its pictures, and texts that it shows."""
SCRIPT = """# %% [markdown]
# # A title
#
# - an item

# %%
# a comment
print(1 + 1)

# %% [markdown]
#
"""


@pytest.fixture
def build() -> Any:
    """The builder, loaded from its file: the folder of notebooks is no package."""
    spec = importlib.util.spec_from_file_location("notebook_build", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_script(build: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = SCRIPT) -> Path:
    """Make a folder with one script the builder's own."""
    monkeypatch.setattr(build, "FOLDER", folder)
    (folder / "small.py").write_text(text, encoding="utf-8")
    return folder / "small.ipynb"


def test_the_notebook_is_what_its_script_builds(build: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--check"]) == 0, capsys.readouterr().err
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_shows_its_outputs(name: str, build: Any) -> None:
    n_pictures, texts = SHOWN[name]
    notebook: Any = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == n_pictures
    for shown in texts:
        kinds = ("text/markdown", "text/html")
        assert any(shown in output.get("data", {}).get(kind, "") for output in outputs for kind in kinds), shown
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    assert notebook.metadata == build.METADATA


def test_cells_of_a_script(build: Any) -> None:
    assert list(build.read_cells(SCRIPT)) == [
        ("markdown", "# A title\n\n- an item"),
        ("code", "# a comment\nprint(1 + 1)"),
    ]


def test_building_twice_is_building_once(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_script(build, tmp_path, monkeypatch)
    assert build.main([]) == 0
    first = target.read_bytes()
    nbformat.validate(nbformat.read(target, as_version=4))
    assert build.main([]) == 0
    assert target.read_bytes() == first


def test_outputs_of_an_unchanged_script_are_kept(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_script(build, tmp_path, monkeypatch)
    notebook = build.build_notebook(SCRIPT)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="2\n")]
    nbformat.write(notebook, target)
    assert build.main([]) == 0
    assert nbformat.read(target, as_version=4).cells[1].outputs[0].text == "2\n"


def test_a_changed_script_is_noticed(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = write_script(build, tmp_path, monkeypatch)
    assert build.main(["--check"]) == 1
    assert not target.exists()
    build.main([])
    assert build.main(["--check"]) == 0
    write_script(build, tmp_path, monkeypatch, SCRIPT.replace("1 + 1", "1 + 2"))
    before = target.read_bytes()
    assert build.main(["--check"]) == 1
    assert "small.ipynb: differs from small.py; run: make notebook" in capsys.readouterr().err
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (nbformat.v4.new_output("stream", name="stderr", text="a warning"), "cell 2 writes to stderr .* 'a warning'"),
        (nbformat.v4.new_output("error", ename="E", evalue="boom", traceback=[]), "cell 2 .* 'boom'"),
        (nbformat.v4.new_output("stream", text=f"{FOLDER.parent}/caches"), "it names the place"),
        (nbformat.v4.new_output("stream", text="x" * 300_000), "bytes; allowed: 300,000"),
    ],
)
def test_outputs_that_must_not_be_committed(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: Any, sentence: str
) -> None:
    target = write_script(build, tmp_path, monkeypatch)
    notebook = build.build_notebook(SCRIPT)
    notebook.cells[1].outputs = [output]
    nbformat.write(notebook, target)
    monkeypatch.setattr(build, "FOLDER", FOLDER)
    problems = build.update(tmp_path / "small.py", should_execute=False, is_check=True)
    assert problems  # a checkout inside the temporary folder is named twice
    assert all(re.search(sentence, problem) for problem in problems), problems


def test_pictures_shrink_and_stay_pictures(build: Any) -> None:
    picture = io.BytesIO()
    Image.merge("RGB", [Image.effect_noise((400, 300), sigma) for sigma in (20, 40, 60)]).save(picture, "PNG")
    small = base64.b64decode(build.shrink_picture(base64.b64encode(picture.getvalue()).decode()))
    assert len(small) < len(picture.getvalue())
    assert Image.open(io.BytesIO(small)).size == (400, 300)


def execute(name: str, folder: Path, **environment: str) -> Any:
    """Build and execute one notebook in a folder of its own."""
    (folder / "notebooks").mkdir()
    for file in ("build.py", f"{name}.py"):
        (folder / "notebooks" / file).write_text((FOLDER / file).read_text(encoding="utf-8"), encoding="utf-8")
    for package in ("extract", "probes", "icecore.py"):
        (folder / package).symlink_to(FOLDER.parent / package)
    command = [sys.executable, str(folder / "notebooks" / "build.py"), "--execute"]
    told = {**{key: value for key, value in os.environ.items() if key != "MPLBACKEND"}, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=580, env=told)
    assert done.returncode == 0, done.stderr
    return nbformat.read(folder / "notebooks" / f"{name}.ipynb", as_version=4)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SHOWN if name != "quickstart"])
def test_a_notebook_runs_on_a_tiny_decoder(name: str, tmp_path: Path) -> None:
    decoder = save_decoder(tmp_path / "tiny", max_position_embeddings=512)
    (tmp_path / "checkout").mkdir()
    notebook = execute(name, tmp_path / "checkout", ICECORE_DEMO_DECODER=str(decoder))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == SHOWN[name][0]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = execute("quickstart", tmp_path)
    assert "complete: True" in "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))
