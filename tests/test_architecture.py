"""Theorems about the source itself: which way imports point, what an import costs, what no file may hold."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

from extract.registry import Later
from probes.heads.head_table import HEADS
from tests.draw_architecture import PAGE, declared_order, draw, refresh
from tests.import_graph import (
    PACKAGES,
    PLACE,
    ROOT,
    arrows_against,
    find_cycle,
    folder_graph,
    import_graph,
    imported_names,
    modules,
    parse,
    without_shortcuts,
)

HEAVY = ("torch", "transformers", "lightning", "datasets", "jinja2", "matplotlib")
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}

SOURCE_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".json", ".ipynb"}
SOURCE_NAMES = {"Makefile", "run"}
FOREIGN_FOLDERS = {"build", "dist", "caches", "runs", "__pycache__"}
# The brackets keep each pattern from finding itself.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:root|home|Users|work|workspace|mnt|opt)/\w|\b[A-Z]:\\\\?Users")
UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b")

# Writes to standard error which heavy packages an import loaded, and through which lines of this repository.
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


def at(path: Path, line: int) -> str:
    """Name a place the way editors and terminals link to it."""
    return f"{path.relative_to(ROOT)}:{line}"


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


def test_both_packages_and_all_kinds_of_files_are_read() -> None:
    assert {"extract.errors", "probes"} <= set(modules())
    read = {path.relative_to(ROOT).as_posix() for path in source_files()}
    assert {"Makefile", ".ci/run", "README.md", "pyproject.toml", "configs/demo.yaml", "extract/errors.py"} <= read
    assert not {name for name in read if name.startswith((".venv/", ".git/"))}


def test_imports_form_a_dag() -> None:
    graph = import_graph(modules())
    cycle = find_cycle(graph)
    steps = [
        f"{at(modules()[importer], graph[importer][target])}: {importer} imports {target}"
        for importer, target in pairwise(cycle)
    ]
    assert not cycle, "import cycle:\n" + "\n".join(steps)


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
        "extract.f": "TABLE = {'last': later('extract.a:late')}\n",
        "extract.g": "",
        "extract.g.f": "TABLE = {'last': later('extract.a:late')}\n",
    }
    known = write_modules(tmp_path, texts)
    graph = import_graph(known)
    assert graph["extract.a"] == {"extract.b": 2}
    assert graph["extract.b"] == {"extract.c": 1}
    assert graph["extract.c"] == {"extract.a": 2}
    assert graph["extract.d"] == {}
    assert graph["extract.e"] == {"extract.d": 1}
    assert graph["extract.g.f"] == {"extract.a": 1}, "an object named by its place is an import too"
    assert graph["extract.f"] == {}, "but within its folder, where tables name what reads them"
    cycle = find_cycle(graph)
    assert set(cycle) == {"extract.a", "extract.b", "extract.c"}
    assert all(target in graph[importer] for importer, target in pairwise(cycle))


def write_modules(folder: Path, texts: dict[str, str]) -> dict[str, Path]:
    """Write modules by dotted name; a name that others are nested in becomes a package."""
    known = {}
    for name, text in texts.items():
        path = folder.joinpath(*name.split("."))
        is_package = any(other.startswith(f"{name}.") for other in texts)
        known[name] = path / "__init__.py" if is_package else path.with_suffix(".py")
        known[name].parent.mkdir(parents=True, exist_ok=True)
        known[name].write_text(text, encoding="utf-8")
    return known


def test_imports_between_folders_point_down_the_declared_order() -> None:
    graph = folder_graph(modules())
    order = declared_order(PAGE.read_text(encoding="utf-8"))
    assert sorted(order) == sorted(graph), f"{PAGE.name} lists other folders than there are"
    offences = arrows_against(graph, order)
    assert not offences, "against the order of docs/architecture.md:\n" + "\n".join(offences)


def test_a_cycle_between_folders_would_be_found(tmp_path: Path) -> None:
    """No file of it is in a cycle, so the test between files is silent."""
    known = write_modules(
        tmp_path,
        {
            "probes": "",
            "probes.tasks": "",
            "probes.tasks.pairs": "",
            "probes.tasks.pairs.rows": "from probes.heads.names import NAMES\n",
            "probes.tasks.words": "",
            "probes.tasks.words.rows": "from probes.tasks.pairs import rows\n",
            "probes.tasks.pairs.late": "def late():\n    import probes.tasks.words.rows\n",
            "probes.tasks.table": "import probes.tasks.words.rows\n",
            "probes.heads": "",
            "probes.heads.names": "",
            "probes.heads.fit": "from ..tasks import table\n",
        },
    )
    assert not find_cycle(import_graph(known))
    graph = folder_graph(known)
    assert set(graph) == {"probes", "probes.tasks", "probes.heads"}
    assert set(find_cycle(graph)) == {"probes.tasks", "probes.heads"}
    order = ("probes", "probes.heads", "probes.tasks")
    assert arrows_against(graph, order) == ["probes.heads.fit (line 1) imports probes.tasks.table"]


def test_shortcuts_are_left_out_of_the_drawing() -> None:
    graph = {"d": {"c": "", "b": "", "a": ""}, "c": {"a": ""}, "b": {"a": ""}, "a": {}}
    assert without_shortcuts(graph) == {"d": ["c", "b"], "c": ["a"], "b": ["a"], "a": []}


def test_the_page_shows_the_folders_and_arrows_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert refresh(page) == page, f"{PAGE.name} is out of date; run: .venv/bin/python -m tests.draw_architecture"


def test_the_drawing_follows_the_code(tmp_path: Path) -> None:
    known = write_modules(
        tmp_path,
        {
            "extract": '"""The package."""\n',
            "extract.errors": "",
            "extract.run": '"""Runs\nextractions.\n\nMore.\n"""\nimport extract.masks.plan\nimport extract.errors\n',
            "extract.run.one": "",
            "extract.masks": '"""Mask plans."""\n',
            "extract.masks.plan": "",
            "probes": "",
            "probes.cli": '"""The command."""\n',
            "probes.cli.main": "import extract.run.one, extract.masks.plan\n",
        },
    )
    drawn = draw(("extract.masks", "extract.run", "probes.cli"), known)
    assert drawn.splitlines()[2:5] == [
        "| `extract/masks/` | Mask plans. |",
        "| `extract/run/` | Runs extractions. |",
        "| `probes/cli/` | The command. |",
    ]
    arrows = [line.strip() for line in drawn.splitlines() if "-->" in line]
    assert arrows == ["extract.run --> extract.masks", "probes.cli --> extract.run"]


def type_checked_homes() -> dict[str, str]:
    """Read what `if TYPE_CHECKING:` of icecore imports: public name to module."""
    return {
        alias.name: node.module or ""
        for node in ast.walk(parse(ROOT / "icecore.py"))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGES)
        for alias in node.names
        if alias.asname
    }


def names_bound_in(module: Path) -> set[str]:
    """Name what a module defines, assigns or imports at its top level."""
    found = set()
    for node in parse(module).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_where_their_table_says(package: str) -> None:
    public = import_module(package)  # loads none of the modules in the table
    homes = public._HOMES
    missing = [f"{home}.{name}" for name, home in homes.items() if name not in names_bound_in(modules()[home])]
    assert homes, f"{package} has no public names"
    assert not missing, f"{package} names what does not exist: {missing}"
    typed = {name: home for name, home in type_checked_homes().items() if home.startswith(f"{package}.")}
    assert typed == homes, "a type checker and Python find other names"
    assert sorted(public.__all__) == sorted(homes)


def test_objects_named_by_place_are_there() -> None:
    """A slip in a table of names would show only when the name is used."""
    places = {
        node.value: at(path, node.lineno)
        for path in modules().values()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and PLACE.fullmatch(node.value)
    }
    for name, entry in HEADS.items():
        parts = (*vars(entry).values(), *entry.sources)
        places |= {part.place: f"the head {name}" for part in parts if isinstance(part, Later)}
    assert len(places) > 30
    missing = [
        f"{where}: {place}"
        for place, where in places.items()
        if place.partition(":")[2].partition(".")[0] not in names_bound_in(modules()[place.partition(":")[0]])
    ]
    assert not missing, "\n".join(missing)


def test_library_code_does_not_import_public_names() -> None:
    """An import of `extract` itself would hide from the tests above which folder it needs."""
    offences = [
        f"{module} (line {line}) imports from {target}"
        for module, targets in import_graph(modules()).items()
        for target, line in targets.items()
        if target in PACKAGES
    ]
    assert not offences, "import from the module that defines the name:\n" + "\n".join(offences)


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
    assert not offences, f"these names do not say what the module holds: {offences}"


def test_a_forbidden_line_would_be_found() -> None:
    """Made of parts, so that this file is not found itself."""
    for folder in ("root", "home", "Users", "work", "opt"):
        assert MACHINE_PATH.search(f'open("/{folder}{"/x"}")')
        assert not MACHINE_PATH.search(f'open("a/{folder}{"/x"}")')
    for first, last in (("TO", "DO"), ("FIX", "ME"), ("XX", "X")):
        assert UNFINISHED.search(f"# {first}{last}: later")
        assert not UNFINISHED.search(f"# {first}{last}S")


def test_no_machine_paths() -> None:
    offences = lines_matching(MACHINE_PATH)
    assert not offences, "\n".join(offences)


def test_nothing_is_marked_unfinished() -> None:
    offences = lines_matching(UNFINISHED)
    assert not offences, "\n".join(offences)


def test_public_names_have_docstrings() -> None:
    """All but commands: what one does is in the docstring of its arguments, which is its help."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    offences = [f"{at(path, 1)}: the module" for path in modules().values() if not ast.get_docstring(parse(path))]
    offences += [
        f"{at(path, node.lineno)}: {node.name}"
        for path in modules().values()
        for node in parse(path).body
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node)
        if not (node.name.endswith("_command") and path.parent.name == "cli")
    ]
    assert not offences, "without a docstring:\n" + "\n".join(offences)


def test_every_package_is_in_the_wheel() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"])
    there = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for name in ("extract", "probes")
        for file in (ROOT / name).rglob("__init__.py")
    }
    assert listed == there | {"probes.configs"}
