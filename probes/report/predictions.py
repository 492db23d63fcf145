"""Files beside the scores of a run: predictions row by row, and a record of what its pages were made from.

Predictions have one CSV format for every kind of task; words also get column files for conlleval.
"""

import csv
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from extract import registry
from extract.errors import HeadError, IcecoreError, first_line
from extract.files import digest_bytes, digest_json, read_csv, read_file, write_csv, write_file
from extract.records import Values
from probes.data.task import Task
from probes.heads.result import HeadResult
from probes.layers import FINDINGS, PREDICTED
from probes.metrics.prediction_metrics import NO_PREDICTION
from probes.report.document import KindReport, SplitRows, predicted_texts
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
    word. No text starts a formula of a spreadsheet (`extract.files.safe_text`).
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
            [result.names[split][code] if code != NO_PREDICTION else "" for code in codes]
            if split in result.names
            else [f"{value:.9g}" for value in codes]
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
            if "gold" not in columns:
                raise KeyError("gold")
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


# --- What pages and figures were made from ---
#
# Both are made again only where their numbers or the drawing code changed. The record is beside a page,
# `report.drawn.json` beside `report.html`: a digest of what was drawn, of this library and of the packages that draw,
# and digests of the files that were written. Code of a user's own leaves none.


SCHEMA, RECORD = 1, ".drawn.json"
READ = ("scores.json", "config.yaml", PREDICTIONS, SCORED, FINDINGS)
"""The files of a run that its pages and figures show."""


def digest_source(folders: Iterable[Path], *options: object) -> str:
    """Digest what decides pages of run folders, beside where they are; empty with code of the user's own."""
    if registry.ADDED:
        return ""
    shown = []
    for folder in folders:
        files = [*(folder / name for name in READ), *sorted((folder / PREDICTED).glob("*.npz"))]
        shown.append([[path.name, _digest_file(path)] for path in files])
    return digest_json([shown, list(options), digest_code(), *package_versions()])


def is_drawn(page: Path, what: str, source: str) -> bool:
    """Whether `what` of a page was made of this source, and its files are as they were written."""
    made = _read(page).get(what)
    if not source or not isinstance(made, dict) or made.get("from") != source:
        return False
    files = made.get("files")
    return isinstance(files, dict) and all(_digest_file(page.parent / name) == digest for name, digest in files.items())


def note_drawn(page: Path, what: str, source: str, files: Iterable[str]) -> None:
    """Note of what source `what` of a page was made, and its files, named relative to the page's folder."""
    record = {**_read(page), "schema": SCHEMA}
    record[what] = {"from": source, "files": {name: _digest_file(page.parent / name) for name in files}}
    write_file(page.with_suffix(RECORD), json.dumps(record, indent=1) + "\n")


def _read(page: Path) -> Values:
    """Read the record of a page; empty where there is none that can be read."""
    try:
        record = json.loads(read_file(page.with_suffix(RECORD)))
        return record if isinstance(record, dict) and record.get("schema") == SCHEMA else {}
    except (OSError, ValueError, RecursionError, IcecoreError):
        return {}


def _digest_file(path: Path) -> str:
    """Digest a file; empty where it cannot be read."""
    try:
        return digest_bytes(read_file(path))
    except (OSError, IcecoreError):
        return ""


@cache
def digest_code() -> str:
    """Digest every file of this library that decides what a run writes."""
    parts: dict[str, str] = {}
    for package in ("extract", "probes"):
        with resources.as_file(resources.files(package)) as root:
            for path in sorted(root.rglob("*")):
                if path.suffix in (".py", ".css", ".js", ".html", ".txt"):
                    parts[f"{package}/{path.relative_to(root)}"] = digest_bytes(path.read_bytes())
    return digest_json(parts)


@cache
def package_versions() -> tuple[str, ...]:
    """Name Python and the packages that this library needs, extras too where they are there, with their versions."""
    names = sorted({re.split(r"[^A-Za-z0-9._-]", text)[0] for text in requires("icecore") or ()})
    versions = [f"python {platform.python_version()}"]
    for name in ["icecore", "tokenizers", *names]:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} none")
    return tuple(versions)
