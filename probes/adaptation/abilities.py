"""What a decoder can do with text, in numbers: sums, intervals, folders, comparisons, and their report."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.table import Table as ScreenTable

from extract.errors import HeadError, first_line, printable
from extract.files import digest_bytes, read_csv, read_file, remove_file, write_csv, write_file
from extract.records import Values
from probes.metrics.bootstrap import (
    DEFAULT,
    Difference,
    Resampling,
    SeedSummary,
    difference,
    number_units,
    resample,
    score_counts,
    summarise_counts,
)
from probes.metrics.significance import FEW_UNITS, bootstrap_p_value, correct_p_values, too_few
from probes.report import style
from probes.report.blocks import NOTHING, Block, Heading, Table, cell, markdown, number
from probes.report.page import PAGE, Page, Part, Pictures, write_page
from probes.report.scores import Plain, seal_scores, sealed_scores
from probes.report.style import Album
from probes.runs.compare import LEVEL, unique_names
from probes.runs.folder import OF_ABILITIES

if TYPE_CHECKING:
    import pandas as pd

    from probes.adaptation.measuring import Measured


SCHEMA = 1
SCORES, ROWS = "scores.json", "rows.csv"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a damaged or hand-made file may raise."""
COLUMNS = ("ability", "plan", "unit", "row", "asked", "sum", "count")


