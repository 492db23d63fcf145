"""New rows are read as the run read its own, bad ones get a reason, and numbers stay in the range of gold."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import HeadError, InputError, UnknownNameError
from probes.cli.main import main
from probes.runs.new_rows import NewRow, RowReader
from probes.runs.predict import LoadedRun, RowScorer, load_run
from probes.runs.run import run
from probes.runs.run_config import RunConfig, TaskSpec
from tests.probes.scored_runs import run_words

pytestmark = pytest.mark.long

WORDS = ["ice", "snow", "wind", "rain", "cloud", "river", "stone", "forest", "meadow", "harbour"]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> LoadedRun:
    """A run on a file that nobody could read without its options: semicolons, Latin-1 and German names."""
    base = tmp_path_factory.mktemp("numbers")
    lines = ["Kennung;Bewertung;Größe"]
    lines += [f"{i};{WORDS[i % 10]} und {WORDS[i // 10]}, Maß {i};{i % 7},5" for i in range(60)]
    (base / "rows.csv").write_bytes("\n".join(lines).encode("latin-1"))
    options = {
        "files": str(base / "rows.csv"),
        "text": "Bewertung",
        "number": "Größe",
        "delimiter": ";",
        "encoding": "latin-1",
        "decimal": ",",
    }
    config = RunConfig(
        name="numbers",
        decoder=DecoderSpec(str(decoder_folder), device="cpu"),
        task=TaskSpec("number-files", options),
        heads={"ridge-probe": {"alphas": (0.1,)}},
        bootstrap=100,
        caches=str(base / "caches"),
        runs=str(base / "runs"),
    )
    return load_run(run(config).folder)


def write(path: Path, lines: Sequence[str], encoding: str = "latin-1") -> Path:
    path.write_bytes("\n".join(lines).encode(encoding))
    return path


def test_a_file_like_that_of_the_run_needs_no_options(numbers: LoadedRun, tmp_path: Path) -> None:
    texts = ["Schnee, Maß voll", "Eis und Größe"]
    file = write(tmp_path / "new.csv", ["Kennung;Bewertung", *(f"{i};{text}" for i, text in enumerate(texts))])
    frame = numbers.predict_file(file)
    assert list(frame.columns) == ["Kennung", "Bewertung", "number"]
    assert frame["Bewertung"].tolist() == texts
    assert frame["number"].tolist() == pytest.approx(numbers.predict(texts))


def test_a_usual_file_of_the_same_columns_is_read_too(numbers: LoadedRun, tmp_path: Path) -> None:
    for name, lines in (
        ("a.csv", ["Bewertung,note", '"Schnee, viel",1']),
        ("b.csv", ["text", "Schnee"]),
        ("c.jsonl", [json.dumps({"Bewertung": "Schnee"})]),
        ("d.txt", ["Schnee", "Eis"]),
    ):
        rows = numbers.reader().read_file(write(tmp_path / name, lines, "utf-8"))
        assert [row.error for row in rows] == [""] * len(rows), name
        assert str(rows[0].row).startswith("Schnee"), name


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_bad_row_gets_a_reason_and_the_file_goes_on(numbers: LoadedRun, form: str, tmp_path: Path) -> None:
    if form == "csv":
        lines = ["Kennung;Bewertung", "1;Eis", "2; ", "3", "4;Schnee", "5;a;b"]
        reasons = ["", "line 3, column 'Bewertung': ' ' is no text", "line 4: wrong number of columns", "", "line 6"]
    else:
        lines = [
            '{"Bewertung": "Eis"}',
            '{"Bewertung": null}',
            "{broken",
            '{"Bewertung": "Schnee"}',
            '{"Bewertung": "\\ud800"}',
        ]
        reasons = ["", "line 2, column 'Bewertung': None is no text", "line 3: '{broken' is not JSON", "", "line 5"]
    file, out = write(tmp_path / f"new.{form}", lines), tmp_path / "out.csv"
    argv = ["predict", str(numbers.folder), str(file), "--out", str(out), "--quiet"]
    assert main(argv) == 0
    frame = pd.read_csv(out, keep_default_na=False)
    expected = numbers.predict(["Eis", "Schnee"])
    good = frame[frame["error"] == ""]
    assert good["number"].astype(float).tolist() == pytest.approx(expected)
    assert (frame["number"] == "").tolist() == [bool(reason) for reason in reasons]
    for reason, error in zip(reasons, frame["error"], strict=True):
        assert reason in error
    whole = numbers.predict_file(file)
    assert whole["number"].notna().tolist() == [not reason for reason in reasons]
    good_lines = [line for line, reason in zip(lines[form == "csv" :], reasons, strict=True) if not reason]
    file = write(tmp_path / f"good.{form}", [*lines[: form == "csv"], *good_lines])
    assert "error" not in numbers.predict_file(file).columns


def test_a_row_that_only_the_decoder_refuses_is_isolated(numbers: LoadedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, n_calls = numbers.scorer(), 0
    predict = RowScorer.predict

    def refuse(self: RowScorer, rows: Sequence[Any], **more: Any) -> list[Any]:
        nonlocal n_calls
        n_calls += 1
        if "bad" in rows:
            raise InputError("text 0 is bad.") if n_calls % 2 else RuntimeError("no memory")
        return predict(self, rows, **more)

    monkeypatch.setattr(RowScorer, "predict", refuse)
    rows = [NewRow("bad" if k in (3, 11) else f"Eis {k}", where=f"row {k}") for k in range(16)]
    answers = scorer.answer(rows)
    assert [k for k, answer in enumerate(answers) if answer.error] == [3, 11]
    assert all(answer.error.startswith(f"row {k}: ") for k, answer in enumerate(answers) if answer.error)
    monkeypatch.undo()
    predicted = [answer.prediction for answer in answers if not answer.error]
    assert predicted == pytest.approx(scorer.predict([f"Eis {k}" for k in range(16) if k not in (3, 11)]), abs=1e-5)
    assert n_calls < 2 * len(rows)


def test_numbers_are_clipped_to_the_range_of_gold_on_request(
    numbers: LoadedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scorer = numbers.scorer()
    assert scorer.gold_range == (0.5, 6.5)
    far = replace(scorer, gold_range=(2.9, 3.1))
    rows = [NewRow(f"{word} {k}") for k, word in enumerate(WORDS)]
    free, clipped = far.answer(rows), far.answer(rows, is_clipped=True)
    values = [float(str(answer.prediction)) for answer in free]
    assert min(values) < 2.9 or max(values) > 3.1
    assert [answer.prediction for answer in clipped] == [min(max(value, 2.9), 3.1) for value in values]
    with pytest.raises(HeadError, match="does not record the range of its gold"):
        replace(scorer, gold_range=None).answer(rows, is_clipped=True)
    file = write(tmp_path / "new.txt", ["Eis"])
    assert main(["predict", str(numbers.folder), str(file), "--clip", "--quiet"]) == 0
    assert 0.5 <= float(capsys.readouterr().out.splitlines()[1].split(",")[0]) <= 6.5
    with pytest.raises(HeadError, match="--clip does nothing for a run on classes; allowed: pairs and numbers"):
        replace(scorer, kind="classes").require_range()


def test_what_is_wrong_with_a_whole_file_is_said(numbers: LoadedRun, tmp_path: Path) -> None:
    file = write(tmp_path / "new.csv", ["a;b", "1;2"])
    with pytest.raises(InputError, match=r"has no columns Bewertung or text or sentence .*--columns: a, b"):
        numbers.predict_file(file)
    with pytest.raises(UnknownNameError, match="unknown column 'c'"):
        numbers.predict_file(file, columns=["c"])


def test_words_are_found_in_the_column_of_the_run(
    tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path, tmp_path: Path
) -> None:
    base = tmp_path_factory.mktemp("tagged")
    lines = [f"1\t{first}\tN\n2\t{second}\tV\n" for first in WORDS for second in WORDS]
    (base / "rows.conll").write_text("\n".join(lines), encoding="utf-8")
    options = {"files": str(base / "rows.conll"), "columns": ["number", "word", "tag"], "tags": "tag"}
    folder = run_words(
        base, decoder_folder, task=TaskSpec("word-files", options), seeds=(0,), heads={"token-mix": {"pooling": "last"}}
    )
    new = write(tmp_path / "new.conll", ["1\tice\t_", "2\tsnow\t_", "", "1\twind\t_"])
    assert [row.row for row in load_run(folder).reader().read_file(new)] == [["ice", "snow"], ["wind"]]
    bare = write(tmp_path / "bare.conll", ["ice", "snow"])
    assert [row.row for row in load_run(folder).reader().read_file(bare)] == [["ice", "snow"]]


def test_conllu_and_files_without_a_header() -> None:
    reader = RowReader("words", 1, reads_words=True)
    lines = ["# text = zum Eis", "1-2\tzum\t_", "1\tzu\t_", "2\tdem\t_", "3\tEis\t_", "3.1\tx\t_"]
    assert [row.row for row in reader.read_lines(lines, "new.conllu")] == [["zu", "dem", "Eis"]]


def test_a_file_without_a_header_may_lack_the_gold(tmp_path: Path) -> None:
    from probes.data.table_files import FileOptions

    options = FileOptions(header=False, columns=("label", "text"))
    reader = RowReader("classes", 1, reads_words=False, columns=("text",), gold="label", options=options)
    for lines in (["x,Eis", "y,Schnee"], ["Eis", "Schnee"]):
        rows = reader.read_file(write(tmp_path / "new.csv", lines))
        assert [row.row for row in rows] == ["Eis", "Schnee"]
