"""How often intervals, tests and the set of best layers are wrong.

`python -m benchmarks.error_rates [SIMULATIONS] [TABLE...]` measures all tables, or those that are named: `scores`,
`layers`, `seeds`, `units`, `sharing`.

Data are drawn from worlds whose true scores are known. The rates, each with its standard error, sqrt(p (1 - p) /
simulations), are written to benchmarks/results/error_rates.json.
"""

import csv
import json
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probes.data.task import find_units
from probes.metrics.bootstrap import Resampling, correlation_scorer, paired_scores, unit_counts
from probes.metrics.significance import (
    best_set,
    bootstrap_p_value,
    joint_intervals,
    permutation_p_value,
    seed_errors,
)
from probes.runs.folder import describe_program

OUT = Path(__file__).parent / "results" / "error_rates.json"
FOLDER = Path(__file__).parent.parent / "docs" / "tables"
LEVEL = 0.05
RHO = 0.8
SIZE = 5
"""Rows of a group."""
SLOTS = 3
"""Places for a span in a sentence, of two words each."""
TIED, NEIGHBOURS = "all layers tied", "neighbours correlate"


class Drawn(NamedTuple):
    """Two systems with the same true score, on rows of some units."""

    systems: Sequence[Sequence[Any] | NDArray[Any]]
    gold: Sequence[Any] | NDArray[Any]
    units: list[str]
    sentences: list[str]
    truth: float


def normal(rng: np.random.Generator, n: int, size: int, *shape: int) -> NDArray[np.float64]:
    """Normal rows, half of whose variance is that of their group where a group has several."""
    rows = rng.normal(size=(*shape, n * size))
    if size == 1:
        return rows
    return np.asarray(np.sqrt(0.5) * (rows + np.repeat(rng.normal(size=(*shape, n)), size, axis=-1)))


