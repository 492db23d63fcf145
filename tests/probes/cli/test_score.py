"""`icecore score`: texts, files and standard input for every kind of task, and lines that are no row."""

import io
import json
from pathlib import Path

import pytest

from probes.cli.main import main
from tests.probes.finished_run import Finished
from tests.probes.scored_runs import by_sentence, predicted


def test_score_two_texts(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(finished.folder), "A cat sleeps.", "The cat is asleep."]) == 0
    captured = capsys.readouterr()
    score, left, right = captured.out.rstrip("\n").split("\t")
    assert 0 <= float(score) <= 5
    assert (left, right) == ("A cat sleeps.", "The cat is asleep.")
    best = max(
        finished.scores["heads"], key=lambda n: finished.scores["heads"][n]["summary"]["validation"]["pearson"]["mean"]
    )
    assert captured.err.startswith(f"head {best}")
    assert "mean of 1" not in captured.err


@pytest.mark.parametrize(("source", "option"), [("file", "--pairs"), ("stdin", "--pairs"), ("file", "--file")])
def test_score_many_pairs(
    finished: Finished,
    source: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = 'One "quote.\tTwo.\n\nA line\u2028inside a text.\tAnother.\nTwo.\tOne "quote.\n'
    file = "-"
    if source == "file":
        file = str(tmp_path / "pairs.tsv")
        Path(file).write_text("\ufeff" + lines, encoding="utf-8")
    else:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["score", str(finished.folder), option, file, "--head", "siamese-cosine"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.rstrip("\n").split("\n")]
    assert [row[1:] for row in rows] == [line.split("\t") for line in lines.split("\n") if line]
    assert rows[0][0] == rows[2][0]  # the same pair the other way round


@pytest.mark.parametrize("line", ["only one", "a\tb\tc", "a\t ", "\t"])
def test_a_wrong_line_is_named_and_the_file_goes_on(
    finished: Finished, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.tsv").write_text(f"a\tb\n\n{line}\nc\td\n", encoding="utf-8")
    assert main(["score", str(finished.folder), "--pairs", str(tmp_path / "p.tsv")]) == 0
    streams = capsys.readouterr()
    reason = (
        f"line 3 of {str(tmp_path / 'p.tsv')!r} is {line.split(chr(9))!r}; "
        "allowed: two texts with one tab between them."
    )
    assert [row.split("\t")[1:] for row in streams.out.splitlines()] == [["a", "b"], [reason], ["c", "d"]]
    assert streams.out.splitlines()[1] == f"-\t{reason}"
    assert streams.err.endswith(f"1 of 3 rows have no prediction; the first: {reason}\n")


def test_a_pairs_file_that_cannot_be_read(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(finished.folder), "--pairs", "no.tsv"]) == 1
    assert "file 'no.tsv' cannot be read" in capsys.readouterr().err


def test_a_text_gets_its_class(classes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = predicted(classes)[:3]
    assert main(["score", str(classes), rows[0]["text"]]) == 0
    assert capsys.readouterr().out == f"{rows[0]['logistic-probe']}\t{rows[0]['text']}\n"


def test_texts_of_standard_input_are_a_line_each(
    classes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = predicted(classes)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n".join(row["text"] for row in rows)))
    monkeypatch.setattr("probes.cli.predict_commands.CHUNK_ROWS", 7)
    assert main(["score", str(classes), "--file", "-", "--jsonl"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [{"class": row["logistic-probe"], "text": row["text"]} for row in rows]


def test_the_words_of_a_sentence_get_a_line_each(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence, tags = (by_sentence(words, column)[0] for column in ("word", "token-mix"))
    assert main(["score", str(words), " ".join(sentence), "--head", "token-mix"]) == 0
    expected = [f"{word}\t{tag or '-'}\n" for word, tag in zip(sentence, tags, strict=True)]
    assert capsys.readouterr().out == "".join([*expected, "\n"])


@pytest.mark.parametrize("suffix", [".txt", ".conll"])
def test_sentences_of_a_file(words: Path, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentences, tags = (by_sentence(words, column) for column in ("word", "token-classifier"))
    path = words / "predictions" / "test.conll"  # a run's own, with lines -DOCSTART-
    if suffix == ".txt":
        path = tmp_path / "sentences.txt"
        path.write_text("\n".join(" ".join(sentence) for sentence in sentences), encoding="utf-8")
    assert main(["score", str(words), "--file", str(path), "--head", "token-classifier", "--jsonl"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["word"] for row in found] == sentences
    assert [[tag or "" for tag in row["tag"]] for row in found] == tags


def test_too_few_or_too_many_texts_are_refused(
    finished: Finished, classes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, texts, message in (
        (finished.folder, ["a"], "1 texts were given; allowed: two texts for a run on pairs, or a file of rows"),
        (classes, ["a", "b"], "2 texts were given; allowed: one text for a run on classes, or a file of rows"),
        (classes, [], "0 texts were given; allowed: one text for a run on classes"),
    ):
        assert main(["score", str(folder), *texts]) == 1
        assert message in capsys.readouterr().err


def test_a_file_without_a_good_row_is_an_error(
    classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("\n\n  \n", encoding="utf-8")
    assert main(["score", str(classes), "--file", str(tmp_path / "t.txt")]) == 1
    assert "no row can be predicted: line 3 of" in (err := capsys.readouterr().err)
    assert "is ['  ']; allowed: one text.\n" in err
