import json
from pathlib import Path
from typing import Any, cast

import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.pair_task import PairTask, parse_score_range, read_pair_files
from probes.data.task_table import load_task

HEADER = "sentence1,sentence2,score"
GOOD = [f"left {i},right {i},{i % 6}" for i in range(8)]


def save(path: Path, lines: list[str], *, end: str = "\n", mark: bytes = b"") -> Path:
    path.write_bytes(mark + end.join([*lines, ""]).encode())
    return path


def read_rated(files: Any, **options: Any) -> PairTask:
    return cast("PairTask", load_task("pair-files", files=files, **{"score_range": (0, 5), **options}))


def read_csv(folder: Path, *extra: str) -> PairTask:
    return read_rated({"train": save(folder / "p.csv", [HEADER, *GOOD, *extra])})


def fails(path: Path, **options: Any) -> str:
    with pytest.raises((TaskError, UnknownNameError)) as caught:
        read_rated({"train": path}, **options)
    return str(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_byte_order_marks(tmp_path: Path, end: str, mark: bytes) -> None:
    task = read_rated({"train": save(tmp_path / "p.csv", [HEADER, *GOOD, ""], end=end, mark=mark)})
    assert task.splits["train"][7] == {"sentence1": "left 7", "sentence2": "right 7", "score": 1.0}
    assert len(task.splits["train"]) == 8
    assert task.notes == ()


def test_features_are_strings_and_float64(tmp_path: Path) -> None:
    features = read_csv(tmp_path).splits["train"].features
    assert {name: value.dtype for name, value in features.items()} == {
        "sentence1": "string",
        "sentence2": "string",
        "score": "float64",
    }


def test_headerless_csv_with_column_names(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", GOOD)
    task = read_rated({"test": path}, header=False, columns=["a", "b", "s"], sentence1="b", sentence2="a", score="s")
    assert task.splits["test"]["sentence1"][0] == "right 0"


def test_tsv_with_unbalanced_quotes(tmp_path: Path) -> None:
    lines = ["genre\tsentence1\tsentence2\tscore", *(f'g\t"left {i}\ta 5" nail {i}\t{i % 6}' for i in range(8))]
    path = save(tmp_path / "p.tsv", lines)
    task = read_rated({"train": path}, quoting=False)
    assert task.splits["train"][3] == {"sentence1": '"left 3', "sentence2": 'a 5" nail 3', "score": 3.0}
    message = fails(path)
    assert f"{path}, line 2: the row that starts here cannot be split at '\\t'" in message
    assert "set `quoting: false`" in message


def test_a_quote_never_closed_names_the_line_it_opened_on(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, *GOOD, '"open,b,1', *GOOD])
    assert f"{path}, line 10: the row that starts here cannot be split at ','" in fails(path)


def test_another_delimiter(tmp_path: Path) -> None:
    path = save(tmp_path / "p.txt", [line.replace(",", ";") for line in [HEADER, *GOOD]])
    assert len(read_rated({"train": path}, delimiter=";").splits["train"]) == 8
    assert "unknown file suffix '.txt': did you mean '.tsv'? Allowed: .csv, .tsv" in fails(path)
    assert "`delimiter` is ';;', but one character is needed" in fails(path, delimiter=";;")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,b", "line 10: wrong number of columns: 2 instead of 3 in ['a', 'b']"),
        ("a,b,c,3", "line 10: wrong number of columns: 4 instead of 3 in ['a', 'b', 'c', '3']"),
        ("a,b,", "line 10: column 'score' is missing or empty (''), but a number from 0 to 5 is needed"),
        ("a,b,nan", "line 10: column 'score' holds 'nan', but a number from 0 to 5 is needed"),
        ("a,b,-inf", "line 10: column 'score' holds '-inf', but a number from 0 to 5 is needed"),
        ("a,b,good", "line 10: column 'score' holds 'good', but a number from 0 to 5 is needed"),
        ("a,b,1_0", "line 10: column 'score' holds '1_0', but a number from 0 to 5 is needed"),
        ("a,b,NA", "line 10: column 'score' holds 'NA', but a number from 0 to 5 is needed"),
        (
            "a,b,5.5",
            "line 10: column 'score' holds '5.5', but a number from 0 to 5 is needed (or another `score_range`)",
        ),
        (",b,1", "line 10: column 'sentence1' holds '', but a text that is not blank is needed"),
        ("a,\u00a0 ,1", "line 10: column 'sentence2' holds '\\xa0 ', but a text that is not blank is needed"),
    ],
)
def test_a_bad_row_is_named_or_dropped(tmp_path: Path, row: str, said: str) -> None:
    path = save(tmp_path / "p.csv", [HEADER, *GOOD, row, "x,y,2"])
    message = fails(path)
    assert f"{path}, {said}" in message
    assert "`bad_rows: drop`" in message
    task = read_rated({"train": path}, bad_rows="drop")
    assert len(task.splits["train"]) == 9
    assert task.notes[0].startswith(f"{path}: 1 of 10 rows dropped (")
    assert task.notes[0].endswith(": 1; first at line 10)")


