"""The answer of a run in two sentences that a stranger understands: what was read from which layer, and is it much."""

import math

from extract.decoders.decoder_spec import EMBEDDING, FINAL_NORM
from probes.heads.result import HeadResult
from probes.metrics.prediction_metrics import CORRELATIONS
from probes.report.blocks import LABELS, cell, percent
from probes.report.document import FEW_UNITS, KindReport, best_result, leaks
from probes.report.scores import RunScores

HEADS = {
    "layer-cosine": "The cosine of two texts",
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
BASELINES = {
    "bag-of-words": "A bag of words",
    "word-overlap": "Counting the words that both share",
    "majority": "Always guessing the most frequent answer",
    "tf-idf": "Comparing words by tf-idf",
}
"""Baselines in words."""
OF_WORDS = {"majority": "Giving each word its most frequent tag"}
"""The same for tasks of words."""
METRICS = {
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
    value = f"{METRICS.get(metric, cell(metric))} of {percent(score.mean)}"
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
    what = HEADS.get(result.name, f"The head `{cell(result.name)}`")
    return f"{what} {layer_in_words(str(result.chosen.get('layer', '')), result.layers)}"


def layer_in_words(layer: str, layers: tuple[str, ...] = ()) -> str:
    """Name a layer as part of a sentence, or all of them where none was chosen."""
    if not layer or layer == "mix":
        if len(layers) > 1:
            return f"on all {len(layers)} layers"
        layer = layers[0] if layers else "the decoder"
    pooling, _, name = layer.rpartition("/")
    return f"on {ENDS.get(name, name.replace('_', ' '))}" + f" (pooling {cell(pooling)})" * bool(pooling)


def _over_baseline(best: HeadResult, scores: RunScores) -> str:
    """Compare with the baseline that comes nearest on the rows that are reported, in a sentence; empty without any."""
    leads = {
        name: baseline.leads[best.name] for name, baseline in scores.baselines.items() if best.name in baseline.leads
    }
    if not leads:
        return ""
    name = min(leads, key=lambda name: math.inf if math.isnan(leads[name].low) else leads[name].low)
    level = scores.baselines[name].summary[best.reported_split][best.metric].mean
    gap = leads[name]
    words = OF_WORDS if scores.header.kind == "words" else BASELINES
    what = f"{words.get(name, f'The baseline `{cell(name)}`')} reaches {percent(level)}"
    if math.isnan(gap.value):
        return f"{what}, and the two cannot be compared, as one has no score."
    reach = f"{percent(gap.value, sign='+')}, {percent(gap.low, sign='+')} to {percent(gap.high, sign='+')}"
    if gap.n_units < FEW_UNITS:
        return f"{what}; {gap.n_units:,} rows are too few to tell the two apart."
    if gap.low > 0:
        return f"{what}, and the decoder is better by a significant difference ({reach})."
    if gap.high < 0:
        return f"{what}, and the decoder is **worse** by a significant difference ({reach})."
    return f"{what}; the difference is not significant ({reach})."


def checks(scores: RunScores) -> tuple[str, ...]:
    """Say that no rows are in two splits, where that was looked for and none were found."""
    task = scores.header.task
    if scores.header.kind not in FITTED or leaks(task) or task.get("shared_rows"):
        return ()
    return ("Leaks were looked for: no row of validation or test is in an earlier split as well, letter by letter.",)
