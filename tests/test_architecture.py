"""Theorems about the source itself: which way imports point, what an import costs, what no file may hold."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("extract", "probes")
HEAVY = ("torch", "transformers", "lightning", "datasets")
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}

SOURCE_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".json", ".ipynb"}
SOURCE_NAMES = {"Makefile", "run"}
FOREIGN_FOLDERS = {"build", "dist", "caches", "runs", "__pycache__"}
# The brackets keep each pattern from finding itself.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:root|home|Users|work|workspace|mnt|opt)/\w|\b[A-Z]:\\\\?Users")
UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b")

# Says on standard error which heavy packages an import brought, and through which lines of this repository.
IMPORT_SPY = """
import importlib, sys, traceback
root, name, *heavy = sys.argv[1:]
first = {}
class Spy:
    def find_spec(self, fullname, path=None, target=None):
        if fullname in heavy:
            places = [f"{f.filename.removeprefix(root)}:{f.lineno}" for f in traceback.extract_stack()]
            first.setdefault(fullname, [p for p in places if p.startswith(("extract", "probes"))])
sys.meta_path.insert(0, Spy())
importlib.import_module(name)
brought = [f"{h} through {' > '.join(first.get(h, ['?']))}" for h in heavy if h in sys.modules]
sys.exit("\\n".join(brought) or None)
"""


@cache
def modules() -> dict[str, Path]:
    """Every module of the two packages by its dotted name."""
    found: dict[str, Path] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parse(path: Path) -> ast.Module:
    """Parse a source file once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def at(path: Path, line: int) -> str:
    """Name a place the way editors and terminals link to it."""
    return f"{path.relative_to(ROOT)}:{line}"


def is_type_checking(test: ast.expr) -> bool:
    """Tell `if TYPE_CHECKING:` and `if typing.TYPE_CHECKING:` from any other condition."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk everything that can run, function bodies too; blocks for the type checker are left out."""
    yield node
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.If) and is_type_checking(node.test):
        children = list(node.orelse)
    for child in children:
        yield from running_nodes(child)


def imported_names(module: str, path: Path) -> Iterator[tuple[str, int]]:
    """Yield each dotted name that a module imports, relative ones made absolute, with its line."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def absolute(name: str, dots: int) -> str:
        anchor = package.split(".")[: package.count(".") + 2 - dots] if dots else []
        return ".".join([*anchor, *([name] if name else [])])

    for node in running_nodes(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{absolute(node.module or '', node.level)}.{alias.name}", node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module":
            name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if isinstance(name, str):
                bare = name.lstrip(".")
                yield absolute(bare, len(name) - len(bare)), node.lineno


def nearest_module(name: str, known: dict[str, Path]) -> str | None:
    """Cut a dotted name down to the module that holds it; None for other people's packages."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def import_graph(known: dict[str, Path]) -> dict[str, dict[str, int]]:
    """Map each module to the modules it imports, each with the first line that does."""
    graph: dict[str, dict[str, int]] = {}
    for module, path in known.items():
        edges = graph.setdefault(module, {})
        for name, line in imported_names(module, path):
            target = nearest_module(name, known)
            if target is not None and target != module:
                edges.setdefault(target, line)
    return graph


def find_cycle(graph: dict[str, dict[str, int]]) -> list[str]:
    """Return one import cycle, importer before imported, its first module again at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def source_files() -> Iterator[Path]:
    """Yield the files a person wrote: no environment, no cache, no run, nothing a tool left behind."""
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in FOREIGN_FOLDERS and not name.endswith(".egg-info") and (name[0] != "." or name == ".ci")
        ]
        for name in names:
            if Path(name).suffix in SOURCE_SUFFIXES or name in SOURCE_NAMES:
                yield Path(folder, name)


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    """Return every source line that the pattern finds, with its place."""
    return [
        f"{at(path, number)}: {line.strip()[:100]}"
        for path in source_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_both_packages_are_seen() -> None:
    assert {"extract.errors", "probes"} <= set(modules())


def test_imports_form_a_dag() -> None:
    graph = import_graph(modules())
    cycle = find_cycle(graph)
    steps = [
        f"{at(modules()[importer], graph[importer][target])}: {importer} imports {target}"
        for importer, target in pairwise(cycle)
    ]
    assert not cycle, "imports run in a circle:\n" + "\n".join(steps)


def test_extract_never_imports_probes() -> None:
    offences = [
        f"{at(path, line)}: {name}"
        for module, path in modules().items()
        if module.split(".")[0] == "extract"
        for name, line in imported_names(module, path)
        if name.split(".")[0] == "probes"
    ]
    assert not offences, "\n".join(offences)


def test_a_cycle_would_be_found(tmp_path: Path) -> None:
    texts = {
        "extract.a": "def late():\n    from extract import b\n",
        "extract.b": "from .c import thing\n",
        "extract.c": "import importlib\nimportlib.import_module('extract.a')\n",
        "extract.d": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import extract.e\n",
        "extract.e": "import extract.d\n",
    }
    known = {name: tmp_path / f"{name}.py" for name in texts}
    for name, path in known.items():
        path.write_text(texts[name], encoding="utf-8")
    graph = import_graph(known)
    assert graph["extract.a"] == {"extract.b": 2}
    assert graph["extract.b"] == {"extract.c": 1}
    assert graph["extract.c"] == {"extract.a": 2}
    assert graph["extract.d"] == {}
    assert graph["extract.e"] == {"extract.d": 1}
    cycle = find_cycle(graph)
    assert set(cycle) == {"extract.a", "extract.b", "extract.c"}
    assert all(target in graph[importer] for importer, target in pairwise(cycle))


@pytest.mark.parametrize("module", ["extract", "probes", "probes.cli.main"])
def test_importing_is_light_and_silent(module: str) -> None:
    command = [sys.executable, "-W", "error", "-c", IMPORT_SPY, f"{ROOT}{os.sep}", module, *HEAVY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"import {module}:\n{done.stderr}"
    assert not done.stdout + done.stderr, f"import {module} is not silent:\n{done.stdout}{done.stderr}"


def test_library_code_never_prints() -> None:
    offences = [
        at(path, node.lineno)
        for path in modules().values()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not offences, "print() in " + ", ".join(offences)


def test_modules_are_named_for_what_they_hold() -> None:
    offences = [name for name in modules() if VAGUE_NAMES & set(name.split("."))]
    assert not offences, f"these names say nothing: {offences}"


def test_no_machine_paths() -> None:
    offences = lines_matching(MACHINE_PATH)
    assert not offences, "\n".join(offences)


def test_nothing_is_marked_unfinished() -> None:
    offences = lines_matching(UNFINISHED)
    assert not offences, "\n".join(offences)


def test_public_names_have_docstrings() -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    offences = [f"{at(path, 1)}: the module" for path in modules().values() if not ast.get_docstring(parse(path))]
    offences += [
        f"{at(path, node.lineno)}: {node.name}"
        for path in modules().values()
        for node in parse(path).body
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert not offences, "without a docstring:\n" + "\n".join(offences)