def test_another_way_with_bad_rows_is_unknown(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, *GOOD])
    assert "unknown bad_rows 'dorp': did you mean 'drop'? Allowed: error, drop." in fails(path, bad_rows="dorp")


def test_dropped_rows_are_counted_by_reason(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, "a,b", *GOOD, "a,b,9", "a,b,c,d", "a,b,-1"])
    task = read_rated({"train": path}, bad_rows="drop")
    note = f"{path}: 4 of 12 rows dropped (wrong number of columns: 2, gold out of range: 2; first at line 2)"
    assert task.notes == (note,)
    assert "(4 such rows in this file)" in fails(path)


def test_line_numbers_count_newlines_in_quotes_and_blank_lines(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, '"two', 'lines",b,1', "", *GOOD, "a,b,7"])
    assert f"{path}, line 13: column 'score' holds '7'" in fails(path)


def test_all_rows_dropped(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, "a,b,9"])
    message = f"{path}: 1 of 1 rows dropped (gold out of range: 1; first at line 2), so no row is left: fix the file."
    assert fails(path, bad_rows="drop") == message


def test_missing_empty_and_header_only_files(tmp_path: Path) -> None:
    assert f"{tmp_path / 'no.csv'} does not exist" in fails(tmp_path / "no.csv")
    assert f"{tmp_path} is a folder, not a file" in fails(tmp_path)
    (tmp_path / "e.csv").touch()
    assert f"{tmp_path / 'e.csv'} is empty" in fails(tmp_path / "e.csv")
    path = save(tmp_path / "h.csv", [HEADER])
    assert f"{path} has no rows" in fails(path)


def test_a_wrong_column_names_the_nearest_and_those_there(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", ["sentence1,sentence2,scores", *GOOD])
    message = fails(path)
    assert "unknown column 'score': did you mean 'scores'? Allowed: sentence1, sentence2, scores." in message
    assert f"These are the columns of {path}; if its first row is not a header, set `header: false`" in message


def test_header_taken_for_a_row_is_recognised(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, *GOOD])
    message = fails(path, header=False, columns=("sentence1", "sentence2", "score"))
    assert f"{path}, line 1: column 'score' holds 'score'" in message
    assert "is this a header row (`header: true`)?" in message


def test_contradicting_header_options(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, *GOOD])
    assert "`columns` ['a', 'b'] names the columns of a file without a header" in fails(path, columns=["a", "b"])
    assert f"{path} has no header (`header: false`), so `columns` must name" in fails(path, header=False)


