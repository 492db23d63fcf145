"""Draws the folders of the two packages and the arrows between them into docs/architecture.md.

The rows of the table on that page declare the order of the folders. Everything else in the block comes from the code:
the first paragraph of each folder's docstring, and the drawing of what it imports. Run it after changing one of them:

    python -m tests.draw_architecture

A new folder gets its row by hand, at its place in the order.
"""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from tests.import_graph import PACKAGES, ROOT, folder_graph, modules, parse, without_shortcuts

PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- drawn from the code -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
ROW = re.compile(r"^\| `([\w/]+)/` \|", re.MULTILINE)


def declared_order(page: str) -> tuple[str, ...]:
    """Read the folders off the table of the page, lowest first; root files are below the folders of their package."""
    found = BLOCK.search(page)
    rows = [row.replace("/", ".") for row in ROW.findall(found[2])] if found else []
    return tuple(name for package in PACKAGES for name in (package, *(r for r in rows if r.startswith(f"{package}."))))


def first_paragraph(path: Path) -> str:
    """Read the first paragraph of a module's docstring as one line."""
    return " ".join((ast.get_docstring(parse(path)) or "").split("\n\n")[0].split())


def draw(order: Sequence[str], known: dict[str, Path]) -> str:
    """Draw the table and the graph.

    Args:
        order: Folders, lowest first, as dotted names.
        known: Modules by dotted name.

    Returns:
        Markdown. Root files are left out of the imports: every folder uses some of them.
    """
    folders = [folder for folder in order if folder not in PACKAGES]
    found = folder_graph(known)
    graph = {folder: {t: "" for t in folders if t in found.get(folder, {})} for folder in folders}
    lines = ["| folder | what it holds |", "|---|---|"]
    for folder in folders:
        holds = first_paragraph(known[folder]) if folder in known else ""
        lines.append(f"| `{folder.replace('.', '/')}/` | {holds} |")
    lines += ["", "```mermaid", "graph TD"]
    for package in PACKAGES:
        inside = [folder for folder in folders if folder.startswith(f"{package}.")]
        lines += [f"  subgraph {package}", *(f"    {f}[{f.partition('.')[2]}]" for f in inside), "  end"]
    arrows = without_shortcuts(graph).items()
    lines += [f"  {folder} --> {' & '.join(targets)}" for folder, targets in arrows if targets]
    return "\n".join([*lines, "```", ""])


def refresh(page: str) -> str:
    """Redraw the block of the page, keeping the order it declares."""
    return BLOCK.sub(lambda found: found[1] + draw(declared_order(page), modules()) + found[3], page)


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
