"""What a page embeds for its reader to explore: measures of layers, rows, predictions, and the answer in words."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import HeadError
from probes.fitting.fit_options import ignore_epoch
from probes.heads.head_table import resolve_head
from probes.heads.layer_head import FitContext, ablate
from probes.layers import PREDICTED
from probes.layers.findings import LayerPredictions, load_predictions, save_predictions
from probes.metrics.bootstrap import SeedSummary
from probes.report import exploring
from probes.report.document import Context, SplitRows, checks, head_in_words, plain_answer, predicted_texts
from probes.report.exploring import (
    VALIDATION,
    explore_run,
    join_explorations,
    layer_gap,
    list_rows,
    measures_of_findings,
    pack_predictions,
)
from probes.report.page import Page, Part, page_text
from probes.report.scores import BaselineScores, Lead
from tests.probes.report.made_findings import BEST, LAYERS, make_findings, write_findings
from tests.probes.report.made_runs import HEADS_OF, MadeRun


def context(made: MadeRun) -> Context:
    return Context(made.scores, made.kind.report.rows(made.task), made.kind.report)


def numbers_of(n: int = 4, **fields: Any) -> LayerPredictions:
    values = np.arange(2 * n, dtype=np.float64).reshape(1, 2, n)
    return replace(LayerPredictions.of("h", "test", ("a", "b"), values, ()), **fields)


def test_predictions_of_every_layer_are_read_back_as_they_were_kept(tmp_path: Path) -> None:
    numbers = numbers_of()
    alone = np.array([[[0, 1, -1], [1, 1, 0]]])
    shares = np.array([[[0.75, 0.25]] * 3] * 2)
    names = LayerPredictions.of("n", "test", ("a", "b"), alone, ("x", "y"))
    likely = LayerPredictions.of("p", "test", ("a", "b"), alone, ("x", "y"), (np.array([[[0, 1]] * 3] * 2), shares))
    for kept in (numbers, names, likely):
        save_predictions(tmp_path, kept)
        read = load_predictions(tmp_path, kept.head)
        assert read is not None
        assert (read.layers, read.split, read.names, read.n_rows) == (kept.layers, kept.split, kept.names, kept.n_rows)
        assert [read.of_layer(k) for k in range(2)] == [kept.of_layer(k) for k in range(2)]
    assert names.of_layer(0) == ["x", "y", ""]
    assert likely.shares is not None
    assert likely.shares.dtype == np.float16
    assert load_predictions(tmp_path, "other") is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda arrays: arrays.pop("numbers"), "not of its layers"),
        (lambda arrays: arrays.update(numbers=arrays["numbers"][:1]), "not of its layers"),
        (lambda arrays: arrays.update(codes=np.full((2, 4, 1), 7, np.uint16)), "not of its layers"),
        (lambda arrays: arrays.update(numbers=arrays["numbers"].astype(np.int64)), "numbers is an array of int64"),
        (lambda arrays: arrays.update(numbers=arrays["numbers"][..., None]), "of 3 axes"),
        (lambda arrays: arrays.pop("about"), "about"),
        (lambda arrays: arrays.update(about=np.array([{"a": 1}], dtype=object)), "allow_pickle"),
    ],
)
def test_damaged_predictions_are_one_sentence(change: Any, reason: str, tmp_path: Path) -> None:
    save_predictions(tmp_path, numbers_of())
    path = tmp_path / PREDICTED / "h.npz"
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez_compressed(path, **arrays)
    with pytest.raises(HeadError, match=reason) as caught:
        load_predictions(tmp_path, "h")
    assert "make it again: icecore layers" in str(caught.value)
    path.write_bytes(b"PK no zip")
    with pytest.raises(HeadError, match="cannot be read"):
        load_predictions(tmp_path, "h")


def test_numbers_that_are_close_to_one_another_are_no_half_floats() -> None:
    rng = np.random.default_rng(0)
    far, near = rng.uniform(0, 1, (1, 2, 500)), 0.998 + 0.0003 * rng.normal(size=(1, 2, 500))
    kept = [LayerPredictions.of("h", "test", ("a", "b"), numbers, ()).numbers for numbers in (far, near)]
    assert [part.dtype for part in kept if part is not None] == [np.float16, np.float32]
    assert kept[1] is not None
    assert np.corrcoef(kept[1][0], near[0, 0])[0, 1] > 0.9999


def test_packed_numbers_are_near_and_packed_codes_the_same() -> None:
    packed = pack_predictions(numbers_of(5), np.array([4, 0]))
    integers = np.frombuffer(base64.b64decode(packed["numbers"]), "<u2").reshape(2, 2)
    low, step = (np.array(packed[name])[:, None] for name in ("low", "step"))
    assert np.allclose(low + step * integers, [[4, 0], [9, 5]], atol=1e-3)
    assert packed["low"] == [0.0, 5.0], "a quiet layer beside a loud one keeps its own scale"
    alone = np.array([[[0, 299, -1]]])
    names = LayerPredictions.of("n", "test", ("a",), alone, [f"n{k}" for k in range(300)])
    packed = pack_predictions(names, np.arange(3))
    assert packed["bytes"] == 2
    assert np.frombuffer(base64.b64decode(packed["codes"]), "<u2").tolist() == [0, 299, 300]


def test_an_even_sample_of_many_rows_is_listed_and_whole_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploring, "MOST_ROWS", 3)
    monkeypatch.setattr(exploring, "MOST_SENTENCES", 2)
    table = list_rows(SplitRows({"row": range(9), "text": [f"t{k}" for k in range(9)]}, [float(k) for k in range(9)]))
    assert (table.rows, table.gold, table.n_rows, table.kind) == ([0, 4, 8], [0.0, 4.0, 8.0], 9, "numbers")
    assert table.columns == {"text": ["t0", "t4", "t8"]}
    inputs: dict[str, Any] = {"row": [0, 0, 1, 2, 2], "position": [0, 1, 0, 0, 1], "word": list("abcde")}
    words = list_rows(SplitRows(inputs, ["O", "X", "O", "O", "X"]))
    assert (words.rows, words.columns, words.n_rows) == ([0, 0, 2, 2], {"word": ["a", "b", "d", "e"]}, 3)
    assert (words.kind, words.noun) == ("words", "sentences")


def test_every_view_becomes_a_measure_with_its_numbers() -> None:
    measures = {measure.key: measure for measure in measures_of_findings(make_findings())}
    alone = measures["alone"]
    assert alone.layers == list(LAYERS)
    assert alone.series[0]["values"][7] == pytest.approx(100 * make_findings().curves[0].values[7], abs=0.01)
    assert alone.series[0]["low"][7] < alone.series[0]["values"][7] < alone.series[0]["high"][7]  # type: ignore[operator]
    assert dict(alone.levels) == {"bag-of-words": pytest.approx(35), "<majority>": pytest.approx(20)}
    assert alone.on == "1,379 rows of test"
    assert measures["new-information"].unit == "bits"
    assert measures["shapley"].is_gain
    assert [line["name"] for line in measures["without"].series] == ["cosine-mlp", "logistic"]
    assert not measures["without"].series[0]["low"]
    assert "baseline" not in measures


def test_a_run_is_explored_by_head_with_rows_that_its_heads_share(made: MadeRun, tmp_path: Path) -> None:
    values = explore_run(context(made), tmp_path)
    json.dumps(values, allow_nan=False)
    assert len(values["tables"]) == 1
    [table] = values["tables"].values()
    heads = made.scores.heads
    assert {source["head"] for source in values["sources"]} == set(heads)
    for source in values["sources"]:
        result = heads[source["head"]]
        assert len(source["predicted"]) == len(table["gold"]) == len(result.predictions["test"])
        assert "icecore layers" in source["missing"]
        assert not source["by_layer"]
        keys = [measure["key"] for measure in source["measures"]]
        assert (VALIDATION in keys) == (len(result.layers) > 1 and any(c.split != "train" for c in result.curves))


def test_a_layer_without_a_part_of_its_own_is_a_gap(pairs: MadeRun, tmp_path: Path) -> None:
    scores = pairs.scores
    result = scores.heads["cosine-mlp"]
    parts = {"layers": list(result.layers), "alone": [None, *[0.5] * (len(result.layers) - 1)]}
    lacking = replace(result, extras={**result.extras, "contributions": parts})
    told = replace(context(pairs), scores=replace(scores, heads={**scores.heads, "cosine-mlp": lacking}))
    [source] = [each for each in explore_run(told, tmp_path)["sources"] if each["head"] == "cosine-mlp"]
    [measure] = [each for each in source["measures"] if each["key"] == "contributions-alone"]
    assert measure["series"][0]["values"] == [None, *[50.0] * (len(result.layers) - 1)]


def test_what_lies_in_the_folder_is_explored_too(pairs: MadeRun, tmp_path: Path) -> None:
    name = "cosine-mlp"
    layers = pairs.scores.heads[name].layers
    n = len(context(pairs).rows["test"].gold)
    write_findings(tmp_path, make_findings())
    kept = LayerPredictions.of(name, "test", layers, np.random.default_rng(0).normal(size=(2, len(layers), n)), ())
    save_predictions(tmp_path, kept)
    sources = {source["head"]: source for source in explore_run(context(pairs), tmp_path)["sources"]}
    assert tuple(sources[name]["tied"]) == BEST
    assert sources[name]["by_layer"]["layers"] == list(layers)
    assert not sources[name]["missing"]
    assert sources["layer-cosine"]["missing"]
    save_predictions(tmp_path, replace(kept, numbers=np.zeros((len(layers), 3), np.float16)))
    sources = {source["head"]: source for source in explore_run(context(pairs), tmp_path)["sources"]}
    assert "other rows" in sources[name]["missing"]


def test_the_difference_of_two_runs_is_paired_and_zero_for_the_same_one() -> None:
    rng = np.random.default_rng(0)
    gold = rng.normal(size=200)
    good, bad = gold + 0.3 * rng.normal(size=(1, 1, 200)), gold + 2 * rng.normal(size=(1, 1, 200))
    rows = {
        "gold": [str(value) for value in gold],
        "unit": [str(k) for k in range(200)],
        "row": [str(k) for k in range(200)],
    }
    one, other = (LayerPredictions.of("h", "test", ("a",), part, ()) for part in (good, bad))
    gap = layer_gap(one, other, rows, "pearson")
    assert gap["layers"] == ["a"]
    expected = np.corrcoef(good[0, 0], gold)[0, 1] - np.corrcoef(bad[0, 0], gold)[0, 1]
    assert gap["values"][0] == pytest.approx(100 * expected, abs=0.1)
    assert 0 < gap["low"][0] < gap["values"][0] < gap["high"][0]
    assert layer_gap(one, one, rows, "pearson")["values"] == [0.0]
    assert layer_gap(one, replace(other, layers=("b",)), rows, "pearson") == {}
    named = LayerPredictions.of("h", "test", ("a",), np.array([[[0, 1, 1]]]), ("x", "y"))
    turned = replace(named, codes=np.array([[[1], [0], [0]]], np.uint16))
    rows = {"gold": ["x", "y", "y"], "unit": ["0", "1", "2"], "row": ["0", "1", "2"]}
    assert layer_gap(named, turned, rows, "accuracy")["values"] == [100.0]


def test_explorations_of_the_same_rows_share_a_table(pairs: MadeRun, tmp_path: Path) -> None:
    part = explore_run(context(pairs), tmp_path)
    joined = join_explorations({"one": part, "two": part})
    assert len(joined["tables"]) == 1
    assert [source["label"] for source in joined["sources"]][:1] == [f"one, {part['sources'][0]['head']}"]
    other = json.loads(json.dumps(part))
    next(iter(other["tables"].values()))["gold"][0] = 99.0
    assert len(join_explorations({"one": part, "two": other})["tables"]) == 2
    assert join_explorations({"one": {}, "two": {}}) == {}


@pytest.mark.parametrize(
    ("lead", "says"),
    [
        (Lead(0.2, 0.1, 0.3, 60), "and the decoder is better by a significant difference (+20.0, +10.0 to +30.0)."),
        (Lead(-0.2, -0.3, -0.1, 60), "and the decoder is **worse** by a significant difference"),
        (Lead(0.1, -0.1, 0.3, 60), "the difference is not significant (+10.0, -10.0 to +30.0)."),
        (Lead(0.1, 0.05, 0.3, 5), "too few rows (5, fewer than 30) to claim a difference."),
        (Lead(float("nan"), float("nan"), float("nan"), 60), "cannot be compared"),
    ],
)
def test_the_answer_says_whether_it_beats_a_baseline(lead: Lead, says: str, pairs: MadeRun) -> None:
    summary = {split: {"pearson": SeedSummary(0.5, 0.0, 0.4, 0.6, 0.95, (0.5,))} for split in ("validation", "test")}
    baseline = BaselineScores("note", summary, dict.fromkeys(pairs.scores.heads, lead))
    first, second = plain_answer(replace(pairs.scores, baselines={"bag-of-words": baseline}), pairs.kind.report)
    assert first.startswith("The cosine of two texts on block 02 predicts how similar two texts are with a Pearson")
    assert "32 test pairs" in first
    assert second.startswith("A bag of words reaches 50.0")
    assert says in second


def test_every_kind_has_an_answer_without_jargon(made: MadeRun) -> None:
    first, *_ = plain_answer(made.scores, made.kind.report)
    assert first.endswith((" test pairs).", " test rows).", " test sentences)."))
    assert "`" not in first
    assert head_in_words(replace(next(iter(made.scores.heads.values())), name="my-head", chosen={})).startswith(
        "The head `my-head` on all "
    )


def test_a_page_of_banking77_s_size_stays_below_its_limit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    layers, names = [f"block_{k:02d}" for k in range(1, 33)], [f"a_class_of_some_length_{k}" for k in range(77)]
    codes, shares = rng.integers(0, 77, (32, 3080, 3)), rng.dirichlet(np.ones(3), (32, 3080))
    kept = LayerPredictions.of("h", "test", layers, codes[None, ..., 0], names, (codes, shares))
    save_predictions(tmp_path, kept)
    assert (tmp_path / PREDICTED / "h.npz").stat().st_size < 1_100_000
    texts = ["".join(rng.choice(list("abcdef gh"), 60)) for _ in range(3080)]
    table = list_rows(SplitRows({"row": range(3080), "text": texts}, [names[k] for k in codes[0, :, 0]]))
    values = {"sources": [pack_predictions(kept, table.picked)], "tables": {"t": table.to_plain()}}
    page = Page("t", "q", ("a",), (), (Part("p"),), values)
    assert len(page_text(page, {}).encode()) < 2_500_000


def test_a_head_predicts_of_its_chosen_layer_alone_what_its_run_did(made: MadeRun, tmp_path: Path) -> None:
    """Names are those of the run's predictions, and the likeliest class is the one that is predicted."""
    for name, options in HEADS_OF[made.kind.name].items():
        result = made.scores.heads[name]
        if "test" not in result.names:
            continue
        setting = FitContext(made.cache, made.task, (0, 3), 100, "cpu", tmp_path)
        parts = ablate(resolve_head(name, options), setting, result, "test", lambda _: ignore_epoch)
        kept = LayerPredictions.of(name, "test", parts.layers, parts.alone, parts.names, parts.likely)
        if result.chosen["layer"] in parts.layers:  # not that of a mix
            chosen = parts.layers.index(result.chosen["layer"])
            assert kept.of_layer(chosen) == predicted_texts(result, "test")
        if parts.likely is not None:
            codes, shares = parts.likely
            assert (codes[..., 0] == parts.alone[0]).all()
            assert (np.diff(shares, axis=-1) <= 0).all()
            assert (shares.sum(-1) <= 1 + 1e-6).all()


def test_large_numbers_are_kept(tmp_path: Path) -> None:
    prices = np.array([[[250_000.0, 1.0]]])
    save_predictions(tmp_path, LayerPredictions.of("h", "test", ("a",), prices, ()))
    read = load_predictions(tmp_path, "h")
    assert read is not None
    assert read.of_layer(0) == [250_000.0, 1.0]


@pytest.mark.parametrize(
    ("note", "says"),
    [
        ("test: the texts of 1 of 86 rows end in different punctuation", True),
        ("test: 3 of 86 pairs are also in train", False),
        ("train: 3 of 86 rows repeat an earlier pair (in either order)", True),
    ],
)
def test_the_page_says_whether_leaks_were_looked_for(note: str, says: bool, pairs: MadeRun) -> None:
    assert bool(checks(pairs.with_header(task={"notes": [note], "shared_rows": {}}).scores)) == says