def test_a_repeated_column_name(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", ["score,sentence1,score", *GOOD])
    assert f"{path} names column 'score' twice" in fails(path)


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes("\n".join([HEADER, GOOD[0], "caf\xe9,b,1"]).encode("latin-1"))
    assert f"{path}, line 3: byte 0xe9 is not UTF-8" in fails(path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"sentence1": 7, "sentence2": "b", "score": 1}', "line 9: column 'sentence1' holds 7 (int), not a string"),
        ('{"sentence2": "b", "score": 1}', "line 9: column 'sentence1' is missing, but a text is needed"),
        ('{"sentence1": "a", "sentence2": "b", "score": null}', "line 9: column 'score' is missing or empty (None)"),
        ('{"sentence1": "a", "sentence2": "b", "score": true}', "line 9: column 'score' holds True, but a number"),
        ('{"sentence1": "a", "sentence2": "b", "score": NaN}', "line 9: column 'score' holds nan, but a number"),
        (
            '{"sentence1": "\\ud83d", "sentence2": "b", "score": 1}',
            "line 9: column 'sentence1' holds '\\ud83d', which is",
        ),
        ('["a", "b", 1]', "line 9: not a JSON object: ['a', 'b', 1]"),
        ('{"sentence1": "a"', "line 9: '{\"sentence1\": \"a\"' is not JSON (Expecting ',' delimiter)"),
    ],
)
def test_bad_json_lines(tmp_path: Path, row: str, said: str) -> None:
    good = [json.dumps({"sentence1": f"a{i}", "sentence2": f"b{i}", "score": i % 6}) for i in range(8)]
    path = save(tmp_path / "p.jsonl", [*good, row])
    assert f"{path}, {said}" in fails(path)


def test_a_json_list_counts_rows_and_broken_json_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps([{"sentence1": "a", "sentence2": " ", "score": 1}]), encoding="utf-8")
    assert f"{path}, row 1: column 'sentence2' holds ' '" in fails(path)
    path.write_text('[\n{"sentence1": "a"},\n{]', encoding="utf-8")
    assert f"{path}, line 3: this is not JSON" in fails(path)


def test_one_file_with_a_split_column(tmp_path: Path) -> None:
    lines = ["part,sentence1,sentence2,score"]
    lines += [f"{part},{part} {line}" for part in ("test", "dev", "train") for line in GOOD]
    path = save(tmp_path / "p.csv", lines)
    task = read_rated(path, split_column="part")
    assert {split: len(rows) for split, rows in task.splits.items()} == {"train": 8, "validation": 8, "test": 8}
    assert list(task.splits) == ["train", "validation", "test"]
    with pytest.raises(
        UnknownNameError, match=r"unknown column 'prat': did you mean 'part'\? Allowed: part, sentence1"
    ):
        read_rated(path, split_column="prat")
    with pytest.raises(TaskError, match="task 'pair-files' has rows without a split: name their column, or set `split"):
        read_rated(path, split="given")
    save(path, [*lines, "tset,a,b,1"])
    with pytest.raises(TaskError, match=r"line 26: column 'part' holds 'tset', but one of train, validation, test"):
        read_rated(path, split_column="part")


def test_splits_of_one_file_are_drawn_and_equal_pairs_stay_together(tmp_path: Path) -> None:
    """Columns by any name, no split column; the same pair in the other order is the same pair."""
    pairs = [(f"left {i}", f"right {i}", i % 6) for i in range(60)]
    again = [(b, a, gold) for a, b, gold in pairs[:30]]
    path = save(tmp_path / "mine.csv", ["a,b,gold", *(f"{a},{b},{gold}" for a, b, gold in [*pairs, *again])])
    task = read_rated(path, sentence1="a", sentence2="b", score="gold")
    assert task.notes[0].startswith("splits drawn: ")
    assert set(task.n_rows().values()) <= {9, 10, 70, 71, 72}
    assert not [note for note in task.notes if "also in" in note]
    same = read_rated(str(path), sentence1="a", sentence2="b", score="gold")
    assert same.digest() == task.digest()
    other = read_rated(path, sentence1="a", sentence2="b", score="gold", seed=1)
    assert other.digest() != task.digest()
    with pytest.raises(
        TaskError, match=r"task 'pair-files' has 8 rows, 8 of them different, too few to draw splits of"
    ):
        read_rated(save(tmp_path / "few.csv", [HEADER, *GOOD]))


def test_validation_is_drawn_from_train_when_asked(tmp_path: Path) -> None:
    files = {"train": save(tmp_path / "a.csv", [HEADER, *(f"l {i},r {i},{i % 6}" for i in range(80))])}
    files["test"] = save(tmp_path / "b.csv", [HEADER, *GOOD])
    assert read_rated(files).n_rows() == {"train": 80, "test": 8}
    task = read_rated(files, split="auto", validation_fraction=0.25)
    assert task.n_rows() == {"train": 60, "validation": 20, "test": 8}


