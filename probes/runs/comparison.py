"""Runs beside each other: their results in one table, their layers on one scale, and paired differences."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from extract.decoders.layers import layer_names, split_tap
from extract.errors import HeadError, UnknownNameError, first_line, printable
from extract.files import read_file
from extract.masks.plan import parse_plan
from extract.store.manifest import differences as unequal_fields
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import Resampling
from probes.metrics.paired import Difference, difference
from probes.metrics.significance import bootstrap_p_value, correct_p_values
from probes.report.blocks import (
    Block,
    Table,
    cell,
    describe_point,
    interval,
    markdown,
    metric_label,
    number,
    percent,
    spread,
)
from probes.report.document import FEW_UNITS
from probes.report.scores import tidy_rows
from probes.runs.paired_tests import ComparedRun, read_rows, read_runs
from probes.runs.record import CONFIG
from probes.runs.results import COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as ScreenTable

    from probes.report.style import Album

TITLES = ("run", "plan", "head", "chosen", "metric", "validation", "test", "95 % interval")
LEVEL = 0.05
"""A corrected p-value below it is a finding."""
UNRELATED = ("name", "caches", "runs", "figures", "loggers")
"""Settings that say where a run is and how it looks, not what it computes."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs on the same rows, compared with the first of them.

    Attributes:
        runs: The runs, in the order given.
        split: The split whose predictions are compared.
        metric: What they are scored by.
        differences: What each further run has over the first, with a paired interval.
        p_values: Of the differences, by the same resamples, corrected by Holm for their number.
        settings: For each further run, every setting that differs from the first run's: its dotted name to the value
            of the first run and that of the run.
    """

    runs: tuple[ComparedRun, ...]
    split: str
    metric: str
    differences: tuple[Difference, ...]
    p_values: tuple[float, ...]
    settings: tuple[Mapping[str, tuple[Any, Any]], ...]

    @property
    def table(self) -> "pd.DataFrame":
        """A row per run: its head, scores as fractions, and what it has over the first run, with interval and p."""
        import pandas as pd

        nothing = Difference(0.0, float("nan"), float("nan"), self.differences[0].n_units)
        rows = []
        gains = zip((nothing, *self.differences), (float("nan"), *self.p_values), strict=True)
        for run, (gain, p_value) in zip(self.runs, gains, strict=True):
            means = {split: run.result.mean(split) for split in ("validation", "test") if split in run.result.summary}
            rows.append({
                "run": run.label, "plan": run.plan, "head": run.result.name, "metric": self.metric, **means,
                "difference": gain.value, "low": gain.low, "high": gain.high, "p_value": p_value,
            })  # fmt: skip
        return pd.DataFrame(rows)

    @property
    def curves(self) -> "pd.DataFrame":
        """The score of every layer of every run, tidy, with the columns of `probes.results`."""
        numbers = self._numbers
        return numbers[numbers["record"] == "curve"].reset_index(drop=True)

    @property
    def _numbers(self) -> "pd.DataFrame":
        """Every number of the heads whose layers are drawn."""
        import pandas as pd

        rows = [
            {"run": run.label, "plan": run.plan, "head": curved.name, "pooling": curved.pooling, **row}
            for run in self.runs
            if (curved := _curved(run)) is not None
            for row in tidy_rows(curved)
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def draw(self, folder: str | Path, *, formats: Sequence[str] = ("png",)) -> tuple[Path, ...]:
        """Draw the layers of all runs on one scale, `layers` in every format; nothing where no head reads one layer."""
        from probes.report.style import Album  # brings matplotlib with it

        album = Album(Path(folder), tuple(formats))
        self.draw_into(album)
        return tuple(Path(folder) / file for files in album.drawn.values() for file in files)

    def draw_into(self, album: "Album") -> None:
        """Draw the layers of all runs on one scale into an album; nothing where no head reads one layer."""
        from probes.report.comparison_figures import draw_runs, runs_table
        from probes.report.run_figures import layer_curves
        from probes.report.style import on_panel

        curved = {run.label: result for run in self.runs if (result := _curved(run)) is not None}
        splits = [{curve.split for curve in layer_curves(result)} for result in curved.values()]
        shared = set.intersection(*splits) if splits else set()
        if not shared:
            return
        split = "validation" if "validation" in shared else min(shared)
        numbers = self._numbers
        is_metric = numbers["metric"] == numbers["run"].map({run: result.metric for run, result in curved.items()})
        is_chosen = numbers["record"] == "score"
        frame = numbers[is_metric & (is_chosen | ((numbers["record"] == "curve") & (numbers["split"] == split)))]
        header, heads = self.runs[0].values, ", ".join(dict.fromkeys(result.name for result in curved.values()))
        album.add(
            "layers", on_panel(draw_runs), frame, title=f"Score of each layer, {heads}",
            note=f"{header['task']['name']} on {header['decoder']['name']}; circles: the chosen layers",
            table=runs_table(frame),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<comparison of {len(self.runs)} runs by {self.metric} on {self.split}: {'; '.join(self.verdicts())}>"

    def verdicts(self) -> list[str]:
        """Say of every further run whether it differs from the first, in a sentence; of several by Holm's p.

        Where both read the same latents there is nothing to test, and the sentence says so.
        """
        first, gains = self.runs[0], zip(self.runs[1:], self.differences, self.p_values, self.settings, strict=True)
        n_tests = len(self.differences)
        return [
            _same_latents(first, run, settings) or _verdict(run.label, first.label, gain, self.metric, p_value, n_tests)
            for run, gain, p_value, settings in gains
        ]

    def notes(self) -> list[str]:
        """Say for every further run which settings differ from the first run's, with a warning for more than one."""
        return [_note(run.label, settings) for run, settings in zip(self.runs[1:], self.settings, strict=True)]

    def to_screen(self) -> "ScreenTable":
        """Lay the comparison out for a terminal of 80 characters."""
        from rich.box import SIMPLE
        from rich.table import Table as ScreenTable

        table = ScreenTable(title=f"{metric_label(self.metric)} x 100", box=SIMPLE, padding=(0, 1))
        table.add_column("run and head", overflow="fold")
        for title in (
            "validation",
            "test",
            f"over the first,\n{self.split}",
            "95 %\ninterval",
            *self._p_title("p,\nHolm"),
        ):
            table.add_column(title, justify="right")
        gains = [("",) * 3, *self._gains()]
        for run, gain in zip(self.runs, gains, strict=True):
            scores = (spread(_summary(run, split, self.metric)) for split in ("validation", "test"))
            table.add_row(printable(f"{run.label}\n{run.result.name}"), *scores, *gain[: len(table.columns) - 3])
        return table

    def _gains(self) -> list[tuple[str, str, str]]:
        """Write what each further run has over the first, its interval and its p-value."""
        found = zip(self.differences, self.p_values, strict=True)
        return [(percent(gain.value, sign="+"), _ends(gain), number(p_value, 3)) for gain, p_value in found]

    def _p_title(self, title: str) -> tuple[str, ...]:
        """Name the column of p-values, where there are several to correct; one is as its interval says."""
        return (title,) * (len(self.differences) > 1)

    def to_markdown(self) -> str:
        """Write the comparison as Markdown: verdicts, the results, and the differences."""
        return markdown([" ".join(f"{sentence}." for sentence in self.verdicts()), *self.notes(), *self.blocks()])

    def blocks(self) -> tuple[Block, ...]:
        """Give the results and the differences, as a report holds them."""
        rows = [
            (
                run.label, run.plan, run.result.name + " (optimistic)" * run.result.is_optimistic,
                describe_point(run.result.chosen), metric_label(self.metric),
                *(spread(_summary(run, split, self.metric)) for split in ("validation", "test")),
                interval(_summary(run, "test", self.metric)),
            )
            for run in self.runs
        ]  # fmt: skip
        titles = ("run", f"over {self.runs[0].label}", "95 % interval", *self._p_title("p (Holm)"), "units")
        differences = [
            (run.label, *gain[: len(titles) - 2], f"{self.differences[0].n_units:,}")
            for run, gain in zip(self.runs[1:], self._gains(), strict=True)
        ]
        return (
            Table(TITLES, [[cell(text) for text in row] for row in rows]),
            f"Scores times 100. Differences on {self.split}, of the predictions that are scored, on the same "
            "resamples:",
            Table(titles, [[cell(text) for text in row] for row in differences]),
        )


