"""Pairs whose similarity is planted in one layer of synthetic latents: no decoder, no text that means anything."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extract.decoders.decoder_spec import layer_names
from extract.files import digest_rows
from extract.inputs.joined_text import digest_texts
from extract.store.cache import LatentCache
from extract.store.format import create_store
from extract.store.manifest import CacheIdentity, Manifest
from extract.store.writer import StoreWriter
from probes.data.pair_task import PairTask
from probes.latents.text_latents import PairLatents

N_BLOCKS, WIDTH = 3, 12
LAYERS = layer_names(N_BLOCKS)
PLANTED = "block_02"
SIZES = {"train": 240, "validation": 120, "test": 80}


def write_latents(path: Path, texts: Sequence[str], latents: Mapping[str, NDArray[np.float32]]) -> LatentCache:
    """Write a whole cache of given latents, pooling to `(L, N, D)`."""
    first = next(iter(latents.values()))
    decoder: dict[str, Any] = {
        "name": "planted",
        "revision": "",
        "adapter": "",
        "family": "none",
        "n_layers": first.shape[0] - 2,
        "width": first.shape[2],
        "dtype": "float32",
        "attention": "none",
        "weight_digest": "w" * 64,
        "tokenizer_digest": "t" * 64,
    }
    layers = tuple(layer_names(first.shape[0] - 2))
    identity = CacheIdentity(
        decoder=decoder,
        plan="causal",
        architecture="inplace",
        template={"bos": "auto", "instruction": "", "max_tokens": None, "on_long": "truncate", "window": 64},
        poolings=tuple(latents),
        layers=layers,
        storage_dtype="float32",
        n_rows=len(texts),
        text_digest=digest_rows(digest_texts(texts)),
        versions={"icecore": "0"},
    )
    create_store(path, Manifest(identity, {"decoder": decoder}))
    rows: dict[str, NDArray[Any]] = {
        "digest": digest_texts(texts),
        "n_tokens": np.ones(len(texts), np.int32),
        "is_truncated": np.zeros(len(texts), np.uint8),
    }
    writer = StoreWriter(path)
    stacked = np.stack(list(latents.values()), axis=1)
    writer.write_rows(0, stacked, rows=rows)
    drift = {"right": 0.0, "left": 0.0, "allowed": 1.0}
    writer.write_certificate(
        {"influence": {"n_layers": len(layers)}, "batch_invariance": drift, "frozen": {"is_bit_identical": True}}
    )
    writer.close()
    return LatentCache(path)


def make_task(
    *, seed: int = 0, sizes: Mapping[str, int] = SIZES, shuffled: Sequence[str] = (), offset: float = 0.0
) -> PairTask:
    """Make pairs of distinct texts with gold in [0, 5]; the gold of the `shuffled` splits says nothing."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for split, n in sizes.items():
        gold = rng.uniform(0, 5 - offset, n) + offset
        columns[split] = {
            "sentence1": [f"{split} {i} left" for i in range(n)],
            "sentence2": [f"{split} {i} right" for i in range(n)],
            "score": gold.tolist(),
        }
    for split in shuffled:
        columns[split]["score"] = np.random.default_rng(99).permutation(columns[split]["score"]).tolist()
    return PairTask("planted", PairTask.hold(columns), (0.0, 5.0), "made up")


def plant(path: Path, task: PairTask, *, seed: int = 1, planted: str = PLANTED) -> LatentCache:
    """Write latents whose cosine follows the gold at one layer, and noise elsewhere; `last` is a second pooling."""
    rng = np.random.default_rng(seed)
    texts = task.texts()
    spot = {text: i for i, text in enumerate(texts)}
    mean = rng.normal(size=(len(LAYERS), len(texts), WIDTH))
    k = LAYERS.index(planted)
    for split in task.splits:
        part = task.splits[split]
        for left, right, gold in zip(part["sentence1"], part["sentence2"], part["score"], strict=True):
            strength = gold / 5
            own = mean[k, spot[right]]
            mean[k, spot[right]] = strength * mean[k, spot[left]] + np.sqrt(1 - strength**2) * own
    last = rng.normal(size=mean.shape)
    return write_latents(path, texts, {"mean": mean.astype(np.float32), "last": last.astype(np.float32)})


def pair_data(cache: LatentCache, task: PairTask, **how: Any) -> PairLatents:
    """Read the pairs with a small batch."""
    return PairLatents(cache, task, **{"batch_size": 40, **how})
