"""Commands that show results: compare, report; they load no torch unless caches are read."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as ScreenTable

from extract.errors import HeadError, UsageError, printable
from extract.files import write_file, write_frame
from probes.adaptation.abilities import compare_abilities, holds_abilities, score_screen, verdicts, write_compared
from probes.cli.commands import CompareArgs, ReportArgs
from probes.cli.screen import open_output, show, show_written
from probes.metrics.significance import FEW_UNITS, too_few
from probes.report.blocks import Block, Table, cell, metric_label, number, percent, signed_interval
from probes.report.comparison_figures import draw_across, draw_gaps, name_curves
from probes.report.page import PAGE, Page, Part, Pictures, write_page
from probes.report.predictions import digest_source, is_drawn, note_drawn
from probes.report.style import Album
from probes.runs.compare import Comparison, compare, note_on_settings, write_comparison, write_report
from probes.runs.results import centres_of_gravity, layers_across, open_runs, rank_systems


def compare_command(args: CompareArgs) -> int:
    if any(map(holds_abilities, args.runs)):
        return _compare_abilities(args)
    if args.across:
        return _across(args)
    if args.by_layer:
        return _by_layer(args)
    comparison = compare(args.runs, head=args.head, split=args.split, by=args.by, n_resamples=args.resamples)
    Console(markup=False).print(comparison.to_screen())
    if comparison.parts:
        Console(markup=False).print(comparison.parts_to_screen())
    show("\n".join([*(f"{sentence}." for sentence in comparison.verdicts()), *comparison.notes()]))
    if args.out:
        _write_comparison(comparison, open_output(args.out), args)
    return 0


def _compare_abilities(args: CompareArgs) -> int:
    """Print what decoders can do with text side by side, and write it to a folder where one is named."""
    for option in ("--head", "--split", "--by", "--across", "--by-layer"):
        if option in args.typed:
            raise UsageError(f"{option} is for runs, and these are folders of `icecore infill`; leave it out.")
    compared = compare_abilities(args.runs, n_resamples=args.resamples)
    Console(markup=False).print(score_screen(compared))
    show("\n".join(f"{sentence}." for sentence in verdicts(compared)))
    if args.out:
        folder = open_output(args.out)
        drawn = write_compared(folder, compared, formats=args.figures)
        show_written(folder, (PAGE, "summary.md", "comparison.csv"), drawn)
    return 0


def _write_comparison(comparison: Comparison, folder: Path, args: CompareArgs) -> None:
    """Write a comparison as tables, a figure and a page, unless they are there and nothing of them has changed."""
    asked = (args.head, args.split, args.resamples, list(args.figures), comparison.part_table.to_csv())
    options = (*asked, *(run.label for run in comparison.runs))
    source = digest_source([run.folder.path for run in comparison.runs], *options)
    page = folder / PAGE
    if is_drawn(page, "comparison", source):
        show(f"{page} is of the same scores: nothing is drawn")
        return
    write_file(folder / "curves.csv", write_frame(comparison.curves))
    if comparison.parts:
        write_file(folder / "parts.csv", write_frame(comparison.part_table))
    drawn = comparison.draw(folder, formats=args.figures)
    pictures = [f"\n![Layers]({path.name})\n" for path in drawn[:1]]
    write_file(folder / "comparison.md", "".join([comparison.to_markdown(), *pictures]))
    write_comparison(comparison, page)
    tables = ("curves.csv", *["parts.csv"] * bool(comparison.parts))
    files = (PAGE, "comparison.md", *tables, *(path.name for path in drawn))
    note_drawn(page, "comparison", source, files)
    show_written(folder, files)


def _across(args: CompareArgs) -> int:
    """Print where runs of any tasks gain their scores, and plans ranked over tasks where they can be."""
    runs = open_runs(args.runs)
    centres = centres_of_gravity(runs, head=args.head)
    frames = {"centres": centres, "across": layers_across(runs, head=args.head)}
    tables = [_centres_table(centres)]
    try:
        frames["ranks"] = ranks = rank_systems(runs, head=args.head).reset_index()
        rows = [[str(row[0]), *(number(value, 2) for value in row[1:])] for row in ranks.itertuples(index=False)]
        tables.append(Table(list(ranks.columns), [[cell(text) for text in row] for row in rows]))
        notes = ["Plans by their average normalised rank over tasks; 0 is the best."]
    except HeadError as error:
        notes = [f"no ranks: {error}"]
    for table, title in zip(tables, ("where scores are gained", "average normalised rank of plans"), strict=False):
        Console(markup=False).print(_on_screen(table, title))
    show("\n".join(notes))
    if args.out:
        answers: tuple[str, ...] = ()
        if centres["centre"].notna().any():
            best = centres.loc[centres["centre"].idxmin()]
            where = f"{best['task']} ({best['plan']}, {best['head']})"
            depth = number(best["centre"], 2)
            answers = (f"Scores are gained lowest in {where}: centre of gravity {depth} of the depth.",)
        page = Page("Runs of any tasks", "Where do layers gain their scores?", answers, (), ())
        _write(open_output(args.out), frames, page, (*tables, *notes), draw_across, args.figures)
    return 0


def _by_layer(args: CompareArgs) -> int:
    """Print what the second of two runs has over the first at every layer alone."""
    if len(args.runs) != 2:
        raise HeadError(f"--by-layer compares two runs, and {len(args.runs)} were given; name two.")
    from probes.runs.layer_studies import compare_at_layers  # reads caches, with torch

    first, second = open_runs(args.runs)
    frame = compare_at_layers(
        second, first, head=args.head, split=args.split, n_resamples=args.resamples, caches=args.caches
    )
    where = frame.iloc[0]
    one, other, metric = (str(where[name]) for name in ("one", "other", "metric"))
    rows = [
        (
            row.layer,
            percent(row.over),
            percent(row.value),
            percent(row.difference, sign="+"),
            signed_interval(row.low, row.high),
        )
        for row in frame.itertuples()
    ]
    table = Table(("layer", cell(other), cell(one), "difference", "95 % interval"), rows)
    title = f"every layer alone, {where['head']}, {metric_label(metric)} x 100 on {where['split']}"
    few = f"There are {too_few('rows', int(where['n_units']))} to tell {one} and {other} apart."
    answer = (
        few
        if where["n_units"] < FEW_UNITS
        else (
            f"{one} is better than {other} at {int((frame['low'] > 0).sum())} of {len(frame)} layers and worse at "
            f"{int((frame['high'] < 0).sum())}; the intervals hold the differences of all layers at once."
        )
    )
    Console(markup=False).print(_on_screen(table, title))
    note = note_on_settings(first, second, str(where["head"]))
    show(f"{answer}\n{note}")
    if args.out:
        page = Page(f"{one} over {other}", f"At which layers do {one} and {other} differ?", (answer, note), (), ())
        _write(open_output(args.out), {"by-layer": frame}, page, (f"Scores: {title}.", table), draw_gaps, args.figures)
    return 0


def _centres_table(centres: pd.DataFrame) -> Table:
    rows = []
    for name, part in name_curves(centres).items():
        row = part.iloc[0]
        ends = f" ({number(row['low'], 2)} to {number(row['high'], 2)})" if row["n_seeds"] > 1 else ""
        scores = f"{percent(row['worst'])} to {percent(row['best'])}"
        rows.append((cell(name), scores, str(row["best_layer"]), number(row["centre"], 2) + ends))
    return Table(("curve", "scores x 100", "best layer", "centre of gravity, relative depth"), rows)


def _on_screen(table: Table, title: str) -> ScreenTable:
    screen = ScreenTable(title=printable(title), box=SIMPLE, padding=(0, 1))
    for index, column in enumerate(table.columns):
        screen.add_column(printable(column), justify="left" if index == 0 else "right", overflow="fold")
    for row in table.rows:
        screen.add_row(*map(printable, row))
    return screen


def _write(
    folder: Path,
    frames: Mapping[str, pd.DataFrame],
    page: Page,
    blocks: tuple[Block, ...],
    draw: Callable[[Album, Mapping[str, pd.DataFrame]], None],
    formats: tuple[str, ...],
) -> None:
    """Write frames as tables, their figures, and a page of both."""
    pictures = Pictures()
    album = Album(folder, formats, pictures.keep)
    draw(album, frames)
    for name, frame in frames.items():
        write_file(folder / f"{name}.csv", write_frame(frame))
    part = Part("Results", blocks, pictures.take(), is_main=True)
    write_page(folder / PAGE, replace(page, parts=(part,)), pictures.classes)
    show_written(folder, (PAGE, *(f"{name}.csv" for name in frames)), album.drawn)


def report_command(args: ReportArgs) -> int:
    show(f"written: {write_report(args.runs, args.out)}")
    return 0
