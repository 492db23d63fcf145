"""Tasks without fitting: a layer is chosen on validation, test is scored once, and transforms are fitted on train."""

import hashlib
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from extract.errors import TaskError
from extract.inputs.joined_text import JoinedText
from probes.data.sources import need_local
from probes.data.splits import SPLIT_NOTE, SPLITS, draw_order, rows_by_split, shuffle_groups, take_groups
from probes.data.table_files import (
    BadRow,
    CheckedRow,
    Fields,
    FileOptions,
    FileRows,
    Files,
    check_gold,
    check_group,
    check_label,
    check_rows,
    check_text,
    gather_columns,
    read_raw,
    read_rows,
)
from probes.data.task import Task, find_units, load_shipped, overlaps, plain_form, remarks, unique_texts

if TYPE_CHECKING:
    import datasets


ZERO_SHOT_FILES = FileOptions(validation_fraction=0.3)
Z = TypeVar("Z", bound="ZeroShotTask")


@dataclass(frozen=True, eq=False)
class ZeroShotTask(Task):
    """A task that is solved by distances between latents alone; each kind is a subclass with its columns."""

    fewest_rows: ClassVar[int] = 2
    purpose: ClassVar[str] = "an interval"
    gold_column: ClassVar[str] = ""
    """Column of what a head predicts for a row; empty where it is scored by its ranking."""
    text_columns: ClassVar[tuple[str, ...]] = ()

    name: str
    splits: "datasets.DatasetDict"
    """Any of train, validation and test; only transforms use train."""
    source: str
    is_sample: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.check_splits(list(self.columns))
        for split in self.splits:
            self.check_split(split)

    def check_split(self, split: str) -> None:
        """Refuse the rows of one split that cannot be scored."""

    def fit_texts(self) -> Sequence[str | JoinedText]:
        """List the texts that transforms are fitted on: those of train."""
        if "train" not in self.splits:
            raise TaskError(
                f"task {self.name!r} has no split 'train', which a transform is fitted on; add texts to it (they need "
                "no gold that means anything), or use transform: none."
            )
        return unique_texts({"train": self.splits["train"]}, self.text_columns)

    def audit(self) -> tuple[str, ...]:
        """Count the rows that two splits share, texts compared exactly."""
        keys = {split: self.keys(split) for split in self.splits}
        return remarks(
            (n, f"{split}: {n} of {len(keys[split])} {self.rows_noun} are also in {other}")
            for split, other, n in overlaps(keys)
        )

    def n_compared(self, split: str) -> int:
        """Count the latents of a split that are compared, without the corpus."""
        return len(self.rows(split))

    def gold_shown(self, split: str) -> list[object]:
        """Return the prediction of a perfect head for each row, a score of 1 where rows have no gold."""
        rows = self.rows(split)
        return list(rows[self.gold_column]) if self.gold_column else [1.0] * len(rows)

    def inputs_shown(self, split: str) -> dict[str, Sequence[object]]:
        """Return the texts of each row, as predictions show them."""
        rows = self.rows(split)
        columns = ("id", *self.text_columns) if "id" in self.columns else self.text_columns
        return {"row": range(len(rows)), **{column: list(rows[column]) for column in columns}}

    def keys(self, split: str) -> list[Hashable]:
        """Name each row, so that rows in two splits have one name."""
        rows = self.rows(split)
        return list(zip(*(rows[column] for column in self.text_columns), strict=True))


