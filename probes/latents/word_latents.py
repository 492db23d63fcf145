"""Streaming latents of words from a cache: chunks in a random order, mixed in a buffer of bounded size, read ahead.

Memory is reserved once and reused: new memory costs more than reading.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import CacheError, TaskError, require_counts
from extract.store.cache import LatentCache
from extract.store.items import WordPlaces
from probes.data.word_task import WordTask
from probes.latents.text_latents import Channels, Standardiser, channels_of, standardise_chunks

PIECE_WORDS = 256
"""A longer sentence is read in pieces of this many words, so that memory does not depend on it."""
GAP_WORDS = 64
"""Most words of other texts that are read along, where reading on is cheaper than seeking."""

Prepare = Callable[[Tensor], None]
"""Changes latents `(L, W, D)` in place, in the thread that reads them."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """A stretch of the cache, from `start` to before `stop`; a piece holds the positions of a sentence in the split."""

    start: int
    stop: int
    pieces: tuple[NDArray[np.int64], ...]

    def __len__(self) -> int:
        """Places that are read."""
        return self.stop - self.start


def plan_chunks(rows: WordPlaces, *, chunk_words: int) -> list[Chunk]:
    """Cut the words of a split into stretches of at most `chunk_words` places, in the order of the file.

    The chunks hold every word with a latent exactly once. Equal sentences are in one chunk, each a piece of its own.
    """
    chunks: list[Chunk] = []
    pieces: list[NDArray[np.int64]] = []
    start = stop = 0
    for piece in _pieces(rows, min(chunk_words, PIECE_WORDS)):
        first, end = int(rows.positions[piece[0]]), int(rows.positions[piece[-1]]) + 1
        if pieces and (end - start > chunk_words or first - stop > GAP_WORDS):
            chunks.append(Chunk(start, stop, tuple(pieces)))
            pieces = []
        if not pieces:
            start = stop = first
        pieces.append(piece)
        stop = max(stop, end)
    if pieces:
        chunks.append(Chunk(start, stop, tuple(pieces)))
    return chunks


def _pieces(rows: WordPlaces, most_words: int) -> list[NDArray[np.int64]]:
    """Return the words of every sentence, or of a part of it, by their place in the cache.

    A sentence is cut where its words do not follow each other in the cache, as at the seams of windows.
    """
    pieces, has_latent = [], rows.has_latent
    for begin, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True):
        seams = begin + 1 + np.flatnonzero(np.diff(rows.positions[begin:end]) != 1)
        for first, last in pairwise([begin, *seams, end]):
            parts = (np.arange(at, min(at + most_words, last)) for at in range(first, last, most_words))
            pieces += [words for part in parts if len(words := part[has_latent[part]])]
    return sorted(pieces, key=lambda piece: int(rows.positions[piece[0]]))


class WordBatch(NamedTuple):
    """Words by their positions in their split; labels are None where they are to be predicted.

    The batch is valid until the next one is drawn, which takes the same memory.
    """

    latents: Float[Tensor, "L W D"]
    words: Int[Tensor, " W"]
    labels: Int[Tensor, " W"] | None = None


@dataclass(frozen=True)
class Streaming:
    """How much is read at once, and how much is mixed."""

    chunk_words: int = 512
    """Words that are read at once; neighbours in the file."""
    buffer_mb: int = 1024
    """Memory in MB for mixing chunks: one half is trained on while the other is filled."""

    def __post_init__(self) -> None:
        require_counts(self, "chunk_words", "buffer_mb")

    def buffer_words(self, cache: LatentCache) -> int:
        """Return how many words are mixed; computed from all layers, so that no choice of them changes the order."""
        n_views = 1 if cache.identity.views is None else len(cache.poolings)
        word_bytes = 4 * n_views * sum(cache.width_of([layer]) for layer in cache.layers)
        return max(self.chunk_words, self.buffer_mb * 2**20 // (2 * word_bytes))


@dataclass(frozen=True, eq=False)
class WordReader:
    """Reads stretches of a word cache into memory that is reused."""

    cache: LatentCache
    channels: Channels
    prepare: Prepare | None = None
    """Changes the latents in place."""

    def empty(self, n_words: int) -> Float[Tensor, "L W D"]:
        """Reserve memory for latents of a number of words."""
        return torch.empty(len(self.channels.names), n_words, self.cache.width_of(self.channels.layers))

    def read(self, chunk: Chunk, out: Float[Tensor, "L W D"]) -> None:
        """Read a chunk of `W` places, and prepare it."""
        first = 0
        for pooling, layers in self.channels.reads():
            part = out[first : first + len(layers)]
            self.cache.read(chunk.start, chunk.stop, pooling, layers=layers, out=part)
            first += len(layers)
        if self.prepare is not None:
            self.prepare(out)


T = TypeVar("T")
R = TypeVar("R")


class InOrder:
    """Every word of a split with a latent once, in the order of the file; `places` are those in the cache."""

    def __init__(self, reader: WordReader, chunks: Sequence[Chunk], places: NDArray[np.int64]) -> None:
        self.reader, self.chunks, self.places = reader, chunks, places

    def __len__(self) -> int:
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
    """Every word of a split with a latent once a pass, in batches of sentences, each pass in another order.

    An epoch is one pass, or as many as give `epoch_steps` batches. Chunks are read in a random order until the buffer
    of `buffer_words` is full, and its sentences leave it in a random order; those that fill no batch wait for the next.
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

    def read_by(self, reader: WordReader) -> None:
        """Read the next epoch by another reader."""
        self.reader, self._memory, self._batch = reader, [], _Batch(reader)

    def __len__(self) -> int:
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
                next_ones = order[at : at + self.batch_size - len(batch.words)]
                batch.add(buffer, [sentences[k] for k in next_ones])
                at += len(next_ones)
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
    """A batch in the making, in separate memory."""

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
        batch = WordBatch(self.memory[:, : self.n_words], words, labels[words])
        self.clear()
        return batch

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
            result = ahead.pop().result()
            if k + 1 < len(tasks):  # the buffer used before is free again
                ahead.append(pool.submit(fill, buffers[(k + 1) % 2], tasks[k + 1]))
            yield buffers[k % 2], result