def test_files_by_split(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, *GOOD])
    assert list(read_rated({"test": path, "dev": str(path)}).splits) == ["validation", "test"]
    with pytest.raises(TaskError, match="`files` names the validation split twice"):
        read_rated({"val": path, "dev": path})
    with pytest.raises(UnknownNameError, match=r"unknown split 'trian': did you mean 'train'\?"):
        read_rated({"trian": path})
    with pytest.raises(TaskError, match="`files` names no file: give at least one of train, validation, test"):
        read_rated({})


def test_the_range_of_scores_is_that_of_train_unless_it_is_set(tmp_path: Path) -> None:
    """Ratings of 1 to 5 become 0 to 1, and what test holds decides nothing."""
    rated = [f"left {i},right {i},{1 + i % 5}" for i in range(10)]
    files = {"train": save(tmp_path / "a.csv", [HEADER, *rated])}
    files["test"] = save(tmp_path / "b.csv", [HEADER, *rated, "a,b,9"])
    task = read_pair_files(files)
    assert task.score_range == (1.0, 5.0)
    assert (task.gold01("train").min(), task.gold01("train").max()) == (0.0, 1.0)
    assert task.gold01("test").max() == 2.0
    assert task.notes[0] == "score_range is 1 to 5, the scores of train; another: task.options.score_range: [0, 5]"
    assert read_pair_files({"test": files["test"]}).score_range == (1.0, 9.0)
    told = read_pair_files({"train": files["train"]}, score_range=[0, 5])
    assert told.score_range == (0.0, 5.0)
    assert not [note for note in told.notes if "score_range" in note]


@pytest.mark.parametrize(
    "value", [[5, 0], [0, 0], [0], [0, 1, 2], ["0", "5"], [0, float("nan")], 5, None, [False, True]]
)
def test_a_bad_score_range_is_refused(value: object) -> None:
    with pytest.raises(TaskError) as caught:
        parse_score_range(value)
    assert f"`score_range` is {value!r}, but two numbers are needed" in str(caught.value)


def test_a_parquet_file_with_glob_characters_in_its_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import datasets

    from probes.data.table_files import quiet_datasets

    path = tmp_path / "p[1]*.parquet"
    table = {"a": [f"t{i}" for i in range(9)], "b": ["None"] * 9, "s": list(range(9)), "more": [[1]] * 9}
    with quiet_datasets():
        datasets.Dataset.from_dict(table).to_parquet(path)
    before = sorted(tmp_path.iterdir())
    had_bars, verbosity = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    capfd.readouterr()
    task = read_rated({"train": path}, sentence1="a", sentence2="b", score="s", score_range=(0, 8))
    assert task.splits["train"][8] == {"sentence1": "t8", "sentence2": "None", "score": 8.0}
    assert capfd.readouterr() == ("", "")
    assert sorted(tmp_path.iterdir()) == before
    assert (datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()) == (had_bars, verbosity)
    assert f"{path}, row 7: column 's' holds 6" in fails(path, sentence1="a", sentence2="b", score="s")


def test_a_file_that_is_no_parquet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "p.parquet", [HEADER, *GOOD])
    assert f"{path} cannot be read as Parquet (ArrowInvalid: Parquet magic bytes not found" in fails(path)
    assert capfd.readouterr() == ("", "")


def test_a_parquet_file_that_names_a_column_twice(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "p.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), path)
    with pytest.raises(TaskError, match=r"p.parquet names column 'text' twice: every column needs its own name"):
        read_pair_files(path)


@pytest.mark.parametrize("value", [[0, 5], (0.0, 5.0), "0,5", "0, 5.0"])
def test_a_range_may_come_from_a_command(value: object) -> None:
    assert parse_score_range(value) == (0.0, 5.0)


@pytest.mark.parametrize("value", ["5,0", "0", "0,5,6", "a,b", "nan,5", [0, float("inf")], [True, 2], 5])
def test_another_range_is_refused(value: object) -> None:
    with pytest.raises(TaskError, match="two numbers are needed"):
        parse_score_range(value)
