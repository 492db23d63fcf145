"""The summary of a run: one document for every kind of task, which differ in a `KindReport`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.heads.pairs.residuals import Residuals
from probes.heads.result import HeadResult
from probes.report.lead import Bare, run_lead
from probes.report.scores import Header, PretrainingScores, RunScores
from probes.report.table import Column, Row, markdown_table


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
    residuals: Callable[[Any, str, NDArray[np.float64]], Residuals] | None = None
    """Compares, for a task and a split, predicted numbers with gold; None for predicted names."""
    bare: Bare = lambda *_: ""
    """Compares the score of a head with what needs none, as part of a sentence; empty where there is nothing."""
    zero_shot: str = ""
    """Metric of the score that a mask plan has without any head; empty where there is none."""
    writers: tuple[Callable[..., None], ...] = ()
    """Write further files into the folder of a run, from task and results."""


@dataclass(frozen=True)
class Context:
    """What a section is written from: the scores with predictions, and the task."""

    scores: RunScores
    task: Any
    report: KindReport
    figures: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Title to files, relative to the run folder, of every figure that was drawn."""

    @property
    def results(self) -> Iterable[tuple[str, HeadResult]]:
        """Every head with its result."""
        return self.scores.heads.items()


Section = Callable[[Context], Iterator[str]]
"""Writes lines of Markdown."""


def result_rows(
    scores: RunScores, report: KindReport, *, on_screen: bool = False
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Lay the results of a run out: titles of the columns, and a row of text per head and metric, scores times 100.

    On screen, the columns that do not fit a terminal are left out.
    """
    columns = [column for column in report.columns if column.on_screen or not on_screen]
    rows = [Row(result, metric) for result in scores.heads.values() for metric in report.metrics(result)]
    return tuple(column.title for column in columns), [tuple(column.text(row) for column in columns) for row in rows]


def summary_text(context: Context) -> str:
    """Write the summary of a run, as Markdown."""
    header, report = context.scores.header, context.report
    titles, rows = result_rows(context.scores, report)
    opening = opening_lines(header, run_lead(context.scores, report.bare))
    lines = [*opening, markdown_table(rows, titles), f"\n{_numbers(context)}", *_cautions(context)]
    for section in (*report.remarks, _departures, *report.sections, _used):
        lines += section(context)
    lines += _pretraining(context.scores.pretraining)
    if header.task["notes"]:
        lines += ["\n## Data notes\n", *(f"- {note}" for note in header.task["notes"])]
    return join_lines([*lines, *figure_lines(context.figures)])


def pretraining_text(scores: PretrainingScores, figures: Mapping[str, Sequence[str]]) -> str:
    """Write the summary of autoencoders that were fitted by themselves."""
    lines = (*opening_lines(scores.header), *_pretraining(scores.pretraining), "\n## What was used\n")
    return join_lines([*lines, machine_line(scores.header), *figure_lines(figures)])


def join_lines(lines: Iterable[str]) -> str:
    """Join lines of Markdown; empty ones are left out."""
    return "\n".join(line for line in lines if line) + "\n"


def opening_lines(header: Header, lead: str = "") -> Iterator[str]:
    """Write the title, the sentences that say most, that a sample is no benchmark, and the command if there was one."""
    yield f"# {header.name}\n"
    yield f"{lead}\n" if lead else ""
    if header.task.get("is_sample"):
        yield "> The task is a **sample** shipped with the project: its scores are no benchmark result.\n"
    yield f"Command: `{header.command}`\n" if header.command else ""


def machine_line(header: Header) -> str:
    """Write what computed the numbers."""
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    products = f", float32 products by {', '.join(header.products.values())}" if header.products else ""
    return f"- Commit `{header.commit or 'not a checkout'}`, device `{header.device}`{products}, {versions}"


def figure_lines(figures: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Show every figure in the first of its formats that a page can show, with links to the others."""
    if figures:
        yield "\n## Figures\n"
    for title, files in figures.items():
        shown = next((file for file in files if not file.endswith(".pdf")), None)
        links = [f"[{file.rpartition('.')[2]}]({file})" for file in files if file != shown]
        picture = f"![{title}]({shown})" if shown else f"{title}:"
        yield " ".join([picture, *links])


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


def _cautions(context: Context) -> Iterator[str]:
    for name, result in context.results:
        if result.is_optimistic:
            yield f"\n> `{name}` is **optimistic**: {result.optimistic_because}."


def _departures(context: Context) -> Iterator[str]:
    lines = [f"- `{name}`: {line}" for name, result in context.results for line in result.departures]
    if lines:
        yield f"\n## Departures from the protocol `{context.scores.header.protocol}`\n"
        yield from lines


def _used(context: Context) -> Iterator[str]:
    header, cache = context.scores.header, context.scores.cache
    decoder, task, template = header.decoder, header.task, cache["template"]
    yield "\n## What was used\n"
    yield (
        f"- Decoder: `{decoder['name']}` ({decoder['family']}, {decoder['n_layers']} blocks, width {decoder['width']}, "
        f"{decoder['dtype']}, weights `{decoder['weight_digest'][:12]}`, revision `{decoder['revision'] or 'local'}`)"
    )
    yield (
        f"- Plan `{cache['plan']}`, poolings {', '.join(cache['poolings'])}, BOS policy `{template['bos']}`, "
        f"instruction {template['instruction']!r}"
    )
    yield (
        f"- Cache: `{cache['file']}`, {cache['n_rows']:,} texts, identity `{cache['id'][:12]}`, "
        f"{cache['n_truncated']} truncated"
    )
    counts = ", ".join(f"{split} {n:,}" for split, n in task["n_rows"].items())
    yield f"- Task: `{task['name']}`, {task['source']}; {counts}"
    for section in context.report.used:
        yield from section(context)
    yield machine_line(header)


def text_inputs(task: Any, split: str) -> dict[str, Sequence[Any]]:
    """Return the inputs of kinds that predict one thing per row: the row number and the columns of texts."""
    rows = task.rows(split)
    return {"row": range(len(rows)), **{column: list(rows[column]) for column in task.text_columns}}


def _pretraining(pretraining: Mapping[str, Any]) -> Iterator[str]:
    """Write the losses of autoencoders, a line per pooling; nothing where there are none."""
    found = pretraining.get("autoencoders", {})
    if found:
        yield "\n## Layer-wise autoencoders\n"
    for pooling, record in found.items():
        losses, layers = record["held_out_losses"], record["layers"]
        first, last = min(record["best_epochs"]), max(record["best_epochs"])
        kept = f"epoch {last}" if first == last else f"epochs {first} to {last}"
        what = "share of the variance lost" if record["standardises_latents"] else "mean squared error"
        yield (
            f"- `{pooling}`: codes of {', '.join(map(str, dict.fromkeys(record['codes'])))}, "
            f"{record['n_texts']['train']:,} texts, {kept} of {len(record['history'])}; {what} on "
            f"{record['n_texts']['held_out']:,} held-out texts: {sum(losses) / len(losses):.3f} on average, "
            f"{min(losses):.3f} ({layers[losses.index(min(losses))]}) to {max(losses):.3f} "
            f"({layers[losses.index(max(losses))]})"
        )
