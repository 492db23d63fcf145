"""Words with tags: the task every token classifier is trained and scored on."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, pairwise
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from extract.errors import TaskError, require_name, unknown_name
from extract.inputs.joined_text import JoinedText, join_words
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import cut_at_tokens
from probes.data.splits import SPLITS, SplitRule, draw_missing, hold_out_any, order_splits
from probes.data.table_files import Columns, Sentence, SentenceTable
from probes.data.task import MOST_GOLDS, Task, conflict_notes, plain_form
from probes.metrics.prediction_metrics import SCHEMES, Scheme, convert_tags, is_span_tag, split_tag

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase


WordMetric = Literal["span-f1", "accuracy"]
METRICS: tuple[WordMetric, ...] = get_args(WordMetric)
FEWEST_DOCUMENTS = 10
"""The fewest documents of a split for intervals to be drawn from documents rather than sentences."""
LETTERS: dict[Scheme, str] = {"IOB1": "BI", "IOB2": "BI", "IO": "I", "BIOES": "BIES", "BILOU": "BILU"}
"""The letters before a type in each scheme."""
Locate = Callable[[int, int], str]
"""Names the file and line of a word by the numbers of its sentence and of the word, both from 0."""


@dataclass(frozen=True)
class SchemeRecord:
    """The tags of a task before they became IOB2."""

    name: Scheme
    is_declared: bool
    """True if the user named the scheme, False if the tags showed it."""
    n_tags: int
    n_changed: int
    """Tags that were rewritten."""
    n_broken: int = 0
    """Tags that break the scheme, read by the rules of conlleval."""
    first_break: str = ""
    """Location of the first of them."""

    def note(self) -> str:
        """Describe the conversion in one line for a report."""
        how = "declared" if self.is_declared else "detected"
        count = f"{self.n_changed} of {self.n_tags} were" if self.n_changed else "none had to be"
        note = f"tags are {self.name} as {how}; {count} rewritten as IOB2"
        if self.n_broken:
            note += f"; breaks of {self.name}, read by the rules of conlleval: {self.n_broken} ({self.first_break})"
        return note


def _locate_by_number(sentence: int, word: int) -> str:
    return f"sentence {sentence + 1}, word {word + 1}"


def detect_scheme(
    sentences: Sequence[Sequence[str]], *, tolerance: float = 0.0, locate: Locate = _locate_by_number
) -> Scheme:
    """Find the one scheme that every sentence of a task obeys; one sentence alone often fits several.

    `tolerance` is the share of the tags other than O that may break it. Tags without any B are called IO; IOB1 in which
    no two spans of a type touch reads the same.
    """
    first: dict[str, tuple[int, int]] = {}
    for tag, where in _first_words(sentences, locate).items():
        first.setdefault(split_tag(tag)[0], where)
    letters = set(first) - {"O"}
    if not letters:
        raise TaskError("no tag marks a span, all of them are O: name the column of the span tags with `tags`.")
    if not any(letters <= set(allowed) for allowed in LETTERS.values()):
        words = [min(first[letter] for letter in letters & set(odd)) for odd in ("ES", "LU")]
        quoted = " and ".join(_quote(sentences, where, locate) for where in sorted(words))
        problem = f"{quoted} belong to different tagging schemes"
    else:
        broken = {scheme: _find_breaks(sentences, scheme) for scheme in _candidates(letters)}
        best = min(broken, key=lambda scheme: len(broken[scheme]))
        if len(broken[best]) <= tolerance * sum(tag != "O" for tags in sentences for tag in tags):
            return best
        quotes = {name: _quote(sentences, where[0], locate) for name, where in broken.items()}
        problem = ", and ".join(f"{quote} is no {name}" for name, quote in quotes.items())
    raise TaskError(
        f"{problem}: fix the tags, or name the scheme with `scheme` ({', '.join(SCHEMES)}) to have them read by the "
        "rules of conlleval."
    )


def _first_words(sentences: Sequence[Sequence[str]], locate: Locate) -> dict[str, tuple[int, int]]:
    """Map each tag to the sentence and word that have it first, in order; refuse one that is no span tag."""
    first: dict[str, tuple[int, int]] = {}
    for row, tags in enumerate(sentences):
        for word, tag in enumerate(tags):
            if tag not in first:
                first[tag] = (row, word)
    for tag, where in first.items():
        if not is_span_tag(tag):
            raise TaskError(
                f"{locate(*where)}: {tag!r} is not a span tag (O, or one of B I E S L U, a hyphen and a type): name "
                "the column of the span tags with `tags`, or set `metric: accuracy`."
            )
    return first


def _candidates(letters: set[str]) -> list[Scheme]:
    """List the schemes that tags with these letters may have; the letters of IO are letters of all schemes."""
    if letters == {"I"}:
        return ["IO"]
    fitting = [scheme for scheme in SCHEMES if letters <= set(LETTERS[scheme])]
    return [scheme for scheme in fitting if not letters <= set("BI") or LETTERS[scheme] == "BI"]


def _find_breaks(sentences: Sequence[Sequence[str]], scheme: str) -> list[tuple[int, int]]:
    """List the tags that differ from those the scheme has for the same spans."""
    breaks: list[tuple[int, int]] = []
    for row, tags in enumerate(sentences):
        correct = convert_tags(tags, scheme)
        if correct != list(tags):
            breaks += [(row, word) for word, tag in enumerate(tags) if tag != correct[word]]
    return breaks


def _quote(sentences: Sequence[Sequence[str]], where: tuple[int, int], locate: Locate) -> str:
    row, word = where
    before = f"after {sentences[row][word - 1]!r}" if word else "at the start of a sentence"
    return f"{locate(row, word)}: {sentences[row][word]!r} {before}"


def to_iob2(
    sentences: Sequence[Sequence[str]],
    *,
    scheme: str = "auto",
    tolerance: float = 0.0,
    locate: Locate = _locate_by_number,
) -> tuple[list[list[str]], SchemeRecord]:
    """Convert the span tags of a whole task to IOB2, and record their scheme.

    `auto` detects the scheme as `detect_scheme` does, and rejects mixtures; a name is trusted, and tags that break that
    scheme are read by the rules of conlleval.
    """
    if scheme == "auto":
        name = detect_scheme(sentences, tolerance=tolerance, locate=locate)
    elif scheme in SCHEMES:
        name = scheme
        for tag, where in _first_words(sentences, locate).items():
            if tag != "O" and split_tag(tag)[0] not in LETTERS[name]:
                quoted = _quote(sentences, where, locate)
                raise TaskError(f"{quoted} is not a tag of the declared scheme {name}: declare another, or `auto`.")
    else:
        raise unknown_name("tagging scheme", scheme, ["auto", *SCHEMES])
    converted = [convert_tags(tags) for tags in sentences]
    n_changed = sum(
        old != new for olds, news in zip(sentences, converted, strict=True) for old, new in zip(olds, news, strict=True)
    )
    breaks = _find_breaks(sentences, name)
    first_break = _quote(sentences, breaks[0], locate) if breaks else ""
    n_tags = sum(map(len, sentences))
    return converted, SchemeRecord(name, scheme != "auto", n_tags, n_changed, len(breaks), first_break)


@dataclass(frozen=True, eq=False)
class WordTask(Task):
    """Sentences with one tag a word, in up to three splits, checked when built."""

    kind: ClassVar[str] = "words"
    columns: ClassVar[Mapping[str, str]] = {
        "words": "string[]",
        "tags": "string[]",
        "document": "string",
        "space_after": "bool[]",
    }
    rows_noun: ClassVar[str] = "sentences"

    name: str
    splits: "datasets.DatasetDict"
    """Columns `words` and `tags` (lists of strings), `document` (string, empty where the source marks none) and
    `space_after` (list of booleans)."""
    metric: WordMetric
    """`span-f1`: tags are IOB2 and scored by spans. `accuracy`: any tags, scored word by word."""
    source: str
    scheme: SchemeRecord | None = None
    """The span tags before they became IOB2; None for a task scored by accuracy."""
    is_sample: bool = False
    notes: tuple[str, ...] = ()

    metrics: tuple[str, ...] = field(init=False)
    """The metric alone."""

    def __post_init__(self) -> None:
        require_name("metric", self.metric, METRICS)
        object.__setattr__(self, "metrics", (self.metric,))
        self.check_splits(list(self.columns))
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
        tags = {tag for rows in self.splits.values() for sentence in rows["tags"][:] for tag in sentence}
        if self.metric == "accuracy":
            return tuple(sorted(tags))
        return tuple(sorted(tags, key=lambda tag: (tag != "O", split_tag(tag)[::-1])))

    @property
    def has_documents(self) -> bool:
        """Whether every split marks at least two documents."""
        return all(len(set(rows["document"][:])) > 1 for rows in self.splits.values())

    def resampled(self, split: str) -> Literal["documents", "sentences"]:
        """Return the units of the intervals of a split: documents where it has ten or more, else sentences.

        An interval over a handful of documents says little about other documents.
        """
        return "documents" if len(set(self.splits[split]["document"][:])) >= FEWEST_DOCUMENTS else "sentences"

    def groups(self, split: str) -> tuple[str, ...] | None:
        """Name the document of each sentence of one split, where intervals are drawn from documents."""
        rows = self.rows(split)
        return tuple(map(str, rows["document"][:])) if self.resampled(split) == "documents" else None

    def cells(self, split: str) -> list[Sequence[Hashable]]:
        """List the words of each sentence; none where documents are drawn, which share headlines and dates."""
        return [] if self.resampled(split) == "documents" else [[tuple(words) for words in self.rows(split)["words"]]]

    def joined(self, split: str) -> list[JoinedText]:
        """Join the words of each sentence of one split to a text that knows the offsets of its words."""
        rows = self.rows(split)
        return [join_words(*row) for row in zip(rows["words"][:], rows["space_after"][:], strict=True)]

    def texts(self) -> list[JoinedText]:
        """List every text once, in the order first seen."""
        return list(dict.fromkeys(text for split in self.splits for text in self.joined(split)))

    def audit(self) -> tuple[str, ...]:
        """Count conflicting tags, sentences shared by splits, and tags that train lacks; see `audit_words`."""
        return audit_words({split: rows[:] for split, rows in self.splits.items()})

    def digest_head(self) -> object:
        """Return the metric."""
        return self.metric

    def describe_kind(self) -> dict[str, object]:
        """Return tags, scheme, units of intervals, and counts of words and sentences."""
        return {
            "tags": list(self.labels),
            "scheme": self.scheme.name if self.scheme else None,
            "has_documents": self.has_documents,
            "resampled": {split: self.resampled(split) for split in self.splits},
            "n_sentences": self.n_rows(),
            "n_words": {split: sum(map(len, rows["words"][:])) for split, rows in self.splits.items()},
        }


def usual_tags(task: WordTask, split: str) -> list[str]:
    """Give each word of a split its most frequent tag in train, and an unknown word the most frequent tag of all.

    The baseline of the CoNLL shared tasks, word by word. Of equally frequent tags the one that train shows first wins.
    """
    train = task.rows("train")
    seen: dict[str, Counter[str]] = {}
    overall: Counter[str] = Counter()
    for words, tags in zip(train["words"][:], train["tags"][:], strict=True):
        overall.update(tags)
        for word, tag in zip(words, tags, strict=True):
            seen.setdefault(word, Counter())[tag] += 1
    best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
    other = overall.most_common(1)[0][0]
    return [best.get(word, other) for words in task.rows(split)["words"][:] for word in words]


def audit_words(splits: Mapping[str, Columns]) -> tuple[str, ...]:
    """Count sentences that have several taggings or are also in an earlier split, and tags that train lacks.

    Sentences are compared word by word; splits come in the order train, validation, test.
    """
    notes: list[str] = []
    rows = {split: [tuple(words) for words in columns["words"]] for split, columns in splits.items()}
    tagged = {split: [tag for tags in columns["tags"] for tag in tags] for split, columns in splits.items()}
    train_tags = set(tagged.get("train", ()))
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
        new = [tag for tag in tagged[split] if train_tags and tag not in train_tags]
        if new:
            kinds = ", ".join(sorted(set(new))[:8])
            count = f"{len(new)} words have tags" if len(new) > 1 else "1 word has a tag"
            notes.append(f"{split}: {count} that train never shows ({kinds})")
    return tuple(notes)


def _differing_tags(rows: Columns) -> list[str]:
    """Write each sentence's tags of the first words on whose tags its copies in these rows disagree."""
    taggings: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    pairs = [(tuple(words), tuple(tags)) for words, tags in zip(rows["words"], rows["tags"], strict=True)]
    for words, tags in pairs:
        taggings.setdefault(words, []).append(tags)
    differing = {
        words: [index for index, tags in enumerate(zip(*copies, strict=True)) if len(set(tags)) > 1][:MOST_GOLDS]
        for words, copies in taggings.items()
    }
    return [" ".join(f"{words[index]}/{tags[index]}" for index in differing[words]) for words, tags in pairs]


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


