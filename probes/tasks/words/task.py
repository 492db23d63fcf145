"""Words with tags: the task every token classifier is trained and scored on."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from extract.errors import TaskError, unknown_name
from extract.inputs.joined import JoinedText, join_words
from probes.metrics.tags import convert_tags, split_tag
from probes.tasks.audit import MOST_GOLDS, conflict_notes
from probes.tasks.base import Task, hold_columns
from probes.tasks.words.schemes import SchemeRecord

if TYPE_CHECKING:
    import datasets

__all__ = ["COLUMNS", "METRICS", "JoinedText", "WordMetric", "WordTask", "build_word_splits", "join_words"]

WordMetric = Literal["span-f1", "accuracy"]
METRICS: tuple[WordMetric, ...] = get_args(WordMetric)
FEWEST_DOCUMENTS = 10
"""The fewest documents of a split for intervals to be drawn from documents rather than sentences."""
COLUMNS = ("words", "tags", "document", "space_after")


@dataclass(frozen=True, eq=False)
class WordTask(Task):
    """Sentences with one tag a word, in up to three splits, checked when built.

    Raises:
        TaskError: There is no split, a split has no sentence, a row's lists differ in length, a span task has tags
            other than IOB2 or a split without a span, or all words have one tag.
        UnknownNameError: A split, a column or the metric has another name than those below.
    """

    kind: ClassVar[str] = "words"
    rows_noun: ClassVar[str] = "sentences"

    name: str
    splits: "datasets.DatasetDict"
    """Columns `words` and `tags` (lists of strings), `document` (string, empty where the source marks none) and
    `space_after` (list of booleans)."""
    metric: WordMetric
    """`span-f1`: tags are IOB2 and scored by spans. `accuracy`: any tags, scored word by word."""
    source: str
    scheme: SchemeRecord | None = None
    """What span tags were before they became IOB2; None for a task scored by accuracy."""
    is_sample: bool = False
    notes: tuple[str, ...] = ()

    metrics: tuple[str, ...] = field(init=False)
    """The metric alone."""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise unknown_name("metric", self.metric, METRICS)
        object.__setattr__(self, "metrics", (self.metric,))
        self.check_splits(COLUMNS)
        for split, rows in self.splits.items():
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
        """Return what intervals of a split are drawn from: documents where it has ten or more, else sentences.

        An interval over a handful of documents says little about other documents.
        """
        return "documents" if len(set(self.splits[split]["document"])) >= FEWEST_DOCUMENTS else "sentences"

    def groups(self, split: str) -> tuple[str, ...] | None:
        """Name the document of each sentence of one split, where intervals are drawn from documents."""
        rows = self.rows(split)
        return tuple(map(str, rows["document"])) if self.resampled(split) == "documents" else None

    def cells(self, split: str) -> list[Sequence[Hashable]]:
        """List the words of each sentence; none where documents are drawn, which share headlines and dates."""
        return [] if self.resampled(split) == "documents" else [[tuple(words) for words in self.rows(split)["words"]]]

    def joined(self, split: str) -> list[JoinedText]:
        """Join the words of each sentence of one split to a text that knows the offsets of its words."""
        rows = self.rows(split)
        return [join_words(*row) for row in zip(rows["words"], rows["space_after"], strict=True)]

    def texts(self) -> list[JoinedText]:
        """List every text once, in the order first seen."""
        return list(dict.fromkeys(text for split in self.splits for text in self.joined(split)))

    def plain_texts(self) -> list[str]:
        """List every text once, as strings."""
        return [text.text for text in self.texts()]

    def audit(self) -> tuple[str, ...]:
        """Count conflicting tags, sentences shared by splits, and tags that train lacks; see `audit_words`."""
        return audit_words(self.splits)

    def digest_parts(self) -> tuple[object, tuple[str, ...]]:
        """Return the metric and all columns."""
        return self.metric, COLUMNS

    def describe_kind(self) -> dict[str, Any]:
        """Return tags, scheme, what intervals are drawn from, and counts of words and sentences."""
        return {
            "tags": list(self.labels),
            "scheme": self.scheme.found if self.scheme else None,
            "has_documents": self.has_documents,
            "resampled": {split: self.resampled(split) for split in self.splits},
            "n_sentences": self.n_rows(),
            "n_words": {split: sum(map(len, rows["words"])) for split, rows in self.splits.items()},
        }

    def check_draw(self, n_per_split: int) -> None:
        """Reject a draw of no sentence."""
        if n_per_split < 1:
            raise TaskError(f"n_per_split is {n_per_split}, but a split needs at least 1 sentence.")


def build_word_splits(columns: Mapping[str, Mapping[str, Sequence[object]]]) -> "datasets.DatasetDict":
    """Hold the columns `words`, `tags`, `document` and `space_after` of each split as a `WordTask` wants them."""
    from datasets import List, Value

    texts = List(Value("string"))
    features = {"words": texts, "tags": texts, "document": Value("string"), "space_after": List(Value("bool"))}
    return hold_columns(columns, features)


def usual_tags(task: WordTask, split: str) -> list[str]:
    """Give each word of a split its most frequent tag in train, and an unknown word the most frequent tag of all.

    The baseline of the CoNLL shared tasks, word by word. Of equally frequent tags the one that train shows first wins.
    """
    train = task.rows("train")
    seen: dict[str, Counter[str]] = {}
    overall: Counter[str] = Counter()
    for words, tags in zip(train["words"], train["tags"], strict=True):
        overall.update(tags)
        for word, tag in zip(words, tags, strict=True):
            seen.setdefault(word, Counter())[tag] += 1
    best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
    other = overall.most_common(1)[0][0]
    return [best.get(word, other) for words in task.rows(split)["words"] for word in words]


def audit_words(splits: Mapping[str, Any]) -> tuple[str, ...]:
    """Count sentences that have several taggings or are also in an earlier split, and tags that train lacks.

    Sentences are compared word by word.

    `splits` holds the rows of each split, in the order train, validation, test.
    """
    notes: list[str] = []
    rows = {split: [tuple(words) for words in columns["words"]] for split, columns in splits.items()}
    tagged = {split: [tag for tags in columns["tags"] for tag in tags] for split, columns in splits.items()}
    known = set(tagged.get("train", ()))
    names = list(rows)
    for index, split in enumerate(names):
        sentences = [" ".join(words) for words in rows[split]]
        n_conflicts, conflicts = conflict_notes(sentences, _differing_tags(splits[split]), "sentence", "tags")
        notes += [f"{split}: {conflicts}"] * bool(n_conflicts)
        for other in names[:index]:
            earlier = set(rows[other])
            n_shared = sum(row in earlier for row in rows[split])
            if n_shared:
                notes.append(f"{split}: {n_shared} of {len(rows[split])} sentences are also in {other}")
        new = [tag for tag in tagged[split] if known and tag not in known]
        if new:
            kinds = ", ".join(sorted(set(new))[:8])
            count = f"{len(new)} words have tags" if len(new) > 1 else "1 word has a tag"
            notes.append(f"{split}: {count} that train never shows ({kinds})")
    return tuple(notes)


def _differing_tags(rows: Any) -> list[str]:
    """Write each sentence's tags of the first words on whose tags its copies in these rows disagree."""
    taggings: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    pairs = [(tuple(words), tuple(tags)) for words, tags in zip(rows["words"], rows["tags"], strict=True)]
    for words, tags in pairs:
        taggings.setdefault(words, []).append(tags)
    differing = {
        words: [place for place, tags in enumerate(zip(*copies, strict=True)) if len(set(tags)) > 1][:MOST_GOLDS]
        for words, copies in taggings.items()
    }
    return [" ".join(f"{words[place]}/{tags[place]}" for place in differing[words]) for words, tags in pairs]


def _check_rows(task: WordTask, split: str, rows: "datasets.Dataset") -> None:
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
