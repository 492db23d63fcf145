import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.sources import read_hub
from probes.data.table_files import (
    Sentence,
    SentenceTable,
    TokenColumns,
    check_token_rows,
    quiet_datasets,
    read_raw,
)
from tests.probes.hub_builders import hub_builder

NAMES = ["O", "B-PER", "I-PER", "B-LOC"]


def save(path: Path, rows: list[object]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def read_repository(repository: str, columns: TokenColumns) -> tuple[dict[str, SentenceTable], str]:
    tables, source = read_hub(repository, revision=None, help_text="look again")
    return {split: check_token_rows(table, columns) for split, table in tables.items()}, source


def fails(path: Path, columns: TokenColumns | None = None) -> str:
    with pytest.raises((TaskError, UnknownNameError)) as caught:
        check_token_rows(read_raw(path), columns or TokenColumns())
    return str(caught.value)


def hub_folder(folder: Path, rows: Mapping[str, list[Any]], tags: object, **features: object) -> Path:
    (folder / "data").mkdir(parents=True)
    declared = datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(tags), **features}
    )
    with quiet_datasets():
        data = datasets.Dataset.from_dict(dict(rows), features=declared)
        for split in ("train", "test"):
            data.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"tokens": ["Ice", "in", "Oslo"], "tags": ["O", "O", "B-LOC"]}, {"tokens": [], "tags": []}]
    path = save(tmp_path / "x.jsonl", [*rows, {"tokens": ["a\u00a0b"], "tags": ["O"], "document": 7}])
    table = check_token_rows(read_raw(path), TokenColumns())
    assert table.sentences == [
        Sentence(["Ice", "in", "Oslo"], ["O", "O", "B-LOC"], "", [True] * 3, [1] * 3),
        Sentence(["a\u00a0b"], ["O"], "7", [True], [3]),
    ]
    assert table.notes == (f"{path}: 1 row without words skipped",)
    assert table.location(1, 0) == f"{path}, line 3"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tokens": ["a"], "tags": []}, "1 words but 0 tags: every word needs one tag"),
        ({"tokens": "a b", "tags": ["O"]}, "column 'tokens' holds 'a b', but a list is needed"),
        ({"tokens": ["a"]}, "column 'tags' holds None, but a list is needed"),
        (
            {"tokens": ["a", " "], "tags": ["O", "O"]},
            "column 'tokens' holds ' ', but a text that is not blank is needed",
        ),
        ({"tokens": [3], "tags": ["O"]}, "column 'tokens' holds 3 (int), not a string"),
        ({"tokens": ["\ud83d"], "tags": ["O"]}, "column 'tokens' holds '\\ud83d', which is half a character"),
        ({"tokens": ["a"], "tags": [1]}, "column 'tags' holds the tag 1, but a text is needed"),
        ({"tokens": ["a"], "tags": [""]}, "column 'tags' holds the tag '', but a text is needed"),
        (["a"], "not a JSON object: ['a']"),
        ({"tokens": [""], "tags": ["O"]}, "column 'tokens' holds '', but a text that is not blank is needed"),
        (
            {"tokens": ["a\tb"], "tags": ["O"]},
            "column 'tokens' holds the word 'a\\tb', but a word has no tab and no line",
        ),
        (
            {"tokens": ["a\n"], "tags": ["O"]},
            "column 'tokens' holds the word 'a\\n', but a word has no tab and no line",
        ),
        (
            {"tokens": ["a\rb"], "tags": ["O"]},
            "column 'tokens' holds the word 'a\\rb', but a word has no tab and no line",
        ),
        (
            {"tokens": ["a", "-DOCSTART-"], "tags": ["O", "O"]},
            "column 'tokens' holds the word '-DOCSTART-' within a sentence, but -DOCSTART- begins a document, in a row",
        ),
        (
            {"tokens": ["x -DOCSTART-2"], "tags": ["O"]},
            "column 'tokens' holds the word 'x -DOCSTART-2' within a sentence, but -DOCSTART- begins a document",
        ),
        (
            {"tokens": ["a"], "tags": ["B-A "]},
            "column 'tags' holds the tag 'B-A ', but a tag has no blank and no invis",
        ),
        ({"tokens": ["a"], "tags": ["\u00a0O"]}, "column 'tags' holds the tag '\\xa0O', but a tag has no blank"),
        ({"tokens": ["a"], "tags": ["B-A\u200b"]}, "column 'tags' holds the tag 'B-A\\u200b', but a tag has no blank"),
        ({"tokens": ["a"], "tags": ["B-A\t"]}, "column 'tags' holds the tag 'B-A\\t', but a tag has no blank"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: object, said: str) -> None:
    path = save(tmp_path / "x.jsonl", [{"tokens": ["a"], "tags": ["O"]}, row])
    assert f"{path}, line 2: {said}" in fails(path)


