"""Duplicates, conflicting gold and overlap between splits, counted for the reader; nothing is removed."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from probes.tasks.base import Task

Key = TypeVar("Key", bound=Hashable)
MOST_LISTED, MOST_GOLDS, MOST_LETTERS = 10, 5, 60
"""Of what a note lists: texts, gold of one, and letters of one."""


def text_keys(rows: Any, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Name each row by the exact texts of some columns, so that (a, b) and (b, a) are the same pair."""
    return [tuple(sorted(texts)) for texts in zip(*(rows[column] for column in columns), strict=True)]


def conflicting(keys: Iterable[Key], gold: Iterable[object]) -> list[Key]:
    """List the keys that have more than one gold, each once, in the order first seen."""
    golds: dict[Key, set[object]] = {}
    for key, value in zip(keys, gold, strict=True):
        golds.setdefault(key, set()).add(value)
    return [key for key, values in golds.items() if len(values) > 1]


def conflict_notes(keys: Sequence[Key], gold: Sequence[object], noun: str, wanted: str) -> tuple[int, str]:
    """Count the texts that have more than one gold, and list ten of them with theirs.

    Args:
        keys: The text, or texts, of each row.
        gold: What each row has as gold, as a reader knows it.
        noun: What a key is, in the singular.
        wanted: What differs, such as `labels`.
    """
    golds: dict[Key, dict[object, None]] = {}
    for key, value in zip(keys, gold, strict=True):
        golds.setdefault(key, {})[value] = None
    several = [(key, list(values)) for key, values in golds.items() if len(values) > 1]
    listed = "; ".join(
        f"{_quote(key)}: {', '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values[:MOST_GOLDS])}"
        for key, values in several[:MOST_LISTED]
    )
    more = ", ..." * (len(several) > MOST_LISTED)
    return len(several), f"{len(several)} {noun}s occur more than once with different {wanted} ({listed}{more})"


def _quote(key: object) -> str:
    texts = key if isinstance(key, tuple) else (key,)
    return " / ".join(repr(text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}...") for text in texts)


def overlaps(keys: Mapping[str, Sequence[Hashable]]) -> Iterator[tuple[str, str, int]]:
    """Count the rows of each split whose key is also in an earlier split: yields split, earlier split, count."""
    for other, split in combinations(keys, 2):
        known = set(keys[other])
        yield split, other, sum(key in known for key in keys[split])


def remarks(counts: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    """Keep the remarks whose count is not zero."""
    return tuple(remark for count, remark in counts if count)


def why_optimistic(task: "Task") -> str:
    """Say in one clause whether a score on the reported split is optimistic, because train has rows of its groups."""
    reported = "test" if "test" in task.splits else "validation"
    groups = task.groups(reported) if reported in task.splits else None
    if groups is None:
        return ""
    torn = set(task.groups("train") or ()) & set(groups)
    n_rows = sum(group in torn for group in groups)
    return f"{n_rows} of {len(groups)} {reported} rows are of a group that also has rows in train" if torn else ""
