"""The files of a run folder, of whatever kind the task is."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from extract.errors import printable
from extract.files import write_file
from probes.report.document import Context, KindReport, pretraining_text, result_rows, summary_text
from probes.report.figures.fitting import draw_autoencoders
from probes.report.figures.heads import draw_figures
from probes.report.figures.plans import (
    draw_layer_curves,
    draw_search,
    draw_sweep,
    has_layer_curves,
    layer_curves_note,
)
from probes.report.figures.style import TALL, Album
from probes.report.predictions import write_predictions
from probes.report.scores import PlansScores, PretrainingScores, RunScores, seal_scores
from probes.report.sweeps import points_label, points_of, search_summary, sweep_summary
from probes.tasks.base import Task


def write_run(
    folder: Path, scores: RunScores, task: Task, report: KindReport, *, formats: Sequence[str] = ("png",)
) -> None:
    """Write scores, predictions, figures and summary of a run."""
    _write_scores(folder, scores)
    write_predictions(folder / "predictions.csv", task, scores.heads, report)
    for write in report.writers:
        write(folder, task, scores.heads)
    album = Album(folder, formats)
    draw_figures(album, scores, task, report)
    draw_autoencoders(album, scores.pretraining, plan=scores.cache["plan"])
    _write_summary(folder, summary_text(Context(scores, task, report, album.drawn)))


def write_plans(folder: Path, scores: PlansScores, report: KindReport, *, formats: Sequence[str] = ("png",)) -> None:
    """Write scores, figures and summary of a sweep or a search."""
    _write_scores(folder, scores)
    album, header = Album(folder, formats), scores.header
    about = f"{header.task['name']} on {header.decoder['name']}"
    if scores.search:
        found = scores.plans[0].plan.text
        note = f"{about}; larger: more rows; framed: found, {found}"
        album.add("search", draw_search, scores, title="Search for a plan", note=note)
    else:
        what, metric = points_label(scores, report)
        points, label = points_of(scores, report), f"{metric} x 100, validation"
        best = max(points, key=lambda plan: points[plan])
        album.add(
            "sweep", partial(draw_sweep, label=label), points, title=f"{what}, {len(points):,} plans",
            note=f"{about}; best: {best.text}, {points[best]:.1f}",
        )  # fmt: skip
    for name, choice in scores.chosen.items():
        if has_layer_curves(choice.result):
            album.add(
                f"layers_{name.replace('-', '_')}", draw_layer_curves, scores, name,
                title=f"{name}: score of each layer, {len(scores.plans):,} plans",
                note=f"{about}; {layer_curves_note(scores, name)}", size=TALL,
            )  # fmt: skip
    text = search_summary(scores, album.drawn) if scores.search else sweep_summary(scores, report, album.drawn)
    _write_summary(folder, text)


def write_pretraining(folder: Path, scores: PretrainingScores, *, formats: Sequence[str] = ("png",)) -> None:
    """Write scores, figures and summary of autoencoders that were fitted by themselves."""
    _write_scores(folder, scores)
    album = Album(folder, formats)
    draw_autoencoders(album, scores.pretraining, plan=scores.cache["plan"])
    _write_summary(folder, pretraining_text(scores, album.drawn))


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
