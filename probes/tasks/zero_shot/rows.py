"""Clustering, pair classification, bitexts and the odd one out: rows of texts, from own files or the samples."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from extract.errors import TaskError
from extract.inputs.joined import JoinedText
from probes.readers.checked_rows import CheckedRow, Fields, check_rows, find_split_column, read_tables
from probes.readers.checks import BadRow, check_gold, check_group, check_label, check_text
from probes.readers.local import need_local
from probes.tasks.base import load_shipped
from probes.tasks.splitting import draw_order
from probes.tasks.zero_shot.task import Z, ZeroShotTask, build_task

Files = Mapping[str, str | Path] | str | Path


@dataclass(frozen=True, eq=False)
class ClusteringTask(ZeroShotTask):
    """Texts with labels that clusters should find again."""

    kind: ClassVar[str] = "clustering"
    metrics = ("v-measure",)
    text_columns: ClassVar[tuple[str, ...]] = ("text",)
    columns: ClassVar[Mapping[str, str]] = {"text": "text", "label": "text"}

    def gold_shown(self, split: str) -> list[Any]:
        """Return the label of each row."""
        return list(self.rows(split)["label"])

    def labels(self, split: str) -> Int[np.ndarray, " N"]:
        """Number the labels of a split from 0, by the alphabet."""
        return np.unique(np.array(self.rows(split)["label"], str), return_inverse=True)[1]

    def draw_order(self, split: str, *, seed: int) -> NDArray[np.int64]:
        """Order the rows of a split so that every beginning of the order is a stratified draw."""
        return draw_order(self.labels(split), seed=seed)

    def check_split(self, split: str) -> None:
        """Refuse fewer than two labels, and as many labels as rows."""
        n_labels, n_rows = len(set(self.rows(split)["label"])), len(self.rows(split))
        if not 1 < n_labels < n_rows:
            raise TaskError(
                f"split {split!r} of task {self.name!r} has {n_labels} labels in {n_rows} rows; give two labels or "
                "more, and more rows than labels."
            )

    def describe_kind(self) -> dict[str, Any]:
        """Return the labels, too."""
        names = sorted({label for rows in self.splits.values() for label in rows["label"]})
        return {**super().describe_kind(), "n_classes": len(names), "class_names": names}


@dataclass(frozen=True, eq=False)
class PairClassTask(ZeroShotTask):
    """Pairs of texts that are alike (1) or not (0)."""

    kind: ClassVar[str] = "pair-classification"
    metrics = ("average-precision", "threshold-accuracy")
    rows_noun: ClassVar[str] = "pairs"
    text_columns: ClassVar[tuple[str, ...]] = ("text1", "text2")
    columns: ClassVar[Mapping[str, str]] = {"text1": "text", "text2": "text", "label": "place"}

    def alike(self, split: str) -> Int[np.ndarray, " N"]:
        """Return 1 for each pair of a split that is alike, else 0."""
        return np.asarray(self.rows(split)["label"], np.int64)

    def gold_shown(self, split: str) -> list[Any]:
        """Return the label of each row."""
        return list(self.rows(split)["label"])

    def draw_order(self, split: str, *, seed: int) -> NDArray[np.int64]:
        """Order the rows of a split so that every beginning of the order is a stratified draw."""
        return draw_order(self.alike(split), seed=seed)

    def check_split(self, split: str) -> None:
        """Refuse labels other than 0 and 1, or only one of them."""
        found = sorted(set(self.rows(split)["label"]))
        if found != [0, 1]:
            raise TaskError(
                f"split {split!r} of task {self.name!r} has the labels {', '.join(map(str, found))}; give pairs of "
                "label 1, which are alike, and of label 0."
            )


@dataclass(frozen=True, eq=False)
class BitextTask(ZeroShotTask):
    """Texts and their translations: each row's other text is to be found among those of all rows of its split."""

    kind: ClassVar[str] = "bitext"
    metrics = ("bitext-f1", "bitext-accuracy")
    rows_noun: ClassVar[str] = "pairs"
    text_columns: ClassVar[tuple[str, ...]] = ("text1", "text2")
    columns: ClassVar[Mapping[str, str]] = {"text1": "text", "text2": "text"}

    def check_split(self, split: str) -> None:
        """Refuse a text that is on one side twice, which has two translations."""
        for column in self.text_columns:
            texts = list(self.rows(split)[column])
            again = (
                next((text for k, text in enumerate(texts) if text in texts[:k]), None)
                if (len(set(texts)) < len(texts))
                else None
            )
            if again is not None:
                raise TaskError(
                    f"split {split!r} of task {self.name!r} has {again[:60]!r} twice in {column}; leave one of the "
                    "rows out, as both cannot be the nearest."
                )


