"""Splits that the library draws: equal texts never end up in two of them, whatever the kind of task."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import TaskError
from probes.data.splits import hold_out, hold_out_any, split_three_ways
from probes.data.task import Task, plain_form
from probes.data.task_table import load_task

TOPICS = ("frost", "river", "market", "engine", "garden")


def written_again(text: str, rng: random.Random) -> str:
    """Write a text so that it is equal but for case, blanks, Unicode form and punctuation at its end."""
    ways = (
        text.upper(),
        f"  {text} ",
        text.replace(" ", "  "),
        f"{text}!",
        f"{text} ...",
        text.replace("é", "e\u0301"),
    )
    return rng.choice(ways)


def texts(n: int) -> list[str]:
    return [f"The {TOPICS[k % 5]} café near house {k} is open" for k in range(n)]


def files_of(kind: str, folder: Path, *, with_train: bool) -> dict[str, Any]:
    """Write 150 different texts twice, the copies written otherwise, and give the options that read them."""
    rng = random.Random(0)
    rows = [(text, k) for k, text in enumerate(texts(150))]
    rows += [(written_again(text, rng), k) for text, k in rows]
    rng.shuffle(rows)
    path, held = folder / f"{kind}.jsonl", folder / "test.jsonl"
    made: dict[str, Callable[[str, int], dict[str, Any]]] = {
        "classes": lambda text, k: {"text": text, "label": f"c{k % 3}"},
        "numbers": lambda text, k: {"text": text, "number": k % 7},
        "pairs": lambda text, k: {"sentence1": text, "sentence2": f"answer {k} of {k * 7}", "score": k % 6},
        "words": lambda text, k: {"words": text.split(), "tags": [TOPICS[k % 2]] * len(text.split())},
    }
    path.write_text("\n".join(json.dumps(made[kind](text, k)) for text, k in rows), encoding="utf-8")
    held.write_text("\n".join(json.dumps(made[kind](f"unseen {k} {'x' * k}", k)) for k in range(12)), encoding="utf-8")
    return {"files": {"train": str(path), "test": str(held)} if with_train else str(path)}


def rows_of(task: Task, split: str) -> list[str]:
    rows = task.rows(split)
    if "words" in rows.column_names:
        return [plain_form(" ".join(words)) for words in rows["words"]]
    return [plain_form(text) for text in rows["text" if "text" in rows.column_names else "sentence1"]]


@pytest.mark.parametrize("with_train", [False, True], ids=["one file", "validation from train"])
@pytest.mark.parametrize("kind", ["classes", "numbers", "pairs", "words"])
def test_copies_are_in_one_split(kind: str, with_train: bool, tmp_path: Path) -> None:
    options = files_of(kind, tmp_path, with_train=with_train)
    if with_train:
        options["split"] = "auto"
    name = {"classes": "class-files", "numbers": "number-files", "pairs": "pair-files", "words": "word-files"}[kind]
    task = load_task(name, **options, **({"words": "words"} if kind == "words" else {}))
    parts = {split: set(rows_of(task, split)) for split in task.splits}
    assert set(parts) == {"train", "validation", "test"}
    for split, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not parts[split] & parts[other], f"{split} and {other} share texts"
    drawn = ("validation",) if with_train else ("validation", "test")
    for split in drawn:
        assert 20 <= len(task.rows(split)) <= 40, "about a tenth of 300 rows"


def test_groups_that_share_a_text_are_one(tmp_path: Path) -> None:
    rows = [{"text": text, "label": f"c{k % 3}", "by": f"g{k}"} for k, text in enumerate(texts(60))]
    rows += [{"text": f"{row['text']}?", "label": row["label"], "by": f"h{k}"} for k, row in enumerate(rows)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = load_task("class-files", files=str(tmp_path / "a.jsonl"), group="by")
    parts = [set(rows_of(task, split)) for split in task.splits]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 60


def test_a_pair_that_shares_one_sentence_is_in_the_same_split(tmp_path: Path) -> None:
    """Three pairs each about one sentence; where a sentence is in most pairs, equal pairs alone stay together."""
    rows = [{"sentence1": text, "sentence2": f"{text} {j}", "score": j} for text in texts(50) for j in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = load_task("pair-files", files=str(tmp_path / "a.jsonl"))
    parts = [set(rows_of(task, split)) for split in task.splits]
    assert sum(map(len, parts)) == 50
    hub = [{**row, "sentence1": "hub"} for row in rows]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, hub)), encoding="utf-8")
    task = load_task("pair-files", files=str(tmp_path / "b.jsonl"))
    assert task.n_rows() == {"train": 120, "validation": 15, "test": 15}
    assert any("share a sentence with train" in note for note in task.notes)


def test_different_texts_are_drawn_as_if_nobody_had_looked() -> None:
    """Every row a copy of itself alone: the very draw without copies, so that older runs keep their splits."""
    labels = np.arange(90) % 4
    names = [f"t{k}" for k in range(90)]
    plain, same = split_three_ways(labels, seed=3), split_three_ways(labels, seed=3, copies=names)
    assert {split: rows.tolist() for split, rows in plain.items()} == {k: rows.tolist() for k, rows in same.items()}
    assert (hold_out(labels, share=0.2, seed=1) == hold_out(labels, share=0.2, seed=1, copies=names)).all()
    assert (hold_out_any(90, fraction=0.1, seed=2) == hold_out_any(90, fraction=0.1, seed=2, copies=names)).all()


def test_three_texts_with_conflicting_gold_are_listed(tmp_path: Path) -> None:
    rows = [{"text": text, "label": f"c{k % 3}"} for k, text in enumerate(texts(60))]
    rows += [{"text": row["text"], "label": "other"} for row in rows[:12]]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = load_task("class-files", files={"train": str(tmp_path / "a.jsonl")}, split="given")
    [note] = [note for note in task.notes if "different labels" in note]
    assert note.startswith("train: 12 texts occur more than once with different labels ('The frost café near house 0")
    assert note.count("other") == 3
    assert note.endswith(", ...)")


UNFITTED: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "clustering-files": lambda text, k: {"text": text, "label": f"c{k % 3}"},
    "pair-class-files": lambda text, k: {"text1": text, "text2": f"answer {k} of {k * 7}", "label": k % 2},
    "triple-files": lambda text, k: {"anchor": text, "positive": f"yes {k} {k * 7}", "negative": f"no {k} {k * 7}"},
}


@pytest.mark.parametrize("name", UNFITTED)
def test_rows_that_share_a_text_are_in_one_split_where_nothing_is_fitted(name: str, tmp_path: Path) -> None:
    rng, path = random.Random(0), tmp_path / "rows.jsonl"
    rows = [
        UNFITTED[name](written_again(text, rng), k + 200 * copy) for k, text in enumerate(texts(80)) for copy in (0, 1)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = load_task(name, files=str(path))
    column = task.text_columns[0]
    one, other = ({plain_form(text) for text in task.rows(split)[column]} for split in ("validation", "test"))
    assert (len(one) + len(other), one & other) == (80, set())


def test_a_file_of_one_document_is_split_by_sentences(tmp_path: Path) -> None:
    path = tmp_path / "one.conll"
    sentences = ["\n".join(f"{word} T{len(word) % 2}" for word in text.split()) for text in texts(40)]
    path.write_text("\n\n".join(["-DOCSTART- O", *sentences]) + "\n", encoding="utf-8")
    task = load_task("word-files", files=str(path), columns=["word", "tag"], tags="tag", metric="accuracy")
    assert task.n_rows() == {"train": 32, "validation": 4, "test": 4}
    assert any("the file marks 1 of the three documents that could stay whole" in note for note in task.notes)


@pytest.mark.parametrize("n_others", [0, 1])
def test_sentences_too_alike_to_hold_some_out_are_refused(n_others: int) -> None:
    copies = ["same"] * 20 + ["other"] * n_others
    with pytest.raises(TaskError, match=rf"{len(copies)} training sentences, {n_others + 1} of them different,"):
        for seed in range(5):  # the others may be drawn first
            hold_out_any(len(copies), fraction=0.1, seed=seed, copies=copies)