def graded(rng: np.random.Generator, n: int, size: int, *, truth: float = RHO, skewed: bool = False) -> Drawn:
    """Gold and two predictions whose errors correlate; the second has errors of another form where `skewed`."""
    gold, shared, *own = normal(rng, n, size, 4)
    errors = [np.sqrt(0.5) * (shared + each) for each in own]
    if skewed:
        errors[1] = np.sqrt(0.5) * (shared + rng.exponential(size=n * size) - 1)
    units = [str(k // size) for k in range(n * size)]
    systems = [RHO * gold + np.sqrt(1 - RHO**2) * error for error in errors]
    return Drawn(systems, gold, units, units, truth)


def named(rng: np.random.Generator, n: int, size: int, *, macro: bool = False) -> Drawn:
    """Classes, and two systems that are right in 7 of 10 rows, half of them the same rows; groups are easy or hard."""
    priors = np.array([0.6, 0.3, 0.1])
    gold = rng.choice(3, n * size, p=priors)
    easy = np.repeat(rng.choice([0.5, 0.9], n), size) if size > 1 else np.full(n, 0.7)
    shared, *own = rng.random((3, n * size))
    is_shared = rng.random(n * size) < 0.5
    wrong = (gold + rng.integers(1, 3, (2, n * size))) % 3
    systems = [
        np.where(np.where(is_shared, shared, each) < easy, gold, other) for each, other in zip(own, wrong, strict=True)
    ]
    units = [str(k // size) for k in range(n * size)]
    n_predicted = 0.7 * priors + 0.15 * (1 - priors)
    truth = float((2 * 0.7 * priors / (priors + n_predicted)).mean()) if macro else 0.7
    return Drawn([row.tolist() for row in systems], gold.tolist(), units, units, truth)


def tagged(rng: np.random.Generator, n: int, size: int) -> Drawn:
    """Sentences with spans, and two systems that find 7 of 10 and see one in 2 of 10 places without; by documents."""
    n_places = n * size * SLOTS
    gold = rng.random(n_places) < 0.5
    easy = np.repeat(rng.choice([0.5, 0.9], n), size * SLOTS) if size > 1 else np.full(n_places, 0.7)
    found = rng.random((2, n_places)) < np.where(gold, easy, 0.2)
    write = {True: ["B-X", "I-X"], False: ["O", "O"]}
    gold_tags, *systems = ([tag for place in row.tolist() for tag in write[place]] for row in (gold, *found))
    sentences = [str(k // (2 * SLOTS)) for k in range(2 * n_places)]
    documents = [str(k // (2 * SLOTS * size)) for k in range(2 * n_places)]
    return Drawn(systems, gold_tags, documents, sentences, 2 * 0.35 / (0.35 + 0.1 + 0.5))


WORLDS: dict[str, tuple[str, Callable[[np.random.Generator, int, int], Drawn]]] = {
    "pearson": ("pearson", graded),
    "spearman": ("spearman", lambda rng, n, size: graded(rng, n, size, truth=6 / np.pi * np.arcsin(RHO / 2))),
    "accuracy": ("accuracy", named),
    "f1-macro": ("f1-macro", lambda rng, n, size: named(rng, n, size, macro=True)),
    "span-f1": ("span-f1", tagged),
    "pearson, errors of unlike form": ("pearson", lambda rng, n, size: graded(rng, n, size, skewed=True)),
}
"""World to its metric, and what draws it."""


def rate(hits: Sequence[bool], nominal: float) -> dict[str, float]:
    """Write a rate with its standard error."""
    share = float(np.mean(hits))
    return {"rate": share, "error": float(np.sqrt(share * (1 - share) / len(hits))), "nominal": nominal}


def error_rates(
    world: str,
    n_units: int,
    size: int = 1,
    *,
    n_simulations: int = 1000,
    n_resamples: int = 1000,
    n_permutations: int = 499,
    ignores_units: bool = False,
) -> dict[str, Any]:
    """Measure the coverage of the interval of a score, and the size of both tests of two systems that are equal.

    `ignores_units` draws and swaps single rows of a world of groups, which is wrong.
    """
    metric, draw = WORLDS[world]
    covered, found, told = [], [], []
    for number in range(n_simulations):
        drawn = draw(np.random.default_rng([number, n_units, size]), n_units, size)
        rows = [str(k) for k in range(len(drawn.gold))]
        units = rows if ignores_units else drawn.units
        sentences = rows if ignores_units and metric != "span-f1" else drawn.sentences
        values, resampled = paired_scores(
            drawn.systems,
            drawn.gold,
            metric=metric,
            units=units,
            sentences=sentences,
            resampling=Resampling(n_resamples, seed=number),
        )
        low, high = np.nanquantile(resampled[0], [LEVEL / 2, 1 - LEVEL / 2])  # as every score has it
        covered.append(bool(low <= drawn.truth <= high))
        found.append(bootstrap_p_value(float(values[0] - values[1]), resampled[0] - resampled[1]) < LEVEL)
        if n_permutations:
            counts, of_sums = unit_counts(drawn.systems, drawn.gold, metric=metric, units=units, sentences=sentences)
            p_value = permutation_p_value(counts[0], counts[1], of_sums, n_permutations=n_permutations, seed=number)
            told.append(p_value < LEVEL)
    return {
        "world": world,
        "n_units": n_units,
        "rows_of_a_unit": size,
        "coverage": rate(covered, 1 - LEVEL),
        "bootstrap_test": rate(found, LEVEL),
        **({"permutation_test": rate(told, LEVEL)} if told else {}),
    }


LADDERS: dict[str, Callable[[int], NDArray[np.float64]]] = {
    TIED: lambda n: np.full(n, 0.7),
    "half of them tied": lambda n: np.where(np.arange(n) < n // 2, 0.7, 0.6),
    "one best by a little": lambda n: 0.7 - 0.02 * np.abs(np.arange(n) - n // 2),
    "one clear best": lambda n: np.where(np.arange(n) == n // 2, 0.8, 0.6),
}


def chained(rng: np.random.Generator, n_layers: int, n_rows: int, *, correlation: float) -> NDArray[np.float64]:
    """Draw normal errors of layers, of which neighbours correlate."""
    errors = [rng.normal(size=n_rows)]
    for _ in range(n_layers - 1):
        errors.append(correlation * errors[-1] + np.sqrt(1 - correlation**2) * rng.normal(size=n_rows))
    return np.array(errors)


def heavy(rng: np.random.Generator, n_layers: int, n_rows: int) -> NDArray[np.float64]:
    """Draw errors with heavy tails, Student's t of three degrees of freedom, that do not correlate."""
    return np.asarray(rng.standard_t(3, size=(n_layers, n_rows)) / np.sqrt(3))


def unlike(rng: np.random.Generator, n_layers: int, n_rows: int) -> NDArray[np.float64]:
    """Draw errors that share half of their variance; the other half is normal and exponential in turn."""
    is_normal = (np.arange(n_layers) % 2 == 0)[:, None]
    own = np.where(is_normal, rng.normal(size=(n_layers, n_rows)), rng.exponential(size=(n_layers, n_rows)) - 1)
    return np.asarray(np.sqrt(0.5) * (rng.normal(size=n_rows) + own))


def rare(rng: np.random.Generator, n_layers: int, n_rows: int) -> NDArray[np.float64]:
    """Draw errors that share half of their variance; the first layer has the rest of its own in 5 % of the rows."""
    own = rng.normal(size=(n_layers, n_rows))
    own[0] *= np.where(rng.random(n_rows) < 0.05, np.sqrt(20), 0.0)
    return np.asarray(np.sqrt(0.5) * (rng.normal(size=n_rows) + own))


ERRORS: dict[str, Callable[[np.random.Generator, int, int], NDArray[np.float64]]] = {
    NEIGHBOURS: lambda rng, n_layers, n_rows: chained(rng, n_layers, n_rows, correlation=0.9),
    "independent": lambda rng, n_layers, n_rows: chained(rng, n_layers, n_rows, correlation=0.0),
    "heavy tails": heavy,
    "unlike forms": unlike,
    "one layer fails rarely": rare,
}
"""Form of the errors of layers to what draws them, with variance 1."""


def layer_rates(
    ladder: str,
    n_layers: int,
    n_rows: int,
    *,
    errors: str = NEIGHBOURS,
    n_simulations: int = 1000,
    n_resamples: int = 1000,
    choose: Callable[..., NDArray[np.int64]] = best_set,
) -> dict[str, Any]:
    """Measure how often the set has a best layer, how many it has, and how often the joint intervals hold all scores.

    Where several layers are tied for the best, the rate is the mean over them, and that of the one that is left out
    most often is beside it. `choose` gives the set from scores, resampled scores and errors of leads.
    """
    truth = LADDERS[ladder](n_layers)
    best = np.flatnonzero(truth == truth.max())
    members, covered = [], []
    for number in range(n_simulations):
        rng = np.random.default_rng([number, n_layers, n_rows])
        gold = rng.normal(size=n_rows)
        noise = ERRORS[errors](rng, n_layers, n_rows)
        predicted = truth[:, None] * gold + np.sqrt(1 - truth[:, None] ** 2) * noise
        scorer, how = correlation_scorer(gold, metric="pearson"), Resampling(n_resamples, seed=number)
        values, resampled = scorer.score(predicted), scorer.resample(predicted, how)
        lead_errors = scorer.lead_errors(predicted[None], how)
        chosen = choose(values, resampled, lead_errors, confidence=1 - LEVEL, is_correlation=True)
        low, high = joint_intervals(values, resampled, confidence=1 - LEVEL, is_correlation=True)
        members.append(np.isin(np.arange(n_layers), chosen))
        covered.append(bool(((low <= truth) & (truth <= high)).all()))
    is_in = np.array(members, np.float64)
    shares = is_in[:, best].mean(1)
    return {
        "world": ladder,
        "n_layers": n_layers,
        "n_rows": n_rows,
        "errors": errors,
        "n_simulations": n_simulations,
        "best_is_in_set": {
            "rate": float(shares.mean()),
            "error": float(shares.std() / np.sqrt(n_simulations)),
            "nominal": 1 - LEVEL,
        },
        "least_of_tied": float(is_in[:, best].mean(0).min()),
        "mean_size_of_set": float(is_in.sum(1).mean()),
        "joint_intervals": rate(covered, 1 - LEVEL),
    }


def copied(rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the texts of 100 pairs, each of which is in the data four times."""
    del rng
    return np.repeat(np.arange(200).reshape(2, 100), 4, axis=1)


def shared(rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the texts of 60 sentences with five others each."""
    del rng
    return np.stack([np.repeat(np.arange(60), 5), 60 + np.arange(300)])


def linked(rng: np.random.Generator) -> NDArray[np.int64]:
    """Return 300 pairs of 200 sentences at random, most of which some chain of pairs links."""
    first = rng.integers(0, 200, 300)
    return np.stack([first, (first + rng.integers(1, 200, 300)) % 200])


SHARING: dict[str, Callable[[np.random.Generator], NDArray[np.int64]]] = {
    "every pair four times": copied,
    "a sentence with five others": shared,
    "sentences paired at random": linked,
}
"""How pairs share sentences, to what draws the two sentences of each pair."""


def sharing_rates(world: str, *, n_simulations: int = 1000, n_resamples: int = 500) -> dict[str, Any]:
    """Measure the interval of a score and the test of two equally good systems, of pairs drawn one by one, or as units.

    Three quarters of the variance of gold and of every error are of the two sentences, where pairs are no copies.
    """
    covered: dict[str, list[bool]] = {"rows": [], "units": []}
    false: dict[str, list[bool]] = {"rows": [], "units": []}
    n_units = []
    for number in range(n_simulations):
        rng = np.random.default_rng(number)
        texts = SHARING[world](rng)
        own = np.full(texts.shape[1], 0.5)[None] * rng.normal(size=(3, texts.shape[1]))
        of_texts = rng.normal(size=(3, int(texts.max()) + 1))
        gold, *errors = np.sqrt(0.375) * of_texts[:, texts].sum(axis=1) + own * (world != "every pair four times")
        systems = [RHO * gold + np.sqrt(1 - RHO**2) * error for error in errors]
        found = find_units([row.tolist() for row in texts])
        names = [str(k) for k in range(texts.shape[1])]
        n_units.append(len(names) if found is None else found.n)
        for kind, units in (("rows", names), ("units", names if found is None else list(found.names))):
            values, resampled = paired_scores(
                systems, gold, metric="pearson", units=units, resampling=Resampling(n_resamples, seed=number)
            )
            low, high = np.quantile(resampled[0], [LEVEL / 2, 1 - LEVEL / 2])
            covered[kind].append(bool(low <= RHO <= high))
            false[kind].append(bootstrap_p_value(float(values[0] - values[1]), resampled[0] - resampled[1]) < LEVEL)
    return {
        "world": world,
        "n_rows": texts.shape[1],
        "n_units": float(np.mean(n_units)),
        **{f"coverage_of_{kind}": rate(hits, 1 - LEVEL) for kind, hits in covered.items()},
        **{f"test_of_{kind}": rate(hits, LEVEL) for kind, hits in false.items()},
    }


def seed_rates(n_seeds: int, n_rows: int, *, spread: float = 0.03, n_simulations: int = 1000) -> dict[str, Any]:
    """Measure how often the interval of rows, and that of rows and seeds, hold the mean score over all seeds."""
    of_rows, of_both = [], []
    for number in range(n_simulations):
        rng = np.random.default_rng([number, n_seeds, n_rows])
        gold, shared, *own = rng.normal(size=(2 + n_seeds, n_rows))
        slope = rng.normal(RHO, spread, size=(n_seeds, 1)).clip(max=0.99)
        errors = np.sqrt(0.8) * shared + np.sqrt(0.2) * np.array(own)
        predicted = slope * gold + np.sqrt(1 - slope**2) * errors
        scorer = correlation_scorer(gold, metric="pearson")
        values, resampled = scorer.score(predicted), scorer.resample(predicted, Resampling(seed=number))
        low, high = np.quantile(resampled.mean(0), [LEVEL / 2, 1 - LEVEL / 2])
        with_seeds = resampled.mean(0) + seed_errors(values, resampled.shape[1], seed=number)
        low_b, high_b = np.quantile(with_seeds, [LEVEL / 2, 1 - LEVEL / 2])
        of_rows.append(bool(low <= RHO <= high))
        of_both.append(bool(low_b <= RHO <= high_b))
    return {
        "n_seeds": n_seeds,
        "n_rows": n_rows,
        "spread_of_seeds": spread,
        "rows_alone": rate(of_rows, 1 - LEVEL),
        "rows_and_seeds": rate(of_both, 1 - LEVEL),
    }


def shown(found: dict[str, float]) -> str:
    """Write a rate as the page does."""
    return f"{100 * found['rate']:.1f} ± {100 * found['error']:.1f}"


def csv_tables(results: dict[str, Any]) -> dict[str, str]:
    """Write the tables that docs/statistics.md shows, by the names of their files."""
    tests = ("coverage", "bootstrap_test", "permutation_test")
    scores = [["metric", "units", "rows of a unit", "interval", "bootstrap test", "permutation test"]]
    for part, note in (("scores", ""), ("units", ", rows drawn apart")):
        for row in results[part]:
            rates = [shown(row[key]) for key in tests]
            scores.append([f"{row['world']}{note}", row["n_units"], row["rows_of_a_unit"], *rates])
    layers = [
        ["layers", "number", "rows", "best is in", "worst of the tied", "layers in the set", "all intervals hold"]
    ]
    for row in results["layers"]:
        if row["errors"] == NEIGHBOURS:
            inside, joint = shown(row["best_is_in_set"]), shown(row["joint_intervals"])
            least, size = f"{100 * row['least_of_tied']:.1f}", f"{row['mean_size_of_set']:.1f}"
            layers.append([row["world"], row["n_layers"], row["n_rows"], inside, least, size, joint])
    seeds = [["seeds", "rows", "interval of rows", "interval of rows and seeds"]]
    seeds += [
        [row["n_seeds"], row["n_rows"], shown(row["rows_alone"]), shown(row["rows_and_seeds"])]
        for row in results["seeds"]
    ]
    tables = {"scores": scores, "cases": _case_table(results), "layers": layers, "seeds": seeds}
    return {f"error_rates_{name}.csv": _csv_text(rows) for name, rows in tables.items()}


def _case_table(results: dict[str, Any]) -> list[list[Any]]:
    """Give one table whose columns are cases: layers that tie, by their errors, and pairs that share texts."""
    tied = {(row["errors"], row["n_layers"], row["n_rows"]): row for row in results["layers"] if row["world"] == TIED}
    cases = list(dict.fromkeys((errors, n_layers) for errors, n_layers, _ in tied))
    pairs = results["sharing"]
    table = [["rate", *(f"{n} layers, {errors}" for errors, n in cases), *(row["world"] for row in pairs)]]
    for key, title in (("best_is_in_set", "best layer is in the set"), ("joint_intervals", "all intervals hold")):
        for n_rows in (100, 300):
            rows = [tied.get((*case, n_rows)) for case in cases]
            table.append(
                [f"{title}, {n_rows} rows", *(shown(row[key]) if row else "" for row in rows), *[""] * len(pairs)]
            )
    for key, title in (
        ("coverage_of_units", "interval holds, units drawn"),
        ("coverage_of_rows", "interval holds, pairs drawn"),
        ("test_of_units", "false findings, units drawn"),
        ("test_of_rows", "false findings, pairs drawn"),
    ):
        table.append([title, *[""] * len(cases), *(shown(row[key]) for row in pairs)])
    return table


def _csv_text(rows: list[list[Any]]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _scores(**how: Any) -> list[dict[str, Any]]:
    cases = [(world, n, 1) for world in WORLDS for n in (30, 100, 300) if (world, n) != ("spearman", 300)]  # slow
    cases += [(world, n, SIZE) for world in ("pearson", "accuracy", "span-f1") for n in (30, 100)]
    return [error_rates(world, n, size, **how) for world, n, size in cases]


def _layers(**how: Any) -> list[dict[str, Any]]:
    cases = [(ladder, 12, n, NEIGHBOURS) for n in (100, 300) for ladder in LADDERS]
    cases += [(ladder, 32, 300, NEIGHBOURS) for ladder in (TIED, "one best by a little")]
    cases += [(TIED, 12, n, errors) for errors in list(ERRORS)[1:] for n in (100, 300)]
    return [
        layer_rates(ladder, n_layers, n_rows, errors=errors, n_resamples=500, **how)
        for ladder, n_layers, n_rows, errors in cases
    ]


def _seeds(**how: Any) -> list[dict[str, Any]]:
    return [seed_rates(n_seeds, n_rows, **how) for n_seeds, n_rows in ((3, 100), (3, 300), (5, 300), (10, 300))]


def _units(**how: Any) -> list[dict[str, Any]]:
    return [error_rates(world, 100, SIZE, ignores_units=True, **how) for world in ("pearson", "accuracy")]


def _sharing(**how: Any) -> list[dict[str, Any]]:
    return [sharing_rates(world, **how) for world in SHARING]


TABLES: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "scores": _scores,
    "layers": _layers,
    "seeds": _seeds,
    "units": _units,
    "sharing": _sharing,
}


def main() -> None:
    """Measure the rates of the tables that are named, or of all; the others are kept as they are."""
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    names = [word for word in sys.argv[1:] if not word.isdecimal()] or list(TABLES)
    n_simulations = numbers[0] if numbers else 1000
    for name in names:
        rows = TABLES[name](n_simulations=n_simulations)
        results = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
        results |= {"n_simulations": n_simulations, name: rows, **describe_program()}
        OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name, text in csv_tables(json.loads(OUT.read_text(encoding="utf-8"))).items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
