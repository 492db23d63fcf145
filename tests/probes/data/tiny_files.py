"""What the tests of published tasks share."""

from pathlib import Path
from typing import Any

import datasets

from probes.data.class_task import ClassTask
from probes.data.table_files import quiet_datasets


def counts(task: ClassTask) -> dict[str, int]:
    return {split: len(rows) for split, rows in task.splits.items()}


def save_parquet(path: Path, rows: list[dict[str, Any]], features: datasets.Features) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with quiet_datasets():
        datasets.Dataset.from_list(rows, features=features).to_parquet(path)
