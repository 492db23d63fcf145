"""Peak memory of training token classifiers and layer-wise autoencoders on caches that are larger than it may be.

Run as `python -m benchmarks.big_caches --gigabytes 10`; its numbers go to results/cpu-big-caches.json.

Latents are random and written without a decoder, as float16, into one file or into shards; the folder is removed at the
end. Each fit is a process of its own. Its peak is `ru_maxrss`, which counts every page of a file that is mapped, too.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine import describe_machine
from benchmarks.shards import WINDOW, name_texts
from benchmarks.tokens import SENTENCE_WORDS, Sizes, synthetic_task, write_word_cache
from extract.decoders.decoder_spec import layer_names
from extract.files import digest_rows
from extract.inputs.joined_text import JoinedText, digest_texts
from extract.inputs.template import InputTemplate
from extract.store.cache import LatentCache, describe_shard, open_cache
from extract.store.format import create_store
from extract.store.manifest import CacheIdentity, Manifest
from extract.store.reader import ShardIndex, shard_file, shared_identity
from extract.store.writer import StoreWriter
from probes.fitting.fit import fit_layers
from probes.fitting.fit_options import FitOptions
from probes.fitting.loop import run_trainer
from probes.heads.word_fits import TokenOptions, fit_token_head
from probes.latents.text_latents import TextLatents
from probes.latents.word_latents import WordLatents
from probes.networks.layerwise_networks import LayerAutoencoder, TokenClassifier

OUT = Path(__file__).parent / "results" / "cpu-big-caches.json"
BLOCK_ROWS = 2048
WINDOW_SENTENCES = WINDOW // SENTENCE_WORDS
ALLOWED_BYTES = 4e9
STEPS = 200
"""Training steps of the default autoencoders, an epoch of which takes far longer than reading its latents."""
SMALL_CODES: dict[str, Any] = {"encoder": "linear", "bottleneck": 16}
"""Autoencoders that are small enough for a whole epoch."""
Write = Callable[[Path, Sequence[Any]], LatentCache]


def write_text_cache(path: Path, texts: Sequence[str], sizes: Sizes) -> LatentCache:
    """Write a whole cache of random latents of texts, a block at a time."""
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
    identity = CacheIdentity(
        decoder=decoder,
        plan="causal",
        architecture="inplace",
        template=InputTemplate().to_dict(),
        poolings=("mean",),
        layers=layers,
        storage_dtype=sizes.storage_dtype,
        n_rows=len(texts),
        text_digest=digest_rows(digests),
        versions={"icecore": "0"},
    )
    create_store(path, Manifest(identity, {"decoder": decoder}))
    writer = StoreWriter(path)
    shape = (len(layers), 1, BLOCK_ROWS, sizes.width)
    block = np.random.default_rng(0).standard_normal(shape, np.float32).astype(sizes.storage_dtype)
    for first in range(0, len(texts), BLOCK_ROWS):
        some = digests[first : first + BLOCK_ROWS]
        rows: dict[str, NDArray[Any]] = {
            "digest": some,
            "n_tokens": np.ones(len(some), np.int32),
            "is_truncated": np.zeros(len(some), np.uint8),
        }
        writer.write_rows(first, block[:, :, : len(some)], rows=rows)
    writer.write_certificate({"frozen": {"is_bit_identical": True}})
    writer.close()
    return LatentCache(path)


def write_in_shards(folder: Path, texts: Sequence[Any], write: Write, *, window: int) -> None:
    """Write shards of `window` texts each, and their index."""
    folder.mkdir()
    index = None
    for number, first in enumerate(range(0, len(texts), window)):
        path = folder / shard_file(number)
        manifest = write(path, texts[first : first + window]).manifest
        index = index or ShardIndex(shared_identity(manifest.identity), manifest.provenance, window)
        index = index.with_shard(describe_shard(path, window=number))
    assert index is not None
    replace(index, is_complete=True).write(folder)


def sizes_of(n_bytes: float, *, of: str) -> Sizes:
    """Choose how many sentences, or texts, take so many bytes; sentences of validation come on top of those."""
    one = Sizes(n_sentences=1).n_bytes
    return Sizes(n_sentences=int(n_bytes / (one if of == "words" else one / SENTENCE_WORDS)))


def write_cache(place: Path, sizes: Sizes, *, of: str) -> None:
    """Write a cache of `words` or `texts`: a file, or shards where the place has no suffix."""
    texts: Sequence[str | JoinedText]
    if of == "words":
        texts, window = synthetic_task(sizes).texts(), WINDOW_SENTENCES
    else:
        texts, window = list(name_texts(sizes.n_sentences)), WINDOW

    def write(path: Path, some: Sequence[Any]) -> LatentCache:
        return (write_word_cache if of == "words" else write_text_cache)(path, some, sizes)

    if place.suffix:
        write(place, texts)
    else:
        write_in_shards(place, texts, write, window=window)


def fit_tokens(cache: LatentCache, sizes: Sizes) -> int:
    """Train the token classifiers of all layers for an epoch, as by default standardised; return the steps."""
    data = WordLatents(cache, synthetic_task(sizes))
    options = TokenOptions(max_epochs=1, epoch_steps=1, keep="last")
    head = TokenClassifier(len(data.layers), sizes.width, len(data.classes), **options.head_arguments())
    fit_token_head(head, data, options)
    return len(data.train_dataloader())


def fit_small_autoencoders(cache: LatentCache, sizes: Sizes) -> int:
    """Train small autoencoders of all layers for an epoch, the held-out texts looked at; return the steps."""
    options = FitOptions(batch_size=64, max_epochs=1)
    data = TextLatents(cache, batch_size=options.batch_size)
    module = LayerAutoencoder(len(data.channels.names), sizes.width, **SMALL_CODES)
    fit_layers(module, data, options=options)
    return len(data.train_dataloader())


def fit_autoencoders(cache: LatentCache, sizes: Sizes) -> int:
    """Train the default autoencoders of all layers for some steps on texts from all over the cache."""
    data = TextLatents(cache, batch_size=64)
    module = LayerAutoencoder(len(data.channels.names), sizes.width)
    module.prepare(data.standardiser())
    run_trainer(module, data, seed=0, device="cpu", max_steps=STEPS, max_epochs=-1, limit_val_batches=0)
    return STEPS


FITS: dict[str, tuple[str, Callable[[LatentCache, Sizes], int]]] = {
    "token classifiers, one epoch": ("words", fit_tokens),
    "autoencoders of 16 codes, one epoch": ("texts", fit_small_autoencoders),
    f"default autoencoders, {STEPS} steps": ("texts", fit_autoencoders),
}
"""Each with what it is fitted on."""


def peak_bytes() -> int:
    """The largest resident size of this process so far, pages of mapped files included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def fit_here(name: str, place: Path, n_bytes: float) -> dict[str, Any]:
    """Fit on the cache in this process; return steps, seconds and peak memory."""
    of, fit = FITS[name]
    torch.manual_seed(0)
    cache = open_cache(place)
    before, began = peak_bytes(), time.perf_counter()
    n_steps = fit(cache, sizes_of(n_bytes, of=of))
    seconds = time.perf_counter() - began
    return {"n_steps": n_steps, "seconds": seconds, "peak_bytes": {"before": before, "after": peak_bytes()}}


