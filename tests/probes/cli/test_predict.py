"""`icecore predict`, `table` and `embed`: files of every format, a service on standard input, and what is refused."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from extract.files import plain_text
from extract.store.cache import LatentCache
from probes.cli.main import main
from probes.runs.results import LATEX
from tests.probes.finished_run import Finished
from tests.probes.scored_runs import predicted


def write_pairs(folder: Path, suffix: str) -> Path:
    rows = [{"id": i, "left": f"Ice {i} melts.", "right": "Snow falls, slowly."} for i in range(5)]
    path, table = folder / f"pairs{suffix}", pd.DataFrame(rows)
    if suffix == ".parquet":
        table.to_parquet(path)
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        table.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_table_keeps_its_columns(finished: Finished, suffix: str, tmp_path: Path) -> None:
    file, out = write_pairs(tmp_path, suffix), tmp_path / "out.csv"
    assert main(["predict", str(finished.folder), str(file), "--columns", "left,right", "--out", str(out)]) == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"))))
    assert [list(row) for row in rows[:1]] == [["id", "left", "right", "score"]]
    assert [row["left"] for row in rows] == [f"Ice {i} melts." for i in range(5)]
    assert all(0 <= float(row["score"]) <= 5 for row in rows)


def test_objects_may_each_have_keys_of_their_own(finished: Finished, tmp_path: Path) -> None:
    rows = [{"text1": "a", "text2": "b"}, {"text1": "c", "text2": "d", "note": "second"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    out = tmp_path / "out.csv"
    assert main(["predict", str(finished.folder), str(tmp_path / "rows.jsonl"), "--out", str(out)]) == 0
    assert [row["note"] for row in csv.DictReader(io.StringIO(out.read_text(encoding="utf-8")))] == ["", "second"]


def test_probabilities_stand_beside_the_class(classes: Path, tmp_path: Path) -> None:
    text = predicted(classes)[0]["text"]
    (tmp_path / "texts.csv").write_text(f"text\n{text}\n", encoding="utf-8")
    out = tmp_path / "out.jsonl"
    argv = ["predict", str(classes), str(tmp_path / "texts.csv"), "--probabilities", "--out", str(out)]
    assert main(argv) == 0
    row = json.loads(out.read_text(encoding="utf-8"))
    shares = {name.removeprefix("p_"): value for name, value in row.items() if name.startswith("p_")}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares, key=shares.__getitem__) == row["class"]


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_texts_that_a_spreadsheet_would_run_get_a_quote_where_that_is_asked_for(
    finished: Finished, tmp_path: Path
) -> None:
    texts = ["=1+1", "+a", "-a", "@a", "\ta", "'=1", "a\r=1", "-1.5", "a=1"]
    pd.DataFrame({"text1": texts, "text2": "b", "=note": 1}).to_csv(
        tmp_path / "rows.csv", index=False, lineterminator="\r\n"
    )
    argv, out = ["predict", str(finished.folder), str(tmp_path / "rows.csv"), "--out"], tmp_path / "out.csv"
    assert main([*argv, str(out)]) == 0
    assert [row["text1"] for row in read_rows(out)] == texts
    assert main([*argv, str(out), "--safe-for-spreadsheets"]) == 0
    rows = read_rows(out)
    assert [row["text1"] for row in rows] == [*(f"'{text}" for text in texts[:6]), *texts[6:]]
    assert [plain_text(row["text1"]) for row in rows] == texts
    assert rows[0]["'=note"] == "1"
    assert main([*argv, str(tmp_path / "out.jsonl"), "--safe-for-spreadsheets"]) == 2


def test_words_come_as_lists(words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.jsonl").write_text('{"words": ["Oslo", "is", "cold"]}\n', encoding="utf-8")
    assert main(["predict", str(words), str(tmp_path / "s.jsonl"), "--format", "jsonl"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["words"], len(row["tag"])) == (["Oslo", "is", "cold"], 3)


def test_lines_of_standard_input(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Ice.\tSnow.\n"))
    assert main(["predict", str(finished.folder)]) == 0
    [row] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["text1"], row["text2"]) == ("Ice.", "Snow.")


def test_a_service_answers_line_by_line_and_outlives_bad_lines(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {
        b"no json": "is no JSON",
        b"[1]": "is '[1]'; give an object",
        b'{"text1": "Ice."}': "has no columns sentence1, sentence2 or text1, text2",
        b'{"text1": "", "text2": "b"}': "column 'text1': '' is no text",
        b'{"text1": ["a"], "text2": "b"}': "column 'text1': ['a'] is no text",
        b'{"text1": "\xff", "text2": "b"}': "is not UTF-8 (byte 0xff at 11)",
        b"": "is blank",
        b" \t\r": "is blank",
        b'{"text1": "' + b"x " * 50_000 + b'", "text2": "b"}': "is longer than 65,536 bytes",
        b'{"text1": "\\ud800", "text2": "b"}': "",
        b"[" * 30_000: "is no JSON",
        b'{"text1": "a", "text2": "b", "n": ' + b"9" * 5_000 + b"}": "is no JSON",
    }
    good = b'{"id": 1, "text1": "Ice.", "text2": "Snow."}'
    answers = serve(monkeypatch, capsys, [finished.folder], [good, *bad, good])
    assert answers[0] == answers[-1]
    assert (answers[0]["id"], 0 <= answers[0]["score"] <= 5) == (1, True)
    for number, (answer, message) in enumerate(zip(answers[1:-1], bad.values(), strict=True), start=2):
        assert list(answer) == ["error"]
        assert message in answer["error"]
        assert answer["error"].startswith(f"line {number}")


def serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[Path | str], lines: list[bytes]
) -> list[dict[str, Any]]:
    """Send lines to a service and read its answers."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(lines) + b"\n"), encoding="utf-8"))
    capsys.readouterr()
    assert main(["predict", *map(str, argv), "--serve"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_service_gives_probabilities_where_they_are_asked_for(
    classes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = json.dumps({"text": predicted(classes)[0]["text"], "class": "mine"}).encode()
    [answer] = serve(monkeypatch, capsys, [classes, "--probabilities"], [line])
    shares = {name.removeprefix("p_"): value for name, value in answer.items() if name.startswith("p_")}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares, key=shares.__getitem__) == answer["predicted_class"]
    assert answer["class"] == "mine"


def test_a_service_without_probabilities_refuses_at_once(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(finished.folder), "--serve", "--probabilities"]) == 1
    streams = capsys.readouterr()
    assert "gives no probabilities of classes; allowed: logistic-probe" in streams.err
    assert "ready" not in streams.err


def test_columns_of_the_user_stay_as_they_are(classes: Path, finished: Finished, tmp_path: Path) -> None:
    """A column called as ours was once replaced, so that gold became the prediction."""
    text = predicted(classes)[0]["text"]
    (tmp_path / "texts.csv").write_text(f"text,class,p_x,predicted_class\n{text},gold,1,2\n", encoding="utf-8")
    out = tmp_path / "out.csv"
    assert main(["predict", str(classes), str(tmp_path / "texts.csv"), "--probabilities", "--out", str(out)]) == 0
    [row] = csv.DictReader(io.StringIO(out.read_text(encoding="utf-8")))
    assert (row["class"], row["p_x"], row["predicted_class"]) == ("gold", "1", "2")
    shares = {name: float(row[name]) for name in row if name.startswith("p_") and name != "p_x"}
    assert "p_" + row["predicted_class_2"] == max(shares, key=shares.__getitem__)
    share = next(iter(shares))
    (tmp_path / "texts.csv").write_text(f"text,{share}\n{text},mine\n", encoding="utf-8")
    assert main(["predict", str(classes), str(tmp_path / "texts.csv"), "--probabilities", "--out", str(out)]) == 0
    [row] = csv.DictReader(io.StringIO(out.read_text(encoding="utf-8")))
    assert row[share] == "mine"
    assert float(row[f"predicted_{share}"]) == pytest.approx(shares[share])
    rows = [{"text1": "a", "text2": "b"}, {"text1": "c", "text2": "d", "score": 7}]  # the second alone has one
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert main(["predict", str(finished.folder), str(tmp_path / "rows.jsonl"), "--out", str(out)]) == 0
    first, second = csv.DictReader(io.StringIO(out.read_text(encoding="utf-8")))
    assert (first["score"], second["score"]) == ("", "7")
    assert 0 <= float(first["predicted_score"]) <= 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--columns", "left,rigth"], "unknown column 'rigth': did you mean 'right'?"),
        (["--columns", "left"], "--columns names 1 columns; this run takes 2 texts per row"),
        ([], "has no columns sentence1, sentence2 or text1, text2; name 2 of its own with --columns: id, left, right"),
        (["--columns", "id,left"], "line 1, column 'id': 0 is no text; allowed: a text that is not empty"),
        (["--columns", "left,right", "--out", "/dev/null/x.csv"], "cannot be written"),
    ],
)
def test_what_cannot_be_predicted(
    finished: Finished, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(finished.folder), str(write_pairs(tmp_path, ".jsonl")), *options]) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert message in error


