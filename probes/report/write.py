"""The files of a run folder, of whatever kind the task is."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from extract.errors import printable
from extract.files import write_file
from probes.report.document import Context, KindReport, pretraining_text, result_rows, summary_text
from probes.report.figures import draw_autoencoders, draw_figures
from probes.report.predictions import write_predictions
from probes.report.scores import PlansScores, PretrainingScores, RunScores, seal_scores
from probes.report.style import new_figure, save_figure
from probes.report.sweeps import curve_label, draw_search, draw_sweep, points_of, search_summary, sweep_summary
from probes.tasks.base import Task


def write_run(folder: Path, scores: RunScores, task: Task, report: KindReport) -> None:
    """Write scores, predictions, figures and summary of a run."""
    _write_scores(folder, scores)
    write_predictions(folder / "predictions.csv", task, scores.heads, report)
    for write in report.writers:
        write(folder, task, scores.heads)
    (folder / "figures").mkdir(exist_ok=True)
    figures = draw_figures(folder, scores.heads, task, report) | draw_autoencoders(folder, scores.pretraining)
    _write_summary(folder, summary_text(Context(scores, task, report, figures)))


def write_plans(folder: Path, scores: PlansScores, report: KindReport) -> None:
    """Write scores, figure and summary of a sweep or a search."""
    _write_scores(folder, scores)
    header, figure = scores.header, new_figure()
    about = f"{header.task['name']} on {header.decoder['name']}"
    if scores.search:
        draw_search(figure, scores)
        save_figure(figure, folder / "search.png", title=f"{scores.search['strategy']}: {about}")
        _write_summary(folder, search_summary(scores))
    else:
        metric = report.zero_shot or next(iter(scores.chosen.values())).result.metric
        draw_sweep(figure, points_of(scores, report), metric=metric)
        save_figure(figure, folder / "sweep.png", title=f"{curve_label(scores, report)}: {about}")
        _write_summary(folder, sweep_summary(scores, report))


def write_pretraining(folder: Path, scores: PretrainingScores) -> None:
    """Write scores, figures and summary of autoencoders that were fitted by themselves."""
    _write_scores(folder, scores)
    (folder / "figures").mkdir(exist_ok=True)
    figures = draw_autoencoders(folder, scores.pretraining)
    _write_summary(folder, pretraining_text(scores, figures))


def _write_scores(folder: Path, scores: RunScores | PlansScores | PretrainingScores) -> None:
    """Write scores.json (docs/scores_format.md)."""
    values = without_nan(scores.to_dict())
    text = json.dumps({**values, "sha256": seal_scores(values)}, indent=1, allow_nan=False)
    write_file(folder / "scores.json", text + "\n")


def without_nan(value: Any) -> Any:
    """Put null where a number is missing: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def screen_table(scores: RunScores, report: KindReport) -> Table:
    """Make the table of results for a terminal, 80 characters wide, numbers to the right."""
    header = scores.header
    titles, rows = result_rows(scores, report, on_screen=True)
    title = f"{header.name}: {header.task['name']} on {header.decoder['name']}"
    table = Table(title=printable(title), box=SIMPLE, padding=(0, 1))
    widest = max((len(word) for row in rows for word in row[0].split()), default=0)  # no name of a head is cut
    for column in titles:
        is_head = column == "head"
        heading = "\n".join(column.rsplit(" ", 1))
        table.add_column(heading, justify="left" if is_head else "right", min_width=widest if is_head else None)
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def _write_summary(folder: Path, text: str) -> None:
    write_file(folder / "summary.md", text)
