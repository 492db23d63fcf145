"""Predictions of a run, row by row: one CSV format for every kind of task, and column files for conlleval."""

import csv
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from extract.files import write_file
from probes.heads.result import HeadResult
from probes.metrics.spans import NO_PREDICTION
from probes.report.document import KindReport
from probes.tasks.base import Task
from probes.tasks.words.task import WordTask

WITHOUT = {"span-f1": ".", "accuracy": "-"}
"""Written into column files for a word without a prediction. To conlleval a full stop is outside of every span, and not
the tag O."""


def write_predictions(path: Path, task: Task, heads: Mapping[str, HeadResult], report: KindReport) -> None:
    """Write every head's prediction for every row.

    The columns of the CSV file are `split,row`, the inputs, `unit` where intervals draw whole groups or documents,
    `gold`, then one per head: a number in the units of the gold with four decimals, or a name; empty where there is
    none. Words have a line each: `row` is the sentence, and the inputs are the word's position in it, from 0, and the
    word.
    """
    has_units = any(report.units(task, split) is not None for split in task.splits)
    file = StringIO(newline="")
    writer = csv.writer(file)
    for number, split in enumerate(task.splits):
        predicted = {name: predicted_texts(result, split) for name, result in heads.items()}
        inputs = report.inputs(task, split)
        units = {"unit": report.units(task, split) or inputs["row"]} if has_units else {}
        columns = {**inputs, **units, "gold": report.gold(task, split), **predicted}
        if number == 0:
            writer.writerow(["split", *columns])
        writer.writerows([split, *row] for row in zip(*columns.values(), strict=True))
    write_file(path, file.getvalue())


def predicted_texts(result: HeadResult, split: str, *, without: str = "") -> list[str]:
    """Write the predictions of a head on a split, as names where it predicts names, and `without` for none."""
    found = result.predictions[split].tolist()
    if split not in result.names:
        return [f"{value:.4f}" for value in found]
    names = result.names[split]
    return [without if place == NO_PREDICTION else names[place] for place in found]


def write_conll(folder: Path, task: WordTask, heads: Mapping[str, HeadResult]) -> None:
    """Write `predictions/SPLIT.conll`, separated by tabs: word, gold tag, and the tag that each head predicts.

    A blank line ends a sentence, a line `-DOCSTART-` begins a document. The conlleval script, with a tab as its
    separator, scores the last column against the one before it, so with one head against gold.
    """
    (folder / "predictions").mkdir(exist_ok=True)
    for split, rows in task.splits.items():
        columns = [predicted_texts(result, split, without=WITHOUT[task.metric]) for result in heads.values()]
        lines, before = zip(*columns, strict=True), ""
        text: list[str] = []
        for words, tags, document in zip(rows["words"], rows["tags"], rows["document"], strict=True):
            if document != before:
                text.append("\t".join(["-DOCSTART-", "O", *("O" for _ in columns)]) + "\n\n")
                before = document
            text += ["\t".join([word, tag, *next(lines)]) + "\n" for word, tag in zip(words, tags, strict=True)]
            text.append("\n")
        write_file(folder / "predictions" / f"{split}.conll", "".join(text))
