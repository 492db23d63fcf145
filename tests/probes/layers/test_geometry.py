"""Geometry of whole caches: what is measured on which rows, and cosines against gold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import CacheError, TaskError, UnknownNameError
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask
from probes.layers.geometry import (
    GEOMETRY_COLUMNS,
    MEASURES,
    cosine_with_gold,
    draw_sample,
    mean_cosine,
    measure_geometry,
    norm_profile,
    similarity_of_layers,
)
from probes.metrics.bootstrap import Resampling
from tests.extract.word_stores import words, write_word_cache
from tests.probes.data.planted_classes import make_class_task
from tests.probes.planted_latents import LAYERS, PLANTED


def test_every_layer_and_pooling_is_measured(cache: LatentCache) -> None:
    frame = measure_geometry(cache.path)
    assert tuple(frame.columns) == GEOMETRY_COLUMNS
    assert len(frame) == len(cache.layers) * 2 * len(MEASURES)
    assert set(frame["n_rows"]) == {len(cache)}
    assert frame["depth"].unique().tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    x = cache.layer("block_01", "last").double().numpy()
    rows = frame.query("pooling == 'last' and layer == 'block_01'").set_index("measure")
    assert rows.loc["norm-q95", "value"] == pytest.approx(norm_profile(x)["norm-q95"])
    assert rows.loc["mean-cosine", "value"] == pytest.approx(mean_cosine(x)["mean-cosine"], abs=1e-6)
    assert set(frame["decoder"]) == {"planted"}


def test_a_draw_is_the_same_for_every_layer_and_seed(cache: LatentCache) -> None:
    chosen: dict[str, Any] = {"measures": ["norm"], "pooling": "mean", "layers": ["block_01"]}
    one, again, other = (measure_geometry(cache, most_rows=50, seed=seed, **chosen) for seed in (0, 0, 1))
    assert one.equals(again)
    assert one["value"].iloc[0] != other["value"].iloc[0]
    assert one["n_rows"].iloc[0] == 50
    sample = draw_sample(cache, most_rows=50, seed=0)
    assert np.diff(sample.rows).min() > 0
    assert np.bincount(sample.groups).tolist() == [5] * 10


def test_some_texts_alone_can_be_measured(cache: LatentCache, task: PairTask) -> None:
    firsts = [text for text in task.texts() if text.endswith("left")]
    [row] = measure_geometry(cache, texts=firsts, measures=["norm"], pooling="mean", layers=["block_01"]).to_dict(
        "records"
    )
    norms = np.linalg.norm(cache.gather(cache.rows_of(firsts), "mean", layers=["block_01"])[0].numpy(), axis=1)
    assert row["value"] == pytest.approx(norms.mean())
    assert row["n_rows"] == len(firsts)


def test_standardised_dimensions_have_one_scale(cache: LatentCache) -> None:
    frame = measure_geometry(cache, measures=["norm", "mean-cosine"], layers=["block_01"], standardise=True)
    values = frame.set_index(["pooling", "measure"])["value"]
    assert values["mean", "mean-cosine"] == pytest.approx(0, abs=0.01)
    assert values["mean", "norm"] == pytest.approx(np.sqrt(cache.width), rel=0.05)


def test_words_of_a_text_are_left_out_together(tmp_path: Path) -> None:
    texts = [words([f"w{k}", "x", f"y{k}", "z"]) for k in range(40)]
    write_word_cache(tmp_path / "words.h5", texts, [(k, 0, 4) for k in range(40)])
    cache = LatentCache(tmp_path / "words.h5")
    sample = draw_sample(cache, most_rows=1000, seed=0)
    assert len(sample) == 160
    assert (sample.groups.reshape(40, 4) == sample.groups[::4, None]).all()
    assert set(np.bincount(sample.groups[::4])) == {4}
    assert len(draw_sample(cache, texts=texts[:10], most_rows=1000, seed=0)) == 40
    frame = measure_geometry(cache, measures=["intrinsic-dimension"], layers=["final_norm"])
    assert frame["value"].notna().all()


def test_words_of_one_text_are_refused(tmp_path: Path) -> None:
    write_word_cache(tmp_path / "one.h5", [words([f"w{k}" for k in range(60)])], [(0, 0, 60)])
    message = r"all 60 words of cache 'one.h5' that would be drawn are of one text; needed: words of two"
    with pytest.raises(CacheError, match=message):
        measure_geometry(tmp_path / "one.h5")
    with pytest.raises(CacheError, match=message):
        similarity_of_layers(tmp_path / "one.h5")


def test_unknown_measures_and_few_rows_are_refused(cache: LatentCache) -> None:
    with pytest.raises(UnknownNameError, match="unknown measure 'norms': did you mean 'norm'"):
        measure_geometry(cache, measures=["norms"])
    with pytest.raises(CacheError, match=r"29 latents of cache 'planted.h5' would be drawn; needed: 30"):
        measure_geometry(cache, most_rows=29)


def test_the_cosine_follows_gold_where_it_is_planted(cache: LatentCache, task: PairTask) -> None:
    frame = cosine_with_gold(cache, task, pooling="mean", resampling=Resampling(200))
    assert tuple(frame.columns) == GEOMETRY_COLUMNS
    by_layer = frame.set_index("layer")
    assert list(by_layer.index) == list(LAYERS)
    assert by_layer["value"].idxmax() == PLANTED
    part = task.rows("validation")
    one, other = (cache.gather(cache.rows_of(list(part[name])), "mean") for name in ("sentence1", "sentence2"))
    cosines = (one * other).sum(2) / (one.norm(dim=2) * other.norm(dim=2))
    for k, layer in enumerate(LAYERS):
        expected = np.corrcoef(cosines[k].numpy(), part["score"])[0, 1]
        assert by_layer.loc[layer, "value"] == pytest.approx(expected, abs=1e-5)
        assert by_layer.loc[layer, "low"] < expected < by_layer.loc[layer, "high"]
    assert by_layer.loc[PLANTED, "low"] > 0.3
    assert set(frame["measure"]) == {"gold-pearson"}
    assert set(frame["n_rows"]) == {len(part)}


def test_gold_of_something_else_is_refused(cache: LatentCache, task: PairTask) -> None:
    with pytest.raises(TaskError, match="is one of classes; allowed: pairs"):
        cosine_with_gold(cache, make_class_task(), pooling="mean")
    with pytest.raises(UnknownNameError, match="unknown metric 'kendall'"):
        cosine_with_gold(cache, task, metric="kendall")
    with pytest.raises(UnknownNameError, match="unknown split 'dev'"):
        cosine_with_gold(cache, task, split="dev")
