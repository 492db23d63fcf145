import gzip
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.table_files import quiet_datasets
from probes.data.word_files import (
    load_conll2000,
    load_conll2003,
    load_financial_ner,
    load_ud_ewt,
    load_wnut17,
    load_word_files,
    read_conllu,
)
from probes.data.word_task import WordTask

CONLL2003 = """-DOCSTART- -X- O O

Petra NNP I-NP I-PER
Veld NNP I-NP I-PER
visits VBZ I-VP O
Corwen NNP I-NP I-LOC

-DOCSTART- -X- O O

Hugo NNP I-NP I-PER
Ana NNP B-NP B-PER
"""
NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def hub_folder(folder: Path, *, tags: str, splits: tuple[str, ...]) -> Path:
    (folder / "data").mkdir(parents=True)
    label = datasets.List(datasets.ClassLabel(names=NAMES))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), tags: label})
    rows = {"tokens": [["Petra", "Veld", "in", f"Oslo{k}"] for k in range(20)] + [[]], tags: [[1, 2, 0, 3]] * 20 + [[]]}
    with quiet_datasets():
        data = datasets.Dataset.from_dict(rows, features=features)
        for split in splits:
            data.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def sizes(task: WordTask) -> dict[str, tuple[int, int]]:
    """Sentences and words of each split."""
    return {split: (len(rows), sum(map(len, rows["words"]))) for split, rows in task.splits.items()}


def n_spans(task: WordTask) -> dict[str, int]:
    return {split: sum(tag[0] == "B" for tags in rows["tags"] for tag in tags) for split, rows in task.splits.items()}


@pytest.mark.parametrize("names", [("eng.train", "eng.testa", "eng.testb"), ("train.txt", "valid.txt", "test.txt")])
def test_conll2003_from_its_published_files(
    tmp_path: Path, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "conll2003", dict.fromkeys(names, CONLL2003))
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    task = load_conll2003()
    assert (task.name, task.metric, task.has_documents) == ("conll2003-ner", "span-f1", True)
    assert task.source == f"{', '.join(names)} in $ICECORE_DATA/conll2003"
    assert task.scheme is not None
    assert (task.scheme.name, task.scheme.n_changed) == ("IOB1", 9)
    assert task.splits["test"]["tags"][:] == [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "B-PER"]]
    assert load_conll2003("chunk", folder=str(folder)).splits["train"]["tags"][1] == ["B-NP", "B-NP"]
    pos = load_conll2003("pos", folder=str(folder))
    assert (pos.name, pos.metric, pos.labels) == ("conll2003-pos", "accuracy", ("NNP", "VBZ"))


def test_a_slip_in_a_published_file_is_read_as_conlleval_would(tmp_path: Path) -> None:
    files = dict.fromkeys(("eng.train", "eng.testb"), CONLL2003 * 10)
    folder = write(tmp_path / "c", files | {"eng.testa": CONLL2003 + "\nto TO I-VP O\nOslo NNP I-NP B-LOC\n"})
    task = load_conll2003(folder=str(folder))
    assert task.splits["validation"]["tags"][2] == ["O", "B-LOC"]
    assert task.scheme is not None
    assert (task.scheme.name, task.scheme.n_broken) == ("IOB1", 1)
    assert task.scheme.first_break == f"{folder / 'eng.testa'}, line 14: 'B-LOC' after 'O'"
    files = dict.fromkeys(("train", "validation", "test"), str(folder / "eng.testa"))
    with pytest.raises(
        TaskError, match=r"line 14: 'B-LOC' after 'O' is no IOB1, and .*line 3: 'I-PER' at the start of"
    ):
        load_word_files(files, columns=["word", "pos", "chunk", "ner"], tags="ner")


def test_conll2003_in_hub_layout(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "hub", tags="ner_tags", splits=("train", "validation", "test"))
    task = load_conll2003(hub_id=str(folder))
    assert task.scheme is not None
    assert (task.scheme.name, task.scheme.n_changed, task.source) == ("IOB2", 0, f"folder {folder}")
    assert sizes(task) == dict.fromkeys(("train", "validation", "test"), (20, 80))
    assert f"{folder} (train): 1 row without words skipped" in task.notes
    with pytest.raises(UnknownNameError, match="unknown column 'pos_tags'"):
        load_conll2003("pos", hub_id=str(folder))
    short = hub_folder(tmp_path / "short", tags="ner_tags", splits=("train", "test"))
    with pytest.raises(TaskError, match=r"short has no validation split; its splits: train, test"):
        load_conll2003(hub_id=str(short))


