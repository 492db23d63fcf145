"""Which module of the two packages imports which, read from the source; `test_architecture` proves things about it."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("extract", "probes")
PLACE = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+:\w+")
"""An object that `extract.registry.later` imports when it is used."""

Graph = Mapping[str, Mapping[str, object]]
"""Importer to imported; what an arrow maps to names its place, and differs from graph to graph."""


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


@cache
def imported_names(module: str, path: Path) -> tuple[tuple[str, int], ...]:
    """List each dotted name that a module imports, relative ones made absolute, with its line; read once."""
    return tuple(_imported_names(module, path))


def _imported_names(module: str, path: Path) -> Iterator[tuple[str, int]]:
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
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PLACE.fullmatch(node.value):
            yield node.value, node.lineno


def nearest_module(name: str, known: dict[str, Path]) -> str | None:
    """Cut a dotted name down to the module that holds it; None for other people's packages."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def import_graph(known: dict[str, Path]) -> dict[str, dict[str, int]]:
    """Map each module to the modules it imports, each with the first line that does.

    An object named by its place counts where it is in another folder: within one, a table names what reads the table.
    """
    graph: dict[str, dict[str, int]] = {}
    for module, path in known.items():
        edges = graph.setdefault(module, {})
        for name, line in imported_names(module, path):
            target = nearest_module(name.replace(":", "."), known)
            if target is None or target == module:
                continue
            if ":" in name and folder_of(target, known[target]) == folder_of(module, path):
                continue
            edges.setdefault(target, line)
    return graph


def find_cycle(graph: Graph) -> list[str]:
    """Return one cycle, importer before imported, with its first name repeated at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def folder_of(module: str, path: Path, *, depth: int = 2) -> str:
    """Name the folder of a module, at most `depth` names deep; a root file is in the folder of its package."""
    parts = module.split(".")
    folders = parts if path.name == "__init__.py" else parts[:-1]
    return ".".join(folders[:depth])


def folder_graph(known: dict[str, Path], *, depth: int = 2) -> dict[str, dict[str, str]]:
    """Map each folder to the other folders it imports from, each with one import that does.

    Args:
        known: Modules by dotted name.
        depth: 2 counts nested folders as part of their top folder, 3 keeps them apart.

    Returns:
        Folder to folder to a sentence that names the import.
    """
    folders = {module: folder_of(module, path, depth=depth) for module, path in known.items()}
    graph: dict[str, dict[str, str]] = {folder: {} for folder in folders.values()}
    for module, targets in import_graph(known).items():
        for target, line in targets.items():
            if folders[target] != folders[module]:
                where = f"{module} (line {line}) imports {target}"
                graph[folders[module]].setdefault(folders[target], where)
    return graph


def siblings_graph(known: dict[str, Path], folder: str) -> dict[str, dict[str, str]]:
    """Keep the arrows among the folders nested in one folder; the folder's own files are left out."""
    graph = folder_graph(known, depth=folder.count(".") + 2)
    inside = [name for name in graph if name.rpartition(".")[0] == folder]
    return {name: {target: where for target, where in graph[name].items() if target in inside} for name in inside}


def arrows_against(graph: Graph, order: Iterable[str]) -> list[str]:
    """List the arrows that do not point to a folder earlier in the order, each with its place."""
    place = {folder: i for i, folder in enumerate(order)}
    return [
        str(where)
        for folder, targets in graph.items()
        for target, where in targets.items()
        if place[target] >= place[folder]
    ]


def without_shortcuts(graph: Graph) -> dict[str, list[str]]:
    """Drop every arrow that longer ways along other arrows imply: the transitive reduction of a DAG."""

    @cache
    def reachable(folder: str) -> frozenset[str]:
        return frozenset(graph[folder]).union(*(reachable(target) for target in graph[folder]))

    return {
        folder: [t for t in targets if not any(t in reachable(other) for other in targets if other != t)]
        for folder, targets in graph.items()
    }
