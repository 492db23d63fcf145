"""Predictions of a run, row by row: one CSV format for every kind of task, and column files for conlleval."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from extract.errors import HeadError, first_line
from extract.files import read_file, write_file
from probes.data.task import Task
from probes.heads.result import HeadResult
from probes.metrics.prediction_metrics import NO_PREDICTION
from probes.report.document import KindReport, SplitRows, predicted_texts
from probes.report.safe_csv import read_csv, write_csv
from probes.report.scores import RunScores

if TYPE_CHECKING:
    from probes.data.word_task import WordTask

PREDICTIONS = "predictions.csv"
SCORED = "predictions_scored.csv"
"""Predictions of every seed or draw as they are scored: before they are averaged, calibrated and clipped."""
WITHOUT = {"span-f1": ".", "accuracy": "-"}
"""Written into column files for a word without a prediction. To conlleval a full stop is outside of every span, and not
the tag O."""


def write_predictions(path: Path, task: Task, heads: Mapping[str, HeadResult], report: KindReport) -> None:
    """Write every head's prediction for every row.

    The columns of the CSV file are `split,row`, the inputs, `unit` where intervals draw whole groups or documents,
    `gold`, then one per head: a number in the units of the gold with four decimals, or a name; empty where there is
    none. Words have a line each: `row` is the sentence, and the inputs are the word's position in it, from 0, and the
    word. No text starts a formula of a spreadsheet (`safe_csv`).
    """
    has_units = any(report.units(task, split) is not None for split in task.splits)
    rows: list[Sequence[object]] = []
    for number, split in enumerate(task.splits):
        predicted = {name: predicted_texts(result, split) for name, result in heads.items()}
        inputs = report.inputs(task, split)
        units = {"unit": report.units(task, split) or inputs["row"]} if has_units else {}
        columns = {**inputs, **units, "gold": report.gold(task, split), **predicted}
        if number == 0:
            rows.append(["split", *columns])
        rows += [[split, *row] for row in zip(*columns.values(), strict=True)]
    write_file(path, write_csv(rows))


def write_scored(path: Path, heads: Mapping[str, HeadResult]) -> None:
    """Write the predictions that scores are of, a column per seed or draw; nothing where no head has others."""
    results = [result for result in heads.values() if result.scored]
    if not results:
        return
    n_fits = {result.name: len(next(iter(result.scored.values()))) for result in results}
    rows: list[Sequence[object]] = [
        ["split", "row", *(f"{name}:{k + 1}" for name, n in n_fits.items() for k in range(n))]
    ]
    for split in results[0].scored:
        columns = [
            [result.names[split][code] for code in codes] if split in result.names else [f"{v:.9g}" for v in codes]
            for result in results
            for codes in result.scored[split].tolist()
        ]
        rows += [[split, row, *cells] for row, cells in enumerate(zip(*columns, strict=True))]
    write_file(path, write_csv(rows))


def read_scored(folder: Path, split: str, head: str) -> list[list[str]]:
    """Read the predictions of every seed or draw of a head; none where the run has only those of `PREDICTIONS`."""
    path = folder / SCORED
    if not path.exists():
        return []
    try:
        rows = read_csv(read_file(path).decode("utf-8"))
        columns = [k for k, name in enumerate(rows[0]) if name.rpartition(":")[0] == head]
        return [[row[k] for row in rows[1:] if row[0] == split] for k in columns]
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise HeadError(f"{str(path)!r} cannot be read ({first_line(error)}); run its config again.") from error


def read_predictions(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Read the predictions of a run folder back: split to columns; `unit` is the row where the file has none."""
    path, tables = folder / PREDICTIONS, dict[str, dict[str, list[str]]]()
    try:
        rows = iter(read_csv(read_file(path).decode("utf-8")))
        names = next(rows)
        for split, part in groupby(rows, key=lambda row: row[names.index("split")]):
            columns = dict(zip(names, map(list, zip(*part, strict=True)), strict=True))
            tables[split] = {"unit": columns["row"], **columns}
            columns["gold"]
    except (OSError, ValueError, KeyError, IndexError, StopIteration, csv.Error) as error:
        raise HeadError(f"{str(path)!r} cannot be read ({first_line(error)}); run its config again.") from error
    return tables


def with_predictions(
    scores: RunScores, tables: Mapping[str, Mapping[str, Sequence[str]]]
) -> tuple[RunScores, dict[str, SplitRows]]:
    """Put predictions that were read back into the scores of a run, and return the rows as well."""
    task = scores.header.task
    names = task.get("class_names") or task.get("tags") or ()
    texts = (text for table in tables.values() for name in ("gold", *scores.heads) for text in table[name])
    codes = {name: code for code, name in enumerate(dict.fromkeys((*names, *texts)) if names else ()) if name}
    rows, heads = dict[str, SplitRows](), dict(scores.heads)
    for split, table in tables.items():
        inputs = {name: table[name] for name in table if name not in {"split", "unit", "gold", *heads}}
        gold = table["gold"] if codes else [float(text) for text in table["gold"]]
        rows[split] = SplitRows(inputs, gold, table.get("unit"))
    for name, result in heads.items():
        predictions = {split: _read_cells(table[name], codes) for split, table in tables.items()}
        if codes:
            heads[name] = replace(result, predictions=predictions, names=dict.fromkeys(tables, tuple(codes)))
        else:
            row_scores = {
                split: -np.abs(values - np.asarray(rows[split].gold, np.float64))
                for split, values in predictions.items()
            }
            heads[name] = replace(result, predictions=predictions, row_scores=row_scores)
    return replace(scores, heads=heads), rows


def _read_cells(texts: Sequence[str], codes: Mapping[str, int]) -> NDArray[Any]:
    """Return predicted numbers, or the codes of predicted names."""
    return np.array([codes.get(text, NO_PREDICTION) for text in texts], int) if codes else np.array(texts, float)


def write_conll(folder: Path, task: "WordTask", heads: Mapping[str, HeadResult]) -> None:
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
