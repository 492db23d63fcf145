"""`icecore compare`: finished runs beside each other, with paired differences and their layers on one scale."""

from pathlib import Path
from types import SimpleNamespace

from extract.errors import ConfigError, first_line, printable
from extract.files import write_file
from probes.cli.screen import show
from probes.runs.comparison import compare


def compare_command(found: SimpleNamespace) -> int:
    """Print a comparison of runs as Markdown, and write it to a folder where one is named."""
    comparison = compare(found.runs, head=found.head, split=found.split, n_resamples=found.resamples)
    show(printable(comparison.to_markdown()))
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
        show("\n".join(f"written: {path}" for path in (folder / "comparison.md", folder / "curves.csv", *drawn)))
    return 0
