"""One extraction: tokenise, compute and write the rows that are not done yet."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.inputs.batching import Batch, collate_group, group_texts
from extract.inputs.joined import JoinedText, digest_texts
from extract.masks.truth import require_reading
from extract.poolings.guard import require_no_padding
from extract.poolings.joining import Joiner
from extract.poolings.table import POOLINGS, SHIPPED
from extract.poolings.transfer import HostCopies, HostCopy
from extract.proofs.batch_proof import BatchProof
from extract.proofs.certificate import check_batch_invariance, check_devices, check_influence
from extract.run.pipeline import Ahead, Sink
from extract.run.progress import ExtractionProgress
from extract.run.session import Session
from extract.run.spec import ExtractionSpec
from extract.run.word_encoder import Encoder, make_encoder
from extract.run.workers import Workers
from extract.store.checksums import require_sound
from extract.store.create import create_store
from extract.store.manifest import Manifest, require_same
from extract.store.reader import StoreReader
from extract.store.rounding import name_latent, read_report, refuse_latent, round_latents
from extract.store.writer import StoreWriter
from extract.wiring.applied import plan_in_force
from extract.wiring.capture import pool_batch


@contextmanager
def open_store(path: Path, manifest: Manifest, *, workers: Workers = Workers()) -> Iterator[StoreWriter]:  # noqa: B008
    """Open a store for writing, laid out if it is not there, and locked until the `with` block ends.

    The first process of a group takes the lock, under which the others write.

    Raises:
        CacheIdentityError: The store has another identity; nothing was written.
        CacheError: The store is damaged; nothing was written.
        CacheLockedError: Another process is writing it.
        DiskFullError: Not enough space to lay it out.
    """
    if workers.rank == 0 and not path.exists():
        create_store(path, manifest)
    workers.barrier()
    writer = StoreWriter(path)
    try:
        require_same(writer.manifest.identity, manifest.identity, where=repr(str(path)))
        with writer.locked() if workers.rank == 0 else nullcontext():
            if workers.rank == 0:
                require_sound(StoreReader(path))
            yield writer
    finally:
        writer.close()


LONGEST, MOST_ROWS = 8, 64  # texts tried for the longest row, and rows of the batch that a plan is proved on


@dataclass(frozen=True, eq=False)
class Extraction:
    """One run over the rows of an open store that are not done yet.

    Texts are unique, all plain or all with their words. Poolings, layers, storage and batching come from the store.
    """

    decoder: Decoder
    texts: Sequence[str | JoinedText]
    spec: ExtractionSpec
    writer: StoreWriter
    progress: ExtractionProgress
    workers: Workers = field(default_factory=Workers)
    copies: HostCopies = field(default_factory=HostCopies)
    shared_session: Session | None = None  # of a sweep, which closes the rows of all its stores together

    @cached_property
    def session(self) -> Session:
        """Closes the rows that this process writes."""
        return self.shared_session or Session(self.decoder)

    @cached_property
    def proof(self) -> BatchProof:
        """Proves batches of this extraction."""
        return BatchProof(
            self.decoder, self.spec.mask_plan, self.poolings, self.layers, reba=self.spec.reba, storage=self.storage
        )

    @cached_property
    def encoder(self) -> Encoder:
        """Turns the texts into rows of tokens."""
        return make_encoder(self.decoder, self.spec, has_words=isinstance(self.texts[0], JoinedText))

    @cached_property
    def joiner(self) -> Joiner:
        """Joins the windows of texts."""
        return Joiner(self.poolings)

    @property
    def poolings(self) -> tuple[str, ...]:
        """Poolings of the store."""
        return self.writer.manifest.poolings

    @property
    def layers(self) -> list[str]:
        """Layers of the store, bottom up."""
        return list(self.writer.manifest.identity["layers"])

    @property
    def storage(self) -> str:
        """Storage dtype of the store."""
        return str(self.writer.manifest.identity["storage_dtype"])

    @property
    def batching(self) -> dict[str, int]:
        """The batching the store was started with; a resumed run keeps it and so computes the very same batches."""
        return dict(self.writer.manifest.provenance["batching"])

    def run(self) -> None:
        """Fill the store and write its certificate; raises as `extract_latents`."""
        with plan_in_force(self.decoder, self.spec.mask_plan, looks_inside=self.spec.looks_inside):
            started = time.monotonic()
            is_done = self.writer.done_rows()
            certificate = self.certify()
            self.session.proofs.append(self.proof.prove)
            self.progress.start(n_rows=len(is_done), n_done=int(is_done.sum()))
            try:
                self._pump(is_done)
            except CertificateError:  # nothing more of this run is to be trusted
                raise
            except BaseException:
                if not self.workers.shares_decoder:  # its weights can be read by all processes together alone
                    self.session.close_if_frozen()
                raise
            finally:
                self.progress.finish()
            certificate |= {"frozen": self.session.require_frozen(), "batches": self.proof.result}
            self.session.close_rows()
            self.workers.barrier()
            if self.workers.rank == 0 and self.writer.done_rows().all():
                self.writer.write_certificate({**certificate, "seconds": round(time.monotonic() - started, 3)})
            self.workers.barrier()

    def certify(self) -> dict[str, Any]:
        """Certify the plan in force before anything is computed with it."""
        n_rows, n_tokens = self.largest_batch()
        require_reading(self.spec.plan, len(self.decoder.blocks))
        if not isinstance(self.texts[0], JoinedText):
            own = {
                name: POOLINGS[name][0] for name in self.poolings if name in POOLINGS and name not in SHIPPED["pooling"]
            }
            require_no_padding(own, self.decoder.description.width)
        return {
            "influence": check_influence(self.decoder, self.spec.mask_plan, n_rows=n_rows, n_tokens=n_tokens),
            "batch_invariance": check_batch_invariance(self.decoder),
            **(
                {"devices": check_devices(self.decoder)}
                if len({*self.decoder.devices, self.decoder.device}) > 1
                else {}
            ),
        }

    def largest_batch(self) -> tuple[int, int]:
        """Estimate rows and tokens of a batch of the longest texts."""
        lengths = [len(text.text if isinstance(text, JoinedText) else text) for text in self.texts]
        longest = [self.texts[i] for i in np.argsort(lengths, kind="stable")[-LONGEST:]]
        n_tokens = max(len(row.ids) for item in self.encoder(longest) for row in item.rows)
        return min(MOST_ROWS, max(1, self.batching["batch_tokens"] // n_tokens)), n_tokens

    def _pump(self, is_done: NDArray[np.bool_]) -> None:
        """Tokenise, compute and write, each in its own thread, batches flowing through bounded queues."""
        with (
            closing(Sink(lambda step: step())) as sink,
            closing(Ahead(self.batches(is_done))) as batches,
        ):
            for batch in batches:
                latents = pool_batch(
                    self.decoder, batch, poolings=self.poolings, layers=self.layers, reba=self.spec.reba
                )
                self.proof.add(batch, latents)
                self.session.prove_batches()
                for whole, copy in self.storable(batch, latents):
                    sink.put(partial(self.write, whole, copy))
                if self.session.is_due and not self.workers.shares_decoder:
                    self.session.require_frozen()
                    sink.put(self.session.close_rows)  # after all that was computed before this comparison

    def batches(self, is_done: NDArray[np.bool_]) -> Iterator[Batch]:
        """Yield the batches of this process that are not done, in the order their rows and words are stored."""
        number = row = word = 0
        batching = self.batching
        for start in range(0, len(self.texts), batching["window_texts"]):
            encoded = self.encoder(self.texts[start : start + batching["window_texts"]], first_index=start)
            groups = group_texts(
                encoded,
                batch_tokens=batching["batch_tokens"],
                min_tokens=batching["min_tokens"],
                split_length=self.decoder.split_length,
            )
            for group in groups:
                items = [encoded[i] for i in group]
                rows, first_word = range(row, row + len(group)), word
                row += len(group)
                word += sum(len(item.words.flags) for item in items if item.words is not None)
                number += 1
                if self.workers.computes(number) and not is_done[rows].all():
                    yield from collate_group(items, rows, batch_tokens=batching["batch_tokens"], first_word=first_word)

    def storable(self, batch: Batch, latents: Float[Tensor, "L P N D"]) -> Iterator[tuple[Batch, HostCopy]]:
        """Yield a batch with its latents on their way to the store; of windows, once, when all of a text are there.

        The latents are rounded on their device, which reports on those that do not fit; `write` reads the report.
        """
        joined = self.joiner.add(batch, latents)
        if joined is None:
            return
        whole, latents = joined
        stored, report = round_latents(latents, self.storage)
        if self.workers.shares_decoder:  # the others wait for each other in the next batch, so all stop at this one
            self.require_fit(whole, report.cpu(), stored.shape)
        yield whole, self.copies.start(stored, report)

    def require_fit(self, batch: Batch, report: Tensor, shape: Sequence[int]) -> None:
        """Refuse latents of a batch by the report on them, in main memory: `NonFiniteLatentError` names the first."""
        unfit = read_report(report, shape)
        if unfit is None:
            return
        layer, pooling, place, column = unfit.place
        where = (
            f"layer {self.layers[layer]}, pooling {self.poolings[pooling]}, dimension {column}, "
            f"{name_latent(batch, place, self.texts)}"
        )
        raise refuse_latent(unfit.value, where=where, storage=self.storage, dtype=self.decoder.description.dtype)

    def write(self, batch: Batch, copy: HostCopy) -> None:
        """Write the latents of a batch once they have arrived, and mark its rows as written.

        Raises:
            NonFiniteLatentError: One of them does not fit; nothing of the batch is written.
            DiskFullError: No space left.
        """
        with copy as (stored, report):
            self.require_fit(batch, report, stored.shape)
            if self.workers.writes:
                self._write(batch, stored)

    def _write(self, batch: Batch, stored: Tensor) -> None:
        raw = (stored.view(torch.uint16) if self.storage == "bfloat16" else stored).numpy()
        rows: dict[str, NDArray[Any]] = {
            "digest": digest_texts([self.texts[i] for i in batch.positions]),
            "n_tokens": batch.n_tokens,
            "is_truncated": batch.is_truncated.astype(np.uint8),
        }
        words = batch.words
        if words is not None:
            first = words.first_word + np.cumsum(words.n_words, dtype=np.int64) - words.n_words
            rows |= {"first_word": first, "n_words": words.n_words, "word_start": words.word_start}
        self.writer.write_rows(
            int(batch.rows[0]),
            raw,
            poolings=self.poolings,
            layers=self.layers,
            rows=rows,
            words=None if words is None else (words.first_word, words.flags),
        )
        self.session.add(self.writer, int(batch.rows[0]), len(batch.rows))
        self.progress.advance(n_rows=len(batch.rows), n_tokens=int(batch.n_tokens.sum()))
