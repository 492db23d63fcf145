"""Overlap between the splits of a word task, counted for the reader; nothing is removed."""

from collections.abc import Mapping
from typing import Any


def audit_words(splits: Mapping[str, Any]) -> tuple[str, ...]:
    """Count sentences shared by splits, and tags that train lacks.

    Args:
        splits: Split name to its rows (a `datasets.Dataset` or a dict of lists) with columns `words` and `tags`, in the
            order train, validation, test.

    Returns:
        One line each for the sentences that are also in an earlier split (compared word by word), and for the tags
        that train never shows; only where there are some.

    Example:
        >>> train = {"words": [["Hello"], ["Oslo"]], "tags": [["O"], ["B-LOC"]]}
        >>> audit_words({"train": train, "test": {"words": [["Hello"]], "tags": [["O"]]}})
        ('test: 1 of 1 sentences are also in train',)
    """
    notes: list[str] = []
    rows = {split: [tuple(words) for words in columns["words"]] for split, columns in splits.items()}
    tagged = {split: [tag for tags in columns["tags"] for tag in tags] for split, columns in splits.items()}
    known = set(tagged.get("train", ()))
    names = list(rows)
    for index, split in enumerate(names):
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
