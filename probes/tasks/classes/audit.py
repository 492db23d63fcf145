"""Duplicates, conflicting labels, overlap and thin classes, counted for the reader; nothing is removed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from probes.tasks.audit import conflict_notes, overlaps, remarks, text_keys
from probes.tasks.splitting import MIN_CLASS_ROWS

Columns = Mapping[str, Sequence[Any]]
"""`label`, `text` (or `text1` and `text2`) and perhaps `group`, one entry per row."""


def class_notes(splits: Mapping[str, Columns], class_names: Sequence[str]) -> tuple[str, ...]:
    """Count duplicates, conflicting labels, overlap between splits and thin classes; keep only what there is.

    Texts are compared exactly, pairs in either order; splits come in the order train, validation, test.
    """
    # one read of the columns: a datasets column decodes again on every access
    tables = {split: {name: list(rows[name]) for name in rows} for split, rows in splits.items()}
    is_text = all("text" in rows for rows in tables.values())
    what, names = ("text", ("text",)) if is_text else ("pair", ("text1", "text2"))
    keys = {split: text_keys(rows, names) for split, rows in tables.items()}
    counts = []
    for split, found in keys.items():
        n_repeats = len(found) - len(set(found))
        labels = [class_names[label] for label in tables[split]["label"]]
        n_conflicts, conflicts = conflict_notes(found, labels, what, "labels")
        counts += [
            (n_repeats, f"{split}: {n_repeats} of {len(found)} rows repeat the {what}s of an earlier row"),
            (n_conflicts, f"{split}: {conflicts}"),
        ]
    for split, other, n in overlaps(keys):
        counts.append((n, f"{split}: the {what} of {n} of {len(keys[split])} rows is also in {other}"))
        shared = set(tables[split].get("group", ())) & set(tables[other].get("group", ()))
        counts.append((len(shared), f"{split}: {len(shared)} groups also have rows in {other}"))
    return remarks([*counts, *_thin_classes(tables, class_names)])


def _thin_classes(tables: Mapping[str, Columns], class_names: Sequence[str]) -> list[tuple[int, str]]:
    if "train" not in tables:
        return []
    in_train = Counter(tables["train"]["label"])
    thin = [name for label, name in enumerate(class_names) if 0 < in_train[label] < MIN_CLASS_ROWS]
    notes = [(len(thin), f"train: {len(thin)} classes have fewer than {MIN_CLASS_ROWS} rows ({_list(thin)})")]
    for split, rows in tables.items():
        unseen = Counter(label for label in rows["label"] if label not in in_train)
        names = _list([f"{class_names[label]}: {n}" for label, n in sorted(unseen.items())])
        n_rows = sum(unseen.values())
        notes.append((n_rows, f"{split}: {n_rows} rows are of classes that train lacks ({names}), and cannot be right"))
        absent = [class_names[label] for label in sorted(set(in_train) - set(rows["label"]))]
        notes.append((len(absent), f"{split}: {len(absent)} classes have no row ({_list(absent)})"))
    return notes


def _list(names: Sequence[str]) -> str:
    shown = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:5]]
    return ", ".join([*shown, *(["..."] if len(names) > 5 else [])])