@dataclass(frozen=True, eq=False)
class CorpusTask(ZeroShotTask):
    """A task whose rows are queries for documents of a corpus."""

    rows_noun: ClassVar[str] = "queries"
    text_columns: ClassVar[tuple[str, ...]] = ("query",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "string",
        "query": "string",
        "documents": "int64[]",
        "grades": "float64[]",
    }

    corpus_ids: tuple[str, ...] = ()
    """Name of each document, descending: of equally near documents, the one with the higher name comes first."""
    corpus: tuple[str, ...] = ()
    """Text of each document; the column `documents` holds indices into it, `grades` their relevance."""

    def texts(self) -> list[str]:
        """List every document and query once."""
        return list(dict.fromkeys((*self.corpus, *unique_texts(self.splits, self.text_columns))))

    def sides(self) -> tuple[list[str], list[str]]:
        """List queries and documents, each once."""
        return unique_texts(self.splits, self.text_columns), list(dict.fromkeys(self.corpus))

    def fit_texts(self) -> Sequence[str]:
        """List the texts that transforms are fitted on: the corpus."""
        return self.corpus

    def check_split(self, split: str) -> None:
        """Refuse a query without a relevant document."""
        rows = self.rows(split)
        for name, indices, grades in zip(rows["id"], rows["documents"], rows["grades"], strict=True):
            if len(indices) != len(grades) or not all(0 <= index < len(self.corpus) for index in indices):
                raise TaskError(f"query {name!r} of task {self.name!r} names documents that are not in its corpus.")
            if not any(grade > 0 for grade in grades):
                raise TaskError(f"query {name!r} of task {self.name!r} has no relevant document: leave it out.")

    def own_documents(self, split: str) -> Int[np.ndarray, " Q"]:
        """Find the document of each query's own name, which BEIR leaves out; -1 where there is none, or it is relevant.

        Names that are numbers of rows may coincide by chance, and so may a query and its answer.
        """
        positions = {name: position for position, name in enumerate(self.corpus_ids)}
        rows = self.rows(split)
        own = [
            -1 if dict(zip(documents, grades, strict=True)).get(place := positions.get(name, -1), 0) > 0 else place
            for name, documents, grades in zip(rows["id"], rows["documents"], rows["grades"], strict=True)
        ]
        return np.array(own, np.int64)

    @cached_property
    def corpus_digest(self) -> str:
        """Hash names and texts of the corpus."""
        sha = hashlib.sha256()
        for name, text in zip(self.corpus_ids, self.corpus, strict=True):
            sha.update(f"{len(name)} {len(text)} {name}{text}".encode("utf-8", "surrogatepass"))
        return sha.hexdigest()

    def digest_head(self) -> object:
        """Return the kind and the digest of the corpus."""
        return [self.kind, self.corpus_digest]

    def describe_kind(self) -> dict[str, object]:
        """Return the size of the corpus, too."""
        return {**super().describe_kind(), "n_documents": len(self.corpus)}


def draw_validation(
    splits: Sequence[str | None], keys: Sequence[Hashable], *, fraction: float, seed: int, task: str
) -> tuple[dict[str, NDArray[np.int64]], str]:
    """Return the rows of each split, with a note if validation is missing and was drawn from train, or else from test.

    Rows without a split are of test; those of equal keys stay together.
    """
    if not 0 < fraction < 1:
        raise TaskError(f"`validation_fraction` is {fraction:g}, but a number above 0 and below 1 is needed.")
    parts = rows_by_split([split or "test" for split in splits])
    if "validation" in parts:
        return parts, ""
    source = "train" if "train" in parts else "test"
    n_rows = len(parts[source])
    groups = shuffle_groups(parts[source], keys, seed)[::-1]
    held = take_groups(groups, fraction * n_rows)
    parts |= {"validation": held, source: take_groups(groups, n_rows)}
    if min(len(held), len(parts[source])) < ZeroShotTask.fewest_rows:
        raise TaskError(
            f"task {task!r} has {n_rows} rows in {source} and none in validation, too few to draw some of them: add "
            "rows, or give files that are split already."
        )
    note = f"{SPLIT_NOTE}{len(held)} of {n_rows} rows of {source} to validation with seed {seed}"
    return {split: parts[split] for split in SPLITS if split in parts}, note


def build_task(kind: type[Z], file_rows: FileRows, *, name: str, options: FileOptions, **fields: Any) -> Z:
    """Build a task of a kind from checked rows with its columns, drawing validation where there is none."""
    rows = file_rows.rows
    splits, keys = [row.split for row in rows], _keys(kind.text_columns, rows)
    parts, drawn = draw_validation(splits, keys, fraction=options.validation_fraction, seed=options.seed, task=name)
    return kind(name, kind.hold(gather_columns(rows, parts)), file_rows.source, **fields).with_remarks(
        *file_rows.notes, drawn
    )


def _keys(columns: Sequence[str], rows: Sequence[CheckedRow]) -> list[Hashable]:
    """Name what must be in one split: the rows that share a text, or equal ones where that would link most rows."""
    if not columns:
        return [tuple(map(str, row.values.values())) for row in rows]
    texts = [[plain_form(row.values[column]) for row in rows] for column in columns]
    units = find_units(texts)
    if units is None or units.linked:
        return [tuple(sorted(row)) for row in zip(*texts, strict=True)]
    return list(units.names)


