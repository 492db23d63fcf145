"""The report of what decoders can do with text: tables, a figure, a page and a summary, of one folder or of several."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from rich.box import SIMPLE
from rich.table import Table as ScreenTable

from extract.errors import printable
from extract.files import write_file
from probes.adaptation.abilities import (
    ABILITIES,
    AbilityScores,
    ComparedAbility,
    compare_scores,
    verdict,
    write_scores,
)
from probes.metrics.bootstrap import Difference
from probes.report import style
from probes.report.blocks import NOTHING, Block, Heading, Table, cell, markdown, number
from probes.report.page import PAGE, Page, Part, Pictures, write_page
from probes.report.safe_csv import write_csv
from probes.report.style import Album

if TYPE_CHECKING:  # which brings torch with it
    from probes.adaptation.measuring import Measured

Drawn = dict[str, tuple[str, ...]]
"""Title to the files of a figure."""
MOST_SHOWN = 20
"""Infillings and continuations on a page; all are in their CSV files."""
RESAMPLED = "Intervals of 95 % draw whole articles, or texts where there are none; differences are paired."
"""What intervals are over."""


def write_measured(folder: Path, measured: "Measured", *, formats: Sequence[str] = ("png",)) -> Drawn:
    """Write scores, rows, texts to read, the figure, the page and the summary; return the figures' files."""
    scores = measured.scores
    compared = compare_scores([scores], [scores.name])
    texts = _texts_to_read(measured)
    for name, _, table in texts:
        write_file(folder / f"{name}.csv", write_csv([table.columns, *table.rows]))
    write_scores(folder, scores)
    blocks: list[Block] = [about(scores), *scores.notes, score_table(compared), RESAMPLED]
    for name, title, table in texts:
        shown = f"{min(len(table.rows), MOST_SHOWN)} of {len(table.rows)}; all are in {name}.csv."
        cells = [[cell(text) for text in row] for row in table.rows[:MOST_SHOWN]]
        blocks += [Heading(title), shown, Table(table.columns, cells)]
    title = f"What {scores.name} can do with text"
    question = "How well does it fill spans, choose sentences, predict and continue?"
    return _write(folder, (title, question), compared, blocks, formats)


def write_compared(folder: Path, compared: Sequence[ComparedAbility], *, formats: Sequence[str] = ("png",)) -> Drawn:
    """Write the comparison of several folders: table, figure, page and summary; return the figures' files."""
    names = list(dict.fromkeys(row.folder for row in compared))
    write_file(folder / "comparison.csv", write_csv(comparison_rows(compared)))
    question = f"What differs between {' and '.join(names)}?"
    blocks: list[Block] = [score_table(compared), RESAMPLED]
    return _write(folder, (f"{len(names)} decoders with text", question), compared, blocks, formats)


def _write(
    folder: Path,
    titles: tuple[str, str],
    compared: Sequence[ComparedAbility],
    blocks: Sequence[Block],
    formats: Sequence[str],
) -> Drawn:
    pictures = Pictures()
    album = Album(folder, formats, pictures.keep)
    names = list(dict.fromkeys(row.name for row in compared))
    size = (style.SIZE[0], 0.9 + sum(0.55 + 0.22 * sum(row.name == name for row in compared) for name in names))
    album.add("abilities", draw_abilities, compared, title=titles[0], note=RESAMPLED, size=size)
    answers = tuple(f"{cell(sentence)}." for sentence in verdicts(compared))
    results = Part("Results", tuple(blocks), pictures.take(), is_main=True)
    write_page(folder / PAGE, Page(*titles, answers, (), (results,)), pictures.classes)
    summary = [f"# {titles[0]}", *answers, *blocks]
    shown = "".join(f"\n![{title}]({files[0]})\n" for title, files in album.drawn.items() if files)
    write_file(folder / "summary.md", markdown(summary) + shown)
    return album.drawn


def about(scores: AbilityScores) -> str:
    """Say what was measured on which texts."""
    options = scores.options
    spans = options["spans"]
    return cell(
        f"Texts: {scores.texts}. At most {spans['most']} spans of {spans['shortest']} to {spans['longest']} tokens a "
        f"text, seed {spans['seed']}; the tokens of <unk> and <formula> are read and not scored."
    )


def verdicts(compared: Sequence[ComparedAbility]) -> list[str]:
    """Say of every system but the first of an ability how it compares with that, in a sentence."""
    firsts = {row.name: row for row in reversed(compared)}
    return [verdict(row, firsts[row.name]) for row in compared if row.over_first is not None]


TITLES = ("ability", "decoder", "plan", "value", "95 % interval", "over the first", "over the first decoder's plan")


