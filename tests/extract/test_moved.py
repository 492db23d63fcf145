"""Names that moved: known by their first place in digests, and found where old code imports them."""

import subprocess
import sys
import textwrap
from functools import partial
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Any

import pytest

from extract import moved
from extract.moved import first_place, read_moves
from extract.registry import digest_code, later

LIBRARY = """
    from dataclasses import dataclass

    @dataclass
    class Row:
        width: int = 3

    class Base:
        def act(self):
            return 1

    def pool(hidden):
        return hidden
"""
MINE = """
    class Mine(Base):
        def act(self):
            return pool(ROW.width) + PARTIAL(2) + LATER(3)

    def use(x, row=ROW, method=Base.act):
        return Mine().act() + method(x)
"""


def library(name: str, source: str) -> ModuleType:
    """Make a module of the library."""
    module = ModuleType(name)
    sys.modules[name] = module
    exec(textwrap.dedent(source), vars(module))
    return module


def digest_with(module: ModuleType, names: dict[str, str]) -> str:
    """Digest code of a user that takes names of a module in every way."""
    pool, base, row = (getattr(module, names.get(name, name)) for name in ("pool", "Base", "Row"))
    space: dict[str, Any] = {
        "__name__": "__main__",
        "pool": pool,
        "Base": base,
        "ROW": row(),
        "PARTIAL": partial(pool),
        "LATER": later(f"{module.__name__}:{pool.__name__}", row),
    }
    exec(textwrap.dedent(MINE), space)
    return digest_code(space["use"])


@pytest.mark.parametrize("renamed", [{}, {"pool": "average", "Base": "Root", "Row": "Line"}])
def test_a_move_of_what_a_user_takes_keeps_the_digest_of_their_code(
    renamed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    before = digest_with(library("extract.once.poolings", LIBRARY), {})
    source = LIBRARY
    for old, new in renamed.items():
        source = source.replace(old, new)
    module = library("extract.now", source)
    assert digest_with(module, renamed) != before
    names = " ".join(f"{renamed[name]}={name}" if name in renamed else name for name in ("pool", "Base", "Row"))
    table = read_moves(
        f"{moved.TABLE.read_text(encoding='utf-8')}\n# a remark\nextract.once.poolings extract.now {names}\n"
    )
    monkeypatch.setattr(moved, "moves", lambda: table)
    assert digest_with(module, renamed) == before


def test_names_that_did_not_move_and_those_of_others_stay() -> None:
    assert first_place("extract.now", "Root.act") == ("extract.now", "Root.act")
    assert first_place("extractor", "f") == ("extractor", "f")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("from extract.gone.deep.names import ConfigError; print(ConfigError.__module__)", ""),
        ("from extract.gone import ConfigError, digests; digests.remove_file", ""),
        ("import extract.gone.deep.names; extract.gone.deep.names.InputError", ""),
        ("from extract.gone.digests import load_bytes, NO_SPACE; import hashlib; hashlib.md5", ""),
        ("from extract.files.parts import first_line; from extract.files import parts; parts.first_line", ""),
        ("import inspect, extract.gone; inspect.getmodule(print)", ""),
        ("from extract.gone.deep.names import nothing", "cannot import name 'nothing'"),
        ("import extract.gone.elsewhere", "No module named 'extract.gone.elsewhere'"),
        ("import extract.never", "No module named 'extract.never'"),
    ],
)
def test_old_imports_find_what_moved(code: str, error: str) -> None:
    setup = (
        "from extract import moved\n"
        "lines = ['extract.gone.deep.names extract.errors ConfigError',\n"
        "    'extract.gone.digests extract.files read_file=load_bytes remove_file',\n"
        "    'extract.files.parts extract.errors first_line']\n"
        "table = moved.read_moves('\\n'.join(lines))\n"
        "moved.moves = lambda: table\n"
    )
    done = subprocess.run([sys.executable, "-c", setup + code], capture_output=True, text=True, check=False, timeout=60)
    assert (error in done.stderr) if error else not done.stderr
    assert bool(done.returncode) is bool(error)


def test_a_function_that_became_a_method_keeps_its_first_place() -> None:
    head: Any = later("probes.heads.pair_heads:PairFits.check")
    assert head.first_place == "probes.heads.pairs.evaluation:check_pairs"
    assert import_module("probes.heads.pairs.evaluation").check_pairs is head.value
    assert first_place("probes.heads.pair_heads", "PairFits.build") == ("probes.heads.pair_heads", "PairFits.build")


def test_every_name_of_the_table_is_where_it_says() -> None:
    table = moved.moves()
    wrong = [
        move
        for move in table.by_old.values()
        if getattr(getattr(import_module(move.module), move.name.partition(".")[0], None), "__module__", "")
        != move.module
        or not callable(attrgetter(move.name)(import_module(move.module)))
    ]
    assert not wrong, "correct extract/moved.txt: a name that is gone has no line, one that moved again a new module"
    for module in {new for modules in table.modules.values() for new in modules}:
        import_module(module)
