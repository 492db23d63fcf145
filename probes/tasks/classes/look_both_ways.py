"""The one split of the code released with Look Both Ways, so that its numbers can be held against ours."""

from dataclasses import replace
from math import ceil

import numpy as np

from extract.errors import TaskError
from probes.tasks.classes.task import ClassTask, build_class_splits
from probes.tasks.splitting import MIN_CLASS_ROWS, SPLIT_NOTE, rare_classes

SEED = 42
TEST_SHARE = 0.2


def look_both_ways_split(task: ClassTask, *, seed: int = SEED) -> ClassTask:
    """Split a task as the released code does, without regard to its official splits and its groups.

    All rows in source order (the first `look_both_ways_rows` of them), classes of fewer than 3 rows dropped, 80/20
    stratified by scikit-learn; rows stay in the order drawn, on which SMOTE depends. There is no validation split: a
    protocol that chooses on the test rows is optimistic, and so is one that tears the rows of a group apart; both are
    marked.
    Source: `evaluations/utils.py` of the released code.

    Rejects a task of which fewer than two classes are left, or whose test part has fewer rows than there are classes.
    """
    from datasets import concatenate_datasets
    from sklearn.model_selection import train_test_split

    rows = concatenate_datasets(list(task.splits.values()))
    pool = rows.select(np.argsort(rows["row"], kind="stable")[: task.look_both_ways_rows])
    labels = np.asarray(pool["label"], dtype=np.int64)
    rare = rare_classes(labels.tolist())
    kept = np.flatnonzero(~np.isin(labels, list(rare)))
    present = np.unique(labels[kept]).tolist()
    if len(present) < 2 or ceil(TEST_SHARE * len(kept)) < len(present):
        raise TaskError(
            f"task {task.name!r} has {len(kept)} rows in {len(present)} classes of {MIN_CLASS_ROWS} rows or more, but "
            "the 80/20 split of Look Both Ways needs two classes and a test row for each: use another protocol."
        )
    train, test = train_test_split(kept, test_size=TEST_SHARE, random_state=seed, stratify=labels[kept])
    columns = {
        split: {**pool.select(drawn)[:], "label": np.searchsorted(present, labels[drawn]).tolist()}
        for split, drawn in {"train": train, "test": test}.items()
    }
    n_dropped = len(labels) - len(kept)
    dropped = f"; {len(rare)} classes of fewer than {MIN_CLASS_ROWS} rows ({n_dropped} rows) dropped" if rare else ""
    note = f"split as by the code released with Look Both Ways does: {len(labels)} rows, 80/20, seed {seed}{dropped}"
    remarks = tuple(remark for remark in task.notes if not remark.startswith(SPLIT_NOTE))
    class_names = tuple(task.class_names[label] for label in present)
    return replace(task, notes=remarks).replace_splits(build_class_splits(columns), note=note, class_names=class_names)
