"""Mutated data files: read, or refused with an `IcecoreError`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.errors import IcecoreError
from probes.data.task_table import load_task
from tests.probes.fuzz.settings import VALUES, bounded, damaged

pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # options of wrong types are for our own sentences
SPLITS = ("train", "validation", "test")
ROWS: list[dict[str, Any]] = [
    {
        "split": SPLITS[i // 10],
        "sentence1": f"text {i}",
        "sentence2": f"other {i * 7}",
        "score": i % 6,
        "text": f"t {i}",
        "label": f"class {i % 2}",
        "number": i / 3,
    }
    for i in range(30)
]


def lines(delimiter: str) -> bytes:
    """Write the rows as delimited text."""
    return "\n".join(delimiter.join(map(str, row)) for row in (ROWS[0], *(row.values() for row in ROWS))).encode()


WORDS = "".join(f"word{i}\tB-X\nnext{i}\tI-X\nlast{i}\tO\n\n" for i in range(12))
FILES: dict[str, tuple[bytes, str]] = {
    "a.csv": (lines(","), "pair-files"),
    "b.tsv": (lines("\t"), "class-files"),
    "c.jsonl": ("\n".join(map(json.dumps, ROWS)).encode(), "number-files"),
    "d.json": (json.dumps(ROWS).encode(), "pair-files"),
    "e.conll": (WORDS.encode(), "word-files"),
}
OPTIONS = (
    "files",
    "name",
    "sentence1",
    "sentence2",
    "score",
    "split_column",
    "score_range",
    "header",
    "columns",
    "delimiter",
    "quoting",
    "bad_rows",
    "text",
    "label",
    "class_names",
    "number",
    "metrics",
    "scheme",
    "tags",
    "folder",
)


def load(name: str, options: dict[str, Any]) -> None:
    """Load a task; only an `IcecoreError` may come of it."""
    try:
        load_task(name, **options)
    except IcecoreError as error:
        assert str(error)


@bounded(50)
@given(data=st.data())
def test_damaged_files(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = data.draw(st.sampled_from(sorted(FILES)))
    content, name = FILES[file]
    path = tmp_path_factory.getbasetemp() / file
    path.write_bytes(data.draw(damaged(content)))
    load(name, {"files": {"train": str(path)} if name == "word-files" else str(path)})


@bounded(50)
@given(data=st.data())
def test_options_of_any_kind(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = data.draw(st.sampled_from(sorted(FILES)))
    content, name = FILES[file]
    path = tmp_path_factory.getbasetemp() / file
    path.write_bytes(content)
    changes = data.draw(st.dictionaries(st.sampled_from(OPTIONS), VALUES, min_size=1, max_size=2))
    load(name, {"files": str(path), **changes})


@bounded(50)
@given(rows=st.lists(st.dictionaries(st.sampled_from(sorted(ROWS[0])), VALUES), min_size=1, max_size=4))
def test_values_of_any_kind(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "values.jsonl"
    mixed = [{**row, **change} for row, change in zip(ROWS[:20:5], rows, strict=False)]
    path.write_text("\n".join(map(json.dumps, [*mixed, *ROWS])), encoding="utf-8")
    for name in ("pair-files", "class-files", "number-files"):
        load(name, {"files": str(path), "bad_rows": "drop"})
