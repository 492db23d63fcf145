"""What is particular to the report of each kind of task: columns, inputs and gold of rows, and further sections."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from extract.records import Values
from probes.data.pair_task import SUBSETS, PairTask
from probes.data.task_table import task_title
from probes.fitting.fit_options import LBW
from probes.heads.result import HeadResult, Residuals, residuals_between, top_layer
from probes.metrics.bootstrap import SeedSummary
from probes.report.blocks import (
    NOTHING,
    Block,
    Caution,
    Heading,
    Item,
    Table,
    cell,
    describe_point,
    interval,
    metric_label,
    number,
    percent,
    spread,
)
from probes.report.document import Column, Context, KindReport, Row, SplitRows, best_result, margin
from probes.report.predictions import write_conll
from probes.report.scores import RunScores, TaskRecord

if TYPE_CHECKING:
    from probes.data.class_task import ClassTask, NumberTask
    from probes.data.word_task import WordTask
    from probes.data.zero_shot_task import ZeroShotTask

ZERO_SHOT = "layer-cosine"
"""The head without training."""
SIDES = ("n_words", "overlap", "gold")
"""What the size of a residual is compared with."""
MOST_TYPES = 60
"""Types of spans, or tags, whose scores are written."""


def _score_column(title: str, split: str, metric: str = "") -> Column:
    """Make a column of scores on a split, by the metric of the row or by another one."""
    return Column(title, lambda row: spread(row.summary(split, metric)))


def _epochs(row: Row) -> str:
    return ", ".join(str(seed["best_epoch"]) for seed in row.result.seeds if seed.get("best_epoch")) or NOTHING


def _head_label(row: Row, point: str = "") -> str:
    """Write the name of a head, with what was chosen, and marked where its numbers are optimistic."""
    return row.result.name + (f" ({point})" if point else "") + (" (optimistic)" if row.result.is_optimistic else "")


HEAD = Column("head", _head_label)
HEAD_AT_POINT = Column("head", lambda row: _head_label(row, describe_point(row.result.chosen)))
POINT = Column("layer", lambda row: describe_point(row.result.chosen) or NOTHING)
METRIC = Column("metric", lambda row: metric_label(row.metric))
INTERVAL = Column("95 % interval", lambda row: interval(row.summary("test")))
SCORES = (_score_column("validation", "validation"), _score_column("test", "test"), INTERVAL)
CORRELATIONS = (
    _score_column("validation Pearson", "validation"),
    _score_column("test Pearson", "test"),
    INTERVAL,
    _score_column("test Spearman", "test", "spearman"),
)
POOLING = Column("pooling", lambda row: row.result.pooling, on_screen=False)
SEEDS = Column("seeds", lambda row: str(len(row.result.seeds)) if _epochs(row) != NOTHING else NOTHING)
EPOCHS = Column("epochs", _epochs, on_screen=False)


class PairReport(KindReport):
    """The report of a run on text pairs with a graded similarity."""

    columns = (HEAD_AT_POINT, POOLING, *CORRELATIONS, SEEDS, EPOCHS)
    zero_shot = "spearman"
    unit = unit_of_rows = "pairs"

    def goal(self, task: TaskRecord) -> str:
        return "predicts how similar two texts are"

    def gold(self, task: PairTask, split: str) -> Sequence[object]:
        return list(task.splits[split]["score"][:])

    def metrics(self, result: HeadResult) -> Sequence[str]:
        return (result.metric,)

    def remarks(self, context: Context) -> Iterator[Block]:
        yield "Correlations are of the whole split."

    def residuals(self, rows: SplitRows, predicted: NDArray[np.generic]) -> Residuals:
        first, second = (list(map(str, rows.inputs[name])) for name in ("sentence1", "sentence2"))
        return residuals_between(first, second, gold=np.asarray(rows.gold), predicted=predicted)

    def bare(self, scores: RunScores, result: HeadResult, split: str) -> str:
        cosine = scores.heads.get(ZERO_SHOT)
        if cosine is None:
            return ""
        kind = cosine_kind(result)
        score = top_scores(cosine, kind).get(split, {}).get(result.metric, math.nan)
        if math.isnan(score):
            return ""
        name, lead = f"the {kind} cosine of the top layer", scores.over_cosine.get(result.name)
        if result is cosine and result.chosen.get("layer") == result.layers[top_layer(result.layers)]:
            return f"which is {name}"
        return f"where {name} has {percent(score)}" if lead is None else margin(name, score, lead)

    def sections(self, context: Context) -> Iterator[Block]:
        yield from _named_subsets(context)
        yield from _subsets(context)
        yield from self._errors(context)
        yield from _identical(context)

    def _errors(self, context: Context) -> Iterator[Block]:
        """Say where the heads are wrong: errors, what goes with them, the worst rows, and quarters of the best head."""
        results = {name: result for name, result, _ in context.with_extra("residuals")}
        if not results:
            return
        yield Heading("Where the heads are wrong")
        sizes = ("size vs length", "size vs overlap", "size vs gold")
        columns = ("head", "split", "mean abs. error", "RMSE", "bias", *sizes, "prediction vs overlap (gold)")
        yield Table(columns, [_residual_row(name, result) for name, result in results.items()])
        yield (
            "In the units of the gold, after calibration on validation; `vs` is a Pearson correlation. Every "
            "prediction is in predictions.csv."
        )
        best = best_result(results.values())
        split = best.reported_split
        rows = [
            (f"{row['gold']:.1f}", f"{row['predicted']:.1f}", cell(row["sentence1"]), cell(row["sentence2"]))
            for row in self.residuals(context.rows[split], best.predictions[split]).largest()
        ]
        yield f"Furthest off, `{best.name}`:"
        yield Table(("gold", "predicted", "first", "second"), rows)
        yield (
            "By length and by lexical overlap, in quarters (pairs of equal value stay together), "
            f"`{best.name}` on {split}:"
        )
        yield _quarters(best.extras["residuals"][split]["quarters"])


def _named_subsets(context: Context) -> Iterator[Block]:
    """Show the scores of the subsets that a task names, and their mean."""
    for head, result in context.results:
        if named := result.extras.get("named_subsets"):
            yield Heading(f"Subsets by name, `{head}`")
            rows = [
                (name, f"{subset['n']:,}", *(_subset_cell(subset[metric]) for metric in ("pearson", "spearman")))
                for name, subset in named["subsets"].items()
            ]
            means = (percent(named["mean"][metric]) for metric in ("pearson", "spearman"))
            yield Table(("subset", "pairs", "Pearson", "Spearman"), [*rows, ("mean over subsets", "", *means)])


def _subsets(context: Context) -> Iterator[Block]:
    """Score the subsets of test that have rows, and are not all of it."""
    counts = {name: subset["n"] for *_, subsets in context.with_extra("subsets") for name, subset in subsets.items()}
    names = [name for name, n in counts.items() if 0 < n < counts["full"]]
    if not names:
        return
    rows = [
        (head, *(_subset_cell(subsets[name].get("pearson")) for name in names))
        for head, _, subsets in context.with_extra("subsets")
    ]
    yield Heading("Subsets of test")
    yield "Test Pearson with its interval; `-` where a subset has fewer rows than a correlation needs."
    yield Table(("head", *(f"{name}, {counts[name]:,} rows" for name in names)), rows)
    yield from (Item(f"{name}: {SUBSETS[name]}") for name in names)


def _subset_cell(summary: Values | None) -> str:
    return NOTHING if summary is None else f"{spread(SeedSummary(**summary))} ({interval(SeedSummary(**summary))})"


def _residual_row(name: str, result: HeadResult) -> tuple[str, ...]:
    errors = result.extras["residuals"][result.reported_split]
    sizes = (number(errors[key], 2) for key in ("mean_absolute", "root_mean_square"))
    signed = [errors["bias"], *(errors["size_against"][side] for side in SIDES)]
    signed += [errors["prediction_against_overlap"], errors["gold_against_overlap"]]
    *others, predicted, gold = (number(value, 2, sign="+") for value in signed)
    return (name, result.reported_split, *sizes, *others, f"{predicted} ({gold})")


def _quarters(quarters: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    rows = [
        (
            label,
            f"{part['low']:.{digits}f} to {part['high']:.{digits}f}",
            f"{part['n']:,}",
            percent(part["pearson"]),
            number(part["mean_absolute"], 2),
        )
        for side, label, digits in (("n_words", "words of the pair", 0), ("overlap", "lexical overlap", 2))
        for part in quarters[side]
    ]
    return Table(("by", "from", "pairs", "Pearson", "mean abs. error"), rows)


def _identical(context: Context) -> Iterator[Block]:
    key = "identical_similarity"
    values = {
        name: [seed[key] for seed in result.seeds]
        for name, result in context.results
        if result.seeds and all(key in seed for seed in result.seeds)
    }
    if values:
        yield Heading("Prediction for a text paired with itself")
        yield "Before calibration, in [0, 1], per seed. A cosine head gives all identical pairs this one constant."
    for name, seeds in values.items():
        yield Item(f"`{name}`: " + ", ".join("depends on the text" if v is None else f"{v:.3f}" for v in seeds))


def cosine_kind(result: HeadResult) -> str:
    """Name the kind of cosine whose latents are prepared as those of a head on pairs."""
    is_raw = result.options.get("standardises_latents", True) is False
    return str(result.chosen.get("kind", "raw" if is_raw else "standardised"))


def zero_shot_scores(result: HeadResult) -> dict[str, dict[str, float]]:
    """Return the correlation of the cosine at the final norm, or at the highest layer there is; raw where it is."""
    kinds = [curve.name for curve in result.curves]
    return top_scores(result, "raw" if "raw" in kinds else kinds[0])


def top_scores(result: HeadResult, kind: str) -> dict[str, dict[str, float]]:
    """Return the correlation of a kind of cosine at the final norm, or at the highest layer there is."""
    index = top_layer(result.layers)
    scores: dict[str, dict[str, float]] = {}
    for curve in result.curves:
        if curve.name == kind:
            scores.setdefault(curve.split, {})[curve.metric] = curve.values[index]
    return scores


def _gain_over_default(row: Row) -> str:
    """Say what choosing layer and C gained over the default point, on test."""
    default = row.result.extras.get("default")
    if not default or row.metric != row.result.metric or row.summary("test") is None:
        return NOTHING
    return percent(row.result.mean("test") - default["scores"]["test"], sign="+")


class ClassReport(KindReport):
    """The report of a run on texts, or pairs of texts, of one class each."""

    columns = (
        HEAD,
        POINT,
        METRIC,
        *SCORES,
        Column("test, chosen - default", _gain_over_default, on_screen=False),
    )

    def goal(self, task: TaskRecord) -> str:
        return f"tells {task['n_classes']:,} classes apart"

    def gold(self, task: "ClassTask", split: str) -> Sequence[object]:
        return [task.class_names[label] for label in task.labels(split)]

    def remarks(self, context: Context) -> Iterator[Block]:
        for name, _, default in context.with_extra("default"):
            yield (
                f"The default of `{name}` is {default['layer']}, C {default['C']:g}: the highest layer and the C "
                "nearest 1."
            )
        for name, result, solver in context.with_extra("convergence"):
            if context.scores.header.protocol == LBW:
                end = "converged" if solver["chosen"]["is_converged"] else "did not converge"
                yield Caution(
                    f"`{name}` may take {result.options['max_iterations']} iterations, the released code's limit; it "
                    f"took {solver['chosen']['n_iterations']} and {end}. The released code's solver often stops at "
                    "that limit unconverged, so where ours converges its weights are a better minimum, not the same."
                )

    def used(self, context: Context) -> Iterator[Block]:
        yield Item(f"Classes: {context.scores.header.task['n_classes']}")
        for name, _, solver in context.with_extra("convergence"):
            yield Item(
                f"`{name}`: {solver['n_converged']:,} of {solver['n_problems']:,} problems converged, largest gradient "
                f"norm {solver['largest_gradient_norm']:.1e}, {solver['n_iterations']:,} iterations"
            )
        for name, _, growth in context.with_extra("oversampled"):
            yield Item(
                f"`{name}`: SMOTE (`{growth['mode']}`) added {growth['n_synthetic']:,} rows to {growth['n_rows']:,}; "
                f"{len(growth['clipped'])} classes have fewer than 5 neighbours, {len(growth['duplicated'])} have one "
                "row, which is repeated"
            )


class NumberReport(KindReport):
    """The report of a run on texts with one number each."""

    columns = (HEAD, POINT, POOLING, *CORRELATIONS)

    def goal(self, task: TaskRecord) -> str:
        return f"predicts the number of each text of {task_title(task['name'])}"

    def gold(self, task: "NumberTask", split: str) -> Sequence[object]:
        return list(task.numbers(split).tolist())

    def metrics(self, result: HeadResult) -> Sequence[str]:
        return (result.metric,)

    def bare(self, scores: RunScores, result: HeadResult, split: str) -> str:
        if "rmse" not in result.extras:
            return ""
        errors = result.extras["rmse"][split]
        return (
            f"with an RMSE of {errors['probe']:.3f} where always predicting the mean has {errors['mean_of_train']:.3f}"
        )

    def sections(self, context: Context) -> Iterator[Block]:
        rows = [
            (name, split, *(number(errors[split][key], 3) for key in ("probe", "mean_of_train")))
            for name, result, errors in context.with_extra("rmse")
            for split in [result.reported_split]
        ]
        if rows:
            yield Heading("Errors")
            yield "Root mean square error in the units of the gold, and that of always predicting the mean of train."
            yield Table(("head", "split", "RMSE", "RMSE of the mean of train"), rows)


class WordReport(KindReport):
    """The report of a run on words with tags."""

    columns = (
        HEAD,
        POINT,
        Column("metric", lambda row: row.metric + " (strict)" * _is_strict(row)),
        *SCORES,
        replace(SEEDS, on_screen=False),
        EPOCHS,
    )

    unit_of_rows = "sentences"

    def goal(self, task: TaskRecord) -> str:
        return f"gives words their tags ({len(task['tags'])} different ones)"

    def inputs(self, task: "WordTask", split: str) -> Mapping[str, Sequence[object]]:
        sentences = list(enumerate(task.rows(split)["words"]))
        return {
            "row": [row for row, words in sentences for _ in words],
            "position": [position for _, words in sentences for position in range(len(words))],
            "word": [word for _, words in sentences for word in words],
        }

    def gold(self, task: "WordTask", split: str) -> Sequence[object]:
        return [tag for tags in task.splits[split]["tags"] for tag in tags]

    def units(self, task: "WordTask", split: str) -> Sequence[object] | None:
        units = task.units(split)
        if units is None:
            return None
        return [name for name, words in zip(units, task.rows(split)["words"], strict=True) for _ in words]

    def resampled(self, task: TaskRecord) -> str:
        return str(task["resampled"].get("test", "sentences"))

    def remarks(self, context: Context) -> Iterator[Block]:
        names = [f"`{name}`" for name, result in context.results if result.options.get("leaves_out_cut")]
        if not names:
            missing = "A word without a latent is an error."
        elif len(names) == len(context.scores.heads):
            missing = "Words without a latent are left out of the scores."
        else:
            missing = f"A word without a latent is an error; {', '.join(names)} leaves such words out of its scores."
        yield f"Spans are counted by the rules of conlleval, unless marked strict. {missing}"

    def sections(self, context: Context) -> Iterator[Block]:
        yield from _decoding(context)
        yield from _types(context)
        yield from _frequent_errors(context)
        yield from _layers(context)
        yield from _mix(context)

    def used(self, context: Context) -> Iterator[Block]:
        task, counts = context.scores.header.task, context.scores.header.task["words_in_cache"]
        words = ", ".join(f"{split} {n:,}" for split, n in task["n_words"].items())
        yield Item(f"Words: {words}; {len(task['tags'])} tags")
        yield Item(
            f"Words in the cache: {counts['n_words']:,}; {counts['n_cut']:,} cut off, {counts['n_lost']:,} covered by "
            f"no token, {counts['n_shared']:,} begin inside a token; {counts['n_windows']:,} sentences read in windows"
        )
        for name, result, coverage in context.with_extra("coverage"):
            missing = [
                f"{split} {words['n_cut'] + words['n_lost']:,} of {words['n_words']:,}"
                for split, words in coverage.items()
            ]
            yield Item(f"`{name}`: pooling {result.pooling}; words without a latent: {', '.join(missing)}")

    def write_files(self, folder: Path, task: "WordTask", heads: Mapping[str, HeadResult]) -> None:
        write_conll(folder, task, heads)


def _is_strict(row: Row) -> bool:
    return row.metric == "span-f1" and bool(row.result.options.get("is_strict"))


def _decoding(context: Context) -> Iterator[Block]:
    decoded = list(context.with_extra("decoding"))
    rows = [
        (name, split, result.chosen.get("decoding", "plain"), *map(percent, scores.values()))
        for name, result, decoding in decoded
        for split, scores in decoding.items()
        if scores and split != "train"
    ]
    if rows:
        ways = next(scores for *_, decoding in decoded for scores in decoding.values() if scores)
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
            (cell(row["type"]), *(percent(row[key]) for key in ("precision", "recall", "f1")), f"{row['n_gold']:,}")
            for row in by_type[split][:MOST_TYPES]
        ]
        yield Heading(f"`{name}` by {'tag' if result.metric == 'accuracy' else 'type'}, {split}")
        yield Table(("type", "precision", "recall", "F1", "gold"), rows)


def _frequent_errors(context: Context) -> Iterator[Block]:
    for name, result, errors in context.with_extra("errors"):
        split = result.reported_split
        rows = [
            (cell(row["gold"]), cell(row["predicted"]), f"{row['n']:,}", ", ".join(map(cell, row["words"])))
            for row in errors[split]
        ]
        if rows:
            yield Heading(f"Most frequent errors of `{name}`, {split}, first seed")
            yield Table(("gold", "predicted", "words", "such as"), rows)


def _layers(context: Context) -> Iterator[Block]:
    for name, result in context.results:
        for curve in result.curves if len(result.layers) > 1 else ():
            spreads = [f" ± {percent(value)}" for value in curve.spread] if len(curve.by_seed) > 1 else []
            rows = [
                (layer, percent(value) + (spreads[index] if spreads else ""))
                for index, (layer, value) in enumerate(zip(result.layers, curve.values, strict=True))
            ]
            yield Heading(f"`{name}`: every layer, {curve.split}")
            yield Table(("layer", curve.metric), rows)


def _mix(context: Context) -> Iterator[Block]:
    for name, _, mix in context.with_extra("mix"):
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


class ZeroShotReport(KindReport):
    """The report of a run on a task without fitting."""

    columns = (HEAD, POINT, METRIC, *SCORES, POOLING)

    def __init__(self, unit: str, goal: str) -> None:
        self.unit = self.unit_of_rows = unit
        self._goal = goal

    def goal(self, task: TaskRecord) -> str:
        return self._goal

    def inputs(self, task: "ZeroShotTask", split: str) -> Mapping[str, Sequence[object]]:
        return task.inputs_shown(split)

    def gold(self, task: "ZeroShotTask", split: str) -> Sequence[object]:
        return task.gold_shown(split)

    def bare(self, scores: RunScores, result: HeadResult, split: str) -> str:
        chance = result.baselines.get("chance")
        return "" if chance is None else f"where chance has {percent(chance[split])}"


REPORTS: dict[str, KindReport] = {
    "pairs": PairReport(),
    "classes": ClassReport(),
    "numbers": NumberReport(),
    "words": WordReport(),
    "retrieval": ZeroShotReport("queries", "finds the documents that answer a query"),
    "reranking": ZeroShotReport("queries", "puts the right candidates first"),
    "clustering": ZeroShotReport("texts", "group texts by topic"),
    "bitext": ZeroShotReport("pairs", "finds the translation of a text"),
    "pair-classification": ZeroShotReport("pairs", "tells whether two texts belong together"),
    "odd-one-out": ZeroShotReport("questions", "finds the word that does not belong"),
}
"""Kind of task to its report."""
