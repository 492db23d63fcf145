"""The cost of words relative to whole texts: extraction of the same texts, and pooling of the same batches."""

import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import Comparison, compare
from extract.decoders.decoder import Decoder
from extract.inputs.batches import Batch, collate, group_by_length
from extract.inputs.joined_text import JoinedText
from extract.run.embed import make_encoder
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec, batch_limits
from extract.store.cache import LatentCache
from extract.wiring.states import pool_batch
from probes.data.word_files import load_wnut17, load_words_sample

N_SENTENCES = 512
POOLINGS = ("mean",)
SPEC = ExtractionSpec(poolings=POOLINGS, words=WordSpec(poolings=POOLINGS), storage_dtype="float16")
"""Half the bytes of float32, as the configs of tasks of words choose: a sentence has a latent for each of its words."""


def choose_word_texts(n: int = N_SENTENCES) -> tuple[str, list[JoinedText]]:
    """Take sentences of WNUT-17 evenly over its training split; the shipped sample if WNUT-17 is not available.

    Args:
        n: How many.

    Returns:
        Name of the source, and different sentences with their words.
    """
    task = load_wnut17() if os.environ.get("ICECORE_DATA") else load_words_sample()
    texts = list(dict.fromkeys(task.joined("train")))
    step = max(1, len(texts) // n)
    return task.name, texts[::step][:n]


def compare_words(
    decoder: Decoder, texts: list[JoinedText], *, repeats: int
) -> tuple[list[Comparison], dict[str, Any]]:
    """Compare the extraction of every layer's words with that of the same texts as wholes, both by their mean.

    Args:
        decoder: The decoder.
        texts: Different sentences with their words.
        repeats: Timed pairs.

    Returns:
        Words / sentences for whole extractions and for forward passes with pooling alone; and the numbers of
        sentences, words and tokens and the bytes that either side stores.
    """
    plain = [text.text for text in texts]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sides = (
            ("words", _extraction(decoder, texts, folder / "words")),
            ("sentences", _extraction(decoder, plain, folder / "sentences")),
        )
        whole = compare("extraction of words vs of sentences", sides, bar="<= 1.10", repeats=repeats)
        sizes = {label: _latent_bytes(folder / label) for label, _ in sides}
    batches = {"words": _batches(decoder, texts), "sentences": _batches(decoder, plain)}
    passes = tuple((label, _passes(decoder, some)) for label, some in batches.items())
    pooled = compare("forward and pooling of words vs of sentences", (passes[0], passes[1]), bar="", repeats=repeats)
    facts = {
        "n_sentences": len(texts),
        "n_words": sum(len(text.spans) for text in texts),
        "n_tokens": int(sum(batch.n_tokens.sum() for batch in batches["words"])),
        "bytes": sizes,
    }
    return [whole, pooled], facts


def _extraction(decoder: Decoder, texts: Sequence[str | JoinedText], folder: Path) -> Callable[[], None]:
    """Build a whole extraction into a folder of its own: tokenising, certificates, writing, digests and all."""
    numbers = itertools.count()

    def run() -> None:
        # Earlier output stays until the end: deleting it would count as extraction time.
        extract_latents(decoder, texts, spec=SPEC, folder=folder / str(next(numbers)))

    return run


def _batches(decoder: Decoder, texts: Sequence[str | JoinedText]) -> list[Batch]:
    """Make the batches that an extraction of these texts computes."""
    has_words = isinstance(texts[0], JoinedText)
    encoded = make_encoder(decoder, SPEC, has_words=has_words)(texts)
    most, fewest = batch_limits(SPEC, decoder.device)
    groups = group_by_length([len(item.ids) for item in encoded], batch_tokens=most, min_tokens=fewest)
    return [collate([encoded[i] for i in group], range(len(group))) for group in groups]


def _passes(decoder: Decoder, batches: list[Batch]) -> Callable[[], None]:
    def run() -> None:
        for batch in batches:
            pool_batch(decoder, batch, poolings=POOLINGS, layers=decoder.layers)

    return run


def _latent_bytes(folder: Path) -> int:
    cache = LatentCache(next(folder.rglob("*.h5")))
    return sum(cache.layer(layer, pooling).nbytes for pooling in cache.poolings for layer in cache.layers)
