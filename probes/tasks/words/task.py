"""Words with tags: the task every token classifier is trained and scored on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from extract.errors import TaskError, unknown_name
from extract.inputs.joined import JoinedText, join_words
from probes.metrics.tags import convert_tags, split_tag
from probes.tasks.words.schemes import SchemeRecord

if TYPE_CHECKING:
    import datasets

__all__ = ["COLUMNS", "METRICS", "SPLITS", "JoinedText", "WordMetric", "WordTask", "build_word_splits", "join_words"]

WordMetric = Literal["span-f1", "accuracy"]
METRICS: tuple[WordMetric, ...] = get_args(WordMetric)
SPLITS = ("train", "validation", "test")
FEWEST_DOCUMENTS = 10
"""So many a split must have for its documents, and not its sentences, to be resampled."""
COLUMNS = ("words", "tags", "document", "space_after")


@dataclass(frozen=True, eq=False)
class WordTask:
    """Sentences with one tag a word, in up to three splits, checked when built.

    Raises:
        TaskError: If no split is there, a split has no sentence, a row's lists differ in length, a span task has tags
            other than IOB2 or a split without a span, or all words have one tag.
        UnknownNameError: If a split, a column or the metric has another name than those below.
    """

    name: str
    """What reports call the task."""
    splits: "datasets.DatasetDict"
    """`train`, `validation`, `test` (any non-empty subset, in that order) with columns `words` and `tags` (lists of
    strings), `document` (string, empty where the source marks none) and `space_after` (list of booleans)."""
    metric: WordMetric
    """`span-f1`: tags are IOB2 and scored by spans. `accuracy`: any tags, scored word by word."""
    source: str
    """One line: where the rows came from."""
    scheme: SchemeRecord | None = None
    """What span tags were before they became IOB2; None for a task scored by accuracy."""
    is_sample: bool = False
    """True for the small sample shipped with the project, which is no benchmark."""
    notes: tuple[str, ...] = ()
    """One-line remarks for the reader of a report."""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise unknown_name("metric", self.metric, METRICS)
        if not self.splits:
            raise TaskError(f"task {self.name!r} has no split; give at least one of {', '.join(SPLITS)}.")
        for split, rows in self.splits.items():
            if split not in SPLITS:
                raise unknown_name("split", split, SPLITS)
            for column in COLUMNS:
                if column not in rows.column_names:
                    raise unknown_name("column", column, rows.column_names, hint=f"Split {split!r} lacks it.")
            _check_rows(self, split, rows)
        if len(self.labels) < 2:
            raise TaskError(
                f"every word of task {self.name!r} has the tag {self.labels[0]!r}, so there is nothing to learn: "
                "name another column of tags."
            )

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Every tag of every split: O first, then sorted by type and prefix; sorted for a task scored by accuracy."""
        found = {tag for rows in self.splits.values() for tags in rows["tags"] for tag in tags}
        if self.metric == "accuracy":
            return tuple(sorted(found))
        return tuple(sorted(found, key=lambda tag: (tag != "O", split_tag(tag)[::-1])))

    @property
    def has_documents(self) -> bool:
        """Whether every split marks at least two documents."""
        return all(len(set(rows["document"])) > 1 for rows in self.splits.values())

    def resampled(self, split: str) -> Literal["documents", "sentences"]:
        """Say what intervals of a split are drawn from: its documents where it has ten or more, else its sentences.

        An interval over a handful of documents says next to nothing of the documents that were not drawn.

        Args:
            split: One of the task's splits.

        Returns:
            What to draw.
        """
        return "documents" if len(set(self.splits[split]["document"])) >= FEWEST_DOCUMENTS else "sentences"

    def joined(self, split: str) -> list[JoinedText]:
        """Join the words of each sentence of one split.

        Args:
            split: One of the task's splits.

        Returns:
            One text with the offsets of its words, a row.

        Raises:
            UnknownNameError: If the task has no such split.
        """
        if split not in self.splits:
            raise unknown_name("split", split, self.splits, hint=f"These are the splits of task {self.name!r}.")
        rows = self.splits[split]
        return [join_words(*row) for row in zip(rows["words"], rows["space_after"], strict=True)]

    def texts(self) -> list[JoinedText]:
        """List every text of the task once.

        Returns:
            The unique texts over all splits, in the order first seen (train first, row by row).
        """
        return list(dict.fromkeys(text for split in self.splits for text in self.joined(split)))

    def digest(self) -> str:
        """Hash the rows: splits, words, tags, documents, spaces and metric, but not name, source or notes.

        Returns:
            64 hexadecimal digits (SHA-256); equal for equal rows in equal order, on every machine.
        """
        sha = hashlib.sha256(json.dumps(self.metric).encode())
        for split, rows in self.splits.items():
            sha.update(json.dumps([split, len(rows)]).encode())
            for row in zip(*(rows[column] for column in COLUMNS), strict=True):
                sha.update(json.dumps(row).encode() + b"\n")
        return sha.hexdigest()

    def subset(self, n_per_split: int, seed: int = 0) -> "WordTask":
        """Draw a smaller task for quick trials; a larger draw with the same seed holds every smaller one.

        Args:
            n_per_split: Sentences to keep of each split, at least 1; a split with fewer stays whole.
            seed: Seed of the draw.

        Returns:
            A task whose sentences keep their order and whose notes say that it is a subset.

        Raises:
            TaskError: If `n_per_split` is below 1, or the drawn sentences have no span or one tag only.
        """
        if n_per_split < 1:
            raise TaskError(f"n_per_split is {n_per_split}, but a split needs at least 1 sentence.")
        drawn = {}
        for index, (split, rows) in enumerate(self.splits.items()):
            kept = sorted(np.random.default_rng([seed, index]).permutation(len(rows))[:n_per_split].tolist())
            drawn[split] = {column: [values[i] for i in kept] for column, values in rows[:].items()}
        note = f"a random subset of at most {n_per_split} sentences per split (seed {seed}), not the whole task"
        splits = build_word_splits(drawn)
        return replace(self, splits=splits, notes=(note, *self.notes))


