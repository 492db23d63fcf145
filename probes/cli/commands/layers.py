"""`icecore layers`: which layers of finished runs matter."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from extract.errors import UsageError, printable
from extract.files import write_file
from probes.cli.screen import show, watcher_of
from probes.layers.findings import load_findings
from probes.layers.study import PARTS, StudyOptions
from probes.report.safe_csv import write_frame
from probes.runs.finished import read_finished
from probes.runs.layers import ALL, compare_layers
from probes.runs.pages.reports import write_report

if TYPE_CHECKING:
    from probes.layers.findings import HeadFindings

SHOWN = {
    "selectivity": "selec-\ntivity", "shapley": "Shapley", "without": "with-\nout", "with": "with\nbest",
    "new-information": "new\nbits", "mix": "mix",
}  # fmt: skip
"""Views on screen beside `alone`, which an 80-column terminal has room for."""


READS = {
    "--orders": ("shapley",), "--components": ("shapley", "sets"),
    "--rows": ("baselines", "shapley", "sets", "information", "mix"),
}  # fmt: skip
"""Options that count for some views alone."""


def layers_command(found: SimpleNamespace) -> int:
    """Study the layers of finished runs, print what matters, and write it beside their scores."""
    for option, views in READS.items():
        if option in found.typed and found.views and not set(views) & set(found.views):
            raise UsageError(f"{option} counts for the views {', '.join(views)}, none of which --views names.")
    options = StudyOptions(
        views=found.views or PARTS, controls=found.controls, split=found.split, n_resamples=found.resamples,
        confidence=found.confidence, orders=found.orders, components=found.components, most_rows=found.rows,
    )  # fmt: skip
    watcher = watcher_of(found)
    frame = compare_layers(found.runs, head=found.head, options=options, caches=found.caches, watcher=watcher)
    for folder in map(Path, found.runs):
        run = read_finished(folder)
        names = run.heads if found.head == ALL else [found.head or run.best]
        for each in load_findings(folder):
            if each.head in names:
                Console(markup=False).print(layers_table(each, title=folder.name))
                show("\n".join([each.answer, *(f"Note: {line}" for line in each.warnings)]))
        show(f"written: {write_report(folder)}")
    if found.out:
        write_file(Path(found.out), write_frame(frame))
        show(f"written: {found.out}")
    return 0


def layers_table(found: "HeadFindings", *, title: str) -> Table:
    """Make the table of layers for a terminal: scores times 100, a mark at layers of the set that holds the best."""
    table = Table(
        title=printable(f"{title}: {found.head}, {found.metric} x 100 on {found.split}"),
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    curves = {view: curve for view in SHOWN if (curve := found.curve(view))}
    for name in ("layer", "", "alone", "interval", *(SHOWN[view] for view in curves)):
        table.add_column(name, justify="left" if name in ("layer", "") else "right", no_wrap=True)
    alone = found.curve("alone")
    if alone is None:
        return table
    for k, layer in enumerate(found.layers):
        ends = f"{_times(alone.low, k)} to {_times(alone.high, k)}" if alone.low else ""
        mark = "best" if layer == found.best else "*" if layer in found.best_set else ""
        cells = (
            _bits(curve.values, k) if curve.metric == "bits" else _times(curve.values, k) for curve in curves.values()
        )
        table.add_row(printable(layer), mark, _times(alone.values, k), ends, *cells)
    return table


def _times(values: Sequence[float], place: int) -> str:
    return f"{100 * values[place]:.1f}" if np.isfinite(values[place]) else ""


def _bits(values: Sequence[float], place: int) -> str:
    return f"{values[place]:.2f}" if np.isfinite(values[place]) else ""
