"""Files without a configuration, sixty of them: each is read as its author meant it, or the user is asked."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from extract.errors import IcecoreError, TaskError
from probes.data.bare_file import BareFile, Roles, is_bare_file, read_bare_file
from probes.data.task_table import load_task

ADJECTIVES = ("cold", "warm", "bright", "noisy", "quiet", "heavy", "cheap", "solid", "tiny", "slow")
NOUNS = ("kettle", "lamp", "chair", "phone", "tent", "radio", "stove", "clock")
TEXTS = [f"The {adjective} {noun} came on a Monday." for adjective in ADJECTIVES for noun in NOUNS]
OTHERS = [f"We bought a {noun}, and it is {adjective}." for adjective in ADJECTIVES for noun in NOUNS]
N = len(TEXTS)
STARS = [1 + k * 7 % 5 for k in range(N)]
MOODS = [("good", "bad", "mixed")[k * 7 % 3] for k in range(N)]
Rows = Sequence[Sequence[object]]


def delimited(
    header: Sequence[str] | None, *columns: Sequence[object], by: str = ",", quoting: Any = csv.QUOTE_MINIMAL
) -> str:
    """Write columns as delimited text."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=by, quoting=quoting, quotechar=None if quoting == csv.QUOTE_NONE else '"')
    writer.writerows([header] if header else [])
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue()


def json_lines(**columns: Sequence[object]) -> str:
    """Write columns as JSON Lines."""
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return "".join(json.dumps(row) + "\n" for row in rows)


def conll(*tags: str) -> str:
    """Write sentences, a word and its tags a line."""
    last = {2: "B-X"}  # the noun
    blocks = [
        "\n".join(" ".join((word, *tags, last.get(k, "O"))) for k, word in enumerate(text.split())) for text in TEXTS
    ]
    return "\n\n".join(blocks) + "\n"


def some(values: Sequence[object], other: object, *, every: int = 10) -> list[object]:
    """Replace every tenth value."""
    return [other if k % every == 0 else value for k, value in enumerate(values)]


