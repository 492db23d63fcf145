"""The extraction: texts in, a whole cache out, resumable at any moment."""

import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from extract.batching import Batch, collate, group_by_length
from extract.cache import LatentCache, find_cache
from extract.capture import pool_batch
from extract.certificate import check_batch_invariance, check_influence
from extract.decoder import Decoder
from extract.digest import digest_module, digest_rows, digest_texts
from extract.errors import CertificateError, InputError, NonFiniteLatentError
from extract.layers import select_layers
from extract.manifest import Manifest, build_identity
from extract.pipeline import Ahead, Sink
from extract.plan import parse_plan
from extract.pooling import select_poolings
from extract.progress import ExtractionProgress, SilentProgress
from extract.spec import ExtractionSpec
from extract.store import StoreWriter, create_store, read_layout
from extract.template import TextEncoder
from extract.workers import Workers

WINDOW_TEXTS = 4096  # texts tokenised and sorted at a time; bounds memory
TORCH_STORAGE = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PACKAGES = ("icecore", "torch", "transformers", "tokenizers")


def unique_texts(texts: Iterable[str]) -> list[str]:
    """Drop repeated texts, keeping the first of each.

    Raises:
        InputError: No texts, or one that is empty or no string; names its position.
    """
    unique = list(dict.fromkeys(texts))
    if not unique:
        raise InputError("there are no texts to extract; give at least one.")
    for i, text in enumerate(unique):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"unique text {i} is {text!r}; allowed: a string with at least one visible character.")
    return unique


def describe_extraction(decoder: Decoder, texts: Sequence[str], spec: ExtractionSpec) -> Manifest:
    """Work out the manifest that an extraction would have.

    Args:
        decoder: The decoder.
        texts: Unique texts.
        spec: What to extract.

    Returns:
        The manifest.

    Raises:
        UnknownNameError: A layer this decoder does not have.
    """
    batch_tokens, min_tokens = batch_limits(spec, decoder.device)
    contents = {
        "poolings": list(select_poolings(spec.poolings)),
        "layers": list(select_layers(spec.layers, len(decoder.blocks))),
        "storage_dtype": spec.storage_dtype,
        "n_rows": len(texts),
        "text_digest": digest_rows(digest_texts(texts)),
    }
    identity = build_identity(
        decoder=decoder.description.to_dict(),
        plan=parse_plan(spec.plan).text,
        template={**spec.template.to_dict(), "window": decoder.description.window},
        contents=contents,
        versions={package: version(package) for package in PACKAGES},
    )
    provenance = {
        "decoder": decoder.description.to_dict(),
        "device": str(decoder.device),
        "batching": {"batch_tokens": batch_tokens, "min_tokens": min_tokens, "window_texts": WINDOW_TEXTS},
    }
    return Manifest(identity, provenance)


def batch_limits(spec: ExtractionSpec, device: torch.device) -> tuple[int, int]:
    """Choose the most and the fewest tokens per batch for a device."""
    most = spec.batch_tokens or (2048 if device.type == "cpu" else 16384)
    return most, most // 8


def cache_path(folder: Path, manifest: Manifest) -> Path:
    """Name a cache by its decoder, plan and identity."""
    name = str(manifest.provenance["decoder"]["name"]).replace("/", "--")
    return folder / f"{name}-{manifest.identity['plan']}-{manifest.short_id}.h5"


def extract_latents(
    decoder: Decoder,
    texts: Iterable[str],
    *,
    spec: ExtractionSpec = ExtractionSpec(),  # noqa: B008 - frozen
    folder: str | Path = "caches",
    progress: ExtractionProgress | None = None,
    workers: Workers = Workers(),  # noqa: B008 - frozen
) -> LatentCache:
    """Extract latents of texts into a cache, or find the cache that already holds them.

    Args:
        decoder: The frozen decoder.
        texts: Texts; repeats are stored once.
        spec: What to extract.
        folder: Where caches live. A whole cache of the same identity, or one that holds more, is reused; a half-done
            one is resumed.
        progress: Receives what has been done.
        workers: This process's place in a group that writes one store together.

    Returns:
        The whole cache.

    Raises:
        InputError: A text that cannot be pooled; named.
        CacheLockedError: Another process is writing this cache.
        DiskFullError: No space left; rows that are done stay.
        NonFiniteLatentError: A latent that cannot be stored; names layer, pooling, text and value.
        CertificateError: The plan did not take effect, latents depend on padding, or weights changed.
        KeyboardInterrupt: Rows that are done stay.
    """
    unique = unique_texts(texts)
    manifest = describe_extraction(decoder, unique, spec)
    found = find_cache(Path(folder), manifest.identity)
    if found is not None:
        return LatentCache(found.path)
    path = cache_path(Path(folder), manifest)
    if workers.rank == 0 and not path.exists():
        create_store(path, manifest)
    workers.barrier()
    _Extraction(decoder, unique, spec, path, progress or SilentProgress(), workers).run()
    return LatentCache(path, expected=manifest.identity)


