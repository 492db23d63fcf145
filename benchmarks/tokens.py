"""Token classifiers of all layers at once against one after the other, and streaming a cache larger than memory.

    python -m benchmarks.tokens --gigabytes 10 --out FILE
    python -m benchmarks.tokens --config configs/ud-ewt-pos.yaml --out benchmarks/results/cpu-tokens-ud-ewt.json

The first measures the second part on a cache that is too large for `make bench`, the second the fit of a real task
beside the extraction that it reads.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine import describe_machine
from benchmarks.timing import Comparison, compare
from extract.decoders.decoder_spec import layer_names
from extract.files import digest_rows
from extract.inputs.joined_text import JoinedText, digest_texts
from extract.store.cache import LatentCache
from extract.store.format import create_store
from extract.store.manifest import CacheIdentity, Manifest, WordIdentity
from extract.store.writer import StoreWriter
from probes.cli.main import main as icecore
from probes.data.word_task import WordTask
from probes.heads.word_fits import TokenOptions, fit_token_head
from probes.latents.word_latents import WordLatents
from probes.networks.layerwise_networks import TokenClassifier
from probes.runs.folder import describe_program

POOLING = "mean"
SENTENCE_WORDS = 15
BLOCK_WORDS = 3000
"""Words that are written at once."""


@dataclass(frozen=True)
class Sizes:
    """How large a synthetic task is; as SmolLM2-135M on CoNLL-2003's named entities and parts of speech."""

    n_sentences: int = 2000
    n_layers: int = 32
    width: int = 576
    n_tags: int = 17
    storage_dtype: str = "float16"

    @property
    def n_bytes(self) -> int:
        """Bytes of all latents."""
        item = 4 if self.storage_dtype == "float32" else 2
        return self.n_sentences * SENTENCE_WORDS * self.n_layers * self.width * item


def compare_layers(
    folder: Path, sizes: Sizes, *, device: str = "cpu", repeats: int = 1, epochs: int = 1
) -> tuple[Comparison, dict[str, Any]]:
    """Fit a classifier on every layer at once, and on one layer after the other, with the same seed.

    Args:
        folder: Where the synthetic cache goes.
        sizes: Its sizes.
        device: Where classifiers are fitted.
        repeats: Timed pairs.
        epochs: Passes over the training sentences.

    Returns:
        The comparison, one by one / at once; and the largest difference between the weights of the two sides.

    Raises:
        RuntimeError: The two sides give different weights.
    """
    task = synthetic_task(sizes)
    cache = write_word_cache(folder / "layers.h5", task.texts(), sizes)
    options = TokenOptions(max_epochs=epochs, keep="last")
    ends: dict[str, torch.Tensor] = {}

    def fit(layers: str) -> torch.Tensor:
        data = WordLatents(cache, task, layers=layers, batch_size=options.batch_size)
        head = TokenClassifier(len(data.layers), sizes.width, len(data.classes), **options.head_arguments())
        fit_token_head(head, data, options, device=device)
        return head.weight.detach()

    def one_by_one() -> None:
        ends["one by one"] = torch.cat([fit(layer) for layer in cache.layers])

    def at_once() -> None:
        ends["at once"] = fit("all")

    name = f"{sizes.n_layers} layers, token classifiers: one by one vs at once"
    found = compare(name, (("one by one", one_by_one), ("at once", at_once)), bar=">= 2", repeats=repeats)
    drift = float((ends["one by one"] - ends["at once"]).abs().max())
    if drift > 1e-3:
        raise RuntimeError(f"the two sides train differently: weights are {drift:g} apart")
    return found, {"weight_drift": drift, "n_words": cache.n_words}


def time_streaming(folder: Path, sizes: Sizes, *, epochs: int = 1) -> dict[str, Any]:
    """Read, shuffle and train on a synthetic cache, and read its bytes plainly, for comparison.

    Args:
        folder: Where the cache goes; it needs `sizes.n_bytes`.
        sizes: Its sizes.
        epochs: Passes over the training sentences.

    Returns:
        Bytes, seconds and MB per second of reading plainly, of streaming alone and of training; and the largest
        resident size of the process in MB, before and after.
    """
    task = synthetic_task(sizes)
    cache = write_word_cache(folder / "stream.h5", task.texts(), sizes)
    before = _peak_mb()
    data = WordLatents(cache, task)
    options = TokenOptions(max_epochs=epochs, keep="last", is_standardised=False)
    head = TokenClassifier(len(data.layers), sizes.width, len(data.classes), **options.head_arguments())
    seconds = {}
    for label, side in (
        ("plain", lambda: _read_plainly(cache.path)),
        ("streaming", lambda: sum(len(batch.words) for batch in data.train_dataloader())),
        ("training", lambda: fit_token_head(head, data, options)),
    ):
        began = time.perf_counter()
        side()
        seconds[label] = (time.perf_counter() - began) / (epochs if label == "training" else 1)
    return {
        "bytes": sizes.n_bytes,
        "seconds": seconds,
        "mb_per_second": {label: sizes.n_bytes / 1e6 / value for label, value in seconds.items()},
        "peak_mb": {"before": before, "after": _peak_mb()},
    }


