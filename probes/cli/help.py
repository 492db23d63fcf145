"""The text of `--help`: usage in a few lines, then what can be given, in groups, then examples; 80 columns wide."""

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, get_origin

from probes.cli.arguments import Command
from probes.cli.table import COMMANDS

WIDTH, INDENT = 80, 24
GROUPS = {
    "decoder": "decoder", "extraction": "what is extracted", "task": "task", "pretraining": "pretraining",
    "": "heads and run",
}  # fmt: skip
"""Sections of a configuration, in the order of the help; keys of no section are in the last."""
Row = tuple[str, str]


def program_help() -> str:
    """Return the text of `icecore --help`."""
    rows = [(command.name, command.what) for command in COMMANDS.values()]
    about = "Drill a core through a frozen decoder: cache every layer once, then probe it with light heads."
    lines = [f"{strong('usage:')} icecore COMMAND [options]", "", *textwrap.wrap(about, WIDTH), ""]
    lines += [strong("commands:"), *two_columns(rows, 14), "", "icecore COMMAND --help tells the options of a command."]
    return "\n".join([*lines, ""])


def command_help(command: Command) -> str:
    """Return the text of `icecore COMMAND --help`."""
    lines = [f"{strong('usage:')} {command.usage}", "", *textwrap.wrap(command.about, WIDTH), ""]
    lines += [*two_columns((each.name, each.help) for each in command.places), ""] if command.places else []
    own = [
        (_form(each.name, each.kind, each.alias), _with_default(each.help, each.default)) for each in command.options
    ]
    lines += [strong("options:"), *two_columns([*own, ("-h, --help", "show this text")]), ""]
    for title, rows in _key_groups() if command.takes_config else ():
        lines += [strong(f"{title}:"), *two_columns(rows), ""]
    lines += [strong("examples:"), *(f"  icecore {example}" for example in command.examples), ""]
    return "\n".join(lines)


def _key_groups() -> Iterator[tuple[str, list[Row]]]:
    from probes.cli.config import list_keys

    for section, title in GROUPS.items():
        keys = [each for each in list_keys() if each.name.rpartition(".")[0].partition(".")[0] == section]
        yield title, [(_form(f"--{each.name}", each.hint), _with_default(each.help, each.default)) for each in keys]


def _form(name: str, kind: Any, alias: str = "") -> str:
    """Write an option with what its value is called."""
    names = ", ".join(filter(None, (name, alias)))
    if kind is bool and "." not in name and "_" not in name:
        return names
    noun = {"tuple": "[A,B]", "dict": "{KEY: VALUE}", "int": "N", "float": "X", "bool": "BOOL"}
    return f"{names} {noun.get(getattr(get_origin(kind) or kind, '__name__', ''), 'VALUE')}"


def _with_default(text: str, default: Any) -> str:
    if default in ("", None, False, ()) or isinstance(default, dict):
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{text.removesuffix('.')} (default: {shown})"


def two_columns(rows: Iterable[Row], indent: int = INDENT, *, width: int = WIDTH) -> Iterator[str]:
    """Lay out names and texts in two columns; a name that is too long has its own line."""
    for name, text in rows:
        lines = textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
        if len(name) > indent - 4:
            yield f"  {name}"
        else:
            yield f"  {name:{indent - 2}}{lines.pop(0)}"
        yield from (f"{' ' * indent}{line}" for line in lines)


def strong(text: str) -> str:
    """Make a heading bold on a terminal that has colours."""
    is_plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if is_plain else f"\x1b[1m{text}\x1b[0m"
