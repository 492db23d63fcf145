"""Evaluating heads of words: layer and epoch on validation, test read once and last, everything reported is so."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extract.errors import TaskError
from probes.data.word_task import WordTask
from probes.heads.layer_head import MIX, FitContext, load_head
from probes.heads.result import HeadResult
from probes.heads.word_fits import majority_ids, tag_scorer
from probes.heads.word_heads import describe_seed
from probes.latents.word_latents import WordLatents
from probes.metrics.prediction_metrics import DECODINGS, NO_PREDICTION
from tests.probes.heads.evaluating import as_text, make_setting
from tests.probes.heads.evaluating import evaluate as evaluate_head
from tests.probes.heads.words.planted_words import LAYERS, PLANTED, PlantedCache, make_task, plant

OPTIONS = {"learning_rate": 1e-2, "max_epochs": 4, "epoch_steps": 1, "batch_size": 8, "chunk_words": 60}


def setting(cache: PlantedCache, task: WordTask, folder: Path, *, seeds: Sequence[int] = (0,)) -> FitContext:
    return make_setting(cache, task, folder, seeds=tuple(seeds))


def evaluate(where: FitContext, name: str = "token-classifier", **options: Any) -> HeadResult:
    return evaluate_head(name, {**OPTIONS, **options}, where)


@pytest.fixture(scope="module")
def task() -> WordTask:
    return make_task(n_documents=5)


@pytest.fixture(scope="module")
def cache(task: WordTask) -> PlantedCache:
    n_train, n_validation = (sum(map(len, task.splits[split]["words"])) for split in ("train", "validation"))
    return plant(task, noise=0.8, cut=[1, n_train + 2, n_train + n_validation + 3])


@pytest.fixture(scope="module")
def found(cache: PlantedCache, task: WordTask, tmp_path_factory: pytest.TempPathFactory) -> tuple[HeadResult, Path]:
    folder = tmp_path_factory.mktemp("heads")
    return evaluate(setting(cache, task, folder, seeds=(0, 3))), folder


def test_the_layer_is_chosen_by_the_mean_validation_score(found: tuple[HeadResult, Path]) -> None:
    result = found[0]
    [curve] = result.curves
    assert (curve.split, curve.metric) == ("validation", "span-f1")
    assert result.layers == LAYERS
    assert np.array(curve.by_seed).shape == (2, len(LAYERS))
    assert np.allclose(curve.values, np.mean(curve.by_seed, axis=0))
    assert np.allclose(curve.spread, np.std(curve.by_seed, axis=0, ddof=1))
    assert result.chosen == {"layer": PLANTED, "score": max(curve.values), "decoding": result.chosen["decoding"]}
    assert result.selection_score == max(curve.values)
    assert result.selection == "validation (epoch, layer and decoding)"
    assert result.is_optimistic is False
    chosen = LAYERS.index(PLANTED)
    assert result.summary["validation"]["span-f1"].values == pytest.approx([row[chosen] for row in curve.by_seed])


def test_everything_reported_equals_counting_it_again(
    found: tuple[HeadResult, Path], cache: PlantedCache, task: WordTask
) -> None:
    result, folder = found
    data = WordLatents(cache, task)
    for split in task.splits:
        judge = tag_scorer(data, split)
        ids = result.predictions[split]
        summary = result.summary[split]["span-f1"]
        assert summary.values[0] == pytest.approx(judge.score(ids))
        assert result.extras["decoding"][split][result.chosen["decoding"]] == pytest.approx(summary.mean)
        assert result.names[split] == judge.gold.names
        assert result.extras["errors"][split] == judge.errors(ids)
        n_words = sum(map(len, task.splits[split]["words"]))
        assert result.extras["coverage"][split] == {"n_words": n_words, "n_cut": 1, "n_lost": 0, "n_shared": 0}
        assert (ids == NO_PREDICTION).sum() == 1
        assert result.baselines["majority"][split] == judge.score(majority_ids(data, split))
        np.testing.assert_array_equal(result.row_scores[split], judge.sentence_scores(ids))
    layer = LAYERS.index(PLANTED)
    head = load_head(folder / "token-classifier" / "seed_0").head
    rows = data.split("test")
    latents = cache.latents["mean"][:, rows.positions[rows.has_latent]]
    logits = np.full((len(rows.has_latent), len(data.classes)), np.nan, dtype=np.float32)
    with torch.no_grad():
        logits[rows.has_latent] = head(latents)[layer].numpy()
    decoded = tag_scorer(data, "test").decode(logits, result.chosen["decoding"])
    assert np.array_equal(decoded, result.predictions["test"])


def test_the_predictions_of_every_seed_are_there_to_be_compared(
    found: tuple[HeadResult, Path], cache: PlantedCache, task: WordTask, tmp_path: Path
) -> None:
    result, data = found[0], WordLatents(cache, task)
    for split in task.splits:
        values = [tag_scorer(data, split).score(row) for row in result.scored[split]]
        assert values == pytest.approx(result.summary[split]["span-f1"].values)
        assert np.array_equal(result.scored[split][0], result.predictions[split])
    assert not evaluate(setting(cache, task, tmp_path), max_epochs=1).scored


def test_the_history_holds_the_best_epoch(found: tuple[HeadResult, Path]) -> None:
    for entry in found[0].seeds:
        assert len(entry["history"]) <= OPTIONS["max_epochs"]
        step = entry["history"][entry["best_epoch"] - 1]
        assert step["validation_score"] == max(past["validation_score"] for past in entry["history"])


def test_a_kept_head_is_loaded_and_another_one_fitted(
    found: tuple[HeadResult, Path], cache: PlantedCache, task: WordTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a head was fitted")

    monkeypatch.setattr("probes.fitting.loop.run_trainer", refuse)
    again = evaluate(setting(cache, task, found[1], seeds=(0, 3)))
    assert as_text(again) == as_text(found[0])
    with pytest.raises(AssertionError, match="a head was fitted"):
        evaluate(setting(cache, task, found[1], seeds=(0, 3)), learning_rate=2e-2)
    with pytest.raises(AssertionError, match="a head was fitted"):
        evaluate(setting(cache, task, found[1], seeds=(0, 4)))


def poisoned(task: WordTask) -> WordTask:
    """Change every tag of test, and nothing else."""
    columns = {split: rows.to_dict() for split, rows in task.splits.items()}
    columns["test"]["tags"] = [["B-POISON"] * len(tags) for tags in columns["test"]["tags"]]
    return replace(task, splits=WordTask.hold(columns))


@pytest.mark.long
def test_poisoned_tags_of_test_change_the_scores_of_test_alone(
    found: tuple[HeadResult, Path], cache: PlantedCache, task: WordTask, tmp_path: Path
) -> None:
    bad = evaluate(setting(cache, poisoned(task), tmp_path, seeds=(0, 3)))
    good = found[0]
    for key in ("curves", "chosen", "layers", "options"):
        assert getattr(bad, key) == getattr(good, key)
    assert bad.extras["coverage"] == good.extras["coverage"]
    for split in ("train", "validation"):
        assert bad.summary[split] == good.summary[split]
        assert bad.baselines["majority"][split] == good.baselines["majority"][split]
        for key in ("by_type", "decoding", "errors"):
            assert bad.extras[key][split] == good.extras[key][split]
    for split in task.splits:
        assert np.array_equal(bad.predictions[split], good.predictions[split])
    assert bad.summary["test"]["span-f1"].mean == 0
    assert good.summary["test"]["span-f1"].mean > 0.2


def test_test_is_read_last_and_once_a_seed(
    cache: PlantedCache, task: WordTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = WordLatents.loader

    def spy(self: WordLatents, split: str, **how: Any) -> Any:
        asked.append(split)
        return real(self, split, **how)

    monkeypatch.setattr(WordLatents, "loader", spy)
    evaluate(setting(cache, task, tmp_path, seeds=(0, 1)), max_epochs=1)
    assert asked[-2:] == ["test", "test"]
    assert asked.count("test") == 2


def test_a_mix_reports_its_weights(cache: PlantedCache, task: WordTask, tmp_path: Path) -> None:
    result = evaluate(setting(cache, task, tmp_path), "token-mix")
    assert result.layers == (MIX,)
    assert result.chosen["layer"] == MIX
    assert result.extras["mix"]["layers"] == list(LAYERS)
    assert result.extras["mix"]["whole"] == pytest.approx(result.extras["decoding"]["validation"]["plain"])
    assert result.selection == "validation (epoch and decoding)"


@pytest.mark.long
def test_a_mix_is_judged_as_its_head_is(task: WordTask, tmp_path: Path) -> None:
    n_train = sum(map(len, task.splits["train"]["words"]))
    cut = plant(task, noise=0.8, cut=range(n_train, n_train + 30))
    fair = evaluate(setting(cut, task, tmp_path / "a"), "token-mix", decoding="plain")
    left_out = evaluate(setting(cut, task, tmp_path / "b"), "token-mix", decoding="plain", leaves_out_cut=True)
    for result in (fair, left_out):
        assert result.extras["mix"]["whole"] == pytest.approx(result.chosen["score"], abs=1e-12)
    assert left_out.extras["mix"]["whole"] > fair.extras["mix"]["whole"] + 0.02


def test_the_history_holds_only_scores_that_may_be_kept() -> None:
    history = [
        {"train_loss": 3.0, "validation_scores": [0.3, None]},
        {"train_loss": 2.0, "validation_scores": [None, 0.2]},
        {"train_loss": 1.0, "validation_scores": [None, 0.5]},
    ]
    record = {"history": history, "best_epochs": [1, 3], "seed": 4, "seconds": 1.0}
    first, second = (describe_seed(record, probe)["history"] for probe in (0, 1))
    assert [step.get("validation_score") for step in first] == [0.3, None, None]
    assert [step.get("validation_score") for step in second] == [None, 0.2, 0.5]
    assert [step["best_layer_score"] for step in first] == [0.3, 0.3, 0.5]


@pytest.mark.long
def test_words_left_out_make_a_score_optimistic(cache: PlantedCache, task: WordTask, tmp_path: Path) -> None:
    fair = evaluate(setting(cache, task, tmp_path / "a"), max_epochs=1)
    left_out = evaluate(setting(cache, task, tmp_path / "b"), max_epochs=1, leaves_out_cut=True)
    assert (fair.is_optimistic, left_out.is_optimistic) == (False, True)
    whole = plant(task, noise=0.8)
    assert not evaluate(setting(whole, task, tmp_path / "c"), max_epochs=1, leaves_out_cut=True).is_optimistic


def test_tags_that_are_no_spans_are_scored_by_accuracy(tmp_path: Path) -> None:
    task = make_task(metric="accuracy")
    result = evaluate(setting(plant(task, noise=0.8), task, tmp_path))
    assert set(result.summary["test"]) == {"accuracy"}
    assert "decoding" not in result.chosen
    assert result.extras["decoding"] == {"train": {}, "validation": {}, "test": {}}
    assert result.summary["test"]["accuracy"].mean > result.baselines["majority"]["test"]


def test_without_validation_there_is_one_layer_and_nothing_to_choose(tmp_path: Path) -> None:
    task = make_task(sizes={"train": 60, "test": 20})
    where = setting(plant(task, noise=0.8), task, tmp_path)
    with pytest.raises(TaskError, match="no split 'validation' to choose among 5 layers on"):
        evaluate(where, keep="last", max_epochs=1)
    result = evaluate(where, keep="last", max_epochs=2, layers=PLANTED)
    assert (result.selection, result.curves) == ("nothing to choose", ())
    assert result.chosen == {"layer": PLANTED, "score": None, "decoding": "plain"}
    assert np.isnan(result.selection_score)


@pytest.mark.long
def test_the_way_of_decoding_is_chosen_on_validation_together_with_the_layer(
    cache: PlantedCache, task: WordTask, tmp_path: Path
) -> None:
    """Every way by itself, its layer chosen for it: the best of them is what is chosen, and its scores lead."""
    ways = {way: evaluate(setting(cache, task, tmp_path / way), decoding=way) for way in DECODINGS}
    scores = {way: result.selection_score for way, result in ways.items()}
    assert len(set(scores.values())) > 1
    chosen = evaluate(setting(cache, task, tmp_path))
    assert chosen.selection_score == max(scores.values())
    best = ways[chosen.chosen["decoding"]]
    assert best.chosen == chosen.chosen
    assert chosen.chosen["decoding"] != "plain"
    for split in task.splits:
        assert np.array_equal(best.predictions[split], chosen.predictions[split])
        assert best.summary[split] == chosen.summary[split]
    assert best.curves == chosen.curves
    assert best.selection == "validation (epoch and layer)"


def test_every_epoch_is_watched(cache: PlantedCache, task: WordTask, tmp_path: Path) -> None:
    epochs: list[int] = []
    evaluate_head(
        "token-classifier",
        {**OPTIONS, "max_epochs": 1},
        setting(cache, task, tmp_path),
        watch=lambda _: lambda epoch, _values: epochs.append(epoch),
    )
    assert epochs == [1]
