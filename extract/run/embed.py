"""Latents of a few texts, or of their words, in memory: no cache is written."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import select_layers
from extract.inputs.batches import collate, collate_group, group_by_length, group_texts
from extract.inputs.joined_text import JoinedText
from extract.inputs.spans import TEXT
from extract.inputs.tokens import EncodedText, WordColumns, show_row
from extract.poolings.pooling_table import select_word_poolings
from extract.poolings.poolings import Joiner
from extract.run.encode import make_encoder
from extract.run.extraction_spec import WINDOW_TEXTS, ExtractionSpec, batch_limits
from extract.store.format import array_shapes
from extract.store.items import have_latents
from extract.store.manifest import Manifest
from extract.wiring.plan_wiring import plan_in_force
from extract.wiring.states import layer_widths, pool_batch


@dataclass(frozen=True, eq=False)
class EmbeddedWords:
    """Latents of the words of texts, one text after the other."""

    latents: Float[Tensor, "L P W D"]  # float32 on the CPU; zeros where a word has no latent
    offsets: NDArray[np.int64]  # (N + 1,) where the words of each text start
    flags: UInt8[np.ndarray, " W"]  # bits of `extract.inputs.joined_text`

    @property
    def has_latent(self) -> Bool[np.ndarray, " W"]:
        """`(W,)` whether the word has a latent: it was neither truncated nor lost."""
        return have_latents(self.flags)

    def of(self, text: int) -> Float[Tensor, "L P w D"]:
        """Return the latents of the words of one text, by its position."""
        return self.latents[:, :, self.offsets[text] : self.offsets[text + 1]]


def embed_texts(decoder: Decoder, texts: Sequence[str], *, spec: ExtractionSpec) -> Float[Tensor, "L P N D"]:
    """Compute latents of texts in memory, on the CPU: those of an extraction before they are rounded for the store.

    Taps that are narrower than the others end in zeros. Views are what poolings are otherwise.
    """
    if spec.views:
        parts = dict[str, Float[Tensor, "L N D"]]()
        for one, names in spec.passes:
            latents = embed_texts(decoder, texts, spec=one)
            parts |= {name: latents[:, one.poolings.index(spec.readings[name].poolings[0])] for name in names}
        return torch.stack([parts[name] for name in spec.views], dim=1)
    if len(spec.members) > 1:
        return torch.stack([embed_texts(decoder, texts, spec=member) for member in spec.members]).mean(0)
    encoder = make_encoder(decoder, spec, has_words=False)
    return _embed(decoder, encoder(texts), spec, spec.poolings)


def embed_words(decoder: Decoder, texts: Sequence[JoinedText], *, spec: ExtractionSpec) -> EmbeddedWords:
    """Compute latents of words as `embed_texts` does; `InputError` also for a lost word under the policy `error`."""
    if spec.views:
        views = {name: embed_words(decoder, texts, spec=view) for name, view in spec.readings.items()}
        latents = torch.cat([view.latents for view in views.values()], dim=1)
        flags = np.bitwise_or.reduce([view.flags for view in views.values()])
        return replace(next(iter(views.values())), latents=latents, flags=flags)
    if len(spec.members) > 1:
        parts = [embed_words(decoder, texts, spec=member) for member in spec.members]
        latents = torch.stack([part.latents for part in parts]).mean(0)
        return replace(parts[0], latents=latents, flags=np.bitwise_or.reduce([part.flags for part in parts]))
    encoder = make_encoder(decoder, spec, has_words=True)
    encoded = encoder(texts)
    poolings = select_word_poolings(spec.words.poolings, spec.mask_plan, len(decoder.blocks))
    return EmbeddedWords(
        latents=_embed(decoder, encoded, spec, poolings),
        offsets=np.cumsum([0, *(len(text.spans) for text in texts)], dtype=np.int64),
        flags=np.concatenate([item.words.flags for item in encoded if item.words is not None]),
    )


def _embed(
    decoder: Decoder, encoded: Sequence[EncodedText], spec: ExtractionSpec, poolings: Sequence[str]
) -> Float[Tensor, "L P N D"]:
    """Compute the latents of rows of tokens, one for a row, or one for each of its words."""
    layers = select_layers(spec.layers, len(decoder.blocks))
    has_words = any(item.words is not None for item in encoded)
    counts = [1 if item.words is None else len(item.words.flags) for item in encoded]
    starts = np.cumsum([0, *counts])
    widths = layer_widths(decoder, spec.mask_plan, layers)
    width = max(widths.get(layer, decoder.description.width) for layer in layers)
    token_bytes = len(layers) * len(poolings) * width * 4 if has_words else 0
    most, fewest = batch_limits(spec, decoder.device, token_bytes=token_bytes)
    groups = group_texts(encoded, batch_tokens=most, min_tokens=fewest, split_length=decoder.split_length)
    joiner = Joiner(poolings)
    latents = torch.empty(len(layers), len(poolings), int(starts[-1]), width)
    with plan_in_force(decoder, spec.mask_plan, looks_inside=spec.looks_inside):
        for group in groups:
            positions = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in group])
            for batch in collate_group([encoded[i] for i in group], group, batch_tokens=most):
                pooled = pool_batch(decoder, batch, poolings=poolings, layers=layers, reba=spec.reba)
                joined = joiner.add(batch, pooled)
                if joined is not None:
                    latents[:, :, positions] = joined[1][..., :width].cpu()
    return latents


N_WARM = 2  # batches before the clock starts, in which pages, threads and kernels are set up
N_TIMED, FEWEST_TIMED, MOST_SECONDS = 7, 3, 10.0  # batches that are timed; the fewest, where they take longer than this
TIMED_TOKENS = 512  # on a CPU none of more tokens than these: it takes seconds, and more are no faster a token


@dataclass(frozen=True)
class Estimate:
    """The cost of an extraction."""

    n_rows: int  # of the store: unique texts, or windows of them where words are read in windows
    n_tokens: int  # to compute, specials and instruction included, in each window again
    n_truncated: int  # texts longer than the window
    longest: int  # tokens of the longest text
    bytes_by_array: dict[str, int]  # on disk, per array of the store
    tokens_per_second: float  # the median of a few batches of these texts, after warm-up, scaled to all lengths
    seconds: float  # estimated time of the computation
    n_words: int = 0  # over all texts; 0 for whole texts
    example: str = ""  # the first row, written out with roles

    @property
    def n_bytes(self) -> int:
        """Bytes on disk in all."""
        return sum(self.bytes_by_array.values())

    def bytes_by_pooling(self) -> dict[str, int]:
        """Bytes of all layers of each pooling, of words where there are words."""
        sums = Counter[str]()
        for name, size in self.bytes_by_array.items():
            if name.count("/") == 3:  # /latents/POOLING/LAYER or /words/POOLING/LAYER
                sums[name.split("/")[2]] += size
        return sums


def estimate_extraction(
    decoder: Decoder, texts: Sequence[str | JoinedText], *, spec: ExtractionSpec, manifest: Manifest
) -> Estimate:
    """Tokenise every text, time a few batches, and estimate the rest. Nothing is written.

    On a CPU long rows are timed by their beginnings; the time of the rest grows as its multiplications do, linearly in
    the weights and with the square of its length in attention. A text that cannot be pooled is an `InputError`.
    """
    encoder = make_encoder(decoder, spec, has_words=manifest.words is not None)
    lengths: list[int] = []
    n_rows = n_truncated = longest = 0
    rate, example = 0.0, ""
    for start in range(0, len(texts), WINDOW_TEXTS):
        encoded = encoder(texts[start : start + WINDOW_TEXTS], first_index=start)
        n_rows += len(encoded)
        longest = max(longest, *(len(item.ids) for item in encoded))
        lengths += [len(row.ids) for item in encoded for row in item.rows]
        n_truncated += sum(item.is_truncated for item in encoded)
        example = example or show_row(encoded[0].rows[0], decoder.tokenizer)
        rate = rate or _measure(decoder, [item.rows[0] for item in encoded], spec=spec, manifest=manifest)
    sizes = {name: array.n_bytes for name, array in array_shapes(manifest).items()}
    n_tokens = sum(lengths)
    seconds = _work(decoder, lengths) / rate
    return Estimate(
        n_rows, n_tokens, n_truncated, longest, sizes, n_tokens / seconds, seconds, manifest.n_words, example
    )


def _measure(decoder: Decoder, encoded: Sequence[EncodedText], *, spec: ExtractionSpec, manifest: Manifest) -> float:
    """Measure multiplications per second: the median of batches spread over the lengths of these rows."""
    batching = manifest.provenance["batching"]
    groups = group_by_length(
        [len(item.ids) for item in encoded],
        batch_tokens=batching["batch_tokens"],
        min_tokens=batching["min_tokens"],
        split_length=decoder.split_length,
    )
    most = TIMED_TOKENS if decoder.device.type == "cpu" else batching["batch_tokens"]
    picks = np.linspace(0, len(groups) - 1, N_TIMED).round().astype(int)  # of few groups, some repeatedly
    rates: list[float] = []
    first = time.perf_counter()
    with plan_in_force(decoder, spec.mask_plan, looks_inside=spec.looks_inside):
        for k in (*[picks[N_TIMED // 2]] * N_WARM, *picks):
            rows = _beginnings([encoded[i] for i in groups[k]], most=most)
            batch = collate(rows, range(len(rows)))
            began = time.perf_counter()
            pool_batch(decoder, batch, poolings=manifest.poolings, layers=manifest.layers, reba=spec.reba).cpu()
            ended = time.perf_counter()
            rates.append(_work(decoder, [len(row.ids) for row in rows]) / (ended - began))
            if len(rates) >= N_WARM + FEWEST_TIMED and ended - first > MOST_SECONDS:
                break
    return float(np.median(rates[N_WARM:]))


def _work(decoder: Decoder, lengths: Sequence[int]) -> float:
    """Count the multiplications of rows: a weight a token, and in attention two of each width a pair of tokens."""
    n_weights = sum(weights.numel() for block in decoder.blocks for weights in block.parameters())
    pairs = 2.0 * len(decoder.blocks) * decoder.description.width
    return float(sum(n * (n_weights + pairs * n) for n in lengths))


def _beginnings(rows: Sequence[EncodedText], *, most: int) -> list[EncodedText]:
    """Return as many rows of a batch as hold `most` tokens, at least one, and cut one that holds more by itself."""
    n_rows = max(1, most // max(len(row.ids) for row in rows))
    return [_cut(row, most) for row in rows[:n_rows]]


def _cut(row: EncodedText, most: int) -> EncodedText:
    if len(row.ids) <= most or not (row.roles[:most] == TEXT).any():  # all of it instruction: nothing to pool
        return row
    words = row.words
    if words is not None:
        n_words = max(1, int(np.searchsorted(np.maximum.accumulate(words.columns[:, 1]), most, side="right")))
        echo = None if words.echo is None else words.echo[:n_words].clip(max=most)
        words = WordColumns(words.columns[:n_words].clip(max=most), words.flags[:n_words], words.start, echo)
    spans = None if row.spans is None else row.spans[:most]
    copy_of = row.copies[:most]
    return replace(
        row, ids=row.ids[:most], roles=row.roles[:most], copy_of=copy_of, last=None, spans=spans, words=words
    )
