import json
import subprocess
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

import probes
from extract.errors import TaskError, UnknownNameError
from extract.registry import parameter_names, resolve
from probes.data.class_task import ClassTask, NumberTask
from probes.data.pair_task import PairTask
from probes.data.splits import SPLITS
from probes.data.table_files import FileOptions
from probes.data.task import Task
from probes.data.task_table import CORPORA, TASKS, load_task
from probes.data.word_task import WordTask

KINDS = {
    "pairs": ["sts-sample", "stsb", "stsb-local", "stsb-hub", "sts-files", "pair-files"],
    "classes": [
        "class-sample",
        "banking77",
        "pubmedqa",
        "chemprot",
        "mqp",
        "rct",
        "financial-phrasebank",
        "fiqa-sa",
        "scotus",
        "unfair-tos",
        "class-files",
        "class-hub",
    ],
    "numbers": ["number-sample", "number-files"],
    "words": ["words-sample", "conll2003", "conll2000", "wnut17", "ud-ewt", "financial-ner", "word-files", "word-hub"],
    "retrieval": ["retrieval-sample", "retrieval-files"],
    "reranking": ["reranking-sample", "reranking-files", "snli-triples", "triple-files"],
    "clustering": ["clustering-sample", "banking77-clusters", "clustering-files"],
    "pair-classification": ["pair-class-sample", "pair-class-files"],
    "bitext": ["bitext-sample", "bitext-files"],
    "odd-one-out": ["odd-sample", "sense-files", "odd-files"],
}


def test_the_table_names_its_entries() -> None:
    found: dict[str, list[str]] = {}
    for name, entry in TASKS.items():
        found.setdefault(entry.kind, []).append(name)
        assert entry.name == name
        assert entry.description
    assert found == KINDS
    assert TASKS["ud-ewt"].options() == ("tags", "folder")
    for name in ("conll2003", "conll2000", "wnut17", "financial-ner", "word-files", "word-hub"):
        assert "scheme" in TASKS[name].options()


def test_options_are_named_without_an_import_as_the_loaders_declare_them() -> None:
    for load in (*(entry.load for entry in TASKS.values()), *(load for load, _ in CORPORA.values())):
        assert parameter_names(load) == tuple(signature(resolve(load)).parameters)


def test_readers_of_files_share_a_record_of_options(tmp_path: Path) -> None:
    shared = tuple(field.name for field in fields(FileOptions))
    readers = {name for name, entry in TASKS.items() if set(shared) <= set(entry.options())}
    kinds = ("pair", "class", "number", "reranking", "triple", "clustering", "pair-class", "bitext", "sense", "odd")
    assert readers == {f"{kind}-files" for kind in kinds}
    for name in readers:
        assert "options" not in TASKS[name].options()
    with pytest.raises(UnknownNameError, match=r"unknown task option 'delimeter': did you mean 'delimiter'\?"):
        load_task("odd-files", files=str(tmp_path), delimeter=";")
    with pytest.raises(UnknownNameError, match="unknown task option 'options'"):
        load_task("odd-files", files=str(tmp_path), options=FileOptions())


@pytest.mark.parametrize(
    ("name", "cls"),
    [("sts-sample", PairTask), ("class-sample", ClassTask), ("number-sample", NumberTask), ("words-sample", WordTask)],
)
def test_one_loader_loads_every_kind_and_every_task_describes_itself(name: str, cls: type[Task]) -> None:
    task = probes.load_task(name)
    assert type(task) is cls
    assert task.kind == TASKS[name].kind == cls.kind
    told = task.describe().to_plain()
    assert {"kind", "name", "source", "is_sample", "metrics", "n_rows", "digest", "notes"} <= set(told)
    assert (told["kind"], told["name"], told["is_sample"]) == (task.kind, task.name, True)
    assert told["metrics"] == list(task.metrics) != []
    assert told["n_rows"] == task.n_rows() == {split: len(task.rows(split)) for split in SPLITS}
    assert json.loads(json.dumps(told)) == told
    assert type(task.without_test()) is cls
    assert list(task.without_test().splits) == ["train", "validation"]
    assert task.subset(20).n_rows() == dict.fromkeys(SPLITS, 20)
    with pytest.raises(UnknownNameError, match=f"unknown split 'dev'.*These are the splits of task '{task.name}'"):
        task.rows("dev")


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown task 'sts_sample': did you mean 'sts-sample'\? Allowed: sts-s"
    ):
        load_task("sts_sample")


def test_an_unknown_option_names_those_of_the_task() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown task option 'revison': did you mean 'revision'\? Allowed: hub_id, "
    ):
        load_task("stsb-hub", revison="main")
    with pytest.raises(UnknownNameError, match=r"unknown task option 'folder'. Allowed: \(none\)"):
        load_task("sts-sample", folder="x")
    with pytest.raises(
        UnknownNameError, match=r"unknown task option 'agrement': did you mean 'agreement'\? Allowed: f"
    ):
        load_task("financial-phrasebank", agrement="All")


def test_a_missing_option_is_named() -> None:
    with pytest.raises(TaskError, match="task 'pair-files' needs the option `files`"):
        load_task("pair-files", name="mine")


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [
        ("header", "false", "true or false"),
        ("quoting", 0, "true or false"),
        ("text", 3, "a text"),
        ("text2", 3, "a text"),
        ("seed", True, "a whole number of at least 0"),
        ("seed", 1.5, "a whole number of at least 0"),
        ("seed", -1, "a whole number of at least 0"),
        ("validation_fraction", "0.1", "a number"),
        ("bad_rows", True, "a text"),
    ],
)
def test_an_option_of_the_wrong_type_is_rejected(option: str, value: object, needed: str) -> None:
    with pytest.raises(TaskError) as caught:
        load_task("class-files", files={"train": "x.csv"}, **{option: value})
    assert str(caught.value) == f"option `{option}` of task 'class-files' is {value!r}, but {needed} is needed."


def test_a_folder_is_a_path() -> None:
    with pytest.raises(TaskError, match=r"option `folder` of task 'rct' is 3, but a path is needed\."):
        load_task("rct", folder=3)


def test_pair_files_takes_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("\n".join(f"l{i},r{i},{i}" for i in range(8)), encoding="utf-8")
    options = {"header": False, "columns": ["sentence1", "sentence2", "score"], "score_range": [0, 7], "name": "mine"}
    task = load_task("pair-files", files={"train": str(path)}, **options)
    assert isinstance(task, PairTask)
    assert (task.name, task.score_range, task.source) == ("mine", (0.0, 7.0), str(path))


@pytest.mark.parametrize("module", ["probes.data", "probes.data", "probes.data", "probes.data"])
def test_importing_the_tasks_is_light(module: str) -> None:
    heavy = {"torch", "datasets", "pandas", "sklearn"}
    code = f"import sys, {module}; sys.exit(' '.join({heavy} & set(sys.modules)) or None)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_an_old_option_is_read_with_a_one_line_warning(tmp_path: Path) -> None:
    rows = [f"sentence {i},{'hot' if i % 2 else 'cold'},{'test' if i < 10 else 'train'}" for i in range(60)]
    (tmp_path / "all.csv").write_text("\n".join(["text,label,split", *rows]), encoding="utf-8")
    options = {"files": str(tmp_path / "all.csv"), "split_column": "split"}
    with pytest.warns(
        FutureWarning, match=r"^task option 'validation_share' is now 'validation_fraction'; use the new"
    ):
        old = load_task("class-files", **options, validation_share=0.2)
    new = load_task("class-files", **options, validation_fraction=0.2)
    assert old.digest() == new.digest() != load_task("class-files", **options).digest()
