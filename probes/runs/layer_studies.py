"""Which layers of finished runs matter: computed from their caches and saved heads, written beside their scores."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from extract import registry as gate
from extract.decoders.decoder_spec import relative_depths
from extract.errors import HeadError, InputError, unknown_name
from extract.files import write_file
from extract.records import to_plain
from probes.data.task import Task
from probes.heads.layer_head import FitContext, HeadParts, ablate
from probes.layers import FINDINGS
from probes.layers.findings import (
    FINDINGS_SCHEMA,
    VIEWS,
    HeadFindings,
    LayerPredictions,
    Resampled,
    load_findings,
    save_predictions,
)
from probes.layers.study import HeadStudy, StudyOptions, require_controls
from probes.metrics.bootstrap import Resampling
from probes.metrics.significance import joint_intervals
from probes.report import style
from probes.report.blocks import plain_text
from probes.report.layer_figures import draw_alone, findings_blocks, findings_note, set_sentence
from probes.report.page import notebook_html, picture_of
from probes.report.scores import plans_read, without_nan
from probes.runs.compare import read_rows, read_runs
from probes.runs.folder import RunFolder
from probes.runs.predict import LoadedRun, read_run_folder
from probes.runs.results import Runs, open_runs
from probes.runs.run import EncoderStore, find_sides, make_context
from probes.runs.run_caches import find_cache_of
from probes.runs.run_config import load_run_task, obtain_corpus
from probes.runs.task_kinds import KINDS
from probes.runs.watcher import SILENT, Watcher

LAYER_COLUMNS = (
    *("run", "task", "kind", "decoder", "plan", "head", "pooling"),
    *("split", "view", "name", "layer", "depth", "metric"),
    *("value", "low", "high", "std", "in_set", "is_chosen"),
)
GAP_COLUMNS = (
    *("one", "other", "head", "split", "layer", "depth", "metric"),
    *("value", "over", "difference", "low", "high", "n_units"),
)
ALL = "all"


def compare_layers(
    runs: Runs,
    *,
    head: str = "",
    options: StudyOptions | None = None,
    caches: str | Path = "",
    watcher: Watcher = SILENT,
    allow_code: str | Iterable[str] = (),
) -> pd.DataFrame:
    """Find out which layers matter in finished runs, each by itself, together, and missing.

    Everything is computed from the caches and the saved heads; no decoder is run. The findings are written to
    `layers.json` in each run folder, where reports read them.

    Args:
        runs: Run folders, or one.
        head: The head to study in every run; `all` for every head; the best one of each run when empty.
        options: Which views, and how they are computed (`icecore.StudyOptions`).
        caches: Folder of the caches; the one that each run names when empty.
        watcher: Progress callbacks; silent by default.
        allow_code: Modules of your own poolings, masks and heads that the runs may import, as `my_parts`, or several.

    Returns:
        A row per view and layer, with the columns `LAYER_COLUMNS`: `view` is a key of `probes.layers.findings.VIEWS`,
        `depth` is 0 at the embedding and 1 at the top, `low` and `high` hold all layers of the view at once, `std` is
        over seeds, `in_set` says whether the layer is statistically tied with the best, `is_chosen` whether it is the
        one to use. Scores are fractions.

    Raises:
        HeadError: A folder without a finished run, or a head whose layers cannot be scored.
        CacheError: The cache of a run is missing.
        CodeError: A run names a module that is not allowed, or is not the one it recorded.
        InputError: No runs.

    Example:
        >>> frame = compare_layers("runs/demo")  # doctest: +SKIP
        >>> frame.query("view == 'alone' and in_set").layer.tolist()  # doctest: +SKIP
    """
    opened = open_runs(runs)
    if not opened:
        raise InputError("there are no runs; name at least one run folder, as runs/demo.")
    options, rows = options or StudyOptions(), []
    with gate.allow_code(allow_code):
        folders = [read_run_folder(folder) for folder in opened]
        for folder in folders:
            if head not in ("", ALL, *folder.heads):
                raise unknown_name("head of this run", head, folder.heads)
            if options.controls:
                require_controls(KINDS[folder.values["kind"]])
        for folder in folders:
            for findings in find_layers(folder, head=head, options=options, caches=str(caches), watcher=watcher):
                rows += frame_rows(folder, findings)
    return pd.DataFrame(rows, columns=list(LAYER_COLUMNS))


@dataclass(frozen=True, eq=False)
class LayerStudy:
    """What every layer of a run is worth by itself, to one head; a notebook shows verdict, figure and table."""

    run: str
    """Name of the run."""
    findings: HeadFindings
    """The layer to use (`findings.recommended`), tied layers (`findings.best_set`), and every view."""
    frame: pd.DataFrame
    """A row per view and layer with the columns of `compare_layers`: `value`, `low`, `high`, `in_set`."""

    @classmethod
    def of(
        cls, run: str | Path | LoadedRun, *, head: str = "", options: StudyOptions | None = None, caches: str = ""
    ) -> "LayerStudy":
        """Study a head of a finished run, the best one if empty; arguments and errors are those of `compare_layers`.

        Example:
            >>> LayerStudy.of("runs/demo").findings.best_set  # doctest: +SKIP
        """
        folder = RunFolder(run.folder) if isinstance(run, LoadedRun) else read_run_folder(run)
        if head not in ("", *folder.heads):
            raise unknown_name("head of this run", head, folder.heads)
        options = options or StudyOptions(views=("alone", "baselines"))
        [findings] = find_layers(folder, head=head, options=options, caches=caches)
        rows = pd.DataFrame(frame_rows(folder, findings), columns=list(LAYER_COLUMNS))
        return cls(folder.scores.header.name, findings, rows)

    @cached_property
    def figure(self) -> Figure:
        """The curve of every layer with its interval, the tied set shaded, and baselines."""
        return style.make_figure(
            style.on_panel(draw_alone),
            self.findings,
            title=f"{self.findings.head}: {VIEWS['alone'].asks}",
            note=findings_note(self.findings),
            size=style.TALL,
        )

    @property
    def answer(self) -> str:
        """The layer to use, those that are statistically tied with the best, and what else was found, in sentences."""
        return plain_text(" ".join(self._sentences()))

    def _sentences(self) -> tuple[str, ...]:
        return (self.findings.answer or set_sentence(self.findings), *self.findings.warnings)

    def __repr__(self) -> str:
        findings = self.findings
        n_tied = f"use {findings.recommended}; {len(findings.best_set)} of {len(findings.layers)} layers are tied"
        return f"<layers of {findings.head} in run {self.run!r}, {findings.metric} on {findings.split}:\n {n_tied}>"

    def _repr_html_(self) -> str:
        return notebook_html(
            f"Layers of {self.run}",
            " ".join(self._sentences()),
            picture=picture_of(self.figure),
            blocks=list(findings_blocks(self.findings)),
        )


def find_layers(
    run: RunFolder, *, head: str, options: StudyOptions, caches: str = "", watcher: Watcher = SILENT
) -> list[HeadFindings]:
    """Study heads of one run, and write the findings into its folder; see `compare_layers`."""
    context = _context_of(run, caches, watcher)
    names = run.heads if head == ALL else [head or run.best]
    kind, findings = KINDS[run.values["kind"]], []
    for name in names:
        reporter = partial(watcher.epochs, name)
        study = HeadStudy(run.options[name], context, run.scores.heads[name], options, kind, reporter)
        watcher.say(f"{name}: every layer alone")
        _keep_predictions(run, context.task, name, study.split, study.parts)
        findings.append(study.findings(report=watcher.say))
    others = [older for older in load_findings(run.path) if older.head not in names]
    values = {
        "schema": FINDINGS_SCHEMA,
        "run": run.scores.header.name,
        "heads": [to_plain(head_findings) for head_findings in (*findings, *others)],
    }
    write_file(run.path / FINDINGS, json.dumps(without_nan(values), indent=1, allow_nan=False) + "\n")
    return findings


def _keep_predictions(run: RunFolder, task: Task, head: str, split: str, parts: HeadParts) -> None:
    """Write what every layer predicts into the folder of a run, where it is a number or a name for each row of gold."""
    gold, alone = KINDS[run.values["kind"]].report.gold(task, split), parts.alone
    if alone.ndim == 3 and alone.shape[-1] == len(gold) and isinstance(gold[0], str) == bool(parts.names):
        save_predictions(run.path, LayerPredictions.of(head, split, parts.layers, alone, parts.names, parts.likely))


def compare_at_layers(
    one: str | Path | RunFolder,
    other: str | Path | RunFolder,
    *,
    head: str = "",
    split: str = "",
    n_resamples: int = 1000,
    caches: str | Path = "",
    watcher: Watcher = SILENT,
) -> pd.DataFrame:
    """Compare two finished runs of the same rows at every layer, for instance two mask plans of one decoder.

    Args:
        one: A run folder.
        other: The run it is compared with; its head has the same layers.
        head: The head of both; the best one of `one` when empty.
        split: As in `compare`.
        n_resamples: Resamples of the paired bootstrap, which both runs share.
        caches: Folder of the caches; the one that each run names when empty.
        watcher: Progress callbacks; silent by default.

    Returns:
        A row per layer, with the columns `GAP_COLUMNS`: `value` is the score of the layer alone in `one`, `over` that
        in `other`; `low` to `high` hold the differences of all layers at once, at 95 %, of `n_units` resampled units.

    Raises:
        HeadError: Runs on other rows, metrics or layers, or a head whose layers cannot be scored.
        CacheError: The cache of a run is missing.

    Example:
        >>> compare_at_layers("runs/demo-nosink-bidirectional-10", "runs/demo")  # doctest: +SKIP
    """
    folders = [read_run_folder(one), read_run_folder(other)]
    compared = read_runs(folders, head or folders[0].best)
    rows = read_rows(compared, split)
    parts = []
    for run in compared:
        name = run.result.name
        context, resolved = _context_of(run.folder, str(caches), watcher), run.folder.options[name]
        parts.append(ablate(resolved, context, run.result, rows.split, partial(watcher.epochs, name)))
    layers = parts[0].layers
    if parts[1].layers != layers:
        raise HeadError(
            f"{compared[0].label!r} reads the layers {', '.join(layers)}, and {compared[1].label!r} "
            f"{', '.join(parts[1].layers)}; compare runs of the same layers, or see layers_across."
        )
    scores, over = (Resampled.of_seeds(part.scorer, part.alone, Resampling(n_resamples)) for part in parts)
    difference = scores.value - over.value
    low, high = joint_intervals(difference, scores.draws - over.draws)
    depths = relative_depths([name.rpartition("/")[2] for name in layers], folders[0].n_blocks)
    common = {
        "one": compared[0].label,
        "other": compared[1].label,
        "head": compared[0].result.name,
        "split": rows.split,
        "metric": parts[0].scorer.metric,
    }
    columns = {
        "layer": layers,
        "depth": depths,
        "value": scores.value,
        "over": over.value,
        "difference": difference,
        "low": low,
        "high": high,
        "n_units": parts[0].scorer.n_units,
    }
    return pd.DataFrame({**columns, **common})[list(GAP_COLUMNS)]


def _context_of(run: RunFolder, caches: str, watcher: Watcher) -> FitContext:
    """Open what the heads of a finished run were fitted on: its task and cache."""
    cache = run.cache(caches)
    config = replace(run.config, caches=str(cache.path.parent))
    corpus = obtain_corpus(config)
    encoders = EncoderStore(config, find_cache_of(config, corpus), watcher) if corpus else None
    task = load_run_task(config)
    sides = find_sides(config, task)
    documents = find_cache_of(sides.config, sides.documents) if sides else None
    return make_context(config, task, cache, run.path / "heads", autoencoders=encoders, documents=documents)


def frame_rows(run: RunFolder, findings: HeadFindings) -> list[dict[str, object]]:
    """Return the rows of a frame of `LAYER_COLUMNS` for the findings of one head."""
    header = run.scores.header
    system = {
        "run": header.name,
        "task": header.task["name"],
        "kind": header.kind,
        "decoder": header.decoder["name"],
        "plan": " and ".join(plans_read(run.scores.cache, findings.pooling)),
        "head": findings.head,
        "pooling": findings.pooling,
        "split": findings.split,
    }
    depths = relative_depths([name.rpartition("/")[2] for name in findings.layers], run.n_blocks)
    by_layer = dict(zip(findings.layers, depths, strict=True))
    return [{**system, "depth": by_layer.get(str(row["layer"]), float("nan")), **row} for row in findings.rows()]
