"""The summary of a run: one document for every kind of task, which differ in a `KindReport`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extract.inputs.template import FIRST_FIELDS
from probes.heads.pairs.residuals import Residuals
from probes.heads.result import HeadResult
from probes.report.blocks import Block, Caution, Document, Heading, Item, Table, markdown
from probes.report.lead import Bare, SplitRows, run_lead, run_question
from probes.report.scores import Header, PretrainingScores, RunScores
from probes.report.table import Column, Row


@dataclass(frozen=True)
class KindReport:
    """What is particular to the report of one kind of task. A new kind is one of these."""

    columns: tuple[Column, ...]
    inputs: Callable[[Any, str], Mapping[str, Sequence[Any]]]
    """Gives, for a task and a split, columns of predictions.csv: `row`, and the inputs of every prediction."""
    gold: Callable[[Any, str], Sequence[Any]]
    """Gives, for a task and a split, the gold of every prediction: numbers, or names."""
    units: Callable[[Any, str], Sequence[Any] | None]
    """Gives, for a task and a split, the unit of every prediction that intervals draw whole; None where they draw rows,
    or the sentences of words."""
    resampled: Callable[[Mapping[str, Any]], str]
    """Says, from the task's description, what intervals are drawn from."""
    metrics: Callable[[HeadResult], Sequence[str]] = lambda result: (result.metric,)
    """Metrics of a head, a row of the results table each."""
    remarks: tuple["Section", ...] = ()
    """Paragraphs below the results table, without a heading."""
    sections: tuple["Section", ...] = ()
    """Sections after them."""
    used: tuple["Section", ...] = ()
    """Further lines of the section "What was used"."""
    residuals: Callable[[SplitRows, NDArray[np.float64]], Residuals] | None = None
    """Compares predicted numbers with gold; None for predicted names."""
    bare: Bare = lambda *_: ""
    """Gives the score of what needs no head beside that of one, as part of a sentence; empty where there is nothing."""
    zero_shot: str = ""
    """Metric of the score that a mask plan has without any head; empty where there is none."""
    writers: tuple[Callable[..., None], ...] = ()
    """Write further files into the folder of a run, from task and results."""

    def rows(self, task: Any) -> dict[str, SplitRows]:
        """Return the rows of every split of a task."""
        return {
            split: SplitRows(self.inputs(task, split), self.gold(task, split), self.units(task, split))
            for split in task.splits
        }


@dataclass(frozen=True)
class Context:
    """What a section is written from: the scores with predictions, and the rows that were predicted."""

    scores: RunScores
    rows: Mapping[str, SplitRows]
    report: KindReport

    def with_extra(self, name: str) -> "Iterator[tuple[str, HeadResult, Any]]":
        """Give every head that recorded an extra of this name, its result and the extra; heads of users may not."""
        return ((head, result, result.extras[name]) for head, result in self.results if name in result.extras)

    @property
    def results(self) -> Iterable[tuple[str, HeadResult]]:
        """Every head with its result."""
        return self.scores.heads.items()


Section = Callable[[Context], Iterator[Block]]
"""Writes a part of a report."""


