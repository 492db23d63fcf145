"""Streaming: every sentence once an epoch, its own latents with its own labels, in bounded memory, read ahead."""

import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.errors import HeadError
from probes.latents.text_latents import Channels
from probes.latents.word_latents import (
    Chunk,
    InOrder,
    Shuffled,
    Streaming,
    WordBatch,
    WordLatents,
    WordReader,
    plan_chunks,
)
from tests.probes.heads.words.planted_words import CUT, LAYERS, PlantedCache, make_task, plant

SMALL = Streaming(chunk_words=40, buffer_mb=1)


@pytest.fixture(scope="module")
def cache() -> PlantedCache:
    return plant(make_task(), cut=(3, 4, 50))


@pytest.fixture
def data(cache: PlantedCache) -> WordLatents:
    return WordLatents(cache, make_task(), batch_size=7, streaming=SMALL)


def shuffled(data: WordLatents, *, buffer_words: int = 90, seed: int = 0, layers: tuple[str, ...] = LAYERS) -> Shuffled:
    reader = WordReader(data.cache, Channels(("mean",), layers))
    rows = data.split("train")
    return Shuffled(
        reader,
        plan_chunks(rows, chunk_words=40),
        rows.positions,
        labels=data.gold("train").ids,
        batch_size=7,
        buffer_words=buffer_words,
        seed=seed,
    )


def epoch(loader: Shuffled | InOrder) -> list[WordBatch]:
    """Keep the batches of an epoch, whose memory is used again."""
    return [WordBatch(batch.latents.clone(), batch.words, batch.labels) for batch in loader]


def sentences_of(data: WordLatents, batch: WordBatch) -> list[int]:
    found = np.searchsorted(data.split("train").offsets, batch.words.numpy(), side="right") - 1
    return list(dict.fromkeys(found.tolist()))


def words_in_order(batches: list[WordBatch]) -> list[int]:
    return torch.cat([batch.words for batch in batches]).tolist()


@pytest.mark.parametrize("buffer_words", [40, 90, 10_000])
def test_every_sentence_comes_exactly_once_an_epoch(data: WordLatents, buffer_words: int) -> None:
    rows = data.split("train")
    loader = shuffled(data, buffer_words=buffer_words)
    for _ in range(2):
        batches = epoch(loader)
        counts = Counter(k for batch in batches for k in sentences_of(data, batch))
        assert counts == Counter(range(len(rows.offsets) - 1))
        assert sorted(words_in_order(batches)) == np.flatnonzero(rows.has_latent).tolist()
        assert [len(sentences_of(data, batch)) for batch in batches] == [7] * 17 + [1]
        assert len(batches) == len(loader)


def test_latents_and_labels_are_those_of_the_words(data: WordLatents) -> None:
    rows, gold = data.split("train"), data.gold("train")
    for batch in epoch(shuffled(data)):
        assert batch.labels is not None
        assert torch.equal(batch.labels, torch.from_numpy(gold.ids)[batch.words])
        places = rows.positions[batch.words.numpy()]
        assert torch.equal(batch.latents, torch.stack([data.cache.layer(name, "mean")[places] for name in LAYERS]))
        assert batch.latents.isfinite().all()  # those of cut words are not


def test_epochs_differ_and_seeds_repeat(data: WordLatents) -> None:
    loader, again, other = shuffled(data), shuffled(data), shuffled(data, seed=1)
    first, second = words_in_order(epoch(loader)), words_in_order(epoch(loader))
    assert first != second
    assert first == words_in_order(epoch(again))
    assert second == words_in_order(epoch(again))
    assert first != words_in_order(epoch(other))


def test_the_order_hangs_on_no_choice_of_layers(cache: PlantedCache) -> None:
    whole, one = (WordLatents(cache, make_task(), layers=layers, streaming=SMALL) for layers in ("all", "block_02"))
    assert SMALL.buffer_words(cache) < 10_000
    assert words_in_order(epoch(whole.train_dataloader())) == words_in_order(epoch(one.train_dataloader()))


def test_far_sentences_meet_in_a_batch(data: WordLatents) -> None:
    near, far = (
        np.mean([np.ptp(sentences_of(data, batch)) for batch in epoch(shuffled(data, buffer_words=n))][:-1])
        for n in (40, 200)
    )
    assert far > near > 0


