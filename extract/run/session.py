"""Rows of one process count once its batches are proved and the weights compared with their digest afterwards."""

import time
from collections.abc import Callable
from contextlib import suppress

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.files import digest_module
from extract.store.manifest import Plain
from extract.store.writer import StoreWriter

SHARE = 0.01
"""Share of the time that comparing the weights in the middle of an extraction may take."""
DIGEST_BYTES_PER_SECOND = 1e9  # a guess for the first comparison, which is then timed


class Session:
    """Rows that one process has written since it last compared the weights with their digest, in any number of stores.

    Proved batches and equal weights close them. Rows that no comparison closed (killed, or something was wrong) do not
    count, and the next run computes them again. Every one of `proofs` proves batches, as `BatchProof.prove`.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.proofs: list[Callable[..., None]] = []
        self._open: list[tuple[StoreWriter, int, int]] = []
        module = decoder.module
        self._seconds = sum(weights.nbytes for weights in module.parameters()) / DIGEST_BYTES_PER_SECOND
        self._compared = time.monotonic()

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
