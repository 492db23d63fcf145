"""Tasks without fitting: what is read from files of every format, what is drawn, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extract.errors import IcecoreError, TaskError
from probes.data.pair_task import read_sts_files
from probes.data.task_table import load_task
from probes.data.zero_shot_task import (
    OddOneOutTask,
    RerankingTask,
    check_marked,
    draw_validation,
    read_bitext_files,
    read_clustering_files,
    read_odd_files,
    read_pair_class_files,
    read_reranking_files,
    read_retrieval_files,
    read_sense_files,
    read_triple_files,
)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows in the format of the suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        lines = ["\t".join(map(str, row.values())) for row in rows]
        path.write_text("\n".join(["\t".join(rows[0]), *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    write(tmp_path / "corpus.jsonl", [{"_id": f"d{k}", "title": "A" * (k % 2), "text": f"text {k}"} for k in range(12)])
    write(tmp_path / "queries.jsonl", [{"_id": f"q{k}", "text": f"what is {k}"} for k in range(9)])
    (tmp_path / "qrels").mkdir()
    judged = [{"query-id": f"q{k}", "corpus-id": f"d{k}", "score": 2 if k < 8 else 0} for k in range(9)]
    write(tmp_path / "qrels" / "test.tsv", [*judged, {"query-id": "q0", "corpus-id": "d9", "score": -1}])
    return tmp_path


def test_a_folder_of_beir_is_read(beir: Path) -> None:
    task = read_retrieval_files(beir, validation_fraction=0.25)
    assert task.n_rows() == {"validation": 2, "test": 6}
    assert list(task.corpus_ids) == sorted(task.corpus_ids, reverse=True)
    assert dict(zip(task.corpus_ids, task.corpus, strict=True))["d3"] == "A text 3"
    rows = [row for split in task.splits for row in task.rows(split)]
    first = next(row for row in rows if row["id"] == "q0")
    assert {task.corpus_ids[k]: grade for k, grade in zip(first["documents"], first["grades"], strict=True)} == {
        "d0": 2.0,
        "d9": -1.0,
    }
    assert "1 queries without a relevant document left out" in task.notes
    assert len(task.texts()) == 12 + 8
    assert read_retrieval_files(beir, validation_fraction=0.25, seed=1).digest() != task.digest()


def test_qrels_by_split_keep_their_splits(beir: Path) -> None:
    for split, k in (("dev", 1), ("train", 2)):
        rows = [{"query-id": f"q{k + 2 * j}", "corpus-id": "d5", "score": 1} for j in range(3)]
        write(beir / "qrels" / f"{split}.tsv", rows)
    assert read_retrieval_files(beir).n_rows() == {"train": 3, "validation": 3, "test": 8}
    assert read_retrieval_files(beir, qrels={"validation": "qrels/dev.tsv", "test": "qrels/test.tsv"}).n_rows() == {
        "validation": 3,
        "test": 8,
    }


@pytest.mark.parametrize("later", [0, 3])
def test_of_several_grades_the_highest_counts_in_any_order(beir: Path, later: int) -> None:
    with (beir / "qrels" / "test.tsv").open("a", encoding="utf-8") as out:
        out.write(f"q1\td1\t{later}\nq2\td2\t2\n")
    task = read_retrieval_files(beir)
    grades = {row["id"]: row["grades"] for split in task.splits for row in task.rows(split)}
    assert (grades["q1"], grades["q2"]) == ([max(2.0, later)], [2.0])
    assert any(note == "1 judgements repeat one with another grade; the highest counts" for note in task.notes)


@pytest.mark.parametrize(
    ("file", "row", "message"),
    [
        ("qrels/test.tsv", "q1\td99\t1", "line 12: document 'd99' is not in .*corpus.jsonl: add it there"),
        ("qrels/test.tsv", "q99\td1\t1", "line 12: query 'q99' is not in .*queries.jsonl: add it there"),
        ("corpus.jsonl", '{"_id": "d1", "text": "again"}', "line 13: _id 'd1' occurs twice"),
    ],
)
def test_what_is_missing_or_double_is_named(beir: Path, file: str, row: str, message: str) -> None:
    with (beir / file).open("a", encoding="utf-8") as out:
        out.write(row + "\n")
    with pytest.raises(TaskError, match=message):
        read_retrieval_files(beir)


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".parquet"])
def test_every_kind_is_read_from_every_format(suffix: str, tmp_path: Path) -> None:
    n = 20
    pairs = [{"text1": f"a {k}", "text2": f"b {k}", "label": k % 2} for k in range(n)]
    assert read_pair_class_files(write(tmp_path / f"p{suffix}", pairs)).n_rows()["test"] == 14
    assert read_bitext_files(write(tmp_path / f"b{suffix}", pairs)).n_rows()["validation"] == 6
    labels = [{"text": f"t {k}", "label": "xyz"[k % 3]} for k in range(n)]
    assert read_clustering_files(write(tmp_path / f"c{suffix}", labels)).describe().of_kind["class_names"] == [
        "x",
        "y",
        "z",
    ]
    ranked = [{"query": f"q {k // 4}", "document": f"d {k}", "relevance": int(k % 4 == 1)} for k in range(40)]
    task = read_reranking_files(write(tmp_path / f"r{suffix}", ranked))
    assert task.n_rows() == {"validation": 3, "test": 7}
    assert len(task.corpus) == 40
    odd = [{"question": k // 3, "sentence": f"the [bat] {k}", "odd": int(k % 3 == 2)} for k in range(30)]
    asked = read_odd_files(write(tmp_path / f"o{suffix}", odd))
    assert set(asked.answers("test").tolist()) == {2}
    assert asked.marked("test")[0][0].text.startswith("the bat")
    assert asked.marked("test")[0][0].spans == ((4, 7),)


def test_triples_are_queries_with_two_candidates(tmp_path: Path) -> None:
    triples = [{"anchor": f"a {k // 2}", "positive": f"p {k}", "negative": f"n {k}"} for k in range(20)]
    same = {"anchor": "a", "positive": "one text", "negative": "one text"}
    task = read_triple_files(write(tmp_path / "t.jsonl", [*triples, same]))
    assert task.n_rows() == {"validation": 6, "test": 14}  # anchors that occur twice stay two queries
    assert "1 triples left out: positive and negative are the same text" in task.notes
    row = task.rows("test")[0]
    graded = {task.corpus[document]: grade for document, grade in zip(row["documents"], row["grades"], strict=True)}
    number = next(text for text, grade in graded.items() if grade > 0).removeprefix("p ")
    assert graded == {f"p {number}": 1.0, f"n {number}": 0.0}
    assert row["query"] == f"a {int(number) // 2}"
    named = read_triple_files(
        write(tmp_path / "u.jsonl", [{"q": t["anchor"], "yes": t["positive"], "no": t["negative"]} for t in triples]),
        anchor="q",
        positive="yes",
        negative="no",
    )
    assert named.corpus == task.corpus
    with pytest.raises(TaskError, match="has no query with a relevant document"):
        read_triple_files(write(tmp_path / "v.jsonl", [same] * 20))


def test_a_subset_of_a_reranking_task_has_the_candidates_of_its_queries_alone() -> None:
    whole = load_task("reranking-sample")
    drawn = whole.subset(5)
    assert isinstance(whole, RerankingTask)
    assert isinstance(drawn, RerankingTask)
    assert drawn.n_rows() == dict.fromkeys(drawn.splits, 5)
    rows = [row for split in drawn.splits for row in drawn.rows(split)]
    assert set(drawn.texts()) == {text for row in rows for text in told(drawn, row)}
    assert list(drawn.corpus_ids) == sorted(drawn.corpus_ids, reverse=True)
    of_query = {row["query"]: told(whole, row) for split in whole.splits for row in whole.rows(split)}
    assert all(told(drawn, row) == of_query[row["query"]] for row in rows)


def told(task: RerankingTask, row: dict[str, Any]) -> list[str]:
    return [row["query"], *(task.corpus[index] for index in row["documents"])]


def test_snli_is_read_whole(icecore_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICECORE_DATA", str(icecore_data))
    task = load_task("snli-triples")
    assert task.n_rows() == {"validation": 27194, "test": 2921}


def test_validation_is_drawn_from_train_and_equal_rows_stay_together() -> None:
    given, keys = ["train"] * 10 + ["test"] * 4, [k // 2 for k in range(14)]
    parts, note = draw_validation(given, keys, fraction=0.3, seed=0, task="made")
    assert {split: len(rows) for split, rows in parts.items()} == {"train": 6, "validation": 4, "test": 4}
    assert not {keys[k] for k in parts["train"]} & {keys[k] for k in parts["validation"]}
    assert note == "splits drawn: 4 of 10 rows of train to validation with seed 0"
    kept, note = draw_validation(["validation", "validation", "test"], [0, 1, 2], fraction=0.3, seed=0, task="made")
    assert (list(kept), note) == (["validation", "test"], "")
    with pytest.raises(TaskError, match=r"`validation_fraction` is 1, but a number above 0 and below 1"):
        draw_validation(given, keys, fraction=1.0, seed=0, task="made")
    with pytest.raises(TaskError, match="has 2 rows in test and none in validation, too few"):
        draw_validation([None, None], [0, 1], fraction=0.3, seed=0, task="made")


ODD = {"question": "1", "sentence": "a [bat] flew", "odd": 0}


@pytest.mark.parametrize(
    ("read", "rows", "message"),
    [
        (read_odd_files, [{**ODD, "sentence": "no mark"}] * 3, r"holds 'no mark', but one word in \[brackets\]"),
        (read_odd_files, [{**ODD, "sentence": "[two] [marks]"}] * 3, r"but one word in \[brackets\]"),
        (read_odd_files, [ODD] * 3, "question '1' has 0 odd sentences; mark exactly one by 1"),
        (read_odd_files, [{**ODD, "odd": 1}, ODD] * 1, "has 1 rows in test"),
        (read_bitext_files, [{"text1": f"a {k // 2}", "text2": f"b {k}"} for k in range(20)], "twice in text1; leave"),
        (
            read_pair_class_files,
            [{"text1": f"a {k}", "text2": "b", "label": 1} for k in range(20)],
            "has the labels 1; give pairs of label 1, which are alike, and of label 0",
        ),
        (
            read_clustering_files,
            [{"text": f"a {k}", "label": k} for k in range(20)],
            "has 6 labels in 6 rows; give two labels or more, and more rows than labels",
        ),
        (
            read_reranking_files,
            [{"query": f"q {k}", "document": "d", "relevance": 0} for k in range(20)],
            "has no query with a relevant document: give grades above 0",
        ),
    ],
)
def test_rows_that_cannot_be_scored_are_refused_in_a_sentence(
    read: Any, rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(IcecoreError, match=message) as caught:
        read(write(tmp_path / "rows.jsonl", rows))
    assert "\n" not in str(caught.value)


def test_the_marked_word_is_found_where_its_brackets_were() -> None:
    assert check_marked("sentence", "[Bats] fly.") == ("Bats fly.", 0, 4)
    text, start, end = check_marked("sentence", "He swung the [bat]!")
    assert text[start:end] == "bat"


def test_samples_are_what_they_say() -> None:
    odd = load_task("odd-sample")
    rows = [row for split in odd.splits for row in odd.rows(split)]
    assert len({row["id"] for row in rows}) == len(rows) == 60
    assert {len(row["sentences"]) for row in rows} == {4, 5}
    for row in rows:
        words = {s[a:b].lower() for s, a, b in zip(row["sentences"], row["starts"], row["ends"], strict=True)}
        assert words == {row["id"]}
    answers = np.bincount([row["answer"] for row in rows])
    assert answers.max() < 25  # no position gives the answer away
    assert [note for note in odd.notes if "also in" in note] == []
    assert load_task("retrieval-sample").describe().of_kind["n_documents"] == 60


def test_sts_is_read_as_it_was_published_and_choices_come_from_elsewhere(tmp_path: Path) -> None:
    for subset, n, blank in (("headlines", 12, ()), ("answers", 10, (3, 9))):
        texts = [f"{subset} {k}\tother {k}\tsource\tsource" for k in range(n)]
        golds = ["" if k in blank else str(k % 6) for k in range(n)]
        (tmp_path / f"STS2016.input.{subset}.txt").write_text("\r\n".join(texts) + "\r\n", encoding="utf-8")
        (tmp_path / f"STS2016.gs.{subset}.txt").write_text("\n".join(golds) + "\n", encoding="utf-8")
    task = read_sts_files(tmp_path, name="sts16", choose_on="sts-sample")
    assert task.n_rows() == {"train": 282, "validation": 86, "test": 20}
    assert (task.rows("test")["subset"].count("answers"), task.score_range) == (8, (0.0, 5.0))
    assert task.rows("test")["sentence2"][0] == "other 0"
    assert "train and validation are those of sts-sample" in task.notes
    (tmp_path / "STS2016.gs.answers.txt").write_text("1\n2\n", encoding="utf-8")
    with pytest.raises(TaskError, match=r"answers.txt has 10 lines, but STS2016.gs.answers.txt has 2"):
        read_sts_files(tmp_path, choose_on="sts-sample")
    (tmp_path / "STS2016.gs.answers.txt").write_text("7\n" * 10, encoding="utf-8")
    with pytest.raises(TaskError, match=r"gs.answers.txt, line 1: the gold is '7', but 0 to 5 is needed"):
        read_sts_files(tmp_path, choose_on="sts-sample")
    with pytest.raises(TaskError, match="`choose_on` is 'stsx', but one of stsb, sts-sample is needed"):
        read_sts_files(tmp_path, choose_on="stsx")
    with pytest.raises(TaskError, match="has no scored pairs: give a folder with"):
        read_sts_files(tmp_path / "nothing", choose_on="sts-sample")


def test_sick_has_its_own_splits(tmp_path: Path) -> None:
    header = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set"
    sets = {"TRAIN": 9, "TRIAL": 8, "TEST": 10}
    lines = [f"{k}\ta {s} {k}\tb {k}\tNEUTRAL\t{1 + k % 5}\t{s}" for s, n in sets.items() for k in range(n)]
    (tmp_path / "SICK.txt").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    task = read_sts_files(tmp_path)
    assert task.n_rows() == {"train": 9, "validation": 8, "test": 10}
    assert task.score_range == (1.0, 5.0)
    assert float(task.gold01("test")[4]) == 1.0


def sense_rows(n: int) -> list[str]:
    """Write rows as they are published: a word in quotes, four sentences, and the letter of the odd one."""
    rows = []
    for k in range(n):
        sentences = [f"第{k}句、{text}。" for text in ("教练打了一个球", "他们打球、打鼓", "打门、打窗", "电话打通了")]
        rows.append(f"{k},以下哪句话中“打”的意思(或用法)与其他句子不同。,{','.join(sentences)},{'ABCD'[k % 4]}")
    return rows


def test_published_questions_of_word_sense_are_read_with_their_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "SLPWC_v1.csv"
    quoted = '20,"以下哪句话中""东西""的意思(或用法)与其他句子不同。",一些东西,"“东西”,方向",买东西,东西都在,B'
    lines = [",问题,选项1,选项2,选项3,选项4,答案", *sense_rows(20), quoted]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    assert file.read_bytes().startswith(b"\xef\xbb\xbf")
    task = load_task("sense-files", files=str(file), name="SLPWC")
    assert isinstance(task, OddOneOutTask)
    assert sum(task.n_rows().values()) == 21
    found = {}
    for split in task.splits:
        for question, answer in zip(task.marked(split), task.answers(split).tolist(), strict=True):
            found[tuple(text.text for text in question)] = (answer, [text.spans[0] for text in question])
            assert len({text.text[slice(*text.spans[0])] for text in question}) == 1, "the same word in all four"
    for k, line in enumerate(sense_rows(20)):
        _, _, *sentences, letter = line.split(",")
        assert found[tuple(sentences)] == (
            "ABCD".index(letter),
            [(s.index("打"), s.index("打") + 1) for s in sentences],
        )
        assert letter == "ABCD"[k % 4]
    assert found["一些东西", "“东西”,方向", "买东西", "东西都在"] == (1, [(2, 4), (1, 3), (1, 3), (0, 2)])


def test_a_question_whose_word_is_missing_is_named_or_dropped(tmp_path: Path) -> None:
    file = tmp_path / "WSD_v1.csv"
    header = ",问题,选项1,选项2,选项3,选项4,答案"
    for row, message in {
        "0,句中“山”的意思,山,水,山,山,B": r"line 22: sentence B lacks '山'",
        "0,句中山的意思,山,山,山,山,B": r"line 22: no word is in quotes",
        "0,句中“山”的意思,山,山,山,山,E": r"'答案' holds 'E', but A, B, C or D is needed",
    }.items():
        file.write_text("\n".join([header, *sense_rows(20), row]) + "\n", encoding="utf-8")
        with pytest.raises(TaskError, match=message):
            read_sense_files(file)
        task = load_task("sense-files", files=str(file), bad_rows="drop")
        assert sum(task.n_rows().values()) == 20
        assert any("dropped" in note or "left out" in note for note in task.notes), task.notes
    with pytest.raises(TaskError, match="`sentences` names 1 columns; name 4"):
        read_sense_files(file, sentences=("a",))


@pytest.mark.parametrize("bad", [{"sentence": "no mark"}, {"odd": 7}])
def test_a_question_with_a_bad_sentence_is_dropped_as_a_whole(bad: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"question": k // 3, "sentence": f"the [bat] {k}", "odd": int(k % 3 == 2)} for k in range(36)]
    rows[9] |= bad
    with pytest.raises(TaskError, match="line 11"):
        load_task("odd-files", files=str(write(tmp_path / "o.tsv", rows)))
    task = load_task("odd-files", files=str(write(tmp_path / "o.tsv", rows)), bad_rows="drop")
    assert sum(task.n_rows().values()) == 11
    assert {len(row["sentences"]) for split in task.splits for row in task.rows(split)} == {3}
    assert "1 of 12 questions dropped: they have a bad sentence" in task.notes
    every = [{**row, "odd": 7} for row in rows]
    with pytest.raises(TaskError, match="no question is left"):
        load_task("odd-files", files=str(write(tmp_path / "e.tsv", every)), bad_rows="drop")


def test_grades_of_pairs_may_have_decimal_commas(tmp_path: Path) -> None:
    rows = [f"left {k};right {k};{k % 6},5" for k in range(60)]
    (tmp_path / "pairs.csv").write_text("\n".join(["text1;text2;label", *rows]), encoding="utf-8")
    options = {"delimiter": ";", "decimal": ",", "alike_from": 3.0}
    task = load_task("pair-class-files", files=str(tmp_path / "pairs.csv"), **options)
    assert sum(sum(task.rows(split)["label"]) for split in task.splits) == 30