def test_a_row_may_be_packed(tmp_path: Path) -> None:
    plain = save(tmp_path / "x.jsonl", [{"tokens": ["Ice", "in"], "tags": ["O", "B-A"]}])
    packed = tmp_path / "x.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    table = check_token_rows(read_raw(packed), TokenColumns())
    assert table.sentences == check_token_rows(read_raw(plain), TokenColumns()).sentences
    assert table.location(0, 1) == f"{packed}, line 1"
    packed.write_bytes(plain.read_bytes())
    assert f"{packed} cannot be unpacked as gzip (Not a gzipped file" in fails(packed)


def test_files_without_the_lists_or_without_words(tmp_path: Path) -> None:
    path = save(tmp_path / "x.jsonl", [{"tokens": ["a"], "ner_tags": ["O"]}])
    assert "unknown column 'tags': did you mean 'ner_tags'? Allowed: tokens, ner_tags." in fails(path)
    path = save(tmp_path / "y.jsonl", [{"tokens": [], "tags": []}])
    assert f"{path} has no row with words in column 'tokens'" in fails(path)
    (tmp_path / "z.jsonl").touch()
    assert "is empty" in fails(tmp_path / "z.jsonl")


def test_numbers_get_the_names_of_their_feature(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows: dict[str, list[Any]] = {
        "tokens": [["Ice"], ["Petra", "Veld"]],
        "ner_tags": [[0], [1, 2]],
        "document_id": [1, 2],
    }
    folder = hub_folder(tmp_path / "hub", rows, datasets.ClassLabel(names=NAMES), document_id=datasets.Value("int32"))
    before = sorted(folder.rglob("*"))
    columns = TokenColumns(tags="ner_tags", document="document_id")
    tables, source = read_repository(str(folder), columns)
    assert source == f"folder {folder}"
    assert list(tables) == ["train", "test"]
    assert [(s.words, s.tags, s.document) for s in tables["test"].sentences] == [
        (["Ice"], ["O"], "1"),
        (["Petra", "Veld"], ["B-PER", "I-PER"], "2"),
    ]
    assert capfd.readouterr() == ("", "")
    assert sorted(folder.rglob("*")) == before


def test_tags_that_are_texts_need_no_names(tmp_path: Path) -> None:
    rows = {"tokens": [["-DOCSTART-"], ["Oslo"], [], ["Ice"]], "ner_tags": [["O"], ["B-LOC"], [], ["O"]]}
    folder = hub_folder(tmp_path / "hub", rows, datasets.Value("string"))
    tables, _ = read_repository(str(folder), TokenColumns(tags="ner_tags"))
    assert [(s.words, s.tags, s.document) for s in tables["train"].sentences] == [
        (["Oslo"], ["B-LOC"], "1"),
        (["Ice"], ["O"], "1"),
    ]
    assert tables["train"].notes == (f"{folder} (train): 1 row without words skipped",)


def test_numbers_without_names_or_beyond_them(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "plain", {"tokens": [["a"]], "ner_tags": [[3]]}, datasets.Value("int64"))
    with pytest.raises(TaskError, match=r"\(train\), row 1: column 'ner_tags' holds the tag 3, but a text is needed"):
        read_repository(str(folder), TokenColumns(tags="ner_tags"))
    folder = hub_folder(tmp_path / "named", {"tokens": [["a"]], "ner_tags": [[-1]]}, datasets.ClassLabel(names=NAMES))
    with pytest.raises(TaskError, match=r"row 1: column 'ner_tags' holds the tag -1, but a whole number from 0 to 3"):
        read_repository(str(folder), TokenColumns(tags="ner_tags"))


@pytest.mark.parametrize("is_reachable", [True, False])
def test_numbers_get_their_names_from_the_hub_or_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reachable: bool
) -> None:
    folder = hub_folder(tmp_path / "hub", {"tokens": [["Petra"]], "ner_tags": [[1]]}, datasets.ClassLabel(names=NAMES))
    real, asked = datasets.load_dataset, []

    def load_dataset_builder(repository: str, *, revision: str | None, cache_dir: str | None) -> object:
        asked.append((repository, revision, cache_dir, datasets.config.HF_HUB_OFFLINE))
        return hub_builder(real(str(folder), cache_dir=str(tmp_path / "cache")))

    def dataset_info(_self: object, _repository: str, **_options: object) -> object:
        if is_reachable:
            return SimpleNamespace(sha="c0ffee")
        raise ConnectionError("no route")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    monkeypatch.setattr("datasets.load_dataset_builder", load_dataset_builder)
    monkeypatch.setattr("datasets.get_dataset_config_names", lambda *_names, **_options: ["default"])
    columns = TokenColumns(tags="ner_tags")
    tables, source = read_repository("someone/ner", columns)
    assert tables["test"].sentences[0].tags == ["B-PER"]
    where = "at c0ffee of the Hugging Face hub" if is_reachable else "from the cache of `datasets` (hub not asked)"
    assert source == f"someone/ner {where}"
    commit = "c0ffee" if is_reachable else None
    assert asked == [("someone/ner", commit, None, not is_reachable)]
