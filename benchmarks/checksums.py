"""What checksums cost: extraction with and without them in turn, and their share of the extraction's own time."""

import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from benchmarks.timing import Comparison, compare
from extract.decoders.decoder import Decoder
from extract.inputs.joined_text import JoinedText
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec

SPEC = ExtractionSpec(poolings=("last", "mean"))


class Timed:
    """Computes CRC-32 and counts the processor time of its threads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._crc32 = zlib.crc32

    def __call__(self, data: Any) -> int:
        """Return the checksum."""
        began = time.thread_time()
        found = self._crc32(data)
        self.seconds += time.thread_time() - began
        return found


def compare_checksums(
    decoder: Decoder, texts: Sequence[str | JoinedText], *, repeats: int
) -> tuple[Comparison, dict[str, float]]:
    """Compare extraction with and without checksums.

    Returns:
        The comparison, and medians over the same repeats: `writing`, the share of the processor time of an extraction
        that goes into computing checksums, and `reading`, what comparing them when the cache is reused takes beside it.
    """
    what = "words" if isinstance(texts[0], JoinedText) else "texts"
    shares: dict[str, list[float]] = {"writing": [], "reading": []}
    with tempfile.TemporaryDirectory() as name:

        def extract(crc32: Callable[[Any], int]) -> None:
            computes = patch("extract.store.writer.zlib", SimpleNamespace(crc32=crc32))
            with tempfile.TemporaryDirectory(dir=name) as folder, computes:
                began = time.process_time()
                cache = extract_latents(decoder, texts, spec=SPEC, folder=Path(folder))
                seconds = time.process_time() - began
                if isinstance(crc32, Timed):
                    shares["writing"].append(crc32.seconds / seconds)
                    began = time.process_time()
                    cache.verify()
                    shares["reading"].append((time.process_time() - began) / seconds)

        sides = (("with", lambda: extract(Timed())), ("without", lambda: extract(lambda _: 0)))
        found = compare(f"extraction of {what} with checksums vs without", sides, bar="<= 1.02", repeats=repeats)
    return found, {key: statistics.median(values[1:] or values) for key, values in shares.items()}
