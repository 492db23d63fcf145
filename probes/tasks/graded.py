"""What tasks with numbers as gold share: enough rows, and different gold, for a correlation."""

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np

from extract.errors import TaskError
from probes.readers.checked_rows import CheckedRow, columns_of
from probes.tasks.base import Task, unique_texts
from probes.tasks.splitting import SplitRule, place_rows
from probes.tasks.units import find_units, plain_form

MIN_SPLIT_ROWS = 8
"""The fewest rows of a split; a correlation over fewer means nothing."""


def split_graded(
    rows: Sequence[CheckedRow], rule: SplitRule, *, columns: Sequence[str], name: str
) -> tuple[dict[str, dict[str, list[Any]]], str]:
    """Gather the rows of each split column by column, drawing splits that are missing; see `place_rows`.

    Rows of one group stay together, and rows that share a text, over any number of rows (case, blanks and final
    punctuation aside). Where that links more than a fifth of all rows, only groups stay together, or where there are
    none the rows with the same texts, in any order.
    """
    texts = [[plain_form(row.values[column]) for row in rows] for column in columns]
    groups = [row.values["group"] for row in rows] if rows and "group" in rows[0].values else None
    units = find_units(texts, groups)
    keys: Sequence[Hashable] = [
        tuple(sorted(of_row)) if groups is None else groups[k] for k, of_row in enumerate(zip(*texts, strict=True))
    ]
    if units is not None and not units.linked:
        keys = units.names
    parts, note = place_rows([row.split for row in rows], keys, rule, task=name, fewest=MIN_SPLIT_ROWS)
    return {split: columns_of([rows[place] for place in places]) for split, places in parts.items()}, note


class GradedTask(Task):
    """A task whose gold is a number, scored by correlations of prediction and gold over all rows of a split."""

    text_columns: ClassVar[tuple[str, ...]]
    gold_column: ClassVar[str]
    metrics: tuple[str, ...] = ("pearson", "spearman")

    def __post_init__(self) -> None:
        """Refuse splits in which a correlation with the gold means nothing."""
        self.check_splits((*self.text_columns, self.gold_column))
        for split, rows in self.splits.items():
            if len(rows) < MIN_SPLIT_ROWS:
                raise TaskError(
                    f"split {split!r} of task {self.name!r} has {len(rows)} rows, but a correlation needs at least "
                    f"{MIN_SPLIT_ROWS}: add rows or leave the split out."
                )
            gold = set(rows[self.gold_column])
            if not np.isfinite(list(gold)).all():
                raise TaskError(
                    f"split {split!r} of task {self.name!r} holds a number that is not finite: leave it out."
                )
            if len(gold) == 1:
                raise TaskError(
                    f"split {split!r} of task {self.name!r} has the same gold {gold.pop():g} in all {len(rows)} rows, "
                    "so a correlation is undefined: give rows with different gold or leave the split out."
                )

    def texts(self) -> list[str]:
        """List every text once, in the order first seen."""
        return unique_texts(self.splits, self.text_columns)

    def cells(self, split: str) -> list[Sequence[Hashable]]:
        """List the texts of each row, column by column."""
        rows = self.rows(split)
        return [list(rows[column]) for column in self.text_columns]

    def check_draw(self, n_per_split: int) -> None:
        """Reject fewer than 8 rows per split."""
        if n_per_split < MIN_SPLIT_ROWS:
            raise TaskError(
                f"n_per_split is {n_per_split}, but a split needs at least {MIN_SPLIT_ROWS} rows for a correlation."
            )
