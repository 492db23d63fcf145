"""What a decoder can do with text, in numbers: sums over texts, intervals over their units, folders, comparisons."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from extract.errors import HeadError, first_line
from extract.files import digest_bytes, read_file, write_file
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
from probes.metrics.significance import bootstrap_p_value, correct_p_values
from probes.report.blocks import number
from probes.report.document import FEW_UNITS
from probes.report.safe_csv import read_csv, write_csv
from probes.report.scores import Plain, seal_scores
from probes.report.write import without_nan
from probes.runs.compare import LEVEL, unique_names

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
SCORES, ROWS = "scores.json", "rows.csv"
WHAT = "abilities"
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
            "what": WHAT,
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
    values = without_nan({**scores.to_dict(), "rows_sha256": digest_bytes(rows)})
    sealed = {**values, "sha256": seal_scores(values)}
    write_file(folder / SCORES, json.dumps(sealed, indent=1, allow_nan=False) + "\n")


def _rows(ability: Ability) -> list[tuple[object, ...]]:
    columns = ability.units, ability.rows, ability.asked, ability.sums.tolist(), ability.counts.tolist()
    return [(ability.name, ability.plan, *row) for row in zip(*columns, strict=True)]


def holds_abilities(folder: str | Path) -> bool:
    """Whether a folder is one that `icecore infill` wrote."""
    try:
        return bool(json.loads(read_file(Path(folder) / SCORES))["what"] == WHAT)
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
        if (values["schema"], values["what"]) != (SCHEMA, WHAT):
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
        return f"{subject} against {first.folder} under {first.plan}: too few articles or texts to tell, {reach}"
    if row.p_value < LEVEL:
        is_better = (gap.value < 0) == kind.is_better_lower
        return f"{subject} is {'better' if is_better else 'worse'} than {first.folder} under {first.plan}: {reach}"
    return f"{subject} is statistically tied with {first.folder} under {first.plan}: {reach}"
