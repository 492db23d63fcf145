"""Shards: time to open, random batches against plain positioned reads, and peak memory against the number of texts.

Run as `python -m benchmarks.shards`; its numbers go to results/cpu-shards.json.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine import describe_machine
from extract.decoders.decoder_spec import layer_names
from extract.files import digest_rows
from extract.inputs.joined_text import digest_texts
from extract.inputs.template import InputTemplate
from extract.run.extraction import Extraction
from extract.store.cache import ShardedCache, describe_shard
from extract.store.format import create_store
from extract.store.manifest import CacheIdentity, Manifest
from extract.store.reader import ShardIndex, shared_identity
from extract.store.writer import StoreWriter

WINDOW = 4096
N_LAYERS = 30
BATCH = 256
N_BATCHES = 20


def name_texts(n_texts: int) -> Iterator[str]:
    """Yield distinct short texts of mixed lengths, one at a time."""
    words = ("ice", "snow", "core", "sea", "the", "a", "deep", "old", "drill", "melts", "falls", "slowly", "in", "of")
    for i in range(n_texts):
        yield " ".join([*(words[(i * 7 + k) % len(words)] for k in range(2 + i % 6)), str(i)])


def write_shards(folder: Path, *, n_rows: int, width: int) -> None:
    """Write shards of random latents, without a decoder."""
    decoder = {
        "name": "random",
        "adapter": "",
        "family": "llama",
        "n_layers": N_LAYERS - 2,
        "width": width,
        "dtype": "float32",
        "revision": "",
        "attention": "sdpa",
        "weight_digest": "",
        "tokenizer_digest": "",
    }
    layers = tuple(layer_names(N_LAYERS - 2))
    shape = (N_LAYERS, 1, WINDOW, width)
    latents = np.random.default_rng(0).standard_normal(shape, np.float32)  # the same ones in every shard
    texts, index = name_texts(n_rows), None
    for number, first in enumerate(range(0, n_rows, WINDOW)):
        digests = digest_texts([next(texts) for _ in range(min(WINDOW, n_rows - first))])
        identity = CacheIdentity(
            decoder=decoder,
            plan="causal",
            architecture="inplace",
            template=InputTemplate().to_dict(),
            poolings=("mean",),
            layers=layers,
            storage_dtype="float32",
            n_rows=len(digests),
            text_digest=digest_rows(digests),
            versions={},
        )
        manifest = Manifest(identity, {"decoder": decoder})
        index = index or ShardIndex(shared_identity(identity), manifest.provenance, WINDOW)
        path = folder / f"shard-{number:06d}.h5"
        create_store(path, manifest)
        writer = StoreWriter(path)
        rows: dict[str, NDArray[Any]] = {
            "digest": digests,
            "n_tokens": np.ones(len(digests), np.int32),
            "is_truncated": np.zeros(len(digests), np.uint8),
        }
        writer.write_rows(0, latents[:, :, : len(digests)], rows=rows)
        writer.write_certificate({"frozen": {"is_bit_identical": True}})
        writer.close()
        index = index.with_shard(describe_shard(path, window=number))
    assert index is not None
    replace(index, is_complete=True).write(folder)


def drop_pages(folder: Path) -> None:
    """Ask the system to forget the pages of the shards, so that the disk is read."""
    for path in folder.glob("*.h5"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class PlainReads:
    """A batch as one positioned read a row and layer, of files that are open, all places worked out before."""

    def __init__(self, cache: ShardedCache, rows: NDArray[np.int64], files: Sequence[int]) -> None:
        index = cache.index
        starts = np.cumsum([0, *(shard.n_rows for shard in index.shards)])
        owners = np.searchsorted(starts, rows, side="right") - 1
        self.found = np.empty((N_LAYERS, len(rows), cache.width), np.float32)
        self.reads: list[tuple[int, list[memoryview], int]] = []
        for k, layer in enumerate(cache.layers):
            places = [index.shards[owner].layout[f"/latents/mean/{layer}"] for owner in owners]
            for b, (owner, row, place) in enumerate(zip(owners, rows - starts[owners], places, strict=True)):
                self.reads.append((files[owner], [self.found[k, b].data], place.offset + int(row) * place.row_bytes))

    def __call__(self) -> torch.Tensor:
        """Read."""
        for file, views, offset in self.reads:
            os.preadv(file, views, offset)
        return torch.from_numpy(self.found)


def measure_reading(folder: Path, *, is_cold: bool) -> dict[str, Any]:
    """Time opening, and random batches in turn with plain reads of other random batches of the same size."""
    opened = []
    for _ in range(5):
        began = time.perf_counter()
        cache = ShardedCache(folder)
        opened.append(time.perf_counter() - began)
    chance = np.random.default_rng(1)
    files = [os.open(folder / shard.file, os.O_RDONLY) for shard in cache.index.shards]
    seconds: dict[str, list[float]] = {"gather": [], "plain": []}
    for k in range(2 * N_BATCHES):
        rows = chance.integers(0, len(cache), BATCH)
        side = ("gather", "plain")[k % 2]
        plain = PlainReads(cache, rows, files)
        if is_cold:
            drop_pages(folder)
        elif k < 2:
            cache.gather(rows, "mean")
        began = time.perf_counter()
        found = plain() if side == "plain" else cache.gather(rows, "mean")
        seconds[side].append(time.perf_counter() - began)
        assert k > 1 or torch.equal(found, cache.gather(rows, "mean"))
    for file in files:
        os.close(file)
    medians = {side: statistics.median(each) for side, each in seconds.items()}
    n_bytes = BATCH * N_LAYERS * cache.width * 4
    shares = [plain / own for own, plain in zip(seconds["gather"], seconds["plain"], strict=True)]
    began = time.perf_counter()
    cache.rows_of(list(name_texts(BATCH)))
    return {
        "pages": "dropped before each batch" if is_cold else "in memory",
        "open_seconds": statistics.median(opened),
        "open_seconds_first": opened[0],
        "first_lookup_seconds": time.perf_counter() - began,
        "gather_seconds": medians["gather"],
        "plain_seconds": medians["plain"],
        "share_of_plain": medians["plain"] / medians["gather"],
        "share_range": [min(shares), max(shares)],
        "gather_mb_per_second": n_bytes / medians["gather"] / 1e6,
    }


class Simulated(Extraction):
    """Writes zeros where a decoder would compute; reading, digests, planning, writing and listing are the real ones."""

    def run(self) -> None:
        """Fill the store."""
        manifest = self.writer.manifest
        shape = (
            len(self.manifest.layers),
            len(self.manifest.poolings),
            len(self.texts),
            manifest.width(self.manifest.layers[0]),
        )
        rows: dict[str, NDArray[Any]] = {
            "digest": digest_texts(self.texts),
            "n_tokens": np.ones(len(self.texts), np.int32),
            "is_truncated": np.zeros(len(self.texts), np.uint8),
        }
        zeros = np.zeros(shape, np.float16)
        self.writer.write_rows(0, zeros, rows=rows)
        self.writer.write_certificate({"frozen": {"is_bit_identical": True}})


def extract_tiny(n_texts: int, *, computes: bool) -> dict[str, Any]:
    """Extract so many texts with a decoder of one small block; return rows, seconds and peak memory."""
    from extract.run.extraction_spec import ExtractionSpec
    from extract.run.shards import extract_shards
    from tests.extract.tiny_decoders import make_decoder

    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    }
    decoder = make_decoder(**sizes)
    spec = ExtractionSpec(layers=("final_norm",), storage_dtype="float16", batch_tokens=16384)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with nullcontext() if computes else patch("extract.run.shards.Extraction", Simulated):
            cache = extract_shards(decoder, name_texts(n_texts), folder=folder, spec=spec)
        seconds = time.perf_counter() - began
        n_rows, n_shards = len(cache), cache.n_shards
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"computes": computes, "n_rows": n_rows, "n_shards": n_shards, "seconds": seconds, "peak_bytes": peak}


def measure_memory(sizes: Sequence[int], *, computes: bool) -> dict[str, Any]:
    """Extract different numbers of texts, each in a process of its own; growth is against the first."""
    found = []
    for n_texts in sizes:
        command = [sys.executable, "-m", "benchmarks.shards", "--tiny", str(n_texts), *["--simulate"] * (not computes)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        sys.stderr.write(f"{found[-1]}\n")
    return {"runs": found, "growth": [each["peak_bytes"] / found[0]["peak_bytes"] - 1 for each in found]}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the shards that are read")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--texts", type=int, nargs="*", default=[20_000, 100_000], help="texts that are extracted")
    parser.add_argument(
        "--simulated",
        type=int,
        nargs="*",
        default=[100_000, 1_000_000],
        help="texts that are extracted with zeros in place of what the decoder would compute",
    )
    parser.add_argument("--simulate", action="store_true", help="with --tiny: write zeros, compute nothing")
    parser.add_argument("--tiny", type=int, default=0, help="extract so many texts in this process, and print JSON")
    parser.add_argument("--folder", default=None, help="where shards are written; a temporary folder when absent")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cpu-shards.json")
    asked = parser.parse_args()
    if asked.tiny:
        print(json.dumps(extract_tiny(asked.tiny, computes=not asked.simulate)))
        return
    results: dict[str, Any] = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    if asked.rows:
        with tempfile.TemporaryDirectory(dir=asked.folder) as name:
            folder = Path(name)
            write_shards(folder, n_rows=asked.rows, width=asked.width)
            results["reading"] = {
                "n_rows": asked.rows,
                "n_layers": N_LAYERS,
                "width": asked.width,
                "batch": BATCH,
                "n_bytes": sum(path.stat().st_size for path in folder.iterdir()),
                "warm": measure_reading(folder, is_cold=False),
                "cold": measure_reading(folder, is_cold=True),
            }
    if asked.texts:
        results["memory"] = measure_memory(asked.texts, computes=True)
    if asked.simulated:
        results["memory_simulated"] = measure_memory(asked.simulated, computes=False)
    results |= describe_machine()
    asked.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: results.get(key) for key in ("reading", "memory", "memory_simulated")}, indent=1))


if __name__ == "__main__":
    main()