def build_task(
    tables: Mapping[str, SentenceTable],
    *,
    name: str,
    source: str,
    metric: str = "auto",
    scheme: str = "auto",
    tolerance: float = 0.0,
    notes: tuple[str, ...] = (),
) -> WordTask:
    """Build a task from the sentences of its splits; span tags become IOB2.

    `auto` scores spans if every tag of every split is a span tag, accuracy if none but O is one, and detects the scheme
    over all splits at once; `tolerance` is the share of the tags other than O that may break it. `notes` come first.
    """
    require_name("metric", metric, ["auto", *METRICS])
    ordered = {split: tables[split] for split in order_splits(tables)}
    table_rows = [(table, row) for table in ordered.values() for row in range(len(table.sentences))]
    tags = [table.sentences[row].tags for table, row in table_rows]

    def locate(row: int, word: int) -> str:
        table, number = table_rows[row]
        return table.location(number, word)

    marks_spans = metric == "span-f1" or (metric == "auto" and _marks_spans(tags, locate))
    record = None
    if marks_spans:
        tags, record = to_iob2(tags, scheme=scheme, tolerance=tolerance, locate=locate)
    elif scheme != "auto":
        raise TaskError(f"`scheme` is {scheme!r}, but task {name!r} is scored by accuracy: leave `scheme` out.")
    rest = iter(tags)
    columns: dict[str, Columns] = {
        split: {
            "words": [sentence.words for sentence in table.sentences],
            "tags": [next(rest) for _ in table.sentences],
            "document": [sentence.document for sentence in table.sentences],
            "space_after": [sentence.space_after for sentence in table.sentences],
        }
        for split, table in ordered.items()
    }
    scheme_notes = (record.note(),) if record else ()
    table_notes = (note for table in ordered.values() for note in table.notes)
    return WordTask(
        name,
        WordTask.hold(columns),
        "span-f1" if marks_spans else "accuracy",
        source,
        record,
        notes=(*notes, *scheme_notes, *table_notes, *audit_words(columns)),
    )


