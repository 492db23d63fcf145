"""The tables of docs/results.md and of the README show the numbers of the committed JSON."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from benchmarks.curves import RUNS, make_picture, read_results
from benchmarks.results_page import tables
from benchmarks.training_free_page import filled
from tests.pages import ROOT

PLAIN, CONVERTED = "causal", "nosink-bidirectional:10"
RUNGS = ("cosine-mlp", "siamese", "autoencoder", "log-variance")


def read_page(name: str) -> str:
    """Read a page without bold."""
    return (ROOT / name).read_text(encoding="utf-8").replace("**", "")


def shown(stats: dict[str, Any]) -> str:
    """Write a score as tables do: times 100, with its spread where there are several seeds."""
    spread = f" ± {100 * stats['std']:.1f}" if len(stats["values"]) > 1 else ""
    return f"{100 * stats['mean']:.1f}{spread}"


def interval(stats: dict[str, Any]) -> str:
    """Write the interval of a score."""
    return f"{100 * stats['low']:.1f} to {100 * stats['high']:.1f}"


def scores(result: dict[str, Any], metric: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take validation and test of a metric."""
    return result["summary"]["validation"][metric], result["summary"]["test"][metric]


def place(result: dict[str, Any]) -> str:
    """Write the chosen layer as tables do."""
    return str(result["chosen"]["layer"]).replace("block_0", "block ").replace("block_", "block ")


