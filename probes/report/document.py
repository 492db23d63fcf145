"""The report of a run, a sweep, a search or a pretraining as one document; kinds of tasks differ in a `KindReport`."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.table import Table as ScreenTable

from extract.decoders.decoder_spec import EMBEDDING, FINAL_NORM
from extract.errors import printable
from extract.inputs.template import FIRST_FIELDS
from extract.masks.mask_plan import CAUSAL, MaskPlan
from probes.data.task import Task
from probes.data.task_table import task_title
from probes.heads.result import HeadResult, Residuals
from probes.metrics.bootstrap import Difference, Resampling, Rows, SeedSummary, difference, paired_scores
from probes.metrics.prediction_metrics import CORRELATIONS, NO_PREDICTION
from probes.metrics.significance import FEW_UNITS, too_few
from probes.report.blocks import (
    LABELS,
    NOTHING,
    Block,
    Caution,
    Document,
    Heading,
    Item,
    Table,
    cell,
    describe_point,
    interval,
    markdown,
    metric_label,
    percent,
    signed_interval,
    spread,
)
from probes.report.scores import (
    BaselineScores,
    Header,
    Lead,
    Plain,
    PlanChoice,
    PlanScores,
    PlansScores,
    PretrainingInfo,
    PretrainingScores,
    RunScores,
    SearchCost,
    TaskRecord,
    label_of,
    plans_read,
)

EVERY_PLAN = "every plan"
"""What `test_read` is where all plans were scored on test."""


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split, one for each prediction."""

    inputs: Mapping[str, Sequence[object]]
    """Columns of predictions.csv: `row`, and the inputs."""
    gold: Sequence[object]
    """Numbers, or names."""
    units: Sequence[object] | None = None
    """The unit of each row that intervals draw whole; None where they draw rows, or the sentences of words."""

    @property
    def sentences(self) -> list[str]:
        """The row of each prediction; of words their sentence."""
        return [str(row) for row in self.inputs["row"]]

    @property
    def drawn(self) -> list[str]:
        """What resamples draw of each prediction."""
        return self.sentences if self.units is None else [str(unit) for unit in self.units]

    @property
    def n_units(self) -> int:
        """Units that resamples draw."""
        return len(set(self.drawn))

    def score(
        self, systems: Sequence[Sequence[Rows]], metric: str, resampling: Resampling
    ) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S R"]]:
        """Score systems on all rows, and on resamples that all of them share; a system is the mean of its fits."""
        values, resampled = paired_scores(
            [fit for fits in systems for fit in fits],
            self.gold,
            metric=metric,
            units=self.drawn,
            sentences=self.sentences,
            resampling=resampling,
        )
        ends = np.cumsum([len(fits) for fits in systems])[:-1]
        return (
            np.array([part.mean() for part in np.split(values, ends)]),
            np.stack([part.mean(axis=0) for part in np.split(resampled, ends)]),
        )


@dataclass(frozen=True)
class Row:
    """What a row of the results table is about: a head and a metric."""

    result: HeadResult
    metric: str

    def summary(self, split: str, metric: str = "") -> SeedSummary | None:
        """Return the score on a split, by the metric of the row or another; None where the split was not scored."""
        return self.result.summary.get(split, {}).get(metric or self.metric)


@dataclass(frozen=True)
class Column:
    """A column of the results table: its title, and what gives its text in a row."""

    title: str
    text: Callable[[Row], str]
    on_screen: bool = True
    """Whether the table of a terminal, 80 characters wide, has it too."""


@dataclass(frozen=True)
class Context:
    """What a section is written from: the scores with predictions, and the rows that were predicted."""

    scores: RunScores
    rows: Mapping[str, SplitRows]
    report: "KindReport"

    def with_extra(self, name: str) -> Iterator[tuple[str, HeadResult, Any]]:
        """Give every head that recorded an extra of this name, its result and the extra; heads of users may not."""
        return ((head, result, result.extras[name]) for head, result in self.results if result.extras.get(name))

    @property
    def results(self) -> Iterable[tuple[str, HeadResult]]:
        """Every head with its result."""
        return self.scores.heads.items()