def _marks_spans(sentences: Sequence[Sequence[str]], locate: Locate) -> bool:
    """Return whether all tags are span tags; a mixture is rejected, because a typo would change the metric."""
    counts = Counter(tag for tags in sentences for tag in tags)
    # O, or a positional tag such as `S----3MP2-`, does not look like a span
    spans = [tag for tag in counts if is_span_tag(tag) and split_tag(tag)[1][:1].isalnum()]
    others = {tag for tag in counts if not is_span_tag(tag)}
    if spans and others:
        row, word = next((i, k) for i, tags in enumerate(sentences) for k, tag in enumerate(tags) if tag in others)
        n_others = sum(counts[tag] for tag in others)
        raise TaskError(
            f"{locate(row, word)}: {sentences[row][word]!r} is not a span tag ({n_others} of {counts.total()} tags are "
            f"not, {len(others)} different), but {spans[0]!r} and others are: fix them to score spans (`metric: "
            "span-f1` takes nothing else), or set `metric: accuracy` to score every word."
        )
    return not others


def draw_splits(
    tables: Mapping[str, SentenceTable], rule: SplitRule, *, name: str
) -> tuple[dict[str, SentenceTable], tuple[str, ...]]:
    """Draw the splits that are missing, and say so in a note: all of train alone, documents whole, or validation.

    Sentences of the same words, without documents or with fewer than three, stay together (case and final punctuation
    aside).
    """
    if rule.split == "auto" and set(tables) == {"train", "test"}:
        return hold_out(tables, fraction=rule.validation_fraction, seed=rule.seed)
    if rule.split == "given" or set(tables) != {"train"}:
        return dict(tables), ()
    table = tables["train"]
    texts = list(map(_plain_words, table.sentences))
    keys = [sentence.document or text for sentence, text in zip(table.sentences, texts, strict=True)]
    is_cut = len(set(keys)) < len(SPLITS) <= len(set(texts))
    parts, note = draw_missing([None] * len(keys), texts if is_cut else keys, rule, task=name)
    note += f"; the file marks {len(set(keys))} of the three documents that could stay whole" * is_cut
    first = next(iter(parts))
    return {
        split: replace(
            table, sentences=[table.sentences[row] for row in rows], notes=table.notes if split == first else ()
        )
        for split, rows in parts.items()
    }, (note,)


