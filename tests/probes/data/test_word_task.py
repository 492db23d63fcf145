import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.errors import TaskError, UnknownNameError
from extract.inputs.joined_text import JoinedText, join_words
from probes.data.table_files import Sentence, SentenceTable
from probes.data.word_files import load_word_files
from probes.data.word_task import WordTask, build_task, hold_out


def sentence(words: str, tags: str, document: str = "") -> Sentence:
    pieces = words.split(" ")
    return Sentence(pieces, tags.split(" "), document, [True] * len(pieces), list(range(1, len(pieces) + 1)))


def table(*sentences: Sentence, where: str = "train.txt") -> SentenceTable:
    return SentenceTable(where, "line", list(sentences))


def make_task(n: int = 20) -> WordTask:
    rows = [sentence(f"Person{i} sleeps in Oslo", "B-PER O O B-LOC", str(i // 4)) for i in range(n)]
    return build_task({"test": table(*rows[:4], where="test.txt"), "train": table(*rows)}, name="toy", source="here")


def test_a_task_is_built_in_the_order_of_splits() -> None:
    task = make_task()
    assert list(task.splits) == ["train", "test"]
    assert task.splits["train"][1] == {
        "words": ["Person1", "sleeps", "in", "Oslo"],
        "tags": ["B-PER", "O", "O", "B-LOC"],
        "document": "0",
        "space_after": [True] * 4,
    }
    assert (task.name, task.source, task.metric, task.is_sample) == ("toy", "here", "span-f1", False)
    assert task.labels == ("O", "B-LOC", "B-PER")
    assert task.notes == (
        "tags are IOB2 as detected; none had to be rewritten as IOB2",
        "test: 4 of 4 sentences are also in train",
    )


def test_labels_are_sorted_by_type_with_o_first() -> None:
    rows = table(sentence("a b c d e", "B-Z I-Z O B-A I-A"))
    assert build_task({"train": rows}, name="x", source="").labels == ("O", "B-A", "I-A", "B-Z", "I-Z")
    pos = table(sentence("a b c", "VB , NN"))
    task = build_task({"train": pos}, name="x", source="")
    assert (task.labels, task.metric, task.scheme) == ((",", "NN", "VB"), "accuracy", None)


def test_the_scheme_is_that_of_all_splits_together() -> None:
    train, test = sentence("a b c", "I-A I-A B-A"), sentence("a b", "O I-A")
    task = build_task({"train": table(train), "test": table(test)}, name="x", source="")
    assert task.scheme is not None
    assert task.scheme.name == "IOB1"
    assert task.splits["test"]["tags"][0] == ["O", "B-A"]
    with pytest.raises(TaskError) as caught:
        build_task(
            {"train": table(train), "test": table(test, sentence("a b", "O B-A"), where="test.txt")},
            name="x",
            source="",
        )
    assert "test.txt, line 2: 'B-A' after 'O' is no IOB1, and train.txt, line 1: 'I-A' at the start of a sen" in str(
        caught.value
    )


def test_a_metric_and_a_scheme_can_be_declared() -> None:
    rows = table(sentence("a b", "B-A O"))
    assert build_task({"train": rows}, name="x", source="", metric="accuracy").metric == "accuracy"
    with pytest.raises(UnknownNameError, match=r"unknown metric 'f1'\. Allowed: auto, span-f1, accuracy"):
        build_task({"train": rows}, name="x", source="", metric="f1")
    with pytest.raises(TaskError, match="`scheme` is 'IOB2', but task 'x' is scored by accuracy"):
        build_task({"train": rows}, name="x", source="", metric="accuracy", scheme="IOB2")
    with pytest.raises(TaskError, match=r"train.txt, line 1: 'NN' is not a span tag .* set `metric: accuracy`"):
        build_task({"train": table(sentence("a", "NN"))}, name="x", source="", metric="span-f1")


@pytest.mark.parametrize("slip", ["B_LOC", "o", "1", "PER", "b-LOC", "B-"])
def test_a_slip_in_a_span_tag_does_not_change_the_metric(slip: str) -> None:
    train = table(sentence("a b c", "B-LOC I-LOC O"), sentence("d e", "O O"))
    test = table(sentence("f", "B-LOC"), sentence("g h i", f"O {slip} {slip}"), where="test.txt")
    with pytest.raises(TaskError) as caught:
        build_task({"train": train, "test": test}, name="x", source="")
    assert str(caught.value) == (
        f"test.txt, line 2: {slip!r} is not a span tag (2 of 9 tags are not, 1 different), but 'B-LOC' and others are: "
        "fix them to score spans (`metric: span-f1` takes nothing else), or set `metric: accuracy` to score every "
        "word."
    )
    splits = {"train": train, "test": test}
    assert build_task(splits, name="x", source="", metric="accuracy").metric == "accuracy"
    with pytest.raises(TaskError, match=re.escape(f"test.txt, line 2: {slip!r} is not a span tag (O, or one of B I E")):
        build_task(splits, name="x", source="", metric="span-f1")


@pytest.mark.parametrize(
    "tags",
    ["NN O VB", "o X NOUN", "-LRB- HYPH ``", "S----3MP2- I--------- N------S1I", "S- I- Nb", "nsubj:pass obl root"],
)
def test_tags_that_are_no_spans_are_scored_by_accuracy(tags: str) -> None:
    task = build_task({"train": table(sentence("a b c", tags))}, name="x", source="")
    assert (task.metric, task.scheme) == ("accuracy", None)
    assert sorted(task.labels) == sorted(tags.split(" "))


@pytest.mark.parametrize("tags", ["upos", "xpos", "deprel"])
def test_the_tags_of_a_treebank_are_scored_by_accuracy(icecore_data: Path, tags: str) -> None:
    files = {"test": icecore_data / "ud-ewt" / "en_ewt-ud-test.conllu"}
    assert load_word_files(files, tags=tags).metric == "accuracy"


def test_sentences_with_conflicting_tags_are_counted_and_listed() -> None:
    train = table(
        sentence("Ice in Oslo", "NN IN NN"),
        sentence("Ice in Oslo", "NN IN NNP"),
        sentence("Ice in Oslo", "VB IN NN"),
        sentence("so it is", "RB PRP VB"),
        sentence("so it is", "RB PRP VB"),
    )
    test = table(*(sentence(f"core {i}", f"{tag} NN") for i in range(12) for tag in ("NN", "VB")))
    task = build_task({"train": train, "test": test}, name="x", source="")
    assert task.notes[0] == (
        "train: 1 sentence occurs more than once with different tags ('Ice in Oslo': Ice/NN Oslo/NN, "
        "Ice/NN Oslo/NNP, Ice/VB Oslo/NN)"
    )
    listed = next(note for note in task.notes if note.startswith("test: 12 sentences occur more than once"))
    assert "'core 2': core/NN, core/VB, ...)" in listed
    assert "'core 3'" not in listed


def test_tags_that_train_never_shows_are_noted() -> None:
    train, test = table(sentence("a b", "NN VB")), table(sentence("c d e", "NN FW SYM"), sentence("f", "FW"))
    task = build_task({"train": train, "test": test}, name="x", source="")
    assert task.notes == ("test: 3 words have tags that train never shows (FW, SYM)",)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"train": [], "test": [["B-A", "O"]]}, "split 'train' of task 'x' has no rows"),
        ({"train": [["B-A", "O"]], "test": [["O"]]}, "split 'test' of task 'x' has no span in its 1 sentences"),
        ({"train": [["O", "I-A"]]}, "row 1 of split 'train' of task 'x' has tags that are no IOB2 ('O I-A')"),
        ({"train": [["B-A"], ["B-A"]]}, "every word of task 'x' has the tag 'B-A'"),
        ({"train": [["B-A", "O"], []]}, "row 2 of split 'train' of task 'x' has 0 words, 0 tags and 0 spaces"),
    ],
)
def test_a_task_that_cannot_be_used(rows: dict[str, list[list[str]]], said: str) -> None:
    columns: dict[str, dict[str, list[Any]]] = {
        split: {
            "words": [["w"] * len(row) for row in tags],
            "tags": tags,
            "document": [""] * len(tags),
            "space_after": [[True] * len(row) for row in tags],
        }
        for split, tags in rows.items()
    }
    with pytest.raises(TaskError) as caught:
        WordTask("x", WordTask.hold(columns), "span-f1", "here")
    assert said in str(caught.value)