class KindReport:
    """What is particular to the report of one kind of task, whose task, split by split, is the argument `task`."""

    columns: tuple[Column, ...]
    """Of the results table."""
    unit = "rows"
    """What intervals are drawn from where a task has no groups."""
    unit_of_rows = "rows"
    """What `n_rows` of a task counts."""
    zero_shot = ""
    """Metric of the score that a mask plan has without any head; empty where there is none."""

    def goal(self, task: TaskRecord) -> str:
        """Say what a head does on a task of this kind, as the rest of a sentence."""
        return f"predicts {task_title(task['name'])}"

    def inputs(self, task: Any, split: str) -> Mapping[str, Sequence[object]]:
        """Give columns of predictions.csv: `row`, and the inputs of every prediction."""
        rows = task.rows(split)
        return {"row": range(len(rows)), **{column: rows[column][:] for column in task.text_columns}}

    def gold(self, task: Any, split: str) -> Sequence[object]:
        """Give the gold of every prediction: numbers, or names."""
        raise NotImplementedError

    def units(self, task: Any, split: str) -> Sequence[object] | None:
        """Give the unit of every prediction that intervals draw whole; None where they draw rows or sentences."""
        units: Sequence[object] | None = task.units(split)
        return units

    def rows(self, task: Task) -> dict[str, SplitRows]:
        """Return the rows of every split of a task."""
        return {split: self.split_rows(task, split) for split in task.splits}

    def split_rows(self, task: Task, split: str, part: Sequence[int] | None = None) -> SplitRows:
        """Return the rows of a split of a task, or some of them."""
        inputs, gold, units = self.inputs(task, split), self.gold(task, split), self.units(task, split)
        if part is not None:
            inputs = {name: [column[row] for row in part] for name, column in inputs.items()}
            gold, units = [gold[row] for row in part], None if units is None else [units[row] for row in part]
        return SplitRows(inputs, gold, units)

    def resampled(self, task: TaskRecord) -> str:
        """Say, from the description of a task, what intervals are drawn from."""
        unit = "groups" if task.get("has_groups") else self.unit
        return f"{unit}, those that share a text together" if "test" in task.get("shared_rows", {}) else unit

    def metrics(self, result: HeadResult) -> Sequence[str]:
        """Name the metrics of a head, a row of the results table each."""
        return tuple(result.summary[result.reported_split])

    def residuals(self, rows: SplitRows, predicted: NDArray[np.generic]) -> Residuals | None:
        """Compare predicted numbers with gold; None for predicted names."""
        return None

    def bare(self, scores: RunScores, result: HeadResult, split: str) -> str:
        """Say what needs no head scores beside a head, as part of a sentence; empty where there is nothing."""
        return ""

    def remarks(self, context: Context) -> Iterator[Block]:
        """Write paragraphs below the results table, without a heading."""
        return iter(())

    def sections(self, context: Context) -> Iterator[Block]:
        """Write the sections after them."""
        return iter(())

    def used(self, context: Context) -> Iterator[Block]:
        """Write further lines of the section "What was used"."""
        return iter(())

    def write_files(self, folder: Path, task: Any, heads: Mapping[str, HeadResult]) -> None:
        """Write further files into the folder of a run."""


