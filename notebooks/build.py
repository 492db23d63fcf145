"""Build the notebooks from their scripts.

`python notebooks/build.py` brings each notebook up to date with its script, `--execute` runs it as well and keeps what
it shows, `--check` changes nothing and fails where a notebook and its script differ.

A script is in the percent format: `# %%` begins a cell of code, `# %% [markdown]` one of text.
"""

# nbformat has no annotations
# mypy: disable-error-code=no-untyped-call

import argparse
import base64
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

FOLDER = Path(__file__).resolve().parent
CODE, TEXT = "# %%", "# %% [markdown]"
MAX_BYTES = 300_000
PICTURE_COLOURS = 64
CELL_SECONDS = 600
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read_cells(script: str) -> Iterator[tuple[str, str]]:
    """Yield kind (`code` or `markdown`) and source of each cell of a script."""
    kind, lines = "", list[str]()
    for line in [*script.splitlines(), CODE]:
        if line in (CODE, TEXT):
            source = "\n".join(lines).strip("\n")
            if kind and source:
                yield kind, source
            kind, lines = ("markdown" if line == TEXT else "code"), []
        else:
            lines.append(line.removeprefix("#").removeprefix(" ") if kind == "markdown" else line)


def build_notebook(script: str) -> Any:
    """Make a notebook without outputs from the text of a script; the same text gives the same notebook."""
    notebook: Any = nbformat.v4.new_notebook(metadata=METADATA)
    for number, (kind, source) in enumerate(read_cells(script), 1):
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        notebook.cells.append(make(source, id=f"cell-{number:02}"))
    return notebook


def execute_notebook(notebook: Any) -> None:
    """Run every cell in place, in an empty folder, on the packages of this checkout.

    Raises:
        CellExecutionError: A cell failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, [str(FOLDER.parent), os.environ.get("PYTHONPATH")]))
        client = NotebookClient(
            notebook, timeout=CELL_SECONDS, record_timing=False, resources={"metadata": {"path": folder}}
        )
        manager = client.create_kernel_manager()
        manager.transport, manager.ip = "ipc", str(Path(folder, "kernel"))  # sockets in the folder: no port is opened
        client.execute(env={**os.environ, "PYTHONPATH": path})
    notebook.metadata = METADATA  # the kernel adds its version
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            picture = output.get("data", {}).get("image/png")
            if picture:
                output.data["image/png"] = shrink_picture(picture)


def shrink_picture(encoded: str) -> str:
    """Bring a PNG in base64 down to a palette, about a third of its size."""
    picture = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB").quantize(PICTURE_COLOURS)
    small = io.BytesIO()
    picture.save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def faults(notebook: Any, text: str) -> list[str]:
    """Say what must not be committed: warnings and errors, places of this machine, too many bytes."""
    found = [
        f"cell {number} writes to stderr or fails: {''.join(output.get('text', output.get('evalue', '')))[:200]!r}"
        for number, cell in enumerate(notebook.cells, 1)
        for output in cell.get("outputs", [])
        if output.output_type == "error" or output.get("name") == "stderr"
    ]
    places = {str(FOLDER.parent), str(Path.home()), tempfile.gettempdir(), sys.prefix}
    found += [f"it names the place {place!r}" for place in sorted(places) if f"{place}{os.sep}" in text]
    return found + ([f"it has {len(text):,} bytes; allowed: {MAX_BYTES:,}"] if len(text) > MAX_BYTES else [])


def sources(notebook: Any) -> list[tuple[str, str, str]]:
    """Give what a notebook takes from its script: id, kind and source of every cell."""
    return [(cell.id, cell.cell_type, cell.source) for cell in notebook.cells]


def update(script: Path, *, should_execute: bool, is_check: bool) -> list[str]:
    """Bring one notebook up to date, or only look; where something is wrong, nothing is written.

    Args:
        script: The script; the notebook is beside it.
        should_execute: Run it and keep the outputs.
        is_check: Change nothing.

    Returns:
        What is wrong, as sentences without a beginning; empty when all is well.
    """
    target = script.with_suffix(".ipynb")
    notebook = build_notebook(script.read_text(encoding="utf-8"))
    committed = nbformat.read(target, as_version=4) if target.is_file() else None
    is_same = committed is not None and sources(committed) == sources(notebook)
    if is_check:
        stale = [] if is_same else [f"differs from {script.name}; run: make notebook"]
        return stale + (faults(committed, target.read_text(encoding="utf-8")) if committed is not None else [])
    if should_execute:
        try:
            execute_notebook(notebook)
        except CellExecutionError as error:
            return [f"a cell failed:\n{error}"]
    elif is_same:
        return []
    text = nbformat.writes(notebook) + "\n"
    problems = faults(notebook, text)
    if not problems:
        target.write_text(text, encoding="utf-8")
    return problems


def main(argv: Sequence[str] | None = None) -> int:
    """Build every notebook; 1 when something is wrong with one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--execute", action="store_true", help="run the notebooks and keep their outputs")
    group.add_argument("--check", action="store_true", help="change nothing; fail where notebook and script differ")
    options = parser.parse_args(argv)
    code = 0
    for script in sorted(FOLDER.glob("*.py")):
        if script == Path(__file__).resolve():
            continue
        for problem in update(script, should_execute=options.execute, is_check=options.check):
            print(f"{script.with_suffix('.ipynb').name}: {problem}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
