"""Heads without fitting: a perfect encoder scores 1, judges equal obvious references, and nothing is read too much."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, v_measure_score
from sklearn.metrics.pairwise import cosine_similarity

from extract.errors import HeadError, TaskError, UnknownNameError
from extract.store.cache import LatentCache
from probes.heads import zero_shot_heads as similarity
from probes.heads.head_table import HEADS, PlannedRun, resolve_head
from probes.heads.zero_shot_heads import (
    LayerReader,
    SearchHead,
    SimilarityHead,
    TranslateHead,
    best_threshold,
    layer_steps,
    odd_one_out,
)
from probes.latents.text_latents import channels_of, no_transform
from tests.probes.heads.evaluating import evaluate, make_setting
from tests.probes.heads.zero_shot.planted_tasks import KINDS, make_bitext, make_pairs, make_retrieval, plant_task
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH, write_latents

HEAD_OF = {entry.kind: name for name, entry in HEADS.items() if entry.kind in KINDS}


def reader_of(cache: LatentCache, measure: str = "cosine") -> LayerReader:
    return LayerReader(cache, channels_of(cache, "mean"), no_transform(len(LAYERS), WIDTH), measure)


@pytest.mark.parametrize("kind", KINDS)
def test_a_perfect_encoder_scores_one_at_its_layer(kind: str, tmp_path: Path) -> None:
    task = KINDS[kind][0]()
    setting = make_setting(plant_task(tmp_path, task, noise=1e-3), task, tmp_path / "heads", n_resamples=10)
    result = evaluate(HEAD_OF[kind], {}, setting)
    assert result.chosen["layer"] == PLANTED
    for metric in task.metrics:
        assert result.summary["test"][metric].mean == pytest.approx(1.0), metric


def test_the_clusters_of_every_seed_are_there_to_be_compared(tmp_path: Path) -> None:
    task = KINDS["clustering"][0]()
    setting = make_setting(plant_task(tmp_path, task, noise=3.0), task, tmp_path / "heads", seeds=(0, 1, 2))
    result = evaluate("layer-clusters", {}, setting)
    values = [v_measure_score(task.labels("test"), row) for row in result.scored["test"]]
    assert values == pytest.approx(result.summary["test"]["v-measure"].values)
    assert len(set(values)) == 3
    names = result.names["test"]
    assert {names[code].split()[0] for code in result.scored["test"].ravel()} == {"cluster"}


@pytest.mark.parametrize("kind", ["retrieval", "odd-one-out"])
def test_transforms_and_measures_are_chosen_on_validation_and_kept(kind: str, tmp_path: Path) -> None:
    task = KINDS[kind][0]()
    cache = plant_task(tmp_path, task)
    setting = make_setting(cache, task, tmp_path / "heads", n_resamples=10)
    options = {"transform": "none+centre+abtt+whiten", "similarity": "cosine+euclidean", "components": 2}
    result = evaluate(HEAD_OF[kind], options, setting)
    names = [curve.name for curve in result.curves]
    assert names[:3] == ["cosine", "euclidean", "centre cosine"]
    assert len(names) == 8
    best = max(score for curve in result.curves for score in curve.values)
    assert result.chosen["score"] == result.selection_score == best
    again = evaluate(HEAD_OF[kind], options, setting)  # the transform is read back
    np.testing.assert_array_equal(again.predictions["test"], result.predictions["test"])


@pytest.mark.parametrize("measure", similarity.MEASURES)
def test_blocks_of_documents_find_what_a_full_sort_finds(
    measure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity, "BLOCK", 7)
    rng = np.random.default_rng(0)
    latents = rng.integers(-2, 3, (len(LAYERS), 40, WIDTH)).astype(np.float32)
    latents[:, 20:30] = latents[:, :10]  # ties, in other blocks
    cache = write_latents(tmp_path / "c.h5", [f"t{k}" for k in range(40)], {"mean": latents})
    reader, rows = reader_of(cache, measure), torch.arange(40)
    queries = reader.gather(rows[30:35])
    scores = reader.between(queries, reader.gather(rows)).numpy()
    found = reader.nearest(queries, rows, 12).numpy()
    ranked = np.take_along_axis(scores, found, axis=2)
    np.testing.assert_allclose(ranked, -np.sort(-scores, axis=2)[..., :12], atol=1e-5)
    if measure == "dot":  # whole numbers: ties are exact, and the first of them comes first
        np.testing.assert_array_equal(found, np.argsort(-scores, axis=2, kind="stable")[..., :12])


def test_a_document_does_not_find_itself_unless_it_is_the_answer(tmp_path: Path) -> None:
    task = make_retrieval()
    cache, layer = plant_task(tmp_path, task, noise=1e-3), LAYERS.index(PLANTED)
    reader = reader_of(cache)
    queries = reader.read(list(task.rows("test")["query"]))
    first, second = reader.nearest(queries, cache.rows_of(task.corpus), 2)[layer, 0].tolist()
    assert first in task.rows("test")["documents"][0]

    def score(**columns: list[Any]) -> np.ndarray:
        rows = task.splits["test"]
        for name, (value, *_) in columns.items():
            rows = rows.remove_columns(name).add_column(name, [value, *task.rows("test")[name][1:]])
        changed = task.replaced(splits=type(task.splits)({**task.splits, "test": rows}))
        head = SearchHead(resolve_head("layer-search", {}), make_setting(cache, changed, tmp_path))
        return np.asarray(head.judge("test", reader)["ndcg@10"][layer])

    answered, own = score(), score(id=[task.corpus_ids[first]])
    assert answered[0] == pytest.approx(1.0)
    np.testing.assert_array_equal(own, answered)
    other = {"documents": [[second]], "grades": [[1.0]]}
    behind, alone = score(**other), score(**other, id=[task.corpus_ids[first]])
    assert (behind[0], alone[0]) == (pytest.approx(1 / np.log2(3)), pytest.approx(1.0))
    np.testing.assert_array_equal(behind[1:], alone[1:])


def test_bitexts_are_scored_as_by_scikit_learn_in_both_directions(tmp_path: Path) -> None:
    task = make_bitext()
    cache = plant_task(tmp_path, task, noise=1.5)
    head = TranslateHead(resolve_head("layer-translate", {}), make_setting(cache, task, tmp_path))
    found = head.judge("test", reader_of(cache))["bitext-f1"].mean(1)
    rows = [cache.rows_of(list(task.rows("test")[column])) for column in task.text_columns]
    for k, layer in enumerate(LAYERS):
        a, b = (cache.gather(side, "mean", layers=layer)[0].numpy() for side in rows)
        nearest = cosine_similarity(a, b)
        gold = np.arange(len(a))
        both = [f1_score(gold, nearest.argmax(axis), average="weighted", zero_division=0) for axis in (1, 0)]
        assert found[k] == pytest.approx(np.mean(both)), layer


def test_the_odd_one_has_the_largest_sum_of_distances() -> None:
    """By hand: three points on a line and one beside it; a question of three sentences is padded."""
    line, padded = [[0, 0], [1, 0], [2, 0], [1, 9.0]], [[0, 0], [5, 0], [0.5, 0], [99, 99]]
    points = torch.tensor([line, padded])
    distances = torch.cdist(points, points)
    is_real = torch.tensor([[True] * 4, [True, True, True, False]])
    assert odd_one_out(-distances, is_real).tolist() == [3, 1]
    order = torch.tensor([2, 3, 0, 1])
    permuted = -distances[:, order][:, :, order]
    assert odd_one_out(permuted, is_real[:, order]).tolist() == [1, 3]


def test_the_threshold_puts_most_pairs_on_their_side() -> None:
    values, alike = np.array([0.1, 0.2, 0.3, 0.4, 0.9]), np.array([False, False, True, False, True])
    assert best_threshold(values, alike) == pytest.approx(0.25)
    assert best_threshold(values, np.ones(5, bool)) < 0.1
    assert best_threshold(values, np.array([True, False, False, False, False])) > 0.9  # no pair is alike


def test_the_threshold_comes_from_validation_and_scores_new_pairs(tmp_path: Path) -> None:
    task = make_pairs()
    cache = plant_task(tmp_path, task)
    result = evaluate("layer-alike", {}, make_setting(cache, task, tmp_path / "heads"))
    worse = evaluate("layer-alike", {}, make_setting(cache, make_pairs(shuffled=("test",)), tmp_path / "other"))
    assert result.chosen == worse.chosen
    np.testing.assert_array_equal(result.predictions["test"], worse.predictions["test"])
    above = result.predictions["validation"] > 0
    accuracy = np.mean(above == (task.labels("validation") == 1))
    assert accuracy == result.mean("validation", "threshold-accuracy")


def test_layers_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little memory there is, the same is found."""
    task = make_retrieval()
    cache = plant_task(tmp_path, task)
    whole = evaluate("layer-search", {}, make_setting(cache, task, tmp_path / "a"))
    monkeypatch.setattr("probes.heads.zero_shot_heads.layer_steps", lambda n, _: layer_steps(n, 2, most=4))
    parts = evaluate("layer-search", {}, make_setting(cache, task, tmp_path / "b"))
    assert [len(range(*each.indices(5))) for each in layer_steps(5, 2, most=4)] == [2, 2, 1]
    assert parts.curves == whole.curves


