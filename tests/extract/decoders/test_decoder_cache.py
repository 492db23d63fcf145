"""Entries of the user's cache folder: whole or not there at all, whoever comes first."""

import json
import os
from pathlib import Path

import pytest

from extract.decoders.fetch import (
    SOURCE_FILE,
    STALE_SECONDS,
    SourceRecord,
    icecore_home,
    install,
    read_record,
    working_folder,
    write_record,
)


def make_entry(folder: Path) -> Path:
    """A complete entry whose one file tells who made it."""
    folder.mkdir(parents=True)
    (folder / "made-by").write_text(folder.name)
    write_record(folder, SourceRecord("gguf", origin=folder.name, revision="r"))
    return folder


def test_record_reads_as_written(tmp_path: Path) -> None:
    assert read_record(make_entry(tmp_path / "a")) == SourceRecord("gguf", origin="a", revision="r")


@pytest.mark.parametrize("damage", ["no record", "cut record", "other schema", "file cut", "file gone"])
def test_a_damaged_entry_does_not_count(tmp_path: Path, damage: str) -> None:
    folder = make_entry(tmp_path / "a")
    record = folder / SOURCE_FILE
    match damage:
        case "no record":
            record.unlink()
        case "cut record":
            record.write_text(record.read_text()[:40])
        case "other schema":
            record.write_text(json.dumps({"schema": 2, "files": {}}))
        case "file cut":
            (folder / "made-by").write_text("")
        case "file gone":
            (folder / "made-by").unlink()
    assert read_record(folder) is None


def test_a_snapshot_that_was_deleted_does_not_count(tmp_path: Path) -> None:
    snapshot = make_entry(tmp_path / "snapshot")
    (tmp_path / "a").mkdir()
    write_record(tmp_path / "a", SourceRecord("hub", origin="o/n", revision="c", snapshot=str(snapshot)))
    assert read_record(tmp_path / "a") is not None
    (snapshot / "made-by").unlink()
    assert read_record(tmp_path / "a") is None


def test_the_slower_of_two_processes_keeps_the_entry_of_the_quicker(tmp_path: Path) -> None:
    install(make_entry(tmp_path / "staged"), make_entry(tmp_path / "target"))
    assert (tmp_path / "target" / "made-by").read_text() == "target"


def test_a_broken_entry_makes_room(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "half").write_text("")
    with working_folder(target) as work:
        install(make_entry(work / "staged"), target)
    assert (target / "made-by").read_text() == "staged"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_what_a_killed_process_left_is_removed_a_day_later(tmp_path: Path) -> None:
    fresh, stale = tmp_path / ".a.fresh", tmp_path / ".a.stale"
    for folder in (fresh, stale):
        folder.mkdir()
        (folder / "weights.gguf").write_text("")
    long_ago = fresh.stat().st_mtime - STALE_SECONDS - 60
    os.utime(stale, (long_ago, long_ago))
    with working_folder(tmp_path / "a"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".a.fresh"]


def test_home_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("ICECORE_HOME", raising=False)
    assert icecore_home() == tmp_path / "xdg" / "icecore"
    monkeypatch.setenv("ICECORE_HOME", str(tmp_path / "own"))
    assert icecore_home() == tmp_path / "own"
    assert icecore_home(tmp_path / "given") == tmp_path / "given"