class _Extraction:
    """One run over the rows that are not done yet."""

    def __init__(
        self, decoder: Decoder, texts: list[str], spec: ExtractionSpec, path: Path, progress: ExtractionProgress,
        workers: Workers,
    ) -> None:  # fmt: skip
        self.decoder, self.texts, self.path, self.progress, self.workers = decoder, texts, path, progress, workers
        self.plan = parse_plan(spec.plan)
        self.encoder = TextEncoder(decoder.tokenizer, spec.template, window=decoder.description.window)
        manifest, _ = read_layout(path)
        self.poolings: list[str] = manifest.identity["poolings"]
        self.layers: list[str] = manifest.identity["layers"]
        self.storage: str = manifest.identity["storage_dtype"]
        # The batching a store was begun with is kept, so that a resumed run computes the very same batches.
        self.batching: dict[str, int] = manifest.provenance["batching"]

    def run(self) -> None:
        writer = StoreWriter(self.path)
        try:
            if self.workers.rank == 0:
                with writer.locked():
                    self._fill(writer)
            else:
                self._fill(writer)
        finally:
            writer.close()

    def _fill(self, writer: StoreWriter) -> None:
        started = time.monotonic()
        is_done = writer.done_rows()
        certificate: dict[str, Any] = {
            "influence": check_influence(self.decoder, self.plan),
            "batch_invariance": check_batch_invariance(self.decoder),
        }
        self.progress.start(n_rows=len(is_done), n_done=int(is_done.sum()))
        try:
            self._pump(writer, is_done)
        finally:
            self.progress.finish()
        certificate["frozen"] = self._check_frozen()
        self.workers.barrier()
        if self.workers.rank == 0 and writer.done_rows().all():
            writer.write_certificate({**certificate, "seconds": round(time.monotonic() - started, 3)})
        self.workers.barrier()

    def _check_frozen(self) -> dict[str, Any]:
        digest = digest_module(self.decoder.module)
        if digest != self.decoder.description.weight_digest:
            raise CertificateError(
                f"the weights changed during the extraction: {digest[:12]} after, "
                f"{self.decoder.description.weight_digest[:12]} before. Delete the cache and find what wrote to them."
            )
        return {"is_bit_identical": True, "weight_digest": digest}

    def _pump(self, writer: StoreWriter, is_done: NDArray[np.bool_]) -> None:
        """Tokenise, compute and write, each in its own thread, batches flowing through bounded queues."""
        sink = Sink(lambda item: self._write(writer, *item))
        batches = Ahead(self._batches(is_done))
        try:
            for batch in batches:
                sink.put((batch, self._compute(batch)))
        finally:
            batches.close()
            sink.close()

    def _batches(self, is_done: NDArray[np.bool_]) -> Iterator[Batch]:
        """Yield the batches of this process that are not done, rows in the order in which they are stored."""
        number = 0
        for start in range(0, len(self.texts), self.batching["window_texts"]):
            window = self.texts[start : start + self.batching["window_texts"]]
            encoded = self.encoder(window, first_index=start)
            row = start
            groups = group_by_length(
                [len(item.ids) for item in encoded],
                batch_tokens=self.batching["batch_tokens"],
                min_tokens=self.batching["min_tokens"],
            )
            for group in groups:
                rows = range(row, row + len(group))
                row += len(group)
                number += 1
                if number % self.workers.world_size == self.workers.rank and not is_done[rows].all():
                    yield collate([encoded[i] for i in group], rows, positions=[start + i for i in group])

    def _compute(self, batch: Batch) -> Tensor:
        latents = pool_batch(self.decoder, batch, poolings=self.poolings, layers=self.layers)
        stored = latents.to(TORCH_STORAGE[self.storage])
        if not bool(torch.isfinite(stored).all()):
            raise self._non_finite(batch, latents, stored)
        return stored.to("cpu", non_blocking=False)

    def _non_finite(self, batch: Batch, latents: Tensor, stored: Tensor) -> NonFiniteLatentError:
        layer, pooling, row, column = (~torch.isfinite(stored)).nonzero()[0].tolist()
        value = float(latents[layer, pooling, row, column])
        text = int(batch.positions[row])
        cause = (
            f"does not fit the storage dtype {self.storage}; choose storage_dtype bfloat16 or float32"
            if np.isfinite(value)
            else f"is not finite; compute in float32 or bfloat16 instead of {self.decoder.description.dtype}"
        )
        return NonFiniteLatentError(
            f"latent {value:g} at layer {self.layers[layer]}, pooling {self.poolings[pooling]}, dimension {column}, "
            f"text {text} ({self.texts[text][:40]!r}) {cause}. Rows that are done stay."
        )

    def _write(self, writer: StoreWriter, batch: Batch, stored: Tensor) -> None:
        raw = (stored.view(torch.uint16) if self.storage == "bfloat16" else stored).numpy()
        rows = {
            "digest": digest_texts([self.texts[i] for i in batch.positions]),
            "n_tokens": batch.n_tokens,
            "is_truncated": batch.is_truncated.astype(np.uint8),
        }
        writer.write_rows(int(batch.rows[0]), raw, poolings=self.poolings, layers=self.layers, rows=rows)
        self.progress.advance(n_rows=len(batch.rows), n_tokens=int(batch.n_tokens.sum()))