def test_conll2003_without_files_or_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    with pytest.raises(TaskError) as caught:
        load_conll2003()
    message = str(caught.value)
    assert "dataset 'eriktks/conll2003' cannot be loaded at revision 'refs/convert/parquet': the hub was" in message
    assert "set ICECORE_DATA to a folder that holds conll2003/eng.train, or give `folder`" in message
    (tmp_path / "conll2003").mkdir()
    with pytest.raises(
        TaskError, match=r"eng\.train does not exist: give the folder that holds eng\.train or train\.txt"
    ):
        load_conll2003()


def test_conll2000_holds_out_a_validation_split(tmp_path: Path) -> None:
    rows = "\n".join(f"w{i} NN B-NP\nruns VBZ B-VP\nquickly RB B-ADVP\n" for i in range(40))
    folder = write(tmp_path / "c", {"train.txt": rows, "test.txt": rows})
    task = load_conll2000(folder=str(folder))
    assert (task.name, sizes(task)) == (
        "conll2000-chunk",
        {"train": (36, 108), "validation": (4, 12), "test": (40, 120)},
    )
    assert task.notes[0] == "validation: 4 of the 40 training sentences, drawn with seed 0; train is the rest"
    held = {words[0] for words in task.splits["validation"]["words"]}
    assert not held & {words[0] for words in task.splits["train"]["words"]}
    assert task.digest() == load_conll2000(folder=str(folder)).digest()
    assert task.digest() != load_conll2000(folder=str(folder), seed=1).digest()
    assert load_conll2000("pos", folder=str(folder), validation_fraction=0.5).metric == "accuracy"
    with pytest.raises(UnknownNameError, match=r"unknown column of tags 'ner'\. Allowed: pos, chunk"):
        load_conll2000("ner", folder=str(folder))


