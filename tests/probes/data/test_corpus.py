"""Texts without gold: every reader, the order that makes a prefix a sample, and a sentence for what cannot be read."""

from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from extract.errors import IcecoreError, TaskError, UnknownNameError
from probes.data.table_files import quiet_datasets
from probes.data.task import load_corpus, load_generics, load_hub_texts, load_text_file, read_texts
from probes.data.task_table import CORPORA, TASKS, load_task
from probes.runs.run_config import PretrainingSpec

NATURAL = [f"Glaciers of kind {i} move." for i in range(12)]
TEMPLATED = [f"Thing {i} is a thing." for i in range(10)]
TEXTS = [f"text {i}" for i in range(9)]


def write_generics(folder: Path, *, more: str = "") -> Path:
    """Write both kinds of sentences in turn, with one that stands twice."""
    lines = [f"t{i}\t{text}\t0.{50 + i}" for i, text in enumerate(NATURAL)]
    for i, text in enumerate(TEMPLATED):
        lines.insert(2 * i, f"t\t {text} \t{'1.0' if i % 2 else '1'}")
    lines.append(f"t\t{NATURAL[0]}\t0.7")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "GenericsKB.txt").write_text("\n".join(lines) + "\n" + more, encoding="utf-8")
    return folder


def test_natural_sentences_come_first_and_templated_ones_last(tmp_path: Path) -> None:
    found = load_generics(write_generics(tmp_path))
    assert sorted(found.lines[: len(NATURAL)]) == sorted(NATURAL)
    assert sorted(found.lines[len(NATURAL) :]) == sorted(TEMPLATED)
    assert found.lines[: len(NATURAL)] != tuple(NATURAL)  # a prefix is a sample
    assert (found.name, found.source) == ("generics", f"GenericsKB.txt in {tmp_path}")
    assert found.texts() == list(found.lines)


def test_templated_sentences_can_be_dropped(tmp_path: Path) -> None:
    folder = write_generics(tmp_path)
    found = load_generics(folder, templated="drop")
    assert found.lines == load_generics(folder).lines[: len(NATURAL)]


def test_the_seed_orders_within_both_kinds(tmp_path: Path) -> None:
    folder = write_generics(tmp_path)
    one, same, other = (load_generics(folder, seed=seed).lines for seed in (1, 1, 2))
    assert one == same != other
    n = len(NATURAL)
    assert (set(one[:n]), set(one[n:])) == (set(other[:n]), set(other[n:]))
    assert one[:n] != other[:n]
    assert one[n:] != other[n:]


def test_fewer_texts_are_the_front_of_more(tmp_path: Path) -> None:
    options = {"folder": str(write_generics(tmp_path))}
    whole = load_corpus("generics", 1000, options).lines
    assert len(whole) == 22
    for n_texts in (1, 9, 15):
        assert load_corpus("generics", n_texts, options).lines == whole[:n_texts]


def test_generics_are_found_through_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_generics(tmp_path / "genericskb")
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    assert load_corpus("generics", 1000, {}).lines == load_generics(tmp_path / "genericskb").lines
    monkeypatch.delenv("ICECORE_DATA")
    with pytest.raises(TaskError, match="ICECORE_DATA is not set: set it to the folder that holds genericskb/Gen"):
        load_generics()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("term\tNo score here.", "has 2 cells ('term\\tNo score here.')"),
        ("one cell", "has 1 cells ('one cell')"),
        ("t\tToo many.\t0.5\tcells", "has 4 cells"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, told: str) -> None:
    folder = write_generics(tmp_path, more=line + "\n")
    with pytest.raises(TaskError) as caught:
        load_generics(folder)
    assert str(caught.value).startswith(f"{folder / 'GenericsKB.txt'}, line 24 {told}")
    assert str(caught.value).endswith("; allowed: term, sentence and score.")


@pytest.mark.parametrize("score", ["high", "", "nan", "-inf", "0,5"])
def test_a_score_that_is_no_number_is_named(tmp_path: Path, score: str) -> None:
    folder = write_generics(tmp_path, more=f"t\tA sentence.\t{score}\n")
    with pytest.raises(TaskError) as caught:
        load_generics(folder)
    assert str(caught.value) == (
        f"{folder / 'GenericsKB.txt'}, line 24 has the score {score!r}; allowed: a finite number."
    )


def test_another_way_with_templates_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown templated 'dorp': did you mean 'drop'\? Allowed: last, drop"):
        load_generics(write_generics(tmp_path), templated="dorp")


