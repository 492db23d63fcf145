"""The loop of every extraction: batches are computed while others are tokenised and written.

Rows of one process count once its batches are proved and the weights compared with their digest afterwards.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from typing import TypeVar

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.files import digest_module
from extract.inputs.batches import Batch
from extract.poolings.memory import HostCopies, trim_heap
from extract.run.progress import ExtractionProgress
from extract.store.manifest import Plain
from extract.store.writer import StoreWriter

SHARE = 0.01
"""Share of the time that comparing the weights in the middle of an extraction may take."""
DIGEST_BYTES_PER_SECOND = 1e9  # a guess for the first comparison, which is then timed
ITEMS_AHEAD = 3  # batches tokenised ahead at most
ITEMS_WAITING = 1  # batches that wait to be written at most: those of words are large
TRIM_ITEMS = 2  # written batches after which free pages of the heap go back to the system
T = TypeVar("T")
Step = Callable[[], object]
Put = Callable[[Step], None]


class Session:
    """Fills any number of stores, and holds the rows written since the weights were last compared with their digest.

    Proved batches and equal weights close them. Rows that no comparison closed (killed, or something was wrong) do not
    count, and the next run computes them again. Every one of `proofs` proves batches, as `BatchProof.prove`. Weights of
    a decoder that is split over processes (`shares_decoder`) are read by all of them together, so only at the end.
    """

    def __init__(
        self, decoder: Decoder, progress: ExtractionProgress | None = None, *, shares_decoder: bool = False
    ) -> None:
        self.decoder, self.shares_decoder = decoder, shares_decoder
        self.progress = progress or ExtractionProgress()
        self.copies = HostCopies()
        self.proofs: list[Callable[..., None]] = []
        self._open: list[tuple[StoreWriter, int, int]] = []
        module = decoder.module
        self._seconds = sum(weights.nbytes for weights in module.parameters()) / DIGEST_BYTES_PER_SECOND
        self._compared = time.monotonic()

    def fill(
        self, batches: Iterator[Batch], compute: Callable[[Batch, Put], None], *, n_rows: int, n_done: int
    ) -> Plain:
        """Compute all batches and close their rows; return the certificate of the weights.

        `compute` puts what is to be done when the latents of a batch have arrived, such as writing them.
        """
        self.progress.start(n_rows=n_rows, n_done=n_done)
        try:
            self._pump(batches, compute)
        except CertificateError:  # the open rows of this run are not trusted
            raise
        except BaseException:
            if not self.shares_decoder:
                self.close_if_frozen()
            raise
        finally:
            self.progress.finish()
        certificate = self.require_frozen()
        self.close_rows()
        return certificate

    def _pump(self, batches: Iterator[Batch], compute: Callable[[Batch, Put], None]) -> None:
        """Tokenise, compute and write, all three in a thread of their own, with bounded queues between them."""
        with closing(Sink()) as sink, closing(Ahead(batches)) as ahead:
            for batch in ahead:
                compute(batch, sink.put)
                self.prove_batches()
                if self.is_due and not self.shares_decoder:
                    self.require_frozen()
                    sink.put(self.close_rows)  # after all rows computed before this comparison

    def add(self, writer: StoreWriter, first: int, n_rows: int) -> None:
        """Record consecutive rows that were written."""
        self._open.append((writer, first, n_rows))

    @property
    def is_due(self) -> bool:
        """Whether comparing the weights now keeps within its share of the time."""
        return (time.monotonic() - self._compared) * SHARE >= self._seconds

    def prove_batches(self, *, is_closing: bool = False) -> None:
        """Prove batches, at least those of rows that are about to be closed (`CertificateError`)."""
        try:
            for prove in self.proofs:
                prove(is_closing=is_closing)
        except CertificateError:
            self._require_equal_weights()  # changed ones would explain it better
            raise

    def require_frozen(self) -> Plain:
        """Prove batches and compare the weights with their digest, before rows are closed; return the certificate."""
        self.prove_batches(is_closing=True)
        return self._require_equal_weights()

    def _require_equal_weights(self) -> Plain:
        started = time.monotonic()
        before, digest = self.decoder.description.weight_digest, digest_module(self.decoder.module)
        self._compared = time.monotonic()
        self._seconds = self._compared - started
        if digest != before:
            raise CertificateError(
                f"the weights changed during the extraction: {digest[:12]} after, {before[:12]} before. The rows that "
                "this run wrote since it last compared them do not count; find what changed the weights, reload the "
                "decoder and run again."
            )
        return {"is_bit_identical": True, "weight_digest": digest}

    def close_rows(self) -> None:
        """Let the rows written so far count: all were computed before the last comparison of the weights."""
        for writer, first, n_rows in self._open:
            writer.close_rows(first, n_rows)
        self._open.clear()

    def close_if_frozen(self) -> None:
        """Close the rows of a session that an error or Ctrl-C ends, unless the weights changed or cannot be read."""
        with suppress(Exception):
            if self._open:
                self.require_frozen()
                self.close_rows()


class Sink:
    """A thread that takes steps in their order; the error of one surfaces at the next `put` or at `close`."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Step | None] = queue.Queue(ITEMS_WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="icecore-writer", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        for number in count(1):
            if (step := self._queue.get()) is None:
                return
            if self._error is None:
                try:
                    step()
                except BaseException as error:  # handed to the caller's thread
                    self._error = error
            del step  # else it would outlive the wait for the next one
            if number % TRIM_ITEMS == 0:
                trim_heap()

    def put(self, step: Step) -> None:
        """Queue a step, waiting while the queue is full."""
        if self._error is not None:
            raise self._error
        self._queue.put(step)

    def close(self) -> None:
        """Take all queued steps, end the thread, and raise its error if it has not surfaced yet."""
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error


class Ahead(Iterator[T]):
    """An iterator whose items are made in a thread, a few ahead; its error surfaces where the items are used."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="icecore-tokeniser")
        self._futures = deque(self._pool.submit(next, items) for _ in range(ITEMS_AHEAD))

    def __next__(self) -> T:
        """Return the next item, waiting for it."""
        item = self._futures[0].result()  # an error, or the end, stays first
        self._futures.popleft()
        self._futures.append(self._pool.submit(next, self._items))
        return item

    def close(self) -> None:
        """End the thread and drop unused items."""
        self._pool.shutdown(cancel_futures=True)
