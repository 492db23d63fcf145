"""`icecore compare`: finished runs beside each other, with paired differences and their layers on one scale."""

from pathlib import Path
from types import SimpleNamespace

from rich.console import Console

from extract.errors import ConfigError, first_line
from extract.files import write_file
from probes.cli.screen import show
from probes.report.page.page import PAGE
from probes.runs.comparison import compare
from probes.runs.reports import write_comparison


def compare_command(found: SimpleNamespace) -> int:
    """Print a comparison of runs, and write it to a folder where one is named."""
    comparison = compare(found.runs, head=found.head, split=found.split, n_resamples=found.resamples)
    Console(markup=False).print(comparison.to_screen())
    show("\n".join(f"{sentence}." for sentence in comparison.verdicts()))
    if found.out:
        folder = Path(found.out)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"folder {found.out!r} cannot be written ({first_line(error)}); name another.") from error
        write_file(folder / "curves.csv", comparison.curves.to_csv(index=False))
        drawn = comparison.draw(folder, formats=found.figures)
        pictures = [f"\n![Layers]({path.name})\n" for path in drawn[:1]]
        write_file(folder / "comparison.md", "".join([comparison.to_markdown(), *pictures]))
        write_comparison(comparison, folder / PAGE)
        files = (folder / PAGE, folder / "comparison.md", folder / "curves.csv", *drawn)
        show("\n".join(f"written: {path}" for path in files))
    return 0