class LabelledTask(ZeroShotTask):
    """A task whose rows have one label each, which is its gold."""

    gold_column: ClassVar[str] = "label"

    def labels(self, split: str) -> Int[np.ndarray, " N"]:
        """Number the labels of a split from 0, in their order."""
        return np.unique(np.array(self.rows(split)["label"], str), return_inverse=True)[1]

    def draw_order(self, split: str, *, seed: int) -> NDArray[np.int64]:
        """Order the rows of a split so that every beginning of the order is a stratified draw."""
        return draw_order(self.labels(split), seed=seed)


@dataclass(frozen=True, eq=False)
class ClusteringTask(LabelledTask):
    """Texts with labels, which clusters of their latents are compared with."""

    kind: ClassVar[str] = "clustering"
    metrics = ("v-measure",)
    text_columns: ClassVar[tuple[str, ...]] = ("text",)
    columns: ClassVar[Mapping[str, str]] = {"text": "string", "label": "string"}

    def check_split(self, split: str) -> None:
        """Refuse fewer than two labels, and as many labels as rows."""
        n_labels, n_rows = len(set(self.rows(split)["label"])), len(self.rows(split))
        if not 1 < n_labels < n_rows:
            raise TaskError(
                f"split {split!r} of task {self.name!r} has {n_labels} labels in {n_rows} rows; give two labels or "
                "more, and more rows than labels."
            )

    def describe_kind(self) -> dict[str, object]:
        """Return the labels, too."""
        names = sorted({label for rows in self.splits.values() for label in rows["label"]})
        return {**super().describe_kind(), "n_classes": len(names), "class_names": names}


@dataclass(frozen=True, eq=False)
class PairClassTask(LabelledTask):
    """Pairs of texts that are alike (1) or not (0)."""

    kind: ClassVar[str] = "pair-classification"
    metrics = ("average-precision", "threshold-accuracy")
    rows_noun: ClassVar[str] = "pairs"
    text_columns: ClassVar[tuple[str, ...]] = ("text1", "text2")
    columns: ClassVar[Mapping[str, str]] = {"text1": "string", "text2": "string", "label": "int64"}

    def check_split(self, split: str) -> None:
        """Refuse labels other than 0 and 1, or only one of them."""
        labels = sorted(set(self.rows(split)["label"]))
        if labels != [0, 1]:
            raise TaskError(
                f"split {split!r} of task {self.name!r} has the labels {', '.join(map(str, labels))}; give pairs of "
                "label 1, which are alike, and of label 0."
            )


@dataclass(frozen=True, eq=False)
class BitextTask(ZeroShotTask):
    """Texts and their translations: each text should be nearest to its translation, among those of its split."""

    kind: ClassVar[str] = "bitext"
    metrics = ("bitext-f1", "bitext-accuracy")
    rows_noun: ClassVar[str] = "pairs"
    text_columns: ClassVar[tuple[str, ...]] = ("text1", "text2")
    columns: ClassVar[Mapping[str, str]] = {"text1": "string", "text2": "string"}

    def check_split(self, split: str) -> None:
        """Refuse a text that is on one side twice, which has two translations."""
        for column in self.text_columns:
            seen: set[str] = set()
            for text in self.rows(split)[column]:
                if text in seen:
                    raise TaskError(
                        f"split {split!r} of task {self.name!r} has {text[:60]!r} twice in {column}; leave one of the "
                        "rows out, as both cannot be the nearest."
                    )
                seen.add(text)


