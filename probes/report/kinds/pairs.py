"""The report of a run on text pairs with a graded similarity."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extract.decoders.layers import FINAL_NORM
from probes.heads.pairs.residuals import Residuals, residuals_between
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import SeedSummary
from probes.report import table
from probes.report.blocks import Block, Heading, Item, Table
from probes.report.document import Context, KindReport, text_inputs
from probes.report.lead import SplitRows, best_result
from probes.tasks.pairs.leakage import SUBSETS

COLUMNS = ("head", "split", "mean abs. error", "RMSE", "bias", "size vs length", "size vs overlap", "size vs gold",
           "prediction vs overlap (gold)")  # fmt: skip
ZERO_SHOT = "layer-cosine"
"""The head without training."""
SIDES = ("n_words", "overlap", "gold")


def _subsets(context: Context) -> Iterator[Block]:
    """Score the subsets of test that have rows, and are not all of it."""
    counts = {name: subset["n"] for *_, subsets in context.with_extra("subsets") for name, subset in subsets.items()}
    shown = [name for name, n in counts.items() if 0 < n < counts["full"]]
    if not shown:
        return
    rows = [
        (head, *(_subset_cell(subsets[name].get("pearson")) for name in shown))
        for head, _, subsets in context.with_extra("subsets")
    ]
    yield Heading("Subsets of test")
    yield "Test Pearson with its interval; `-` where a subset has fewer rows than a correlation needs."
    yield Table(("head", *(f"{name}, {counts[name]:,} rows" for name in shown)), rows)
    yield from (Item(f"{name}: {SUBSETS[name]}") for name in shown)


def _named_subsets(context: Context) -> Iterator[Block]:
    """Show the scores of the subsets that a task names, and their mean."""
    for head, result in context.results:
        if found := result.extras.get("named_subsets"):
            yield Heading(f"Subsets by name, `{head}`")
            rows = [
                (name, f"{each['n']:,}", *(_subset_cell(each[metric]) for metric in ("pearson", "spearman")))
                for name, each in found["subsets"].items()
            ]
            means = (table.percent(found["mean"][metric]) for metric in ("pearson", "spearman"))
            yield Table(("subset", "pairs", "Pearson", "Spearman"), [*rows, ("mean over subsets", "", *means)])


def _subset_cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return table.NOTHING
    summary = SeedSummary(**found)
    return f"{table.spread(summary)} ({table.interval(summary)})"


def _residuals(context: Context) -> Iterator[Block]:
    """Say where the heads are wrong: errors, what goes with them, the worst rows, and quarters of the best head."""
    described = {name: result for name, result, _ in context.with_extra("residuals")}
    if not described:
        return
    yield Heading("Where the heads are wrong")
    yield Table(COLUMNS, [_residual_row(name, result) for name, result in described.items()])
    yield (
        "In the units of the gold, after calibration on validation; `vs` is a Pearson correlation. Every prediction "
        "is in predictions.csv."
    )
    best = best_result(described.values())
    split = best.reported_split
    worst = _residuals_of(context.rows[split], best.predictions[split]).largest()
    rows = [
        (f"{row['gold']:.1f}", f"{row['predicted']:.1f}", table.cell(row["sentence1"]), table.cell(row["sentence2"]))
        for row in worst
    ]
    yield f"Furthest off, `{best.name}`:"
    yield Table(("gold", "predicted", "first", "second"), rows)
    what = "By length and by lexical overlap, in quarters (pairs of equal value stay together)"
    yield f"{what}, `{best.name}` on {split}:"
    yield _quarters(best.extras["residuals"][split]["quarters"])


def _residuals_of(rows: SplitRows, predicted: NDArray[np.float64]) -> Residuals:
    first, second = rows.inputs["sentence1"], rows.inputs["sentence2"]
    return residuals_between(first, second, gold=rows.gold, predicted=predicted)


def _residual_row(name: str, result: HeadResult) -> tuple[str, ...]:
    split = result.reported_split
    found = result.extras["residuals"][split]
    sizes = (table.number(found[key], 2) for key in ("mean_absolute", "root_mean_square"))
    signed = [found["bias"], *(found["size_against"][side] for side in SIDES)]
    signed += [found["prediction_against_overlap"], found["gold_against_overlap"]]
    *others, predicted, gold = (table.number(value, 2, sign="+") for value in signed)
    return (name, split, *sizes, *others, f"{predicted} ({gold})")


def _quarters(quarters: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    rows = [
        (label, f"{part['low']:.{digits}f} to {part['high']:.{digits}f}", f"{part['n']:,}",
         table.percent(part["pearson"]), table.number(part["mean_absolute"], 2))
        for side, label, digits in (("n_words", "words in both texts", 0), ("overlap", "lexical overlap", 2))
        for part in quarters[side]
    ]  # fmt: skip
    return Table(("by", "from", "pairs", "Pearson", "mean abs. error"), rows)


def _identical(context: Context) -> Iterator[Block]:
    described = {
        name: [seed["identical_similarity"] for seed in result.seeds]
        for name, result in context.results
        if result.seeds and all("identical_similarity" in seed for seed in result.seeds)
    }
    if not described:
        return
    yield Heading("Prediction for a text paired with itself")
    yield "Before calibration, in [0, 1], per seed. A cosine head gives all identical pairs this one constant."
    for name, values in described.items():
        yield Item(f"`{name}`: " + ", ".join("depends on the text" if v is None else f"{v:.3f}" for v in values))


def zero_shot_scores(result: HeadResult) -> dict[str, dict[str, float]]:
    """Return the correlation of the raw cosine at the final norm, or at the highest layer there is."""
    return top_scores(result, "raw")


def top_scores(result: HeadResult, kind: str) -> dict[str, dict[str, float]]:
    """Return the correlation of a kind of cosine at the final norm, or at the highest layer there is."""
    place = result.layers.index(FINAL_NORM) if FINAL_NORM in result.layers else len(result.layers) - 1
    found: dict[str, dict[str, float]] = {}
    for curve in result.curves:
        if curve.name == kind:
            found.setdefault(curve.split, {})[curve.metric] = curve.values[place]
    return found


def _beside_bare_cosine(heads: Mapping[str, HeadResult], result: HeadResult, split: str) -> str:
    """Give the cosine of the highest layer, where the run has it, of latents prepared as the head's were."""
    if ZERO_SHOT not in heads:
        return ""
    is_raw = result.options.get("standardises_latents", True) is False
    kind = str(result.chosen.get("kind", "raw" if is_raw else "standardised"))
    score = top_scores(heads[ZERO_SHOT], kind).get(split, {}).get(result.metric, math.nan)
    return "" if math.isnan(score) else f"where the {kind} cosine of the top layer has {table.percent(score)}"


PAIRS_REPORT = KindReport(
    columns=(
        table.HEAD_AT_POINT, table.POOLING, table.score_column("validation Pearson", "validation"),
        table.score_column("test Pearson", "test"), table.INTERVAL,
        table.score_column("test Spearman", "test", "spearman"), table.SEEDS, table.EPOCHS,
    ),
    inputs=text_inputs,
    gold=lambda task, split: list(task.splits[split]["score"]),
    units=lambda task, split: task.units(split),
    resampled=lambda _: "pairs",
    remarks=(lambda _: iter(["Correlations are of the whole split."]),),
    sections=(_named_subsets, _subsets, _residuals, _identical),
    residuals=_residuals_of,
    bare=_beside_bare_cosine,
    zero_shot="spearman",
)  # fmt: skip