def test_conll2000_is_read_as_it_is_published(tmp_path: Path) -> None:
    rows = "\n".join(f"w{i} NN B-NP\nruns VBZ B-VP\n" for i in range(20))
    plain = write(tmp_path / "plain", {"train.txt": rows, "test.txt": rows})
    packed = tmp_path / "packed"
    packed.mkdir()
    for name in ("train.txt", "test.txt"):
        (packed / f"{name}.gz").write_bytes(gzip.compress(rows.encode()))
    task = load_conll2000(folder=str(packed))
    assert task.digest() == load_conll2000(folder=str(plain)).digest()
    assert task.source == f"train.txt.gz, test.txt.gz in {packed}"
    (packed / "test.txt.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(TaskError, match=r"test\.txt\.gz cannot be unpacked as gzip \(Not a gzipped file \(b'<h'\)\)"):
        load_conll2000(folder=str(packed))
    (packed / "test.txt.gz").unlink()
    with pytest.raises(
        TaskError, match=r"test\.txt does not exist: give the folder that holds test\.txt, packed \(\.gz\) or not"
    ):
        load_conll2000(folder=str(packed))


MIXED = "Ana I-PER\n\nin O\nOslo B-LOC\n\nEva I-PER\n\nto O\nRoma B-LOC\n"


@pytest.mark.parametrize(
    ("load", "files", "pad"),
    [
        (load_conll2000, ("train.txt", "test.txt"), " NN "),
        (load_wnut17, ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"), "\t"),
        (load_financial_ner, ("FIN5.txt", "FIN3.txt"), " NN - "),
    ],
)
def test_mixed_schemes_can_be_declared_as_the_error_says(
    tmp_path: Path, load: Callable[..., WordTask], files: tuple[str, ...], pad: str
) -> None:
    folder = str(write(tmp_path / "c", dict.fromkeys(files, MIXED.replace(" ", pad) * 5)))
    options = {} if load is load_wnut17 else {"validation_fraction": 0.5}
    with pytest.raises(TaskError, match="or name the scheme with `scheme`"):
        load(folder=folder, **options)
    task = load(folder=folder, scheme="IOB2", **options)
    assert task.scheme is not None
    assert (task.scheme.name, task.scheme.is_declared, task.metric) == ("IOB2", True, "span-f1")
    assert task.splits["test"]["tags"][:2] == [["B-PER"], ["O", "B-LOC"]]
    with pytest.raises(UnknownNameError, match="unknown tagging scheme 'IOB3': did you mean 'IOB2'"):
        load(folder=folder, scheme="IOB3", **options)


def test_conll2000_in_hub_layout(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "hub", tags="chunk_tags", splits=("train", "test"))
    assert sizes(load_conll2000(hub_id=str(folder))) == {"train": (18, 72), "validation": (2, 8), "test": (20, 80)}


def test_tasks_of_local_files_only_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICECORE_DATA", raising=False)
    with pytest.raises(TaskError, match=r"ICECORE_DATA is not set: set it to the folder that holds wnut17/wnut17train"):
        load_wnut17()
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    with pytest.raises(
        TaskError, match=r"\) has no folder ud-ewt: set it to the folder that holds ud-ewt/en_ewt-ud-tr"
    ):
        load_ud_ewt()
    with pytest.raises(TaskError, match=r"wnut17train\.conll does not exist: give the folder that holds wnut17tr"):
        load_wnut17(str(tmp_path))
    with pytest.raises(
        UnknownNameError, match=r"unknown column of tags 'pos': did you mean 'xpos'\? Allowed: upos, xpos"
    ):
        load_ud_ewt("pos")


@pytest.mark.long
def test_wnut17_has_the_published_counts(icecore_data: Path) -> None:
    task = load_wnut17(str(icecore_data / "wnut17"))
    assert sizes(task) == {"train": (3394, 62730), "validation": (1009, 15733), "test": (1287, 23394)}
    assert n_spans(task) == {"train": 1975, "validation": 836, "test": 1079}
    assert task.scheme is not None
    assert (task.scheme.name, task.scheme.n_changed, task.has_documents) == ("IOB2", 0, False)
    kinds = {label[2:] for label in task.labels if label != "O"}
    assert kinds == {"corporation", "creative-work", "group", "location", "person", "product"}
    assert task.splits["train"]["words"][0][:3] == ["@paulwalk", "It", "'s"]
    same = load_word_files(icecore_data / "wnut17", columns=["word", "tags"])
    assert same.digest() == task.digest()


@pytest.mark.long
def test_ud_ewt_has_the_published_counts(icecore_data: Path) -> None:
    task = load_ud_ewt(folder=str(icecore_data / "ud-ewt"))
    assert sizes(task) == {"train": (12544, 204577), "validation": (2001, 25147), "test": (2077, 25094)}
    assert {split: len(set(rows["document"])) for split, rows in task.splits.items()} == {
        "train": 540,
        "validation": 318,
        "test": 316,
    }
    assert (len(task.labels), task.metric, task.has_documents) == (17, "accuracy", True)
    assert task.joined("validation")[1].text.startswith("President Bush on Tuesday nominated two individuals to")
    assert task.joined("validation")[1].text.endswith("in the Washington area.")
    rebuilt = [note for note in task.notes if "`# text`" in note]
    assert len(rebuilt) == 1  # one sentence of test holds a no-break space between two words
    assert rebuilt[0].endswith("en_ewt-ud-test.conllu: 1 sentence differs from its `# text`")


def test_ud_ewt_has_penn_tags_too(icecore_data: Path) -> None:
    table = read_conllu(icecore_data / "ud-ewt" / "en_ewt-ud-dev.conllu", "xpos")
    tags = [tag for sentence in table.sentences for tag in sentence.tags]
    assert (len(tags), len(set(tags))) == (25147, 49)


def test_a_source_names_a_path_where_the_user_gave_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("eng.train", "eng.testa", "eng.testb")
    folder = write(tmp_path / "elsewhere" / "c", dict.fromkeys(names, CONLL2003))
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path / "data"))
    assert load_conll2003(folder=str(folder)).source == f"{', '.join(names)} in {folder}"