def test_splits_and_columns_have_their_names() -> None:
    splits = make_task().splits
    with pytest.raises(UnknownNameError, match="unknown split 'dev'"):
        WordTask("x", type(splits)({"dev": splits["train"]}), "span-f1", "here")
    with pytest.raises(UnknownNameError, match=r"unknown column 'tags'\. Allowed: words, document, space_after"):
        WordTask("x", splits.remove_columns("tags"), "span-f1", "here")
    with pytest.raises(TaskError, match="task 'x' has no split"):
        WordTask("x", type(splits)(), "span-f1", "here")
    with pytest.raises(UnknownNameError, match=r"unknown split 'validation'\. Allowed: train, test"):
        make_task().joined("validation")


def test_texts_are_joined_once_each() -> None:
    task = make_task()
    assert len(task.texts()) == 20
    assert task.texts()[0] == JoinedText("Person0 sleeps in Oslo", ((0, 7), (8, 14), (15, 17), (18, 22)))
    assert task.joined("test") == task.texts()[:4]
    assert join_words(["a b"], [True]) != join_words(["a", "b"], [True, True])


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


@given(st.lists(st.tuples(words, st.booleans()), min_size=1, max_size=12))
def test_every_word_stands_at_its_offsets(pairs: list[tuple[str, bool]]) -> None:
    joined = join_words([word for word, _ in pairs], [space for _, space in pairs])
    assert [joined.text[start:end] for start, end in joined.spans] == [word for word, _ in pairs]
    gaps = [later[0] - earlier[1] for earlier, later in zip(joined.spans, joined.spans[1:], strict=False)]
    assert gaps == [int(space) for _, space in pairs[:-1]]
    assert joined.spans[-1][1] == len(joined.text)


