"""What a command reads line by line, what it shows while it works, and the folders it writes to."""

import math
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from extract.errors import ConfigError, InputError, first_line, looked_in, printable
from extract.run.extraction_spec import ExtractionProgress
from probes.cli.arguments import Watched
from probes.data.task import Task, notes_by_split
from probes.data.task_table import task_title
from probes.fitting.fit_options import EpochReport
from probes.report.blocks import plain_text
from probes.report.document import run_lead, screen_table
from probes.report.scores import RunScores
from probes.runs.task_kinds import KINDS
from probes.runs.watcher import SILENT, Pace, Watcher, short_time

EVERY = 10  # epochs between two lines on a screen that is no terminal,
SECONDS = 30.0  # unless they take longer than this
BAR = 10  # characters
MOST_NAMES = 20
"""Classes or tags that a dry run names."""
_LABELS = {
    "validation_span-f1": "validation span F1 of the best layer",
    "validation_accuracy": "validation accuracy of the best layer",
    "held_out_loss": "held-out loss",
}
"""Labels of reported values; those of correlations are made of their names, and others are not shown."""


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
    for note in scores.header.task.get("shared_rows", {}).values():
        show(f"{note}.")
    show(plain_text(run_lead(scores, report.bare, {})))
    if scores.header.task["is_sample"]:
        show("The task is a sample shipped with icecore: these scores are no benchmark result.")
    show(f"{folder}/report.html is the report; summary.md holds the summary, scores.json the numbers.")
    if KINDS[scores.header.kind].predicts_rows:
        show(
            f"Next: icecore layers {folder} says what each layer adds, icecore predict {folder} FILE predicts new rows."
        )


def show_task(task: Task) -> None:
    """Print what a dry run says of a task: rows of each split, classes or tags, range, and what was dropped."""
    info = task.describe()
    rows = ", ".join(f"{split} {n:,}" for split, n in info.n_rows.items())
    lines = [f"task      {task_title(info.name)} ({info.kind}): {rows} rows"]
    for key, label in (("class_names", "classes"), ("tags", "tags")):
        if isinstance(names := info.of_kind.get(key), list) and names:
            more = f" and {len(names) - MOST_NAMES} more" * (len(names) > MOST_NAMES)
            lines.append(f"{label:10}{len(names)}: {', '.join(map(str, names[:MOST_NAMES]))}{more}")
    if isinstance(ends := info.of_kind.get("score_range"), list):
        lines.append(f"range     {ends[0]:g} to {ends[1]:g}")
    show("\n".join([*lines, *(f"note      {note}" for note in notes_by_split(info.notes))]))


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


class BarProgress(ExtractionProgress):
    """A bar with rows/s, tokens/s and time left; off a terminal, a line every half minute."""

    def __init__(self, console: Console, *, title: str) -> None:
        self._console, self._title, self._pace = console, title, Pace()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}"),
            console=console,
            transient=False,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=None, rates="")
        self._printed = 0.0

    def expect(self, *, n_tokens: int) -> None:
        """Let tokens decide the time left."""
        self._pace.n_expected = n_tokens

    def start(self, *, n_rows: int, n_done: int) -> None:
        """Show the bar."""
        self._pace.start(n_rows=n_rows, n_done=n_done)
        self._printed = self._pace.started
        self._bar.update(self._task, total=n_rows or None, completed=n_done)
        self._bar.start()

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        """Move the bar."""
        pace = self._pace
        seconds = pace.advance(n_rows=n_rows, n_tokens=n_tokens)
        rates = f"{(pace.n_done - pace.n_before) / seconds:,.0f} rows/s {pace.n_tokens / seconds:,.0f} tokens/s"
        left = pace.left(seconds)
        rates += "" if left is None else f" {short_time(left)} left"
        self._bar.update(self._task, completed=pace.n_done, rates=rates)
        now = pace.started + seconds
        if not self._console.is_terminal and now - self._printed > 30:
            self._printed = now
            of = f" of {pace.n_rows:,}" if pace.n_rows else ""
            self._console.print(f"{self._title}: {pace.n_done:,}{of} rows, {rates}", soft_wrap=True)

    def finish(self) -> None:
        """Stop the bar."""
        self._bar.stop()


def _epochs(console: Console, head: str, seed: int, *, is_verbose: bool) -> EpochReport:
    best: dict[str, float] = {}
    started = last_shown = time.monotonic()
    first = 0
    is_line = console.is_terminal and not is_verbose
    room = max(console.width, 40) - 1

    def report(epoch: int, values: dict[str, float]) -> None:
        nonlocal last_shown, first
        now, name, first = time.monotonic(), f"{head} seed {seed}", first or epoch
        long, short = [], []
        for key, value in values.items():
            label = _LABELS.get(key) or f"{key.removesuffix('_pearson')} Pearson" * key.endswith("_pearson")
            if label:
                is_loss = key == "held_out_loss"
                before = best.get(key, value)  # NaN for predictions that are all alike
                best[key] = value if math.isnan(before) else (min if is_loss else max)(before, value)
                one, top = (f"{x:.4f}" if is_loss else f"{100 * x:.2f}" for x in (value, best[key]))
                long.append(f"{label} {one} (best {top})")
                short.append(f"{label if is_loss else key.partition('_')[0]} {one} (best {top})")
        n_epochs = int(values.get("max_epochs", 0))
        patience = [f"patience {values['patience_left']:.0f}"] if "patience_left" in values else []
        left = short_time((now - started) / (epoch - first + 1) * (n_epochs - epoch)) if n_epochs > epoch else ""
        if is_line:
            of = f"/{n_epochs}" * bool(n_epochs)
            line = f" {epoch}{of}: {', '.join([*short, *patience, *[left] * bool(left)])}"
            filled = _filled(epoch, n_epochs)
            filled *= len(filled) + len(name) + len(line) <= room
            name_room = max(room - len(line), 8)
            name = name if len(name) <= name_room else f"{name[: name_room - 1]}…"
            console.print(fit_line(filled + name + line, room), end="\r", highlight=False, soft_wrap=True, markup=False)
        elif is_verbose or epoch == 1 or epoch % EVERY == 0 or now - last_shown > SECONDS:
            last_shown = now
            of = f" of {n_epochs}" * bool(n_epochs)
            parts = [f"epoch {epoch}{of}", f"loss {values['train_loss']:.4f}", *long, *patience]
            parts += [f"at most {left} left"] * bool(left)
            console.print(printable(f"{name}: {', '.join(parts)}"), highlight=False, soft_wrap=True, markup=False)
        why = f"ended with epoch {epoch}, the last (max_epochs)" * (0 < n_epochs <= epoch)
        if values.get("patience_left", 1) <= 0:
            why = f"stopped after epoch {epoch}, as {values['patience']:.0f} epochs brought nothing better"
        if why:
            line = f"{name}: {why}"
            console.print(
                fit_line(line, room) if is_line else printable(line), highlight=False, soft_wrap=True, markup=False
            )

    return report


def fit_line(text: str, width: int) -> str:
    """Cut a line to a width, and fill it up to it, so that it covers what was there.

    Example:
        >>> fit_line("epoch 1", 5), fit_line("a", 3)
        ('epoc…', 'a  ')
    """
    text = printable(text)
    return (text if len(text) <= width else f"{text[: width - 1]}…").ljust(width)


def _filled(epoch: int, n_epochs: int) -> str:
    """Draw how much of the epochs is done; a head may stop sooner."""
    n_full = BAR * epoch // n_epochs if n_epochs else 0
    return f"[{'#' * n_full}{'.' * (BAR - n_full)}] " if n_epochs else ""
