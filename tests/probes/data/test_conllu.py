import gzip
from pathlib import Path

import pytest

from extract.errors import TaskError, UnknownNameError
from extract.inputs.joined_text import join_words
from probes.data.word_files import read_conllu


def row(number: str, form: str, upos: str = "_", xpos: str = "_", misc: str = "_") -> str:
    return "\t".join([number, form, "_", upos, xpos, "_", "_", "dep", "_", misc])


SENTENCE = [
    "# sent_id = 1",
    "# text = I didn't, he ( did ).",
    row("1", "I", "PRON", "PRP"),
    row("2-3", "didn't", misc="SpaceAfter=No"),
    row("2", "did", "AUX", "VBD"),
    row("3", "n't", "PART", "RB"),
    row("4", ",", "PUNCT", ","),
    row("5", "he", "PRON", "PRP"),
    row("5.1", "eaten", "VERB", "VBN"),
    row("6", "(", "PUNCT", "-LRB-"),
    row("7", "did", "VERB", "VBD"),
    row("8", ")", "PUNCT", "-RRB-", "Gloss=x|SpaceAfter=No"),
    row("9", ".", "PUNCT", "."),
    "",
]


def save(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_bytes(end.join(lines).encode())
    return path


def fails(path: Path, tags: str = "upos") -> str:
    with pytest.raises((TaskError, UnknownNameError)) as caught:
        read_conllu(path, tags)
    return str(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_words_ranges_and_empty_nodes(tmp_path: Path, end: str) -> None:
    path = save(tmp_path / "x.conllu", SENTENCE, end)
    table = read_conllu(path, "xpos")
    sentence = table.sentences[0]
    assert sentence.words == ["I", "did", "n't", ",", "he", "(", "did", ")", "."]
    assert sentence.tags == ["PRP", "VBD", "RB", ",", "PRP", "-LRB-", "VBD", "-RRB-", "."]
    assert sentence.numbers == [3, 5, 6, 7, 8, 10, 11, 12, 13]
    assert join_words(sentence.words, sentence.space_after).text == "I didn't, he ( did )."
    assert table.notes == (
        f"{path}: 1 range of words (such as 1-2) skipped",
        f"{path}: 1 empty node (such as 1.1) skipped",
    )


def test_a_range_that_its_words_do_not_spell(tmp_path: Path) -> None:
    rows = [row("1-2", "zum", misc="SpaceAfter=No"), row("1", "zu", "ADP"), row("2", "dem", "DET"), row("3", "!", "X")]
    path = save(tmp_path / "x.conllu", ["# text = zum!", *rows])
    table = read_conllu(path, "upos")
    sentence = table.sentences[0]
    assert join_words(sentence.words, sentence.space_after).text == "zu dem!"
    assert table.notes[1:] == (
        f"{path}: 1 range is not spelled by its words",
        f"{path}: 1 sentence differs from its `# text`",
    )


def test_documents(tmp_path: Path) -> None:
    lines = [
        row("1", "a", "X"),
        "",
        "# newdoc id = second one",
        row("1", "b", "X"),
        "",
        row("1", "c", "X"),
        "",
        "# newdoc",
    ]
    path = save(tmp_path / "x.conllu", [*lines, row("1", "#", "X")])
    assert [s.document for s in read_conllu(path, "upos").sentences] == ["", "second one", "second one", "2"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2\ta\tb\tX", "4 instead of 10 columns in '2\\ta\\tb\\tX': CoNLL-U needs id, form, lemma, upos"),
        ("2 a b X _ _ _ _ _ _", "1 instead of 10 columns"),
        (row("3", "a", "X"), "id '3', but word 2 comes next"),
        (row("1", "a", "X"), "id '1', but word 2 comes next"),
        (row("x", "a", "X"), "id 'x', but word 2 comes next"),
        (row("2", " ", "X"), "word 2 has the empty form ' '"),
        (row("2", "a"), "column 'upos' is '_', which means unspecified: use another of upos, xpos, deprel"),
        (row("2-3", "ab"), "the range 2-3 does not fit a sentence of 1 words"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = save(tmp_path / "x.conllu", [row("1", "a", "X"), line, ""])
    assert f"{path}, line 2: {said}" in fails(path)


def test_other_columns_and_files_without_words(tmp_path: Path) -> None:
    path = save(tmp_path / "x.conllu", SENTENCE)
    assert "unknown column 'pos': did you mean 'xpos'? Allowed: upos, xpos, deprel." in fails(path, "pos")
    assert read_conllu(path, "deprel").sentences[0].tags == ["dep"] * 9
    assert "has no words, only comments or blank lines" in fails(save(tmp_path / "c.conllu", ["# text = x", ""]))
    assert "is empty" in fails(save(tmp_path / "e.conllu", []))


def test_a_stray_blank_in_a_tag_and_a_packed_file(tmp_path: Path) -> None:
    path = tmp_path / "x.conllu.gz"
    path.write_bytes(gzip.compress("\n".join(SENTENCE).encode()))
    plain = save(tmp_path / "x.conllu", SENTENCE)
    assert read_conllu(path, "upos").sentences == read_conllu(plain, "upos").sentences
    path = save(tmp_path / "y.conllu", [row("1", "Ice", "NOUN\u00a0", "NN")])
    said = f"{path}, line 1: column 'upos' holds the tag 'NOUN\\xa0', but a tag has no blank and no invisible character"
    assert said in fails(path)
    assert read_conllu(path, "xpos").sentences[0].tags == ["NN"]