def in_child(*arguments: str) -> Any:
    """Run a part of this benchmark in a process of its own, and read the JSON it prints."""
    command = [sys.executable, "-m", "benchmarks.big_caches", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(folder: Path, n_bytes: float) -> list[dict[str, Any]]:
    """Write each cache, fit each head on it, and remove it."""
    found = []
    for of in ("words", "texts"):
        for kind, name in (("one file", f"{of}.h5"), ("shards", of)):
            with tempfile.TemporaryDirectory(dir=folder) as own:
                place = Path(own) / name
                size = in_child("--write", of, "--at", str(place), "--gigabytes", str(n_bytes / 1e9))
                for fit in [each for each, (what, _) in FITS.items() if what == of]:
                    one = in_child("--fit", fit, "--at", str(place), "--gigabytes", str(n_bytes / 1e9))
                    found.append({"fit": fit, "of": of, "cache": kind, "bytes": size, **one})
                    sys.stderr.write(f"{found[-1]}\n")
    return found


def main() -> None:
    """Write caches, train on them, and record the peak memory of each fit."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0, help="bytes of each cache, one at a time on the disk")
    parser.add_argument("--folder", type=Path, default=None, help="where caches are written, and removed at the end")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--at", type=Path, help="place of the cache that is written or fitted on in this process")
    parser.add_argument("--write", choices=("words", "texts"), help="write a cache, and print its bytes")
    parser.add_argument("--fit", choices=FITS, help="fit on a cache, and print what was found")
    asked = parser.parse_args()
    n_bytes = asked.gigabytes * 1e9
    if asked.write:
        write_cache(asked.at, sizes_of(n_bytes, of=asked.write), of=asked.write)
        print(open_cache(asked.at).n_bytes)
    elif asked.fit:
        print(json.dumps(fit_here(asked.fit, asked.at, n_bytes)))
    else:
        found = measure(asked.folder, n_bytes)
        result = {"allowed_bytes": ALLOWED_BYTES, "fits": found, **describe_machine()}
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