def under_plans(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give every plan of a sweep and the result of its one head."""
    for row in read_results(name)["plans"]:
        [result] = row["heads"].values()
        yield row["plan"], result


def pair_cells() -> Iterator[str]:
    for name in ("stsb-siamese", "stsb-nosink"):
        for result in read_results(name)["heads"].values():
            validation, test = scores(result, "pearson")
            spearman = shown(result["summary"]["test"]["spearman"])
            yield f"| {shown(validation)} | {shown(test)} | {interval(test)} | {spearman} |"
    rungs = [f"{whose}-{name}" for whose in ("freeze", "ladder") for name in RUNGS]
    for name in [*rungs, "ladder-cosine-mlp-standardised"]:
        result = list(read_results(name)["heads"].values())[-1]
        validation, test = scores(result, "pearson")
        yield f"| {shown(test)} ({shown(validation)}) |"


def class_cells() -> Iterator[str]:
    for task, metric in (("banking77", "accuracy"), ("pubmedqa", "f1-weighted")):
        tops = dict(under_plans(f"{task}-final-norm"))
        for plan, result in under_plans(task):
            test, top = scores(result, metric)[1], scores(tops[plan], metric)[1]
            at = f"{place(result)} | {shown(test)} ({interval(test)})"
            yield f"{plan}"
            yield at
            yield f"{shown(top)} ({interval(top)})"


def word_cells() -> Iterator[str]:
    for name, metric in (("wnut17-ner", "span-f1"), ("ud-ewt-pos", "accuracy")):
        for _, result in under_plans(name):
            validation, test = scores(result, metric)
            yield f"| {place(result)} | {shown(validation)} | {shown(test)} ({interval(test)}) |"


def glance_cells() -> Iterator[str]:
    """Give the rows of the README's table."""
    without = {name: row["test"] for name, row in read_results("baselines")["rows"].items()}
    pairs = [read_results(name)["heads"] for name in ("stsb-siamese", "stsb-nosink")]
    for head in ("layer-cosine", "siamese-cosine"):
        yield _row(without["stsb-nosink"], *(scores(found[head], "pearson")[1] for found in pairs))
    tables = [("banking77", "accuracy"), ("banking77-final-norm", "accuracy")]
    for name, metric in (*tables, ("wnut17-ner", "span-f1"), ("ud-ewt-pos", "accuracy")):
        found = dict(under_plans(name))
        baseline = without[name.removesuffix("-final-norm")]
        yield _row(baseline, *(scores(found[plan], metric)[1] for plan in (PLAIN, CONVERTED)))


def _row(*cells: dict[str, Any]) -> str:
    return " | ".join(f"{100 * test['mean']:.1f} ({interval(test)})" for test in cells)


@pytest.mark.parametrize("cells", [pair_cells, class_cells, word_cells], ids=lambda cells: cells.__name__)
def test_tables_show_committed_results(cells: Any) -> None:
    page, found = read_page("docs/results.md"), list(cells())
    assert len(found) >= 5
    assert [cell for cell in found if cell not in page] == []


def test_the_readme_shows_committed_results() -> None:
    page, rows = read_page("README.md").replace("**", ""), list(glance_cells())
    assert len(rows) == 6
    assert [row for row in rows if row not in page] == []


PLANS = ("hybrid", "causal")


def abilities(decoder: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = read_results(f"adapted-{decoder}")["abilities"]
    return {(row["system"], row["ability"], row["plan"]): row for row in rows}


def probes(decoder: str, *, is_beside: bool = False) -> dict[tuple[str, str], dict[str, Any]]:
    results = read_results(f"adapted-{decoder}")
    tasks = {name: rows for name, rows in (results["beside"] if is_beside else results)["tasks"].items() if rows}
    firsts = {rows[0]["run"] for rows in tasks.values() if any(row["difference"] is not None for row in rows)}
    assert firsts == {"nosink"}, "the best plan without training is the reference"
    assert all(len({row["device"] for row in rows}) == 1 for rows in tasks.values()), "no other device is compared"
    heads = {name: name.split()[-1] if name.startswith("stsb") else name for name in tasks}
    return {(row["run"], heads[name]): row for name, rows in tasks.items() for row in rows}


def gain(row: dict[str, Any]) -> str:
    value, low, high = (100 * row[key] for key in ("difference", "low", "high"))
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def fall(ends: list[float], times: float = 1) -> str:
    value, low, high = (-times * end for end in ends)
    return f"{value:.1f} ({high:.1f} to {low:.1f})"


def test_the_page_says_what_adapters_changed() -> None:
    page, rows, spans = _unwrapped("docs/results.md"), abilities("smollm2"), "infilling-perplexity"
    both = [rows[f"wiki-{seed}", spans, "hybrid"]["value"] for seed in range(3)]
    one = rows["causal", spans, "causal"]["value"]
    assert f"{min(both):.1f} to {max(both):.1f} over three seeds against {one:.1f} (MAGNET" in page
    assert f"perplexity of spans fell by {fall(rows['wiki-0', spans, 'causal']['difference'])} too" in page
    adds = [-rows[f"wiki-{seed}", spans, "hybrid"]["over_own_causal"][0] for seed in range(3)]
    assert f"both sides add {min(adds):.1f} to {max(adds):.1f} to it" in page
    rises = [100 * rows[f"wiki-{seed}", "rep-4", "causal"]["difference"][0] for seed in range(3)]
    assert f"Rep-4 rose by {min(rises):.0f} to {max(rises):.0f} points." in page
    assert f"Without `msg` SmolLM2 reaches only {rows['mntp', spans, 'hybrid']['value']:.1f} with both sides." in page
    repeated = 100 * rows["mtp", "rep-4", "causal"]["value"]
    assert f"({rows['mtp', spans, 'causal']['value']:.1f} and {repeated:.1f})" in page
    both, one = (rows["all", spans, plan]["value"] - rows["mntp-msg", spans, plan]["value"] for plan in PLANS)
    assert f"`sscl` costs {both:.1f} with both sides and {one:.1f} with one." in page
    rows = abilities("gemma")
    one, other = rows["causal", spans, "causal"]["value"], rows["wiki-0", spans, "hybrid"]["value"]
    assert f"Gemma had {one:.1f} with one side and has {other:.1f} with both: it gains nothing" in page
    assert f"its Rep-4 fell by {fall(rows['wiki-0', 'rep-4', 'causal']['difference'], 100)}." in page


@pytest.mark.parametrize("decoder", ["smollm2", "gemma"])
def test_the_tables_of_adapters_have_paired_differences(decoder: str) -> None:
    page, rows, spans = read_page("docs/results.md"), abilities(decoder), "infilling-perplexity"
    for system in dict.fromkeys(system for system, *_ in rows):
        cells = []
        for ability, plan, times in ((spans, "causal", 1), (spans, "hybrid", 1), ("rep-4", "causal", 100)):
            row = rows[system, ability, plan]
            value, low, high = (times * row[name] for name in ("value", "low", "high"))
            if system != "causal":
                gap, low, high = (times * end for end in row["difference"])
                assert times * (row["value"] - rows["causal", ability, plan]["value"]) == pytest.approx(gap)
                cells.append(f"{value:.1f} ({gap:+.1f}, {low:.1f} to {high:.1f})")
            else:
                cells.append(f"{value:.1f} ({low:.1f} to {high:.1f})")
        gap, low, high = rows[system, spans, "hybrid"]["over_own_causal"]
        assert rows[system, spans, "hybrid"]["value"] - rows[system, spans, "causal"]["value"] == pytest.approx(gap)
        cells.insert(2, f"{gap:+.1f} ({low:.1f} to {high:.1f})")
        assert f"| {' | '.join(cells)} |" in page, system
    assert "In brackets is the paired difference from the decoder as it is under the same plan" in " ".join(
        page.split()
    )


def test_the_page_says_what_adapters_changed_for_probes() -> None:
    page, rows = _unwrapped("docs/results.md"), probes("smollm2")
    cosines, head = rows["all", "layer-cosine"], rows["all", "siamese-cosine"]
    there = probes("smollm2", is_beside=True)["all", "siamese-cosine"]
    assert f"cosines {gain(cosines)}, the siamese head {gain(head)}, on the CPU {gain(there)}. By source" in page
    assert there["p_value"] < 0.05
    assert max(cosines["p_value"], head["p_value"]) < 0.05
    without, tied = rows["mntp-msg", "layer-cosine"], rows["mntp-msg", "siamese-cosine"]
    assert f"cosines stay broken: they lose {-100 * without['difference']:.1f} with" in page
    assert without["high"] < 0
    assert tied["p_value"] > 0.05
    sources = cosines["by_source"]
    above, sure = sum(ends[0] > 0 for ends in sources.values()), [name for name, ends in sources.items() if ends[1] > 0]
    assert len(sources) == 6
    assert f"cosines gain on {above} of six, for certain on {sure[0]} alone, and lose" in page
    assert len(sure) == 1
    assert f"lose {fall(sources['headlines'], 100)} on headlines" in page
    gemma, speech = probes("gemma"), "ud-ewt token-classifier"
    cpu = probes("smollm2", is_beside=True)
    first, contrast = cpu["wiki-0", speech], 100 * cpu["all", speech]["difference"]
    others = [cpu[f"wiki-{seed}", speech] for seed in (1, 2)]
    second = f"seeds 1 and 2 {' and '.join(map(gain, others))}, both for certain, and with contrast {contrast:.1f}"
    assert first["p_value"] > 0.05 > max(row["p_value"] for row in others)
    half, alone = cpu["mntp-msg", speech], cpu["mntp", speech]
    lost = fall([alone["difference"], alone["low"], alone["high"]], 100)
    second += (
        f". 300 steps of `mntp` and `msg` gain as much, {gain(half)}; `mntp` alone loses {lost}, which is not certain"
    )
    assert half["p_value"] < 0.05 < alone["p_value"]
    words = f"on SmolLM2 {gain(first)}, corrected p = {first['p_value']:.3f}, {second}"
    assert f"Parts of speech gain {gain(gemma['wiki-0', speech])} on Gemma; {words}." in page
    assert f"Entities gain {gain(gemma['wiki-0', 'wnut17 token-classifier'])} on Gemma." in page
    assert all(row["p_value"] < 0.05 for (run, name), row in gemma.items() if run in ("bidirectional", "wiki-0"))


def test_the_page_says_what_names_gain_on_one_kind_of_device() -> None:
    page, rows, names = _unwrapped("docs/results.md"), probes("smollm2", is_beside=True), "wnut17 token-classifier"
    first, second, third = (rows[f"wiki-{seed}", names] for seed in range(3))
    gains = f"has {gain(first)} more, corrected p = {first['p_value']:.3f}, that of seed 1 {gain(second)}, of seed 2"
    half = f"that of 300 steps {gain(rows['mntp-msg', names])},"
    assert f"the first adapter {gains} {gain(third)}, {half}" in page
    assert first["p_value"] > 0.05
    less = [-100 * rows[run, names]["difference"] for run in ("all", "bidirectional")]
    assert f"with contrast {less[0]:.1f} less, and `bidirectional` without training {less[1]:.1f} less" in page
    seeds = [100 * value for value in rows["nosink", names]["by_seed"]]
    assert f"has {min(seeds):.1f} to {max(seeds):.1f} there with three seeds." in page
    broken = [row for (run, _), row in rows.items() if run == "bidirectional"]
    assert len(broken) == 4
    assert all(row["p_value"] < 0.05 and row["high"] < 0 for row in broken)
    lost = []
    for seed in ("wiki-0", "wiki-1", "wiki-2"):
        cosines, head = rows[seed, "layer-cosine"], rows[seed, "siamese-cosine"]
        lost.append(f"{-100 * cosines['difference']:.1f}")
        assert cosines["p_value"] < 0.05
        assert cosines["high"] < 0
        assert head["p_value"] > 0.05
    assert f"they lose {lost[0]} with one seed, with two others {lost[1]} and {lost[2]}." in page
    scores = [100 * rows[run, "siamese-cosine"]["test"] for run in ("mntp", "bidirectional")]
    assert f"siamese head has {scores[0]:.1f}, `bidirectional` without training {scores[1]:.1f}." in page
    own = rows["mtp", "siamese-cosine"]
    assert (
        f"repairs half of it: {100 * own['test']:.1f}, still {fall([own['difference'], own['low'], own['high']], 100)}"
        in page
    )
    assert max(own["p_value"], rows["mntp", "siamese-cosine"]["p_value"]) < 0.05
    assert read_results("adapted-smollm2")["beside"]["trained_here"] == ["wiki-1", "wiki-2", "mntp", "mntp-msg", "mtp"]


def test_the_page_says_what_pairs_gain_on_gemma() -> None:
    page, rows = _unwrapped("docs/results.md"), probes("gemma", is_beside=True)
    pairs = [rows["wiki-0", head] for head in ("layer-cosine", "siamese-cosine")]
    assert f"then have {' and '.join(map(gain, pairs))} more than the best plan without training, neither" in page
    assert min(row["p_value"] for row in pairs) > 0.05
    assert read_results("adapted-gemma")["beside"]["trained_here"] == ["wiki-0"]


def test_the_page_says_that_choosing_among_five_gains_nothing() -> None:
    page, found = _unwrapped("docs/results.md"), read_results("adapted-smollm2")["beside"]["abilities"]
    rows = {(row["system"], row["ability"], row["plan"]): row for row in found}
    base, first = (rows[system, "choice-accuracy", "hybrid"] for system in ("causal", "wiki-0"))
    value, low, high = (100 * end for end in first["difference"])
    assert (
        f"has {100 * base['value']:.1f} with both sides in sight, its first adapter {100 * first['value']:.1f}" in page
    )
    assert f"the difference is {value:.1f} ({low:.1f} to {high:.1f})" in page
    assert low < 0 < high
    spans = rows["wiki-0", "infilling-perplexity", "hybrid"]["value"]  # as on the GPU
    assert spans == pytest.approx(abilities("smollm2")["wiki-0", "infilling-perplexity", "hybrid"]["value"], rel=1e-4)


def test_merges_are_measured_at_every_ratio() -> None:
    for task, merges in read_results("merges-smollm2").items():
        scores = {row["ratio"]: row for row in merges["rows"] if row["split"] == "test"}
        assert list(scores) == ["0", "0.25", "0.5", "0.75", "1"]
        assert len({row["value"] for row in scores.values()}) == 5, f"{task}: two ratios are one decoder"
        if task != "stsb":
            best = max(merges["rows"], key=lambda row: row["value"] if row["split"] == "validation" else 0)
            assert best["ratio"] == "1"


def test_the_page_says_what_merges_have_beside_the_best_plan_without_training() -> None:
    results = read_results("merges-smollm2")
    pairs, entities, tags = (100 * results[task]["untrained"]["mean"] for task in ("stsb", "wnut17", "ud-ewt-upos"))
    page = " ".join(read_page("docs/results.md").split())
    assert f"the decoder alone has {pairs:.1f} on pairs, {entities:.1f} on entities and {tags:.1f} on parts" in page
    for task, is_beaten in (("stsb", False), ("wnut17", True), ("ud-ewt-upos", False)):
        scores = [row["value"] for row in results[task]["rows"] if row["split"] == "test"]
        assert (max(scores) > results[task]["untrained"]["mean"]) == is_beaten


def test_the_page_says_which_blocks_an_adapter_moves() -> None:
    rows = pd.read_csv(ROOT / "benchmarks" / "results" / "weights-smollm2-adapted.csv")
    blocks = rows[(rows["part"] == "block") & (rows["layer"] != "embedding")].set_index("layer")["distance"] * 100
    upper = [f"block_{number}" for number in range(15, 24)]
    low, high = blocks[upper].min(), blocks[upper].max()
    page = " ".join(read_page("docs/results.md").split())
    assert f"blocks 15 to 23 change by {low:.1f} to {high:.1f} % of their length, block 21 most" in page
    others = blocks.drop(upper)
    assert blocks.idxmax() == "block_21"
    assert f"the others by {others.min():.1f} to {others.max():.1f} %." in page
    assert others.max() < low


def _views_by_source(page: str) -> None:
    """Compare what the page says of sources with the gains of views there."""
    results = read_results("stsb-views-sources")
    assert f"on the plain mean has {100 * results['rows'][0]['test'][0]:.1f} on SmolLM2" in page
    parts = pd.DataFrame(results["by_source"]).groupby("views", sort=False)
    counts = {views: (int((rows["difference"] > 0).sum()), int((rows["low"] > 0).sum())) for views, rows in parts}
    assert counts == {"plain": (0, 0), "nosink": (5, 1), "echo": (6, 4), "nosink+echo+eol": (6, 5)}
    said = (
        "Masks gain on five sources of six, for certain on one; echo on all six, for certain on four; the three views"
    )
    assert f"{said} together on all six, for certain on five" in page
    results = read_results("stsb-views-gemma-sources")
    assert f"and {100 * results['rows'][0]['test'][0]:.1f} on Gemma." in page
    parts = pd.DataFrame(results["by_source"]).groupby("views", sort=False)
    certain = {views: int((rows["low"] > 0).sum()) for views, rows in parts}
    assert certain == {"plain": 0, "nosink": 3, "echo": 2, "eol": 1, "echo+eol": 6}
    said = "On Gemma masks gain for certain on three sources of six, echo on two and the prompt on one; echo and the"
    assert f"{said} prompt together on all six:" in page


def validated(row: dict[str, Any]) -> float:
    return float(np.mean(row["validation"]))


def test_views_that_are_joined_without_training_gain_what_the_page_says() -> None:
    page = _unwrapped("docs/results.md")
    best = "masks and prompt together have {:.1f} points more than the best layer of one view ({:.1f} to {:.1f})"
    told = (
        ("gemma", "nosink+eol", best),
        ("smollm2", "echo+eol", "echo and prompt have {:.1f} points more ({:.1f} to {:.1f})"),
    )
    for decoder, views, said in told:
        results = read_results(f"stsb-views-{decoder}-joined")
        first, *others = results["rows"]
        alone = [row for row in results["rows"] if len(row["views"]) == 1]
        assert max(alone, key=validated) is first, "the single view that validation prefers"
        [row] = [row for row in others if row["views"] == views.split("+")]
        gain, low, high = (100 * row[name] for name in ("difference", "low", "high"))
        assert said.format(gain, low, high) in page
        parts = pd.DataFrame(results["by_source"]).query("views == @views")
        assert ((parts["difference"] > 0).sum(), (parts["low"] > 0).sum()) == (4, 3)
    rows = {"+".join(row["views"]): row["test"][0] for row in read_results("stsb-views-gemma-joined")["rows"]}
    assert f"{100 * (rows['nosink+echo+eol'] - rows['nosink+eol']):.1f}" == "0.0"
    assert "echo beside them adds nothing" in page


def test_the_readme_and_the_cookbook_show_what_views_and_sweeps_gave() -> None:
    *_, best = read_results("stsb-views-gemma")["rows"]
    assert best["seeds"] == [0, 1, 2]
    low, high = (100 * value for value in best["interval"])
    assert f"{100 * np.mean(best['test']):.1f} ({low:.1f} to {high:.1f})" in read_page("README.md")
    cosine, _, *others = read_results("stsb-views-gemma-cosine")["rows"]
    echo, prompt = (f"{100 * row['test'][0]:.1f}" for row in others)
    assert f"(the best layer of echo has {echo}, of the prompt {prompt})" in _unwrapped("docs/results.md")
    views = {"+".join(row["views"]): row for row in read_results("stsb-views-gemma")["rows"]}
    less = [-100 * views["echo"][name] for name in ("difference", "high", "low")]
    assert "has {:.1f} points less on test ({:.1f} to {:.1f})".format(*less) in _unwrapped("docs/results.md")
    by_number = [max((row for row in views.values() if len(row["views"]) == n), key=validated) for n in (1, 2, 3)]
    assert ["nosink" in row["views"] for row in by_number] == [False, True, True]
    low, high = (100 * value for value in cosine["interval"])
    assert f"with {100 * cosine['test'][0]:.1f} ({low:.1f} to {high:.1f}) on test" in _unwrapped("docs/results.md")
    [cosine] = read_results("stsb-views-smollm2-cosine")["rows"]
    low, high = (100 * value for value in cosine["interval"])
    assert f"with {100 * cosine['test'][0]:.1f} ({low:.1f} to {high:.1f}) on test" in _unwrapped("docs/results.md")
    *_, three = read_results("stsb-views-smollm2")["rows"]
    gain, low, high = (100 * three[name] for name in ("difference", "low", "high"))
    assert f"three have {gain:.1f} points more than the first ({low:.1f} to {high:.1f})" in _unwrapped(
        "docs/results.md"
    )
    _views_by_source(_unwrapped("docs/results.md"))
    views, page = read_results("banking77-views"), _unwrapped("docs/results.md")
    plain, echo, _ = views["rows"]
    sentence = "the text written twice the same probe has {:.1f}, on the plain mean {:.1f}"
    assert sentence.format(100 * echo["test"][0], 100 * plain["test"][0]) in page
    _, before, _ = views["rows_of_another_processor"]["rows"]
    leads = [views["leads_over_bag_of_words"][name] for name in ("plain", "echo")]
    gaps = [(row["difference"], row["low"], row["high"]) for row in (echo, before)]
    gaps += [(lead["value"], lead["low"], lead["high"]) for lead in leads]
    for gap, form in zip(gaps, ["{:+.1f} ({:.1f} to {:.1f})"] * 2 + ["({:+.1f}, {:.1f} to {:.1f})"] * 2, strict=True):
        assert form.format(*(100 * value for value in gap)) in page
    n_echo = sum(layer.startswith("echo/") for layer in views["tied"])
    assert f"{len(views['tied'])} are statistically tied with the best on test, {n_echo} of them of echo" in page
    for name in ("stsb-1000", "banking77"):
        search = read_results(f"grid-search-{name}")["search"]
        assert search["share"] <= 0.25 + 1e-9
        assert search["regret"] == 0
    few = read_results("grid-search-stsb")
    assert f"{few['search']['regret']:.1f} points below" in _unwrapped("docs/cookbook/sweeps.md")
    assert few["replayed"][-1]["regret"] == 0
    swept, page = read_results("cpu-sweep"), _unwrapped("docs/cookbook/sweeps.md")
    assert swept["is_same_after_kills"]
    assert f"took {swept['sweep_seconds']:.0f} s of one core" in page
    assert f"take {swept['separate_seconds']:,.0f} s (" in page


def test_only_released_rungs_are_chosen_on_test() -> None:
    for name in RUNGS:
        for whose, protocol in (("freeze", "freeze-released"), ("ladder", "icecore")):
            scores = read_results(f"{whose}-{name}")
            assert scores["protocol"] == protocol
            result = list(scores["heads"].values())[-1]
            assert result["is_optimistic"] is (whose == "freeze" and name != "cosine-mlp")


def test_the_autoencoders_of_freeze_are_those_committed() -> None:
    page = _unwrapped("docs/results.md")
    for name in ("autoencoder", "log-variance"):
        found = read_results(f"freeze-{name}")["pretraining"]["autoencoders"]["last"]
        losses = [step["held_out_loss"] for step in found["history"]]
        assert f"ended after {len(losses)} of at most 250 epochs, {found['seconds'] / 60:.0f} minutes" in page
        assert f"was {losses[-1]:.2f} then ({losses[0]:.1f} after the first epoch, {losses[50]:.2f} after the" in page


def test_few_rows_of_banking77_are_those_committed() -> None:
    found = {plan: result["summary"]["test"]["accuracy"] for plan, result in under_plans("banking77-mteb")}
    for plan, test in found.items():
        assert f"{shown(test)} ({interval(test)}) under `{plan}`" in _unwrapped("docs/results.md")


def test_answers_about_layers_are_those_committed() -> None:
    results, page = read_results("layer_answers"), (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "<!-- table: layers -->" in page
    assert filled(page, tables()) == page
    assert len(tables()["layers"].splitlines()) == 2 + len(results) >= 10
    for name in results:
        assert f"(figures/layers/{name}.png)" in page
        assert (ROOT / "docs" / "figures" / "layers" / f"{name}.png").exists(), name
    [plain] = [curve for curve in results["stsb_cosine_mlp"]["curves"] if curve["view"] == "baseline"]
    words = dict(zip(plain["layers"], plain["values"], strict=True))["bag-of-words"]
    assert f"A bag of words ({100 * words:.1f} on STS-B)" in _unwrapped("docs/results.md")


def test_the_sweep_is_the_committed_one() -> None:
    assert f"{read_results('stsb-sweep')['cost']['ratio']:.2f} of the separate work" in _unwrapped("docs/results.md")


def _unwrapped(name: str) -> str:
    return " ".join(read_page(name).split())


def test_the_picture_shows_committed_curves() -> None:
    [axes] = [axes for axes in make_picture().axes if isinstance(axes, Axes)]
    lines = [values for line in axes.lines if len(values := np.ravel(np.asarray(line.get_ydata(), float))) > 1]
    assert len(lines) == len(RUNS)
    for name, line in zip(RUNS, lines, strict=True):
        curve = read_results(name)["heads"]["layer-cosine"]["curves"]["validation"]["pearson"]["standardised"]
        np.testing.assert_allclose(line, 100 * np.array(curve))


def test_the_page_on_adapting_says_how_fast_it_is() -> None:
    page, adapting = _unwrapped("docs/adapt.md"), read_results("cpu-adapting")["adapting"]
    rates, peaks = adapting["tokens_per_second"], adapting["peak_bytes"]
    more = peaks["plain"] / peaks["icecore"] - 1
    assert (
        f"reads {rates['icecore']:.0f} tokens a second in training (a plain loop of peft {rates['plain']:.0f}" in page
    )
    assert f"with {more:.0%} more memory".replace("%", " %") in page
    half = read_results("adapted-smollm2")["beside"]["adapters"]["mntp-msg"]
    assert f"on one core {half['tokens_per_second']:.0f} with training.precision: bfloat16" in page.replace("`", "")
    assert half["training"]["precision"] == "bfloat16"
    gemma = read_results("adapted-gemma")["adapters"]["wiki-0"]
    assert f"`wiki.yaml` took Gemma-3-270M {gemma['seconds']:.0f} seconds" in page
