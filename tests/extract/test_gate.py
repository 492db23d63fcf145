"""Code that files name is imported when the user allows its module, and only where its source is as it was recorded."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from extract.errors import CodeError, CodeWarning, InputError
from extract.masks.mask_plan import KINDS, parse_plan
from extract.poolings.pooling_table import POOLINGS, select_poolings
from extract.registry import ADDED, allow_code, digest_source, import_code, import_own

SOURCE = """
with open({mark!r}, 'a') as file:
    file.write(__name__ + ' ')

def sums(hidden, index):
    return hidden.sum(1)
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where modules of every depth note that they are imported."""
    mark = tmp_path / "mark"
    source = SOURCE.format(mark=str(mark))
    files = (
        "gated.py",
        "gated_package/__init__.py",
        "gated_package/inner/__init__.py",
        "gated_package/inner/part.py",
        "gated_spaced/inner/part.py",
    )
    for file in files:
        path = tmp_path / "modules" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = [dict(table) for table in (ADDED, POOLINGS, KINDS)]
    yield mark
    for table, content in zip((ADDED, POOLINGS, KINDS), before, strict=True):
        table.clear()  # type: ignore[attr-defined]
        table.update(content)  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.startswith("gated")]:
        del sys.modules[name]


def test_nothing_is_imported_unless_it_is_allowed_by_name(mark: Path) -> None:
    for look in (select_poolings, parse_plan):
        with pytest.raises(CodeError, match=r"gated:sums' is code of the module 'gated'.* add --allow-code gated, or"):
            look("gated:sums")
        with (
            allow_code("other"),
            pytest.raises(CodeError, match="--allow-code other,gated, or"),
        ):
            look("gated:sums")
    assert not mark.exists()
    with allow_code("gated"):
        assert select_poolings("gated:sums") == ("gated:sums",)
    assert mark.read_text(encoding="utf-8") == "gated "
    assert select_poolings("gated:sums") == ("gated:sums",)  # it is registered now


def test_a_typed_name_allows_that_name_alone(mark: Path) -> None:
    with allow_code("gated:other"), pytest.raises(CodeError):
        select_poolings("gated:sums")
    assert not mark.exists()
    with allow_code(["gated:sums"]):
        select_poolings("gated:sums")
    assert mark.exists()


def test_a_module_that_is_imported_already_is_no_leave_to_call_it(mark: Path) -> None:
    del mark
    for name in ("os:system", "subprocess:call", "shutil:rmtree"):
        with pytest.raises(CodeError, match="which no file may import by itself"):
            select_poolings(name)


def test_entry_points_need_leave_too(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    def points(*, group: str, name: str) -> list[EntryPoint]:
        return [EntryPoint(name, "gated:sums", group)] if name == "theirs" else []

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    with pytest.raises(CodeError, match="the pooling 'theirs' is code of the module 'gated'"):
        select_poolings("theirs")
    assert not mark.exists()


@pytest.mark.parametrize("module", ["gated", "gated_package.inner.part", "gated_spaced.inner.part"])
def test_sources_are_digested_without_importing_anything(module: str, mark: Path) -> None:
    before = set(sys.modules)
    digest = digest_source(module)
    assert len(digest) == 64
    for path in sorted((mark.parent / "modules" / module.partition(".")[0]).rglob("*.py")) or [
        mark.parent / "modules" / "gated.py"
    ]:
        text = path.read_text(encoding="utf-8")
        path.write_text(f"{text}# edited\n", encoding="utf-8")
        assert digest_source(module) != digest, f"{path.name} does not count"
        path.write_text(text, encoding="utf-8")
    assert digest_source(module) == digest
    assert not mark.exists()
    assert {name for name in set(sys.modules) - before if name.startswith("gated")} == set()


@pytest.mark.parametrize("module", ["no_such", "gated.inner", "gated_package.none", "gated_spaced.none.part", ""])
def test_what_is_not_there_has_no_digest(module: str, mark: Path) -> None:
    assert digest_source(module) == ""
    assert not mark.exists()


@pytest.mark.parametrize("edited", ["gated_package/__init__.py", "gated_package/inner/part.py"])
def test_a_recorded_module_is_compared_before_it_is_imported(edited: str, mark: Path) -> None:
    module = "gated_package.inner.part"
    record = {"module": module, "sha256": "0", "source": digest_source(module)}
    path = mark.parent / "modules" / edited
    path.write_text(path.read_text(encoding="utf-8") + "EDITED = True\n", encoding="utf-8")
    for described in ({"pooling x": record}, {f"pooling {module}:sums": record}):
        with pytest.raises(CodeError, match=r"is code of the module 'gated_package\.inner\.part', which"):
            import_own(described, folder=mark.parent / "run")
        with allow_code(module), pytest.raises(CodeError, match="whose source is not the one that was recorded"):
            import_own(described, folder=mark.parent / "run")
    with allow_code("gated_none"), pytest.raises(InputError, match=r"which cannot be imported \(ModuleNotFoundError"):
        import_own({"pooling x": {**record, "module": "gated_none"}}, folder=mark.parent / "run")
    assert not mark.exists()
    record["source"] = digest_source(module)
    with allow_code(module):
        import_own({f"pooling {module}:sums": record}, folder=mark.parent / "run")
    assert mark.read_text(encoding="utf-8").split() == ["gated_package", "gated_package.inner", module]


def test_a_record_without_a_digest_of_the_source_gets_a_warning(mark: Path) -> None:
    record = {"module": "gated", "sha256": "0"}
    with pytest.raises(CodeError, match="which no file may import by itself"):
        import_code("gated", "the pooling 'x'", record=record)
    assert not mark.exists()
    with allow_code("gated"), pytest.warns(CodeWarning, match="'x' was recorded without a digest of the source"):
        import_code("gated", "the pooling 'x'", record=record)
    with allow_code("gated"), warnings.catch_warnings():
        warnings.simplefilter("error")
        import_code("gated", "the pooling 'x'", record={**record, "source": "other"})  # here already: nothing is run
