"""One head of a run: fitted once per seed, kept, found again, summarised over seeds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

import probes.heads.pair_heads
from extract.errors import HeadError, TaskError, UnknownNameError
from extract.store.cache import LatentCache
from probes.data.pair_task import SUBSETS, PairTask
from probes.fitting.fit_options import ignore_epoch
from probes.heads.head_table import resolve_head
from probes.heads.layer_head import FitContext, load_head
from probes.heads.pair_heads import FittedHead, PairFits
from probes.heads.result import Curve, HeadResult
from probes.metrics.prediction_metrics import fit_calibration
from probes.networks.pair_networks import CosineMLP
from tests.probes.heads.evaluating import as_text, evaluate, make_setting
from tests.probes.planted_latents import LAYERS, PLANTED, SIZES, make_task, plant

QUICK: dict[str, Any] = {"max_epochs": 4, "hidden": 8, "learning_rate": 3e-3, "batch_size": 40}


@pytest.fixture
def setting(cache: LatentCache, task: PairTask, tmp_path: Path) -> FitContext:
    """Two seeds, heads kept under a temporary folder."""
    return make_setting(cache, task, tmp_path / "heads", seeds=(0, 5))


def fit_all(setting: FitContext) -> list[FittedHead]:
    """Fit, or find, the quick head for every seed."""
    resolved = resolve_head("cosine-mlp", QUICK)
    return PairFits(CosineMLP, resolved, setting).fit_all(lambda _: ignore_epoch)


def curve_of(found: HeadResult, split: str) -> Curve:
    """Return the Pearson curve of the chosen kind."""
    key = (found.chosen["kind"], split, "pearson")
    [curve] = [each for each in found.curves if (each.name, each.split, each.metric) == key]
    return curve


def forbid_fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(probes.heads.pair_heads, "fit_head", refuse)


def test_texts_are_looked_up_once_for_all_seeds(setting: FitContext, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, look_up = [], LatentCache.rows_of

    def count(cache: LatentCache, texts: list[str]) -> Any:
        calls.append(len(texts))
        return look_up(cache, texts)

    monkeypatch.setattr(LatentCache, "rows_of", count)
    one, other = fit_all(setting)
    assert len(calls) == 2 * len(SIZES)
    assert one.record.details["seed"] != other.record.details["seed"]


def test_a_trained_head_is_fitted_for_every_seed(setting: FitContext) -> None:
    found = evaluate("cosine-mlp", QUICK, setting)
    assert [entry["seed"] for entry in found.seeds] == [0, 5]
    assert found.layers == LAYERS
    assert found.pooling == "mean"
    for split in SIZES:
        values = [entry["scores"][split]["pearson"] for entry in found.seeds]
        summary = found.summary[split]["pearson"]
        assert summary.values == tuple(values)
        assert summary.mean == pytest.approx(np.mean(values))
        assert summary.low < summary.mean < summary.high
    assert found.seeds[0]["scores"] != found.seeds[1]["scores"]
    assert found.options["hidden"] == 8
    assert found.options["max_epochs"] == 4


def test_an_untrained_head_has_one_fit_and_its_curves(setting: FitContext) -> None:
    found = evaluate("layer-cosine", {}, setting)
    assert [entry["best_epoch"] for entry in found.seeds] == [0]
    assert found.chosen["layer"] == PLANTED
    curve = curve_of(found, "validation").values
    k = LAYERS.index(PLANTED)
    assert curve[k] == max(curve)
    assert curve_of(found, "test").values[k] == pytest.approx(found.seeds[0]["scores"]["test"]["pearson"], abs=1e-6)


def test_an_untrained_head_has_no_options_of_a_fit(setting: FitContext) -> None:
    with pytest.raises(
        UnknownNameError,
        match=r"unknown layer-cosine option 'batch_size'. Allowed: transform, components, shrinkage, pooling, layers",
    ):
        evaluate("layer-cosine", {"batch_size": 8}, setting)


def test_a_kept_head_is_loaded_and_gives_the_same(setting: FitContext, monkeypatch: pytest.MonkeyPatch) -> None:
    first = evaluate("cosine-mlp", QUICK, setting)
    forbid_fitting(monkeypatch)
    again = evaluate("cosine-mlp", QUICK, setting)
    assert as_text(again) == as_text(first)
    for split in SIZES:
        np.testing.assert_array_equal(again.predictions[split], first.predictions[split])


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    ["option", "fit", "pooling", "poolings", "layers", "gold", "device", "protocol", "calibration", "anchor_identical"],
)
def test_a_head_fitted_otherwise_is_not_reused(
    setting: FitContext, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    evaluate("cosine-mlp", QUICK, setting)
    forbid_fitting(monkeypatch)
    changes: dict[str, dict[str, Any]] = {
        "option": {"hidden": 9},
        "fit": {"patience": 2},
        "pooling": {"pooling": "last"},
        "layers": {"layers": "blocks"},
        "poolings": {"pooling": "mean+last"},
    }
    of_setting: dict[str, dict[str, Any]] = {
        "device": {"device": "cuda:0"},
        "protocol": {"protocol": "freeze-released"},
        "calibration": {"calibration": "isotonic"},
        "anchor_identical": {"anchor_identical": True},
    }
    if change == "gold":
        setting = replace(setting, task=make_task(shuffled=["train"]))
    setting = replace(setting, **of_setting.get(change, {}))
    with pytest.raises(AssertionError, match="fitted again"):
        evaluate("cosine-mlp", {**QUICK, **changes.get(change, {})}, setting)


def test_a_head_cut_short_is_fitted_again(setting: FitContext) -> None:
    first = evaluate("cosine-mlp", QUICK, setting)
    (setting.folder / "cosine-mlp" / "seed_5" / "head.json").write_text("{", encoding="utf-8")
    again = evaluate("cosine-mlp", QUICK, setting)
    assert again.summary == first.summary


def test_a_kept_head_knows_its_calibration(setting: FitContext) -> None:
    evaluate("cosine-mlp", QUICK, setting)
    record = load_head(setting.folder / "cosine-mlp" / "seed_5").record
    assert (record.details["seed"], record.pooling, record.layers) == (5, "mean", tuple(LAYERS))
    assert record["calibration"]["slope"] > 0
    assert (record["calibration"]["low"], record["calibration"]["high"]) == (0.0, 5.0)


def test_pooling_and_layers_are_the_heads_own(setting: FitContext) -> None:
    found = evaluate("layer-cosine", {"pooling": "last", "layers": ["block_01", "final_norm"]}, setting)
    assert (found.pooling, found.layers) == ("last", ("block_01", "final_norm"))
    assert abs(found.summary["test"]["pearson"].mean) < 0.5  # nothing is planted there


def test_epochs_are_reported_by_seed(setting: FitContext) -> None:
    told: list[tuple[int, int]] = []
    evaluate(
        "cosine-mlp",
        {**QUICK, "max_epochs": 2},
        setting,
        watch=lambda seed: lambda epoch, _: told.append((seed, epoch)),
    )
    assert told == [(0, 1), (0, 2), (5, 1), (5, 2)]


def test_a_batch_larger_than_the_split_is_cut_to_it(setting: FitContext) -> None:
    assert evaluate("cosine-mlp", {**QUICK, "batch_size": 10_000, "max_epochs": 1}, setting).seeds


def test_a_task_without_test_is_scored_on_validation(tmp_path: Path) -> None:
    task = make_task(sizes={"train": 60, "validation": 40})
    setting = make_setting(plant(tmp_path / "c.h5", task), task, tmp_path)
    assert set(evaluate("layer-cosine", {}, setting).summary) == {"train", "validation"}


@pytest.mark.parametrize("sizes", [{"test": 30}, {"train": 30, "test": 30}, {"validation": 30, "test": 30}])
def test_a_task_without_train_or_validation_is_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    task = make_task(sizes=sizes)
    setting = make_setting(plant(tmp_path / "c.h5", task), task, tmp_path)
    with pytest.raises(TaskError, match=r"has no split '(train|validation)'; it has: "):
        evaluate("cosine-mlp", QUICK, setting)


def leak(task: PairTask, n_leaked: int, *, n_pairs: int = 3, gold: float | None = None) -> PairTask:
    """Put a sentence of train into the first rows of test, the whole pair into a few; perhaps one gold for all."""
    columns = {
        split: {column: list(rows[column]) for column in ("sentence1", "sentence2", "score")}
        for split, rows in task.splits.items()
    }
    test, train = columns["test"], columns["train"]
    test["sentence2"][:n_leaked] = train["sentence1"][:n_leaked]
    test["sentence1"][:n_pairs] = train["sentence2"][:n_pairs]
    if gold is not None:
        test["score"][:n_leaked] = [gold] * n_leaked
    return replace(task, splits=PairTask.hold(columns))


def setting_of(task: PairTask, folder: Path, **how: Any) -> FitContext:
    return make_setting(plant(folder / "c.h5", task), task, folder / "heads", seeds=(0, 5), **how)


def test_subsets_of_test_are_scored_apart(task: PairTask, tmp_path: Path) -> None:
    leaked = leak(task, 45)
    setting = setting_of(leaked, tmp_path)
    found = evaluate("cosine-mlp", QUICK, setting)
    counts = {name: entry["n"] for name, entry in found.extras["subsets"].items()}
    assert list(counts) == list(SUBSETS)
    assert counts == {
        "full": len(leaked.splits["test"]),
        "clean": 35,
        "leaked": 45,
        "leaked pair": 3,
        "punctuation": 0,
        "same but punctuation": 0,
        "repeated": 0,
        "conflicting gold": 0,
    }
    assert {name for name, entry in found.extras["subsets"].items() if len(entry) > 1} == {"clean", "leaked"}
    fitted = fit_all(setting)
    gold = leaked.gold01("test")
    for name, rows in (("clean", slice(45, None)), ("leaked", slice(None, 45))):
        for metric, function in (("pearson", pearsonr), ("spearman", spearmanr)):
            expected = [function(each.predictions["test"][rows], gold[rows])[0] for each in fitted]
            entry = found.extras["subsets"][name][metric]
            assert entry["values"] == pytest.approx(expected, abs=1e-5)
            assert entry["mean"] == pytest.approx(np.mean(expected), abs=1e-5)
            assert entry["low"] < entry["mean"] < entry["high"]
    whole = [pearsonr(each.predictions["test"], gold)[0] for each in fitted]
    assert found.summary["test"]["pearson"].values == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize(("n_leaked", "is_scored"), [(29, False), (30, True)])
def test_a_small_subset_has_its_size_alone(task: PairTask, tmp_path: Path, n_leaked: int, is_scored: bool) -> None:
    found = evaluate("layer-cosine", {}, setting_of(leak(task, n_leaked), tmp_path)).extras["subsets"]
    assert found["leaked"]["n"] == n_leaked
    assert ("pearson" in found["leaked"]) is is_scored
    assert found["clean"]["n"] == 80 - n_leaked
    assert "pearson" in found["clean"]


def test_a_subset_whose_gold_is_constant_has_its_size_alone(task: PairTask, tmp_path: Path) -> None:
    found = evaluate("layer-cosine", {}, setting_of(leak(task, 40, gold=3.0), tmp_path)).extras["subsets"]
    assert found["leaked"] == {"n": 40}
    assert "pearson" in found["clean"]


def test_a_subset_that_is_everything_has_its_size_alone(setting: FitContext) -> None:
    found = evaluate("layer-cosine", {}, setting).extras["subsets"]
    assert (found["full"], found["clean"], found["leaked"]) == ({"n": 80}, {"n": 80}, {"n": 0})


def test_subsets_may_be_left_out(setting: FitContext, tmp_path: Path) -> None:
    assert evaluate("layer-cosine", {}, replace(setting, has_details=False)).extras["subsets"] == {}
    without_test = make_task(sizes={"train": 60, "validation": 40})
    assert evaluate("layer-cosine", {}, setting_of(without_test, tmp_path)).extras["subsets"] == {}


@pytest.mark.parametrize("calibration", ["linear", "isotonic"])
def test_calibrated_predictions_are_the_mean_over_seeds(setting: FitContext, calibration: str) -> None:
    setting = replace(setting, calibration=calibration)
    found = evaluate("cosine-mlp", QUICK, setting)
    fitted = fit_all(setting)
    validation = np.asarray(setting.task.splits["validation"]["score"])
    for split in SIZES:
        expected = []
        for each in fitted:
            fresh = fit_calibration(calibration, each.predictions["validation"], validation, score_range=(0.0, 5.0))
            expected.append(fresh(each.predictions[split]))
        np.testing.assert_allclose(found.predictions[split], np.mean(expected, axis=0), atol=1e-6)
        assert found.predictions[split].min() >= 0
        assert found.predictions[split].max() <= 5


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        (
            "protocol",
            "icecor",
            r"unknown protocol 'icecor': did you mean 'icecore'\? Allowed: icecore, freeze-released",
        ),
        (
            "calibration",
            "isotone",
            r"unknown calibration 'isotone': did you mean 'isotonic'\? Allowed: linear, isotonic",
        ),
    ],
)
def test_an_unknown_protocol_or_calibration_is_refused(
    setting: FitContext, field: str, value: str, sentence: str
) -> None:
    with pytest.raises(UnknownNameError, match=sentence):
        replace(setting, **{field: value})  # type: ignore[arg-type]


def test_unknown_layers_are_named(setting: FitContext) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown layer 'blok_01': did you mean 'block_01'\?"):
        evaluate("layer-cosine", {"layers": "blok_01"}, setting)


def test_training_that_breaks_leaves_no_head_behind(setting: FitContext) -> None:
    with pytest.raises(HeadError, match="finite validation pearson"):
        evaluate("cosine-mlp", {**QUICK, "learning_rate": "1e30"}, setting)
    assert not (setting.folder / "cosine-mlp").exists()


def test_intervals_draw_copies_of_a_pair_together(cache: LatentCache, task: PairTask, tmp_path: Path) -> None:
    rows = {column: list(task.splits["test"][column]) for column in ("sentence1", "sentence2", "score")}
    copied = {column: [value for value in values[:30] for _ in range(4)] for column, values in rows.items()}
    few = {column: values[:30] for column, values in rows.items()}
    found = {}
    for name, test in (("few", few), ("copied", copied)):
        splits = PairTask.hold({**{split: part[:] for split, part in task.splits.items()}, "test": test})
        part = replace(task, splits=splits)
        result = evaluate("layer-cosine", {}, make_setting(cache, part, tmp_path / name))
        found[name] = result.summary["test"]["pearson"]
    assert found["copied"].mean == pytest.approx(found["few"].mean)
    assert found["copied"].low == pytest.approx(found["few"].low)
    assert found["copied"].high == pytest.approx(found["few"].high)
