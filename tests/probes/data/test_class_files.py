"""Classification tasks from local files: every format, drawn splits, and a sentence for every bad input."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.class_task import ClassTask
from probes.data.table_files import quiet_datasets
from probes.data.task_table import load_task

HEADER = "text,label"
GOOD = [f"text {i},{'even' if i % 2 == 0 else 'odd'}" for i in range(40)]


def save(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def read_class_files(files: Any, **options: Any) -> ClassTask:
    return cast("ClassTask", load_task("class-files", files=files, **options))


def counts(task: ClassTask) -> dict[str, int]:
    return {split: len(rows) for split, rows in task.splits.items()}


def fails(files: Any, **options: Any) -> str:
    with pytest.raises((TaskError, UnknownNameError)) as caught:
        read_class_files(files, **options)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_every_format_gives_the_same_task(tmp_path: Path, suffix: str) -> None:
    rows = [{"text": f"text {i}", "label": "even" if i % 2 == 0 else "odd"} for i in range(40)]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        import datasets

        with quiet_datasets():
            datasets.Dataset.from_list(rows).to_parquet(path)
    elif suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif suffix == ".jsonl":
        save(path, [json.dumps(row) for row in rows])
    else:
        save(path, [line.replace(",", "\t" if suffix == ".tsv" else ",") for line in [HEADER, *GOOD]])
    task = read_class_files(path, name="parity")
    assert counts(task) == {"train": 32, "validation": 4, "test": 4}
    assert task.digest() == read_class_files(save(tmp_path / "same.csv", [HEADER, *GOOD])).digest()
    assert (task.name, task.class_names, task.metric, task.source) == ("parity", ("even", "odd"), "accuracy", str(path))
    assert task.notes == ("splits drawn: 80/10/10 with seed 0, stratified by class",)


def test_files_by_split_are_official(tmp_path: Path) -> None:
    files = {split: save(tmp_path / f"{split}.csv", [HEADER, *GOOD]) for split in ("train", "dev", "test")}
    task = read_class_files(files)
    assert counts(task) == {"train": 40, "validation": 40, "test": 40}
    assert task.notes[0] == "validation: the text of 40 of 40 rows is also in train"
    assert list(task.splits["validation"]["row"]) == list(range(40, 80))


def test_a_missing_validation_split_is_drawn_from_train(tmp_path: Path) -> None:
    files = {
        "train": save(tmp_path / "train.csv", [HEADER, *GOOD]),
        "test": save(tmp_path / "test.csv", [HEADER, "x,even", "y,odd"]),
    }
    task = read_class_files(files, validation_fraction=0.2, seed=5)
    assert counts(task) == {"train": 32, "validation": 8, "test": 2}
    assert task.labels("validation").sum() == 4
    note = "splits drawn: 8 of 40 training rows to validation with seed 5, stratified by class"
    assert task.notes == (note,)


def test_train_and_validation_alone_are_kept(tmp_path: Path) -> None:
    files = {split: save(tmp_path / f"{split}.csv", [HEADER, f"{split},even", *GOOD]) for split in ("train", "dev")}
    assert read_class_files(files).notes[0] == "no test split"


def test_one_file_with_a_split_column(tmp_path: Path) -> None:
    lines = [f"part,{HEADER}", *(f"{part},{part} {line}" for part in ("train", "valid", "test") for line in GOOD)]
    path = save(tmp_path / "p.csv", lines)
    assert counts(read_class_files(path, split_column="part")) == {"train": 40, "validation": 40, "test": 40}
    named = save(tmp_path / "s.csv", [lines[0].replace("part", "split"), *lines[1:]])
    assert counts(read_class_files(named)) == {"train": 40, "validation": 40, "test": 40}
    save(path, [*lines, "tset,a,odd"])
    assert "line 122: column 'part' holds 'tset', but one of train, validation, test" in fails(
        path, split_column="part"
    )


def test_groups_stay_together(tmp_path: Path) -> None:
    lines = ["doc,text,label", *(f"d{i // 4},text {i},{'ab'[i % 2]}" for i in range(200))]
    task = read_class_files(save(tmp_path / "g.csv", lines), group="doc")
    held = [set(task.groups(split) or ()) for split in task.splits]
    assert not held[0] & held[1]
    assert not held[0] & held[2]
    assert not held[1] & held[2]
    assert task.notes == ("splits drawn: 80/10/10 with seed 0, 50 groups kept whole",)


def test_pairs(tmp_path: Path) -> None:
    lines = ["a,b,same", *(f"left {i},right {i},{i % 2}" for i in range(40))]
    task = read_class_files(save(tmp_path / "p.csv", lines), text="a", text2="b", label="same")
    assert task.is_pairs
    assert task.splits["train"][0]["text2"].startswith("right")
    assert len(task.texts()) == 80


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["b", "a", "B"], ("B", "a", "b")),
        (["10", "9", "x"], ("10", "9", "x")),
    ],
)
def test_classes_are_numbered_by_value_or_the_alphabet(tmp_path: Path, labels: list[str], names: tuple[str]) -> None:
    lines = [HEADER, *(f"text {i},{labels[i % 3]}" for i in range(30))]
    assert read_class_files(save(tmp_path / "c.csv", lines)).class_names == names
    assert read_class_files(save(tmp_path / "r.csv", [HEADER, *reversed(lines[1:])])).class_names == names


def test_numbers_in_json_are_places_in_the_class_names(tmp_path: Path) -> None:
    path = save(tmp_path / "n.jsonl", [json.dumps({"text": f"t {i}", "label": i % 2}) for i in range(40)])
    assert read_class_files(path).class_names == ("0", "1")
    assert read_class_files(path, class_names=["no", "yes"]).class_names == ("no", "yes")
    whole = save(tmp_path / "w.jsonl", [json.dumps({"text": f"t {i}", "label": float(i % 2)}) for i in range(40)])
    assert read_class_files(whole).digest() == read_class_files(path).digest()
    message = fails(path, class_names=["only"])
    assert (
        f"{path}, line 2: label 1 is not the number of one of the 1 class names (0 to 0): name every class" in message
    )


def test_numbers_of_delimited_text_are_places_too(tmp_path: Path) -> None:
    lines = ["text,label", *(f"text number {k},{k % 2}" for k in range(40))]
    task = read_class_files(save(tmp_path / "a.csv", lines), class_names=["neg", "pos"])
    assert {(row["text"], row["label"]) for rows in task.splits.values() for row in rows} == {
        (f"text number {k}", k % 2) for k in range(40)
    }


def test_given_splits_must_be_there(tmp_path: Path) -> None:
    path = save(tmp_path / "c.csv", [HEADER, *GOOD])
    assert "has no row with a split: name their column" in fails(path, split="given")


def test_labels_of_two_signs_are_texts(tmp_path: Path) -> None:
    lines = ["text,label", *(f"text number {k},{'--1' if k % 2 else '--2'}" for k in range(40))]
    assert read_class_files(save(tmp_path / "a.csv", lines)).class_names == ("--1", "--2")


@pytest.mark.parametrize("encoding", ["UTF-8", "utf8", "utf-8-sig"])
def test_a_mark_is_no_part_of_a_column_whatever_its_encoding_is_called(tmp_path: Path, encoding: str) -> None:
    path = save(tmp_path / "a.csv", ["text,label", *(f"text number {k},{k % 2}" for k in range(40))])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_class_files(path, encoding=encoding).n_rows()["train"] > 20


def test_a_label_outside_the_class_names(tmp_path: Path) -> None:
    path = save(tmp_path / "c.csv", [HEADER, *GOOD])
    message = fails(path, class_names=["even", "uneven"])
    assert "unknown class 'odd'" in message
    assert f"Allowed: even, uneven. It is in {path}, line 3." in message


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"label": "odd"}, "column 'text' is missing, but a text is needed"),
        ({"text": " ", "label": "odd"}, "column 'text' holds ' ', but a text that is not blank is needed"),
        ({"text": 7, "label": "odd"}, "column 'text' holds 7 (int), not a string"),
        ({"text": "a"}, "column 'label' is missing or empty (None), but a class is needed"),
        ({"text": "a", "label": " "}, "column 'label' is missing or empty (''), but a class is needed"),
        ({"text": "a", "label": float("nan")}, "column 'label' is missing or empty (nan), but a class is needed"),
        ({"text": "a", "label": [1, 2]}, "column 'label' holds [1, 2], but one class per row is needed: cut a"),
        ({"text": "a", "label": 0.5}, "column 'label' holds 0.5 (float), but a class is a text or whole number"),
        ({"text": "a", "label": {"x": 1}}, "column 'label' holds {'x': 1} (dict), but a class is a text or"),
        (["a", "odd"], "not a JSON object: ['a', 'odd']"),
    ],
)
def test_a_bad_row_is_named_or_dropped(tmp_path: Path, row: object, said: str) -> None:
    good = [json.dumps({"text": f"t {i}", "label": ["even", "odd"][i % 2]}) for i in range(40)]
    path = save(tmp_path / "p.jsonl", [*good, json.dumps(row)])
    message = fails(path)
    assert f"{path}, line 41: {said}" in message
    assert "`bad_rows: drop`" in message
    task = read_class_files(path, bad_rows="drop")
    assert sum(counts(task).values()) == 40
    assert task.notes[0].startswith(f"{path}: 1 of 41 rows dropped (")
    assert task.notes[0].endswith(": 1; first at line 41)")


def test_all_rows_dropped(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, "a,", "b,"])
    assert "2 of 2 rows dropped (missing label: 2; first at line 2), so no row is left" in fails(path, bad_rows="drop")
    assert "(2 such rows in this file)" in fails(path)


def test_a_missing_group_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "g.csv", ["text,label,doc", "a,odd, "])
    assert "line 2: column 'doc' is missing or empty (' '), but a group is needed" in fails(path, group="doc")


@pytest.mark.parametrize("option", ["text", "label", "text2", "group", "split_column"])
def test_a_missing_column_is_named(tmp_path: Path, option: str) -> None:
    path = save(tmp_path / "p.csv", [HEADER, *GOOD])
    message = fails(path, **{option: "lable"})
    assert "unknown column 'lable': did you mean 'label'? Allowed: text, label." in message
    assert f"These are the columns of {path}" in message


def test_labels_of_mixed_type(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 0}, {"text": "c", "label": "1"}]
    path = save(tmp_path / "m.jsonl", [json.dumps(row) for row in rows])
    message = fails(path)
    assert f"labels are of mixed type, numbers ({path}, line 1: 1) and texts ({path}, line 3: '1')" in message
    path = save(
        tmp_path / "b.jsonl", [json.dumps({"text": str(i), "label": value}) for i, value in enumerate([1, True])]
    )
    assert f"numbers ({path}, line 1: 1) and true/false ({path}, line 2: True)" in fails(path)


def test_one_class(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, *(f"t {i},same" for i in range(20))])
    assert "every training row of task 'class-files' is of the one class 'same'" in fails(path)


def test_a_class_with_one_sample(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, *GOOD, "alone,single", "a,double", "b,double"])
    message = fails(path)
    assert "task 'class-files' has 2 classes of fewer than 3 rows ('double': 2, 'single': 1), which cannot" in message
    assert "set `rare: drop`" in message
    task = read_class_files(path, rare="drop")
    assert task.class_names == ("even", "odd")
    note = "2 classes of fewer than 3 rows ('double': 2, 'single': 1) dropped, 3 rows in all"
    assert task.notes[0] == note
    files = dict.fromkeys(("train", "test"), path)
    assert "train: 2 classes have fewer than 3 rows (double, single)" in read_class_files(files).notes


def test_only_small_classes(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, "a,x", "b,y"])
    assert "task 'class-files' needs two classes of 3 rows or more and has 0" in fails(path, rare="drop")
    one = save(tmp_path / "q.csv", [HEADER, "a,x", "b,x", "c,x", "d,x", "e,y"])
    assert "and has 1; those of fewer are left out ('y': 1): add rows" in fails(one, rare="drop")


def test_an_empty_split(tmp_path: Path) -> None:
    files = {"train": save(tmp_path / "a.csv", [HEADER, *GOOD]), "test": save(tmp_path / "b.csv", [HEADER])}
    assert f"{files['test']} has no rows (only a header" in fails(files)


def test_duplicates_with_conflicting_labels_are_reported(tmp_path: Path) -> None:
    files = {
        "train": save(tmp_path / "a.csv", [HEADER, *GOOD, "text 0,odd", "text 1,odd"]),
        "dev": save(tmp_path / "b.csv", [HEADER, "text 0,odd", "z,even"]),
        "test": save(tmp_path / "c.csv", [HEADER, "new,odd", "n,even"]),
    }
    notes = read_class_files(files).notes
    assert notes == (
        "train: 2 of 42 rows repeat the texts of an earlier row",
        "train: 1 text occurs more than once with different labels ('text 0': even, odd)",
        "validation: the text of 1 of 2 rows is also in train",
    )


def test_unknown_options(tmp_path: Path) -> None:
    path = save(tmp_path / "p.csv", [HEADER, *GOOD])
    assert "unknown bad_rows 'dorp': did you mean 'drop'?" in fails(path, bad_rows="dorp")
    assert "`rare` is 'keep', but one of error, drop is needed" in fails(path, rare="keep")
    assert "`validation_fraction` is 0.9, but a number above 0 and at most 0.5" in fails(path, validation_fraction=0.9)
    assert "unknown metric 'f2'. Allowed: f1-weighted" in fails(path, metric="f2")
    assert "task 'class-files' has no training split (its splits: test)" in fails({"test": path})


def labelled(folder: Path, train: list[str], test: list[str]) -> dict[str, Path]:
    """Save files whose rows have these labels, and different texts."""
    return {
        split: save(folder / f"{split}.csv", [HEADER, *(f"{split} text {k},{label}" for k, label in enumerate(labels))])
        for split, labels in (("train", train), ("test", test))
    }


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        (["0", "1"], ["0.0", "1.0"], r"\('0.0': 4, '1.0': 4\): they are those of train but for case or number format"),
        (["Sport", "News"], ["sport", "news"], r"case or number format, as 'sport' and 'Sport'; write them alike\."),
        (["a", "b"], ["c", "d"], r"lacks \('c': 4, 'd': 4\): train has 'a', 'b'; give files with the same classes\."),
    ],
)
def test_labels_that_train_never_had_are_refused_where_they_are_most(
    train: list[str], test: list[str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=f"8 of 8 test rows of task 'class-files' have labels .*{sentence}"):
        read_class_files(labelled(tmp_path, train * 5, test * 4))
    with pytest.raises(TaskError, match="5 of 9 test rows"):
        read_class_files(labelled(tmp_path, train * 5, [*train * 2, *[test[0]] * 5]))
    task = read_class_files(labelled(tmp_path, train * 5, [*train * 2, *[test[0]] * 4]))
    [note] = [note for note in task.notes if "train lacks" in note]
    assert note.startswith(f"test: 4 rows are of classes that train lacks ({test[0]}: 4), and cannot be right")
    assert ("but for case or number format" in note) == ("case or number format" in sentence)


@pytest.mark.parametrize("label", ["", " ", "n/a", "N/A", "nan", "null"])
def test_a_missing_label_is_counted_and_can_be_dropped(label: str, tmp_path: Path) -> None:
    files = {"train": save(tmp_path / "a.csv", [HEADER, *GOOD, f"left,{label}", f"right,{label}"])}
    assert "column 'label' is missing or empty" in fails(files["train"])
    task = read_class_files(files, bad_rows="drop")
    assert any("2 of 42 rows dropped (missing label: 2" in note for note in task.notes)
    assert len(task.splits["train"]) == len(
        read_class_files({"train": save(tmp_path / "b.csv", [HEADER, *GOOD])}).splits["train"]
    )


@pytest.mark.parametrize("train", [["a,x", "b,y"], ["a,x", "A.,x", "b,y"]])
def test_training_rows_of_which_none_can_become_validation_are_refused(train: list[str], tmp_path: Path) -> None:
    files = {
        "train": save(tmp_path / "train.csv", [HEADER, *train]),
        "test": save(tmp_path / "test.csv", [HEADER, "c,x", "d,y"]),
    }
    assert f"{len(train)} training rows, no two different ones of a class" in fails(files)
    assert counts(read_class_files(files, split="given")) == {"train": len(train), "test": 2}


def test_a_number_can_be_listed_as_missing(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"text {k}", "label": [0, 1, -1, -1.0][k % 4]}) for k in range(80)]
    task = read_class_files(save(tmp_path / "a.jsonl", rows), missing_labels=["-1"], bad_rows="drop")
    assert task.class_names == ("0", "1")
    assert any("40 of 80 rows dropped (missing label: 40" in note for note in task.notes)


@pytest.mark.parametrize("label", ["none", "NA"])
def test_what_may_be_a_class_is_one_unless_it_is_listed(label: str, tmp_path: Path) -> None:
    rows = [HEADER, *GOOD, *(f"text {label} {k},{label}" for k in range(40))]
    files = {"train": save(tmp_path / "a.csv", rows)}
    assert label in read_class_files(files).class_names
    task = read_class_files(files, missing_labels=["", label], bad_rows="drop")
    assert label not in task.class_names
    assert any("40 of 80 rows dropped (missing label: 40" in note for note in task.notes)
