"""The Lightning data module that streams word latents out of a cache."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import lightning
import numpy as np
from jaxtyping import Int

from extract.errors import CacheError, TaskError
from extract.store.cache import LatentCache
from extract.store.reader import WordPlaces
from probes.latents.channels import Channels, channels_of
from probes.latents.reading import Chunk, Prepare, Streaming, WordReader, plan_chunks
from probes.latents.standardise import Standardiser, standardise_chunks
from probes.latents.stream import InOrder, Shuffled
from probes.tasks.words.task import WordTask


@dataclass(frozen=True, eq=False)
class GoldTags:
    """The gold tags of one split as positions in `names`."""

    names: tuple[str, ...]
    """The tags: those of train first, which a head can predict, then those that only this split has."""
    ids: Int[np.ndarray, " W"]


class WordLatents(lightning.LightningDataModule):
    """Words of a task with their latents, streamed: memory does not grow with the cache.

    The tags of a split are looked at when they are asked for, so that nothing before that can know those of test.

    Args:
        cache: A word cache that holds every sentence of the task.
        task: The task.
        pooling: Which word pooling of the cache, or several joined by `+`; its first one when empty.
        layers: A selection of its layers.
        batch_size: Sentences per training batch; all of their words that have a latent are trained on together.
        seed: Seed of the order of training sentences.
        streaming: How much is read at once, and how much is mixed.

    Raises:
        CacheError: The cache holds no words, or not those of a sentence.
        UnknownNameError: A pooling or layer that the cache does not have.
        TaskError: The task has no training split, or no training word has a latent.
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
        streaming: Streaming = Streaming(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        if not cache.is_words:
            raise CacheError(
                f"cache {str(cache.path)!r} holds latents of whole texts, but task {task.name!r} asks for words; "
                "extract a cache of its sentences (icecore extract CONFIG)."
            )
        self.cache, self.task = cache, task
        self.batch_size, self.seed, self.streaming = batch_size, seed, streaming
        self.channels = channels_of(cache, pooling or cache.poolings[0], layers)
        self.layers = self.channels.names
        """Names of the channels, `L` of them; with one pooling these are its layers."""
        self.rows = {split: cache.words_of(task.joined(split)) for split in task.splits}
        self._planned: dict[str, list[Chunk]] = {}
        self.epoch_steps = 1
        """Fewest steps of an epoch of training: a small split is gone over several times."""
        self._training: weakref.ref[Shuffled] | None = None  # not held: it has its buffers
        self._n_begun = 0
        self.prepare: Prepare | None = None
        """What is done to the latents that Lightning's training loop reads; set by the head that is fitted."""
        if not self.split("train").has_latent.any():
            raise TaskError(f"no training word of task {task.name!r} has a latent, so there is nothing to train on.")

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The tags of the training split, `K` of them, in the order of the task; what a head can predict."""
        known = {tag for tags in self.task.splits["train"]["tags"] for tag in tags}
        found = tuple(tag for tag in self.task.labels if tag in known)
        if len(found) < 2:
            raise TaskError(
                f"every training word of task {self.task.name!r} has the tag {found[0]!r}, so there is nothing to "
                "learn: add sentences with other tags."
            )
        return found

    def split(self, name: str) -> WordPlaces:
        """Return the words of one split; a `TaskError` where the task has none of this name."""
        if name not in self.rows:
            raise TaskError(f"task {self.task.name!r} has no split {name!r}; it has: {', '.join(self.rows)}.")
        return self.rows[name]

    def gold(self, split: str) -> GoldTags:
        """Return the gold tags of one split; a `TaskError` where the task has none of this name."""
        self.split(split)
        tags = [tag for row in self.task.splits[split]["tags"] for tag in row]
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
        channels = self.channels
        if channel is not None:
            pooling, layer = divmod(channel, len(channels.layers))
            channels = Channels((channels.poolings[pooling],), (channels.layers[layer],))
        return InOrder(WordReader(self.cache, channels, prepare), self._chunks(split), self.split(split).positions)

    def train_dataloader(self) -> Shuffled:
        """Training sentences, shuffled by the seed."""
        loader = Shuffled(
            WordReader(self.cache, self.channels, self.prepare),
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

    def state_dict(self) -> dict[str, int]:
        """Return how many orders training sentences have had; Lightning keeps it with the state of a fit."""
        loader = self._training() if self._training else None
        return {"passes": loader.n_begun if loader else 0}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Let the next training loader go on from what `state_dict` gave."""
        self._n_begun = state_dict["passes"]

    def _chunks(self, split: str) -> list[Chunk]:
        if split not in self._planned:
            self._planned[split] = plan_chunks(self.split(split), chunk_words=self.streaming.chunk_words)
        return self._planned[split]
