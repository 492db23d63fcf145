"""Channels: the layers of one pooling or of several, in one order everywhere."""

import pytest
import torch

from extract.errors import HeadError, UnknownNameError
from extract.poolings.pooling_table import split_poolings
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask
from probes.latents.text_latents import Channels, PairLatents, channels_of, fit_standardiser
from probes.networks.pair_networks import CosineMLP
from tests.probes.planted_latents import LAYERS, SIZES, WIDTH, pair_data

L = len(LAYERS)
BOTH = tuple(f"{pooling}/{layer}" for pooling in ("mean", "last") for layer in LAYERS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mean", ("mean",)),
        ("mean+last", ("mean", "last")),
        (" last + mean ", ("last", "mean")),
        ("a+b+c", ("a", "b", "c")),
    ],
)
def test_poolings_are_joined_by_a_plus(text: str, expected: tuple[str, ...]) -> None:
    assert split_poolings(text) == expected
    assert split_poolings(Channels(expected, LAYERS).pooling) == expected


@pytest.mark.parametrize("text", ["", "+", "mean+", "+last", "mean++last", "mean+mean", "mean + mean", " "])
def test_an_empty_or_repeated_pooling_is_refused(text: str) -> None:
    with pytest.raises(HeadError) as caught:
        split_poolings(text)
    assert str(caught.value).startswith(f"pooling is {text!r}; allowed: names, each once, joined by '+'")


def test_one_pooling_gives_its_layers_plain_names(cache: LatentCache) -> None:
    found = channels_of(cache, "last")
    assert found == Channels(("last",), LAYERS)
    assert found.names == LAYERS
    assert torch.equal(found.gather(cache, torch.tensor([3, 0])), cache.gather([3, 0], "last"))


def test_two_poolings_give_twice_the_layers_in_order(cache: LatentCache) -> None:
    found = channels_of(cache, "mean+last")
    assert found.names == BOTH
    rows = torch.tensor([5, 2, 5])
    latents = found.gather(cache, rows)
    assert latents.shape == (2 * L, 3, WIDTH)
    for k, name in enumerate(found.names):
        pooling, layer = name.split("/")
        assert torch.equal(latents[k], cache.layer(layer, pooling)[rows])
    turned = channels_of(cache, "last+mean").gather(cache, rows)
    assert torch.equal(turned, latents[[*range(L, 2 * L), *range(L)]])


def test_every_pooling_gives_the_layers_that_were_chosen(cache: LatentCache) -> None:
    found = channels_of(cache, "mean+last", ["final_norm", "block_01"])
    assert found.names == ("mean/block_01", "mean/final_norm", "last/block_01", "last/final_norm")
    assert found.layers == ("block_01", "final_norm")


@pytest.mark.parametrize(
    ("pooling", "layers", "sentence"),
    [
        ("mean+lsat", "all", r"unknown pooling 'lsat': did you mean 'last'\?"),
        ("meen", "all", r"unknown pooling 'meen': did you mean 'mean'\?"),
        ("mean+last", "blok_01", r"unknown layer 'blok_01': did you mean 'block_01'\?"),
    ],
)
def test_names_that_the_cache_lacks_are_told(cache: LatentCache, pooling: str, layers: str, sentence: str) -> None:
    with pytest.raises(UnknownNameError, match=sentence):
        channels_of(cache, pooling, layers)


def test_pairs_hold_both_poolings_of_both_texts(cache: LatentCache, task: PairTask) -> None:
    data = pair_data(cache, task, pooling="mean+last", layers=["block_02", "block_03"])
    assert data.layers == ("mean/block_02", "mean/block_03", "last/block_02", "last/block_03")
    assert data.pooling == "mean+last"
    [batch] = data.loader("test")
    for pooling, offset in (("mean", 0), ("last", 2)):
        [alone] = pair_data(cache, task, pooling=pooling, layers=["block_02", "block_03"]).loader("test")
        assert torch.equal(batch.a[offset : offset + 2], alone.a)
        assert torch.equal(batch.b[offset : offset + 2], alone.b)
        assert torch.equal(batch.gold, alone.gold)
    assert batch.a.shape == (4, SIZES["test"], WIDTH)


def test_each_channel_is_standardised_by_itself(cache: LatentCache, task: PairTask) -> None:
    both = pair_data(cache, task, pooling="mean+last").standardiser()
    apart = [pair_data(cache, task, pooling=pooling).standardiser() for pooling in ("mean", "last")]
    assert torch.equal(both.mean, torch.cat([each.mean for each in apart]))
    assert torch.equal(both.scale, torch.cat([each.scale for each in apart]))
    rows = torch.arange(10)
    found = fit_standardiser(cache, rows, channels=Channels(("last",), ("block_02",)))
    torch.testing.assert_close(found.mean[0], cache.layer("block_02", "last")[:10].mean(0))


def test_a_head_over_both_is_one_of_twice_the_layers(cache: LatentCache, task: PairTask) -> None:
    data: PairLatents = pair_data(cache, task, pooling="mean+last")
    torch.manual_seed(0)
    head = CosineMLP(len(data.layers), WIDTH, hidden=4)
    head.prepare(data, data.standardiser())
    [batch] = data.loader("test")
    with torch.no_grad():
        found = head.similarities(batch.a, batch.b)
        assert found.shape == (2 * L, SIZES["test"])
        assert head(batch.a, batch.b).shape == (SIZES["test"],)
