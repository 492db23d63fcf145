"""What the sources advise can be followed."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_string_advises_to_install_this_project_from_an_index() -> None:
    advice: list[str] = []
    for path in [ROOT / "icecore.py", *(ROOT / "extract").rglob("*.py"), *(ROOT / "probes").rglob("*.py")]:
        advice.extend(
            f"{path.relative_to(ROOT)}:{node.lineno}"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "icecore[" in node.value
        )
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert advice == []
    assert [page.name for page in pages if "install 'icecore[" in page.read_text(encoding="utf-8")] == []