def test_a_text_file_has_a_text_a_line(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("\ufeff" + "\r\n".join(["  ", *TEXTS, "", TEXTS[3], "tab\tinside"]) + "\r\n", encoding="utf-8")
    found = load_text_file(file)
    assert found.lines == (*TEXTS, "tab\tinside")
    assert (found.name, found.source) == ("notes", str(file))
    assert load_corpus("text-file", 4, {"file": str(file)}).lines == tuple(TEXTS[:4])


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("a.csv", ["text,id", "one,1", "two, with a comma,2", "three,3"], "a.csv, line 3: wrong number of columns: 3"),
        ("a.csv", ["text,id", "one,1", " ,2"], "a.csv, line 3: column 'text' holds ' '"),
        ("a.jsonl", ['{"text": "one"}', '{"text": null}'], "a.jsonl, line 2: column 'text' is missing"),
        ("a.jsonl", ['{"text": "one"}', "{broken"], "a.jsonl, line 2: '{broken' is not JSON"),
    ],
)
def test_a_row_of_a_table_without_a_text_is_named(name: str, lines: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(TaskError) as caught:
        read_texts(tmp_path / name)
    assert message in str(caught.value)


def test_the_texts_of_a_table_are_those_of_its_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": 2}\n{"text": "one"}\n', encoding="utf-8")
    assert read_texts(tmp_path / "a.jsonl") == ["one", "2", "one"]


def test_a_line_ends_at_a_line_break_and_nowhere_else(tmp_path: Path) -> None:
    """As in every other file that is read here: not at U+2028, a form feed or a NEL, which texts may hold."""
    texts = ["a\u2028b", "c\x0cd", "e\x85f", "g\x1ch", *TEXTS]
    (tmp_path / "t.txt").write_text("\n".join(texts), encoding="utf-8")
    assert load_text_file(tmp_path / "t.txt").lines == tuple(texts)


def write_csv(folder: Path) -> Path:
    file = folder / "t.csv"
    file.write_text("id,body\n" + "".join(f'{i},"{text}, said"\n' for i, text in enumerate(TEXTS)), encoding="utf-8")
    return file


def write_jsonl(folder: Path) -> Path:
    file = folder / "t.jsonl"
    lines = [f'{{"id": {i}, "body": "{text}, said"}}' for i, text in enumerate(TEXTS)]
    file.write_text("\n".join([*lines, '{"id": 99, "body": null}', lines[0]]), encoding="utf-8")
    return file


def write_tsv(folder: Path) -> Path:
    file = folder / "t.tsv"
    file.write_text("body\tid\n" + "".join(f"{text}, said\t{i}\n" for i, text in enumerate(TEXTS)), encoding="utf-8")
    return file


@pytest.mark.parametrize("write", [write_csv, write_jsonl, write_tsv])
def test_a_column_of_a_table(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    file = write(tmp_path)
    assert load_text_file(file, column="body").lines == tuple(f"{text}, said" for text in TEXTS)
    with pytest.raises(UnknownNameError, match=r"unknown column 'text'.*Allowed: .*columns of .*t\..*--column"):
        load_text_file(file)


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local folder laid out like a dataset of the hub."""
    folder = tmp_path_factory.mktemp("hub") / "mine"
    (folder / "data").mkdir(parents=True)
    with quiet_datasets():
        for split, texts in (("train", TEXTS), ("test", [f"{text} of test" for text in TEXTS])):
            rows = {"text": texts, "other": [f"{text} aside" for text in texts]}
            datasets.Dataset.from_dict(rows).to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def test_a_folder_laid_out_like_the_hub(hub_folder: Path) -> None:
    found = load_corpus("text-hub", 1000, {"repository": str(hub_folder)})
    assert found.lines == tuple(TEXTS)
    assert (found.name, found.source) == ("mine", f"folder {hub_folder}")
    other = load_hub_texts(str(hub_folder), column="other", split="test")
    assert other.lines == tuple(f"{text} of test aside" for text in TEXTS)


def test_what_a_hub_dataset_lacks_is_named(hub_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown split 'tarin': did you mean 'train'\?"):
        load_hub_texts(str(hub_folder), split="tarin")
    with pytest.raises(UnknownNameError, match=r"unknown column 'txet': did you mean 'text'\? Allowed: text, other"):
        load_hub_texts(str(hub_folder), column="txet")
    with pytest.raises(TaskError, match="has no revision 'v2'"):
        load_hub_texts(str(hub_folder), revision="v2")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "empty cache")
    with pytest.raises(
        TaskError, match=r"dataset 'some/texts' cannot be loaded: .* give a local file to corpus 'text-f"
    ):
        load_hub_texts("some/texts")


@pytest.mark.parametrize("name", [name for name in TASKS if name.endswith("-sample")])
def test_any_task_is_a_corpus_of_its_texts(name: str) -> None:
    task = load_task(name)
    texts = [text if isinstance(text, str) else text.text for text in task.texts()]  # words know their text
    found = load_corpus(name, 10**6, {})
    assert found.texts() == list(dict.fromkeys(texts))
    assert all(type(text) is str for text in found.texts())
    assert (found.name, found.source) == (task.name, task.source)
    assert load_corpus(name, 10, {}).texts() == found.texts()[:10]
    assert PretrainingSpec(name).corpus == name


def test_a_task_as_a_corpus_takes_the_options_of_the_task(tmp_path: Path) -> None:
    lines = ["split,sentence1,sentence2,score", *(f"train,left {i},right {i},{i % 5}" for i in range(8))]
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = load_corpus("pair-files", 3, {"files": str(tmp_path / "p.csv"), "name": "mine"})
    assert (found.name, found.lines) == ("mine", ("left 0", "right 0", "left 1"))


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("genercis", {}, r"unknown corpus 'genercis': did you mean 'generics'\? Allowed: generics, text-file, text-"),
        ("generics", {"foldre": "x"}, r"unknown corpus option 'foldre': did you mean 'folder'\?.*corpus 'generics'"),
        ("text-file", {}, r"corpus 'text-file' needs the option `file`"),
        ("text-hub", {"column": "x"}, r"corpus 'text-hub' needs the option `repository`"),
        ("sts-sample", {"file": "x"}, r"unknown task option 'file'"),
        ("text-file", {"file": "nowhere.txt"}, r"nowhere\.txt does not exist: give the path of a file"),
        ("text-file", {"file": "nowhere.csv"}, r"nowhere\.csv does not exist"),
        ("text-file", {"file": "latin.txt"}, r"latin\.txt, line 1: byte 0xfc is not UTF-8: save the file as UTF-8"),
        ("text-file", {"file": "texts.docx"}, r"unknown file suffix '\.docx'"),
        ("text-file", {"file": "few.txt"}, r"corpus 'few' has 7 texts \(few\.txt\); allowed: at least 8"),
        ("generics", {"folder": "."}, r"GenericsKB\.txt does not exist: give the folder that holds Gen"),
    ],
)
def test_what_cannot_be_read_is_told(
    name: str, options: dict[str, object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin.txt").write_bytes("über\n".encode("latin-1") * 9)
    Path("few.txt").write_text("\n".join([*TEXTS[:7], TEXTS[0], " ", ""]), encoding="utf-8")  # two are none
    Path("texts.docx").write_text("x", encoding="utf-8")
    with pytest.raises(IcecoreError, match=sentence):
        load_corpus(name, 100, options)


@pytest.mark.parametrize(
    ("name", "option", "value", "noun"),
    [
        ("generics", "seed", "a", "a whole number of at least 0"),
        ("generics", "seed", -1, "a whole number"),
        ("generics", "seed", 1.5, "a whole number"),
        ("generics", "seed", True, "a whole number"),
        ("generics", "seed", None, "a whole number"),
        ("generics", "folder", 3, "a path"),
        ("generics", "templated", ["last"], "a text"),
        ("text-file", "file", 3, "a path"),
        ("text-file", "file", None, "a path"),
        ("text-file", "file", ["a.txt"], "a path"),
        ("text-file", "column", 0, "a text"),
        ("text-hub", "repository", {}, "a text"),
        ("text-hub", "split", None, "a text"),
        ("text-hub", "revision", 1.0, "a text"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused(name: str, option: str, value: object, noun: str) -> None:
    options: dict[str, object] = {"file": "a.txt"} if name == "text-file" else {}
    with pytest.raises(TaskError) as caught:
        load_corpus(name, 100, {**options, option: value})
    assert str(caught.value).startswith(f"option `{option}` of corpus {name!r} is {value!r}, but {noun}")
    assert str(caught.value).endswith(" is needed.")


def test_every_corpus_is_described() -> None:
    assert all(description for _, description in CORPORA.values())


def test_genericskb_has_its_sentences(icecore_data: Path) -> None:
    found = load_corpus("generics", 20_000, {"folder": str(icecore_data / "genericskb")})
    assert len(found.lines) == len(set(found.lines)) == 20_000
    natural = load_generics(icecore_data / "genericskb", templated="drop").lines
    assert found.lines[: len(natural)] == natural[:20_000]