HALVES = [star / 2 for star in STARS]
COMMAS = [f"{half:g}".replace(".", ",") for half in HALVES]
IDS = [f"r{k:04}" for k in range(N)]
SPLITS = [("train", "train", "train", "validation", "test")[k % 5] for k in range(N)]
CLASSES: dict[str, Any] = {"text": "text", "label": "label"}
RIGHT: dict[str, tuple[str, str | bytes, str, dict[str, Any]]] = {
    # name: file, content, task, options
    "plain": ("a.csv", delimited(["text", "label"], TEXTS, MOODS), "class-files", CLASSES),
    "tabs": ("a.tsv", delimited(["text", "label"], TEXTS, MOODS, by="\t"), "class-files", CLASSES),
    "semicolons": ("a.csv", delimited(["text", "label"], TEXTS, MOODS, by=";"), "class-files", {"delimiter": ";"}),
    "bars": ("a.csv", delimited(["text", "label"], TEXTS, MOODS, by="|"), "class-files", {"delimiter": "|"}),
    "tabs in csv": ("a.csv", delimited(["text", "label"], TEXTS, MOODS, by="\t"), "class-files", {"delimiter": "\t"}),
    "commas in texts": ("a.csv", delimited(["text", "label"], OTHERS, MOODS), "class-files", CLASSES),
    "semicolons in some texts": (
        "a.csv",
        delimited(["text", "label"], [f"Cold; {t}" if k % 3 else t for k, t in enumerate(TEXTS)], MOODS),
        "class-files",
        CLASSES,
    ),
    "every cell quoted": (
        "a.csv",
        delimited(["text", "label"], TEXTS, MOODS, quoting=csv.QUOTE_ALL),
        "class-files",
        CLASSES,
    ),
    "line breaks in texts": (
        "a.csv",
        delimited(["text", "label"], [f"{text}\nReally." for text in TEXTS], MOODS),
        "class-files",
        CLASSES,
    ),
    "open quotes": (
        "a.tsv",
        "text\tlabel\n" + "".join(f'"{t}\t{m}\n' for t, m in zip(TEXTS, MOODS, strict=True)),
        "class-files",
        {"quoting": False},
    ),
    "byte order mark": (
        "a.csv",
        b"\xef\xbb\xbf" + delimited(["text", "label"], TEXTS, MOODS).encode(),
        "class-files",
        CLASSES,
    ),
    "Latin-1": (
        "a.csv",
        delimited(["text", "label"], [f"{t} Schön" for t in TEXTS], MOODS).encode("latin-1"),
        "class-files",
        {"encoding": "cp1252"},
    ),
    "Windows quotes": (
        "a.csv",
        delimited(["text", "label"], [f"It\u2019s {t}" for t in TEXTS], MOODS).encode("cp1252"),
        "class-files",
        {"encoding": "cp1252"},
    ),
    "UTF-16": (
        "a.csv",
        delimited(["text", "label"], TEXTS, MOODS, by=";").encode("utf-16"),
        "class-files",
        {"encoding": "utf-16", "delimiter": ";"},
    ),
    "Windows line ends": (
        "a.csv",
        delimited(["text", "label"], TEXTS, MOODS).replace("\n", "\r\n"),
        "class-files",
        CLASSES,
    ),
    "blank lines": (
        "a.csv",
        delimited(["text", "label"], TEXTS, MOODS).replace("\r\n", "\n\n"),
        "class-files",
        CLASSES,
    ),
    "no header": (
        "a.csv",
        delimited(None, TEXTS, MOODS),
        "class-files",
        {"header": False, "text": "column1", "label": "column2"},
    ),
    "no header, numbers": (
        "a.tsv",
        delimited(None, HALVES, TEXTS, by="\t"),
        "number-files",
        {"header": False, "text": "column2", "number": "column1"},
    ),
    "id column": ("a.csv", delimited(["id", "text", "label"], IDS, TEXTS, MOODS), "class-files", CLASSES),
    "index of pandas": ("a.csv", delimited(["", "text", "label"], range(N), TEXTS, MOODS), "class-files", CLASSES),
    "numbered rows": ("a.csv", delimited(["nr", "text", "label"], range(N), TEXTS, MOODS), "class-files", CLASSES),
    "a date": (
        "a.csv",
        delimited(["text", "date", "label"], TEXTS, [f"2024-01-{1 + k % 9:02}" for k in range(N)], MOODS),
        "class-files",
        CLASSES,
    ),
    "an author": (
        "a.csv",
        delimited(["author", "text", "label"], [("Ann", "Bo")[k % 2] for k in range(N)], TEXTS, MOODS),
        "class-files",
        CLASSES,
    ),
    "a split": ("a.csv", delimited(["text", "label", "split"], TEXTS, MOODS, SPLITS), "class-files", CLASSES),
    "a split by another name": (
        "a.csv",
        delimited(["text", "label", "fold"], TEXTS, MOODS, [s.title() for s in SPLITS]),
        "class-files",
        {"split_column": "fold"},
    ),
    "names in capitals": (
        "a.csv",
        delimited(["TEXT", "LABEL"], TEXTS, MOODS),
        "class-files",
        {"text": "TEXT", "label": "LABEL"},
    ),
    "review text and stars": (
        "a.csv",
        delimited(["Review Text", "Stars"], TEXTS, STARS),
        "number-files",
        {"text": "Review Text", "number": "Stars"},
    ),
    "camel case": (
        "a.csv",
        delimited(["reviewText", "overallRating"], TEXTS, STARS),
        "number-files",
        {"text": "reviewText", "number": "overallRating"},
    ),
    "half stars": ("a.csv", delimited(["text", "x"], TEXTS, HALVES), "number-files", {"number": "x"}),
    "decimal commas": (
        "a.csv",
        delimited(["text", "rating"], TEXTS, COMMAS, by=";"),
        "number-files",
        {"decimal": ",", "delimiter": ";"},
    ),
    "decimal commas with gaps": (
        "a.csv",
        delimited(["text", "rating"], TEXTS, some(COMMAS, "n/a"), by=";"),
        "number-files",
        {"decimal": ",", "delimiter": ";"},
    ),
    "ratings as texts": (
        "a.csv",
        delimited(["text", "rating"], TEXTS, [f"{star} stars" for star in STARS]),
        "class-files",
        {"label": "rating"},
    ),
    "labels as integers": ("a.csv", delimited(["text", "label"], TEXTS, STARS), "class-files", CLASSES),
    "zero and one": ("a.csv", delimited(["text", "spam"], TEXTS, [s % 2 for s in STARS]), "class-files", {}),
    "true and false": (
        "a.csv",
        delimited(["text", "spam"], TEXTS, [str(s % 2 == 0) for s in STARS]),
        "class-files",
        {"label": "spam"},
    ),
    "missing labels": ("a.csv", delimited(["text", "label"], TEXTS, some(MOODS, "n/a")), "class-files", CLASSES),
    "missing texts": ("a.csv", delimited(["text", "label"], some(TEXTS, ""), MOODS), "class-files", CLASSES),
    "missing numbers": (
        "a.csv",
        delimited(["text", "rating"], TEXTS, some(STARS, "")),
        "number-files",
        {"number": "rating"},
    ),
    "none is a class": ("a.csv", delimited(["text", "label"], TEXTS, some(MOODS, "none", every=2)), "class-files", {}),
    "conflicting labels": ("a.csv", delimited(["text", "label"], TEXTS[:9] * 9, [*MOODS, "bad"]), "class-files", {}),
    "a title beside the text": (
        "a.csv",
        delimited(["title", "text", "label"], [t[:14] for t in TEXTS], TEXTS, MOODS),
        "class-files",
        CLASSES,
    ),
    "a column without a known name": (
        "a.csv",
        delimited(["was geschah", "urteil"], TEXTS, MOODS),
        "class-files",
        {"text": "was geschah", "label": "urteil"},
    ),
    "pairs": (
        "a.csv",
        delimited(["sentence1", "sentence2", "score"], TEXTS, OTHERS, HALVES),
        "pair-files",
        {"sentence1": "sentence1", "sentence2": "sentence2", "score": "score"},
    ),
    "pairs of integers": (
        "a.tsv",
        delimited(["text1", "text2", "similarity"], TEXTS, OTHERS, STARS, by="\t"),
        "pair-files",
        {"score": "similarity"},
    ),
    "inference": (
        "a.csv",
        delimited(["premise", "hypothesis", "label"], TEXTS, OTHERS, MOODS),
        "class-files",
        {"text": "premise", "text2": "hypothesis", "label": "label"},
    ),
    "paraphrases": (
        "a.csv",
        delimited(["question1", "question2", "is_duplicate"], TEXTS, OTHERS, [s % 2 for s in STARS]),
        "class-files",
        {"text2": "question2", "label": "is_duplicate"},
    ),
    "JSON Lines": ("a.jsonl", json_lines(text=TEXTS, label=MOODS), "class-files", CLASSES),
    "JSON Lines of pairs": (
        "a.jsonl",
        json_lines(sentence1=TEXTS, sentence2=OTHERS, score=HALVES),
        "pair-files",
        {"score": "score"},
    ),
    "a JSON list": (
        "a.json",
        json.dumps([{"text": t, "stars": s} for t, s in zip(TEXTS, STARS, strict=True)]),
        "number-files",
        {"number": "stars"},
    ),
    "packed JSON Lines": (
        "a.jsonl.gz",
        gzip.compress(json_lines(text=TEXTS, label=MOODS).encode()),
        "class-files",
        CLASSES,
    ),
    "lists of words": (
        "a.jsonl",
        json_lines(tokens=[t.split() for t in TEXTS], ner_tags=[["O", "O", "B-X", "O", "O", "O", "O"] for _ in TEXTS]),
        "word-files",
        {"words": "tokens", "tags": "ner_tags"},
    ),
    "two columns of CoNLL": ("a.conll", conll(), "word-files", {"columns": ["word", "tag"], "tags": "tag"}),
    "four columns of CoNLL": ("a.txt", conll("NN", "B-NP"), "word-files", {"tags": "ner"}),
    "five columns": ("a.bio", conll("a", "b", "c"), "word-files", {"tags": "column5"}),
    "CoNLL in .tsv": ("a.tsv", conll().replace(" ", "\t"), "word-files", {"tags": "tag"}),
}
ASKED: dict[str, tuple[str, str | bytes, str]] = {
    # name: file, content, what the message says
    "two texts": (
        "a.csv",
        delimited(["text", "comment", "label"], TEXTS, OTHERS, MOODS),
        "2 columns may be the text; its columns are 'text', 'comment', 'label'. Name it with --text",
    ),
    "two labels": (
        "a.csv",
        delimited(["text", "sentiment", "topic"], TEXTS, MOODS, [*MOODS[1:], "bad"]),
        "2 columns may be what is predicted",
    ),
    "integers without a known name": (
        "a.csv",
        delimited(["text", "x"], TEXTS, STARS),
        "the 5 different whole numbers of column 'x' may be classes or numbers",
    ),
    "no label": ("a.csv", delimited(["text", "id"], TEXTS, IDS), "no column looks like a label or number"),
    "no text": ("a.csv", delimited(["id", "label"], IDS, MOODS), "no column looks like a text"),
    "one label": ("a.csv", delimited(["text", "label"], TEXTS, ["good"] * N), "no column looks like a label"),
    "a text per line": ("a.txt", "\n".join(TEXTS), "no column looks like a label or number"),
    "free answers": (
        "a.csv",
        delimited(["text", "target"], TEXTS, OTHERS),
        "column 'target' holds 80 different texts, no numbers; its columns are 'text', 'target'. Name it with --label",
    ),
    "two lists of tags": (
        "a.jsonl",
        json_lines(tokens=[["a", "b"]] * 9, ner_tags=[["O", "O"]] * 9, pos_tags=[["N", "V"]] * 9),
        "2 lists may be the tags of the words",
    ),
    "empty": ("a.csv", "", "is empty"),
}


