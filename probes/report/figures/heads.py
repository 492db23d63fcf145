"""The figures of a run, for heads of every kind. A new figure is one function and one row of `FIGURES`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from probes.heads.pairs.residuals import Residuals
from probes.heads.result import HeadResult
from probes.report.document import Context
from probes.report.figures import style
from probes.report.figures.fitting import draw_history, history_note
from probes.report.figures.layers import chosen_note, draw_curves, draw_parts, layer_curves
from probes.report.figures.rows import (
    MOST_NAMED,
    confusion,
    draw_confusion,
    draw_residuals,
    draw_row_scores,
    rows_note,
)
from probes.report.table import metric_label


@dataclass(frozen=True, eq=False)
class FigureInput:
    """What a figure of a head is drawn from."""

    result: HeadResult
    split: str
    """The reported one."""
    gold: Sequence[Any]
    """Gold of every prediction on it: numbers, or names."""
    residuals: Residuals | None = None
    """Predicted minus gold on it; None for predicted names."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that can be predicted; empty for numbers."""
        return self.result.names.get(self.split, ())

    @property
    def row_scores(self) -> NDArray[np.float64]:
        """Scores of single rows; empty where there are none."""
        return self.result.row_scores.get(self.split, np.empty(0))


@dataclass(frozen=True)
class HeadFigure:
    """A figure that is drawn for every head it applies to."""

    title: str
    """`{head}` and `{split}` are filled in; the plan is added."""
    stem: str
    """End of its file name, after the head."""
    applies: Callable[[FigureInput], bool]
    draw: Callable[[Figure, FigureInput], object]
    note: Callable[[FigureInput], str] = lambda _: ""
    """What is written below it, after task, decoder and pooling."""
    size: Callable[[FigureInput], tuple[float, float]] = lambda _: style.SIZE
    """Width and height in inches."""


def draw_figures(album: style.Album, context: Context) -> None:
    """Draw every figure of every head of a run."""
    scores, header = context.scores, context.scores.header
    for name, result in scores.heads.items():
        split, compare = result.reported_split, context.report.residuals
        rows = context.rows[split]
        found = FigureInput(result, split, rows.gold, compare and compare(rows, result.predictions[split]))
        about = f"{header.task['name']} on {header.decoder['name']}, pooling {result.pooling}"
        for each in (each for each in FIGURES if each.applies(found)):
            album.add(
                f"figures/{name.replace('-', '_')}_{each.stem}",
                each.draw,
                found,
                title=f"{each.title.format(head=name, split=split)}, plan {scores.cache['plan']}",
                note="; ".join(filter(None, (about, each.note(found)))),
                size=each.size(found),
            )


def _has_curves(found: FigureInput) -> bool:
    return bool(layer_curves(found.result)) and len(found.result.layers) > 1


def _has_row_scores(found: FigureInput) -> bool:
    """Whether rows score more than right and wrong, which the results table counts."""
    return len(np.unique(found.row_scores[np.isfinite(found.row_scores)])) > 2


def _draw_confusion(figure: Figure, found: FigureInput) -> None:
    counts = confusion(found.names, found.gold, found.result.predictions[found.split])
    draw_confusion(figure, counts, found.names)


def _confusion_size(found: FigureInput) -> tuple[float, float]:
    side = 2.4 + 0.3 * min(len(found.names), 13)
    return side + 0.8, side


def _draw_residuals(figure: Figure, found: FigureInput) -> None:
    if found.residuals is not None:
        draw_residuals(figure, found.residuals)


FIGURES: tuple[HeadFigure, ...] = (
    HeadFigure(
        "{head}: score of each layer", "layers", lambda it: _has_curves(it) and bool(it.names),
        lambda figure, it: draw_curves(figure, it.result), lambda it: chosen_note(it.result),
    ),
    HeadFigure(
        "{head}: score of each layer", "curve", lambda it: _has_curves(it) and not it.names,
        lambda figure, it: draw_curves(figure, it.result), lambda it: chosen_note(it.result),
    ),
    HeadFigure(
        "What each layer gives {head}", "layers", lambda it: "contributions" in it.result.extras,
        lambda figure, it: draw_parts(figure, it.result.extras["contributions"]),
        lambda it: f"{metric_label(it.result.metric)} on {it.result.extras['contributions']['split']}",
        lambda _: style.TALL,
    ),
    HeadFigure(
        "What each layer gives {head}", "weights", lambda it: "mix" in it.result.extras,
        lambda figure, it: draw_parts(figure, it.result.extras["mix"]),
        lambda it: f"{metric_label(it.result.metric)} on validation", lambda _: (style.TALL[0], 4.9),
    ),
    HeadFigure(
        "Fitting {head}", "history", lambda it: any(seed.get("history") for seed in it.result.seeds),
        lambda figure, it: draw_history(figure, it.result), lambda it: history_note(it.result), lambda _: style.TALL,
    ),
    HeadFigure(
        "Confusion of {head}, {split}", "confusion", lambda it: bool(it.names), _draw_confusion,
        lambda it: f"{len(it.gold):,} predictions" + ", counted in the cells" * (len(it.names) <= MOST_NAMED),
        _confusion_size,
    ),
    HeadFigure(
        "Residuals of {head}, {split}", "residuals", lambda it: it.residuals is not None, _draw_residuals,
        lambda it: f"{len(it.gold):,} rows, in the units of the gold; bands and whiskers: 95 % intervals of means",
        lambda _: style.WIDE,
    ),
    HeadFigure(
        "Scores of single rows, {head}, {split}", "rows", _has_row_scores,
        lambda figure, it: draw_row_scores(figure, it.row_scores), lambda it: rows_note(it.row_scores),
    ),
)  # fmt: skip
"""Every figure of a head."""
