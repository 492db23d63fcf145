"""Settings of the documentation site, which `make docs` builds without the network.

`ICECORE_DOCS_ONLINE=1 make docs` also links to the documentation of Python, torch and the others.
"""

import os
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

project = "icecore"
author = "the authors of icecore"
release = version = installed_version("icecore")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx"]
exclude_patterns: list[str] = []
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
napoleon_numpy_docstring = False

LINKED = {
    "python": "https://docs.python.org/3",
    "numpy": "https://numpy.org/doc/stable",
    "pandas": "https://pandas.pydata.org/docs",
    "torch": "https://docs.pytorch.org/docs/stable",
}
is_online = bool(os.environ.get("ICECORE_DOCS_ONLINE"))
intersphinx_mapping = {name: (address, None) for name, address in LINKED.items()} if is_online else {}

FIELDS: dict[str, list[str]] = {}
default_role = "code"
nitpicky = True
nitpick_ignore_regex = [
    # Types of Python and of other libraries, known only where their inventories are fetched.
    (
        "py:.*",
        r"(torch|numpy|np|pandas|pd|matplotlib|lightning|jaxtyping|collections|pathlib|rich|typing|transformers)(\..*)?",
    ),
    ("py:.*", r"datasets\..*"),
    (
        "py:.*",
        r"(Tensor|Float|Bool|Int|ndarray|NDArray|Path|Sequence|Mapping|Iterable|Iterator|Callable|Any|Literal"
        r"|Table|ScreenTable|SentenceTransformer|AbsEncoder|Figure|NotFittedError)",
    ),
    ("py:.*", r"(tuple|dict|list)\[.*"),
    # Types inside the library that no page lists.
    (
        "py:.*",
        r"((extract|probes)\..*|HeadOptions|HeadResult|HeadParts|FitContext|Reporter|FittedModule|Task|Album|Runs|Transform|ShownPage)",
    ),
]

html_theme = "furo"
html_title = "icecore"
html_show_copyright = False


def keep_fields(_: Sphinx, what: str, name: str, __: Any, ___: Any, lines: list[str]) -> None:
    """Keep the text of a field from napoleon, which would take `Hub revision: a branch ...` for a type."""
    if what in ("attribute", "property"):
        FIELDS[name] = [*lines]


def finish_docstring(_: Sphinx, __: str, name: str, ___: Any, ____: Any, lines: list[str]) -> None:
    """Put the text of a field back, and end code before the letter of a plural, as reStructuredText wants it."""
    found = FIELDS.pop(name, lines)
    lines[:] = [re.sub(r"(?<!`)(`[^`]+`)(?=\w)", r"\1\\ ", line) for line in found]


def link_error(app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement) -> Any:
    """Find the errors that docstrings name without their module."""
    if node.get("reftype") != "exc":
        return None
    target = f"extract.errors.{node['reftarget']}"
    return env.domains.python_domain.resolve_xref(env, node["refdoc"], app.builder, "exc", target, node, shown)


def setup(app: Sphinx) -> None:
    """Read docstrings as they are written, and show diagrams as text."""
    app.connect("autodoc-process-docstring", keep_fields, priority=400)
    app.connect("autodoc-process-docstring", finish_docstring, priority=600)
    app.connect("missing-reference", link_error)
    app.add_lexer("mermaid", TextLexer)
