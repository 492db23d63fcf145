"""Judging: equal to counting by hand and to conlleval's functions, words without a prediction being errors."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probes.heads.word_fits import ABSENT, TagScorer, majority_ids, tag_scorer
from probes.latents.word_latents import GoldTags, WordLatents
from probes.metrics.prediction_metrics import NO_PREDICTION, count_tag_spans, score_spans
from tests.probes.heads.words.planted_words import TAGS, make_task, plant

NAMES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
GOLD = [["B-PER", "I-PER", "O"], ["O", "B-LOC"], ["B-LOC", "I-LOC", "I-LOC", "O"]]
GUESS: list[list[str | None]] = [["B-PER", "I-PER", "O"], ["O", "I-LOC"], ["B-LOC", None, "I-LOC", "B-PER"]]


def ids_of(rows: Any) -> np.ndarray:
    return np.array([NO_PREDICTION if tag is None else NAMES.index(tag) for row in rows for tag in row])


def make_judge(metric: str = "span-f1", **how: Any) -> TagScorer:
    offsets = np.cumsum([0, *(len(row) for row in GOLD)])
    words = [f"w{k}" for k in range(offsets[-1])]
    return TagScorer(GoldTags(NAMES, ids_of(GOLD)), offsets, words, None, metric, **how)


@pytest.mark.parametrize("is_strict", [False, True])
def test_the_score_is_that_of_the_tags(is_strict: bool) -> None:
    wanted = score_spans(count_tag_spans(GOLD, GUESS, strict=is_strict)).micro.f1
    judge = make_judge(is_strict=is_strict)
    assert judge.score(ids_of(GUESS)) == wanted
    assert judge.score(ids_of(GOLD)) == 1
    assert make_judge(is_strict=not is_strict).score(ids_of(GUESS)) != wanted


def test_words_without_a_prediction_are_errors_of_accuracy() -> None:
    judge = make_judge("accuracy")
    assert judge.score(ids_of(GUESS)) == pytest.approx(6 / 9)
    assert judge.score(np.full(9, NO_PREDICTION)) == 0


@pytest.mark.parametrize("metric", ["span-f1", "accuracy"])
def test_words_left_out_do_not_count(metric: str) -> None:
    kept = np.array([0, 1, 2, 3, 4, 5, 7, 8])  # the word without a prediction is gone
    judge = make_judge(metric, scored=kept)
    short = TagScorer(
        GoldTags(NAMES, ids_of(GOLD)[kept]), np.array([0, 3, 5, 8]), [f"w{k}" for k in kept], None, metric
    )
    assert judge.score(ids_of(GUESS)) == short.score(ids_of(GUESS)[kept])
    assert judge.score(ids_of(GUESS)) > make_judge(metric).score(ids_of(GUESS))
    whole, part = (
        each.summarise(ids, n_resamples=100)
        for each, ids in (
            (judge, ids_of(GUESS)[None]),
            (short, ids_of(GUESS)[kept][None]),
        )
    )
    assert whole == part
    assert judge.errors(ids_of(GUESS)) == short.errors(ids_of(GUESS)[kept])


@pytest.mark.parametrize("metric", ["span-f1", "accuracy"])
def test_the_summary_is_of_seeds_and_its_interval_of_sentences(metric: str) -> None:
    judge = make_judge(metric)
    both = np.stack([ids_of(GOLD), ids_of(GUESS)])
    found = judge.summarise(both, n_resamples=200)
    scores = [judge.score(row) for row in both]
    assert found.values == pytest.approx(scores)
    assert found.mean == pytest.approx(np.mean(scores))
    assert found.std == pytest.approx(np.std(scores, ddof=1))
    assert found.low < found.mean < found.high
    documents = ["b", "b", "a"]
    by_document = replace(judge, documents=documents).summarise(both, n_resamples=5)
    counts = np.stack([judge.count(row).by_sentence() for row in both])
    if metric == "accuracy":
        right = np.add.reduceat(both == judge.gold.ids, judge.offsets[:-1], axis=1)
        counts = np.stack([right, np.broadcast_to(np.diff(judge.offsets), right.shape)], axis=2)
    counts = np.stack([counts[:, 2], counts[:, :2].sum(1)], axis=1)  # documents by their names
    means = []
    for drawn in np.random.default_rng(0).integers(2, size=(5, 2)):
        sums = counts[:, drawn].sum(1)
        of_seeds = sums[:, 0] / sums[:, 1] if metric == "accuracy" else 2 * sums[:, 0] / (sums[:, 1] + sums[:, 2])
        means.append(of_seeds.mean())
    assert (by_document.low, by_document.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


def test_one_sentence_has_a_score_and_no_interval() -> None:
    judge = TagScorer(GoldTags(NAMES, np.array([1, 2])), np.array([0, 2]), ["a", "b"], None, "span-f1")
    found = judge.summarise(np.array([[1, 2], [1, 0]]), n_resamples=100)
    assert found.values == (1.0, 0.0)
    assert np.isnan([found.low, found.high]).all()


def test_the_table_by_type_is_that_of_conlleval() -> None:
    judge = make_judge()
    rows = {row["type"]: row for row in judge.by_type(ids_of(GUESS)[None])}
    wanted = {row.type: row for row in score_spans(count_tag_spans(GOLD, GUESS)).by_type}
    assert set(rows) == set(wanted) == {"LOC", "PER"}
    for kind, row in rows.items():
        for key in ("precision", "recall", "f1", "n_gold"):
            assert row[key] == pytest.approx(getattr(wanted[kind], key))
    two = {row["type"]: row for row in judge.by_type(np.stack([ids_of(GUESS), ids_of(GOLD)]))}
    assert two["PER"]["n_gold"] == rows["PER"]["n_gold"]
    assert two["LOC"]["recall"] == pytest.approx((rows["LOC"]["recall"] + 1) / 2)


def test_the_table_by_tag_is_precision_and_recall_of_words() -> None:
    rows = {row["type"]: row for row in make_judge("accuracy").by_type(ids_of(GUESS)[None])}
    assert rows["O"] == {"type": "O", "precision": 1.0, "recall": 2 / 3, "f1": 0.8, "n_gold": 3}
    assert rows["B-PER"]["precision"] == 0.5


def test_errors_are_counted_with_the_words_they_are_made_on() -> None:
    found = make_judge().errors(ids_of(GUESS))
    assert {(row["gold"], row["predicted"]): (row["n"], row["words"]) for row in found} == {
        ("B-LOC", "I-LOC"): (1, ["w4"]),
        ("I-LOC", ABSENT): (1, ["w6"]),
        ("O", "B-PER"): (1, ["w8"]),
    }
    many = make_judge().errors(np.full(9, NO_PREDICTION), most=1)
    assert (len(many), many[0]["n"]) == (1, 3)


def test_decodings_are_what_their_functions_say() -> None:
    judge = make_judge()
    logits = np.eye(5)[np.where(ids_of(GUESS) < 0, 0, ids_of(GUESS))]
    logits[ids_of(GUESS) < 0] = np.nan
    found = judge.decodings(logits)
    for way in ("plain", "repaired", "legal"):
        assert judge.score(judge.decode(logits, way)) == found[way]
    assert list(found) == ["plain", "plain strict", "repaired", "repaired strict", "legal", "legal strict"]
    assert found["plain"] == judge.score(ids_of(GUESS))
    assert found["plain strict"] == score_spans(count_tag_spans(GOLD, GUESS, strict=True)).micro.f1
    assert found["repaired"] == found["repaired strict"] == found["plain"]
    assert found["legal"] == found["legal strict"]


def test_the_baseline_is_the_most_frequent_tag_of_each_word() -> None:
    task = make_task(sizes={"train": 40, "test": 10})
    columns = {split: rows.to_dict() for split, rows in task.splits.items()}
    columns["test"]["words"] = [[f"train{k}.0"] * len(row) for k, row in enumerate(columns["test"]["words"])]
    columns["test"]["words"][0] = ["unheard"] * len(columns["test"]["words"][0])
    from probes.data.word_task import WordTask

    task = replace(task, splits=WordTask.hold(columns))
    data = WordLatents(plant(task), task)
    found = majority_ids(data, "test")
    train = columns["train"]
    first = {words[0]: tags[0] for words, tags in zip(train["words"], train["tags"], strict=True)}
    most = Counter(tag for tags in train["tags"] for tag in tags).most_common(1)[0][0]
    wanted = [first.get(word, most) for words in columns["test"]["words"] for word in words]
    assert [TAGS[k] for k in found] == wanted


@pytest.mark.parametrize("metric", ["span-f1", "accuracy"])
@pytest.mark.parametrize(
    ("n_documents", "unit"), [(0, "sentences"), (4, "sentences"), (9, "sentences"), (10, "documents")]
)
def test_documents_are_resampled_where_the_split_has_ten(metric: str, n_documents: int, unit: str) -> None:
    task = make_task(n_documents=n_documents, metric=metric)
    assert {task.resampled(split) for split in task.splits} == {unit}
    judge = tag_scorer(WordLatents(plant(task), task), "test")
    names = list(task.splits["test"]["document"])
    assert judge.documents == (names if unit == "documents" else None)
    ids = np.where(np.arange(len(judge.words)) % 5 == 0, 0, judge.gold.ids)[None]
    found = judge.summarise(ids, n_resamples=200)
    by_sentence = replace(judge, documents=None).summarise(ids, n_resamples=200)
    assert (found == by_sentence) == (unit == "sentences")


def test_each_split_is_resampled_by_what_it_has() -> None:
    task = make_task(n_documents=10, sizes={"train": 120, "validation": 9, "test": 30})
    assert [task.resampled(split) for split in task.splits] == ["documents", "sentences", "documents"]
    data = WordLatents(plant(task), task)
    assert tag_scorer(data, "validation").documents is None
    assert tag_scorer(data, "test").documents == list(task.splits["test"]["document"])
