"""Duplicates, conflicting labels, overlap and thin classes, counted for the reader; nothing is removed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probes.tasks.splitting import MIN_CLASS_ROWS

if TYPE_CHECKING:
    from probes.tasks.classes.task import ClassTask
    from probes.tasks.numbers.task import NumberTask

Columns = Mapping[str, Sequence[Any]]
"""`label`, `text` (or `text1` and `text2`) and perhaps `group`, one entry per row."""


def text_keys(rows: Columns) -> list[tuple[str, ...]]:
    """Name what each row is about, so that (a, b) and (b, a) are the same pair.

    Args:
        rows: Columns `text`, or `text1` and `text2`.

    Returns:
        One tuple of exact texts per row.

    Example:
        >>> text_keys({"text1": ["b"], "text2": ["a"], "label": [0]})
        [('a', 'b')]
    """
    if "text" in rows:
        return [(text,) for text in rows["text"]]
    return [(min(a, b), max(a, b)) for a, b in zip(rows["text1"], rows["text2"], strict=True)]


def class_notes(splits: Mapping[str, Columns], class_names: Sequence[str]) -> tuple[str, ...]:
    """Count duplicates, conflicting labels, overlap between splits and thin classes.

    Args:
        splits: Split name to its rows, in the order train, validation, test.
        class_names: Name of each class, by its number.

    Returns:
        Only the remarks whose count is not zero; texts are compared exactly.

    Example:
        >>> rows = {"text": ["a", "a"], "label": [0, 1]}
        >>> class_notes({"test": rows}, ["no", "yes"])[1]
        'test: 1 texts occur more than once with different labels'
    """
    # one read of the columns: a datasets column decodes again on every access
    tables = {split: {name: list(rows[name]) for name in rows} for split, rows in splits.items()}
    counts = [note for split, rows in tables.items() for note in _repeats(split, rows)]
    names = list(tables)
    for index, other in enumerate(names):
        for split in names[index + 1 :]:
            counts += _overlap(split, tables[split], other, tables[other])
    if "train" in tables:
        counts += _thin_classes(tables, class_names)
    return tuple(note for count, note in counts if count)


def why_optimistic(task: "ClassTask | NumberTask") -> str:
    """Say whether a score on the reported split is optimistic because splits share groups.

    Args:
        task: The task, cut as its protocol says.

    Returns:
        One clause, or nothing where no group (abstract, question) has rows both in train and in the reported split.
    """
    reported = "test" if "test" in task.splits else "validation"
    if reported not in task.splits or task.groups(reported) is None:
        return ""
    torn = set(task.groups("train") or ()) & set(task.groups(reported) or ())
    if not torn:
        return ""
    n_rows = sum(group in torn for group in task.groups(reported) or ())
    return f"{n_rows} of {len(task.splits[reported])} {reported} rows are of a group that also has rows in train"


def _repeats(split: str, rows: Columns) -> list[tuple[int, str]]:
    labels: dict[tuple[str, ...], set[int]] = {}
    for key, label in zip(text_keys(rows), rows["label"], strict=True):
        labels.setdefault(key, set()).add(label)
    n_rows = len(rows["label"])
    n_conflicts = sum(len(seen) > 1 for seen in labels.values())
    what = "texts" if "text" in rows else "pairs"
    return [
        (n_rows - len(labels), f"{split}: {n_rows - len(labels)} of {n_rows} rows repeat the {what} of an earlier row"),
        (n_conflicts, f"{split}: {n_conflicts} {what} occur more than once with different labels"),
    ]


def _overlap(split: str, rows: Columns, other: str, other_rows: Columns) -> list[tuple[int, str]]:
    known = set(text_keys(other_rows))
    n_texts = sum(key in known for key in text_keys(rows))
    notes = [(n_texts, f"{split}: the {'text' if 'text' in rows else 'pair'} of {n_texts} of {len(rows['label'])} "
              f"rows is also in {other}")]  # fmt: skip
    if "group" in rows and "group" in other_rows:
        shared = set(rows["group"]) & set(other_rows["group"])
        notes.append((len(shared), f"{split}: {len(shared)} groups also have rows in {other}"))
    return notes


def _thin_classes(tables: Mapping[str, Columns], class_names: Sequence[str]) -> list[tuple[int, str]]:
    in_train = Counter(tables["train"]["label"])
    thin = [name for label, name in enumerate(class_names) if 0 < in_train[label] < MIN_CLASS_ROWS]
    notes = [(len(thin), f"train: {len(thin)} classes have fewer than {MIN_CLASS_ROWS} rows ({_list(thin)})")]
    for split, rows in tables.items():
        unseen = Counter(label for label in rows["label"] if label not in in_train)
        names = _list([class_names[label] for label in sorted(unseen)])
        n_rows = sum(unseen.values())
        notes.append((n_rows, f"{split}: {n_rows} rows are of classes that train lacks ({names}), and cannot be right"))
        absent = [class_names[label] for label in sorted(set(in_train) - set(rows["label"]))]
        notes.append((len(absent), f"{split}: {len(absent)} classes have no row ({_list(absent)})"))
    return notes


def _list(names: Sequence[str]) -> str:
    shown = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:5]]
    return ", ".join([*shown, *(["..."] if len(names) > 5 else [])])
