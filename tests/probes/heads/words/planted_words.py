"""Word latents made up in memory: tags planted in one layer, noise elsewhere; no decoder and no file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder_spec import Layers, layer_names, select_from
from extract.errors import CacheError, unknown_name
from extract.inputs.joined_text import JoinedText
from extract.store.cache import LatentCache
from extract.store.items import CachedWords, WordPlaces
from extract.store.manifest import CacheIdentity, Manifest, WordIdentity
from probes.data.word_task import WordTask

N_BLOCKS, WIDTH = 3, 12
LAYERS = layer_names(N_BLOCKS)
PLANTED = "block_02"
SIZES = {"train": 120, "validation": 40, "test": 30}
TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
CUT = 2


def make_manifest(poolings: Sequence[str], *, n_rows: int, n_words: int) -> Manifest:
    """Describe a word cache that no decoder has filled."""
    decoder: dict[str, Any] = {
        "name": "planted",
        "revision": "",
        "adapter": "",
        "family": "none",
        "n_layers": N_BLOCKS,
        "width": WIDTH,
        "dtype": "float32",
        "attention": "none",
        "weight_digest": "w" * 64,
        "tokenizer_digest": "t" * 64,
    }
    template = {"bos": "auto", "instruction": "", "max_tokens": None, "on_long": "truncate", "window": 64}
    words = WordIdentity(tuple(poolings), shift=False, on_lost="error", n_words=n_words)
    identity = CacheIdentity(
        decoder=decoder,
        plan="causal",
        architecture="inplace",
        template=template,
        poolings=(),
        layers=tuple(LAYERS),
        storage_dtype="float32",
        n_rows=n_rows,
        text_digest="0" * 64,
        words=words,
        versions={"icecore": "0"},
    )
    return Manifest(identity, {"decoder": decoder})


class PlantedWords(CachedWords):
    """Words in memory."""

    def __init__(self, flags: NDArray[np.uint8]) -> None:
        self._flags = flags

    def __len__(self) -> int:
        """Number of words."""
        return len(self.flags)


class PlantedCache(LatentCache):
    """A word cache in memory that remembers what was read of it."""

    def __init__(
        self, texts: Sequence[JoinedText], latents: Mapping[str, Float[Tensor, "L W D"]], flags: NDArray[np.uint8]
    ) -> None:
        self.path = Path("planted.h5")
        self.latents, self.flags = dict(latents), flags
        self.items = PlantedWords(flags)
        self.manifest = make_manifest(list(self.latents), n_rows=len(texts), n_words=len(flags))
        starts = np.cumsum([0, *(len(text.spans) for text in texts)])
        self.spots = {text: (int(starts[k]), int(starts[k + 1])) for k, text in enumerate(texts)}
        self.reads: list[tuple[int, int, str, tuple[str, ...]]] = []

    def layer(self, layer: str | SupportsIndex, pooling: str) -> Tensor:
        if layer not in LAYERS:
            raise unknown_name("layer", layer, LAYERS)
        if pooling not in self.latents:
            raise unknown_name("pooling", pooling, self.latents)
        return self.latents[pooling][LAYERS.index(layer)]

    def _gather(self, positions: NDArray[np.int64], layers: Sequence[str], pooling: str) -> Tensor:
        return torch.stack([self.layer(layer, pooling)[positions] for layer in layers]).float()

    def words_of(self, texts: Sequence[JoinedText]) -> WordPlaces:
        missing = [text for text in texts if text not in self.spots]
        if missing:
            raise CacheError(f"cache 'planted.h5' does not hold the text {missing[0].text!r}.")
        positions = np.concatenate([np.arange(*self.spots[text]) for text in texts])
        offsets = np.cumsum([0, *(len(text.spans) for text in texts)])
        return WordPlaces(positions, offsets, self.flags[positions])

    def read(
        self,
        start: int,
        stop: int,
        pooling: str,
        *,
        layers: Layers = "all",
        out: Tensor | None = None,
    ) -> Tensor:
        names = select_from(layers, LAYERS)
        self.reads.append((start, stop, pooling, names))
        found = self.latents[pooling][[LAYERS.index(name) for name in names], start:stop].float()
        return found.clone() if out is None else out.copy_(found)

    def word_report(self) -> dict[str, int]:
        n_cut = int((self.flags & CUT > 0).sum())
        return {"n_words": len(self.flags), "n_shared": 0, "n_cut": n_cut, "n_lost": 0, "n_windows": 0}


def make_task(
    *,
    seed: int = 0,
    sizes: Mapping[str, int] = SIZES,
    shuffled: Sequence[str] = (),
    metric: Any = "span-f1",
    n_documents: int = 0,
) -> WordTask:
    """Make sentences of distinct words with random legal tags; the tags of the `shuffled` splits say nothing."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for split, n in sizes.items():
        words, tags = [], []
        for i in range(n):
            length = int(rng.integers(1, 9))
            row = ["O"]
            for _ in range(length):
                kind = row[-1][2:]
                row.append(str(rng.choice(["O", "B-LOC", "B-PER", *([f"I-{kind}"] if kind else [])])))
            tags.append(row[1:])
            words.append([f"{split}{i}.{k}" for k in range(length)])
        if split in shuffled:
            flat = iter(np.random.default_rng(99).permutation([tag for row in tags for tag in row]).tolist())
            tags = [[next(flat) for _ in row] for row in tags]
            if metric == "span-f1":
                tags = [_legal(row) for row in tags]
        columns[split] = {
            "words": words,
            "tags": tags,
            "document": [str(i % n_documents) if n_documents else "" for i in range(n)],
            "space_after": [[True] * len(row) for row in words],
        }
    return WordTask("planted", WordTask.hold(columns), metric, "made up")


def _legal(tags: Sequence[str]) -> list[str]:
    from probes.metrics.prediction_metrics import convert_tags

    return convert_tags(tags)


def plant(
    task: WordTask,
    *,
    truth: WordTask | None = None,
    noise: float = 0.3,
    planted: str = PLANTED,
    cut: Sequence[int] = (),
    offset: float = 0.0,
) -> PlantedCache:
    """Make latents that follow the tags of `truth` (of the task itself when absent) at one layer, with noise."""
    truth = truth or task
    rng = np.random.default_rng(1)
    texts = task.texts()
    directions = rng.normal(size=(len(TAGS), WIDTH))
    n_words = sum(len(text.spans) for text in texts)
    latents = rng.normal(size=(len(LAYERS), n_words, WIDTH))
    starts = dict(zip(texts, np.cumsum([0, *(len(text.spans) for text in texts)])[:-1].tolist(), strict=True))
    for split in task.splits:
        for text, tags in zip(task.joined(split), truth.splits[split]["tags"], strict=True):
            for k, tag in enumerate(tags):
                spot = starts[text] + k
                latents[LAYERS.index(planted), spot] = directions[TAGS.index(tag)] + noise * rng.normal(size=WIDTH)
    flags = np.zeros(n_words, np.uint8)
    flags[list(cut)] = CUT
    latents[:, list(cut)] = np.nan
    mean = torch.from_numpy(latents).float() * 3 + offset
    return PlantedCache(texts, {"mean": mean, "last": torch.randn(mean.shape, generator=torch.Generator())}, flags)