def result_rows(
    scores: RunScores, report: KindReport, *, on_screen: bool = False
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Lay the results of a run out: titles of the columns, and a row of text per head and metric, scores times 100.

    On screen, the columns that do not fit a terminal are left out.
    """
    columns = [column for column in report.columns if column.on_screen or not on_screen]
    rows = [Row(result, metric) for result in scores.heads.values() for metric in report.metrics(result)]
    return tuple(column.title for column in columns), [tuple(column.text(row) for column in columns) for row in rows]


def run_document(context: Context) -> Document:
    """Write the report of a run."""
    header, report = context.scores.header, context.report
    titles, rows = result_rows(context.scores, report)
    blocks = [*opening(header), Table(titles, rows), _numbers(context), *_cautions(context)]
    for section in (*report.remarks, _departures, *report.sections, _used):
        blocks += section(context)
    blocks += _pretraining(context.scores.pretraining)
    if header.task["notes"]:
        blocks += [Heading("Data notes"), *map(Item, header.task["notes"])]
    return Document(header.name, run_question(header), run_lead(context.scores, report.bare, context.rows), blocks)


def pretraining_document(scores: PretrainingScores) -> Document:
    """Write the report of autoencoders that were fitted by themselves."""
    blocks = [*opening(scores.header), *_pretraining(scores.pretraining), Heading("What was used")]
    return Document(scores.header.name, "", "", [*blocks, machine_line(scores.header)])


def summary_text(document: Document, figures: Mapping[str, Sequence[str]]) -> str:
    """Write a report as Markdown without HTML, with the files of its figures by their titles."""
    shown = [figure_line(title, files) for title, files in figures.items()]
    blocks = [*filter(None, [document.answer]), *document.blocks, *[Heading("Figures")] * bool(shown), *shown]
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


def figure_line(title: str, files: Sequence[str]) -> str:
    """Show a figure in the first of its formats that a page can show, with links to the others."""
    shown = next((file for file in files if not file.endswith(".pdf")), None)
    links = [f"[{file.rpartition('.')[2]}]({file})" for file in files if file != shown]
    return " ".join([f"![{title}]({shown})" if shown else f"{title}:", *links])


def _numbers(context: Context) -> str:
    """Say what the numbers of the results table are."""
    header = context.scores.header
    has_seeds = any(len(result.seeds) > 1 for _, result in context.results)
    is_honest = not any(result.is_optimistic for _, result in context.results)
    chosen = "; ".join(f"`{name}` {result.selection}" for name, result in context.results)
    return (
        f"Scores times 100{', mean ± standard deviation over seeds' * has_seeds}; the interval is a "
        f"{header.n_resamples}-fold bootstrap over test {context.report.resampled(header.task)}. "
        f"Chosen on: {chosen}{'; nothing was chosen on test' * is_honest} (protocol `{header.protocol}`, "
        "docs/protocol.md)."
    )


def _cautions(context: Context) -> Iterator[Block]:
    """Warn of heads whose numbers are optimistic or that did not converge, and of rows that are in train as well."""
    for name, result in context.results:
        if result.is_optimistic:
            yield Caution(f"`{name}` is **optimistic**: {result.optimistic_because}.")
        found = result.extras.get("convergence", {"n_problems": 0, "n_converged": 0})
        missing = found["n_problems"] - found["n_converged"]
        if missing:
            yield Caution(f"`{name}` **did not converge** in {missing:,} of {found['n_problems']:,} problems.")
    for note in context.scores.header.task.get("shared_rows", {}).values():
        yield Caution(f"**Rows that are not independent**, {note}.")
    for note in context.scores.header.task["notes"]:
        if note.startswith(("validation: ", "test: ")) and note.endswith((" train", " validation")):
            yield Caution(f"**Leak**, {note}.")


def _departures(context: Context) -> Iterator[Block]:
    lines = [Item(f"`{name}`: {line}") for name, result in context.results for line in result.departures]
    if lines:
        yield Heading(f"Departures from the protocol `{context.scores.header.protocol}`")
        yield from lines


def _used(context: Context) -> Iterator[Block]:
    header, cache = context.scores.header, context.scores.cache
    decoder, task, template = header.decoder, header.task, cache["template"]
    yield Heading("What was used")
    yield Item(
        f"Decoder: `{decoder['name']}` ({decoder['family']}, {decoder['n_layers']} blocks, width {decoder['width']}, "
        f"{decoder['dtype']}, weights `{decoder['weight_digest'][:12]}`, revision `{decoder['revision'] or 'local'}`)"
    )
    yield Item(
        f"Plan `{cache['plan']}`, poolings {', '.join(cache['poolings'])}, BOS policy `{template['bos']}`, "
        f"instruction {template['instruction']!r}{_further(template)}"
    )
    yield Item(
        f"Cache: `{cache['file']}`, {cache['n_rows']:,} texts, identity `{cache['id'][:12]}`, "
        f"{cache['n_truncated']} truncated"
    )
    counts = ", ".join(f"{split} {n:,}" for split, n in task["n_rows"].items())
    yield Item(f"Task: `{task['name']}`, {task['source']}; {counts}")
    for section in context.report.used:
        yield from section(context)
    yield machine_line(header)


def _further(template: Mapping[str, Any]) -> str:
    """Name the fields of a template that differ from their defaults, beyond those that every report names."""
    named = (*FIRST_FIELDS, "window", "mean_of")
    return "".join(f", {key} {value!r}" for key, value in template.items() if key not in named)


def text_inputs(task: Any, split: str) -> dict[str, Sequence[Any]]:
    """Return the inputs of kinds that predict one thing per row: the row number and the columns of texts."""
    rows = task.rows(split)
    return {"row": range(len(rows)), **{column: list(rows[column]) for column in task.text_columns}}


def _pretraining(pretraining: Mapping[str, Any]) -> Iterator[Block]:
    """Write the losses of autoencoders, a line per pooling; nothing where there are none."""
    found = pretraining.get("autoencoders", {})
    if found:
        yield Heading("Layer-wise autoencoders")
    for pooling, record in found.items():
        losses, layers = record["held_out_losses"], record["layers"]
        first, last = min(record["best_epochs"]), max(record["best_epochs"])
        kept = f"epoch {last}" if first == last else f"epochs {first} to {last}"
        what = "share of the variance lost" if record["standardises_latents"] else "mean squared error"
        yield Item(
            f"`{pooling}`: codes of {', '.join(map(str, dict.fromkeys(record['codes'])))}, "
            f"{record['n_texts']['train']:,} texts, {kept} of {len(record['history'])}; {what} on "
            f"{record['n_texts']['held_out']:,} held-out texts: {sum(losses) / len(losses):.3f} on average, "
            f"{min(losses):.3f} ({layers[losses.index(min(losses))]}) to {max(losses):.3f} "
            f"({layers[losses.index(max(losses))]})"
        )