def test_digests_know_the_rows_and_nothing_else() -> None:
    task = make_task()
    assert task.digest() == make_task().digest()
    assert len(task.digest()) == 64
    assert make_task(19).digest() != task.digest()
    renamed = WordTask("other", task.splits, task.metric, "there", notes=("x",))
    assert renamed.digest() == task.digest()
    assert WordTask("x", task.splits, "accuracy", "here").digest() != task.digest()


def test_a_larger_subset_holds_a_smaller_one() -> None:
    task = make_task()
    small, large = task.subset(3, seed=1), task.subset(9, seed=1)
    first = [row["words"] for row in small.splits["train"]]
    order = [row["words"] for row in task.splits["train"]]
    assert len(first) == 3
    assert first == sorted(first, key=order.index)
    assert all(words in [row["words"] for row in large.splits["train"]] for words in first)
    assert len(large.splits["test"]) == 4
    assert first != [row["words"] for row in task.subset(3, seed=2).splits["train"]]
    assert small.notes[0] == "a random subset of at most 3 sentences per split (seed 1), not the whole task"
    with pytest.raises(TaskError, match="n_per_split is 0"):
        task.subset(0)


def test_documents() -> None:
    assert not make_task().has_documents  # the four test sentences are one document
    rows = [sentence("a b", "B-A O", str(i // 2)) for i in range(6)]
    assert build_task({"train": table(*rows)}, name="x", source="").has_documents
    unmarked = [sentence("a b", "B-A O") for _ in range(6)]
    assert not build_task({"train": table(*unmarked)}, name="x", source="").has_documents


def test_holding_out_by_sentence() -> None:
    rows = table(*(sentence(f"w{i}", "O") for i in range(30)))
    parts, notes = hold_out({"train": rows, "test": rows}, fraction=0.1, seed=0)
    assert list(parts) == ["train", "test", "validation"]
    train, validation = parts["train"], parts["validation"]
    assert (len(train.sentences), len(validation.sentences)) == (27, 3)
    both = sorted([*train.sentences, *validation.sentences], key=lambda s: int(s.words[0][1:]))
    assert both == rows.sentences
    assert notes == ("validation: 3 of the 30 training sentences, drawn with seed 0; train is the rest",)
    assert hold_out({"train": rows}, fraction=0.1, seed=0)[0]["validation"] == validation
    assert hold_out({"train": rows}, fraction=0.1, seed=1)[0]["validation"] != validation
    for fraction in (0.0, 1.0, 0.01, -0.5):
        with pytest.raises(TaskError, match=f"`validation_fraction` is {fraction:g}, which holds out"):
            hold_out({"train": rows}, fraction=fraction, seed=0)


def test_a_very_long_sentence_makes_a_task(tmp_path: Path) -> None:
    lines = [f"w{i} {'B-A' if i % 100 == 0 else 'O'}" for i in range(50_000)]
    (tmp_path / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    task = load_word_files({"train": tmp_path / "train.txt"}, columns=["word", "tags"])
    assert len(task.texts()[0].spans) == 50_000
