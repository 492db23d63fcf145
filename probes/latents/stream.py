"""Streaming word latents out of a cache: chunks in a random order, mixed in a buffer of bounded size, read ahead.

Memory is reserved once and filled again and again: new memory costs more than reading.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probes.latents.reading import Chunk, WordBatch, WordReader

T = TypeVar("T")
R = TypeVar("R")


class InOrder:
    """Every word of a split with a latent once, in the order of the file, a chunk a batch.

    `places` holds the place in the cache of each word of the split.
    """

    def __init__(self, reader: WordReader, chunks: Sequence[Chunk], places: NDArray[np.int64]) -> None:
        self.reader, self.chunks, self.places = reader, chunks, places

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.chunks)

    def __iter__(self) -> Iterator[WordBatch]:
        """Read; the next chunk is read in a thread meanwhile, which ends with the iteration."""
        longest = max((len(chunk) for chunk in self.chunks), default=0)

        def load(buffer: Tensor, chunk: Chunk) -> Chunk:
            self.reader.read(chunk, buffer[:, : len(chunk)])
            return chunk

        memory = [self.reader.empty(longest) for _ in self.chunks[:2]]
        for buffer, chunk in _filled(self.chunks, load, memory):
            words = np.concatenate(chunk.pieces)
            spots = torch.from_numpy(self.places[words] - chunk.start)
            latents = buffer[:, : len(chunk)]
            if not torch.equal(spots, torch.arange(len(chunk))):  # words of other texts between, or a sentence twice
                latents = latents[:, spots]
            yield WordBatch(latents, torch.from_numpy(words))


class Shuffled:
    """Every word of a split with a latent once a pass, in batches of sentences, in an order of the pass's own.

    An epoch is one pass, or as many as it takes to give `epoch_steps` batches: two passes an epoch train as one does
    in twice as many epochs.

    Chunks are read in a random order until the buffer is full; its sentences leave it in a random order. Sentences that
    do not fill a batch wait for the next buffer.

    Args:
        reader: Reads the cache.
        chunks: From `plan_chunks`.
        places: Place in the cache of each word of the split.
        labels: Class of each word.
        batch_size: Sentences a batch; the last batch of a pass may have fewer.
        buffer_words: Words that are mixed.
        seed: Seed of the order; every pass has its own.
        epoch_steps: Fewest batches of an epoch.
    """

    def __init__(
        self,
        reader: WordReader,
        chunks: Sequence[Chunk],
        places: NDArray[np.int64],
        *,
        labels: NDArray[np.int64],
        batch_size: int,
        buffer_words: int,
        seed: int,
        epoch_steps: int = 1,
    ) -> None:
        self.reader, self.chunks, self.places = reader, chunks, places
        self.labels = torch.from_numpy(labels)
        self.batch_size, self.buffer_words, self.seed = batch_size, buffer_words, seed
        self.n_begun = 0  # passes
        self.n_batches = ceil(sum(len(chunk.pieces) for chunk in chunks) / batch_size)
        self.n_passes = ceil(epoch_steps / max(1, self.n_batches))
        self._memory: list[Tensor] = []
        self._batch = _Batch(reader)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self.n_passes * self.n_batches

    def __iter__(self) -> Iterator[WordBatch]:
        """Begin the next epoch; it is read in a thread meanwhile, which ends with the iteration."""
        for _ in range(self.n_passes):
            yield from self._pass()

    def _pass(self) -> Iterator[WordBatch]:
        rng = np.random.default_rng([self.seed, self.n_begun])
        self.n_begun += 1
        groups = self._groups(rng)
        capacity = min(self.buffer_words, sum(map(len, self.chunks)))
        batch = self._batch
        batch.clear()  # of a pass that was left early
        while len(self._memory) < min(2, len(groups)):
            self._memory.append(self.reader.empty(capacity))
        for buffer, sentences in _filled(groups, self._load, self._memory):
            order = rng.permutation(len(sentences))
            at = 0
            while at < len(order):
                taken = order[at : at + self.batch_size - len(batch.words)]
                batch.add(buffer, [sentences[k] for k in taken])
                at += len(taken)
                if len(batch.words) == self.batch_size:
                    yield batch.take(self.labels)
        if batch.words:
            yield batch.take(self.labels)

    def _groups(self, rng: np.random.Generator) -> list[list[Chunk]]:
        """Put chunks, in a random order, into groups that fill the buffer."""
        groups: list[list[Chunk]] = []
        n_words = self.buffer_words
        for k in rng.permutation(len(self.chunks)):
            chunk = self.chunks[k]
            if n_words + len(chunk) > self.buffer_words:
                groups.append([])
                n_words = 0
            groups[-1].append(chunk)
            n_words += len(chunk)
        return groups

    def _load(self, buffer: Tensor, group: Sequence[Chunk]) -> list["_Sentence"]:
        sentences = []
        at = 0
        for chunk in group:
            self.reader.read(chunk, buffer[:, at : at + len(chunk)])
            sentences += [_Sentence(piece, self.places[piece] - chunk.start + at) for piece in chunk.pieces]
            at += len(chunk)
        return sentences


class _Sentence(NamedTuple):
    """Words of a sentence, by their position in the split, and where in a buffer their latents are."""

    words: NDArray[np.int64]
    spots: NDArray[np.int64]


class _Batch:
    """A batch that is being put together, in memory of its own."""

    def __init__(self, reader: WordReader) -> None:
        self.reader, self.memory = reader, reader.empty(0)
        self.words: list[NDArray[np.int64]] = []
        """Words of each sentence."""
        self.n_words = 0

    def add(self, buffer: Tensor, sentences: Sequence[_Sentence]) -> None:
        """Copy sentences out of a buffer."""
        spots = torch.from_numpy(np.concatenate([sentence.spots for sentence in sentences]))
        end = self.n_words + len(spots)
        if end > self.memory.shape[1]:
            wider = self.reader.empty(end + end // 2)
            wider[:, : self.n_words] = self.memory[:, : self.n_words]
            self.memory = wider
        for slot, latents in zip(self.memory[:, self.n_words : end], buffer, strict=True):
            torch.index_select(latents, 0, spots, out=slot)
        self.words += [sentence.words for sentence in sentences]
        self.n_words = end

    def take(self, labels: Tensor) -> WordBatch:
        """Return the batch and begin the next one in the same memory."""
        words = torch.from_numpy(np.concatenate(self.words))
        found = WordBatch(self.memory[:, : self.n_words], words, labels[words])
        self.clear()
        return found

    def clear(self) -> None:
        """Begin the next batch."""
        self.words, self.n_words = [], 0


def _filled(
    tasks: Sequence[T], fill: Callable[[Tensor, T], R], buffers: Sequence[Tensor]
) -> Iterator[tuple[Tensor, R]]:
    """Fill one of two buffers (one is enough for one task) in a thread while the other is used."""
    with ThreadPoolExecutor(1, thread_name_prefix="icecore-reader") as pool:
        ahead = [pool.submit(fill, buffers[0], task) for task in tasks[:1]]
        for k in range(len(tasks)):
            found = ahead.pop().result()
            if k + 1 < len(tasks):  # the buffer used before is free again
                ahead.append(pool.submit(fill, buffers[(k + 1) % 2], tasks[k + 1]))
            yield buffers[k % 2], found