def score_table(compared: Sequence[ComparedAbility]) -> Table:
    """Lay out every ability of every system: value, interval, and what it has over the first, paired."""
    return Table(TITLES, [[cell(text) for text in _cells(row)] for row in compared])


def _cells(row: ComparedAbility) -> tuple[str, ...]:
    kind, score = ABILITIES[row.name], row.score

    def written(gap: Difference | None) -> str:
        if gap is None:
            return NOTHING
        ends = f"{kind.write(gap.low, sign='+')} to {kind.write(gap.high, sign='+')}"
        return f"{kind.write(gap.value, sign='+')} ({ends})"

    ends = NOTHING if score.low != score.low else f"{kind.write(score.low)} to {kind.write(score.high)}"
    gaps = written(row.over_first), written(row.over_plan)
    return (kind.label, row.folder, row.plan, kind.write(score.mean), ends, *gaps)


def score_screen(compared: Sequence[ComparedAbility]) -> ScreenTable:
    """Lay the same out for a terminal."""
    is_one = len({row.folder for row in compared}) == 1
    table = ScreenTable(box=SIMPLE, padding=(0, 1))
    for title in ("ability", "plan" if is_one else "decoder and plan"):
        table.add_column(title, overflow="fold")
    for title in ("value", "95 %\ninterval", "over the first,\npaired"):
        table.add_column(title, justify="right")
    for row in compared:
        label, folder, plan, value, ends, over_first, _ = _cells(row)
        table.add_row(*map(printable, (label, plan if is_one else f"{folder}\n{plan}", value, ends, over_first)))
    return table


def comparison_rows(compared: Sequence[ComparedAbility]) -> list[tuple[object, ...]]:
    """Lay out a comparison as rows of numbers, names of columns first; what is not there is empty."""
    ends = ("difference", "low", "high")
    columns = ("ability", "decoder", "plan", "value", "low", "high", *(f"{x}_first" for x in ends), "p_value")
    rows: list[tuple[object, ...]] = [(*columns, *(f"{x}_plan" for x in ends), "n_units")]
    for row in compared:
        gaps = [("", "", "") if gap is None else gap[:3] for gap in (row.over_first, row.over_plan)]
        score, p_value = row.score, "" if row.over_first is None else row.p_value
        numbers = (score.mean, score.low, score.high, *gaps[0], p_value, *gaps[1], row.n_units)
        rows.append((row.name, row.folder, row.plan, *numbers))
    return rows


def draw_abilities(figure: Figure, compared: Sequence[ComparedAbility]) -> None:
    """Draw a panel per ability: a dot and an interval per system."""
    names = list(dict.fromkeys(row.name for row in compared))
    groups = [[row for row in compared if row.name == name] for name in names]
    subplots = figure.subplots(len(names), 1, squeeze=False, height_ratios=[0.8 + len(group) for group in groups])
    for axes, name, group in zip(subplots.ravel().tolist(), names, groups, strict=True):
        kind = ABILITIES[name]
        times = 1.0 if kind.is_perplexity else 100.0
        for line, row in enumerate(group):
            axes.plot(times * row.score.mean, line, "o", color=style.BLUE, markersize=5)
            axes.plot([times * row.score.low, times * row.score.high], [line, line], color=style.BLUE, linewidth=1.2)
        several = len({row.folder for row in group}) > 1
        labels = [style.shorten(f"{row.folder}, {row.plan}" if several else row.plan) for row in group]
        axes.set_yticks(range(len(group)), labels)
        axes.set_ylim(len(group) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        if kind.chance is not None:
            axes.axvline(100 * kind.chance, color=style.GREY, linestyle=(0, (4, 2)), linewidth=0.9, zorder=1)
            style.write_above(axes, "chance", 100 * kind.chance, colour=style.GREY)
            axes.set_xlim(-2, 102)
        axes.set_xlabel(f"{kind.label}, n = {group[0].n_units:,}")


def _texts_to_read(measured: "Measured") -> list[tuple[str, str, Table]]:
    """Give the tables of texts, each with the name of its file and its title."""
    infillings, continuations = measured.infillings, measured.continuations
    tables = []
    if infillings:
        plans = tuple(infillings[0].by_plan)
        rows = [(one.unit, one.before, one.true, *one.by_plan.values(), one.after) for one in infillings]
        tables.append(("infillings", "Greedy infillings", Table(("text", "before", "true", *plans, "after"), rows)))
    if continuations:
        columns = ("text", "prefix", "continuation", "Rep-Sen", "Rep-4")
        lines = [
            (one.unit, one.prefix, one.text, number(one.rep_sen, 3), number(one.rep_4, 3)) for one in continuations
        ]
        tables.append(("continuations", "Greedy continuations", Table(columns, lines)))
    return tables
