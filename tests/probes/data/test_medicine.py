"""Each medical task on a tiny file in its published format, written for this test."""

import json
from pathlib import Path
from typing import Any

import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.domains import CHEMPROT_CLASSES, load_chemprot, load_mqp, load_pubmedqa, load_rct
from tests.probes.data.tiny_files import counts

DECISIONS = ("yes", "no", "maybe")


def save_pubmedqa(folder: Path, **changes: Any) -> Path:
    records = {
        str(1000 + i): {
            "QUESTION": f"Does tea number {i} help?",
            "CONTEXTS": ["We gave tea.", f"{i} people slept."],
            "LABELS": ["METHODS", "RESULTS"],
            "MESHES": ["Tea"],
            "YEAR": "2001",
            "final_decision": DECISIONS[i % 3],
            "LONG_ANSWER": "Tea helped.",
        }
        for i in range(30)
    }
    records["1000"].update(changes)
    (folder / "ori_pqal.json").write_text(json.dumps(records, indent=4), encoding="utf-8")
    test = {key: record["final_decision"] for key, record in list(records.items())[15:]}
    (folder / "test_ground_truth.json").write_text(json.dumps(test), encoding="utf-8")
    return folder


def test_pubmedqa(tmp_path: Path) -> None:
    task = load_pubmedqa(save_pubmedqa(tmp_path))
    assert counts(task) == {"train": 12, "validation": 3, "test": 15}
    assert (task.class_names, task.metric, task.licence) == (DECISIONS, "f1-weighted", "MIT")
    assert task.splits["test"]["text"][0] == "Question:Does tea number 15 help?ContextWe gave tea.15 people slept."
    plain = load_pubmedqa(tmp_path, text_form="plain")
    assert plain.splits["test"]["text"][0] == "Does tea number 15 help? We gave tea. 15 people slept."
    assert not any("Tea helped" in text for text in task.texts())
    assert task.source == f"ori_pqal.json, test_ground_truth.json in {tmp_path}"


def test_pubmedqa_with_a_broken_record(tmp_path: Path) -> None:
    save_pubmedqa(tmp_path, CONTEXTS="no list")
    with pytest.raises(TaskError, match=r"row 1: broken record: 1000 lacks a text as QUESTION, or a list of texts as"):
        load_pubmedqa(tmp_path)
    assert sum(counts(load_pubmedqa(tmp_path, bad_rows="drop")).values()) == 29
    with pytest.raises(UnknownNameError, match=r"unknown class 'perhaps'.*Allowed: yes, no, maybe"):
        load_pubmedqa(save_pubmedqa(tmp_path, final_decision="perhaps"))


def test_pubmedqa_with_test_ids_of_another_release(tmp_path: Path) -> None:
    save_pubmedqa(tmp_path)
    (tmp_path / "test_ground_truth.json").write_text('{"7": "yes"}', encoding="utf-8")
    with pytest.raises(TaskError, match=r"names 1 records that .*ori_pqal\.json lacks, the first '7'"):
        load_pubmedqa(tmp_path)
    (tmp_path / "test_ground_truth.json").write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(TaskError, match=r"holds \[1, 2\], but one JSON object of records by id is needed"):
        load_pubmedqa(tmp_path)
    (tmp_path / "test_ground_truth.json").write_text("{\n1", encoding="utf-8")
    with pytest.raises(TaskError, match=r"test_ground_truth\.json, line 2: this is not JSON"):
        load_pubmedqa(tmp_path)


def test_an_unknown_text_form() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown text_form 'plane': did you mean 'plain'\?"):
        load_pubmedqa(text_form="plane")


