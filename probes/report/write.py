"""The files of a run folder, of whatever kind the task is."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from extract.errors import IcecoreError
from extract.files import read_file, write_file, write_frame
from probes.data.task import Task
from probes.report.blocks import Document
from probes.report.document import (
    Context,
    KindReport,
    checks,
    plain_answer,
    plans_document,
    pretraining_document,
    run_document,
    summary_text,
)
from probes.report.exploring import explore_plans, explore_run
from probes.report.page import PAGE, Page, Pictures, run_page, write_page
from probes.report.predictions import (
    PREDICTIONS,
    SCORED,
    digest_source,
    is_drawn,
    note_drawn,
    write_predictions,
    write_scored,
)
from probes.report.run_figures import draw_autoencoders, draw_figures
from probes.report.scores import PlansScores, PretrainingScores, RunScores, seal_scores, sealed_scores
from probes.report.style import Album
from probes.report.sweep_frames import PLAN_AXIS, axes_of, points_frame

SUMMARY, SCORES, POINTS = "summary.md", "scores.json", "points.csv"
UNCOMPARED = ("seconds", "command", "commit", "sha256")
"""Keys of scores.json that differ between runs of the same numbers."""


def write_run(
    folder: Path, scores: RunScores, task: Task, report: KindReport, *, formats: Sequence[str] = ("png",)
) -> None:
    """Write scores, predictions, figures, page and summary of a run."""
    _write_scores(folder, scores)
    write_predictions(folder / PREDICTIONS, task, scores.heads, report)
    write_scored(folder / SCORED, scores.heads)
    report.write_files(folder, task, scores.heads)
    context = Context(scores, report.rows(task), report)
    _write_report(folder, formats, lambda album, pictures: page_of_run(folder, album, pictures, context))


def write_plans(folder: Path, scores: PlansScores, report: KindReport, *, formats: Sequence[str] = ("png",)) -> None:
    """Write scores, figures, page and summary of a sweep or a search."""
    _write_scores(folder, scores)
    if scores.grid is not None:
        write_file(folder / POINTS, write_frame(points_frame(scores)))
    _write_report(folder, formats, lambda album, pictures: page_of_plans(folder, album, pictures, scores, report))


def _write_report(
    folder: Path, formats: Sequence[str], draw: Callable[[Album, Pictures], tuple[Page, Document]]
) -> None:
    """Draw, and write the page, and the summary last, which says that all is there; nothing where all is as it was."""
    page, source, of_figures = folder / PAGE, digest_source([folder]), digest_source([folder], list(formats))
    if is_drawn(page, "page", source) and is_drawn(page, "figures", of_figures):
        return
    pictures = Pictures()
    album = Album(folder, formats, pictures.keep)
    drawn, document = draw(album, pictures)
    write_page(page, drawn, pictures.classes)
    write_file(folder / SUMMARY, summary_text(document, album.drawn))
    note_drawn(page, "page", source, [PAGE])
    note_drawn(page, "figures", of_figures, [SUMMARY, *(file for files in album.drawn.values() for file in files)])


def page_of_run(folder: Path, album: Album, pictures: Pictures, context: Context) -> tuple[Page, Document]:
    """Draw the figures of a run, and write its report: the page, and the document it is made of."""
    draw_figures(album, context)
    draw_autoencoders(album, context.scores.pretraining, plan=context.scores.cache["plan"])
    document, exploration = run_document(context), explore_run(context, folder)
    answers = plain_answer(context.scores, context.report)
    page = run_page(folder, document, pictures, exploration, answers)
    return replace(page, warnings=(*page.warnings, *checks(context.scores))), document


def page_of_plans(
    folder: Path, album: Album, pictures: Pictures, scores: PlansScores, report: KindReport
) -> tuple[Page, Document]:
    """Draw the figures of a sweep or a search, and write its report: the page, and the document it is made of."""
    from probes.report.sweep_document import every_point, grid_document, transfer_blocks
    from probes.report.sweep_figures import draw_grid, draw_parts

    if axes_of(scores) == (PLAN_AXIS,):
        from probes.report.comparison_figures import draw_plans

        draw_plans(album, scores, report)
        beside = [*transfer_blocks(scores), *every_point(scores)] if scores.grid else []
        document = plans_document(scores, report, beside)
    else:
        draw_grid(album, scores)
        document = grid_document(scores)
    draw_parts(album, scores)
    return run_page(folder, document, pictures, explore_plans(scores)), document


def write_pretraining(folder: Path, scores: PretrainingScores, *, formats: Sequence[str] = ("png",)) -> None:
    """Write scores, figures and summary of autoencoders that were fitted by themselves."""
    _write_scores(folder, scores)
    album = Album(folder, formats)
    draw_autoencoders(album, scores.pretraining, plan=scores.cache["plan"])
    write_file(folder / SUMMARY, summary_text(pretraining_document(scores), album.drawn))


def _write_scores(folder: Path, scores: RunScores | PlansScores | PretrainingScores) -> None:
    """Write scores.json (docs/scores_format.md); one that says the same stays."""
    sealed = sealed_scores(scores.to_dict())
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, IcecoreError):
        written = json.loads(read_file(folder / SCORES))
        old, new = ({key: part[key] for key in part.keys() - {*UNCOMPARED}} for part in (written, sealed))
        if written["sha256"] == seal_scores(written) and old == new:  # nobody changed it
            return
    write_file(folder / SCORES, json.dumps(sealed, indent=1, allow_nan=False) + "\n")
