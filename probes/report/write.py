"""The files of a run folder, of whatever kind the task is."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from extract.files import write_file
from probes.data.task import Task
from probes.report.blocks import Document
from probes.report.document import (
    Context,
    KindReport,
    plans_document,
    pretraining_document,
    run_document,
    summary_text,
)
from probes.report.page import PAGE, Pictures, run_page, write_page
from probes.report.predictions import PREDICTIONS, SCORED, write_predictions, write_scored
from probes.report.run_figures import draw_autoencoders, draw_figures
from probes.report.scores import Plain, PlansScores, PretrainingScores, RunScores, seal_scores
from probes.report.style import Album


def write_run(
    folder: Path, scores: RunScores, task: Task, report: KindReport, *, formats: Sequence[str] = ("png",)
) -> None:
    """Write scores, predictions, figures, page and summary of a run."""
    values = _write_scores(folder, scores)
    write_predictions(folder / PREDICTIONS, task, scores.heads, report)
    write_scored(folder / SCORED, scores.heads)
    report.write_files(folder, task, scores.heads)
    context = Context(scores, report.rows(task), report)
    _write_report(folder, values, formats, lambda album: report_run(album, context))


def write_plans(folder: Path, scores: PlansScores, report: KindReport, *, formats: Sequence[str] = ("png",)) -> None:
    """Write scores, figures, page and summary of a sweep or a search."""
    values = _write_scores(folder, scores)
    _write_report(folder, values, formats, lambda album: report_plans(album, scores, report))


def _write_report(folder: Path, values: Plain, formats: Sequence[str], draw: Callable[[Album], Document]) -> None:
    """Draw, and write the page, and the summary last, which says that all is there."""
    pictures = Pictures()
    album = Album(folder, formats, pictures.keep)
    document = draw(album)
    write_page(folder / PAGE, run_page(folder, document, pictures, values), pictures.classes)
    write_file(folder / "summary.md", summary_text(document, album.drawn))


def report_run(album: Album, context: Context) -> Document:
    """Draw the figures of a run, and write its report."""
    draw_figures(album, context)
    draw_autoencoders(album, context.scores.pretraining, plan=context.scores.cache["plan"])
    return run_document(context)


def report_plans(album: Album, scores: PlansScores, report: KindReport) -> Document:
    """Draw the figures of a sweep or a search, and write its report."""
    from probes.report.plan_figures import draw_plans

    draw_plans(album, scores, report)
    return plans_document(scores, report)


def write_pretraining(folder: Path, scores: PretrainingScores, *, formats: Sequence[str] = ("png",)) -> None:
    """Write scores, figures and summary of autoencoders that were fitted by themselves."""
    _write_scores(folder, scores)
    album = Album(folder, formats)
    draw_autoencoders(album, scores.pretraining, plan=scores.cache["plan"])
    write_file(folder / "summary.md", summary_text(pretraining_document(scores), album.drawn))


def _write_scores(folder: Path, scores: RunScores | PlansScores | PretrainingScores) -> Plain:
    """Write scores.json (docs/scores_format.md), and return its content."""
    values = without_nan(scores.to_dict())
    sealed = {**values, "sha256": seal_scores(values)}
    write_file(folder / "scores.json", json.dumps(sealed, indent=1, allow_nan=False) + "\n")
    return sealed


def without_nan(value: Any) -> Any:
    """Put null where a number is missing: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
