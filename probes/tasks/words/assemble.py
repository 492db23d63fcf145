"""Sentence tables to a checked task: metric chosen, scheme converted, what a reader should know written down."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from extract.errors import TaskError, unknown_name
from probes.metrics.tags import is_span_tag, split_tag
from probes.readers.sentences import Sentence, SentenceTable
from probes.readers.splits import order_splits
from probes.tasks.splitting import SplitRule, hold_out_any, place_rows
from probes.tasks.units import plain_form
from probes.tasks.words.schemes import Place, to_iob2
from probes.tasks.words.task import METRICS, WordMetric, WordTask, audit_words, build_word_splits


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

    Args:
        tables: Split (train, validation, test) to its sentences.
        name: What reports call the task.
        source: One line: where the sentences came from.
        metric: `span-f1`, `accuracy`, or `auto`: spans if every tag of every split is a span tag, accuracy if none but
            O is one.
        scheme: Tagging scheme of a span task; `auto` detects it over all splits at once.
        tolerance: Share of the tags other than O that may break the detected scheme.
        notes: Remarks to put before those made here.

    Raises:
        TaskError: Schemes are mixed, a tag of a span task is not a span tag, `auto` finds span tags among others, a
            scheme is declared for a task scored by accuracy, or the task cannot be used (see `WordTask`).
        UnknownNameError: The metric or the scheme is unknown.
    """
    if metric not in ("auto", *METRICS):
        raise unknown_name("metric", metric, ["auto", *METRICS])
    ordered = {split: tables[split] for split in order_splits(tables)}
    places = [(table, row) for table in ordered.values() for row in range(len(table.sentences))]
    tags = [table.sentences[row].tags for table, row in places]

    def place(row: int, word: int) -> str:
        table, number = places[row]
        return table.place(number, word)

    chosen: WordMetric = "accuracy"
    if metric == "span-f1" or (metric == "auto" and _marks_spans(tags, place)):
        chosen = "span-f1"
    record = None
    if chosen == "span-f1":
        tags, record = to_iob2(tags, scheme=scheme, tolerance=tolerance, place=place)
    elif scheme != "auto":
        raise TaskError(f"`scheme` is {scheme!r}, but task {name!r} is scored by accuracy: leave `scheme` out.")
    columns: dict[str, dict[str, list[Any]]] = {}
    rest = iter(tags)
    for split, table in ordered.items():
        columns[split] = {
            "words": [sentence.words for sentence in table.sentences],
            "tags": [next(rest) for _ in table.sentences],
            "document": [sentence.document for sentence in table.sentences],
            "space_after": [sentence.space_after for sentence in table.sentences],
        }
    said = (
        *notes,
        *((record.note(),) if record else ()),
        *(note for table in ordered.values() for note in table.notes),
    )
    splits = build_word_splits(columns)
    return WordTask(name, splits, chosen, source, record, notes=(*said, *audit_words(columns)))


def _marks_spans(sentences: Sequence[Sequence[str]], place: Place) -> bool:
    """Return whether all tags are span tags; a mixture is rejected, because a slip would change the metric."""
    counts = Counter(tag for tags in sentences for tag in tags)
    spans = [tag for tag in counts if _looks_like_span(tag)]
    others = {tag for tag in counts if not is_span_tag(tag)}
    if spans and others:
        row, word = next((i, k) for i, tags in enumerate(sentences) for k, tag in enumerate(tags) if tag in others)
        n_others = sum(counts[tag] for tag in others)
        raise TaskError(
            f"{place(row, word)}: {sentences[row][word]!r} is not a span tag ({n_others} of {counts.total()} tags are "
            f"not, {len(others)} different), but {spans[0]!r} and others are: fix them to score spans (`metric: "
            "span-f1` takes nothing else), or set `metric: accuracy` to score every word."
        )
    return not others


def _looks_like_span(tag: str) -> bool:
    """Tell `B-PER` from O, and from positional tags such as `S----3MP2-`."""
    kind = split_tag(tag)[1]
    return is_span_tag(tag) and kind[:1].isalnum()


def draw_splits(
    tables: Mapping[str, SentenceTable], rule: SplitRule, *, name: str
) -> tuple[dict[str, SentenceTable], tuple[str, ...]]:
    """Draw the splits that are missing, and say so in a note: all of train alone, documents whole, or validation.

    Sentences of the same words, without documents, stay together (case and final punctuation aside).
    """
    if rule.split == "auto" and set(tables) == {"train", "test"}:
        return hold_out(tables, fraction=rule.validation_fraction, seed=rule.seed)
    if rule.split == "given" or set(tables) != {"train"}:
        return dict(tables), ()
    table = tables["train"]
    keys = [sentence.document or _plain_words(sentence) for sentence in table.sentences]
    parts, note = place_rows([None] * len(keys), keys, rule, task=name)
    drawn = {split: [table.sentences[row] for row in rows] for split, rows in parts.items()}
    first = next(iter(drawn))
    return {
        split: replace(table, sentences=rows, notes=table.notes if split == first else ())
        for split, rows in drawn.items()
    }, (note,)


def hold_out(
    tables: Mapping[str, SentenceTable], *, fraction: float, seed: int
) -> tuple[dict[str, SentenceTable], tuple[str, ...]]:
    """Take a validation split out of the training sentences, and say so in a note.

    Single sentences are drawn, whatever document they are in, those of the same words together; both parts keep the
    order of the file.
    """
    table = tables["train"]
    copies = list(map(_plain_words, table.sentences))
    marks = hold_out_any(len(table.sentences), fraction=fraction, seed=seed, copies=copies)
    train, held = (
        [each for each, mark in zip(table.sentences, marks, strict=True) if mark == wanted] for wanted in (False, True)
    )
    note = f"validation: {len(held)} of the {len(marks)} training sentences, drawn with seed {seed}; train is the rest"
    parts = {"train": replace(table, sentences=train), "validation": replace(table, sentences=held, notes=())}
    return {**tables, **parts}, (note,)


def _plain_words(sentence: Sentence) -> str:
    return plain_form(" ".join(sentence.words))
