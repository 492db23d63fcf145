"""Single texts: divided once by the seed, standardised by those that are trained on, read a batch at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch

from extract.errors import HeadError, UnknownNameError
from extract.store.cache import LatentCache
from probes.latents.text_latents import TextLatents
from tests.probes.corpus_latents import N_TEXTS, write_corpus
from tests.probes.planted_latents import LAYERS, WIDTH


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """A corpus of 120 texts; read-only."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c.h5")


@pytest.mark.parametrize(("held_out", "expected"), [(0.05, 6), (0.25, 30), (0.001, 1), (0.98, 118)])
def test_every_text_is_trained_on_or_held_out(corpus: LatentCache, held_out: float, expected: int) -> None:
    data = TextLatents(corpus, batch_size=2, held_out=held_out)
    train, other = data.train_rows.rows.tolist(), data.held_out_rows.rows.tolist()
    assert (len(data.train_rows), len(data.held_out_rows)) == (N_TEXTS - expected, expected)
    assert sorted(train + other) == list(range(N_TEXTS))


def test_the_seed_alone_divides(corpus: LatentCache) -> None:
    found = []
    for seed, noise in ((1, 0), (1, 5), (2, 0)):
        torch.manual_seed(noise)
        data = TextLatents(corpus, seed=seed)
        found.append((data.held_out_rows.rows.tolist(), torch.cat(list(data.train_dataloader()), 1).tolist()))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]
    assert found[0][1] != found[2][1]


def test_a_batch_holds_the_latents_of_its_texts(corpus: LatentCache) -> None:
    data = TextLatents(corpus, pooling="last+mean", layers=["block_02", "embedding"], batch_size=50)
    assert data.channels.names == ("last/embedding", "last/block_02", "mean/embedding", "mean/block_02")
    rows = data.held_out_rows.rows
    [held_out] = data.val_dataloader()
    for channel, (pooling, layer) in enumerate(
        [("last", "embedding"), ("last", "block_02"), ("mean", "embedding"), ("mean", "block_02")]
    ):
        assert torch.equal(held_out[channel], corpus.layer(layer, pooling)[rows])
    assert torch.equal(data.held_out_rows[3], held_out[:, 3:4])
    batches = list(data.train_dataloader())
    assert [tuple(batch.shape) for batch in batches] == [(4, 50, WIDTH)] * 2  # 114 texts: a smaller last one is dropped
    seen = {tuple(row) for batch in batches for row in batch[0].tolist()}
    assert len(seen) == 100
    assert seen <= {tuple(row) for row in corpus.layer("embedding", "last")[data.train_rows.rows].tolist()}


def test_epochs_hold_different_orders(corpus: LatentCache) -> None:
    loader = TextLatents(corpus, batch_size=114).train_dataloader()
    [one], [two] = list(loader), list(loader)
    assert not torch.equal(one, two)
    assert torch.equal(one.sort(dim=1).values, two.sort(dim=1).values)


def test_standardisation_sees_training_texts_only(corpus: LatentCache) -> None:
    data = TextLatents(corpus, batch_size=60, held_out=0.5)
    found = data.standardiser()
    for k, layer in enumerate(LAYERS):
        train = corpus.layer(layer, "mean").double().numpy()[data.train_rows.rows.numpy()]
        np.testing.assert_allclose(found.mean[k].numpy(), train.mean(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.scale[k].numpy(), train.std(0, ddof=1), rtol=1e-5)


def test_reading_draws_nothing_from_the_global_generator(corpus: LatentCache) -> None:
    before = torch.get_rng_state()
    data = TextLatents(corpus)
    list(data.train_dataloader())
    list(data.val_dataloader())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("held_out", [0.0, 1.0, -0.1, 1.5, 0.9999])
def test_a_share_that_leaves_nothing_is_refused(corpus: LatentCache, held_out: float) -> None:
    with pytest.raises(HeadError, match=rf"held_out is {held_out} of 120 texts; allowed: a share between 0 and 1"):
        TextLatents(corpus, held_out=held_out)


@pytest.mark.parametrize("batch_size", [0, 115])
def test_a_batch_that_does_not_fit_is_refused(corpus: LatentCache, batch_size: int) -> None:
    with pytest.raises(HeadError, match=rf"batch_size is {batch_size}; allowed: 1 to 114, the texts that are trained"):
        TextLatents(corpus, batch_size=batch_size)


def test_unknown_poolings_and_layers_are_named(corpus: LatentCache, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown pooling 'lsat': did you mean 'last'\?"):
        TextLatents(corpus, pooling="mean+lsat")
    with pytest.raises(UnknownNameError, match=r"unknown layer 'block_9'"):
        TextLatents(corpus, layers="block_9")
    tiny = write_corpus(tmp_path / "tiny.h5", n_texts=2)
    with pytest.raises(HeadError, match=r"held_out is 0\.05 of 2 texts"):
        TextLatents(tiny, batch_size=1)


def test_a_cache_of_words_is_refused(corpus: LatentCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LatentCache, "is_words", True)
    with pytest.raises(HeadError, match=r"cache '.*\.h5' holds latents of words; allowed: one of whole texts"):
        TextLatents(corpus)
