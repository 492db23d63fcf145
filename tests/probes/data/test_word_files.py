import gzip
import json
import re
from pathlib import Path

import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.splits import files_by_split, find_split_files
from probes.data.word_files import load_word_files

ROWS = "Ice NN O\nin IN O\nOslo NNP I-LOC\n"


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text(ROWS, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ("eng.train", "eng.testa", "eng.testb"),
        ("train.txt", "dev.txt", "test.txt"),
        ("Train.conll", "valid.conll", "TEST.conll"),
        ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"),
        ("x_train.tsv", "x-validation.tsv", "x-test.tsv"),
        ("latest_train.txt", "latest_dev.txt", "latest_test.txt"),
        ("train.txt.gz", "testa.txt.gz", "testb.txt.gz"),
        ("trainset.txt", "devset.txt", "contest-test1.txt"),
    ],
)
def test_names_of_files_tell_their_split(tmp_path: Path, names: tuple[str, str, str]) -> None:
    write(tmp_path, *names, "README.md", "notes.txt", ".train_test.swp", "contest.txt", "device.txt", "latest.txt")
    (tmp_path / "trained").mkdir()
    paths = find_split_files(tmp_path)
    assert {split: path.name for split, path in paths.items()} == dict(
        zip(("train", "validation", "test"), names, strict=True)
    )


def test_folders_that_leave_the_split_open(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no file with train, dev, valid or test in its name"):
        find_split_files(write(tmp_path, "a.txt", "latest.txt"))
    with pytest.raises(TaskError, match=r"two files for the train split, train1\.txt and train2\.txt: map each split"):
        find_split_files(write(tmp_path, "train1.txt", "train2.txt"))
    with pytest.raises(TaskError, match=r"a\.txt is a file: give `files` as a folder, or map each of"):
        find_split_files(tmp_path / "a.txt")
    with pytest.raises(TaskError, match="nowhere does not exist"):
        find_split_files(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "splits"),
    [
        ("train_and_test.txt", "the train or the test"),
        ("train-dev.conll", "the train or the validation"),
        ("dev.test.jsonl.gz", "the validation or the test"),
    ],
)
def test_a_name_that_fits_two_splits_is_refused(tmp_path: Path, name: str, splits: str) -> None:
    said = f"{tmp_path / name} may be {splits} split by its name: map each split to its file with `files`."
    with pytest.raises(TaskError, match=f"^{re.escape(said)}$"):
        find_split_files(write(tmp_path, "train.txt", name))


def test_packed_files_of_every_format_make_the_same_task(tmp_path: Path) -> None:
    rows = [["1", "Ice", "_", "NOUN"], ["2", "melts", "_", "VERB"]]
    texts = {
        ".conllu": "".join("\t".join(row) + "\t_" * 6 + "\n" for row in rows),
        ".jsonl": json.dumps({"tokens": ["Ice", "melts"], "upos": ["NOUN", "VERB"]}) + "\n",
        ".txt": "Ice NOUN\nmelts VERB\n",
    }
    digests = set()
    for suffix, text in texts.items():
        folder = tmp_path / suffix[1:]
        folder.mkdir()
        (folder / f"train{suffix}.gz").write_bytes(gzip.compress(text.encode()))
        task = load_word_files(folder, tags="upos", columns=["word", "upos"])
        assert task.source == str(folder / f"train{suffix}.gz")
        digests.add(task.digest())
    assert len(digests) == 1


def test_files_by_split(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    assert list(files_by_split({"dev": tmp_path / "a", "train": str(tmp_path / "b")})) == ["validation", "train"]
    with pytest.raises(UnknownNameError, match=r"unknown split 'trian': did you mean 'train'\?"):
        files_by_split({"trian": tmp_path / "a"})
    with pytest.raises(TaskError, match="`files` names the validation split twice"):
        files_by_split({"dev": tmp_path / "a", "valid": tmp_path / "b"})
    with pytest.raises(TaskError, match="`files` names no file"):
        files_by_split({})


def test_a_folder_of_columns(tmp_path: Path) -> None:
    task = load_word_files(
        write(tmp_path, "train.txt", "test.txt"), columns=["word", "pos", "ner"], tags="ner", name="mine"
    )
    assert (task.name, task.metric, list(task.splits)) == ("mine", "span-f1", ["train", "test"])
    assert task.source == f"{tmp_path / 'train.txt'}, {tmp_path / 'test.txt'}"
    assert task.splits["test"]["tags"][0] == ["O", "O", "B-LOC"]
    pos = load_word_files(tmp_path, columns=["word", "pos", "ner"], tags="pos")
    assert (pos.metric, pos.labels) == ("accuracy", ("IN", "NN", "NNP"))


def test_columns_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="`columns` is 'word ner', but a list of names is needed"):
        load_word_files(tmp_path, columns="word ner")
    with pytest.raises(TaskError, match=r"train\.txt is read as columns, so `columns` must name them in order"):
        load_word_files(write(tmp_path, "train.txt"), tags="ner")


def test_splits_of_one_file_are_drawn_with_documents_whole(tmp_path: Path) -> None:
    document = "-DOCSTART- O\n\n" + "Oslo B-LOC\nis O\n\n" * 4
    (tmp_path / "all.txt").write_text(document * 20, encoding="utf-8")
    task = load_word_files(tmp_path / "all.txt", columns=["word", "ner"], tags="ner")
    assert task.n_rows() == {"train": 64, "validation": 8, "test": 8}
    found = [set(rows["document"]) for rows in task.splits.values()]
    assert sum(map(len, found)) == len(set().union(*found)) == 20
    assert task.notes[0] == "splits drawn: 64 train, 8 validation, 8 test with seed 0"


def test_conllu_and_json_files(tmp_path: Path) -> None:
    rows = [["1", "Ice", "_", "NOUN"], ["2", "melts", "_", "VERB"]]
    text = "".join("\t".join(row) + "\t_" * 6 + "\n" for row in rows)
    (tmp_path / "x-dev.conllu").write_text(text, encoding="utf-8")
    task = load_word_files(tmp_path, tags="upos")
    assert task.splits["validation"]["tags"][0] == ["NOUN", "VERB"]
    row = json.dumps({"w": ["Ice", "in", "Oslo"], "ner": ["O", "O", "S-LOC"]})
    (tmp_path / "train.jsonl").write_text(row + "\n", encoding="utf-8")
    task = load_word_files({"train": tmp_path / "train.jsonl"}, tags="ner", words="w")
    assert task.scheme is not None
    assert (task.scheme.name, task.splits["train"]["tags"][0]) == ("BIOES", ["O", "O", "B-LOC"])


def test_comments_and_separators_reach_the_reader(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("# one\nIce O\nOslo\tB-LOC\n", encoding="utf-8")
    task = load_word_files(tmp_path, columns=["word", "tags"], has_comments=True, separator="whitespace")
    assert task.splits["train"]["words"][0] == ["Ice", "Oslo"]
    assert task.notes[1] == f"{tmp_path / 'train.txt'}: 1 comment line skipped"
