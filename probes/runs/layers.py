"""Which layers of finished runs matter: computed from their caches and kept heads, written beside their scores."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.decoders.layers import relative_depths
from extract.errors import InputError, unknown_name
from extract.files import write_file
from probes.layers.findings import FINDINGS, FINDINGS_SCHEMA, HeadFindings, load_findings
from probes.layers.study import StudyOptions, study_layers
from probes.report.write import without_nan
from probes.runs.existing import find_cache_of, find_cache_of_run
from probes.runs.finished import FinishedRun, read_config, read_finished
from probes.runs.obtain import SILENT, EncoderShelf, Watcher, load_run_task, obtain_corpus
from probes.runs.run import make_setting

if TYPE_CHECKING:
    import pandas as pd

LAYER_COLUMNS = (
    "run", "task", "kind", "decoder", "plan", "head", "pooling", "split", "view", "name", "layer", "depth", "metric",
    "value", "low", "high", "std", "in_set",
)  # fmt: skip
ALL = "all"


def compare_layers(
    runs: Iterable[str | Path] | str | Path, *, head: str = "", options: StudyOptions | None = None,
    caches: str | Path = "", watcher: Watcher = SILENT,
) -> "pd.DataFrame":  # fmt: skip
    """Find out which layers matter in finished runs, each by itself, together, and missing.

    Everything is computed from the caches and the heads that the runs kept; no decoder is run. What is found is written
    to `layers.json` in each run folder, where reports find it.

    Args:
        runs: Run folders, or one.
        head: The head to look at, in every run; `all` for every head; the best one of each run when empty.
        options: Which views, and how they are computed (`probes.StudyOptions`).
        caches: Folder of the caches; where each run says when empty.
        watcher: Receives what happens.

    Returns:
        A row per view and layer, with the columns `LAYER_COLUMNS`: `view` is a key of `probes.layers.findings.VIEWS`,
        `depth` is 0 at the embedding and 1 at the top, `low` and `high` hold all layers of the view at once, `std` is
        over seeds, `in_set` says whether the layer cannot be told from the best. Scores are fractions.

    Raises:
        HeadError: A folder without a finished run, or a head that cannot be taken apart.
        CacheError: The cache of a run is not there.
        InputError: No runs.

    Example:
        >>> frame = compare_layers("runs/demo")  # doctest: +SKIP
        >>> frame.query("view == 'alone' and in_set").layer.tolist()  # doctest: +SKIP
    """
    import pandas as pd

    folders = [Path(runs)] if isinstance(runs, str | Path) else [Path(each) for each in runs]
    if not folders:
        raise InputError("there are no runs; name at least one run folder, as runs/demo.")
    finished = [read_finished(folder) for folder in folders]
    for run in finished:
        if head not in ("", ALL, *run.heads):
            raise unknown_name("head of this run", head, run.heads)
    rows = []
    for run in finished:
        found = find_layers(run, head=head, options=options or StudyOptions(), caches=str(caches), watcher=watcher)
        rows += [row for each in found for row in frame_rows(run, each)]
    return pd.DataFrame(rows, columns=list(LAYER_COLUMNS))


def find_layers(
    run: FinishedRun, *, head: str, options: StudyOptions, caches: str = "", watcher: Watcher = SILENT
) -> list[HeadFindings]:
    """Study heads of one run, and write what is found into its folder; see `compare_layers`."""
    config = read_config(run.folder)
    config = replace(config, caches=caches) if caches else config
    task = load_run_task(config)
    cache = find_cache_of_run(run.folder, caches)
    corpus = obtain_corpus(config)
    shelf = EncoderShelf(config, find_cache_of(config, corpus), watcher) if corpus else None
    setting = make_setting(config, task, cache, run.folder / "heads", autoencoders=shelf)
    names = run.heads if head == ALL else [head or run.best]
    found = [
        study_layers(
            config.resolve_heads()[name], setting, run.scores.heads[name], options,
            watch=partial(watcher.epochs, name), report=watcher.say,
        )
        for name in names
    ]  # fmt: skip
    others = [each for each in load_findings(run.folder) if each.head not in names]
    values = {
        "schema": FINDINGS_SCHEMA,
        "run": run.scores.header.name,
        "heads": [x.to_dict() for x in (*found, *others)],
    }
    write_file(run.folder / FINDINGS, json.dumps(without_nan(values), indent=1, allow_nan=False) + "\n")
    return found


def frame_rows(run: FinishedRun, found: HeadFindings) -> list[dict[str, Any]]:
    """Give the rows of a frame of `LAYER_COLUMNS` for the findings of one head."""
    header: Mapping[str, Any] = run.scores.header.to_dict()
    common = {
        "run": header["name"], "task": header["task"]["name"], "kind": header["kind"],
        "decoder": header["decoder"]["name"], "plan": run.scores.cache["plan"], "head": found.head,
        "pooling": found.pooling, "split": found.split,
    }  # fmt: skip
    bare = [name.rpartition("/")[2] for name in found.layers]
    depths = dict(zip(found.layers, relative_depths(bare, header["decoder"]["n_layers"]), strict=True))
    return [{**common, "depth": depths.get(row["layer"], float("nan")), **row} for row in found.rows()]
