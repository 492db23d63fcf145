"""The report of a run on text pairs with a graded similarity."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extract.decoders.layers import FINAL_NORM
from probes.fitting.protocols import LBW
from probes.heads.pairs.residuals import Residuals, residuals_between
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import SeedSummary
from probes.report.blocks import (
    EPOCHS,
    HEAD,
    HEAD_AT_POINT,
    INTERVAL,
    METRIC,
    NOTHING,
    POINT,
    POOLING,
    SCORES,
    SEEDS,
    Block,
    Caution,
    Column,
    Heading,
    Item,
    Row,
    Table,
    beside_majority,
    cell,
    interval,
    majority_column,
    number,
    percent,
    score_column,
    spread,
)
from probes.report.document import Context, KindReport, SplitRows, best_result, text_inputs
from probes.report.predictions import write_conll
from probes.tasks.classes.task import ClassTask
from probes.tasks.pairs.leakage import SUBSETS
from probes.tasks.words.task import WordTask

COLUMNS = (
    "head",
    "split",
    "mean abs. error",
    "RMSE",
    "bias",
    "size vs length",
    "size vs overlap",
    "size vs gold",
    "prediction vs overlap (gold)",
)
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
            means = (percent(found["mean"][metric]) for metric in ("pearson", "spearman"))
            yield Table(("subset", "pairs", "Pearson", "Spearman"), [*rows, ("mean over subsets", "", *means)])


def _subset_cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return NOTHING
    summary = SeedSummary(**found)
    return f"{spread(summary)} ({interval(summary)})"


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
        (f"{row['gold']:.1f}", f"{row['predicted']:.1f}", cell(row["sentence1"]), cell(row["sentence2"]))
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
    sizes = (number(found[key], 2) for key in ("mean_absolute", "root_mean_square"))
    signed = [found["bias"], *(found["size_against"][side] for side in SIDES)]
    signed += [found["prediction_against_overlap"], found["gold_against_overlap"]]
    *others, predicted, gold = (number(value, 2, sign="+") for value in signed)
    return (name, split, *sizes, *others, f"{predicted} ({gold})")


def _quarters(quarters: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    rows = [
        (
            label,
            f"{part['low']:.{digits}f} to {part['high']:.{digits}f}",
            f"{part['n']:,}",
            percent(part["pearson"]),
            number(part["mean_absolute"], 2),
        )
        for side, label, digits in (("n_words", "words in both texts", 0), ("overlap", "lexical overlap", 2))
        for part in quarters[side]
    ]
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
    return "" if math.isnan(score) else f"where the {kind} cosine of the top layer has {percent(score)}"


PAIRS_REPORT = KindReport(
    columns=(
        HEAD_AT_POINT,
        POOLING,
        score_column("validation Pearson", "validation"),
        score_column("test Pearson", "test"),
        INTERVAL,
        score_column("test Spearman", "test", "spearman"),
        SEEDS,
        EPOCHS,
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
)


def _gain(row: Row) -> str:
    """Say what choosing layer and C gained over the default point, on test."""
    default = row.result.extras.get("default")
    if default is None or not row.is_first or row.summary("test") is None:
        return NOTHING
    return percent(row.result.mean("test") - default["scores"]["test"], sign="+")


def _defaults(context: Context) -> Iterator[Block]:
    for name, result in context.results:
        if default := result.extras.get("default"):
            yield (
                f"The default of `{name}` is {default['layer']}, C {default['C']:g}: the highest layer and the C "
                "nearest 1."
            )


def _released_limit(context: Context) -> Iterator[Block]:
    """Say how the chosen probe ended under the limit of iterations of the released code."""
    for name, result in context.results:
        found = result.extras.get("convergence")
        if found and context.scores.header.protocol == LBW:
            own, limit = found["chosen"], result.options["max_iterations"]
            yield Caution(
                f"`{name}` may take {limit} iterations, the released code's limit; it took {own['n_iterations']} "
                f"and {'converged' if own['is_converged'] else 'did not converge'}. The released code's solver often "
                "stops at that limit unconverged, so where ours converges its weights are a better minimum, not the "
                "same."
            )


def _convergence(context: Context) -> Iterator[Block]:
    for name, result in context.results:
        if found := result.extras.get("convergence"):
            yield Item(
                f"`{name}`: {found['n_converged']:,} of {found['n_problems']:,} problems converged, largest gradient "
                f"norm {found['largest_gradient_norm']:.1e}, {found['n_iterations']:,} iterations"
            )


def _growth(context: Context) -> Iterator[Block]:
    """Say what SMOTE added, and which classes were too small for its neighbours."""
    for name, result in context.results:
        if found := result.extras.get("oversampled"):
            yield Item(
                f"`{name}`: SMOTE (`{found['mode']}`) added {found['n_synthetic']:,} rows to {found['n_rows']:,}; "
                f"{len(found['clipped'])} classes have fewer than 5 neighbours, {len(found['duplicated'])} have one "
                "row, which is repeated"
            )


def _classes(context: Context) -> Iterator[Block]:
    yield Item(f"Classes: {context.scores.header.task['n_classes']}")


def _gold(task: ClassTask, split: str) -> list[str]:
    return [task.class_names[label] for label in task.labels(split)]


CLASSES_REPORT = KindReport(
    columns=(
        HEAD,
        POINT,
        METRIC,
        *SCORES,
        majority_column("majority class on test"),
        Column("test, chosen - default", _gain, on_screen=False),
    ),
    inputs=text_inputs,
    gold=_gold,
    units=lambda task, split: task.units(split),
    resampled=lambda task: "groups" if task["has_groups"] else "rows",
    metrics=lambda result: tuple(result.summary[result.reported_split]),
    remarks=(_defaults, _released_limit),
    used=(_classes, _convergence, _growth),
    bare=beside_majority("the majority class"),
)


def _root_errors(context: Context) -> Iterator[Block]:
    rows = []
    for name, result, errors in context.with_extra("rmse"):
        split = result.reported_split
        of_probe, of_mean = (number(errors[split][key], 3) for key in ("probe", "mean_of_train"))
        rows.append((name, split, of_probe, of_mean))
    if not rows:
        return
    yield Heading("Errors")
    yield "Root mean square error in the units of the gold, and that of always predicting the mean of train."
    yield Table(("head", "split", "RMSE", "RMSE of the mean of train"), rows)


def _error_of_mean(_: Any, result: HeadResult, split: str) -> str:
    """Compare the error of a head with that of the mean of train, which has no correlation."""
    if "rmse" not in result.extras:
        return ""
    found = result.extras["rmse"][split]
    return f"with an RMSE of {found['probe']:.3f} where always predicting the mean has {found['mean_of_train']:.3f}"


NUMBERS_REPORT = KindReport(
    columns=(
        HEAD,
        POINT,
        POOLING,
        score_column("validation Pearson", "validation"),
        score_column("test Pearson", "test"),
        INTERVAL,
        score_column("test Spearman", "test", "spearman"),
    ),
    inputs=text_inputs,
    gold=lambda task, split: task.numbers(split).tolist(),
    units=lambda task, split: task.units(split),
    resampled=lambda task: "groups" if task["has_groups"] else "rows",
    sections=(_root_errors,),
    bare=_error_of_mean,
)


MOST_TYPES = 60
SHARES = ("precision", "recall", "f1")


def _metric(row: Row) -> str:
    return row.metric + (" (strict)" if row.result.options.get("is_strict") and row.metric == "span-f1" else "")


def without_latent(context: Context) -> Iterator[Block]:
    """Say how spans are counted, and what becomes of words without a latent, head by head where heads differ."""
    names = [f"`{name}`" for name, result in context.results if result.options.get("leaves_out_cut")]
    if not names:
        missing = "A word without a latent is an error."
    elif len(names) == len(context.scores.heads):
        missing = "Words without a latent are left out of the scores."
    else:
        missing = f"A word without a latent is an error; {', '.join(names)} leaves such words out of its scores."
    yield f"Spans are counted by the rules of conlleval, unless marked strict. {missing}"


def _decoding(context: Context) -> Iterator[Block]:
    rows = [
        (name, split, result.chosen.get("decoding", "plain"), *map(percent, found.values()))
        for name, result, decoding in context.with_extra("decoding")
        for split, found in decoding.items()
        if found and split != "train"
    ]
    if rows:
        ways = next(scores for *_, decoding in context.with_extra("decoding") for scores in decoding.values() if scores)
        yield Heading("How tags are decoded")
        yield (
            "The scores above are those of the way chosen on validation, with the layer, unless an option or the "
            "protocol sets it. *plain*: the best tag of each word. *repaired*: an I that begins a span becomes a B, "
            "which only the strict count sees. *legal*: the best of the sequences that obey IOB2. Without *strict*: by "
            "the rules of conlleval."
        )
        yield Table(("head", "split", "chosen", *ways), rows)


def _types(context: Context) -> Iterator[Block]:
    for name, result, by_type in context.with_extra("by_type"):
        split = result.reported_split
        rows = [
            (cell(row["type"]), *(percent(row[key]) for key in SHARES), f"{row['n_gold']:,}")
            for row in by_type[split][:MOST_TYPES]
        ]
        yield Heading(f"`{name}` by {'tag' if result.metric == 'accuracy' else 'type'}, {split}")
        yield Table(("type", "precision", "recall", "F1", "gold"), rows)


def _errors(context: Context) -> Iterator[Block]:
    for name, result, errors in context.with_extra("errors"):
        split = result.reported_split
        rows = [
            (
                cell(row["gold"]),
                cell(row["predicted"]),
                f"{row['n']:,}",
                ", ".join(map(cell, row["words"])),
            )
            for row in errors[split]
        ]
        if rows:
            yield Heading(f"Most frequent errors of `{name}`, {split}, first seed")
            yield Table(("gold", "predicted", "words", "such as"), rows)


def _layers(context: Context) -> Iterator[Block]:
    for name, result in context.results:
        for curve in result.curves if len(result.layers) > 1 else ():
            spread = [f" ± {percent(value)}" if len(curve.by_seed) > 1 else "" for value in curve.spread]
            rows = [
                (layer, percent(value) + more)
                for layer, value, more in zip(result.layers, curve.values, spread, strict=True)
            ]
            yield Heading(f"`{name}`: every layer, {curve.split}")
            yield Table(("layer", curve.metric), rows)


def _mix(context: Context) -> Iterator[Block]:
    for name, result in context.results:
        if mix := result.extras.get("mix"):
            columns = [key for key in ("alone", "without") if key in mix]
            yield Heading(f"What each layer gives `{name}`")
            yield (
                "The weight is of layer-normed layers; layers that say the same share it. *alone*: the score with this "
                "layer in place of the mix. *without*: what is lost when the others share its weight. Both on "
                "validation, with plain tags."
            )
            rows = [
                (layer, f"{mix['weights'][k]:.3f}", *(percent(mix[column][k]) for column in columns))
                for k, layer in enumerate(mix["layers"])
            ]
            yield Table(("layer", "weight", *columns), rows)


def _words(context: Context) -> Iterator[Block]:
    task, counts = context.scores.header.task, context.scores.header.task["words_in_cache"]
    counted = ", ".join(f"{split} {n:,}" for split, n in task["n_words"].items())
    yield Item(f"Words: {counted}; {len(task['tags'])} tags")
    yield Item(
        f"Words in the cache: {counts['n_words']:,}; {counts['n_cut']:,} cut off, {counts['n_lost']:,} covered by no "
        f"token, {counts['n_shared']:,} begin inside a token; {counts['n_windows']:,} sentences read in windows"
    )
    for name, result, coverage in context.with_extra("coverage"):
        missing = [
            f"{split} {found['n_cut'] + found['n_lost']:,} of {found['n_words']:,}" for split, found in coverage.items()
        ]
        yield Item(f"`{name}`: pooling {result.pooling}; words without a latent: {', '.join(missing)}")


def _inputs(task: WordTask, split: str) -> dict[str, list[Any]]:
    sentences = task.rows(split)["words"]
    places = [(row, position) for row, words in enumerate(sentences) for position in range(len(words))]
    rows, positions = (list(each) for each in zip(*places, strict=True))
    return {"row": rows, "position": positions, "word": [word for words in sentences for word in words]}


def _units(task: WordTask, split: str) -> list[str] | None:
    units = task.units(split)
    if units is None:
        return None
    return [name for name, words in zip(units, task.rows(split)["words"], strict=True) for _ in words]


WORDS_REPORT = KindReport(
    columns=(
        HEAD,
        POINT,
        Column("metric", _metric),
        *SCORES,
        majority_column("majority tag of each word, test"),
        replace(SEEDS, on_screen=False),
        EPOCHS,
    ),
    metrics=lambda result: tuple(result.summary[result.reported_split]),
    inputs=_inputs,
    gold=lambda task, split: [tag for tags in task.splits[split]["tags"] for tag in tags],
    units=_units,
    resampled=lambda task: str(task["resampled"].get("test", "sentences")),
    remarks=(without_latent,),
    sections=(_decoding, _types, _errors, _layers, _mix),
    used=(_words,),
    bare=beside_majority("the majority tag of each word"),
    writers=(write_conll,),
)


def _beside_chance(_: Mapping[str, HeadResult], result: HeadResult, split: str) -> str:
    if "chance" not in result.baselines:
        return ""
    return f"where chance has {percent(result.baselines['chance'][split])}"


def zero_shot_report(kind: str) -> KindReport:
    """Make the report of a kind."""
    unit = {"clustering": "texts", "pair-classification": "pairs", "bitext": "pairs", "odd-one-out": "questions"}
    return KindReport(
        columns=(HEAD, POINT, METRIC, *SCORES, POOLING),
        inputs=lambda task, split: task.inputs_shown(split),
        gold=lambda task, split: task.gold_shown(split),
        units=lambda task, split: task.units(split),
        resampled=lambda task: "groups" if task["has_groups"] else unit.get(kind, "queries"),
        metrics=lambda result: tuple(result.summary[result.reported_split]),
        bare=_beside_chance,
    )