def write(folder: Path, name: str, content: str | bytes) -> Path:
    """Write a file as it is, line ends included."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_there_are_sixty_and_the_page_counts_them() -> None:
    n_right, n_asked = len(RIGHT), len(ASKED)
    assert n_right + n_asked >= 60
    page = (Path(__file__).parents[3] / "docs" / "cookbook" / "file.md").read_text(encoding="utf-8")
    assert f"against {n_right + n_asked} files of the forms" in page
    assert f"{n_right} are read so, for {n_asked} the user is asked" in " ".join(page.split())


@pytest.mark.parametrize("name", RIGHT)
def test_a_file_is_read_as_it_is_meant(name: str, tmp_path: Path) -> None:
    file, content, task, options = RIGHT[name]
    assert is_bare_file(file)
    bare = read_bare_file(write(tmp_path, file, content))
    assert (bare.task, bare.options | options) == (task, bare.options)
    assert sum(load_task(bare.task, **bare.options).n_rows().values()) > 10
    for key in ("delimiter", "quoting", "header", "encoding", "decimal"):
        assert (key in bare.options) == (key in options), key


@pytest.mark.parametrize("name", ASKED)
def test_what_is_not_decided_is_asked(name: str, tmp_path: Path) -> None:
    file, content, message = ASKED[name]
    with pytest.raises(IcecoreError) as error:
        read_bare_file(write(tmp_path, file, content))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "roles", "task", "options"),
    [
        ("two texts", Roles(text="comment"), "class-files", {"text": "comment"}),
        ("two texts", Roles(text="text,comment"), "class-files", {"text": "text", "text2": "comment"}),
        ("two labels", Roles(label="topic"), "class-files", {"label": "topic"}),
        ("integers without a known name", Roles(label="x"), "class-files", {"label": "x"}),
        ("integers without a known name", Roles(score="x"), "number-files", {"number": "x"}),
        ("two lists of tags", Roles(label="pos_tags"), "word-files", {"tags": "pos_tags"}),
    ],
)
def test_an_option_answers(name: str, roles: Roles, task: str, options: dict[str, Any], tmp_path: Path) -> None:
    bare = read_bare_file(write(tmp_path, *ASKED[name][:2]), roles)
    assert (bare.task, bare.options | options) == (task, bare.options)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (Roles(text="body"), "unknown column 'body'"),
        (Roles(label="mood", score="text"), "exclude each other"),
        (Roles(score="label"), "which holds 'good', no number"),
        (Roles(text="text", label="text"), "named as the text and as what is predicted"),
        (Roles(text="a,b,c"), "unknown column 'a'"),
    ],
)
def test_a_wrong_option_is_refused(roles: Roles, message: str, tmp_path: Path) -> None:
    with pytest.raises(IcecoreError, match=message):
        read_bare_file(write(tmp_path, *RIGHT["plain"][:2]), roles)


def test_a_column_may_have_a_comma_in_its_name(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", delimited(["text, as written", "label"], TEXTS, MOODS))
    assert read_bare_file(file, Roles(text="text, as written")).options["text"] == "text, as written"


def test_a_cell_beyond_the_limit_of_the_csv_module_is_read(tmp_path: Path) -> None:
    texts = ["x " * 100_000, *TEXTS[1:]]
    bare = read_bare_file(write(tmp_path, "a.csv", delimited(["text", "label"], texts, MOODS)))
    task = load_task(bare.task, **bare.options)
    assert max(len(text) for rows in task.splits.values() for text in rows["text"]) == 200_000


@pytest.mark.parametrize("values", [("train", "test", "unlabelled"), ("A", "B"), ("training", "testing")])
def test_a_column_split_that_names_no_splits_is_not_read(tmp_path: Path, values: tuple[str, ...]) -> None:
    parts = [values[k % len(values)] for k in range(N)]
    bare = read_bare_file(write(tmp_path, "a.csv", delimited(["text", "label", "split"], TEXTS, MOODS, parts)))
    assert "not read: 'split'" in str(bare)
    task = load_task(bare.task, **bare.options)
    assert sum(task.n_rows().values()) == N
    assert not any("dropped" in note for note in task.notes)


def test_commas_of_thousands_are_no_decimals(tmp_path: Path) -> None:
    values = [f"{1 + k // 10},{100 + k}" if k % 2 else str(500 + k) for k in range(N)]
    file = write(tmp_path, "a.tsv", delimited(["text", "value"], TEXTS, values, by="\t"))
    for roles in (Roles(), Roles(score="value")):
        with pytest.raises(TaskError, match=r"the comma of \d,\d{3} may mark thousands or decimals: write plain"):
            read_bare_file(file, roles)
    file.write_text(file.read_text().replace("500", "0,125"))
    assert read_bare_file(file, Roles(score="value")).options["decimal"] == ","


def test_a_decimal_comma_leaves_labels_alone(tmp_path: Path) -> None:
    labels = [("1,2", "1.2", "x")[k % 3] for k in range(N)]
    file = write(tmp_path, "a.tsv", delimited(["text", "label", "length"], TEXTS, labels, COMMAS, by="\t"))
    bare = read_bare_file(file, Roles(label="label"))
    assert bare.options["decimal"] == ","
    task = load_task(bare.task, **bare.options)
    assert task.describe().of_kind["class_names"] == ["1,2", "1.2", "x"]


@pytest.mark.parametrize("mark", ["\ufeff", "\ufeff\n\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_a_file_of_a_mark_alone_has_no_rows(tmp_path: Path, mark: str, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes(mark.encode(encoding))
    with pytest.raises(TaskError, match=r"a\.csv has no rows, only blank lines"):
        read_bare_file(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "content",
    [
        "# sentence number 3 of the file\n" + conll(),
        "\n\n".join(f"# {k}\n{block}" for k, block in enumerate(conll().split("\n\n"))),
    ],
)
def test_comments_of_conll_are_no_words(tmp_path: Path, content: str) -> None:
    bare = read_bare_file(write(tmp_path, "a.conll", content))
    assert (bare.options["columns"], bare.options["has_comments"]) == (["word", "tag"], True)
    task = load_task(bare.task, **bare.options)
    assert {word for rows in task.splits.values() for sentence in rows["words"] for word in sentence} == {
        word for text in TEXTS for word in text.split()
    }


def test_words_with_blanks_do_not_widen_conll(tmp_path: Path) -> None:
    content = conll().replace(" ", "\t").replace("Monday.", "New York").replace("kettle", "10\u00a0000")
    bare = read_bare_file(write(tmp_path, "a.conll", content))
    assert bare.options["columns"] == ["word", "tag"]
    hashtags = conll().replace("The ", "# ", 40)
    assert "has_comments" not in read_bare_file(write(tmp_path, "b.conll", hashtags)).options


def test_parquet_is_read(tmp_path: Path) -> None:
    Dataset.from_dict({"text": TEXTS, "stars": STARS}).to_parquet(tmp_path / "a.parquet")
    bare = read_bare_file(tmp_path / "a.parquet")
    assert (bare.task, bare.options["number"]) == ("number-files", "stars")


def test_it_says_what_it_took(tmp_path: Path) -> None:
    make: Callable[..., str] = delimited
    content = make(["id", "Review Text", "Stars"], IDS, TEXTS, COMMAS, by=";")
    bare: BareFile = read_bare_file(write(tmp_path, "reviews.csv", content))
    assert str(bare) == (
        "reviews.csv: 80 rows, text = 'Review Text', number = 'Stars' (0.5 to 2.5), not read: 'id', delimiter ';', "
        "decimal comma"
    )
