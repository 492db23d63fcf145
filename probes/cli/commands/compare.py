"""`icecore compare`: finished runs beside each other, on the same rows, or with --across of any tasks."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from extract.errors import ConfigError, HeadError, first_line, printable
from extract.files import write_file
from probes.cli.screen import show
from probes.report.page.page import PAGE
from probes.report.table import number, percent
from probes.runs.across import centres_of_gravity, layers_across, rank_systems
from probes.runs.comparison import compare
from probes.runs.pages.reports import write_comparison, write_report

if TYPE_CHECKING:
    import pandas as pd


def compare_command(found: SimpleNamespace) -> int:
    """Print a comparison of runs, and write it to a folder where one is named."""
    if found.across:
        return _across(found)
    comparison = compare(found.runs, head=found.head, split=found.split, n_resamples=found.resamples)
    Console(markup=False).print(comparison.to_screen())
    show("\n".join(f"{sentence}." for sentence in comparison.verdicts()))
    if found.out:
        folder = _open(found.out)
        write_file(folder / "curves.csv", comparison.curves.to_csv(index=False))
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
    try:
        frames["ranks"] = rank_systems(found.runs, head=found.head).reset_index()
        reason = ""
    except HeadError as error:
        reason = f"no ranks: {error}"
    Console(markup=False).print(_centres_table(centres))
    if reason:
        show(reason)
    else:
        show(f"average normalised rank of plans, 0 is best:\n{frames['ranks'].round(2).to_string(index=False)}")
    if found.out:
        _write_across(_open(found.out), frames, found.figures)
    return 0


def _centres_table(centres: "pd.DataFrame") -> Table:
    from probes.report.figures.across import name_curves  # brings matplotlib with it

    table = Table(title="where scores are gained", box=SIMPLE, padding=(0, 1))
    table.add_column("curve", overflow="fold")
    for title in ("scores\nx 100", "best\nlayer", "centre of gravity,\nrelative depth"):
        table.add_column(title, justify="right")
    for name, part in name_curves(centres).items():
        row = part.iloc[0]
        ends = f" ({number(row['low'], 2)} to {number(row['high'], 2)})" if row["n_seeds"] > 1 else ""
        scores = f"{percent(row['worst'])} to {percent(row['best'])}"
        table.add_row(printable(name), scores, row["best_layer"], number(row["centre"], 2) + ends)
    return table


def _write_across(folder: Path, frames: "Mapping[str, pd.DataFrame]", formats: tuple[str, ...]) -> None:
    from probes.report.figures.across import ROW_INCHES, draw_centres, draw_layer_map, name_curves
    from probes.report.figures.style import Album, on_panel

    for name, frame in frames.items():
        write_file(folder / f"{name}.csv", frame.to_csv(index=False))
    album = Album(folder, formats)
    height = 1.7 + ROW_INCHES * len(name_curves(frames["centres"]))
    split = ", ".join(dict.fromkeys(frames["across"]["split"]))
    album.add(
        "across", on_panel(draw_layer_map), frames["across"], title="Every layer of every task", size=(7.0, height),
        note=f"rings: best layers; scores on {split}",
    )  # fmt: skip
    album.add(
        "centres", on_panel(draw_centres), frames["centres"], title="Centre of gravity of the gains",
        size=(5.2, height - 0.4),
        note="depth weighted by what each layer adds to the best below it (Tenney et al. 2019); bars: 95 % over seeds",
    )  # fmt: skip
    files = [*(f"{name}.csv" for name in frames), *(file for files in album.drawn.values() for file in files)]
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
