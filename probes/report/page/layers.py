"""What was found about the layers of a run, as a part of its page."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from extract.errors import HeadError
from probes.layers.findings import OF_EVERY_LAYER, VIEWS, HeadFindings, ViewCurve, load_findings
from probes.report.blocks import Block, Document, Item, Table
from probes.report.figures import style
from probes.report.figures.findings import UNITS, draw_agreement, draw_alone, draw_view, findings_note, is_over_layers
from probes.report.page.page import Page, Part, Pictures, parts_of, warnings_of
from probes.report.table import NOTHING, cell, metric_label, number


def draw_findings(album: style.Album, findings: HeadFindings) -> None:
    """Draw every view of a head, and how far they agree."""
    head = findings.head
    if findings.curve("alone"):
        album.add(
            "layers_alone", lambda figure: draw_alone(style.panel(figure), findings), size=style.TALL,
            title=f"{head}: {VIEWS['alone'].asks}", note=findings_note(findings, has_set=True),
        )  # fmt: skip
    elsewhere = (*OF_EVERY_LAYER, "baseline")
    for view in dict.fromkeys(curve.view for curve in findings.curves if curve.view not in elsewhere):
        album.add(
            f"layers_{view}", _draw_one, findings, view, title=f"{head}, {VIEWS[view].title}: {VIEWS[view].asks}",
            note="; ".join(filter(None, (findings_note(findings), *_notes(findings, view)))),
        )  # fmt: skip
    if findings.agreement:
        side = 2.6 + 0.5 * len({name for each in findings.agreement for name in (each.one, each.other)})
        album.add(
            "layers_agreement", lambda figure: draw_agreement(style.panel(figure), findings), size=(side, side),
            title=f"{head}: do the views rank the layers alike?", note="Spearman's correlation, its interval",
        )  # fmt: skip


def _draw_one(figure: Figure, findings: HeadFindings, view: str) -> None:
    draw_view(style.panel(figure), findings, view)


def _notes(findings: HeadFindings, view: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(curve.note for curve in findings.curves if curve.view == view and curve.note))


def set_sentence(findings: HeadFindings) -> str:
    """Name the best layer and those that cannot be told from it."""
    names = ", ".join(f"`{cell(layer)}`" for layer in findings.best_set)
    return (
        f"Best alone is `{cell(findings.best)}`; {len(findings.best_set)} of {len(findings.layers)} layers cannot be "
        f"told from it at {100 * findings.confidence:g} % for all together: {names}."
    )


def findings_blocks(findings: HeadFindings) -> Iterator[Block]:
    """Write every view in tables, a row per layer and a column per view, and what each of them asks."""
    curves = [curve for curve in findings.curves if is_over_layers(findings, curve)]
    yield (
        f"Scores and their differences are {metric_label(cell(findings.metric))} x 100; in brackets intervals over "
        f"{findings.n_units:,} {cell(findings.unit)}, of {100 * findings.confidence:g} % for all layers together."
    )
    if curves:
        rows = [_row(layer, findings, curves) for layer in findings.layers]
        yield Table(("layer", "in the set", *(_title(curve, findings) for curve in curves)), rows)
    for curve in (each for each in findings.curves if each not in curves):
        places = [(cell(layer), _text(curve, place)) for place, layer in enumerate(curve.layers)]
        what = "baseline" if curve.view == "baseline" else "layers"
        yield Table((what, _title(curve, findings)), places)
    for view in dict.fromkeys(curve.view for curve in findings.curves):
        how = "probes fitted again" if VIEWS[view].is_retrained else "the fitted head"
        yield Item(f"{VIEWS[view].title}: {VIEWS[view].asks} ({'; '.join((how, *map(cell, _notes(findings, view))))})")


def _title(curve: ViewCurve, findings: HeadFindings) -> str:
    unit = "" if curve.metric == findings.metric else f", {cell(curve.metric)}"
    return f"{VIEWS[curve.view].title}{f' ({cell(curve.name)})' if curve.name else ''}{unit}"


def _row(layer: str, findings: HeadFindings, curves: list[ViewCurve]) -> tuple[str, ...]:
    values = (_text(curve, curve.layers.index(layer)) if layer in curve.layers else NOTHING for curve in curves)
    return (cell(layer), "yes" if layer in findings.best_set else NOTHING, *values)


def _text(curve: ViewCurve, place: int) -> str:
    times = UNITS.get(curve.metric, ("", 100.0))[1]
    digits = 1 if times == 100 else 3
    text = number(curve.values[place], digits, times=times)
    if curve.low and math.isfinite(curve.low[place]):
        ends = (number(each[place], digits, times=times) for each in (curve.low, curve.high))
        text += f" ({' to '.join(ends)})"
    return text


def run_page(folder: Path, document: Document, pictures: Pictures, values: Mapping[str, Any]) -> Page:
    """Make the page of a run: what was found about its layers first, where that is in its folder.

    Args:
        folder: The run folder.
        document: Its report.
        pictures: Holds its figures; those of its layers are drawn here.
        values: The content of scores.json.
    """
    figures, parts = pictures.take(), list[Part]()
    found, complaint = list[HeadFindings](), ""
    try:
        found = load_findings(folder)
    except HeadError as error:
        complaint = str(error)
    for each in found:
        draw_findings(style.Album(folder, (), pictures.keep), each)
        head = f"`{cell(each.head)}`"
        parts.append(Part(f"Which layers matter to {head}", (set_sentence(each),), pictures.take()))
        parts.append(Part(f"Every layer of {head} in numbers", tuple(findings_blocks(each))))
    answers = [f"`{cell(each.head)}`: {cell(each.answer)}" for each in found if each.answer]
    warnings = (complaint, *(cell(text) for each in found for text in each.warnings), *warnings_of(document))
    return Page(
        document.title, document.question, (*answers, document.answer), tuple(filter(None, warnings)),
        (*parts, *parts_of(document, figures)), {document.title: values},
    )  # fmt: skip