@dataclass(frozen=True, eq=False)
class OddOneOutTask(ZeroShotTask):
    """Questions of sentences with one marked word each, which has another sense in one of the sentences."""

    kind: ClassVar[str] = "odd-one-out"
    metrics = ("accuracy",)
    rows_noun: ClassVar[str] = "questions"
    columns: ClassVar[Mapping[str, str]] = {
        "id": "string",
        "sentences": "string[]",
        "starts": "int64[]",
        "ends": "int64[]",
        "answer": "int64",
    }

    def cells(self, split: str) -> list[Sequence[Hashable]]:
        """List the sentences of each question as one cell."""
        return [[tuple(sentences) for sentences in self.rows(split)["sentences"]]]

    def marked(self, split: str) -> list[list[JoinedText]]:
        """Return the sentences of each question, with the marked word as their only word."""
        rows = self.rows(split)
        return [
            [JoinedText(text, ((a, b),)) for text, a, b in zip(*question, strict=True)]
            for question in zip(rows["sentences"], rows["starts"], rows["ends"], strict=True)
        ]

    def n_compared(self, split: str) -> int:
        """Count the sentences of a split."""
        return sum(map(len, self.rows(split)["sentences"]))

    def gold_shown(self, split: str) -> list[object]:
        """Return the name of each answer."""
        return [answer_names(answer + 1)[-1] for answer in self.answers(split).tolist()]

    def inputs_shown(self, split: str) -> dict[str, Sequence[object]]:
        """Return the sentences of each question, the marked word in brackets."""
        marked = (
            " | ".join(f"{one.text[:a]}[{one.text[a:b]}]{one.text[b:]}" for one in question for a, b in one.spans)
            for question in self.marked(split)
        )
        return {**super().inputs_shown(split), "sentences": list(marked)}

    def texts(self) -> list[JoinedText]:
        """List every sentence with its marked word once."""
        return list(dict.fromkeys(text for split in self.splits for one in self.marked(split) for text in one))

    def fit_texts(self) -> list[JoinedText]:
        """List the sentences of train."""
        super().fit_texts()
        return list(dict.fromkeys(text for one in self.marked("train") for text in one))

    def answers(self, split: str) -> Int[np.ndarray, " N"]:
        """Return the position of the odd sentence of each question."""
        return np.asarray(self.rows(split)["answer"], np.int64)

    def keys(self, split: str) -> list[Hashable]:
        """Name each question by its sentences."""
        return [tuple(sorted(sentences)) for sentences in self.rows(split)["sentences"]]

    def check_split(self, split: str) -> None:
        """Refuse fewer than three sentences, or an answer that is none of them."""
        rows = self.rows(split)
        for name, sentences, answer in zip(rows["id"], rows["sentences"], rows["answer"], strict=True):
            if len(sentences) < 3 or not 0 <= answer < len(sentences):
                raise TaskError(
                    f"question {name!r} of task {self.name!r} has {len(sentences)} sentences and the answer "
                    f"{answer + 1}; give at least 3 sentences, exactly one of them odd."
                )

    def describe_kind(self) -> dict[str, object]:
        """Return the names of answers, too."""
        most = max(len(sentences) for rows in self.splits.values() for sentences in rows["sentences"])
        return {**super().describe_kind(), "class_names": answer_names(most)}


def answer_names(n_sentences: int) -> list[str]:
    """Name the answers of questions of at most so many sentences."""
    return [f"sentence {k + 1}" for k in range(n_sentences)]


def read_clustering_files(
    files: Files,
    *,
    name: str = "clustering-files",
    text: str = "text",
    label: str = "label",
    options: FileOptions = ZERO_SHOT_FILES,
) -> ClusteringTask:
    """Read texts with labels; options as for `read_reranking_files`."""
    fields: Fields = {"text": (text, check_text), "label": (label, lambda *cell: str(check_label(*cell)))}
    return build_task(ClusteringTask, read_rows(files, fields, options), name=name, options=options)


def read_pair_class_files(
    files: Files,
    *,
    name: str = "pair-class-files",
    text1: str = "text1",
    text2: str = "text2",
    label: str = "label",
    alike_from: float = 1.0,
    options: FileOptions = ZERO_SHOT_FILES,
) -> PairClassTask:
    """Read pairs of texts that are alike or not; `label` is a number, of pairs that are alike at least `alike_from`."""
    fields: Fields = {
        "text1": (text1, check_text),
        "text2": (text2, check_text),
        "label": (label, lambda *cell: int(check_gold(*cell) >= alike_from)),
    }
    return build_task(PairClassTask, read_rows(files, fields, options), name=name, options=options)


def read_bitext_files(
    files: Files,
    *,
    name: str = "bitext-files",
    text1: str = "text1",
    text2: str = "text2",
    options: FileOptions = ZERO_SHOT_FILES,
) -> BitextTask:
    """Read texts with their translations; options as for `read_pair_class_files`."""
    fields: Fields = {"text1": (text1, check_text), "text2": (text2, check_text)}
    return build_task(BitextTask, read_rows(files, fields, options), name=name, options=options)