def hold_out(
    tables: Mapping[str, SentenceTable], *, fraction: float, seed: int
) -> tuple[dict[str, SentenceTable], tuple[str, ...]]:
    """Take a validation split out of the training sentences where there is none, and say so in a note.

    Single sentences are drawn, whatever document they are in, those of the same words together; both parts keep the
    order of the file.
    """
    if "validation" in tables:
        return dict(tables), ()
    table = tables["train"]
    copies = list(map(_plain_words, table.sentences))
    marks = hold_out_any(len(table.sentences), fraction=fraction, seed=seed, copies=copies)
    train = list(compress(table.sentences, ~marks))
    held = list(compress(table.sentences, marks))
    note = f"validation: {len(held)} of the {len(marks)} training sentences, drawn with seed {seed}; train is the rest"
    parts = {"train": replace(table, sentences=train), "validation": replace(table, sentences=held, notes=())}
    return {**tables, **parts}, (note,)


def _plain_words(sentence: Sentence) -> str:
    return plain_form(" ".join(sentence.words))


def label_every_token(task: WordTask, tokenizer: "PreTrainedTokenizerBase", *, template: InputTemplate) -> WordTask:
    """Make a word of every token, as the code released with Look Both Ways and No Sink (ACL 2025) does for CoNLL-2003.

    The first piece of a word has its tag, the later ones the I of its type, or its own tag where tags are scored by
    accuracy. Digests and label sets change.
    """
    splits, n_words, n_pieces = {}, 0, 0
    for split, rows in task.splits.items():
        columns: dict[str, list[object]] = {name: [] for name in WordTask.columns}
        cuts = cut_at_tokens(task.joined(split), tokenizer, template=template)
        for row, starts in zip(rows, cuts, strict=True):
            words, tags, spaces = _cut(row["words"], row["tags"], row["space_after"], starts=starts, task=task)
            for name, value in zip(columns, (words, tags, row["document"], spaces), strict=True):
                columns[name].append(value)
            n_words, n_pieces = n_words + len(row["words"]), n_pieces + len(words)
        splits[split] = columns
    note = (
        f"every token is a word here ({n_words:,} words, {n_pieces:,} tokens): the first token of a word has its tag, "
        f"the later ones {'the I of its type' if task.metric == 'span-f1' else 'the same tag'}; scores are of tokens"
    )
    return replace(task, splits=WordTask.hold(splits), notes=(note, *task.notes))


def _cut(
    words: list[str], tags: list[str], space_after: list[bool], *, starts: list[list[int]], task: WordTask
) -> tuple[list[str], list[str], list[bool]]:
    pieces: list[str] = []
    labels: list[str] = []
    spaces: list[bool] = []
    for word, tag, has_space, word_starts in zip(words, tags, space_after, starts, strict=True):
        word_pieces = [word[first:last] for first, last in pairwise([*word_starts, len(word)])]
        later = f"I-{split_tag(tag)[1]}" if task.metric == "span-f1" and tag != "O" else tag
        pieces += word_pieces
        labels += [tag, *[later] * (len(word_pieces) - 1)]
        spaces += [*[False] * (len(word_pieces) - 1), has_space]
    return pieces, labels, spaces