@dataclass(frozen=True)
class AbilityKind:
    """How one number is made of the sums and counts of texts."""

    label: str
    about: str
    """What a row's sum and count are, as a sentence without its full stop."""
    is_perplexity: bool = False
    """Whether it is exp of sum over count; else it is their ratio, a share."""
    is_better_lower: bool = True
    chance: float | None = None
    """What guessing gives, of a share that has such a level."""

    def of_sums(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute the number from sums `(..., 2)` of losses or hits and of what was counted; NaN where nothing was."""
        total, count = sums[..., 0], sums[..., 1]
        ratio = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
        return np.asarray(np.exp(ratio) if self.is_perplexity else ratio)

    def write(self, value: float, *, sign: str = "") -> str:
        """Write a perplexity, or a share times 100."""
        return (
            number(value, 2, sign=sign)
            if self.is_perplexity
            else number(value, 2 if self.is_better_lower else 1, times=100.0, sign=sign)
        )


ABILITIES = {
    "infilling-perplexity": AbilityKind(
        "infilling perplexity", "loss in nats of the span tokens of a text, and their number", is_perplexity=True
    ),
    "choice-accuracy": AbilityKind(
        "choice of five x 100",
        "whether the true sentence has the highest mean log-probability per token; 1",
        is_better_lower=False,
        chance=0.2,
    ),
    "choice-accuracy-sum": AbilityKind(
        "choice by sum x 100",
        "whether the true sentence has the highest sum of log-probabilities; 1",
        is_better_lower=False,
        chance=0.2,
    ),
    "choice-accuracy-onwards": AbilityKind(
        "choice, to the end x 100",
        "whether the true sentence and what follows have the highest mean log-probability per token; 1",
        is_better_lower=False,
        chance=0.2,
    ),
    "causal-perplexity": AbilityKind(
        "causal perplexity", "loss in nats of the tokens of a window, and their number", is_perplexity=True
    ),
    "rep-sen": AbilityKind("Rep-Sen x 100", "share of the sentences of a continuation that repeat an earlier one; 1"),
    "rep-4": AbilityKind("Rep-4 x 100", "share of the token 4-grams of a continuation that repeat an earlier one; 1"),
}
"""What is measured, by name."""


@dataclass(frozen=True, eq=False)
class Ability:
    """One ability under one plan: a sum and a count for each of `N` rows."""

    name: str
    """A key of `ABILITIES`."""
    plan: str
    units: tuple[str, ...]
    """The article of each row, or else its text: what resamples draw whole."""
    rows: tuple[str, ...]
    """Digest of each row's text."""
    asked: tuple[str, ...]
    """What of the text was scored, as its columns."""
    sums: Float[np.ndarray, " N"]
    counts: Float[np.ndarray, " N"]

    @property
    def kind(self) -> AbilityKind:
        """How its number is made."""
        return ABILITIES[self.name]

    @cached_property
    def by_unit(self) -> Float[np.ndarray, "U 2"]:
        """Sum and count of every unit, in the order of their first rows."""
        units = number_units(self.units, len(self.units))
        sums = np.zeros((int(units.max(initial=-1)) + 1, 2))
        np.add.at(sums, units, np.stack([self.sums, self.counts], axis=1))
        return sums

    @property
    def value(self) -> float:
        """The number on all rows."""
        return float(self.kind.of_sums(self.by_unit.sum(0)))

    def summarise(self, resampling: Resampling = DEFAULT) -> SeedSummary:
        """Give the number with its interval over units."""
        return summarise_counts(self.by_unit[None], self.kind.of_sums, resampling=resampling)

    def is_on_same_rows(self, other: "Ability") -> bool:
        """Whether both asked the same of the same texts, in the same order."""
        return (self.units, self.rows, self.asked) == (other.units, other.rows, other.asked)


@dataclass(frozen=True, eq=False)
class AbilityScores:
    """What was measured of one decoder."""

    name: str
    """Its name in tables: the decoder, and an adapter."""
    decoder: Values
    texts: str
    """Where the texts are from."""
    options: Values
    abilities: tuple[Ability, ...]
    program: Values = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def table(self, resampling: Resampling = DEFAULT) -> "pd.DataFrame":
        """Lay it out as a frame: `ability`, `plan`, `value`, `low`, `high`, `n_rows`, `n_units` and `count`."""
        import pandas as pd

        return pd.DataFrame([_row(ability, resampling) for ability in self.abilities])

    def to_dict(self) -> Plain:
        """Return scores.json, without its seal and the digest of the rows."""
        return {
            "schema": SCHEMA,
            "what": OF_ABILITIES,
            "name": self.name,
            "decoder": dict(self.decoder),
            "texts": self.texts,
            "options": dict(self.options),
            "scores": [_row(ability, DEFAULT) for ability in self.abilities],
            "notes": list(self.notes),
            "program": dict(self.program),
        }


def _row(ability: Ability, resampling: Resampling) -> Plain:
    summary = ability.summarise(resampling)
    return {
        "ability": ability.name,
        "plan": ability.plan,
        "value": summary.mean,
        "low": summary.low,
        "high": summary.high,
        "n_rows": len(ability.rows),
        "n_units": len(ability.by_unit),
        "count": float(ability.counts.sum()),
    }


# --- Folders ---


def write_scores(folder: Path, scores: AbilityScores) -> None:
    """Write the rows of every ability, and scores.json, which holds their digest, last."""
    rows = write_csv([COLUMNS, *(row for ability in scores.abilities for row in _rows(ability))]).encode()
    write_file(folder / ROWS, rows)
    sealed = sealed_scores({**scores.to_dict(), "rows_sha256": digest_bytes(rows)})
    write_file(folder / SCORES, json.dumps(sealed, indent=1, allow_nan=False) + "\n")


def _rows(ability: Ability) -> list[tuple[object, ...]]:
    columns = ability.units, ability.rows, ability.asked, ability.sums.tolist(), ability.counts.tolist()
    return [(ability.name, ability.plan, *row) for row in zip(*columns, strict=True)]


def holds_abilities(folder: str | Path) -> bool:
    """Whether a folder is one that `icecore infill` wrote."""
    try:
        return bool(json.loads(read_file(Path(folder) / SCORES))["what"] == OF_ABILITIES)
    except UNREADABLE:
        return False


def load_abilities(folder: str | Path) -> AbilityScores:
    """Load what `icecore infill` wrote to a folder.

    Raises:
        HeadError: A folder without it, of another version, or changed afterwards; names it.

    Example:
        >>> load_abilities("infilling/base").table()  # doctest: +SKIP
    """
    path = Path(folder)
    try:
        values = json.loads(read_file(path / SCORES))
        if (values["schema"], values["what"]) != (SCHEMA, OF_ABILITIES):
            raise ValueError(f"schema {values['schema']} of {values['what']}, this version reads schema {SCHEMA}")
        content = read_file(path / ROWS)
        if values["sha256"] != seal_scores(values) or values["rows_sha256"] != digest_bytes(content):
            raise ValueError("it was changed after it had been written")
        parts: dict[tuple[str, str], list[list[str]]] = {}
        for name, plan, *row in read_csv(content.decode())[1:]:
            parts.setdefault((name, plan), []).append(row)
        abilities = []
        for (name, plan), rows in parts.items():
            units, texts, asked, sums, counts = zip(*rows, strict=True)
            numbers = np.array([sums, counts], np.float64)
            abilities.append(Ability(name, plan, units, texts, asked, *numbers))
            ABILITIES[name]  # so that an unknown one is refused here
        return AbilityScores(
            values["name"],
            values["decoder"],
            values["texts"],
            values["options"],
            tuple(abilities),
            values["program"],
            tuple(values["notes"]),
        )
    except UNREADABLE as error:
        raise HeadError(
            f"folder {str(path)!r} holds no abilities ({first_line(error)}); allowed: a folder that `icecore infill` "
            "wrote with --out."
        ) from error


# --- Comparisons ---


@dataclass(frozen=True)
class ComparedAbility:
    """One ability of one system, a folder under a plan, beside that of the first system that has it."""

    name: str
    """A key of `ABILITIES`."""
    folder: str
    plan: str
    score: SeedSummary
    over_first: Difference | None
    """What it has over the first system, paired; None of the first itself."""
    p_value: float
    """That this difference is 0, by the same resamples, corrected by Holm for the systems of the ability."""
    over_plan: Difference | None
    """What it has over the first folder under the same plan; None where that is the first system, or absent."""
    n_units: int
    """Articles, or texts."""


def compare_abilities(folders: Sequence[str | Path], *, n_resamples: int = 1000) -> list[ComparedAbility]:
    """Compare what decoders can do under their plans, on the same texts and spans.

    Args:
        folders: Folders that `icecore infill` wrote, one or more; of one, its plans are compared.
        n_resamples: Resamples of the paired bootstrap, which draws whole articles, or texts where there are none.

    Returns:
        A row per ability, folder and plan; the first of an ability is what the others are compared with.

    Raises:
        HeadError: A folder without abilities, or of other texts, spans or tokens; names it.

    Example:
        >>> compare_abilities(["infilling/base", "infilling/adapted"])  # doctest: +SKIP
    """
    scores = [load_abilities(folder) for folder in folders]
    return compare_scores(scores, unique_names([Path(folder) for folder in folders]), n_resamples=n_resamples)


def compare_scores(
    scores: Sequence[AbilityScores], labels: Sequence[str], *, n_resamples: int = 1000
) -> list[ComparedAbility]:
    """Compare scores by their labels, as `compare_abilities` does."""
    compared = []
    for name in ABILITIES:
        systems = [
            (label, ability)
            for label, one in zip(labels, scores, strict=True)
            for ability in one.abilities
            if ability.name == name
        ]
        if systems:
            compared += _compare(name, systems, Resampling(n_resamples))
    return compared


def _compare(name: str, systems: Sequence[tuple[str, Ability]], resampling: Resampling) -> list[ComparedAbility]:
    kind, (first, reference) = ABILITIES[name], systems[0]
    for label, ability in systems:
        if not ability.is_on_same_rows(reference):
            raise HeadError(
                f"{label!r} under {ability.plan!r} and {first!r} under {reference.plan!r} are not of the same texts "
                f"and spans ({name}, {len(ability.rows)} and {len(reference.rows)} rows): measure both with the same "
                "--texts, --rows, --spans and --seed, and with decoders of one tokenizer."
            )
    counts = np.stack([ability.by_unit for _, ability in systems])
    n_units = counts.shape[1]
    values = kind.of_sums(counts.sum(1))
    resampled = resample(score_counts(counts, kind.of_sums), n_units=n_units, resampling=resampling)
    gaps = [difference(values, resampled, k, 0, n_units=n_units) for k in range(len(systems))]
    p_values = [
        bootstrap_p_value(gap.value, row - resampled[0]) for gap, row in zip(gaps[1:], resampled[1:], strict=True)
    ]
    corrected = [float("nan"), *correct_p_values(p_values).tolist()]
    peers = {ability.plan: k for k, (label, ability) in reversed([*enumerate(systems)]) if label == first}
    compared = []
    for k, (label, ability) in enumerate(systems):
        peer = peers.get(ability.plan, k)
        over_plan = None if peer in (0, k) else difference(values, resampled, k, peer, n_units=n_units)
        compared.append(
            ComparedAbility(
                name,
                label,
                ability.plan,
                ability.summarise(resampling),
                gaps[k] if k else None,
                corrected[k],
                over_plan,
                n_units,
            )
        )
    return compared


def verdict(row: ComparedAbility, first: ComparedAbility) -> str:
    """Say in a sentence whether a system differs from the first one."""
    gap, kind = row.over_first, ABILITIES[row.name]
    assert gap is not None, "the first system is compared with none"
    ends = f"{kind.write(gap.low, sign='+')} to {kind.write(gap.high, sign='+')}"
    subject = f"{kind.label}: {row.folder} under {row.plan}"
    reach = f"{kind.write(gap.value, sign='+')} ({ends}; p {number(row.p_value, 3)}, n = {gap.n_units:,})"
    if gap.n_units < FEW_UNITS:
        few = f"{too_few('articles or texts', gap.n_units)} to claim a difference"
        return f"{subject} against {first.folder} under {first.plan}: {few}, {kind.write(gap.value, sign='+')} ({ends})"
    if row.p_value < LEVEL:
        is_better = (gap.value < 0) == kind.is_better_lower
        return f"{subject} is {'better' if is_better else 'worse'} than {first.folder} under {first.plan}: {reach}"
    return f"{subject} is statistically tied with {first.folder} under {first.plan}: {reach}"


# The report of what decoders can do with text: tables, a figure, a page and a summary, of one folder or of several.


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
    for name in ("infillings", "continuations"):  # those of an earlier measurement
        remove_file(folder / f"{name}.csv")
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
