import gzip
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data import table_files
from probes.data.table_files import Sentence, escaped_byte, parse_json, read_parquet_rows, read_text
from probes.data.word_files import ColumnFormat, read_columns

CONLL2003 = ("word", "pos", "chunk", "ner")
PUBLISHED = """-DOCSTART- -X- O O

Corwen NNP I-NP I-ORG
beats VBZ I-VP O
Denmark NNP I-NP I-LOC

Petra NNP I-NP I-PER
Veld NNP I-NP I-PER

-DOCSTART- -X- O O

LONDON NNP I-NP I-LOC
# SYM O O
# SYM O O
"""


def save(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def read(path: Path, tags: str = "ner", columns: tuple[str, ...] = CONLL2003, **options: object) -> list[Sentence]:
    return read_columns(path, tags, file_format=ColumnFormat(columns, **options)).sentences  # type: ignore[arg-type]


def fails(path: Path, tags: str = "ner", columns: tuple[str, ...] = CONLL2003, **options: object) -> str:
    with pytest.raises((TaskError, UnknownNameError)) as caught:
        read(path, tags, columns, **options)
    return str(caught.value)


def test_the_published_form_of_conll2003(tmp_path: Path) -> None:
    sentences = read(save(tmp_path / "eng.train", PUBLISHED))
    assert [sentence.words for sentence in sentences] == [
        ["Corwen", "beats", "Denmark"],
        ["Petra", "Veld"],
        ["LONDON", "#", "#"],
    ]
    assert [sentence.tags for sentence in sentences] == [["I-ORG", "O", "I-LOC"], ["I-PER"] * 2, ["I-LOC", "O", "O"]]
    assert [sentence.document for sentence in sentences] == ["1", "1", "2"]
    assert [sentence.numbers for sentence in sentences] == [[3, 4, 5], [7, 8], [12, 13, 14]]
    assert sentences[0].space_after == [True] * 3
    assert [sentence.tags for sentence in read(tmp_path / "eng.train", "pos")][1] == ["NNP", "NNP"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("tail", ["", "\n\n\n"])
def test_line_ends_marks_and_blank_lines(tmp_path: Path, end: str, mark: str, tail: str) -> None:
    plain = read(save(tmp_path / "plain", PUBLISHED))
    text = mark + (PUBLISHED.rstrip("\n") + tail).replace("\n", end)
    assert read(save(tmp_path / "other", text)) == plain


def test_the_form_of_wnut17(tmp_path: Path) -> None:
    text = "@paul\tO\nNew\u00a0York\tB-location\n#\tO\n#icy\tO\n\t\nx y\tO\n\u3000\tO\n\n  \t \nz\tO"
    sentences = read(save(tmp_path / "w.conll", text), columns=("word", "ner"))
    assert [sentence.words for sentence in sentences] == [
        ["@paul", "New\u00a0York", "#", "#icy"],
        ["x y", "\u3000"],
        ["z"],
    ]
    assert [sentence.document for sentence in sentences] == ["", "", ""]


def test_columns_in_any_order(tmp_path: Path) -> None:
    path = save(tmp_path / "x", "1 B-NP DT The\n2 I-NP NN ice\n")
    sentences = read(path, "chunk", ("id", "chunk", "pos", "word"))
    assert (sentences[0].words, sentences[0].tags) == (["The", "ice"], ["B-NP", "I-NP"])


def test_no_break_spaces_part_no_columns(tmp_path: Path) -> None:
    path = save(tmp_path / "x", "10\u00a0000 CD\n\u2028 SYM\nx\x0cy NN \n")
    assert read(path, "pos", ("word", "pos"))[0].words == ["10\u00a0000", "\u2028", "x\x0cy"]


def test_comments_are_words_unless_said_otherwise(tmp_path: Path) -> None:
    path = save(tmp_path / "x", "# id\nIce O\n\n# 2\nMelt O\n")
    assert [s.words for s in read(path, "ner", ("word", "ner"))] == [["#", "Ice"], ["#", "Melt"]]
    table = read_columns(path, "ner", file_format=ColumnFormat(("word", "ner"), has_comments=True))
    assert [s.words for s in table.sentences] == [["Ice"], ["Melt"]]
    assert table.notes == (f"{path}: 2 comment lines skipped",)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("Oslo NNP I-LOC", "3 instead of 4 columns (word, pos, chunk, ner) in ['Oslo', 'NNP', 'I-LOC']"),
        ("Oslo NNP I-NP I-LOC x", "5 instead of 4 columns (word, pos, chunk, ner) in ['Oslo', 'NNP', 'I-NP', 'I-LOC'"),
        ("Oslo", "1 instead of 4 columns (word, pos, chunk, ner) in ['Oslo']"),
        ("Oslo\tNNP\tI-NP\tI-LOC", "'Oslo\\tNNP\\tI-NP\\tI-LOC' has a tab, but spaces separate the columns on line 3"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: str, said: str) -> None:
    path = save(tmp_path / "eng.train", f"{PUBLISHED}{row}\n")
    assert f"{path}, line 15: {said}" in fails(path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("Oslo NNP", "'Oslo NNP' has spaces and no tab, but tabs separate the columns on line 1"),
        ("Oslo", "1 instead of 2 columns (word, pos) in ['Oslo']"),
        ("Oslo\t", "column 'pos' is empty in ['Oslo', '']"),
        ("\tNNP", "column 'word' is empty in ['', 'NNP']"),
        ("Oslo\tNNP B-LOC", "column 'pos' holds 'NNP B-LOC', but a tag has no space"),
        ("Oslo\tNNP\tB-LOC", "3 instead of 2 columns (word, pos) in ['Oslo', 'NNP', 'B-LOC']"),
    ],
)
def test_a_bad_line_of_a_file_with_tabs_is_named(tmp_path: Path, row: str, said: str) -> None:
    path = save(tmp_path / "x.tsv", f"Ice\tNN\n\n{row}\n")
    assert f"{path}, line 3: {said}" in fails(path, "pos", ("word", "pos"))


def test_tabs_and_spaces_can_be_read_together_when_asked(tmp_path: Path) -> None:
    path = save(tmp_path / "x", "Ice NN O\nOslo\tNNP \t B-LOC\n")
    assert "set `separator: whitespace` if no word holds a space" in fails(path, "ner", ("word", "pos", "ner"))
    sentences = read(path, "ner", ("word", "pos", "ner"), separator="whitespace")
    assert sentences[0].tags == ["O", "B-LOC"]
    assert f"{path}, line 1: 1 instead of 3 columns" in fails(path, "ner", ("word", "pos", "ner"), separator="tab")
    said = f"{path}, line 2: 'Oslo\\tNNP \\t B-LOC' has a tab, but spaces separate the columns: use one of them"
    assert said in fails(path, "ner", ("word", "pos", "ner"), separator="space")


def test_missing_empty_and_wordless_files(tmp_path: Path) -> None:
    assert f"{tmp_path / 'no'} does not exist" in fails(tmp_path / "no")
    assert f"{tmp_path} is a folder, not a file" in fails(tmp_path)
    for text in ("", "\n\n \n"):
        assert f"{tmp_path / 'e'} is empty" in fails(save(tmp_path / "e", text))
    assert "has no words, only blank lines, comments or -DOCSTART- lines" in fails(save(tmp_path / "d", "-DOCSTART-\n"))


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes("Ice NN\ncaf\xe9 NN\n".encode("latin-1"))
    assert f"{path}, line 2: byte 0xe9 is not UTF-8: save the file as UTF-8" in fails(path, "pos", ("word", "pos"))


def test_columns_that_cannot_be(tmp_path: Path) -> None:
    path = save(tmp_path / "x", "Ice NN\n")
    assert "unknown column 'ners': did you mean 'ner'? Allowed: pos, chunk, ner." in fails(path, "ners")
    assert "unknown column 'word'. Allowed: pos." in fails(path, "word", ("word", "pos"))
    said = (
        "unknown column 'word': did you mean 'words'? Allowed: words, pos. `columns` must call the column of the words"
    )
    assert said in fails(path, "pos", ("words", "pos"))
    assert "`columns` names 'pos' twice" in fails(path, "pos", ("word", "pos", "pos"))
    assert "unknown separator 'tabs': did you mean 'tab'?" in fails(path, "pos", ("word", "pos"), separator="tabs")


@pytest.mark.parametrize("tag", ["B-A\u00a0", "\u00a0", "B\u2003A", "O\u200b", "\ufeffO"])
def test_blanks_that_nobody_sees_make_no_new_tag(tmp_path: Path, tag: str) -> None:
    path = save(tmp_path / "x", f"Ice NN O\nOslo NNP {tag}\n")
    said = fails(path, "ner", ("word", "pos", "ner"))
    assert f"{path}, line 2: column 'ner' holds the tag {tag!r}, but a tag has no blank and no invisible char" in said
    assert read(path, "pos", ("word", "pos", "ner"))[0].tags == ["NN", "NNP"]


def test_a_comment_that_is_no_word_is_guessed_at(tmp_path: Path) -> None:
    hint = ", or set `has_comments: true` if lines that begin with # are comments."
    path = save(tmp_path / "x", "Ice NN\n\n# sent 12\nMelt VB\n")
    said = fails(path, "pos", ("word", "pos"))
    assert f"{path}, line 3: 3 instead of 2 columns (word, pos) in ['#', 'sent', '12']" in said
    assert said.endswith(f"name the columns of the file with `columns`{hint}")
    assert read(path, "pos", ("word", "pos"), has_comments=True)[1].words == ["Melt"]
    assert "has_comments" not in fails(save(tmp_path / "y", "Ice NN\na b c\n"), "pos", ("word", "pos"))
    for text, line in (("# one\nIce\tNN\n", 2), ("Ice\tNN\n# one\n", 2)):
        path = save(tmp_path / "z", text)
        said = fails(path, "pos", ("word", "pos"))
        assert f"{path}, line {line}: " in said
        assert said.endswith(f"set `separator: whitespace` if no word holds a space{hint}")
        assert read(path, "pos", ("word", "pos"), has_comments=True)[0].words == ["Ice"]


def test_a_packed_file_is_read_as_the_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "train.txt.gz"
    path.write_bytes(gzip.compress(PUBLISHED.encode()))
    assert read(path) == read(save(tmp_path / "train.txt", PUBLISHED))
    path.write_bytes(gzip.compress(f"{PUBLISHED}Oslo\n".encode()))
    assert f"{path}, line 15: 1 instead of 4 columns" in fails(path)
    path.write_bytes(gzip.compress(b""))
    assert f"{path} is empty" in fails(path)


def test_a_broken_packed_file_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(PUBLISHED.encode())
    for data, why in (
        (PUBLISHED.encode(), "Not a gzipped file"),
        (whole[:-9], "Compressed file ended before the end-of-stream marker was reached"),
        (whole[:-8] + bytes(8), "CRC check failed"),
        (whole[:10] + bytes([255] * 10) + whole[20:], "Error -3 while decompressing data"),
    ):
        (tmp_path / "train.txt.gz").write_bytes(data)
        said = fails(tmp_path / "train.txt.gz")
        assert f"{tmp_path / 'train.txt.gz'} cannot be unpacked as gzip ({why}" in said
        assert said.endswith("): download it again, or unpack it yourself.")


def test_a_sentence_of_fifty_thousand_words(tmp_path: Path) -> None:
    path = save(tmp_path / "long", "\n".join(f"w{i} NN" for i in range(50_000)))
    sentences = read(path, "pos", ("word", "pos"))
    assert len(sentences) == 1
    assert sentences[0].words[-1] == "w49999"


def test_a_long_line_of_new_rows_takes_no_longer_than_it_is(tmp_path: Path) -> None:
    """A pattern of whole lines took an hour for a megabyte."""
    save(tmp_path / "long.csv", "a" * 2_000_000)
    assert len(read_text(tmp_path / "long.csv", escapes_bytes=True)) == 2_000_000
    (tmp_path / "bad.csv").write_bytes(b"caf\xe9\n" + b"plain\n" * 20)
    assert escaped_byte(read_text(tmp_path / "bad.csv", escapes_bytes=True)) == "0xe9"


@pytest.mark.parametrize("text", ["[" * 100_000, f"[{'1' * 5000}]"])
def test_json_beyond_any_is_a_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="is not JSON that can be read"):
        parse_json(tmp_path / "deep.json", text)


def test_a_parquet_file_of_endless_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"] * 200_000}), path)
    assert len(read_parquet_rows(path)[1]) == 200_000
    monkeypatch.setattr(table_files, "MOST_PARQUET_ROWS", 1_000)
    monkeypatch.setattr(table_files, "PACKED_TIMES", 1)
    with pytest.raises(TaskError, match="200,000 rows are more than a file of its size holds"):
        read_parquet_rows(path)
