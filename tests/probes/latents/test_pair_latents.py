"""The data module: every pair gets its own rows, in an order that the seed alone decides."""

import pickle
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from extract.errors import CacheError, HeadError, TaskError, UnknownNameError
from extract.inputs.joined_text import digest_texts
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask
from probes.latents.text_latents import PairBatch, PairLatents, PairRows, SimilarityRows, as_is
from tests.probes.planted_latents import LAYERS, SIZES, make_task, pair_data, plant


def joined(loader: DataLoader[PairBatch]) -> PairBatch:
    batches = list(loader)
    return PairBatch(
        torch.cat([batch.a for batch in batches], 1),
        torch.cat([batch.b for batch in batches], 1),
        torch.cat([batch.gold for batch in batches]),
    )


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("split", list(SIZES))
def test_every_pair_gets_its_own_rows_in_order(cache: LatentCache, task: PairTask, pooling: str, split: str) -> None:
    data = pair_data(cache, task, pooling=pooling)
    found = joined(data.loader(split))
    # The oracle goes the other way round: from the digests in the file to the text of each row.
    with h5py.File(cache.path) as file:
        stored = [row.tobytes() for row in file["/rows/digest"][:]]
    for side, column in ((found.a, "sentence1"), (found.b, "sentence2")):
        for i, text in enumerate(task.splits[split][column]):
            row = stored.index(digest_texts([text]).tobytes())
            for k, layer in enumerate(cache.layers):
                assert torch.equal(side[k, i], cache.layer(layer, pooling)[row])
    np.testing.assert_allclose(found.gold, np.asarray(task.splits[split]["score"]) / 5, rtol=1e-6)


def test_layers_are_those_asked_for(cache: LatentCache, task: PairTask) -> None:
    data = pair_data(cache, task, layers=["final_norm", "block_01"])
    assert data.layers == ("block_01", "final_norm")
    batch = next(iter(data.loader("test")))
    assert torch.equal(batch.a, next(iter(pair_data(cache, task).loader("test"))).a[[1, LAYERS.index("final_norm")]])


def test_the_seed_alone_decides_the_order(cache: LatentCache, task: PairTask) -> None:
    orders = []
    for seed, noise in ((1, 0), (1, 5), (2, 0)):
        torch.manual_seed(noise)
        data = pair_data(cache, task, seed=seed)
        orders.append(joined(data.train_dataloader()).gold.tolist())
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_epochs_differ_and_hold_the_same_pairs(data: PairLatents) -> None:
    loader = data.train_dataloader()
    one, two = joined(loader).gold.tolist(), joined(loader).gold.tolist()
    assert one != two
    assert Counter(one) == Counter(two) == Counter(data.split("train").gold.tolist())


def test_a_smaller_last_batch_is_dropped_in_training_only(cache: LatentCache, task: PairTask) -> None:
    data = pair_data(cache, task, batch_size=100)
    assert [len(batch.gold) for batch in data.train_dataloader()] == [100, 100]
    assert len(joined(data.val_dataloader()).gold) == SIZES["validation"]
    assert len(joined(data.loader("test")).gold) == SIZES["test"]


def test_reading_draws_nothing_from_the_global_generator(data: PairLatents) -> None:
    before = torch.get_rng_state()
    for loader in (data.train_dataloader(), data.val_dataloader(), data.loader("test"), data.loader("train")):
        joined(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_travel_to_another_process(data: PairLatents) -> None:
    rows = data.split("test")
    rows[3]  # opens the maps
    again: PairRows = pickle.loads(pickle.dumps(rows))
    assert torch.equal(again[3].a, rows[3].a)
    assert len(again) == SIZES["test"]


@pytest.mark.slow
def test_workers_read_the_same_rows(data: PairLatents) -> None:
    alone = joined(data.loader("test"))
    spread = DataLoader(
        data.split("test"), batch_size=7, collate_fn=as_is, num_workers=2, multiprocessing_context="spawn"
    )
    together = joined(spread)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_one_pair_is_a_batch_of_one(data: PairLatents) -> None:
    batch = data.split("validation")[5]
    assert batch.a.shape == (len(LAYERS), 1, data.cache.width)
    similar = SimilarityRows(torch.rand(4, 9), torch.rand(9))
    assert similar[2].similarities.shape == (4, 1)
    assert len(similar) == 9
    assert torch.equal(similar.__getitems__([8, 1]).gold, similar.gold[[8, 1]])


def test_an_unknown_pooling_is_named(cache: LatentCache, task: PairTask) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown pooling 'meen': did you mean 'mean'\?"):
        pair_data(cache, task, pooling="meen")


def test_an_unknown_layer_is_named(cache: LatentCache, task: PairTask) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown layer 'block_99': did you mean 'block_"):
        pair_data(cache, task, layers=["block_99"])


def test_an_unknown_split_is_named(data: PairLatents) -> None:
    with pytest.raises(TaskError, match="task 'planted' has no split 'dev'; it has: train, validation, test"):
        data.split("dev")


@pytest.mark.parametrize("batch_size", [0, SIZES["train"] + 1])
def test_a_batch_that_does_not_fit_is_refused(cache: LatentCache, task: PairTask, batch_size: int) -> None:
    with pytest.raises(HeadError, match=rf"batch_size is {batch_size}; allowed: 1 to {SIZES['train']}, the pairs"):
        pair_data(cache, task, batch_size=batch_size)


def test_a_text_that_the_cache_lacks_is_named(cache: LatentCache) -> None:
    bigger = make_task(sizes={**SIZES, "test": 90})
    with pytest.raises(CacheError, match="does not hold the text 'test 80 left'"):
        pair_data(cache, bigger)


def test_a_task_without_train_has_no_standardiser(tmp_path: Path) -> None:
    task = make_task(sizes={"test": 20})
    data = pair_data(plant(tmp_path / "c.h5", task), task)
    with pytest.raises(TaskError, match="has no split 'train'; it has: test"):
        data.standardiser()