def time_task(config: str, folder: Path) -> dict[str, Any]:
    """Extract the words of a config's task, and fit its first head on every layer: seconds of each, and their ratio."""
    where = ["--caches", str(folder / "caches"), "--runs", str(folder / "runs"), "--name", "timed"]
    began = time.perf_counter()
    if icecore(["extract", config, *where[:2]]):
        raise SystemExit("the extraction failed")
    seconds = {"extraction": time.perf_counter() - began}
    if icecore(["run", config, *where]):
        raise SystemExit("the run failed")
    scores = json.loads((folder / "runs" / "timed" / "scores.json").read_text(encoding="utf-8"))
    name, result = next(iter(scores["heads"].items()))
    [fit] = result["seeds"]
    seconds["fit"] = fit["seconds"]
    task = {key: scores["task"][key] for key in ("name", "n_sentences", "n_words")}
    about = {"config": config, "head": name, "task": task, "n_layers": len(result["layers"])}
    return {**about, "seconds": seconds, "fit_over_extraction": seconds["fit"] / seconds["extraction"]}


def describe_streaming(found: dict[str, Any]) -> str:
    """Describe in one line how fast a cache was read, and with how much memory."""
    rates = ", ".join(f"{label} {rate:.0f} MB/s" for label, rate in found["mb_per_second"].items())
    return f"a word cache of {found['bytes'] / 1e9:.1f} GB: {rates}; peak memory {found['peak_mb']['after']:.0f} MB"


def synthetic_task(sizes: Sizes, *, seed: int = 0) -> WordTask:
    """Make sentences of numbered words with random tags: a training split, and a small validation split."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for split, n in (("train", sizes.n_sentences), ("validation", max(2, sizes.n_sentences // 20))):
        tags = rng.integers(0, sizes.n_tags, (n, SENTENCE_WORDS))
        tags[0, : min(sizes.n_tags, SENTENCE_WORDS)] = np.arange(min(sizes.n_tags, SENTENCE_WORDS))
        columns[split] = {
            "words": [[f"{split[0]}{i}w{k}" for k in range(SENTENCE_WORDS)] for i in range(n)],
            "tags": [[f"T{tag:02}" for tag in row] for row in tags],
            "document": [""] * n,
            "space_after": [[True] * SENTENCE_WORDS] * n,
        }
    return WordTask("synthetic", WordTask.hold(columns), "accuracy", "made up")


def write_word_cache(path: Path, texts: Sequence[JoinedText], sizes: Sizes, *, seed: int = 0) -> LatentCache:
    """Write a whole cache of random latents of words, a block at a time; each text has `SENTENCE_WORDS` of them."""
    layers = tuple(layer_names(sizes.n_layers - 2))
    decoder: dict[str, Any] = {
        "name": "synthetic",
        "revision": "",
        "adapter": "",
        "family": "none",
        "n_layers": sizes.n_layers - 2,
        "width": sizes.width,
        "dtype": "float32",
        "attention": "none",
        "weight_digest": "w" * 64,
        "tokenizer_digest": "t" * 64,
    }
    digests = digest_texts(texts)
    n_words = len(texts) * SENTENCE_WORDS
    identity = CacheIdentity(
        decoder=decoder,
        plan="causal",
        architecture="inplace",
        template={"bos": "auto", "instruction": "", "max_tokens": None, "on_long": "truncate", "window": 64},
        poolings=(),
        layers=layers,
        storage_dtype=sizes.storage_dtype,
        n_rows=len(texts),
        text_digest=digest_rows(digests),
        words=WordIdentity((POOLING,), shift=False, on_lost="error", n_words=n_words),
        versions={"icecore": "0"},
    )
    create_store(path, Manifest(identity, {"decoder": decoder}))
    writer = StoreWriter(path)
    rng = np.random.default_rng(seed)
    block = rng.standard_normal((len(layers), 1, BLOCK_WORDS, sizes.width), np.float32).astype(sizes.storage_dtype)
    rows_at_once = BLOCK_WORDS // SENTENCE_WORDS
    for first in range(0, len(texts), rows_at_once):
        n = min(rows_at_once, len(texts) - first)
        rows: dict[str, NDArray[Any]] = {
            "digest": digests[first : first + n],
            "n_tokens": np.full(n, SENTENCE_WORDS, np.int32),
            "is_truncated": np.zeros(n, np.uint8),
            "n_words": np.full(n, SENTENCE_WORDS, np.int32),
            "first_word": (first + np.arange(n)) * SENTENCE_WORDS,
            "word_start": np.zeros(n, np.int32),
        }
        words = (first * SENTENCE_WORDS, np.zeros(n * SENTENCE_WORDS, np.uint8))
        writer.write_rows(first, block[:, :, : n * SENTENCE_WORDS], rows=rows, words=words)
    drift = {"right": 0.0, "left": 0.0, "allowed": 1.0}
    frozen = {"is_bit_identical": True}
    writer.write_certificate({"influence": {"n_layers": len(layers)}, "batch_invariance": drift, "frozen": frozen})
    writer.close()
    return LatentCache(path)


def _read_plainly(path: Path) -> None:
    memory = bytearray(16 * 2**20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(memory):
            pass


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 2**20


def main() -> None:
    """Stream a cache of any size; not part of `make bench`, because it takes that much disk."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0, help="size of the synthetic cache")
    parser.add_argument("--config", help="of a task of words with one seed: time its fit beside its extraction")
    parser.add_argument("--folder", default=None, help="where it is written, and deleted at the end")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    asked = parser.parse_args()
    one = Sizes(n_sentences=1).n_bytes
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        if asked.config:
            result = {"machine": describe_machine(), **time_task(asked.config, Path(name))}
            line = f"fit / extraction: {result['fit_over_extraction']:.2f}"
        else:
            streamed = time_streaming(Path(name), Sizes(n_sentences=int(asked.gigabytes * 1e9 / one)))
            result = {"device": f"cpu, {torch.get_num_threads()} threads", **streamed, **describe_program()}
            line = describe_streaming(streamed)
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