def compare(runs: Iterable[str | Path], *, head: str = "", split: str = "", n_resamples: int = 1000) -> Comparison:
    """Compare finished runs on the same task with the first of them.

    Args:
        runs: Two run folders or more.
        head: The head to compare in every run; in each its best on validation, if empty.
        split: The split whose predictions are compared; test, or validation where there is no test, if empty.
        n_resamples: Resamples of the paired bootstrap, which draws what the intervals of the runs do.

    Raises:
        HeadError: Fewer than two runs, other than runs, or runs on other rows or metrics; says which.
        UnknownNameError: A head or split that a run does not have.

    Example:
        >>> compare(["runs/causal", "runs/nosink"]).table  # doctest: +SKIP
    """
    folders = [Path(run) for run in runs]
    if len(folders) < 2:
        raise HeadError(f"a comparison takes two run folders or more, and {len(folders)} was given.")
    found = read_runs(folders, head)
    rows = read_rows(found, split)
    values, resampled = rows.scores(Resampling(n_resamples))
    gains = [difference(values, resampled, k, 0, n_units=len(set(rows.units))) for k in range(1, len(found))]
    p_values = correct_p_values([
        bootstrap_p_value(gain.value, row - resampled[0]) for gain, row in zip(gains, resampled[1:], strict=True)
    ])  # fmt: skip
    settings = tuple(_settings_that_differ(found[0], run) for run in found[1:])
    return Comparison(tuple(found), rows.split, rows.metric, tuple(gains), tuple(p_values.tolist()), settings)