def check_marked(column: str, value: object) -> tuple[str, int, int]:
    """Return a sentence without the brackets around its one marked word, and the start and end of the word.

    Example:
        >>> check_marked("sentence", "He sat on the [bank].")
        ('He sat on the bank.', 14, 18)
    """
    text = check_text(column, value)
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]+)\]([^\[\]]*)", text)
    if match is None or not match[2].strip():
        raise BadRow("no marked word", f"column {column!r} holds {text[:60]!r}, but one word in [brackets] is needed")
    return match[1] + match[2] + match[3], match.start(2) - 1, match.end(2) - 1


def read_odd_files(
    files: Files,
    *,
    name: str = "odd-files",
    question: str = "question",
    sentence: str = "sentence",
    odd: str = "odd",
    options: FileOptions = ZERO_SHOT_FILES,
) -> OddOneOutTask:
    """Read questions of several sentences, of which one uses a word in another sense.

    There is a row for each sentence: the name of its question, the sentence with the word in [brackets], and in the
    column `odd` 1 for the sentence with the other sense, else 0. A question with a bad sentence is dropped as a whole.
    """
    fields: Fields = {"marked": (sentence, check_marked), "odd": (odd, partial(check_gold, limits=(0.0, 1.0)))}
    if options.bad_rows == "drop":  # the whole question, below
        fields = {name: (column, partial(_none_if_bad, check)) for name, (column, check) in fields.items()}
    file_rows = read_rows(files, {"id": (question, check_group), **fields}, options)
    questions, n_dropped = [], 0
    for (split, question_name), rows in _by_id(file_rows.rows).items():
        location = rows[0].location
        if any(value is None for row in rows for value in row.values.values()):
            n_dropped += 1
            continue
        answers = [index for index, row in enumerate(rows) if row.values["odd"] == 1]
        if len(answers) != 1:
            raise TaskError(
                f"{location}: question {question_name!r} has {len(answers)} odd sentences; mark exactly one by 1."
            )
        sentences, starts, ends = map(list, zip(*(row.values["marked"] for row in rows), strict=True))
        values = {"id": question_name, "sentences": sentences, "starts": starts, "ends": ends, "answer": answers[0]}
        questions.append(CheckedRow(values, split, location))
    if not questions:
        raise TaskError(f"{file_rows.source}: every question has a bad sentence, so no question is left: fix the file.")
    dropped = f"{n_dropped} of {n_dropped + len(questions)} questions dropped: they have a bad sentence"
    notes = (*file_rows.notes, *([dropped] if n_dropped else []))
    return build_task(OddOneOutTask, file_rows._replace(rows=questions, notes=notes), name=name, options=options)


def _none_if_bad(check: Callable[[str, object], object], column: str, value: object) -> object:
    """Check a value; None for a bad one, whose row then stays and tells its question."""
    try:
        return check(column, value)
    except BadRow:
        return None


QUOTED = re.compile(r"[“\"「『](.{1,200}?)[”\"」』]")
"""The word that a question asks about."""
CHOICES = "ABCD"


def check_choice(column: str, value: object) -> int:
    """Return the position of an answer from A to D.

    Example:
        >>> check_choice("答案", " b")
        1
    """
    letter = str(value).strip().upper()
    if len(letter) != 1 or letter not in CHOICES:
        raise BadRow("answer is not A to D", f"column {column!r} holds {str(value)[:60]!r}, but A, B, C or D is needed")
    return CHOICES.index(letter)


def read_sense_files(
    files: Files,
    *,
    name: str = "sense-files",
    question: str = "问题",
    sentences: Sequence[str] | None = None,
    answer: str = "答案",
    options: FileOptions = ZERO_SHOT_FILES,
) -> OddOneOutTask:
    """Read questions of word sense as C-SEM and ReBA publish them: SLPWC_v1.csv and WSD_v1.csv.

    A row is a question with its word in quotes, four sentences (`选项1` to `选项4` when no columns are named) and the
    letter of the odd one. The word is marked where a sentence has it first, as ReBA's released code reads it.
    """
    columns = tuple(sentences or (f"选项{number}" for number in range(1, len(CHOICES) + 1)))
    if len(columns) != len(CHOICES):
        raise TaskError(f"`sentences` names {len(columns)} columns; name {len(CHOICES)}, of A to D.")
    fields: Fields = {
        "question": (question, check_text),
        **{letter: (column, check_text) for letter, column in zip(CHOICES, columns, strict=True)},
        "answer": (answer, check_choice),
    }
    file_rows = read_rows(files, fields, options)
    questions, n_dropped = [], 0
    for row in file_rows.rows:
        match = QUOTED.search(row.values["question"])
        texts = [row.values[letter] for letter in CHOICES]
        starts = [text.find(match[1]) if match else -1 for text in texts]
        if min(starts) < 0:
            if options.bad_rows == "error":
                where = f"sentence {CHOICES[starts.index(-1)]} lacks {match[1]!r}" if match else "no word is in quotes"
                raise TaskError(
                    f"{row.location}: {where} (question {row.values['question'][:60]!r}); correct the row, or set "
                    "`bad_rows: drop`."
                )
            n_dropped += 1
            continue
        assert match is not None, "its word was found"
        values = {
            "id": row.location,
            "sentences": texts,
            "starts": starts,
            "ends": [start + len(match[1]) for start in starts],
            "answer": row.values["answer"],
        }
        questions.append(CheckedRow(values, row.split, row.location))
    notes = (*file_rows.notes, *([f"{n_dropped} questions dropped: a sentence lacks the word"] if n_dropped else []))
    return build_task(OddOneOutTask, file_rows._replace(rows=questions, notes=notes), name=name, options=options)


