"""Texts of an adaptation: rows of tokens, rows of texts, mixtures, what is held out and what is left out."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.decoders.decoder_spec import DecoderSpec, MergePart
from extract.errors import ConfigError, InputError, TaskError, UnknownNameError
from probes.adaptation.adapt_config import AdaptConfig, CorpusPart, Phase, SscOptions, TrainingSpec
from probes.adaptation.objectives import (
    Excluded,
    MixedRows,
    TokenRow,
    overlap_form,
    read_excluded,
    read_rows,
    read_text_rows,
)
from probes.data.sources import read_wikitext
from probes.data.task_table import load_task
from tests.extract.tiny_decoders import make_tokenizer

NONE = read_excluded(())


def write_lines(path: Path, *, n: int, start: int = 0) -> Path:
    lines = [f"The mouse number {k} ran under the table of the quiet harbour." for k in range(start, start + n)]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(
    *parts: CorpusPart, held_out: int = 4, excluded: Excluded = NONE, adds_bos: bool = False, length: int = 16
) -> list[MixedRows[TokenRow]]:
    tokenizer = make_tokenizer(adds_bos=adds_bos)
    return list(read_rows(parts, tokenizer, length=length, held_out=held_out, excluded=excluded))


@pytest.mark.parametrize("adds_bos", [False, True])
def test_rows_hold_every_token_once_and_bos_first(tmp_path: Path, adds_bos: bool) -> None:
    path = write_lines(tmp_path / "a.txt", n=20)
    tokenizer = make_tokenizer(adds_bos=adds_bos)
    rows, held = read(CorpusPart(str(path)), adds_bos=adds_bos)
    both = [*rows.rows, *held.rows]
    assert max(map(len, both)) == 16
    if adds_bos:
        assert all(row[0] == tokenizer.bos_token_id for row in both)
    texts = {str(tokenizer.decode(row[int(adds_bos) :])) for row in both}
    assert all(any(line.startswith(text) for text in texts) for line in path.read_text().splitlines())


def test_whole_documents_are_held_out_whatever_the_order(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.txt", n=30)
    _, held = read(CorpusPart(str(path)), held_out=6, length=64)
    lines = path.read_text().splitlines()
    (tmp_path / "b.txt").write_text("\n".join(reversed(lines)) + "\n")
    rows, other = read(CorpusPart(str(tmp_path / "b.txt")), held_out=6, length=64)
    assert {row.tobytes() for row in held.rows} == {row.tobytes() for row in other.rows}
    assert len(held.rows) >= 6
    assert not {row.tobytes() for row in rows.rows} & {row.tobytes() for row in held.rows}


def test_parts_are_drawn_by_their_weights_and_each_row_once_a_round(tmp_path: Path) -> None:
    one, other = write_lines(tmp_path / "a.txt", n=40), write_lines(tmp_path / "b.txt", n=40, start=1000)
    rows, _ = read(CorpusPart(str(one), weight=3.0), CorpusPart(str(other)))
    drawn = rows.draw(4000, seed=(0, 1))
    share = np.mean(rows.part_of[drawn] == 0)
    assert share == pytest.approx(0.75, abs=0.03)
    for part in (0, 1):
        counts = np.bincount(drawn[rows.part_of[drawn] == part], minlength=len(rows.rows))[rows.part_of == part]
        assert counts.max() - counts.min() <= 1
    assert (rows.draw(4000, seed=(0, 1)) == drawn).all()
    assert (rows.draw(4000, seed=(1, 1)) != drawn).any()


@pytest.mark.parametrize(("shares", "batch"), [((1.0,), 8), ((0.75, 0.25), 8), ((0.55, 0.35, 0.1), 7)])
def test_no_batch_holds_a_row_twice(shares: tuple[float, ...], batch: int) -> None:
    """Not where one round of the rows ends in it and the next one begins, nor where a part is hardly enough for it."""
    sizes = [int(np.ceil(share * batch)) + 2 for share in shares]
    part_of = np.repeat(np.arange(len(shares)), sizes)
    rows = MixedRows(tuple(range(len(part_of))), part_of, np.array(shares), "")
    batches = rows.draw(400, batch, seed=(0, 2)).reshape(400, batch)
    assert all(len({*some.tolist()}) == batch for some in batches)
    for part, share in enumerate(shares):
        counts = (part_of[batches] == part).sum(axis=1)
        assert {*counts.tolist()} <= {int(np.floor(share * batch)), int(np.ceil(share * batch))}
        assert counts.mean() == pytest.approx(share * batch, abs=0.1)
        times = np.bincount(batches.ravel(), minlength=len(part_of))[part_of == part]
        assert times.min() > 0.7 * times.mean()


def test_rows_without_a_negative_are_refused(tmp_path: Path) -> None:
    """Of three anchors two are held out."""
    path = tmp_path / "t.jsonl"
    rows = [{"anchor": f"a dog {k % 3}", "positive": f"an animal {k}", "far": f"a cat {k}"} for k in range(24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = SscOptions(files=str(path), batch=2)
    with pytest.raises(TaskError, match=r"sscl has the one text 'a dog \d' in the column 'anchor' of all rows"):
        read_text_rows(options, (), held_out=2, excluded=NONE)
    trained, _ = read_text_rows(replace(options, negative="far"), (), held_out=2, excluded=NONE)
    assert len(trained.rows) == 8


def test_a_document_is_held_out_with_all_that_equal_it(tmp_path: Path) -> None:
    one, other = write_lines(tmp_path / "a.txt", n=30), write_lines(tmp_path / "b.txt", n=30)
    rows, held = read(CorpusPart(str(one)), CorpusPart(str(other)), held_out=5, length=64)
    assert (len(rows.rows), len(held.rows)) == (54, 6)  # a row of each file
    assert not {row.tobytes() for row in rows.rows} & {row.tobytes() for row in held.rows}


def test_shares_and_borders_of_the_parts_are_in_the_digest(tmp_path: Path) -> None:
    digests = set()
    for n, weight in ((20, 1.0), (20, 3.0), (10, 1.0)):
        one = write_lines(tmp_path / "a.txt", n=n)
        other = write_lines(tmp_path / "b.txt", n=40 - n, start=n)
        for factor in (1.0, 2.0):
            parts = CorpusPart(str(one), weight=factor * weight), CorpusPart(str(other), weight=factor)
            digests.add(read(*parts, held_out=4)[0].digest)
    assert len(digests) == 3


@pytest.mark.parametrize("bad", [None, 3.5, ["Snow fell on the harbour.", None]])
def test_what_is_no_text_is_named_by_its_file_and_row(tmp_path: Path, bad: object) -> None:
    path = tmp_path / "a.jsonl"
    texts = ["The mouse ran under the table of the quiet harbour.", bad]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    value = bad[1] if isinstance(bad, list) else bad
    sentence = re.escape(f"text 2 of {str(path)!r} is {value!r}; allowed: texts")
    part = CorpusPart(str(path))
    with pytest.raises(TaskError, match=sentence):
        read(part)
    with pytest.raises(TaskError, match=sentence):
        read_text_rows(SscOptions(batch=2), [part], held_out=2, excluded=NONE)
    with pytest.raises(TaskError, match=sentence):
        read_excluded([str(path)])


def test_lists_of_paragraphs_are_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [{"paragraphs": [f"Snow fell on harbour {k}.", "Nobody spoke a word.", "  "]} for k in range(20)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows, held = read(CorpusPart(str(path), column="paragraphs"))
    texts = [make_tokenizer().decode(row) for row in (*rows.rows, *held.rows)]
    assert any("\n" in text for text in texts)


def test_excluded_paragraphs_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.txt", n=20)
    (tmp_path / "judged.txt").write_text("  the MOUSE number 3 ran under the table of the quiet harbour!\n")
    excluded = read_excluded([str(tmp_path / "judged.txt")])
    rows, held = read(CorpusPart(str(path)), excluded=excluded)
    assert excluded.dropped == {"judged.txt": 1}
    assert not any("number 3 " in make_tokenizer().decode(row) for row in (*rows.rows, *held.rows))


def test_excluded_files_of_one_name_are_all_excluded(tmp_path: Path) -> None:
    for number in (3, 7):
        (tmp_path / str(number)).mkdir()
        write_lines(tmp_path / str(number) / "judged.txt", n=1, start=number)
    excluded = read_excluded([str(tmp_path / "3" / "judged.txt"), str(tmp_path / "7" / "judged.txt")])
    rows, held = read(CorpusPart(str(write_lines(tmp_path / "a.txt", n=20))), excluded=excluded)
    assert excluded.dropped == {"judged.txt": 2}
    texts = [str(make_tokenizer().decode(row)) for row in (*rows.rows, *held.rows)]
    assert not any(f"number {number} " in text for number in (3, 7) for text in texts)


def test_too_few_texts_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="nothing is left to train on"):
        read(CorpusPart(str(write_lines(tmp_path / "a.txt", n=3))), held_out=50)
    (tmp_path / "short.txt").write_text("a\nb\n")
    with pytest.raises(TaskError, match="holds no text of at least 8 tokens"):
        read(CorpusPart(str(tmp_path / "short.txt")))
    with pytest.raises(InputError, match="there is no file"):
        read(CorpusPart("nowhere.txt"))


def write_triples(path: Path, n: int) -> Path:
    rows = [{"anchor": f"Dog {k}.", "positive": f"An animal {k}.", "negative": f"A cat {k}."} for k in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_no_text_is_trained_on_and_held_out(tmp_path: Path) -> None:
    path = write_triples(tmp_path / "t.jsonl", 40)
    with path.open("a") as file:
        file.write(json.dumps({"anchor": "Dog 1", "positive": "An animal 900.", "negative": "A cat 900."}) + "\n")
    options = SscOptions(files=str(path), negative="negative", batch=4)
    rows, held = read_text_rows(options, (), held_out=12, excluded=read_excluded(()))
    assert len(held.rows) == 12
    assert all(len(row) == 3 for row in rows.rows)
    known = {overlap_form(text) for row in held.rows for text in row}
    assert not any(overlap_form(text) in known for row in rows.rows for text in row)
    assert len(rows.rows) in (28, 29)


def test_an_unknown_column_and_too_few_rows_are_sentences(tmp_path: Path) -> None:
    path = write_triples(tmp_path / "t.jsonl", 10)
    with pytest.raises(UnknownNameError, match="'premise'"):
        read_text_rows(SscOptions(files=str(path), anchor="premise"), (), held_out=2, excluded=NONE)
    with pytest.raises(TaskError, match="sscl has 8 rows to train on"):
        read_text_rows(SscOptions(files=str(path), batch=9), (), held_out=2, excluded=NONE)


def test_an_empty_text_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"anchor": "a dog", "positive": "an animal"}\n{"anchor": "", "positive": "x"}\n')
    with pytest.raises(TaskError, match="line 2"):
        read_text_rows(SscOptions(files=str(path), batch=2), (), held_out=2, excluded=NONE)


def test_triples_that_share_a_caption_with_sts_b_are_counted(icecore_data: Path) -> None:
    options = SscOptions(files=str(icecore_data / "snli" / "triples.train.jsonl"), negative="negative")
    excluded = read_excluded(["stsb"])
    rows, held = read_text_rows(options, (), held_out=64, excluded=excluded)
    assert excluded.dropped == {"stsb train": 526, "stsb validation": 227, "stsb test": 240}
    assert (len(rows.rows), len(held.rows)) == (26248, 64)
    texts = {overlap_form(text) for row in (*rows.rows, *held.rows) for text in row}
    assert all(texts.isdisjoint(source) for source in excluded.sources.values())


def eights(text: str) -> set[tuple[str, ...]]:
    words = overlap_form(text).split()
    return {tuple(words[start : start + 8]) for start in range(len(words) - 7)}


@pytest.mark.long
def test_the_texts_of_the_study_are_not_those_that_its_perplexity_is_of(icecore_data: Path) -> None:
    """What docs/results.md says of the overlap: stretches of eight words."""
    articles, _ = read_wikitext("test")
    title_of = {part: article.title for article in articles for text in article.paragraphs for part in eights(text)}
    shared = set[tuple[str, ...]]()
    with (icecore_data / "enwiki2006" / "paragraphs.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            for text in json.loads(line)["paragraphs"]:
                shared |= eights(text) & title_of.keys()
    page = Path("docs/results.md").read_text(encoding="utf-8").replace("\n", " ")
    most = max(Counter(title_of[part] for part in shared).values())
    assert f"{len(shared)} of the {len(title_of):,} stretches of eight words" in page
    assert f", {most} of them in one article" in page


def test_texts_of_views_are_drawn_by_the_weights_of_their_corpora(tmp_path: Path) -> None:
    parts = [
        CorpusPart(str(write_lines(tmp_path / "a.txt", n=40)), weight=3.0),
        CorpusPart(str(write_lines(tmp_path / "b.txt", n=40, start=100)), weight=1.0),
    ]
    rows, held = read_text_rows(SscOptions(batch=4), parts, held_out=8, excluded=Excluded({}))
    drawn = rows.draw(2000, seed=(0, 2))
    assert len(rows.rows) + len(held.rows) == 80
    assert np.mean(rows.part_of[drawn] == 0) == pytest.approx(0.75, abs=0.03)
    [first] = {rows.part_of[i] for i in drawn if rows.rows[i][0] in (tmp_path / "b.txt").read_text().splitlines()}
    assert first == 1
    equal = [replace(part, weight=1.0) for part in parts]
    assert rows.digest != read_text_rows(SscOptions(batch=4), equal, held_out=8, excluded=Excluded({}))[0].digest


def test_an_unknown_task_to_exclude_has_a_near_match() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown task to exclude 'stsbb': did you mean 'stsb'\?"):
        read_excluded(["stsbb"])


def test_a_folder_of_the_data_can_be_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judged").mkdir()
    write_lines(tmp_path / "judged" / "a.txt", n=3)
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    monkeypatch.chdir("/")
    assert len(read_excluded(["judged"]).sources["judged"]) == 3


def test_of_a_table_without_texts_every_column_is_excluded(tmp_path: Path) -> None:
    path = write_triples(tmp_path / "t.jsonl", 2)
    [texts] = read_excluded([str(path)]).sources.values()
    assert texts == {"dog 0", "dog 1", "an animal 0", "an animal 1", "a cat 0", "a cat 1"}
    path.write_text(json.dumps({"sentences": ["A dog.", "A cat."]}) + "\n")
    assert read_excluded([str(path)]).sources["t.jsonl"] == {"a dog", "a cat"}
    path.write_text(json.dumps({"query": {"text": "A dog."}}) + "\n")
    with pytest.raises(UnknownNameError, match="'text'"):
        read_excluded([str(path)])
    (tmp_path / "some.csv").write_text("text,score\nA dog.,5\n")
    [texts] = read_excluded([str(tmp_path / "some.csv")]).sources.values()
    assert texts == {"a dog"}


def test_a_corpus_that_is_excluded_is_a_sentence(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.txt", n=6)
    with pytest.raises(TaskError, match=r"holds no text of at least 8 tokens that is not excluded; give another file"):
        read(CorpusPart(str(path)), excluded=read_excluded([str(path)]))


@pytest.mark.parametrize("name", ["words-sample", "odd-sample", "retrieval-sample", "reranking-sample", "class-sample"])
def test_a_task_that_is_excluded_is_excluded_whole(name: str) -> None:
    excluded, texts = read_excluded([name]), load_task(name).plain_texts()
    assert all(excluded.holds([text]) for text in texts)


def test_views_are_held_out_with_the_documents_of_other_objectives(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    documents = [
        [f"The mouse number {k} ran under table {part} of the harbour." for part in range(4)] for k in range(50)
    ]
    path.write_text("".join(json.dumps({"text": paragraphs}) + "\n" for paragraphs in documents))
    part = CorpusPart(str(path))
    _, held_tokens = read(part, held_out=16, length=64)
    views, held = read_text_rows(
        SscOptions(batch=4), [part], held_out=16, excluded=NONE, held_documents=held_tokens.documents
    )
    of_view = {paragraph: k for k, paragraphs in enumerate(documents) for paragraph in paragraphs}
    held_of, of_training = ({of_view[row[0]] for row in rows.rows} for rows in (held, views))
    assert len(held_tokens.documents) + len(of_training) == 50
    assert not held_of & of_training
    alone, held_alone = read_text_rows(SscOptions(batch=4), [part], held_out=16, excluded=NONE)
    assert not {of_view[row[0]] for row in held_alone.rows} & {of_view[row[0]] for row in alone.rows}


def test_an_anchor_is_held_out_once(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"anchor": f"Dog {k // 3}.", "positive": f"An animal {k}."} for k in range(120)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trained, held = read_text_rows(SscOptions(files=str(path), batch=4), (), held_out=16, excluded=NONE)
    anchors = [row[0] for row in held.rows]
    assert len(set(anchors)) == 16
    assert len(trained.rows) == 120 - 3 * 16
    assert not {row[0] for row in trained.rows} & set(anchors)


def test_a_scarce_corpus_of_views_is_refused(tmp_path: Path) -> None:
    parts = [CorpusPart(str(write_lines(tmp_path / f"{n}.txt", n=n, start=n))) for n in (12, 100)]
    with pytest.raises(TaskError, match=r"sscl has \d+ rows of the corpus '12\.txt', and a batch takes 16"):
        read_text_rows(SscOptions(batch=32), parts, held_out=4, excluded=NONE)


def test_a_row_without_a_column_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"anchor": "a dog", "positive": "an animal"}\n{"anchor": "a cat"}\n')
    with pytest.raises(TaskError, match=r"line 2: column 'positive' is missing"):
        read_text_rows(SscOptions(files=str(path), batch=2), (), held_out=2, excluded=NONE)


def test_held_out_rows_are_looked_at_in_an_order_of_their_own(tmp_path: Path) -> None:
    """Not that of the corpus, whose first part would be all that is looked at."""
    parts = [CorpusPart(str(write_lines(tmp_path / f"{n}.txt", n=200, start=n))) for n in (0, 1000)]
    _, held = read(*parts, held_out=40, length=64)
    assert {*held.part_of[:10].tolist()} == {0, 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": "bidirectional~tp1-2"}, "a placeholder is put before every text"),
        ({"plan": "hybrid~kv1-2", "phases": (Phase(2, {"msg": 1.0}),)}, "every token sees the last one"),
        (
            {
                "plan": "hybrid",
                "phases": (Phase(2, {"msg": 1.0, "mntp": 1.0}),),
                "objectives": {"msg": {"all_share": 1}},
            },
            "all_share is 1, which puts every token in a span and leaves mntp no context to hide; allowed beside mntp:",
        ),
        (
            {
                "plan": "hybrid",
                "phases": (Phase(2, {"msg": 1.0}), Phase(2, {"mntp": 1.0, "mtp": 1.0})),
                "objectives": {"msg": {"all_share": 1.0}},
            },
            r"leaves mntp and mtp no context to hide; .*Lower it, or leave one of them out of phases",
        ),
        ({"seed": -1}, "seed is -1; allowed: 0 or more"),
        ({"decoder": DecoderSpec(merge=(MergePart("a", 0.5), MergePart("b", 0.5)))}, "adapt one of its parts"),
    ],
)
def test_settings_that_would_do_nothing_or_harm_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AdaptConfig(corpus=(CorpusPart("a.txt"),), **change)
    with pytest.raises(ConfigError, match=r"training\.patience is -3; allowed: 0 for never"):
        TrainingSpec(patience=-3)


def test_spans_of_whole_rows_are_allowed_where_nothing_is_hidden() -> None:
    for phases, share in (({"msg": 1.0}, 1.0), ({"msg": 0.0, "mntp": 1.0}, 1.0), ({"msg": 1.0, "mntp": 1.0}, 0.9)):
        objectives: dict[str, dict[str, Any] | None] = {"msg": {"all_share": share}}
        AdaptConfig(corpus=(CorpusPart("a.txt"),), plan="hybrid", phases=(Phase(2, phases),), objectives=objectives)


def test_views_of_one_document_and_of_long_held_ones_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": [f"The mouse {k} ran under the table." for k in range(300)]}) + "\n")
    rows, held = read_text_rows(SscOptions(batch=4), [CorpusPart(str(path))], held_out=16, excluded=NONE)
    assert (len(rows.rows), len(held.rows)) == (284, 16)
    lines = CorpusPart(str(write_lines(tmp_path / "b.txt", n=40)))
    _, tokens = read(lines, held_out=1, length=64)
    assert len(tokens.documents) == 1
    rows, held = read_text_rows(
        SscOptions(batch=4), [lines], held_out=16, excluded=NONE, held_documents=tokens.documents
    )
    assert (len(rows.rows), len(held.rows)) == (38, 2)
