"""What an extraction would cost, before it is begun."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from extract.applied import plan_in_force
from extract.batching import collate, group_by_length
from extract.capture import pool_batch
from extract.decoder import Decoder
from extract.joined import JoinedText
from extract.layout import array_shapes
from extract.limits import WINDOW_TEXTS
from extract.manifest import Manifest
from extract.plan import parse_plan
from extract.spec import ExtractionSpec
from extract.word_encoder import make_encoder

N_TIMED = 3  # batches that are timed


@dataclass(frozen=True)
class Estimate:
    """The cost of an extraction.

    Attributes:
        n_rows: Rows of the store: unique texts, or pieces of them where long ones are read in windows.
        n_tokens: Tokens, specials and instruction included.
        n_truncated: Texts longer than the window.
        longest: Tokens of the longest text.
        bytes_by_array: Bytes on disk per array of the store.
        tokens_per_second: Measured on a few batches of these texts.
        seconds: Estimated time of the computation.
        n_words: Words over all texts; 0 for whole texts.
    """

    n_rows: int
    n_tokens: int
    n_truncated: int
    longest: int
    bytes_by_array: dict[str, int]
    tokens_per_second: float
    seconds: float
    n_words: int = 0

    @property
    def n_bytes(self) -> int:
        """Bytes on disk in all."""
        return sum(self.bytes_by_array.values())

    def bytes_by_pooling(self) -> dict[str, int]:
        """Bytes of all layers of each pooling, of words where there are words."""
        sums: dict[str, int] = {}
        for name, size in self.bytes_by_array.items():
            if name.count("/") == 3:  # /latents/POOLING/LAYER or /words/POOLING/LAYER
                pooling = name.split("/")[2]
                sums[pooling] = sums.get(pooling, 0) + size
        return sums


def estimate_extraction(
    decoder: Decoder, texts: Sequence[str | JoinedText], *, spec: ExtractionSpec, manifest: Manifest
) -> Estimate:
    """Tokenise every text, time a few batches, and work out the rest. Nothing is written.

    Args:
        decoder: The frozen decoder.
        texts: Unique texts, all plain or all with their words.
        spec: What would be extracted.
        manifest: The manifest the cache would have.

    Returns:
        The estimate.

    Raises:
        InputError: A text that cannot be pooled; names it.
    """
    encoder = make_encoder(
        decoder.tokenizer, spec, window=decoder.description.window, has_words=manifest.words is not None
    )
    batching = manifest.provenance["batching"]
    most, fewest = batching["batch_tokens"], batching["min_tokens"]
    lengths: list[int] = []
    n_truncated = 0
    timed: list[tuple[int, float]] = []
    for start in range(0, len(texts), WINDOW_TEXTS):
        encoded = encoder(texts[start : start + WINDOW_TEXTS], first_index=start)
        lengths += [len(item.ids) for item in encoded]
        n_truncated += sum(item.is_truncated for item in encoded)
        if not timed:  # batches spread over the lengths of the first window, after one to warm up
            groups = group_by_length([len(item.ids) for item in encoded], batch_tokens=most, min_tokens=fewest)
            picks = np.linspace(0, len(groups) - 1, min(N_TIMED, len(groups))).round().astype(int)
            for k in (picks[len(picks) // 2], *picks):
                batch = collate([encoded[i] for i in groups[k]], groups[k])
                began = time.perf_counter()
                with plan_in_force(decoder, parse_plan(spec.plan)):
                    pool_batch(decoder, batch, poolings=manifest.poolings, layers=manifest.identity["layers"]).cpu()
                timed.append((int(batch.n_tokens.sum()), time.perf_counter() - began))
    rate = sum(n for n, _ in timed[1:]) / sum(seconds for _, seconds in timed[1:])
    sizes = {
        name: int(np.prod(shape)) * np.dtype(dtype).itemsize for name, (shape, dtype) in array_shapes(manifest).items()
    }
    n_tokens = sum(lengths)
    n_words = 0 if manifest.words is None else int(manifest.words["n_words"])
    return Estimate(len(lengths), n_tokens, n_truncated, max(lengths), sizes, rate, n_tokens / rate, n_words)
