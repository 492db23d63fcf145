"""`icecore geometry`: the geometry of every layer of caches, and how alike layers are; no decoder is loaded."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from extract.errors import ConfigError, IcecoreError, UsageError, first_line, printable, unknown_name
from extract.files import write_file
from probes.cli.parsing import read_config
from probes.cli.screen import show
from probes.geometry.geometry import cosine_with_gold, measure_geometry, require_pairs
from probes.geometry.measures import MEASURES
from probes.geometry.sample import WHERE
from probes.geometry.similarity import MOST_SHARED, similarity_of_layers
from probes.report.figures.geometry import (
    GEOMETRY_NOTE,
    draw_geometry,
    draw_similarity,
    split_series,
)
from probes.report.figures.style import WIDE, Album, on_panel
from probes.report.safe_csv import write_frame
from probes.report.table import NOTHING
from probes.runs.existing import is_run, open_named
from probes.runs.obtain import load_run_task
from probes.runs.record import CONFIG
from probes.tasks import PairTask

if TYPE_CHECKING:
    import pandas as pd

GOLD, SIMILARITY = "gold", "similarity"
ALL = (*MEASURES, GOLD, SIMILARITY)
ON_SCREEN = {
    "mean-cosine": ("mean\ncosine", 3), "norm": ("mean\nnorm", 1), "massive-dimensions": ("massive\ndims", 0),
    "massive-share": ("their\nshare", 3), "effective-rank": ("effective\nrank", 1),
    "intrinsic-dimension": ("TwoNN\ndim", 1), "gold-pearson": ("gold\nPearson", 3),
}  # fmt: skip
"""Columns of the table on the screen: their titles and decimals."""
MOST_LAYERS = 12
"""Layers in the table on the screen."""


def geometry_command(found: SimpleNamespace) -> int:
    """Measure the layers of caches, print a short table, and write frames and figures where a folder is named."""
    import pandas as pd

    wanted = [name.strip() for name in found.measures.split(",") if name.strip()] or list(ALL)
    for name in wanted:
        if name not in ALL:
            raise unknown_name("measure", name, ALL)
    sources = [Path(each) for each in found.sources]
    if GOLD in found.measures:
        _require_gold(found, wanted, sources)
    caches = [open_named(source) for source in found.sources]
    how = {"pooling": found.pooling, "seed": found.seed, "standardise": found.standardise}
    measures = [name for name in wanted if name in MEASURES]
    parts = []
    for source, cache in zip(sources, caches, strict=True):
        pairs = _pairs_of(source, is_asked=GOLD in found.measures) if is_run(source) else None
        if measures:
            texts = () if pairs is None else _first_texts(pairs)
            parts.append(measure_geometry(cache, measures=measures, texts=texts, most_rows=found.rows, **how))
        if GOLD in wanted and pairs is not None:
            split = "validation" if "validation" in pairs.splits else next(iter(pairs.splits))
            parts.append(cosine_with_gold(cache, pairs, split=split, pooling=found.pooling))
    frame = pd.concat(parts) if parts else pd.DataFrame()
    for label, part in split_series(frame).items() if parts else ():
        _show(label, part)
    alike = []
    if SIMILARITY in wanted:
        rows = min(found.rows, MOST_SHARED)
        alike = [similarity_of_layers(cache, most_rows=rows, **how) for cache in caches]
        alike += [similarity_of_layers(caches[0], other, most_rows=rows, **how) for other in caches[1:]]
    if found.out:
        _write(Path(found.out), frame, alike, found.figures)
    return 0


def _require_gold(found: SimpleNamespace, wanted: Sequence[str], sources: Sequence[Path]) -> None:
    """Refuse sources without pairs, and options that gold does not read."""
    for source in sources:
        if not is_run(source):
            raise UsageError(f"the measure {GOLD!r} needs the pairs of a run, and {str(source)!r} is no run folder.")
    for option in ("--rows", "--seed", "--standardise"):
        if option in found.typed and list(wanted) == [GOLD]:
            raise UsageError(f"{option} does nothing for the measure {GOLD!r}, which reads every pair as it is.")


def _pairs_of(folder: Path, *, is_asked: bool) -> PairTask | None:
    """Load the pairs of a run; None where it has none or they are gone, which is an error if gold was asked for."""
    try:
        task = load_run_task(read_config([], file=str(folder / CONFIG)))
    except IcecoreError as error:
        if is_asked:
            raise
        show(f"the task of {str(folder)!r} cannot be loaded, so no gold: {first_line(error)}")
        return None
    if is_asked:
        require_pairs(task)
    return cast("PairTask", task) if task.kind == "pairs" else None


def _first_texts(task: PairTask) -> list[str]:
    """List the first text of every pair once: a paraphrase beside it would be its nearest neighbour."""
    return list(dict.fromkeys(text for split in task.splits for text in task.rows(split)["sentence1"]))


def _show(label: str, frame: "pd.DataFrame") -> None:
    """Print one series: a row per layer, as many as a screen holds."""
    layers, measures = (list(dict.fromkeys(frame[name])) for name in ("layer", "measure"))
    columns = {name: ON_SCREEN[name] for name in measures if name in ON_SCREEN}
    shown = np.unique(np.linspace(0, len(layers) - 1, MOST_LAYERS).round().astype(int)).tolist()
    first = frame.iloc[0]
    title = f"{first['decoder']}, {first['plan']}, {first['pooling']}"
    table = Table(title=printable(title if title != label else label), box=SIMPLE, padding=(0, 1))
    table.add_column("layer", no_wrap=True, min_width=len("final_norm"))
    for name, _ in columns.values():
        table.add_column(name, justify="right")
    values = frame.pivot(index="layer", columns="measure", values="value")
    for place in shown:
        numbers = [(values.loc[layers[place], name], digits) for name, (_, digits) in columns.items()]
        table.add_row(layers[place], *(NOTHING if np.isnan(x) else f"{x:,.{digits}f}" for x, digits in numbers))
    Console(markup=False).print(table)
    show(f"{_counts(frame)}, drawn with a seed; {len(shown)} of {len(layers)} layers, all with --out")


def _write(folder: Path, frame: "pd.DataFrame", alike: "Sequence[pd.DataFrame]", formats: Sequence[str]) -> None:
    """Write the frames as CSV, and the figures."""
    import pandas as pd

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder {str(folder)!r} cannot be written ({first_line(error)}); name another.") from error
    album, written = Album(folder, formats), []
    if len(frame):
        write_file(folder / "geometry.csv", write_frame(frame))
        written.append("geometry.csv")
        album.add(
            "geometry", draw_geometry, frame, title=f"Geometry of layers, {_title(frame)}", size=WIDE,
            note=f"{_counts(frame)}; {GEOMETRY_NOTE}",
        )  # fmt: skip
    if alike:
        write_file(folder / "similarity.csv", write_frame(pd.concat(alike)))
        written.append("similarity.csv")
    for number, each in enumerate(alike, 1):
        album.add(
            "similarity" + f"_{number}" * (len(alike) > 1), on_panel(draw_similarity), each, size=(5.2, 4.4),
            title=f"Similarity of layers, {_sides(each)}", note=f"{int(each['n_rows'].iloc[0]):,} rows",
        )  # fmt: skip
    files = [*written, *(file for files in album.drawn.values() for file in files)]
    show("\n".join(f"written: {folder / file}" for file in files))


def _counts(frame: "pd.DataFrame") -> str:
    """Say how many rows and pairs the values are of."""
    is_gold = ~frame["measure"].isin(list(MEASURES))
    counts = ((noun, frame.loc[part, "n_rows"].unique()) for noun, part in (("rows", ~is_gold), ("pairs", is_gold)))
    return ", ".join(f"{' and '.join(f'{n:,}' for n in found)} {noun}" for noun, found in counts if len(found))


def _title(frame: "pd.DataFrame") -> str:
    """Name what all rows of a frame share: decoder, plan, pooling."""
    return ", ".join(str(frame[name].iloc[0]) for name in ("decoder", "plan", "pooling") if frame[name].nunique() == 1)


def _sides(frame: "pd.DataFrame") -> str:
    """Name both sides of a comparison, once where they are the same cache."""
    first = frame.iloc[0]
    one, other = (", ".join(str(first[prefix + name]) for name in WHERE[1:4]) for prefix in ("", "other_"))
    return one if first["cache"] == first["other_cache"] and one == other else f"{one} against {other}"
