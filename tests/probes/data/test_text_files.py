import gzip
from pathlib import Path

import pytest

from extract.errors import TaskError
from probes.data.table_files import FileOptions, inner_suffix, read_bytes, read_raw


@pytest.mark.parametrize("name", ["a.txt.gz", "A.TXT.GZ"])
def test_packed_files_are_unpacked(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"ice") + gzip.compress(b" melts"))
    assert read_bytes(tmp_path / name) == b"ice melts"
    assert inner_suffix(tmp_path / name) == ".txt"
    (tmp_path / name).write_bytes(b"ice")
    with pytest.raises(
        TaskError, match=rf"{name} cannot be unpacked as gzip \(Not a gzipped file \(b'ic'\)\): download it"
    ):
        read_bytes(tmp_path / name)


def test_files_that_are_not_packed_stay_as_they_are(tmp_path: Path) -> None:
    data = gzip.compress(b"ice")
    (tmp_path / "a.bin").write_bytes(data)
    assert read_bytes(tmp_path / "a.bin") == data
    assert (inner_suffix(Path("gz")), inner_suffix(Path("a.GZ")), inner_suffix(Path("b"))) == ("", "", "")


def test_json_may_be_packed(tmp_path: Path) -> None:
    for name, text in (("a.jsonl.gz", '{"x": 1}\n{"x": 2}\n'), ("a.json.gz", '[{"x": 1}, {"x": 2}]')):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        assert [row.values for row in read_raw(tmp_path / name, FileOptions()).rows] == [{"x": 1}, {"x": 2}]