def _by_id(rows: Sequence[CheckedRow]) -> dict[tuple[str | None, str], list[CheckedRow]]:
    """Gather the rows of each question or query, in the order first seen."""
    gathered: dict[tuple[str | None, str], list[CheckedRow]] = {}
    for row in rows:
        gathered.setdefault((row.split, row.values["id"]), []).append(row)
    return gathered


def load_clustering_sample() -> ClusteringTask:
    """Load the sentences of six topics of `class-sample` as texts to cluster: no benchmark."""
    read = partial(read_clustering_files, name="clustering-sample", label="topic")
    return load_shipped("samples/classes.csv", read)


def load_banking77_clusters(folder: str | Path | None = None) -> ClusteringTask:
    """Read Banking77 as texts to cluster; a part of train becomes validation.

    `folder` holds `train.csv` and `test.csv`; None is `$ICECORE_DATA/banking77`.
    """
    local = need_local("banking77", folder, example="train.csv")
    files = {split: local.find(f"{split}.csv") for split in ("train", "test")}
    return read_clustering_files(files, name="banking77-clusters", label="category")


def load_pair_class_sample() -> PairClassTask:
    """Load the pairs of `sts-sample`, alike from a gold of 3.5 on: no benchmark."""
    read = partial(
        read_pair_class_files,
        name="pair-class-sample",
        text1="sentence1",
        text2="sentence2",
        label="score",
        alike_from=3.5,
    )
    return load_shipped("samples/sts.csv", read)


def load_bitext_sample() -> BitextTask:
    """Load English sentences with German translations that were written for this project: no benchmark.

    Example:
        >>> load_bitext_sample().n_rows()
        {'train': 20, 'validation': 20, 'test': 40}
    """
    return load_shipped("samples/bitext.csv", partial(read_bitext_files, name="bitext-sample"))


def load_odd_sample() -> OddOneOutTask:
    """Load questions of word sense that were written for this project: no benchmark.

    Example:
        >>> load_odd_sample().n_rows()
        {'validation': 20, 'test': 40}
    """
    return load_shipped("samples/odd.csv", partial(read_odd_files, name="odd-sample"))


C = TypeVar("C", bound=CorpusTask)


@dataclass(frozen=True, eq=False)
class RetrievalTask(CorpusTask):
    """Queries with the relevant documents of a corpus; every other document has grade 0."""

    kind: ClassVar[str] = "retrieval"
    metrics = ("ndcg@10", "recall@10", "recall@100")


@dataclass(frozen=True, eq=False)
class RerankingTask(CorpusTask):
    """Queries with candidates, some of them relevant; `corpus` holds all candidates."""

    kind: ClassVar[str] = "reranking"
    metrics = ("map", "mrr")

    def subset(self, n_per_split: int, seed: int = 0) -> "RerankingTask":
        """Draw a smaller task, with the candidates of its queries alone; see `Task.subset`."""
        drawn = super().subset(n_per_split, seed)
        named = {split: rows["documents"] for split, rows in drawn.splits.items()}
        kept = sorted({index for lists in named.values() for indices in lists for index in indices})
        place = {index: new for new, index in enumerate(kept)}
        splits = type(drawn.splits)(
            {
                split: rows.from_dict(
                    {**rows.to_dict(), "documents": [[place[index] for index in indices] for indices in named[split]]},
                    features=rows.features,
                )
                for split, rows in drawn.splits.items()
            }
        )
        ids, texts = (tuple(names[index] for index in kept) for names in (self.corpus_ids, self.corpus))
        return drawn.replaced(splits=splits, corpus_ids=ids, corpus=texts)


