"""Each financial task on a tiny file in its published format, written for this test."""

import json
from pathlib import Path

import datasets
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.domains import load_banking77, load_fiqa, load_phrasebank
from tests.probes.data.tiny_files import counts, save_parquet


def test_phrasebank(tmp_path: Path) -> None:
    sentiments = ("negative", "neutral", "positive")
    lines = [f"Oyj Välkkyä {i} sold @ {i} mn euro .@{sentiments[i % 3]}" for i in range(60)]
    (tmp_path / "Sentences_75Agree.txt").write_bytes("\r\n".join(lines).encode("latin-1"))
    task = load_phrasebank(tmp_path, agreement="75")
    assert counts(task) == {"train": 48, "validation": 6, "test": 6}
    assert task.class_names == sentiments
    assert "Oyj Välkkyä 0 sold @ 0 mn euro ." in task.texts()
    with pytest.raises(UnknownNameError, match=r"unknown agreement '80': did you mean '50'\? Allowed: All, 75, 66, 50"):
        load_phrasebank(tmp_path, agreement="80")
    (tmp_path / "Sentences_75Agree.txt").write_bytes(b"no label\n")
    with pytest.raises(TaskError, match=r"line 1: no @: 'no label' is not sentence, @ and sentiment"):
        load_phrasebank(tmp_path, agreement="75")


def save_fiqa(folder: Path, *, score: str = "0.6") -> Path:
    scores = ["-0.374", "-0.05", score, "0.0999", "-0.1", "0.1"]
    for name, first in (("headline", 0), ("post", 40)):
        records = {
            str(i): {
                "sentence": f"Company {i} does something",
                "info": [
                    {"snippets": "['s']", "target": target, "sentiment_score": scores[(i + j) % 6], "aspects": "['a']"}
                    for j, target in enumerate(("One", "Two"))
                ],
            }
            for i in range(first, first + 40)
        }
        (folder / f"task1_{name}_ABSA_train.json").write_text(json.dumps(records), encoding="utf-8")
    return folder


def test_fiqa_scores_become_classes_and_sentences_stay_whole(tmp_path: Path) -> None:
    task = load_fiqa(save_fiqa(tmp_path))
    assert sum(counts(task).values()) == 160
    rows = {(row["text"], row["row"]): row["label"] for split in task.splits.values() for row in split}
    assert [rows["Company 0 does something", number] for number in (0, 1)] == [0, 1]
    assert [rows["Company 4 does something", number] for number in (8, 9)] == [1, 2]  # -0.1 and 0.1
    held = [set(task.groups(split) or ()) for split in task.splits]
    assert not held[0] & (held[1] | held[2])
    assert "neutral within 0.1" in task.source
    wide = load_fiqa(tmp_path, neutral=0.5)
    assert (wide.labels("train") == 1).mean() > (task.labels("train") == 1).mean()


def test_fiqa_keeps_a_sentence_that_has_two_ids_on_one_side(tmp_path: Path) -> None:
    """The challenge repeats sentences under new ids, and in both files."""
    for k, name in enumerate(("headline", "post")):
        records = {
            str(40 * k + i): {"sentence": f"Company {i % 15} rises", "info": [{"sentiment_score": str(i % 3 - 1)}]}
            for i in range(40)
        }
        (tmp_path / f"task1_{name}_ABSA_train.json").write_text(json.dumps(records), encoding="utf-8")
    task = load_fiqa(tmp_path)
    held = [set(task.splits[split]["text"]) for split in task.splits]
    assert not held[0] & held[1]
    assert not held[0] & held[2]
    assert not held[1] & held[2]
    assert not any("is also in" in note for note in task.notes)


@pytest.mark.parametrize("score", ["good", "1.5", "nan"])
def test_fiqa_with_a_bad_score(tmp_path: Path, score: str) -> None:
    save_fiqa(tmp_path, score=score)
    with pytest.raises(TaskError) as caught:
        load_fiqa(tmp_path)
    assert f"row 4: no score: record 1 holds '{score}', but a number is needed" in str(caught.value)


def test_fiqa_without_files(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no JSON file: give the folder of the FiQA challenge's task 1"):
        load_fiqa(tmp_path)


def test_fiqa_as_the_hub_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICECORE_DATA", raising=False)
    names = ["positive", "negative", "neutral"]
    text = datasets.Value("string")
    features = datasets.Features({"id": text, "query": text, "answer": text, "text": text})
    for split, n_rows in (("train", 9), ("valid", 3), ("test", 3)):
        rows = [
            {"id": str(i), "query": f"Mood? {split} {i} Answer:", "answer": names[i % 3], "text": f"{split} {i}"}
            for i in range(n_rows)
        ]
        save_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet", rows, features)
    task = load_fiqa(hub_id=str(tmp_path))
    assert counts(task) == {"train": 9, "validation": 3, "test": 3}
    assert task.splits["validation"]["row"][0] == 12  # train, test, valid: the released code's order
    assert load_fiqa(hub_id=str(tmp_path), text="query").splits["test"]["text"][0] == "Mood? test 0 Answer:"


def test_banking77(tmp_path: Path) -> None:
    for file, n_rows in (("train.csv", 60), ("test.csv", 6)):
        lines = ["text,category", *(f'"Where, please, is card {i}?",{("card", "fee")[i % 2]}' for i in range(n_rows))]
        (tmp_path / file).write_text("\n".join(lines), encoding="utf-8")
    task = load_banking77(tmp_path)
    assert counts(task) == {"train": 54, "validation": 6, "test": 6}
    assert (task.metric, task.class_names) == ("accuracy", ("card", "fee"))