def result_rows(
    scores: RunScores, report: KindReport, *, on_screen: bool = False
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Lay the results of a run out: titles of the columns, and texts per head and metric, then per baseline."""
    columns = [column for column in report.columns if column.on_screen or not on_screen]
    baselines = [baseline.result(name) for name, baseline in scores.baselines.items()]
    rows = [Row(result, metric) for result in (*scores.heads.values(), *baselines) for metric in report.metrics(result)]
    return tuple(column.title for column in columns), [tuple(column.text(row) for column in columns) for row in rows]


def predicted_texts(result: HeadResult, split: str, *, without: str = "") -> list[str]:
    """Write the predictions of a head on a split, as names where it predicts names, and `without` for none."""
    predicted = result.predictions[split].tolist()
    if split not in result.names:
        return [f"{value:.4f}" for value in predicted]
    names = result.names[split]
    return [without if code == NO_PREDICTION else names[code] for code in predicted]


def run_document(context: Context) -> Document:
    """Write the report of a run."""
    header, report = context.scores.header, context.report
    titles, rows = result_rows(context.scores, report)
    blocks = [*opening(header), Table(titles, rows), _numbers(context), *_cautions(context)]
    blocks += [*baseline_blocks(context.scores.baselines), *report.remarks(context)]
    departures = [Item(f"`{name}`: {line}") for name, result in context.results for line in result.departures]
    if departures:
        blocks += [Heading(f"Departures from the protocol `{header.protocol}`"), *departures]
    blocks += [*report.sections(context), *_used(context)]
    blocks += _pretraining(context.scores.pretraining)
    if header.task["notes"]:
        blocks += [Heading("Data notes"), *map(Item, header.task["notes"])]
    decoder = header.decoder["name"]
    question = (
        f"How well can {task_title(header.task['name'])} be read from the layers of {decoder}, which stay frozen?"
    )
    return Document(header.name, question, run_lead(context.scores, report.bare, context.rows), blocks)


def pretraining_document(scores: PretrainingScores) -> Document:
    """Write the report of autoencoders that were fitted by themselves."""
    blocks = [*opening(scores.header), *_pretraining(scores.pretraining), Heading("What was used")]
    return Document(scores.header.name, "", "", [*blocks, machine_line(scores.header)])


def summary_text(document: Document, figures: Mapping[str, Sequence[str]]) -> str:
    """Write a report as Markdown without HTML, with the files of its figures by their titles."""
    lines = []  # each shows the first of the formats that a page can show, with links to the others
    for title, files in figures.items():
        picture = next((file for file in files if not file.endswith(".pdf")), None)
        links = [f"[{file.rpartition('.')[2]}]({file})" for file in files if file != picture]
        lines.append(" ".join([f"![{title}]({picture})" if picture else f"{title}:", *links]))
    blocks = [*filter(None, [document.answer]), *document.blocks, *[Heading("Figures")] * bool(lines), *lines]
    return markdown([f"# {document.title}", *blocks])


def opening(header: Header) -> Iterator[Block]:
    """Say that a sample is no benchmark, and the command if there was one."""
    if header.task.get("is_sample"):
        yield Caution("The task is a **sample** shipped with the project: its scores are no benchmark result.")
    if header.command:
        yield f"Command: `{header.command}`"


def machine_line(header: Header) -> Item:
    """Write what computed the numbers."""
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    products = f", float32 products by {', '.join(header.products.values())}" if header.products else ""
    return Item(f"Commit `{header.commit or 'not a checkout'}`, device `{header.device}`{products}, {versions}")


def _numbers(context: Context) -> str:
    """Say what the numbers of the results table are."""
    header = context.scores.header
    has_seeds = any(len(result.seeds) > 1 for _, result in context.results)
    is_honest = not any(result.is_optimistic for _, result in context.results)
    chosen = "; ".join(f"`{name}` on {result.selection}" for name, result in context.results if result.chosen_on)
    return (
        f"Scores times 100{', mean ± standard deviation over seeds' * has_seeds}; the interval is a "
        f"{header.n_resamples}-fold bootstrap over test {context.report.resampled(header.task)}. "
        f"Chosen: {chosen or 'nothing'}{'; nothing was chosen on test' * is_honest} (protocol `{header.protocol}`, "
        "docs/protocol.md)."
    )


def _cautions(context: Context) -> Iterator[Block]:
    """Warn of heads whose numbers are optimistic or that did not converge, and of rows that are in train as well."""
    task = context.scores.header.task
    for name, result in context.results:
        if result.is_optimistic:
            yield Caution(f"`{name}` is **optimistic**: {result.optimistic_because}.")
        solver = result.extras.get("convergence", {"n_problems": 0, "n_converged": 0})
        missing = solver["n_problems"] - solver["n_converged"]
        if missing:
            yield Caution(f"`{name}` **did not converge** in {missing:,} of {solver['n_problems']:,} problems.")
    yield from row_cautions(task)


def row_cautions(task: TaskRecord) -> Iterator[Block]:
    """Warn of rows that are not independent, and of those that are in an earlier split as well."""
    for note in task.get("shared_rows", {}).values():
        yield Caution(f"**Rows that are not independent**, {note}.")
    yield from (Caution(f"**Leak**, {note}.") for note in leaks(task))


def leaks(task: TaskRecord) -> list[str]:
    """List the notes on rows of validation and test that are in an earlier split as well."""
    splits, earlier = ("validation: ", "test: "), (" train", " validation")
    return [note for note in task.get("notes", ()) if note.startswith(splits) and note.endswith(earlier)]


def baseline_blocks(baselines: Mapping[str, BaselineScores]) -> Iterator[Block]:
    """Say by how much every head leads every baseline, and what the baselines are."""
    heads = dict.fromkeys(head for scores in baselines.values() for head in scores.leads)
    if heads:
        leads = [scores.leads for scores in baselines.values()]
        rows = [(f"`{head}`", *(_lead(over[head]) if head in over else NOTHING for over in leads)) for head in heads]
        yield "What every head has over a baseline, with the interval of the difference on the same resamples:"
        yield Table(("head", *(f"over {name}" for name in baselines)), rows)
    yield from (Item(f"`{name}`: {cell(scores.note)}") for name, scores in baselines.items())


def _lead(gap: Lead) -> str:
    """Write a difference with its interval, times 100."""
    if math.isnan(gap.value):
        return NOTHING
    return f"{percent(gap.value, sign='+')} ({signed_interval(gap.low, gap.high)})"


def best_baseline(result: HeadResult, baselines: Mapping[str, BaselineScores]) -> str:
    """Name the baseline with the highest score on the rows that a head is reported on; empty without any."""

    def rank(name: str) -> float:
        value = baselines[name].summary[result.reported_split][result.metric].mean
        return -math.inf if math.isnan(value) else value

    return max((name for name, scores in baselines.items() if result.name in scores.leads), key=rank, default="")


def over_baseline(result: HeadResult, baselines: Mapping[str, BaselineScores]) -> str:
    """Compare a head with the best baseline on the rows it is reported on, in a sentence; empty without any."""
    best, split = best_baseline(result, baselines), result.reported_split
    if not best:
        return ""
    level = baselines[best].summary[split][result.metric].mean
    gap, other = baselines[best].leads[result.name], f"the best baseline, `{best}` ({percent(level)})"
    if math.isnan(gap.value):
        whose = "it" if math.isnan(result.summary[split][result.metric].mean) else "that one"
        return f"It cannot be compared with {other}, as {whose} has no score."
    if gap.n_units < FEW_UNITS:
        return f"There are {too_few('rows', gap.n_units)} to claim a difference from {other}."
    if gap.low > 0 or gap.high < 0:
        return f"It is {'better' if gap.value > 0 else '**worse**'} than {other}: {_lead(gap)}."
    return f"It is statistically tied with {other}: {_lead(gap)}."


def _used(context: Context) -> Iterator[Block]:
    header, cache = context.scores.header, context.scores.cache
    decoder, task, template = header.decoder, header.task, cache["template"]
    yield Heading("What was used")
    yield Item(
        f"Decoder: `{decoder['name']}` ({decoder['family']}, {decoder['n_layers']} blocks, width {decoder['width']}, "
        f"{decoder['dtype']}, weights `{decoder['weight_digest'][:12]}`, revision `{decoder['revision'] or 'local'}`)"
    )
    views = cache.get("views", {})
    first = next(iter(views), "")
    for name, view in views.items():
        share = view["n_tokens"] / max(views[first]["n_tokens"], 1)
        cost = f", {share:.1f} times the tokens of `{first}`" * (name != first)
        yield Item(f"View `{name}`: {_reading(view['plan'], view['pooling'], view['template'])}{cost}")
    if "views" not in cache:
        yield Item(_reading(cache["plan"], ", ".join(cache["poolings"]), template))
    yield Item(
        f"Cache: `{cache['file']}`, {cache['n_rows']:,} texts, identity `{cache['id'][:12]}`, "
        f"{cache['n_truncated']} truncated"
    )
    counts = ", ".join(f"{split} {n:,}" for split, n in task["n_rows"].items())
    yield Item(f"Task: `{task['name']}`, {task['source']}; {counts}")
    yield from context.report.used(context)
    yield machine_line(header)


def _reading(plan: str, poolings: str, template: Plain) -> str:
    """Say how texts were read."""
    named = (*FIRST_FIELDS, "window", "mean_of")  # every report names the first; others differ from their defaults
    further = "".join(f", {key} {value!r}" for key, value in template.items() if key not in named)
    return (
        f"Plan `{plan}`, poolings {poolings}, BOS policy `{template['bos']}`, "
        f"instruction {template['instruction']!r}{further}"
    )


def _pretraining(pretraining: PretrainingInfo) -> Iterator[Block]:
    """Write the losses of autoencoders, a line per pooling; nothing where there are none."""
    records = pretraining.get("autoencoders", {})
    if records:
        yield Heading("Layer-wise autoencoders")
    for pooling, record in records.items():
        losses, layers = record["held_out_losses"], record["layers"]
        first, last = min(record["best_epochs"]), max(record["best_epochs"])
        epochs = f"epoch {last}" if first == last else f"epochs {first} to {last}"
        loss = "share of the variance lost" if record["standardises_latents"] else "mean squared error"
        yield Item(
            f"`{pooling}`: codes of {', '.join(map(str, dict.fromkeys(record['codes'])))}, "
            f"{record['n_texts']['train']:,} texts, {epochs} of {len(record['history'])}; {loss} on "
            f"{record['n_texts']['held_out']:,} held-out texts: {sum(losses) / len(losses):.3f} on average, "
            f"{min(losses):.3f} ({layers[losses.index(min(losses))]}) to {max(losses):.3f} "
            f"({layers[losses.index(max(losses))]})"
        )


def best_result(results: Iterable[HeadResult]) -> HeadResult:
    """Return the result that scored best where it was chosen; one without a score comes last, of equals the first."""
    return max(results, key=_ranked)


def _ranked(result: HeadResult) -> float:
    return -math.inf if math.isnan(result.selection_score) else result.selection_score


def run_lead(scores: RunScores, bare: Callable[..., str], rows: Mapping[str, SplitRows]) -> str:
    """Name the best head of a run with its margin on the rows that chose it, and its score on test."""
    best = best_result(scores.heads.values())
    others = [result for result in scores.heads.values() if result is not best and result.metric == best.metric]
    over_next = ""
    if others:
        second = best_result(others)
        name = f"the next head, `{second.name}`"
        gap = _difference(best, second, rows.get(_split(best)), Resampling(scores.header.n_resamples))
        over_next = f", {margin(name, _score(second), gap) if gap else f'{name}, has {percent(_score(second))}'}"
    return (
        f"The {'best ' * bool(others)}head is `{best.name}`{_where(best)} under {_plans(scores, best)}: "
        f"{_chosen_score(best)}{over_next}. {_worth(best, bare(scores, best, best.reported_split))} "
        f"{over_baseline(best, scores.baselines)}"
    ).rstrip()


def _plans(scores: RunScores, result: HeadResult) -> str:
    """Name the plan of what a head reads, or those of several views; of a chosen layer that of its view."""
    view, _, layer = str(result.chosen.get("layer", "")).rpartition("/")
    plans = plans_read(scores.cache, view if layer and view else result.pooling)
    return f"the plan{'s' * (len(plans) > 1)} " + " and ".join(f"`{plan}`" for plan in plans)


def _difference(
    best: HeadResult, second: HeadResult, rows: SplitRows | None, resampling: Resampling
) -> Difference | None:
    """Return what one head has over another, with the interval of the predictions of both; None without them."""
    split = _split(best)
    if rows is None or _split(second) != split or any(split not in head.predictions for head in (best, second)):
        return None
    predicted: list[list[Rows]] = [
        [predicted_texts(head, split) if split in head.names else head.predictions[split]] for head in (best, second)
    ]
    gap = difference(*rows.score(predicted, best.metric, resampling), 0, 1, n_units=rows.n_units)
    value, reach = _score(best) - _score(second), gap.high - gap.value
    return Difference(value, value - reach, value + reach, gap.n_units)


def margin(other: str, score: float, gap: Difference | Lead) -> str:
    """Compare with another system: whether the difference is one, its interval and the number of rows."""
    if math.isnan(gap.value):
        return f"{other}, has {'no score' if math.isnan(score) else percent(score)}"
    signed, reach = percent(gap.value, sign="+"), f"{signed_interval(gap.low, gap.high)}, n = {gap.n_units:,}"
    if gap.n_units < FEW_UNITS:
        return f"{too_few('rows', gap.n_units)} to claim a difference from {other} ({percent(score)})"
    if gap.low > 0:
        return f"{signed} ({reach}) over {other} ({percent(score)})"
    if gap.high < 0:
        return f"{signed} ({reach}) and **worse** than {other} ({percent(score)})"
    return f"statistically tied with {other} ({percent(score)}; difference {signed}, {reach})"


def _where(result: HeadResult) -> str:
    point = describe_point(result.chosen) or ("all layers" if len(result.layers) > 1 else result.layers[0])
    return f" ({point}, pooling {result.pooling})"


def _split(result: HeadResult) -> str:
    """Name what the choice was made on; validation where there was nothing to choose."""
    return result.chosen_on or "validation"


def _score(result: HeadResult) -> float:
    """Return the score where the choice was made; folds of train have no summary."""
    return result.mean(_split(result)) if _split(result) in result.summary else result.selection_score


def _chosen_score(result: HeadResult) -> str:
    summary = result.summary.get(_split(result), {}).get(result.metric)
    score = spread(summary) if summary else percent(result.selection_score)
    n_equal = _count_equal_layers(result)
    others = f"{n_equal} other layer{'s have' if n_equal > 1 else ' has'}"
    equal = f" ({others} the same score there; of equal ones the first is taken)" * (n_equal > 0)
    return f"{metric_label(result.metric)} {score} on {_split(result)}{equal}"


def _count_equal_layers(result: HeadResult) -> int:
    """Count the layers beside the chosen one whose best score, where the choice was made, is exactly the same."""
    split = _split(result)
    curves = [curve.values for curve in result.curves if (curve.metric, curve.split) == (result.metric, split)]
    best = np.nan_to_num(np.array(curves, np.float64), nan=-np.inf).max(axis=0, initial=-np.inf)
    chosen = result.chosen.get("layer")
    return int((best == best[result.layers.index(chosen)]).sum()) - 1 if curves and chosen in result.layers else 0


def _worth(result: HeadResult, compared: str) -> str:
    split, score = result.reported_split, result.summary[result.reported_split][result.metric]
    if math.isnan(score.mean):
        is_correlation = result.metric in CORRELATIONS
        reason = ": a correlation is undefined where all predictions, or all gold values, are the same" * is_correlation
        return f"On {split} it has no score{reason}."
    ends = "" if math.isnan(score.low) else f" (95 % interval {interval(score)})"
    if score.low == score.high and score.mean in (0, 1) and result.metric not in CORRELATIONS:
        ends = f" ({'every' if score.mean else 'no'} row is right, so resampling says nothing about new ones)"
    parts = [f"On {split} it has {spread(score)}{ends}", compared]
    return ", ".join(filter(None, [*parts, "which is optimistic" * result.is_optimistic])) + "."


def plans_document(scores: PlansScores, report: KindReport, beside: Sequence[Block] = ()) -> Document:
    """Write the report of a sweep or a search: the answer, what was done, the chosen plans, every score.

    `beside` are the blocks that any sweep has: gains on parts, and differences from the reference.
    """
    header, search = scores.header, scores.search
    n, task = count_asked(search) if search else len(scores.plans), task_title(header.task["name"])
    question = f"Under which of {n:,} mask plans is {header.decoder['name']} the best encoder for {task}?"
    found = next(iter(scores.chosen.values())).plan.text
    summary, *tables = search_blocks(search, found, "plan") if search else _sweep(scores, report)
    blocks = [*opening(header), summary, *sweep_cautions(scores), *_choices(scores), *tables, *beside]
    blocks += [Heading("What was used"), machine_line(header)]
    return Document(header.name, question, plans_lead(scores), blocks)


def sweep_cautions(scores: PlansScores) -> Iterator[Block]:
    """Warn of the rows of a sweep on one task, and say which points failed, and why."""
    if not (scores.grid and scores.grid.task_axis):
        yield from row_cautions(scores.header.task)
    for failure in (*scores.failed, *(scores.grid.failed if scores.grid else ())):
        yield Caution(f"`{label_of(failure.point)}` **failed**: {cell(failure.why)}")


def count_asked(search: SearchCost) -> int:
    """Count the points that a search was asked for, those included that failed."""
    return max(search.n_asked, search.n_plans)


def which_failed(scores: PlansScores) -> str:
    """Say after a count of points, which tasks do not multiply, how many of them failed; empty where none did."""
    axis, failures = scores.grid.task_axis if scores.grid else "", scores.grid.failed if scores.grid else scores.failed
    n = len({label_of({name: value for name, value in one.point.items() if name != axis}) for one in failures})
    return f", of which {n:,} failed," if n else ""


def plans_lead(scores: PlansScores) -> str:
    """Name the plan that a sweep or search found, its score on test with the gain, and its lead or what it cost."""
    name, choice = max(scores.chosen.items(), key=lambda item: _ranked(item[1].result))
    head = f"with the head `{name}`{_where(choice.result)}: {_chosen_score(choice.result)}"
    worth = f"{_worth(choice.result, _gain(choice))} {over_baseline(choice.result, scores.baselines)}".rstrip()
    if search := scores.search:
        return (
            f"Of {count_asked(search):,} plans{which_failed(scores)} the search found `{choice.plan.text}` at "
            f"{search.share:.2f} of the cost of scoring all, {head}. {worth}"
        )
    others = {row.plan: row.heads[name] for row in scores.plans if row.plan != choice.plan}
    margin = by = ""
    if scores.grid and scores.grid.choose_by == "sources":
        by = ", by the mean over sources,"
    elif others:
        plan = max(others, key=lambda plan: _ranked(others[plan]))
        margin = f"; the next plan, `{plan.text}`, has {percent(_score(others[plan]))}"
    return f"The best of {len(scores.plans):,} plans{by} is `{choice.plan.text}`, {head}{margin}. {worth}"


def _gain(choice: PlanChoice) -> str:
    """Compare with the plan that one would take without choosing."""
    gain = choice.gain
    if gain is None:
        return ""
    if gain.over == choice.plan.text:
        return "and is the plan one would take without choosing"
    name = f"the plan `{gain.over}`"
    return margin(name, gain.default, choice.lead) if choice.lead else f"where {name} has {percent(gain.default)}"


def plan_scores(scores: PlansScores, report: KindReport) -> dict[MaskPlan, float]:
    """Return the validation score of every plan, times 100: zero-shot where the kind has one, else the first head's."""
    return {row.plan: 100 * _validation(row, report) for row in scores.plans}


def _validation(row: PlanScores, report: KindReport) -> float:
    if report.zero_shot:
        return row.zero_shot["validation"][report.zero_shot]
    return next(iter(row.heads.values())).selection_score


def plan_score_label(scores: PlansScores, report: KindReport) -> tuple[str, str]:
    """Name what these scores are of, and their metric."""
    name, choice = next(iter(scores.chosen.items()))
    if report.zero_shot:
        return "Zero-shot, final norm", metric_label(report.zero_shot)
    return f"{name}, best layer", metric_label(choice.result.metric)


def _sweep(scores: PlansScores, report: KindReport) -> Iterator[Block]:
    """Say what a sweep cost, and give every plan's validation scores."""
    metrics = {name: metric_label(choice.result.metric) for name, choice in scores.chosen.items()}
    tested = metrics if scores.test_read == EVERY_PLAN else {}
    columns = [
        "plan",
        *[f"zero-shot {metric_label(report.zero_shot)}, final norm"] * bool(report.zero_shot),
        *(f"{name} {metric}" for name, metric in metrics.items()),
        *(f"test, {name} {metric}" for name, metric in tested.items()),
    ]
    rows = [
        (
            f"`{row.plan.text}`",
            *([percent(_validation(row, report))] if report.zero_shot else []),
            *(percent(row.heads[name].selection_score) for name in metrics),
            *(percent(row.heads[name].mean("test")) for name in tested),
        )
        for row in scores.plans
    ]
    cost = scores.cost
    passes = f"{cost.block_passes} block passes per batch instead of {cost.apart} ({cost.ratio:.2f})" if cost else ""
    yield ", ".join(filter(None, (f"{len(scores.plans)} plans", passes))) + "."
    yield Heading("Every plan, on validation")
    yield Table(columns, rows)


def search_blocks(search: SearchCost, found: str, noun: str = "point") -> Iterator[Block]:
    """Say what a search cost, and give every trial and what was dropped after it."""
    rows = []
    for number, trial in enumerate(search.trials, start=1):
        best = max(trial.scores, key=lambda point: np.nan_to_num(trial.scores[point], nan=-np.inf))
        sizes = (str(number), str(len(trial.scores)), f"{trial.n_rows:,}", f"{trial.n_texts:,}")
        rows.append((*sizes, f"{trial.cost / search.full_cost:.3f}", f"`{best}`", percent(trial.scores[best])))
    fates = search_fates(search, found)
    points = dict.fromkeys(point for trial in search.trials for point in trial.scores)
    scores = [
        (f"`{point}`", *(percent(trial.scores.get(point)) for trial in search.trials), fates.get(point, NOTHING))
        for point in points
    ]
    asked = count_asked(search)
    over = f"{asked} {noun}s" if asked == search.n_plans else f"{search.n_plans} of {asked} {noun}s (the others failed)"
    yield (
        f"Strategy `{search.strategy}` over {over}, by `{search.by}`: {search.cost:,} block passes times texts, "
        f"{search.share:.3f} of the {search.full_cost:,} that all of them on all {search.n_texts:,} texts of "
        f"train and validation cost (budget {search.budget:g})."
    )
    yield Heading("Trials")
    yield Table(("trial", f"{noun}s", "rows per split, at most", "texts", "cost", "best", "score"), rows)
    yield Heading("Every score, on the validation rows of its trial")
    yield Table((noun, *(f"{trial.n_rows:,} rows" for trial in search.trials), "what became of it"), scores)


def search_fates(search: SearchCost, found: str) -> dict[str, str]:
    """Say of every point that halving dropped after which trial and by which scores, and which one was found."""
    fates = {}
    for number, trial in enumerate(search.trials, start=1):
        later = search.trials[number].scores if number < len(search.trials) else {found: 0.0}
        kept = [point for point in trial.scores if point in later]
        if search.strategy != "halving" or not kept:  # along coordinates nothing is dropped
            continue
        last = min(kept, key=lambda point: trial.scores[point])
        for point, score in trial.scores.items():
            if point not in later:
                why = "no score" if math.isnan(score) else f"{percent(score)}"
                fates[point] = f"dropped in trial {number}: {why}, behind `{last}` with {percent(trial.scores[last])}"
    return {**fates, found: "found"}


def _choices(scores: PlansScores) -> Iterator[Block]:
    """Write the plan chosen for every head, what choosing it gained, and the plans that test was read for."""
    gains = [choice.gain for choice in scores.chosen.values() if choice.gain]
    metrics = list(dict.fromkeys(metric_label(choice.result.metric) for choice in scores.chosen.values()))
    metric = metrics[0] if len(metrics) == 1 else "score"
    columns = (
        "head",
        "plan",
        f"validation {metric}",
        f"test {metric}",
        "95 % interval",
        f"test, chosen - {gains[0].over if gains else CAUSAL}",
    )
    yield Heading("Chosen on validation")
    yield Table(columns, [_choice(name, choice) for name, choice in scores.chosen.items()])
    yield from baseline_blocks(scores.baselines)
    if scores.test_read == EVERY_PLAN:
        yield (
            "Test was read for **every plan**, as was asked for. The plan is chosen on validation all the same; a "
            "plan picked by its test score is a choice on test."
        )
    else:
        yield f"Test was read for {scores.test_read}, after everything was chosen."


def _choice(name: str, choice: PlanChoice) -> tuple[str, ...]:
    result, point = choice.result, describe_point(choice.result.chosen)
    test = result.summary.get("test", {}).get(result.metric)
    gain = percent(choice.gain.gain, sign="+") if choice.gain else NOTHING
    gain = _lead(choice.lead) if choice.lead else gain
    plan = f"`{choice.plan.text}`" + (f", {point}" if point else "")
    return name, plan, percent(result.mean("validation")), percent(result.mean("test")), interval(test), gain


def screen_table(scores: RunScores, report: KindReport) -> ScreenTable:
    """Make the table of results for a terminal, 80 characters wide, numbers to the right."""
    header = scores.header
    titles, rows = result_rows(scores, report, on_screen=True)
    title = f"{header.name}: {task_title(header.task['name'])} on {header.decoder['name']}"
    table = ScreenTable(title=printable(title), box=SIMPLE, padding=(0, 1))
    widest = max((len(word) for row in rows for word in row[0].split()), default=0)  # no name of a head is cut
    for column in titles:
        is_head = column == "head"
        heading = "\n".join(column.rsplit(" ", 1))
        table.add_column(heading, justify="left" if is_head else "right", min_width=widest if is_head else None)
    for row in rows:
        table.add_row(*map(printable, row))
    return table


# --- The answer in two sentences ---


HEAD_WORDS = {
    "layer-cosine": "The cosine of two texts",
    "joined-cosine": "The mean cosine of several views",
    "cosine-mlp": "A small network",
    "cosine-linear": "A weighted sum of cosines",
    "siamese-cosine": "A siamese network",
    "logistic-probe": "A linear probe",
    "few-shot-probe": "A linear probe of few rows",
    "ridge-probe": "A linear probe",
    "nearest-centroid": "The nearest class mean",
    "cosine-threshold": "A threshold on the cosine",
    "token-classifier": "A linear probe of words",
    "token-logistic": "A linear probe of words",
    "token-normed": "A linear probe of words",
    "token-mix": "A linear probe of words",
    "layer-clusters": "Clusters of texts",
    **dict.fromkeys(
        ("layer-search", "layer-rerank", "layer-alike", "layer-translate", "layer-odd"), "The similarity of texts"
    ),
}
"""Heads in words, as a sentence begins; others by their name."""
BASELINE_WORDS = {
    "bag-of-words": "A bag of words",
    "word-overlap": "Counting the words that both share",
    "majority": "Always guessing the most frequent answer",
    "tf-idf": "Comparing words by tf-idf",
}
"""Baselines in words."""
OF_WORDS = {"majority": "Giving each word its most frequent tag"}
"""The same for tasks of words."""
METRIC_WORDS = {
    **{name: f"a {label} correlation" for name, label in LABELS.items()},
    "accuracy": "an accuracy",
    "f1-macro": "a macro F1",
    "span-f1": "an F1 of spans",
}
"""Metrics in words."""
FITTED = ("pairs", "classes", "numbers", "words")
"""Kinds of tasks whose splits are compared for rows that they share."""
ENDS = {EMBEDDING: "the embedding", FINAL_NORM: "the top layer, after the final norm"}


def plain_answer(scores: RunScores, report: KindReport) -> tuple[str, ...]:
    """Say what the best head predicts, how well, and whether that is more than a baseline without a decoder."""
    best = best_result(scores.heads.values())
    split, metric = best.reported_split, best.metric
    score = best.summary[split][metric]
    n_rows, unit = scores.header.task["n_rows"].get(split, 0), report.unit_of_rows
    value = f"{METRIC_WORDS.get(metric, cell(metric))} of {percent(score.mean)}"
    ends = f"{percent(score.low)} to {percent(score.high)}; " * math.isfinite(score.low)
    if math.isnan(score.mean):
        constant = "; a correlation is undefined where all predictions, or all gold values, are the same"
        value = f"no score{constant * (metric in CORRELATIONS)}"
    goal = report.goal(scores.header.task)
    first = f"{head_in_words(best)} {goal} with {value} ({ends}{n_rows:,} {split} {unit})."
    return tuple(filter(None, (first, _over_baseline(best, scores))))


def head_in_words(result: HeadResult) -> str:
    """Name a head and the layer that it reads as a stranger would.

    Example:
        >>> head_in_words(HeadResult("ridge-probe", "mean", (), {}, "pearson", "", 0.5, {"layer": "block_20"}, {}))
        'A linear probe on block 20'
    """
    head = HEAD_WORDS.get(result.name, f"The head `{cell(result.name)}`")
    layers = [view["layer"] for view in result.chosen.get("views", ())] or [str(result.chosen.get("layer", ""))]
    return f"{head} {' and '.join(layer_in_words(layer, result.layers) for layer in layers)}"


def layer_in_words(layer: str, layers: tuple[str, ...] = ()) -> str:
    """Name a layer as part of a sentence, or all of them where none was chosen."""
    if not layer or layer == "mix":
        if len(layers) > 1:
            return f"on all {len(layers)} layers"
        layer = layers[0] if layers else "the decoder"
    pooling, _, name = layer.rpartition("/")
    return f"on {ENDS.get(name, name.replace('_', ' '))}" + f" (pooling {cell(pooling)})" * bool(pooling)


def _over_baseline(best: HeadResult, scores: RunScores) -> str:
    """Compare with the best baseline on the rows that are reported, for the page; empty without any."""
    name = best_baseline(best, scores.baselines)
    if not name:
        return ""
    level = scores.baselines[name].summary[best.reported_split][best.metric].mean
    gap = scores.baselines[name].leads[best.name]
    words = OF_WORDS if scores.header.kind == "words" else BASELINE_WORDS
    baseline_text = f"{words.get(name, f'The baseline `{cell(name)}`')} reaches {percent(level)}"
    if math.isnan(gap.value):
        return f"{baseline_text}, and the two cannot be compared, as one has no score."
    reach = f"{percent(gap.value, sign='+')}, {signed_interval(gap.low, gap.high)}"
    if gap.n_units < FEW_UNITS:
        return f"{baseline_text}: {too_few('rows', gap.n_units)} to claim a difference."
    if gap.low > 0:
        return f"{baseline_text}, and the decoder is better by a significant difference ({reach})."
    if gap.high < 0:
        return f"{baseline_text}, and the decoder is **worse** by a significant difference ({reach})."
    return f"{baseline_text}; the difference is not significant ({reach})."


def checks(scores: RunScores) -> tuple[str, ...]:
    """Say that no rows are in two splits, where that was looked for and none were found."""
    task = scores.header.task
    if scores.header.kind not in FITTED or leaks(task) or task.get("shared_rows"):
        return ()
    return ("Leaks were looked for: no row of validation or test stands word for word in an earlier split.",)