@dataclass(frozen=True, eq=False)
class OddOneOutTask(ZeroShotTask):
    """Questions of sentences with one marked word each: in one sentence it has another sense than in the others."""

    kind: ClassVar[str] = "odd-one-out"
    metrics = ("accuracy",)
    rows_noun: ClassVar[str] = "questions"
    text_columns: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[Mapping[str, str]] = {
        "id": "text",
        "sentences": "texts",
        "starts": "places",
        "ends": "places",
        "answer": "place",
    }

    def cells(self, split: str) -> list[Sequence[Hashable]]:
        """List the sentences of each question, together."""
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

    def gold_shown(self, split: str) -> list[Any]:
        """Return the name of each answer."""
        return [answer_names(answer + 1)[-1] for answer in self.answers(split).tolist()]

    def inputs_shown(self, split: str) -> dict[str, Sequence[Any]]:
        """Return the sentences of each question, the marked word in brackets."""
        marked = (
            " | ".join(f"{one.text[:a]}[{one.text[a:b]}]{one.text[b:]}" for one in question for a, b in one.spans)
            for question in self.marked(split)
        )
        return {**super().inputs_shown(split), "sentences": list(marked)}

    def texts(self) -> list[JoinedText]:
        """List every sentence with its marked word once."""
        return list(dict.fromkeys(text for split in self.splits for one in self.marked(split) for text in one))

    def plain_texts(self) -> list[str]:
        """List every sentence once."""
        return list(dict.fromkeys(text.text for text in self.texts()))

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

    def describe_kind(self) -> dict[str, Any]:
        """Return the names of answers, too."""
        most = max(len(sentences) for rows in self.splits.values() for sentences in rows["sentences"])
        return {**super().describe_kind(), "class_names": answer_names(most)}


def answer_names(n_sentences: int) -> list[str]:
    """Name the answers of questions of at most so many sentences."""
    return [f"sentence {k + 1}" for k in range(n_sentences)]


def _load(
    kind: type[Z],
    files: Files,
    fields: Fields,
    options: Mapping[str, Any],
    *,
    gather: Callable[[list[CheckedRow]], list[CheckedRow]] = list,
) -> Z:
    """Read a task from files, by the options that all readers share; `gather` joins rows of the file to rows."""
    layout = {key: options[key] for key in ("header", "columns", "delimiter", "quoting")}
    tables, source = read_tables(files, **layout)
    column = find_split_column(tables, options["split_column"])
    rows, notes = check_rows(tables, fields, split_column=column, bad_rows=options["bad_rows"])
    rest = {key: options[key] for key in ("name", "validation_fraction", "seed")}
    return build_task(kind, gather(rows), source=source, notes=notes, **rest)


def read_clustering_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Files,
    *,
    name: str = "clustering-files",
    text: str = "text",
    label: str = "label",
    split_column: str | None = None,
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
    bad_rows: str = "error",
    validation_fraction: float = 0.3,
    seed: int = 0,
) -> ClusteringTask:
    """Read texts with labels; options as for `read_reranking_files`.

    Raises:
        TaskError: A file is broken, a row is bad, or a split has one label, or as many as rows.
        UnknownNameError: An unknown column, split, suffix or `bad_rows`.
    """
    fields: Fields = {"text": (text, check_text), "label": (label, lambda *cell: str(check_label(*cell)))}
    return _load(ClusteringTask, files, fields, locals())


def read_pair_class_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Files,
    *,
    name: str = "pair-class-files",
    text1: str = "text1",
    text2: str = "text2",
    label: str = "label",
    alike_from: float = 1.0,
    split_column: str | None = None,
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
    bad_rows: str = "error",
    validation_fraction: float = 0.3,
    seed: int = 0,
) -> PairClassTask:
    """Read pairs of texts that are alike or not; other options as for `read_reranking_files`.

    Args:
        files: As for `read_reranking_files`.
        name: What reports call the task.
        text1: Column of the first text.
        text2: Column of the second text.
        label: Column of a number.
        alike_from: The lowest number of a pair that is alike; 1 for labels of 0 and 1.
        split_column: Column of the split.
        header: As for `read_pair_files`, like the four that follow.
        columns: Names of the columns.
        delimiter: Between columns.
        quoting: Whether quotes enclose values.
        bad_rows: `error` or `drop`.
        validation_fraction: Part of the rows that becomes validation where there is none.
        seed: Seed of that draw.

    Raises:
        TaskError: A file is broken, a row is bad, or all pairs of a split are alike, or none.
        UnknownNameError: An unknown column, split, suffix or `bad_rows`.
    """
    fields: Fields = {
        "text1": (text1, check_text),
        "text2": (text2, check_text),
        "label": (label, lambda *cell: int(check_gold(*cell) >= alike_from)),
    }
    return _load(PairClassTask, files, fields, locals())


