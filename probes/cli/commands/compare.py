"""`icecore compare`: finished runs beside each other, on the same rows, layer by layer, or of any tasks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as ScreenTable

from extract.errors import ConfigError, HeadError, first_line, printable
from extract.files import write_file
from probes.cli.screen import show
from probes.report.blocks import Block, Table
from probes.report.figures.across import draw_across, draw_gaps, name_curves
from probes.report.figures.style import Album
from probes.report.page.page import PAGE, Page, Part, Pictures, write_page
from probes.report.safe_csv import write_frame
from probes.report.table import cell, metric_label, number, percent
from probes.runs.across import centres_of_gravity, layers_across, rank_systems
from probes.runs.comparison import compare
from probes.runs.layers import compare_at_layers
from probes.runs.pages.reports import write_comparison, write_report

if TYPE_CHECKING:
    import pandas as pd


def compare_command(found: SimpleNamespace) -> int:
    """Print a comparison of runs, and write it to a folder where one is named."""
    if found.across:
        return _across(found)
    if found.by_layer:
        return _by_layer(found)
    comparison = compare(found.runs, head=found.head, split=found.split, n_resamples=found.resamples)
    Console(markup=False).print(comparison.to_screen())
    show("\n".join([*(f"{sentence}." for sentence in comparison.verdicts()), *comparison.notes()]))
    if found.out:
        folder = _open(found.out)
        write_file(folder / "curves.csv", write_frame(comparison.curves))
        drawn = comparison.draw(folder, formats=found.figures)
        pictures = [f"\n![Layers]({path.name})\n" for path in drawn[:1]]
        write_file(folder / "comparison.md", "".join([comparison.to_markdown(), *pictures]))
        write_comparison(comparison, folder / PAGE)
        files = (folder / PAGE, folder / "comparison.md", folder / "curves.csv", *drawn)
        show("\n".join(f"written: {path}" for path in files))
    return 0


def _across(found: SimpleNamespace) -> int:
    """Print where runs of any tasks gain their scores, and plans ranked over tasks where they can be."""
    centres = centres_of_gravity(found.runs, head=found.head)
    frames = {"centres": centres, "across": layers_across(found.runs, head=found.head)}
    tables = [_centres_table(centres)]
    try:
        frames["ranks"] = ranks = rank_systems(found.runs, head=found.head).reset_index()
        rows = [[str(row[0]), *(number(each, 2) for each in row[1:])] for row in ranks.itertuples(index=False)]
        tables.append(Table(list(ranks.columns), [[cell(text) for text in row] for row in rows]))
        notes = ["Plans by their average normalised rank over tasks; 0 is the best."]
    except HeadError as error:
        notes = [f"no ranks: {error}"]
    for table, title in zip(tables, ("where scores are gained", "average normalised rank of plans"), strict=False):
        Console(markup=False).print(_on_screen(table, title))
    show("\n".join(notes))
    if found.out:
        best = centres.loc[centres["centre"].idxmin()] if centres["centre"].notna().any() else None
        answers = () if best is None else (
            f"Scores are gained lowest in {best['task']} ({best['plan']}, {best['head']}): centre of gravity "
            f"{number(best['centre'], 2)} of the depth.",
        )  # fmt: skip
        page = Page("Runs of any tasks", "Where do layers gain their scores?", answers, (), ())
        _write(_open(found.out), frames, page, (*tables, *notes), draw_across, found.figures)
    return 0


def _by_layer(found: SimpleNamespace) -> int:
    """Print what the second of two runs has over the first at every layer alone."""
    if len(found.runs) != 2:
        raise HeadError(f"--by-layer compares two runs, and {len(found.runs)} were given; name two.")
    first, second = found.runs
    frame = compare_at_layers(second, first, head=found.head, split=found.split, n_resamples=found.resamples)
    where = frame.iloc[0]
    one, other, metric = (str(where[name]) for name in ("one", "other", "metric"))
    rows = [
        (
            row.layer, percent(row.over), percent(row.value), percent(row.difference, sign="+"),
            f"{percent(row.low, sign='+')} to {percent(row.high, sign='+')}",
        )
        for row in frame.itertuples()
    ]  # fmt: skip
    table = Table(("layer", cell(other), cell(one), "difference", "95 % interval"), rows)
    what = f"every layer alone, {where['head']}, {metric_label(metric)} x 100 on {where['split']}"
    answer = (
        f"{one} is better than {other} at {int((frame['low'] > 0).sum())} of {len(frame)} layers and worse at "
        f"{int((frame['high'] < 0).sum())}; the intervals hold the differences of all layers at once."
    )
    Console(markup=False).print(_on_screen(table, what))
    show(answer)
    if found.out:
        page = Page(f"{one} over {other}", f"At which layers do {one} and {other} differ?", (answer,), (), ())
        _write(_open(found.out), {"by-layer": frame}, page, (f"Scores: {what}.", table), draw_gaps, found.figures)
    return 0


def _centres_table(centres: "pd.DataFrame") -> Table:
    rows = []
    for name, part in name_curves(centres).items():
        row = part.iloc[0]
        ends = f" ({number(row['low'], 2)} to {number(row['high'], 2)})" if row["n_seeds"] > 1 else ""
        scores = f"{percent(row['worst'])} to {percent(row['best'])}"
        rows.append((cell(name), scores, str(row["best_layer"]), number(row["centre"], 2) + ends))
    return Table(("curve", "scores x 100", "best layer", "centre of gravity, relative depth"), rows)


def _on_screen(table: Table, title: str) -> ScreenTable:
    screen = ScreenTable(title=printable(title), box=SIMPLE, padding=(0, 1))
    for place, column in enumerate(table.columns):
        screen.add_column(printable(column), justify="left" if place == 0 else "right", overflow="fold")
    for row in table.rows:
        screen.add_row(*map(printable, row))
    return screen


def _write(
    folder: Path, frames: "Mapping[str, pd.DataFrame]", page: Page, blocks: tuple[Block, ...],
    draw: "Callable[[Album, Mapping[str, pd.DataFrame]], None]", formats: tuple[str, ...],
) -> None:  # fmt: skip
    """Write frames as tables, their figures, and a page of both."""
    pictures = Pictures()
    album = Album(folder, formats, pictures.keep)
    draw(album, frames)
    for name, frame in frames.items():
        write_file(folder / f"{name}.csv", write_frame(frame))
    part = Part("Results", blocks, pictures.take(), is_main=True)
    write_page(folder / PAGE, replace(page, parts=(part,)), pictures.classes)
    files = [PAGE, *(f"{name}.csv" for name in frames), *(file for files in album.drawn.values() for file in files)]
    show("\n".join(f"written: {folder / file}" for file in files))


def _open(name: str) -> Path:
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder {name!r} cannot be written ({first_line(error)}); name another.") from error
    return folder


def report_command(found: SimpleNamespace) -> int:
    """Write the page of a finished run from its folder, or one page of several runs side by side."""
    show(f"written: {write_report(found.runs, found.out)}")
    return 0