def test_tables_of_runs(finished: Finished, classes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(finished.folder), str(classes)]
    texts = {}
    for form in ("markdown", "csv", "latex", "tidy"):
        assert main(["table", *runs, "--format", form]) == 0
        texts[form] = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert [row["head"] for row in rows] == ["cosine-mlp", "layer-cosine", "siamese-cosine", "logistic-probe"]
    test = finished.scores["heads"]["siamese-cosine"]["summary"]["test"]["pearson"]["mean"]
    assert rows[2]["test"].startswith(f"{100 * test:.1f} ± ")
    assert texts["markdown"].count("\n") == 2 + len(rows)
    assert "$\\pm$" in texts["latex"]
    assert texts["latex"].count(r"\\") == 1 + len(rows)
    assert "\\%" in texts["latex"]
    assert "50%^_~".translate(LATEX) == r"50\%\textasciicircum{}\_\textasciitilde{}"
    assert len(texts["tidy"].splitlines()) > 50


def test_texts_are_embedded_without_a_task(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["Ice melts.", "Snow falls.", "Ice melts."]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    options = [
        "--decoder.name",
        str(decoder_folder),
        "--caches",
        str(tmp_path / "c"),
        "--extraction.layers",
        "[block_01, block_02]",
    ]
    assert main(["embed", str(tmp_path / "texts.txt"), *options, "--out", str(tmp_path / "x.npy")]) == 0
    cache = LatentCache(capsys.readouterr().out.splitlines()[0])
    array = np.load(tmp_path / "x.npy")
    assert (len(cache), array.shape) == (2, (3, 2, len(cache.poolings), cache.width))
    np.testing.assert_array_equal(array[0], array[2])
    np.testing.assert_array_equal(array[1, 1, 0], cache.gather(cache.rows_of([texts[1]]), cache.poolings[0])[1, 0])
    assert main(["embed", str(tmp_path / "texts.txt"), *options, "--out", str(tmp_path / "x.parquet")]) == 0
    table = pd.read_parquet(tmp_path / "x.parquet")
    assert list(table["text"]) == texts
    np.testing.assert_array_equal(table[f"{cache.poolings[0]}/block_02"][1], array[1, 1, 0])
    capsys.readouterr()
    assert main(["extract", "--texts", str(tmp_path / "texts.txt"), *options]) == 0
    assert capsys.readouterr().out.splitlines() == [str(cache.path)]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["t.txt", "--out", "x.csv"], "unknown suffix of --out '.csv'"),
        (["none.txt"], "none.txt"),
    ],
)
def test_what_cannot_be_embedded(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", *argv]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
