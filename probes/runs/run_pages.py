"""Pages of finished runs, made again from their folders: of one run, or of several side by side."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

from extract import code_gate as gate
from extract.errors import HeadError, first_line
from extract.records import Values
from extract.registry import import_own, require_recorded
from probes.layers.layer_predictions import load_predictions
from probes.report.blocks import describe_point
from probes.report.document import Context
from probes.report.drawn import digest_source, is_drawn, note_drawn
from probes.report.exploring import join_explorations, layer_gap
from probes.report.page import IN_FULL, PAGE, Page, Part, Pictures, write_page
from probes.report.predictions import read_predictions, with_predictions
from probes.report.scores import read_plans
from probes.report.style import Album
from probes.report.write import page_of_plans, page_of_run
from probes.runs.compare import Comparison, compare, unique_names
from probes.runs.folder import RunFolder
from probes.runs.results import Runs, open_runs
from probes.runs.task_kinds import KINDS

MISFITS = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, ArithmeticError)
"""What scores that were made by hand may raise."""


def write_report(runs: Runs, out: str | Path = "", *, allow_code: str | Iterable[str] = ()) -> Path:
    """Write the page of a finished run, sweep or search, or one page of several side by side.

    No task and no decoder is loaded: everything is in the folders.

    Args:
        runs: Run folders, or one.
        out: The file. If empty, `report.html` in the run's folder, or in the working folder for several.
        allow_code: Modules of your own masks that the plans of a sweep may import, as `my_parts`, or several.

    Returns:
        The file.

    Raises:
        HeadError: A folder without the results of this version, or no folder; says which.
        CodeError: A plan names a module that is not allowed, or is not the one that was recorded.

    Example:
        >>> write_report("runs/demo")  # doctest: +SKIP
        >>> write_report(["runs/causal", "runs/nosink"], "both.html")  # doctest: +SKIP
    """
    folders = open_runs(runs)
    if not folders:
        raise HeadError("a report takes a run folder, as runs/demo, or several.")
    path = Path(out) if out else (folders[0].path if len(folders) == 1 else Path()) / PAGE
    source = _source(folders)
    if is_drawn(path, "page", source):
        return path
    pictures = Pictures()
    with gate.allow_code(allow_code):
        page = page_of(folders[0], pictures) if len(folders) == 1 else _page_of_several(folders, pictures)
    write_page(path, page, pictures.classes)
    note_drawn(path, "page", source, [path.name])
    return path


def _source(folders: Sequence[RunFolder]) -> str:
    """Digest what decides a page of runs; empty where a plan is of somebody's own code, which may not be allowed."""
    if any(folder.values.get("own") for folder in folders):
        return ""
    paths = [folder.path for folder in folders]
    return digest_source(paths, *(unique_names(paths) if len(paths) > 1 else ()))


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the page of a comparison: the runs side by side, then each of them."""
    pictures = Pictures()
    page = _page_of_several([run.folder for run in comparison.runs], pictures, comparison)
    write_page(path, page, pictures.classes)


def page_of(folder: RunFolder, pictures: Pictures) -> Page:
    """Make the page of a finished run, sweep or search from its folder."""
    try:
        return _draw(folder, Album(folder.path, (), pictures.keep), pictures)
    except MISFITS as error:
        raise HeadError(
            f"no page can be made of the scores in {str(folder.path)!r} ({first_line(error)}); run its config again."
        ) from error


def _draw(folder: RunFolder, album: Album, pictures: Pictures) -> Page:
    """Draw the figures of a finished run, sweep or search, and write its page."""
    values = folder.values
    report = KINDS[values["kind"]].report
    if values["what"] == "run":
        scores, rows = with_predictions(folder.scores, read_predictions(folder.path))
        return page_of_run(folder.path, album, pictures, Context(scores, rows, report))[0]
    custom = values.get("own", {})
    require_recorded(custom, (row["plan"] for row in values["plans"]))
    import_own(custom, folder=folder.path)
    return page_of_plans(folder.path, album, pictures, read_plans(values), report)[0]


def _page_of_several(folders: Sequence[RunFolder], pictures: Pictures, comparison: Comparison | None = None) -> Page:
    """Make one page of several runs: their comparison, if they are of the same rows, then each."""
    labels, complaint = unique_names([folder.path for folder in folders]), ""
    parts, explored, answers, warnings = list[Part](), dict[str, Values](), list[str](), dict[str, list[str]]()
    try:
        comparison = comparison or compare(folders)
    except HeadError as error:
        complaint = f"Not compared: {error}"
    if comparison:
        comparison.draw_into(Album(Path(), (), pictures.keep))
        parts.append(Part("Side by side", comparison.blocks(), pictures.take()))
        answers += [*(f"{sentence}." for sentence in comparison.verdicts()), *comparison.notes()]
    for label, folder in zip(labels, folders, strict=True):
        page = page_of(folder, pictures)
        parts.append(_shorten(label, page))
        for text in page.warnings:
            warnings.setdefault(text, []).append(label)
        explored[label] = page.exploration
    title = f"{len(folders)} runs side by side"
    question = f"What differs between {', '.join(labels[:-1])} and {labels[-1]}?"
    shared = (f"{', '.join(runs)}: {text}" for text, runs in warnings.items())
    exploration = join_explorations(explored, _gaps(labels, folders))
    return Page(title, question, tuple(answers), (*filter(None, [complaint]), *shared), tuple(parts), exploration)


def _gaps(labels: Sequence[str], folders: Sequence[RunFolder]) -> list[Values]:
    """Give the paired differences at every layer of two runs of the same rows, for the heads that both studied."""
    gaps: list[Values] = []
    for (one, first), (other, second) in combinations(zip(labels, folders, strict=True), 2):
        if {first.values["what"], second.values["what"]} != {"run"}:
            continue
        rows, others = (read_predictions(folder.path) for folder in (first, second))
        for head in first.heads:
            both = [load_predictions(folder.path, head) for folder in (first, second)]
            if both[0] is None or both[1] is None or both[0].split not in {*rows} & {*others}:
                continue
            table, metric = rows[both[0].split], first.scores.heads[head].metric
            is_same = table["gold"] == others[both[0].split]["gold"]
            if is_same and (gap := layer_gap(both[0], both[1], table, metric)):
                points = [describe_point(folder.scores.heads[head].chosen) for folder in (first, second)]
                note = f"{one} reads {points[0]}, {other} {points[1]}." if points[0] != points[1] else ""
                gaps.append({"one": f"{one}, {head}", "other": f"{other}, {head}", "note": note, **gap})
    return gaps


def _shorten(label: str, page: Page) -> Part:
    """Make one part of the page of a run: its answers, its first table, its figures."""
    first = next(part for part in page.parts if part.is_main)
    full = [block for part in page.parts if part.title == IN_FULL for block in part.blocks]
    pictures = tuple(picture for part in page.parts for picture in part.pictures)
    return Part(label, (*page.answers, *full, *first.blocks), pictures)
