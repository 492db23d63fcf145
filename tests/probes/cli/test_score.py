"""`icecore score`: two texts, a file, standard input, and a line that is no pair."""

import io
from pathlib import Path

import pytest

from probes.cli.main import main
from tests.probes.finished_run import Finished


def test_score_two_texts(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(finished.folder), "A cat sleeps.", "The cat is asleep."]) == 0
    captured = capsys.readouterr()
    score, left, right = captured.out.rstrip("\n").split("\t")
    assert 0 <= float(score) <= 5
    assert (left, right) == ("A cat sleeps.", "The cat is asleep.")
    best = max(
        finished.scores["heads"], key=lambda n: finished.scores["heads"][n]["summary"]["validation"]["pearson"]["mean"]
    )
    assert captured.err.startswith(f"head {best}, mean of ")


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_score_many_pairs(
    finished: Finished, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = 'One "quote.\tTwo.\n\nA line\u2028inside a text.\tAnother.\nTwo.\tOne "quote.\n'
    file = "-"
    if source == "file":
        file = str(tmp_path / "pairs.tsv")
        Path(file).write_text("\ufeff" + lines, encoding="utf-8")
    else:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["score", str(finished.folder), "--pairs", file, "--head", "siamese-cosine"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.rstrip("\n").split("\n")]
    assert [row[1:] for row in rows] == [line.split("\t") for line in lines.split("\n") if line]
    assert rows[0][0] == rows[2][0]  # the same pair the other way round


@pytest.mark.parametrize("line", ["only one", "a\tb\tc", "a\t ", "\t"])
def test_a_wrong_line_is_named(
    finished: Finished, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.tsv").write_text(f"a\tb\n\n{line}\n", encoding="utf-8")
    assert main(["score", str(finished.folder), "--pairs", str(tmp_path / "p.tsv")]) == 1
    err = capsys.readouterr().err
    assert err == (
        f"icecore: line 3 of {str(tmp_path / 'p.tsv')!r} is {line.split(chr(9))!r}; "
        "allowed: two texts with one tab between them.\n"
    )


def test_a_pairs_file_that_cannot_be_read(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(finished.folder), "--pairs", "no.tsv"]) == 1
    assert "pairs file 'no.tsv' cannot be read" in capsys.readouterr().err
