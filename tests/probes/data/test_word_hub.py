"""Any token dataset in hub layout: Parquet with named numbers, JSON Lines with texts, configurations, splits."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.table_files import quiet_datasets
from probes.data.task_table import load_task
from probes.data.word_files import load_word_hub
from probes.data.word_task import WordTask

NAMES = ["O", "B-PER", "I-PER", "B-LOC"]
WORDS = [words for k in range(10) for words in (["Petra", "Veld", "in", f"Oslo{k}"], [f"Ice{k}"])]
NUMBERS = [[1, 2, 0, 3], [0]] * 10


def parquet_folder(folder: Path, splits: tuple[str, ...] = ("train", "test"), **columns: list[Any]) -> Path:
    (folder / "data").mkdir(parents=True)
    rows = {"tokens": WORDS, "ner_tags": NUMBERS, "doc": [str(i // 4) for i in range(20)], **columns}
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=NAMES)),
            "doc": datasets.Value("string"),
        }
    )
    with quiet_datasets():
        data = datasets.Dataset.from_dict(rows, features=features)
        for split in splits:
            data.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def json_folder(folder: Path, files: dict[str, str], tags: list[str]) -> Path:
    folder.mkdir(parents=True)
    for split, name in files.items():
        rows = [{"words": [f"{split}{i}", "runs"], "upos": tags} for i in range(10)]
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return folder


def sizes(task: WordTask) -> dict[str, int]:
    return {split: len(rows) for split, rows in task.splits.items()}


def test_numbers_that_the_dataset_names(tmp_path: Path) -> None:
    folder = parquet_folder(tmp_path / "names")
    task = load_word_hub(str(folder), document="doc")
    assert (task.name, task.metric, task.source) == ("names", "span-f1", f"folder {folder}")
    assert sizes(task) == {"train": 18, "validation": 2, "test": 20}
    assert task.notes[0] == "validation: 2 of the 20 training sentences, drawn with seed 0; train is the rest"
    assert task.splits["test"][0] == {
        "words": WORDS[0],
        "tags": ["B-PER", "I-PER", "O", "B-LOC"],
        "document": "0",
        "space_after": [True] * 4,
    }
    assert set(load_word_hub(str(folder)).splits["test"]["document"]) == {""}
    assert sizes(load_word_hub(str(folder), validation_fraction=0.0)) == {"train": 20, "test": 20}
    assert load_word_hub(str(folder), seed=1).digest() != load_word_hub(str(folder)).digest()
    assert load_word_hub(str(folder), metric="accuracy").metric == "accuracy"
    assert load_word_hub(str(folder), scheme="IOB2").scheme.is_declared  # type: ignore[union-attr]


def test_json_lines_with_texts_through_the_table_of_tasks(tmp_path: Path) -> None:
    files = {"train": "train.jsonl", "validation": "validation.jsonl", "test": "test.jsonl"}
    folder = json_folder(tmp_path / "pos", files, ["PROPN", "VERB"])
    task = load_task("word-hub", hub_id=str(folder), words="words", tags="upos")
    assert isinstance(task, WordTask)
    assert (task.name, task.metric, task.labels) == ("pos", "accuracy", ("PROPN", "VERB"))
    assert sizes(task) == {"train": 10, "validation": 10, "test": 10}
    assert task.splits["validation"]["words"][3] == ["validation3", "runs"]


def test_a_configuration_is_a_folder_or_declared(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    json_folder(folder / "en", {"train": "train.jsonl"}, ["B-A", "O"])
    json_folder(folder / "de", {"train": "train.jsonl"}, ["O", "B-B"])
    task = load_word_hub(str(folder), config="de", words="words", tags="upos")
    assert (task.name, task.labels) == ("many-de", ("O", "B-B"))
    with pytest.raises(UnknownNameError, match="unknown configuration 'dee': did you mean 'de'"):
        load_word_hub(str(folder), config="dee", words="words", tags="upos")
    named = parquet_folder(tmp_path / "declared")
    declared = "configs:\n- config_name: ner\n  data_files:\n  - split: test\n    path: data/test-*\n"
    (named / "README.md").write_text(f"---\n{declared}---\n", encoding="utf-8")
    assert sizes(load_word_hub(str(named), config="ner")) == {"test": 20}


def test_splits_of_other_names_are_mapped(tmp_path: Path) -> None:
    folder = parquet_folder(tmp_path / "odd", ("train", "extra"))
    assert sizes(load_word_hub(str(folder))) == {"train": 18, "validation": 2}
    task = load_word_hub(str(folder), splits={"train": "train", "dev": "extra", "test": "extra"})
    assert sizes(task) == {"train": 20, "validation": 20, "test": 20}
    only = parquet_folder(tmp_path / "only", ("extra",))
    with pytest.raises(
        TaskError, match="only has no split named train, validation or test; its splits: extra; name them with `splits`"
    ):
        load_word_hub(str(only))
    with pytest.raises(UnknownNameError, match="unknown split 'extras': did you mean 'extra'"):
        load_word_hub(str(folder), splits={"test": "extras"})
    with pytest.raises(UnknownNameError, match="unknown split 'tset': did you mean 'test'"):
        load_word_hub(str(folder), splits={"tset": "extra"})
    with pytest.raises(TaskError, match="`splits` names the validation split twice"):
        load_word_hub(str(folder), splits={"dev": "extra", "validation": "train"})
    with pytest.raises(TaskError, match=r"`splits` is \{\}, but a mapping is needed, such as \{train: "):
        load_word_hub(str(folder), splits={})


def test_a_split_that_is_left_out_need_not_be_usable(tmp_path: Path) -> None:
    folder = parquet_folder(tmp_path / "hidden", ("train",))
    hidden = parquet_folder(tmp_path / "other", ("test",), ner_tags=[[-1] * len(tags) for tags in NUMBERS])
    (hidden / "data" / "test-00000-of-00001.parquet").rename(folder / "data" / "test-00000-of-00001.parquet")
    with pytest.raises(
        TaskError, match=r"\(test\), row 1: column 'ner_tags' holds the tag -1, but a whole number from 0"
    ):
        load_word_hub(str(folder))
    assert sizes(load_word_hub(str(folder), splits={"train": "train"})) == {"train": 18, "validation": 2}


def test_columns_and_options_that_are_not_there(tmp_path: Path) -> None:
    folder = parquet_folder(tmp_path / "names")
    for option, value in (("words", "token"), ("tags", "ner_tag"), ("document", "docs")):
        with pytest.raises(UnknownNameError, match=f"unknown column '{value}': did you mean"):
            load_task("word-hub", hub_id=str(folder), **{option: value})
    with pytest.raises(TaskError, match="which has no revision 'main': leave `revision` out"):
        load_word_hub(str(folder), revision="main")
    with pytest.raises(TaskError, match="`validation_fraction` is 1, which holds out 20 of 20 sentences"):
        load_word_hub(str(folder), validation_fraction=1.0)
    with pytest.raises(TaskError, match="task 'word-hub' needs the option `hub_id`"):
        load_task("word-hub", tags="ner_tags")