def note_on_settings(first: str | Path, second: str | Path, head: str) -> str:
    """Say in which settings two finished runs differ, for one head of both; raises as `compare`."""
    one, other = read_runs([Path(first), Path(second)], head)
    return _note(other.label, _settings_that_differ(one, other))


def _settings_that_differ(first: ComparedRun, run: ComparedRun) -> dict[str, tuple[Any, Any]]:
    """List the settings in which the config.yaml of two runs differ; of heads, those of the compared ones."""
    unequal = dict(unequal_fields(_settings(first), _settings(run)))
    if first.result.name != run.result.name:
        unequal["head"] = (first.result.name, run.result.name)
    return unequal


def _settings(run: ComparedRun) -> dict[str, Any]:
    path = run.folder / CONFIG
    try:
        values = yaml.safe_load(read_file(path))
        kept = {key: value for key, value in values.items() if key not in UNRELATED}
        heads = kept.pop("heads", {})
        return {**kept, "heads": {run.result.name: heads.get(run.result.name) or {}}}
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise HeadError(f"{str(path)!r} cannot be read ({first_line(error)}); run its config again.") from error


def _note(label: str, settings: Mapping[str, tuple[Any, Any]]) -> str:
    named = {key: values for key, values in settings.items() if not key.startswith("heads.") or "head" not in settings}
    if not named:
        return f"{label} has the same settings."
    listing = ", ".join(f"{key} ({_value(one)} and {_value(other)})" for key, (one, other) in named.items())
    if len(named) == 1:
        return f"{label} differs in one setting: {listing}."
    return (
        f"Warning: {label} differs in {len(named)} settings: {listing}. A difference cannot be put down to one of "
        "them; compare runs that differ in one."
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _same_latents(first: ComparedRun, run: ComparedRun, settings: Mapping[str, tuple[Any, Any]]) -> str:
    """Say that two runs under two plans read layers below the blocks that the plans change alone; empty elsewhere.

    Both then read the same latents, and a difference of nothing is no finding about the plans.
    """
    verb, layers = _layers_read(run)
    extraction = {key for key in settings if key.startswith(("decoder.", "extraction."))}
    if extraction != {"extraction.plan"} or (verb, layers) != _layers_read(first) or not layers:
        return ""
    block = _first_changed_block(first, run)
    names = layer_names(int(run.values["decoder"]["n_layers"]))
    tapped = [split_tap(layer.rpartition("/")[2])[0] for layer in layers]
    is_below = block is not None and all(name in names and names.index(name) < block for name in tapped)
    if block is None or not is_below or "reba" in run.result.pooling:
        return ""  # ReBA weighs the tokens by the attention of every block
    return (
        f"{run.label} and {first.label} read the same latents: both {verb} {', '.join(layers)}, and the plans "
        f"differ only from block_{block:02d} on, so this says nothing about the plans. "
        f"{_best_changed(first, run, names[block:])}"
    )


def _layers_read(run: ComparedRun) -> tuple[str, tuple[str, ...]]:
    """Return the layer that a head chose, or all that it reads where it chooses none, and the verb for it."""
    chosen = run.result.chosen.get("layer", "")
    return ("chose", (chosen,)) if chosen else ("read", tuple(run.result.layers))


def _first_changed_block(first: ComparedRun, run: ComparedRun) -> int | None:
    """Return the lowest block, from 1, that two plans of masks run differently; None where more than masks differs."""
    try:
        plans = [parse_plan(each.plan) for each in (first, run)]
        if any(plan.architecture != "inplace" or plan.has_tail for plan in plans):
            return None
        kinds = [plan.kinds(int(run.values["decoder"]["n_layers"])) for plan in plans]
    except UnknownNameError:  # a mask kind that is not registered in this process
        return None
    return next((k for k, (one, other) in enumerate(zip(*kinds, strict=True), start=1) if one != other), None)


def _best_changed(first: ComparedRun, run: ComparedRun, changed: Sequence[str]) -> str:
    """Name the best layer on validation among those that the plans change, with the scores of both runs there."""
    layers = [layer for layer in changed if layer in run.result.layers and layer in first.result.layers]
    scores = {layer: [_validation_score(each.result, layer) for each in (first, run)] for layer in layers}
    scores = {layer: both for layer, both in scores.items() if None not in both}
    if not scores:
        return "`icecore compare --by-layer` compares them at every layer"
    best = max(scores, key=lambda layer: max(score or 0.0 for score in scores[layer]))
    before, after = (percent(score) for score in scores[best])
    return (
        f"Of the layers they change, {best} is the best on validation: {after} under {run.plan}, {before} under "
        f"{first.plan} (`icecore compare --by-layer` has all of them on {first.result.reported_split}, with intervals)"
    )


def _curved(run: ComparedRun) -> HeadResult | None:
    """Choose the head whose layers are drawn: the compared one, or else one that scores single layers."""
    return next((each for each in (run.result, *run.heads.values()) if each.curves and len(each.layers) > 1), None)


def _summary(run: ComparedRun, split: str, metric: str) -> Any:
    return run.result.summary.get(split, {}).get(metric)


def _ends(gain: Difference) -> str:
    return f"{percent(gain.low, sign='+')} to {percent(gain.high, sign='+')}"


def _validation_score(result: HeadResult, layer: str) -> float | None:
    """Return the best score of a layer on validation among the values of a head; None where it has no curve."""
    index = result.layers.index(layer)
    scores = [
        curve.values[index] for curve in result.curves if (curve.metric, curve.split) == (result.metric, "validation")
    ]
    return max(scores, default=None)


def _verdict(label: str, first: str, gain: Difference, metric: str, p_value: float, n_tests: int) -> str:
    by = f"{percent(abs(gain.value))} {metric_label(metric)}"
    p_text = f"p {number(p_value, 3)}, corrected for {n_tests} runs; " * (n_tests > 1)
    reach = f"({_ends(gain)}; {p_text}n = {gain.n_units:,})"
    if gain.n_units < FEW_UNITS:
        return f"{label} against {first}: too few rows to tell, {percent(gain.value, sign='+')} {reach}"
    if p_value < LEVEL if n_tests > 1 else gain.low > 0 or gain.high < 0:
        return f"{label} is {'better' if gain.value > 0 else 'worse'} than {first} by {by} {reach}"
    return f"{label} is statistically tied with {first}: {percent(gain.value, sign='+')} {reach}"
