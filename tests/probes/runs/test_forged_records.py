"""Forged records of a run, sealed again: every command ends in one sentence, whatever a field holds."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from extract.files import digest_json
from probes.cli.main import main
from probes.report.scores import seal_scores
from tests.extract.tiny_decoders import make_texts, write_shards
from tests.probes.finished_run import Finished

CHANGES: dict[str, Callable[[Any], Any]] = {
    "null": lambda _: None,
    "wrong": lambda value: 7 if isinstance(value, str) else "x",
    "huge": lambda _: 10**400,
    "nested": lambda value: {"a": [value]},
    "list": lambda value: {} if isinstance(value, list) else [],
}


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the path of every field, of lists that of the first item."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*at, key)
        yield from paths(item, (*at, key))


def forged(record: Any, path: tuple[Any, ...]) -> Iterator[Any]:
    """Give the record with the field gone, and with every other content."""
    for change in (None, *CHANGES.values()):
        copy = json.loads(json.dumps(record))
        inner = copy
        for key in path[:-1]:
            inner = inner[key]
        if change is None:
            del inner[path[-1]]
        else:
            inner[path[-1]] = change(inner[path[-1]])
        yield copy


def write_forged(path: Path, record: Any) -> None:
    """Write a record with the digest that whoever forged it can compute."""
    if path.name == "scores.json":
        record = {**record, "sha256": seal_scores(record)}
    else:
        key = "digest" if path.name == "index.json" else "record_sha256"
        rest = {name: value for name, value in record.items() if name != key}
        record = {**rest, key: digest_json(rest)}
    path.write_text(json.dumps(record), encoding="utf-8")


def require_sentences(file: Path, argv: list[list[str]], capsys: pytest.CaptureFixture[str], below: str = "") -> int:
    """Run commands on every forged record, which raises where one ends in anything but a sentence; count refusals."""
    record, n_refused = json.loads(file.read_text(encoding="utf-8")), 0
    for path in paths(record):
        if below and path[: below.count(".") + 1] != tuple(below.split(".")):
            continue
        for bad in forged(record, path):
            write_forged(file, bad)
            for words in argv:
                capsys.readouterr()
                if main(words):
                    message = capsys.readouterr().err
                    assert message.startswith("icecore: "), (path, words)
                    n_refused += 1
    return n_refused


@pytest.fixture
def folder(finished: Finished, tmp_path: Path, unchecked_shapes: None) -> Path:
    """A copy of a finished run, to be changed."""
    del unchecked_shapes
    return Path(shutil.copytree(finished.folder, tmp_path / "run"))


@pytest.mark.parametrize("below", ["name", "kind", "decoder.n_layers", "task.name", "heads.layer-cosine.metric"])
def test_a_forged_field_of_scores_ends_in_a_sentence(
    below: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(folder)
    argv = [["table", run], ["table", run, "--format", "tidy"]]
    assert require_sentences(folder / "scores.json", argv, capsys, below) > len(argv)


@pytest.mark.long
def test_every_forged_field_of_a_head_ends_in_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [["score", str(folder), "a", "b", "--head", "layer-cosine", "--quiet"]]
    assert require_sentences(folder / "heads/layer-cosine/seed_0/head.json", argv, capsys) > 50


@pytest.mark.long
def test_every_forged_field_of_an_index_ends_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unchecked_shapes: None
) -> None:
    del unchecked_shapes
    write_shards(tmp_path / "shards", make_texts(7), window=4)
    argv = [[command, str(tmp_path / "shards")] for command in ("inspect", "geometry")]
    assert require_sentences(tmp_path / "shards" / "index.json", argv, capsys) > 50
