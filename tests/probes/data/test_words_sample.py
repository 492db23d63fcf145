"""The shipped sample: tagged by hand, so everything that can be checked without reading it is checked here."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import probes.data
from probes.data.word_files import load_words_sample
from probes.metrics.prediction_metrics import read_spans

SAMPLES = Path(probes.data.__file__).parent / "samples" / "words"
PUNCTUATION = {",", ".", ":", "``", "''", "(", ")"}
PENN = {
    "$",
    "CC",
    "CD",
    "DT",
    "EX",
    "IN",
    "JJ",
    "JJR",
    "JJS",
    "MD",
    "NN",
    "NNP",
    "NNPS",
    "NNS",
    "PDT",
    "POS",
    "PRP",
    "PRP$",
    "RB",
    "RBR",
    "RBS",
    "RP",
    "TO",
    "VB",
    "VBD",
    "VBG",
    "VBN",
    "VBP",
    "VBZ",
    "WDT",
    "WP",
    "WP$",
    "WRB",
}
FINITE = {"VBD", "VBP", "VBZ", "MD", "VB"}
NOMINAL = {"NN", "NNS", "NNP", "NNPS", "DT", "CD", "PRP", "PRP$", "EX", "WP", "WP$", "WDT", "PDT", "POS", "$"}
ALLOWED = {
    "VP": {"VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "MD", "TO", "RB"},
    "PP": {"IN", "TO", "VBG"},
    "SBAR": {"IN"},
    "ADVP": {"RB", "RBR", "RBS", "WRB"},
    "ADJP": {"JJ", "JJR", "JJS", "RB", "RBR"},
    "PRT": {"RP"},
    "CONJP": {"RB", "IN"},
}

Row = tuple[str, str, str, str]


@pytest.fixture(scope="module")
def sentences() -> list[list[Row]]:
    tasks = [load_words_sample(tags) for tags in ("pos", "chunk", "ner")]
    found = []
    for split, rows in tasks[0].splits.items():
        columns = [rows["words"], *(task.splits[split]["tags"] for task in tasks)]
        found += [list(zip(*row, strict=True)) for row in zip(*columns, strict=True)]
    return found


def words_of(sentences: list[list[Row]]) -> Iterator[Row]:
    return (row for sentence in sentences for row in sentence)


def test_three_tasks_of_one_text() -> None:
    tasks = {tags: load_words_sample(tags) for tags in ("ner", "chunk", "pos")}
    assert {tags: task.metric for tags, task in tasks.items()} == {
        "ner": "span-f1",
        "chunk": "span-f1",
        "pos": "accuracy",
    }
    assert tasks["ner"].texts() == tasks["chunk"].texts() == tasks["pos"].texts()
    for tags, task in tasks.items():
        assert {split: len(rows) for split, rows in task.splits.items()} == {"train": 112, "validation": 32, "test": 32}
        assert (task.name, task.is_sample, task.has_documents) == (f"words-sample-{tags}", True, True)
        assert task.source == "words/samples, shipped with icecore"
        assert "no benchmark" in task.notes[0]
        assert not any("also in" in note for note in task.notes)
    assert tasks["ner"].scheme is not None
    assert (tasks["ner"].scheme.name, tasks["ner"].scheme.n_changed) == ("IOB2", 0)


def test_every_split_holds_every_entity_type_and_documents_of_eight() -> None:
    task = load_words_sample("ner")
    for rows in task.splits.values():
        kinds = Counter(tag[2:] for tags in rows["tags"] for tag in tags if tag[0] == "B")
        assert set(kinds) == {"PER", "LOC", "ORG", "MISC"}
        assert min(kinds.values()) >= 5
        assert set(Counter(rows["document"]).values()) == {8}
        assert any(set(tags) == {"O"} for tags in rows["tags"])


def test_sentences_are_varied(sentences: list[list[Row]]) -> None:
    lengths = sorted(map(len, sentences))
    assert (len(sentences), lengths[0], lengths[-1]) == (176, 4, 32)
    assert len({tuple(row[0] for row in sentence) for sentence in sentences}) == 176
    endings = Counter(next(row[0] for row in reversed(sentence) if row[0] != '"') for sentence in sentences)
    assert endings["?"] >= 8
    assert sum(row[1] == "CD" for row in words_of(sentences)) > 50


def test_tags_are_those_of_their_tag_sets(sentences: list[list[Row]]) -> None:
    rows = list(words_of(sentences))
    assert {row[1] for row in rows} <= PENN | PUNCTUATION
    assert {row[2][2:] for row in rows if row[2] != "O"} <= {"NP", *ALLOWED}
    assert {row[3][2:] for row in rows if row[3] != "O"} == {"PER", "LOC", "ORG", "MISC"}


def test_punctuation_stands_outside_every_chunk_and_entity(sentences: list[list[Row]]) -> None:
    for word, pos, chunk, ner in words_of(sentences):
        assert (pos in PUNCTUATION) == (not re.search(r"\w|[$&']", word)), word
        if pos in PUNCTUATION:
            assert (chunk, ner) == ("O", "O"), word


def test_chunks_hold_the_parts_of_speech_they_can(sentences: list[list[Row]]) -> None:
    for word, pos, chunk, _ in words_of(sentences):
        kind = chunk[2:]
        assert not (kind == "NP" and pos in FINITE | {"TO", "RP"}), word
        assert kind not in ALLOWED or pos in ALLOWED[kind], (word, pos, chunk)
        assert pos not in NOMINAL or kind == "NP", (word, pos, chunk)
        assert pos != "POS" or chunk == "B-NP", word
        assert pos != "RP" or chunk == "B-PRT", word


def test_every_verb_chunk_holds_a_verb_and_questions_alone_leave_verbs_outside(sentences: list[list[Row]]) -> None:
    for sentence in sentences:
        for span in read_spans([row[2] for row in sentence]):
            inside = {row[1] for row in sentence[span.start : span.end]}
            assert span.type != "VP" or inside & {"VB", "VBD", "VBG", "VBN", "VBP", "VBZ"}, sentence
        loose = [row for row in sentence if row[2] == "O" and row[1][:2] in ("VB", "MD")]
        assert not loose or "?" in [row[0] for row in sentence], sentence


def test_entities_are_names_and_names_are_entities(sentences: list[list[Row]]) -> None:
    calendar = {
        "Monday",
        "Tuesday",
        "Wednesday",
        "Thursday",
        "Friday",
        "Saturday",
        "Sundays",
        "April",
        "May",
        "June",
        "July",
        "September",
        "November",
    }
    titles = {"Coach", "Doctor", "Judge", "Signora"}
    for sentence in sentences:
        for span in read_spans([row[3] for row in sentence]):
            inside = sentence[span.start : span.end]
            proper = {"NNP", "NNPS", "JJ"} if span.type == "MISC" else {"NNP", "NNPS"}
            assert inside[-1][1] in {*proper, "CD"}, inside
            assert any(row[1] in proper for row in inside), inside
        for word, pos, _, ner in sentence:
            assert pos not in ("NNP", "NNPS") or ner != "O" or word in calendar | titles, word
            assert not (ner != "O" and word[0].islower() and word not in ("of", "'s")), word


def test_the_readme_counts_what_is_there(sentences: list[list[Row]]) -> None:
    text = " ".join((SAMPLES.parent / "README.md").read_text(encoding="utf-8").split())
    n_words = sum(map(len, sentences))
    spans = [span for sentence in sentences for span in read_spans([row[3] for row in sentence])]
    kinds = Counter(span.type for span in spans)
    empty = sum(all(row[3] == "O" for row in sentence) for sentence in sentences)
    assert "tags | 112 / 32 / 32 |" in text
    assert len(sentences) == 22 * 8 == 112 + 32 + 32
    assert f"{n_words:,} words in 22 documents of eight sentences" in text
    listed = ", ".join(f"{kind} {kinds[kind]}" for kind in ("LOC", "PER", "ORG", "MISC"))
    assert f"{len(spans)} entities: {listed}; {empty} sentences hold none" in text
