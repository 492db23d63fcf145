"""`icecore mteb`: scores of mteb for every layer."""

from pathlib import Path
from types import SimpleNamespace

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from extract.decoders.loading import load_decoder
from extract.errors import UsageError, printable
from extract.files import write_file
from extract.names import require_extra
from probes.cli.screen import show, watcher_of
from probes.export.mteb_run import fill_task, run_mteb
from probes.report.figures.mteb import draw_scores
from probes.report.figures.style import Album
from probes.report.safe_csv import write_frame
from probes.runs.obtain import load_run_task


def mteb_command(found: SimpleNamespace) -> int:
    """Evaluate every layer of a configuration's decoder on tasks of mteb; print the best and draw the curves."""
    if not found.tasks:
        raise UsageError("--tasks is missing; give names of mteb's tasks with ',' between them, as STSBenchmark.")
    mteb = require_extra("mteb")
    config, watcher = found.config, watcher_of(found)
    tasks = list(found.tasks)
    if found.local:
        rows = load_run_task(config)
        tasks = [fill_task(mteb.get_task(name), rows) for name in tasks]
    decoder = load_decoder(config.decoder, report=watcher.say)
    folder = Path(found.out)
    frame = run_mteb(
        decoder, config.extraction, tasks, out=folder, caches=config.caches, report=watcher.say,
        progress=watcher.extraction("texts of mteb"),
    )  # fmt: skip
    table = Table(title=printable(f"mteb, {decoder.description.name}, {config.extraction.plan}"), box=SIMPLE)
    for column in ("task", "split", "pooling", "metric", "best layer", "score x 100", "last layer x 100"):
        table.add_column(column)
    for (task, split, pooling), rows_of in frame.groupby(["task", "split", "pooling"], sort=False):
        best = rows_of.loc[rows_of["score"].idxmax()]
        last = 100 * rows_of["score"].iloc[-1]
        table.add_row(task, split, pooling, best["metric"], best["layer"], f"{100 * best['score']:.1f}", f"{last:.1f}")
    Console(markup=False).print(table)
    show("The best layer was chosen on the scores themselves, so its score is optimistic.")
    if found.local:
        show(f"The rows are those of {config.task.name}, not those that mteb downloads: no benchmark result.")
    write_file(folder / "mteb.csv", write_frame(frame))
    album = Album(folder, found.figures)
    what = f"{decoder.description.name}, {config.extraction.plan}"
    album.add("mteb", draw_scores, frame, title=f"Scores of mteb by layer, {what}", note="mteb's main score per split")
    show("\n".join(f"written: {folder / file}" for file in ("mteb.csv", *sum(album.drawn.values(), ()))))
    return 0
