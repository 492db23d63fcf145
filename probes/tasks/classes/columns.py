"""The columns of a classification task, held in memory as `datasets` wants them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probes.tasks.base import order_splits

if TYPE_CHECKING:
    import datasets

TEXT = ("text",)
PAIR = ("text1", "text2")


def text_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Tell tasks over texts from tasks over pairs.

    Args:
        columns: Names of all columns.

    Returns:
        `("text",)`, or `("text1", "text2")` when there is a `text1`.

    Example:
        >>> text_columns(["text1", "text2", "label"])
        ('text1', 'text2')
    """
    return PAIR if PAIR[0] in columns else TEXT


def build_class_splits(columns: Mapping[str, Mapping[str, Sequence[Any]]]) -> "datasets.DatasetDict":
    """Hold checked columns in memory as the `DatasetDict` a `ClassTask` wants.

    Args:
        columns: Split to its columns `text` (or `text1` and `text2`), `label`, `row` and perhaps `group`.

    Returns:
        The splits in the order train, validation, test; nothing is written to disk.

    Example:
        >>> build_class_splits({"train": {"text": ["a"], "label": [0], "row": [0]}})["train"]["text"][0]
        'a'
    """
    from datasets import Dataset, DatasetDict, Features, Value

    splits = DatasetDict()
    for split in order_splits(columns):
        kinds = {name: Value("int64" if name in ("label", "row") else "string") for name in columns[split]}
        values = {name: list(column) for name, column in columns[split].items()}
        splits[split] = Dataset.from_dict(values, features=Features(kinds))
    return splits