def read_retrieval_files(
    folder: str | Path,
    *,
    name: str = "",
    corpus: str = "corpus.jsonl",
    queries: str = "queries.jsonl",
    qrels: Mapping[str, str | Path] | str | Path = "qrels",
    bad_rows: str = "error",
    validation_fraction: float = 0.3,
    seed: int = 0,
) -> RetrievalTask:
    """Read a retrieval task in BEIR's layout.

    Documents have the columns `_id`, `text` and perhaps `title`, which is put before the text; queries `_id` and
    `text`, and those without a relevant document are left out. `qrels` is a folder with `train.tsv`, `dev.tsv` and
    `test.tsv`, some of them, a mapping of splits to files, or one file, perhaps with a column `split`; its columns are
    `query-id`, `corpus-id` and `score`, the grade. `validation_fraction` of the queries of train, or else of test,
    becomes validation where there is none.
    """
    base = Path(folder).expanduser()
    options = FileOptions(bad_rows=bad_rows, validation_fraction=validation_fraction, seed=seed)
    documents = _read_names(base / corpus, with_title=True)
    query_texts = _read_names(base / queries)
    fields: Fields = {
        "query": ("query-id", check_group),
        "document": ("corpus-id", check_group),
        "grade": ("score", check_gold),
    }
    judged = read_rows(_find_qrels(base, qrels), fields, options)
    rows = []
    for row in judged.rows:
        for column, texts, file in (("query", query_texts, queries), ("document", documents, corpus)):
            if (text_id := row.values[column]) not in texts:
                raise TaskError(f"{row.location}: {column} {text_id!r} is not in {base / file}: add it there.")
        query = row.values["query"]
        rows.append(replace(row, values={**row.values, "id": query, "query": query_texts[query]}))
    judged = FileRows(rows, f"{base} ({judged.source})", judged.notes)
    return _build_corpus_task(RetrievalTask, judged, documents, name=name or base.resolve().name, options=options)


def _find_qrels(base: Path, qrels: Files) -> Files:
    """Find the files of qrels by split, or the one file."""
    if isinstance(qrels, Mapping):
        return {split: base / file for split, file in qrels.items()}
    path = base / qrels
    if not path.is_dir():
        return path
    files = {file.stem: file for file in sorted(path.glob("*.tsv"))}
    if not files:
        raise TaskError(f"{path} has no file such as test.tsv: give the folder of qrels, or `qrels` by split.")
    return files


def _read_names(path: Path, *, with_title: bool = False) -> dict[str, str]:
    """Read texts by their `_id`."""
    texts: dict[str, str] = {}
    table = read_raw(path)
    has_title = with_title and "title" in table.columns
    fields: Fields = {
        "id": ("_id", check_group),
        "text": ("text", _as_is),
        "title": ("title" * has_title or None, _as_is),
    }
    for row in check_rows({None: table}, fields, source=str(path), bad_rows="error").rows:
        name, text = row.values["id"], " ".join(filter(None, (row.values.get("title"), row.values["text"]))).strip()
        if name in texts:
            raise TaskError(f"{row.location}: _id {name!r} occurs twice: give every text its own.")
        if not with_title:
            check_text("text", text or None)
        texts[name] = text or " "  # BEIR has documents without a text
    return texts


def _as_is(_: str, value: object) -> str:
    return "" if value is None else str(value)


def read_reranking_files(
    files: Files,
    *,
    name: str = "reranking-files",
    query: str = "query",
    document: str = "document",
    relevance: str = "relevance",
    options: FileOptions = ZERO_SHOT_FILES,
) -> RerankingTask:
    """Read a reranking task from files with a row per query, candidate and its grade, which above 0 is relevant.

    Rows of one query and split are its candidates. Files are read as by `read_pair_files`.
    """
    fields: Fields = {
        "query": (query, check_text),
        "document": (document, check_text),
        "grade": (relevance, check_gold),
    }
    judged = read_rows(files, fields, options)
    rows = [replace(row, values={**row.values, "id": row.values["query"]}) for row in judged.rows]
    documents = {text: text for text in {row.values["document"] for row in rows}}
    return _build_corpus_task(RerankingTask, judged._replace(rows=rows), documents, name=name, options=options)


