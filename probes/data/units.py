"""Units of the bootstrap: groups, and rows that share a text, which are no independent evidence."""

import unicodedata
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

MOST_OF_ONE = 0.2
"""Share of the rows that one unit may hold: five or fewer independent units have no interval."""


@dataclass(frozen=True)
class Units:
    """The units of the rows of one split."""

    names: tuple[str, ...]
    """The unit of each row: its group, or the first row of the unit."""
    n_shared: int
    """Rows that share a text with a row of another group."""
    linked: Literal["", "groups", "texts"] = ""
    """Units that replace those of shared texts where these link too many rows: `groups`, or `texts`, which joins rows
    by their most frequent text alone; else empty."""

    @property
    def n(self) -> int:
        """Number of units."""
        return len(set(self.names))

    def note(self, split: str, noun: str) -> str:
        """Describe the units in one line."""
        shared = f"{split}: {self.n_shared} of {len(self.names)} {noun} share a text with other {noun}"
        if self.linked:
            drawn = "groups" if self.linked == "groups" else f"sets of {noun} with the same most frequent text"
            return f"{shared}, which link most of them; intervals draw the {self.n} {drawn} whole and are too narrow"
        return f"{shared}; intervals draw the {self.n} sets of {noun} that share no text whole"


def plain_form(text: str) -> str:
    """Return a text without differences of case, blanks, Unicode form and final punctuation.

    Example:
        >>> plain_form("  A\u0301rbol  Verde!!") == plain_form("\u00e1rbol verde")
        True
    """
    words = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    end = len(words)
    while end and (words[end - 1].isspace() or unicodedata.category(words[end - 1])[0] == "P"):
        end -= 1
    return words[:end] or words


def find_units(columns: Sequence[Sequence[Hashable]], groups: Sequence[str] | None = None) -> Units | None:
    """Join the rows that share a text, in any column and over any number of rows, and those of a group.

    Args:
        columns: The texts of each row, column by column, compared exactly.
        groups: The group of each row.

    Returns:
        The units; None where no text is in two rows, of two groups if there are groups.

    Example:
        >>> find_units([["a", "b", "c"], ["x", "y", "x"]]).names
        ('0', '1', '0')
    """
    if not columns:
        return None
    n_rows, rows = len(columns[0]), np.arange(len(columns[0]))
    codes: dict[Hashable, int] = {}
    texts = np.array([[codes.setdefault(text, len(codes)) for text in column] for column in columns])
    group = rows if groups is None else np.unique(np.asarray(groups, str), return_inverse=True)[1]
    pairs = np.unique(np.stack([texts.ravel(), np.tile(group, len(columns))]), axis=1)
    is_shared = (np.bincount(pairs[0], minlength=len(codes)) > 1)[texts].any(axis=0)
    if not is_shared.any():
        return None
    edges = np.concatenate([texts, group[None] + len(codes)])
    units = _components(edges, n_nodes=len(codes) + int(group.max()) + 1)
    linked: Literal["", "groups", "texts"] = ""
    if np.bincount(units).max() > MOST_OF_ONE * n_rows:
        linked = "texts" if groups is None else "groups"
        times = np.bincount(texts.ravel(), minlength=len(codes))
        most_frequent = texts[times[texts].argmax(axis=0), rows]
        units = np.unique(most_frequent if groups is None else group, return_inverse=True)[1]
    first = np.unique(units, return_index=True)[1][units]
    names = tuple(str(row) for row in first.tolist()) if groups is None else tuple(groups[row] for row in first)
    return Units(names, int(is_shared.sum()), linked)


def _components(nodes: Int[np.ndarray, "K N"], *, n_nodes: int) -> Int[np.ndarray, " N"]:
    """Number the connected component of each row, whose nodes are linked."""
    ends = np.stack([np.tile(nodes[0], len(nodes) - 1), nodes[1:].ravel()])
    links = coo_array((np.ones(ends.shape[1], np.int8), ends), shape=(n_nodes, n_nodes))
    return np.asarray(connected_components(links, directed=False)[1][nodes[0]])
