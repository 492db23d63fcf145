"""Debiased CKA: theorems, a naive reference written from the formula, and caches that are matched by text."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from extract.errors import CacheError, ConfigError, UnknownNameError
from extract.store.cache import LatentCache
from probes.layers.geometry import SIMILARITY_COLUMNS, jackknife, linear_cka, similarity_of_layers
from tests.extract.word_stores import words, write_word_cache
from tests.probes.planted_latents import write_latents

TEXTS = [f"text {k}" for k in range(120)]


def cloud(seed: int, n: int = 120, d: int = 12) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def naive_hsic(k: NDArray[np.float64], m: NDArray[np.float64]) -> float:
    """The unbiased HSIC of Song et al. (2012), equation 5, term by term."""
    n = len(k)
    k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
    ones = np.ones(n)
    total = np.trace(k @ m) + (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
    return float((total - 2 / (n - 2) * (ones @ k @ m @ ones)) / (n * (n - 3)))


def naive_cka(x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    k, m = (np.asarray(each, np.float64) @ np.asarray(each, np.float64).T for each in (x, y))
    return float(naive_hsic(k, m) / np.sqrt(naive_hsic(k, k) * naive_hsic(m, m)))


@pytest.mark.parametrize(("n", "d"), [(50, 3), (50, 40), (6, 4)])  # slips of the centring show where rows are few
def test_it_is_the_naive_one(n: int, d: int) -> None:
    x = cloud(0, n, d)
    y = x[:, :3] @ np.random.default_rng(5).normal(size=(3, 7)).astype(np.float32) + cloud(1, n, 7)
    assert linear_cka(x, y) == pytest.approx(naive_cka(x, y), abs=1e-5)
    assert linear_cka(x + 100, 0.01 * y - 3) == pytest.approx(naive_cka(x, y), abs=1e-4)
    assert linear_cka(x, y) == pytest.approx(linear_cka(y, x))


def test_rotations_and_scales_do_not_matter_but_stretching_does() -> None:
    x = cloud(0)
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(12, 12)))[0].astype(np.float32)
    assert linear_cka(x, 7 * x @ rotation + 3) == pytest.approx(1, abs=1e-5)
    assert linear_cka(x, x * np.float32(10) ** -np.arange(12, dtype=np.float32)) < 0.5


def test_unrelated_layers_are_near_0_however_wide_they_are() -> None:
    found = [linear_cka(cloud(2 * k, 60, 300), cloud(2 * k + 1, 60, 300)) for k in range(20)]
    assert abs(np.mean(found)) < 0.01
    x, y = (each - each.mean(axis=0) for each in (cloud(0, 60, 300), cloud(1, 60, 300)))
    biased = np.sum((x @ x.T) * (y @ y.T)) / (np.linalg.norm(x @ x.T) * np.linalg.norm(y @ y.T))
    assert biased > 0.8  # what the plain estimate would say of them


def write(path: Path, texts: list[str], layers: list[NDArray[np.float32]]) -> LatentCache:
    """Write a cache whose layers are given; embedding, blocks and final norm."""
    return write_latents(path, texts, {"mean": np.stack(layers)})


def test_layers_of_one_cache_are_compared_with_intervals(tmp_path: Path) -> None:
    base = cloud(0)
    noisy = base + cloud(1)
    cache = write(tmp_path / "a.h5", TEXTS, [base, noisy, cloud(2), np.ones_like(base)])
    frame = similarity_of_layers(cache)
    assert tuple(frame.columns) == SIMILARITY_COLUMNS
    table = frame.pivot(index="layer", columns="other_layer", values="value").loc[
        list(cache.layers), list(cache.layers)
    ]
    values = table.to_numpy()
    np.testing.assert_allclose(values, values.T, atol=1e-6)
    np.testing.assert_allclose(np.diag(values)[:3], 1, atol=1e-6)
    assert values[0, 1] == pytest.approx(naive_cka(base, noisy), abs=1e-5)
    assert np.isnan(values[3]).all()  # a layer that does not vary is like none
    pair = frame.query("layer == 'embedding' and other_layer == 'block_01'").iloc[0]
    assert pair.low < pair.value < pair.high
    assert pair.other_depth == pytest.approx(1 / 3)
    assert set(frame["n_rows"]) == {120}
    massive = base.copy()
    massive[:, 0] *= 1000
    stretched = similarity_of_layers(write(tmp_path / "m.h5", TEXTS, [base, massive, base, base]), layers=[0, 1])
    evened = similarity_of_layers(tmp_path / "m.h5", layers=[0, 1], standardise=True)
    assert stretched["value"].min() < 0.5
    assert evened["value"].min() == pytest.approx(1, abs=1e-5)


def test_two_caches_are_matched_by_text(tmp_path: Path) -> None:
    layers = [cloud(k) for k in range(4)]
    one = write(tmp_path / "one.h5", TEXTS, layers)
    order = np.random.default_rng(0).permutation(120)[:90]
    more = [np.concatenate([layer[order], cloud(9, 30)]) for layer in layers]
    other = write(tmp_path / "other.h5", [*(TEXTS[k] for k in order), *(f"new {k}" for k in range(30))], more)
    frame = similarity_of_layers(one, other.path)
    assert set(frame["n_rows"]) == {90}
    same = frame[frame["layer"] == frame["other_layer"]]
    np.testing.assert_allclose(same["value"], 1, atol=1e-5)
    assert frame[frame["layer"] != frame["other_layer"]]["value"].abs().max() < 0.2
    assert set(frame["other_cache"]) == {"other"}
    few = similarity_of_layers(one, other, most_rows=40)
    np.testing.assert_allclose(few[few["layer"] == few["other_layer"]]["value"], 1, atol=1e-5)


def test_words_are_matched_by_text_and_number(tmp_path: Path) -> None:
    texts = [words([f"w{k}", "x", f"y{k}", "z"]) for k in range(12)]
    found = write_word_cache(tmp_path / "one.h5", texts, [(k, 0, 4) for k in range(12)])
    pieces = [piece for k in reversed(range(12)) for piece in ((k, 2, 2), (k, 0, 2))]  # windows, out of order
    write_word_cache(tmp_path / "other.h5", texts, pieces)
    one, other = LatentCache(tmp_path / "one.h5"), LatentCache(tmp_path / "other.h5")
    for cache, places in ((one, [(k, w) for k in range(12) for w in range(4)]),):
        first = cache.layer("block_01", "mean")
        assert all((found[place][1, 0] == first[k]).all() for k, place in enumerate(places))
    keys = {tuple(key): k for k, key in enumerate(one.keys.tolist())}
    assert len(keys) == 48
    assert sorted(keys) == sorted(tuple(key) for key in other.keys.tolist())
    assert [other.keys[k].tolist()[2] for k in range(4)] == [2, 3, 0, 1]
    assert (one.keys[0, :2] == other.keys[46, :2]).all()  # the first text comes last
    assert set(similarity_of_layers(one, other)["n_rows"]) == {48}


def test_words_without_a_latent_are_left_out(tmp_path: Path) -> None:
    texts = [words([f"w{k}", "x", f"y{k}", "z"]) for k in range(12)]
    flags = np.zeros(48, np.uint8)
    flags[[3, 9]] = 2
    write_word_cache(tmp_path / "cut.h5", texts, [(k, 0, 4) for k in range(12)], flags=flags)
    cache = LatentCache(tmp_path / "cut.h5")
    assert np.flatnonzero(~cache.has_latent).tolist() == [3, 9]
    assert set(similarity_of_layers(cache)["n_rows"]) == {46}


def test_an_interval_leaves_out_the_groups_that_there_are(tmp_path: Path) -> None:
    texts = [words([f"w{text} {k}" for k in range(20)]) for text in range(3)]
    write_word_cache(tmp_path / "three.h5", texts, [(text, 0, 20) for text in range(3)])
    cache = LatentCache(tmp_path / "three.h5")
    row = similarity_of_layers(cache, layers=["embedding", "final_norm"]).iloc[1]
    x, y = (cache.layer(layer, "mean").float().numpy() for layer in ("embedding", "final_norm"))
    rows = np.arange(60) // 20
    without = np.array([linear_cka(x[rows != text], y[rows != text]) for text in range(3)])
    assert (row.low, row.high) == pytest.approx(jackknife(linear_cka(x, y), without)[1:], abs=1e-4)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    cache = write(tmp_path / "a.h5", TEXTS, [cloud(k) for k in range(3)])
    other = write(tmp_path / "b.h5", [f"other {k}" for k in range(120)], [cloud(k) for k in range(3)])
    with pytest.raises(CacheError, match=r"'a.h5' and 'b.h5' share 0 texts; needed: 30 or more"):
        similarity_of_layers(cache, other)
    with pytest.raises(CacheError, match=r"20 latents of cache 'a.h5' would be drawn; needed: 30"):
        similarity_of_layers(cache, most_rows=20)
    with pytest.raises(UnknownNameError, match="unknown pooling 'last'"):
        similarity_of_layers(cache, pooling="last")
    texts = [words([f"w{k}", "x"]) for k in range(30)]
    write_word_cache(tmp_path / "words.h5", texts, [(k, 0, 2) for k in range(30)])
    with pytest.raises(ConfigError, match=r"'a.h5' and 'words.h5' hold latents of words and of whole texts"):
        similarity_of_layers(cache, tmp_path / "words.h5")