def save_chemprot(folder: Path, *, last: str = "SUBSTRATE") -> Path:
    for split, n_rows in (("train", 12), ("dev", 4), ("test", 4)):
        labels = ["INHIBITOR", "ACTIVATOR", last]
        lines = [
            {"text": f"<< drug {i} >> meets [[ protein {i} ]] in {split} .", "label": labels[i % 3], "metadata": []}
            for i in range(n_rows)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return folder


def test_chemprot(tmp_path: Path) -> None:
    task = load_chemprot(save_chemprot(tmp_path))
    assert counts(task) == {"train": 12, "validation": 4, "test": 4}
    assert task.class_names == CHEMPROT_CLASSES
    assert task.splits["test"]["text"][0] == "<< drug 0 >> meets [[ protein 0 ]] in test ."
    assert task.labels("train")[:3].tolist() == [0, 4, 2]
    with pytest.raises(UnknownNameError, match=r"unknown class 'INHIBITR': did you mean 'INHIBITOR'\?"):
        load_chemprot(save_chemprot(tmp_path, last="INHIBITR"))


def test_chemprot_without_files_or_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(TaskError, match=r"'AdaptLLM/ChemProt' cannot be loaded: the hub was not asked.*chemprot/train"):
        load_chemprot()


def test_mqp(tmp_path: Path) -> None:
    lines = []
    for i in range(20):
        lines += [
            f'1,"Is it bad, doctor {i}?",Should I worry about it {i}?,1',
            f'1,"Is it bad, doctor {i}?",Why {i}?,0',
        ]
    (tmp_path / "mqp.csv").write_text("\n".join(lines), encoding="utf-8")
    task = load_mqp(tmp_path)
    assert (task.is_pairs, task.class_names, task.metric) == (True, ("different", "similar"), "accuracy")
    assert counts(task) == {"train": 32, "validation": 4, "test": 4}
    for split in task.splits:
        assert task.labels(split).mean() == 0.5  # each first question came whole
    assert task.splits["train"][0]["text1"] == "Is it bad, doctor 0?"
    (tmp_path / "mqp.csv").write_text("\n".join([*lines, "1,a,b,2"]), encoding="utf-8")
    with pytest.raises(UnknownNameError, match=r"unknown class '2'. Allowed: different, similar\."):
        load_mqp(tmp_path)


RCT = """###2400000{0}
BACKGROUND\tSleep is short in students of school {0} .
METHODS\tWe asked @ students .
METHODS\tHalf of them drank tea in {0} .
RESULTS\tThey slept @ minutes more in {0} .
CONCLUSIONS\tTea may help school {0} .

"""


def save_rct(folder: Path, *, extra: str = "") -> Path:
    for split, numbers in (("train", range(5)), ("dev", range(5, 7)), ("test", range(7, 9))):
        text = extra + "".join(RCT.format(number) for number in numbers)
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    return folder


def test_rct(tmp_path: Path) -> None:
    task = load_rct(save_rct(tmp_path))
    assert counts(task) == {"train": 25, "validation": 10, "test": 10}
    assert task.class_names == ("BACKGROUND", "OBJECTIVE", "METHODS", "RESULTS", "CONCLUSIONS")
    assert task.groups("test") == ("24000007",) * 5 + ("24000008",) * 5
    assert task.splits["train"]["text"][1] == "We asked @ students ."
    assert task.look_both_ways_rows == 1000
    assert "train: 4 of 25 rows repeat the texts of an earlier row" in task.notes


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("METHODS\tWe began .\n", "line 1: no abstract: 'METHODS\\tWe began .' comes before the first ### line"),
        ("###1\n\nWe began .\n", "line 3: no tab: 'We began .' is not label, tab and sentence"),
        ("###1\nMETHODS\t\n", "line 2: column 'text' holds '', but a text that is not blank is needed"),
    ],
)
def test_rct_with_a_bad_line(tmp_path: Path, extra: str, said: str) -> None:
    save_rct(tmp_path, extra=extra)
    with pytest.raises(TaskError) as caught:
        load_rct(tmp_path)
    assert f"{tmp_path / 'train.txt'}, {said}" in str(caught.value)
    assert counts(load_rct(tmp_path, bad_rows="drop")) == {"train": 25, "validation": 10, "test": 10}


def test_rct_with_a_missing_file(tmp_path: Path) -> None:
    save_rct(tmp_path)
    (tmp_path / "dev.txt").unlink()
    with pytest.raises(TaskError, match=r"dev\.txt does not exist: give the folder that holds dev\.txt, packed"):
        load_rct(tmp_path)


def test_without_folder_or_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICECORE_DATA", raising=False)
    with pytest.raises(TaskError, match=r"ICECORE_DATA is not set: set it to the folder that holds rct/train\.txt, or"):
        load_rct()
