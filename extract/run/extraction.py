"""One extraction: tokenise, compute and write the rows that are not done yet."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.digest import digest_module
from extract.errors import CertificateError
from extract.inputs.batching import Batch, collate, group_by_length
from extract.inputs.joined import JoinedText, digest_texts
from extract.masks.plan import parse_plan
from extract.poolings.pages import empty_in_pages, trim_heap
from extract.run.pipeline import Ahead, Sink
from extract.run.progress import ExtractionProgress
from extract.run.spec import ExtractionSpec
from extract.run.word_encoder import make_encoder
from extract.run.workers import Workers
from extract.store.manifest import require_same
from extract.store.rounding import name_latent, refuse_latent, round_latents
from extract.store.writer import StoreWriter
from extract.wiring.applied import plan_in_force
from extract.wiring.capture import pool_batch
from extract.wiring.certificate import check_batch_invariance, check_influence

TRIM_BATCHES = 2  # after so many, free pages of the heap go back to the system


class Extraction:
    """One run over the rows of a store that are not done yet.

    Args:
        decoder: The frozen decoder.
        texts: Unique texts, all plain or all with their words.
        spec: What to extract; poolings, layers, storage and batching are read from the store.
        path: The store, laid out.
        progress: Receives what has been done.
        workers: This process's place in a group that writes one store together.
    """

    def __init__(
        self, decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec, path: Path,
        progress: ExtractionProgress, workers: Workers,
    ) -> None:  # fmt: skip
        self.decoder, self.texts, self.path, self.progress, self.workers = decoder, texts, path, progress, workers
        self.plan = parse_plan(spec.plan)
        self.encoder = make_encoder(
            decoder.tokenizer, spec, window=decoder.description.window, has_words=isinstance(texts[0], JoinedText)
        )

    def run(self, *, expected: dict[str, Any]) -> None:
        """Fill the store and write its certificate.

        Args:
            expected: Identity the store must have.

        Raises:
            CacheIdentityError: The store is of another identity; nothing was written.
            IcecoreError: As `extract_latents`.
        """
        with self.opened(expected=expected) as writer, plan_in_force(self.decoder, self.plan):
            self._fill(writer)

    @contextmanager
    def opened(self, *, expected: dict[str, Any]) -> Iterator[StoreWriter]:
        """Open the store for writing, held by this process until the `with` block ends.

        Args:
            expected: Identity the store must have.

        Yields:
            Its writer.

        Raises:
            CacheIdentityError: The store is of another identity; nothing was written.
            CacheLockedError: Another process holds it.
        """
        writer = StoreWriter(self.path)
        try:
            require_same(writer.manifest.identity, expected, where=repr(str(self.path)))
            self._prepare(writer)
            with writer.locked() if self.workers.rank == 0 else nullcontext():
                yield writer
        finally:
            writer.close()

    def _prepare(self, writer: StoreWriter) -> None:
        identity = writer.manifest.identity
        self.poolings = writer.manifest.poolings
        self.layers: list[str] = identity["layers"]
        self.storage: str = identity["storage_dtype"]
        # The batching a store was begun with is kept, so that a resumed run computes the very same batches.
        self.batching: dict[str, int] = writer.manifest.provenance["batching"]

    def _fill(self, writer: StoreWriter) -> None:
        started = time.monotonic()
        is_done = writer.done_rows()
        certificate = self.certify()
        self.progress.start(n_rows=len(is_done), n_done=int(is_done.sum()))
        try:
            self._pump(writer, is_done)
        finally:
            self.progress.finish()
        certificate["frozen"] = self.check_frozen(writer, is_done)
        self.workers.barrier()
        if self.workers.rank == 0 and writer.done_rows().all():
            writer.write_certificate({**certificate, "seconds": round(time.monotonic() - started, 3)})
        self.workers.barrier()

    def certify(self) -> dict[str, Any]:
        """Certify the plan in force before anything is computed with it.

        Raises:
            CertificateError: It did not take effect, or latents depend on padding.
        """
        return {
            "influence": check_influence(self.decoder, self.plan),
            "batch_invariance": check_batch_invariance(self.decoder),
        }

    def check_frozen(self, writer: StoreWriter, was_done: NDArray[np.bool_]) -> dict[str, Any]:
        """Certify that the weights are what they were; rows of this run are voided when they are not.

        Raises:
            CertificateError: A weight changed.
        """
        digest = digest_module(self.decoder.module)
        if digest != self.decoder.description.weight_digest:
            writer.void_rows(~was_done)
            raise CertificateError(
                f"the weights changed during the extraction: {digest[:12]} after, "
                f"{self.decoder.description.weight_digest[:12]} before. The rows of this run were marked as not "
                "done; find what wrote to the weights, load the decoder anew and run again."
            )
        return {"is_bit_identical": True, "weight_digest": digest}

    def _pump(self, writer: StoreWriter, is_done: NDArray[np.bool_]) -> None:
        """Tokenise, compute and write, each in its own thread, batches flowing through bounded queues."""
        sink = Sink(lambda item: self.write(writer, *item))
        batches = Ahead(self.batches(is_done))
        try:
            for batch in batches:
                latents = pool_batch(self.decoder, batch, poolings=self.poolings, layers=self.layers)
                sink.put((batch, self.to_storage(batch, latents)))
        finally:
            batches.close()
            sink.close()

    def batches(self, is_done: NDArray[np.bool_]) -> Iterator[Batch]:
        """Yield the batches of this process that are not done, rows and words in the order in which they are stored."""
        number = row = word = 0
        for start in range(0, len(self.texts), self.batching["window_texts"]):
            encoded = self.encoder(self.texts[start : start + self.batching["window_texts"]], first_index=start)
            groups = group_by_length(
                [len(item.ids) for item in encoded],
                batch_tokens=self.batching["batch_tokens"],
                min_tokens=self.batching["min_tokens"],
            )
            for group in groups:
                items = [encoded[i] for i in group]
                rows, first_word = range(row, row + len(group)), word
                row += len(group)
                word += sum(len(item.words.flags) for item in items if item.words is not None)
                number += 1
                if number % TRIM_BATCHES == 0:
                    trim_heap()
                if number % self.workers.world_size == self.workers.rank and not is_done[rows].all():
                    yield collate(items, rows, positions=[item.index for item in items], first_word=first_word)

    def to_storage(self, batch: Batch, latents: Float[Tensor, "L P N D"]) -> Tensor:
        """Cast the latents of a batch for the store, on the CPU.

        Raises:
            NonFiniteLatentError: A latent that cannot be stored; names layer, pooling, text, word and value.
        """
        stored, unfit = round_latents(latents, self.storage)
        if unfit is None:
            on_cpu = stored.device.type == "cpu"
            return stored if on_cpu else empty_in_pages(stored.shape, stored.dtype).copy_(stored)
        layer, pooling, place, column = unfit
        where = (
            f"layer {self.layers[layer]}, pooling {self.poolings[pooling]}, dimension {column}, "
            f"{name_latent(batch, place, self.texts)}"
        )
        dtype = self.decoder.description.dtype
        raise refuse_latent(float(latents[unfit]), where=where, storage=self.storage, dtype=dtype)

    def write(self, writer: StoreWriter, batch: Batch, stored: Tensor) -> None:
        """Write the latents of a batch and mark its rows as done."""
        raw = (stored.view(torch.uint16) if self.storage == "bfloat16" else stored).numpy()
        texts = [self.texts[i] for i in batch.positions]
        rows: dict[str, NDArray[Any]] = {
            "digest": digest_texts(texts),
            "n_tokens": batch.n_tokens,
            "is_truncated": batch.is_truncated.astype(np.uint8),
        }
        words = batch.words
        if words is not None:
            first = words.first_word + np.cumsum(words.n_words, dtype=np.int64) - words.n_words
            rows |= {"first_word": first, "n_words": words.n_words, "word_start": words.word_start}
        writer.write_rows(
            int(batch.rows[0]), raw, poolings=self.poolings, layers=self.layers, rows=rows,
            words=None if words is None else (words.first_word, words.flags),
        )  # fmt: skip
        self.progress.advance(n_rows=len(batch.rows), n_tokens=int(batch.n_tokens.sum()))
