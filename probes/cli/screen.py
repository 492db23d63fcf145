"""What a command reads line by line, what it shows while it works, and the folders it writes to."""

import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from extract.errors import ConfigError, InputError, first_line, looked_in, printable
from extract.run.progress import BarProgress
from probes.cli.arguments import Watched
from probes.fitting.progress import EpochReport
from probes.report.blocks import plain_text
from probes.report.document import run_lead, screen_table
from probes.report.scores import RunScores
from probes.runs.task_kinds import KINDS
from probes.runs.watcher import SILENT, Watcher

EVERY = 10  # epochs between two lines on a screen that is no terminal,
SECONDS = 30.0  # unless they take longer than this
BAR = 20  # characters
WORD_SCORES = {
    "validation_span-f1": "validation span F1 of the best layer",
    "validation_accuracy": "validation accuracy of the best layer",
}


def show(text: str) -> None:
    """Print text as it is: no colours, no line breaks but its own, and nothing that commands a terminal."""
    Console().print(printable(text), highlight=False, markup=False, soft_wrap=True)


def show_written(
    folder: Path, files: Iterable[str], figures: Mapping[str, Iterable[str]] = MappingProxyType({})
) -> None:
    """Print the files that were written to a folder, and those of every figure."""
    names = (*files, *(name for group in figures.values() for name in group))
    show("\n".join(f"written: {folder / name}" for name in names))


def show_run(folder: Path, scores: RunScores) -> None:
    """Print the results of a run, and where its report is."""
    report = KINDS[scores.header.kind].report
    Console(markup=False).print(screen_table(scores, report))
    show(plain_text(run_lead(scores, report.bare, {})))
    if scores.header.task["is_sample"]:
        show("The task is a sample shipped with icecore: these scores are no benchmark result.")
    show(f"{folder}/report.html is the report; summary.md holds the summary, scores.json the numbers.")


def read_lines(name: str) -> list[str]:
    """Read the lines of a text file, or of standard input for `-`."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"file {name!r} cannot be read ({first_line(error)}); give a UTF-8 text file{looked_in(name)}."
        ) from error
    return text.split("\n")  # splitlines would also break inside a text


def open_output(name: str | Path) -> Path:
    """Make a folder to write to; ConfigError where that is not possible."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder {str(folder)!r} cannot be written ({first_line(error)}); name another.") from error
    return folder


def watcher_of(args: Watched) -> Watcher:
    """Make the watcher of a command: on standard error, silent under `--quiet`, a line an epoch under `--verbose`."""
    return SILENT if args.quiet else screen_watcher(Console(stderr=True), is_verbose=args.verbose)


def screen_watcher(console: Console, *, is_verbose: bool = False) -> Watcher:
    """Make a watcher that shows remarks, the extraction's bar and the epochs of every head."""
    return Watcher(
        say=lambda line: console.print(printable(line), highlight=False, soft_wrap=True, markup=False),
        extraction=lambda title: BarProgress(console, title=printable(title)),
        epochs=lambda head, seed: _epochs(console, head, seed, is_verbose=is_verbose),
    )


def _epochs(console: Console, head: str, seed: int, *, is_verbose: bool) -> EpochReport:
    best: dict[str, float] = {}
    last_shown = time.monotonic()

    def report(epoch: int, values: dict[str, float]) -> None:
        nonlocal last_shown
        parts = [f"loss {values['train_loss']:.4f}"]
        for key, value in values.items():
            if key in WORD_SCORES or key.endswith("_pearson"):
                best[key] = max(best.get(key, value), value)
                label = WORD_SCORES.get(key) or f"{key.removesuffix('_pearson')} Pearson"
                parts.append(f"{label} {100 * value:.2f} (best {100 * best[key]:.2f})")
            elif key == "held_out_loss":
                best[key] = min(best.get(key, value), value)
                parts.append(f"held-out loss {value:.4f} (best {best[key]:.4f})")
        n_epochs = int(values.get("max_epochs", 0))
        line = printable(f"{head} seed {seed}: epoch {epoch}{f' of {n_epochs}' * bool(n_epochs)}, {', '.join(parts)}")
        if console.is_terminal and not is_verbose:
            console.print(_filled(epoch, n_epochs) + line, end="\r", highlight=False, soft_wrap=True, markup=False)
        elif is_verbose or epoch == 1 or epoch % EVERY == 0 or time.monotonic() - last_shown > SECONDS:
            last_shown = time.monotonic()
            console.print(line, highlight=False, soft_wrap=True, markup=False)

    return report


def _filled(epoch: int, n_epochs: int) -> str:
    """Draw how much of the epochs is done; a head may stop sooner."""
    n_full = BAR * epoch // n_epochs if n_epochs else 0
    return f"[{'#' * n_full}{'.' * (BAR - n_full)}] " if n_epochs else ""