@dataclass(frozen=True, eq=False)
class GoldTags:
    """The gold tags of one split as positions in `names`."""

    names: tuple[str, ...]
    """The tags: those of train first, which a head can predict, then those that only this split has."""
    ids: Int[np.ndarray, " W"]


class WordLatents:
    """Words of a task with their latents, streamed: memory does not grow with the cache.

    The tags of a split are read only when they are asked for, so that those of test stay unseen until then. A training
    batch holds all words with a latent of `batch_size` sentences. A cache without a sentence of the task is refused.
    """

    def __init__(
        self,
        cache: LatentCache,
        task: WordTask,
        *,
        pooling: str = "",
        layers: str | Sequence[str] = "all",
        batch_size: int = 32,
        seed: int = 0,
        streaming: Streaming = Streaming(),
    ) -> None:
        if not cache.is_words:
            raise CacheError(
                f"cache {str(cache.path)!r} holds latents of whole texts, but task {task.name!r} asks for words; "
                "extract a cache of its sentences (icecore extract CONFIG)."
            )
        self.cache, self.task = cache, task
        self.batch_size, self.seed, self.streaming = batch_size, seed, streaming
        self.channels = channels_of(cache, pooling or cache.default_pooling, layers)
        self.layers = self.channels.names
        """Names of the channels, `L` of them; with one pooling these are its layers."""
        self.rows = {split: cache.words_of(task.joined(split)) for split in task.splits}
        self._planned: dict[str, list[Chunk]] = {}
        self.epoch_steps = 1
        """Fewest steps of an epoch of training: a small split is gone over several times."""
        self.reading = self.channels
        """The channels that are read: all of them, or those that are still trained."""
        self._training: weakref.ref[Shuffled] | None = None  # not held: it has its buffers
        self._n_begun = 0
        self.prepare: Prepare | None = None
        """Changes the latents that Lightning's training loop reads; set by the head that is fitted."""
        if not self.split("train").has_latent.any():
            raise TaskError(f"no training word of task {task.name!r} has a latent, so there is nothing to train on.")

    def without_test(self) -> "WordLatents":
        """Leave test out, so that a fit cannot read it; everything else is shared."""
        blind = copy(self)
        blind.task = self.task.without_test()
        blind.rows = {split: rows for split, rows in self.rows.items() if split in blind.task.splits}
        return blind

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The tags of the training split, `K` of them, in the order of the task; what a head can predict."""
        used = {tag for tags in self.task.splits["train"]["tags"][:] for tag in tags}
        classes = tuple(tag for tag in self.task.labels if tag in used)
        if len(classes) < 2:
            raise TaskError(
                f"every training word of task {self.task.name!r} has the tag {classes[0]!r}, so there is nothing to "
                "learn: add sentences with other tags."
            )
        return classes

    def split(self, name: str) -> WordPlaces:
        """Return the words of one split; a `TaskError` where the task has none of this name."""
        if name not in self.rows:
            raise TaskError(f"task {self.task.name!r} has no split {name!r}; it has: {', '.join(self.rows)}.")
        return self.rows[name]

    def gold(self, split: str) -> GoldTags:
        """Return the gold tags of one split; a `TaskError` where the task has none of this name."""
        self.split(split)
        tags = [tag for row in self.task.splits[split]["tags"][:] for tag in row]
        names = (*self.classes, *sorted(set(tags) - set(self.classes)))
        numbers = {name: number for number, name in enumerate(names)}
        return GoldTags(names, np.array([numbers[tag] for tag in tags], dtype=np.int64))

    @cached_property
    def standardiser(self) -> Standardiser:
        """Mean and scale over the training words, each place of the cache counted once."""
        return standardise_chunks(
            batch.latents[:, np.unique(self.split("train").positions[batch.words], return_index=True)[1]]
            for batch in self.loader("train")
        )

    def loader(self, split: str, *, channel: int | None = None, prepare: Prepare | None = None) -> InOrder:
        """Read the words of one split in the order of the file, without labels and without words that lack a latent.

        `channel` is the position of the one channel to read (all of them when None), `prepare` changes the latents.
        """
        channels = self.reading if channel is None else replace(self.channels, picks=(channel,))
        return InOrder(WordReader(self.cache, channels, prepare), self._chunks(split), self.split(split).positions)

    def train_dataloader(self) -> Shuffled:
        """Training sentences, shuffled by the seed."""
        loader = Shuffled(
            WordReader(self.cache, self.reading, self.prepare),
            self._chunks("train"),
            self.split("train").positions,
            labels=self.gold("train").ids,
            batch_size=self.batch_size,
            seed=self.seed,
            buffer_words=self.streaming.buffer_words(self.cache),
            epoch_steps=self.epoch_steps,
        )
        loader.n_begun, self._n_begun = self._n_begun, 0
        self._training = weakref.ref(loader)
        return loader

    def read_only(self, channels: Sequence[int], prepare: Prepare) -> None:
        """Read some of the channels from now on, by their positions in order, and prepare these for training."""
        self.reading, self.prepare = replace(self.channels, picks=tuple(channels)), prepare
        loader = self._training() if self._training else None
        if loader is not None:
            loader.read_by(WordReader(self.cache, self.reading, prepare))

    def state_dict(self) -> dict[str, int]:
        """Return how many orders training sentences have had; it is kept with the state of a fit."""
        loader = self._training() if self._training else None
        return {"passes": loader.n_begun if loader else 0}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Let the next training loader continue from a `state_dict`."""
        self._n_begun = state_dict["passes"]

    def _chunks(self, split: str) -> list[Chunk]:
        if split not in self._planned:
            self._planned[split] = plan_chunks(self.split(split), chunk_words=self.streaming.chunk_words)
        return self._planned[split]