def build_word_splits(columns: Mapping[str, Mapping[str, Sequence[object]]]) -> "datasets.DatasetDict":
    """Hold checked columns in memory as the `DatasetDict` a `WordTask` wants.

    Args:
        columns: Split to its columns `words`, `tags`, `document` and `space_after`.

    Returns:
        The splits in the order train, validation, test; nothing is written to disk.
    """
    from datasets import Dataset, DatasetDict, Features, List, Value

    features = Features(
        {
            "words": List(Value("string")),
            "tags": List(Value("string")),
            "document": Value("string"),
            "space_after": List(Value("bool")),
        }
    )
    order = [*(split for split in SPLITS if split in columns), *(split for split in columns if split not in SPLITS)]
    picked = {split: {name: list(columns[split][name]) for name in COLUMNS} for split in order}
    return DatasetDict({split: Dataset.from_dict(picked[split], features=features) for split in order})


def _check_rows(task: WordTask, split: str, rows: "datasets.Dataset") -> None:
    if not len(rows):
        raise TaskError(f"split {split!r} of task {task.name!r} has no sentence: add some or leave the split out.")
    has_span = False
    for number, (words, tags, space_after) in enumerate(
        zip(rows["words"], rows["tags"], rows["space_after"], strict=True), start=1
    ):
        if not len(words) == len(tags) == len(space_after) or not words:
            raise TaskError(
                f"row {number} of split {split!r} of task {task.name!r} has {len(words)} words, {len(tags)} tags and "
                f"{len(space_after)} spaces: give every sentence at least one word, and one of each a word."
            )
        if task.metric == "span-f1" and convert_tags(tags) != tags:
            raise TaskError(
                f"row {number} of split {split!r} of task {task.name!r} has tags that are no IOB2 "
                f"({' '.join(tags)[:60]!r}): convert them with `to_iob2`."
            )
        has_span = has_span or any(tag != "O" for tag in tags)
    if task.metric == "span-f1" and not has_span:
        raise TaskError(
            f"split {split!r} of task {task.name!r} has no span in its {len(rows)} sentences, so its F1 is undefined: "
            "add sentences or leave the split out."
        )