def test_queries_and_documents_may_be_in_two_caches(tmp_path: Path) -> None:
    task = make_retrieval()
    cache = plant_task(tmp_path, task)
    setting = make_setting(cache, task, tmp_path / "a")
    empty = write_latents(
        tmp_path / "d.h5", list(task.corpus), {"mean": np.ones((len(LAYERS), len(task.corpus), WIDTH), np.float32)}
    )
    apart = replace(setting, documents=empty, folder=tmp_path / "b")
    assert evaluate("layer-search", {}, setting).mean("test") > evaluate("layer-search", {}, apart).mean("test")
    assert setting.identify("layer-search") != apart.identify("layer-search")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"similarity": "cosin"}, r"unknown similarity 'cosin': did you mean 'cosine'\?"),
        ({"transform": "centre+zca"}, "unknown transform 'zca'"),
    ],
)
def test_unknown_names_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        resolve_head("layer-search", options)


def test_a_transform_needs_texts_to_be_fitted_on() -> None:
    sizes = {"validation": 30, "test": 30}
    task, resolved = make_bitext(sizes=sizes), resolve_head("layer-translate", {"transform": "whiten"})
    with pytest.raises(TaskError, match="has no split 'train', which a transform is fitted on"):
        SimilarityHead.check(task, resolved, PlannedRun())
    SimilarityHead.check(make_retrieval(sizes=sizes), resolved, PlannedRun())  # fitted on the corpus
    SimilarityHead.check(task, resolve_head("layer-translate", {}), PlannedRun())


def test_a_latent_that_is_not_finite_is_refused_by_layer(tmp_path: Path) -> None:
    task = make_bitext()
    latents = np.ones((len(LAYERS), len(task.texts()), WIDTH), np.float32)
    latents[2, 3] = np.nan
    cache = write_latents(tmp_path / "c.h5", task.texts(), {"mean": latents})
    with pytest.raises(HeadError, match=f"{LAYERS[2]} holds a latent that is NaN or infinite"):
        reader_of(cache).gather(torch.arange(5))