def read_bitext_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Files,
    *,
    name: str = "bitext-files",
    text1: str = "text1",
    text2: str = "text2",
    split_column: str | None = None,
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
    bad_rows: str = "error",
    validation_fraction: float = 0.3,
    seed: int = 0,
) -> BitextTask:
    """Read texts with their translations; options as for `read_pair_class_files`.

    Raises:
        TaskError: A file is broken, a row is bad, or a text is on one side of a split twice.
        UnknownNameError: An unknown column, split, suffix or `bad_rows`.
    """
    fields: Fields = {"text1": (text1, check_text), "text2": (text2, check_text)}
    return _load(BitextTask, files, fields, locals())


def check_marked(column: str, value: Any) -> tuple[str, int, int]:
    """Return a sentence without the brackets around its one marked word, and where the word begins and ends.

    Example:
        >>> check_marked("sentence", "He sat on the [bank].")
        ('He sat on the bank.', 14, 18)
    """
    text = check_text(column, value)
    found = re.findall(r"\[([^\[\]]+)\]", text)
    if len(found) != 1 or text.count("[") != 1 or text.count("]") != 1 or not found[0].strip():
        raise BadRow("no marked word", f"column {column!r} holds {text[:60]!r}, but one word in [brackets] is needed")
    start = text.index("[")
    return text.replace("[", "").replace("]", ""), start, start + len(found[0])


def read_odd_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Files,
    *,
    name: str = "odd-files",
    question: str = "question",
    sentence: str = "sentence",
    odd: str = "odd",
    split_column: str | None = None,
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
    bad_rows: str = "error",
    validation_fraction: float = 0.3,
    seed: int = 0,
) -> OddOneOutTask:
    """Read questions of several sentences, a row each, of which one uses a word in another sense.

    Args:
        files: As for `read_reranking_files`.
        name: What reports call the task.
        question: Column of what names the question; its rows are its sentences.
        sentence: Column of the sentence, the word in [brackets].
        odd: Column of 1 for the sentence with the other sense, else 0.
        split_column: Column of the split.
        header: As for `read_pair_files`, like the four that follow.
        columns: Names of the columns.
        delimiter: Between columns.
        quoting: Whether quotes enclose values.
        bad_rows: `error` or `drop`.
        validation_fraction: Part of the questions that becomes validation where there is none.
        seed: Seed of that draw.

    Raises:
        TaskError: A file is broken, a row is bad, or a question has not exactly one odd sentence.
        UnknownNameError: An unknown column, split, suffix or `bad_rows`.
    """
    fields: Fields = {
        "id": (question, check_group),
        "marked": (sentence, check_marked),
        "odd": (odd, partial(check_gold, limits=(0.0, 1.0))),
    }
    return _load(OddOneOutTask, files, fields, locals(), gather=_questions)


def _questions(rows: Sequence[CheckedRow]) -> list[CheckedRow]:
    gathered: dict[tuple[str | None, str], list[CheckedRow]] = {}
    for row in rows:
        gathered.setdefault((row.split, row.values["id"]), []).append(row)
    return [_question(split, name, part) for (split, name), part in gathered.items()]


def _question(split: str | None, name: str, rows: Sequence[CheckedRow]) -> CheckedRow:
    odd = [k for k, row in enumerate(rows) if row.values["odd"] == 1]
    if len(odd) != 1:
        raise TaskError(f"{rows[0].place}: question {name!r} has {len(odd)} odd sentences; mark exactly one by 1.")
    sentences, starts, ends = (list(each) for each in zip(*(row.values["marked"] for row in rows), strict=True))
    values = {"id": name, "sentences": sentences, "starts": starts, "ends": ends, "answer": odd[0]}
    return CheckedRow(values, split, rows[0].place)


def load_clustering_sample() -> ClusteringTask:
    """Load the sentences of six topics of `class-sample` as texts to cluster: no benchmark."""
    read = partial(read_clustering_files, name="clustering-sample", label="topic")
    return load_shipped("probes.tasks.classes", "samples/classes.csv", read)


def load_banking77_clusters(folder: str | Path | None = None) -> ClusteringTask:
    """Read Banking77 as texts to cluster, from `train.csv` and `test.csv`; a part of train becomes validation.

    Args:
        folder: Where the files are; None is `$ICECORE_DATA/banking77`.
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
    return load_shipped("probes.tasks.pairs", "samples/sts.csv", read)


def load_bitext_sample() -> BitextTask:
    """Load English sentences with German translations that were written for this project: no benchmark.

    Example:
        >>> load_bitext_sample().n_rows()
        {'train': 20, 'validation': 20, 'test': 40}
    """
    return load_shipped(
        "probes.tasks.zero_shot", "samples/bitext.csv", partial(read_bitext_files, name="bitext-sample")
    )


def load_odd_sample() -> OddOneOutTask:
    """Load questions of word sense that were written for this project: no benchmark.

    Example:
        >>> load_odd_sample().n_rows()
        {'validation': 20, 'test': 40}
    """
    return load_shipped("probes.tasks.zero_shot", "samples/odd.csv", partial(read_odd_files, name="odd-sample"))