def test_what_is_held_does_not_grow_with_the_split() -> None:
    peaks = []
    for n in (60, 600):
        task = make_task(sizes={"train": n, "validation": 10})
        data = WordLatents(plant(task), task)
        held: list[int] = []

        class Counting(WordReader):
            def empty(self, n_words: int, held: list[int] = held) -> Tensor:
                held.append(n_words)
                return super().empty(n_words)

        rows = data.split("train")
        loader = Shuffled(
            Counting(data.cache, data.channels),
            plan_chunks(rows, chunk_words=40),
            rows.positions,
            labels=data.gold("train").ids,
            batch_size=7,
            buffer_words=90,
            seed=0,
        )
        for _ in range(3):
            assert len(epoch(loader)) == -(-n // 7)
        peaks.append(sum(held))
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 2 * 90 + 300  # both halves of the buffer, and the batch with the smaller ones it outgrew


def test_an_epoch_left_early_leaves_nothing_behind(data: WordLatents) -> None:
    loader = shuffled(data)
    next(iter(loader))
    counts = Counter(k for batch in epoch(loader) for k in sentences_of(data, batch))
    assert counts == Counter(range(len(data.split("train").offsets) - 1))


def test_in_order_gives_every_word_once(data: WordLatents) -> None:
    rows = data.split("train")
    batches = epoch(data.loader("train"))
    assert sorted(words_in_order(batches)) == np.flatnonzero(rows.has_latent).tolist()
    assert len(batches) == len(data.loader("train")) > 1
    for batch in batches:
        assert batch.labels is None
        places = rows.positions[batch.words.numpy()]
        assert torch.equal(batch.latents, torch.stack([data.cache.layer(name, "mean")[places] for name in LAYERS]))


def test_latents_are_prepared_once_and_the_cache_is_left_alone(data: WordLatents) -> None:
    def halve(latents: Tensor) -> None:
        latents.mul_(0.5)

    before = data.cache.layer("block_01", "mean").clone()
    plain = {int(w): x for b in epoch(data.loader("validation")) for w, x in zip(b.words, b.latents[1], strict=True)}
    for batch in epoch(data.loader("validation", prepare=halve)):
        for word, latent in zip(batch.words.tolist(), batch.latents[1], strict=True):
            assert torch.equal(latent, 0.5 * plain[word])
    assert torch.equal(data.cache.layer("block_01", "mean").nan_to_num(), before.nan_to_num())


def test_one_channel_reads_one_layer(data: WordLatents, cache: PlantedCache) -> None:
    cache.reads.clear()
    batches = epoch(data.loader("validation", channel=2))
    assert {batch.latents.shape[0] for batch in batches} == {1}
    assert {names for _, _, _, names in cache.reads} == {("block_02",)}
    both = WordLatents(cache, make_task(), pooling="mean+last", layers=["block_01", "block_02"])
    assert both.layers == ("mean/block_01", "mean/block_02", "last/block_01", "last/block_02")
    cache.reads.clear()
    epoch(both.loader("validation", channel=3))
    assert {(pooling, names) for _, _, pooling, names in cache.reads} == {("last", ("block_02",))}
    (first, *_) = epoch(both.loader("validation"))
    places = both.split("validation").positions[first.words]
    assert torch.equal(first.latents[3], cache.layer("block_02", "last")[places])


def threads() -> int:
    return sum(thread.name.startswith("icecore-reader") for thread in threading.enumerate())


def test_the_next_chunk_is_read_while_one_is_used_and_the_thread_ends(data: WordLatents, cache: PlantedCache) -> None:
    loader = data.loader("train")
    cache.reads.clear()
    batches: Iterator[WordBatch] = iter(loader)
    next(batches)
    assert threads() == 1
    batches.close()  # type: ignore[attr-defined]
    assert threads() == 0
    assert len(cache.reads) == 2  # the chunk that was used, and the one after it
    assert threading.active_count() < 10


def test_an_error_of_the_thread_surfaces(data: WordLatents) -> None:
    def fail(_: Tensor) -> None:
        raise ValueError("worn out")

    with pytest.raises(ValueError, match="worn out"):
        epoch(data.loader("train", prepare=fail))
    assert threads() == 0


def test_a_split_without_latents_gives_no_batch(cache: PlantedCache) -> None:
    reader = WordReader(cache, Channels(("mean",), LAYERS))
    no_chunks: list[Chunk] = []
    nothing = np.zeros(0, dtype=np.int64)
    assert epoch(InOrder(reader, no_chunks, nothing)) == []
    assert epoch(Shuffled(reader, no_chunks, nothing, labels=nothing, batch_size=2, buffer_words=9, seed=0)) == []


@pytest.mark.parametrize("field", ["chunk_words", "buffer_mb"])
def test_sizes_below_one_are_refused(field: str) -> None:
    with pytest.raises(HeadError, match=f"{field} is 0; allowed: a whole number of at least 1"):
        Streaming(**{field: 0})


def test_cut_marks_are_those_of_the_cache() -> None:
    from extract.inputs.joined_text import WORD_CUT

    assert CUT == WORD_CUT