def read_triple_files(
    files: Files,
    *,
    name: str = "triple-files",
    anchor: str = "anchor",
    positive: str = "positive",
    negative: str = "negative",
    options: FileOptions = ZERO_SHOT_FILES,
) -> RerankingTask:
    """Read triples from files, as queries with two candidates each: is the positive nearer to its anchor?

    The share of triples that are right is twice the mean reciprocal rank less one. Triples of equal texts are left out.
    """
    columns = {"query": anchor, "positive": positive, "negative": negative}
    triples = read_rows(files, {field: (column, check_text) for field, column in columns.items()}, options)
    kept = [row for row in triples.rows if row.values["positive"] != row.values["negative"]]
    rows = [
        replace(
            row, values={"id": str(number), "query": row.values["query"], "document": row.values[side], "grade": grade}
        )
        for number, row in enumerate(kept)
        for side, grade in (("positive", 1.0), ("negative", 0.0))
    ]
    n_dropped = len(triples.rows) - len(kept)
    dropped = [f"{n_dropped} triples left out: {positive} and {negative} are the same text"] * (n_dropped > 0)
    judged = FileRows(rows, triples.source, (*triples.notes, *dropped))
    documents = {text: text for text in {row.values["document"] for row in rows}}
    return _build_corpus_task(RerankingTask, judged, documents, name=name, options=options)


def load_snli_triples(folder: str | Path | None = None) -> RerankingTask:
    """Read triples of SNLI: the entailed sentence is nearer to its premise than the contradicting one.

    Triples of train are validation, as nothing is fitted. `folder` holds `triples.train.jsonl` and
    `triples.test.jsonl`; None is `$ICECORE_DATA/snli`.
    """
    local = need_local("snli", folder, example="triples.test.jsonl")
    files = {split: local.find(f"triples.{part}.jsonl") for split, part in (("validation", "train"), ("test", "test"))}
    return read_triple_files(files, name="snli-triples")


def _build_corpus_task(
    kind: type[C], judged: FileRows, documents: Mapping[str, str], *, name: str, options: FileOptions
) -> C:
    """Build a task from rows of a query, a document and its grade."""
    names = sorted(documents, reverse=True)  # trec_eval puts the higher name first where documents are equally near
    index_of = {document: index for index, document in enumerate(names)}
    queries, n_regraded = [], 0
    for (split, query_id), rows in _by_id(judged.rows).items():
        grades: dict[int, float] = {}
        for row in rows:
            index, grade = index_of[row.values["document"]], row.values["grade"]
            n_regraded += grades.get(index, grade) != grade
            grades[index] = max(grade, grades.get(index, grade))
        documents_of_query = sorted(grades)
        values = {"documents": documents_of_query, "grades": [grades[index] for index in documents_of_query]}
        query = {"id": query_id, "query": rows[0].values["query"]}
        queries.append(CheckedRow({**query, **values}, split, rows[0].location))
    answered = [row for row in queries if any(grade > 0 for grade in row.values["grades"])]
    if not answered:
        raise TaskError(f"task {name!r} has no query with a relevant document: give grades above 0.")
    n_dropped = len(queries) - len(answered)
    notes = [f"{n_dropped} queries without a relevant document left out"] * (n_dropped > 0)
    if n_regraded:
        notes.append(f"{n_regraded} judgements repeat one with another grade; the highest counts")
    return build_task(
        kind,
        FileRows(answered, judged.source, (*judged.notes, *notes)),
        name=name,
        options=options,
        corpus_ids=tuple(names),
        corpus=tuple(documents[document] for document in names),
    )


def load_retrieval_sample() -> RetrievalTask:
    """Load questions about notes on everyday things that were written for this project: no benchmark.

    Example:
        >>> load_retrieval_sample().n_rows()
        {'validation': 15, 'test': 25}
    """
    return load_shipped("samples", partial(read_retrieval_files, name="retrieval-sample", qrels="qrels.tsv"))


def load_reranking_sample() -> RerankingTask:
    """Load questions with four candidates each, of which one or two answer, written for this project: no benchmark.

    Example:
        >>> load_reranking_sample().metrics
        ('map', 'mrr')
    """
    return load_shipped("samples/reranking.csv", partial(read_reranking_files, name="reranking-sample"))
