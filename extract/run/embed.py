"""Rows of tokens of a template and plan, and latents of a few texts, or of their words, in memory."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import select_layers
from extract.errors import InputError
from extract.inputs.batches import collate, collate_group, group_by_length, group_texts
from extract.inputs.joined_text import (
    CONTEXT,
    SPECIAL,
    TEXT,
    WORD_CUT,
    WORD_LOST,
    WORD_SHARED,
    AlignedWords,
    JoinedText,
    align_words,
    plain_text,
    read_spans,
)
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import (
    DroppedCharacters,
    EncodedText,
    TextEncoder,
    TokenisedText,
    Tokeniser,
    WordColumns,
    label_text,
    lay_windows,
    show_row,
)
from extract.poolings.pooling_table import select_word_poolings
from extract.poolings.poolings import Joiner, require_joinable, require_tokens
from extract.run.extraction_spec import (
    WINDOW_TEXTS,
    ExtractionSpec,
    WordSpec,
    batch_limits,
    join_readings,
    require_one_reading,
)
from extract.store.format import array_shapes
from extract.store.items import have_latents
from extract.store.manifest import Manifest
from extract.wiring.plan_wiring import plan_in_force
from extract.wiring.states import layer_widths, pool_batch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Encoder = Callable[..., list[EncodedText]]
"""Turns texts of one kind into rows of tokens; called as `WordEncoder` and `TextEncoder` are."""
QUOTES = ('"', "'", "“", "«", "„", "「")
FILLER = 0  # any token: its embedding is replaced


def make_encoder(decoder: Decoder, spec: ExtractionSpec, *, has_words: bool) -> Encoder:
    """Make the encoder of an extraction's texts; raises as the encoders do, and as `require_joinable`."""
    require_one_reading(spec, "rows of tokens are made for one at a time")
    if not has_words and spec.template.on_long == "windows":
        require_joinable(spec.poolings)
        if spec.mask_plan.prepend is not None:
            raise InputError(
                f"on_long is 'windows', but the plan {spec.plan!r} puts a placeholder before the text, which has one; "
                "allowed: 'truncate' or 'error'."
            )
    most, prepends = decoder.longest_dense_row, spec.mask_plan.prepend is not None
    window = decoder.description.window - prepends
    tokenizer, template = decoder.tokenizer, spec.template
    read: Encoder = (
        WordEncoder(tokenizer, template, window=window, words=spec.words)
        if has_words
        else TextEncoder(tokenizer, template, window=window)
    )

    def encode(texts: Sequence[str | JoinedText], *, first_index: int = 0) -> list[EncodedText]:
        encoded: list[EncodedText] = read(texts, first_index=first_index)
        if not has_words:
            require_tokens(encoded, list(map(plain_text, texts)), spec.poolings, first_index=first_index)
        if prepends:  # before the first token of every text, and before a quotation mark in front of it
            encoded = [insert_placeholder(row, _first_column(row, tokenizer)) for row in encoded]
        if most is not None:
            for item in encoded:
                _require_dense(item, texts[item.index - first_index], decoder, most)
        return encoded

    return encode


def _require_dense(item: EncodedText, text: str | JoinedText, decoder: Decoder, most: int) -> None:
    """Refuse a row of which a sparse indexer would leave keys out: it depends on its neighbours in a batch."""
    n_tokens = max(len(row.ids) for row in item.rows)
    if n_tokens > most:
        raise InputError(
            f"{label_text(plain_text(text), item.index)} takes {n_tokens} tokens, and in rows of more than {most} the "
            f"sparse attention of the family {decoder.description.family!r} depends on the other rows of a batch; set "
            f"template.max_tokens to {most} or less, and template.on_long to 'windows' to read all of the text."
        )


def _first_column(row: EncodedText, tokenizer: "PreTrainedTokenizerBase") -> int:
    text = np.flatnonzero(row.copies)
    column = int(text[0]) if len(text) else 0
    is_quoted = column > 0 and str(tokenizer.decode([int(row.ids[column - 1])])).strip() in QUOTES
    return column - is_quoted


def insert_placeholder(row: EncodedText, column: int) -> EncodedText:
    """Insert a placeholder as a column of a row, which no pooling reads; later columns move by one."""
    return replace(
        row,
        ids=np.insert(row.ids, column, FILLER),
        roles=np.insert(row.roles, column, SPECIAL),
        copy_of=np.insert(row.copies, column, 0),
        spans=None if row.spans is None else np.insert(row.spans, column, CONTEXT),
        last=row.last_column + (row.last_column >= column),
        words=None if row.words is None else _moved(row.words, column),
        placeholder=column,
    )


def _moved(words: WordColumns, inserted: int) -> WordColumns:
    def move(columns: NDArray[np.int64]) -> NDArray[np.int64]:
        is_read = columns[:, :1] < columns[:, 1:]
        return columns + (is_read & (columns[:, :1] >= inserted))

    return replace(words, columns=move(words.columns), echo=None if words.echo is None else move(words.echo))


class WordEncoder:
    """Turns texts with their words into rows of tokens, by the character offsets of one tokenisation.

    The tokenizer is a fast one, which has offsets; `window` is the longest row that the decoder takes, in tokens.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", template: InputTemplate, *, window: int, words: WordSpec
    ) -> None:
        self._tokenise = Tokeniser(tokenizer, template)
        self._dropped = DroppedCharacters(tokenizer)
        self.template, self.words = template, words
        self.spans = read_spans(template.spans)
        self.max_tokens = min(window, template.max_tokens or window)
        fillers = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, 0)
        self._filler = next(int(i) for i in fillers if i is not None)

    def __call__(self, texts: Sequence[JoinedText], *, first_index: int = 0) -> list[EncodedText]:
        """Encode texts; `first_index` is the position of the first in the caller's list, for messages.

        A text becomes one row, or several where it is read in windows. The rows of a text are consecutive, and each of
        its words is in exactly one of them, in order. Refused are a character that the tokenizer drops without a trace,
        a word without tokens under the policy `error`, and, with `shift`, a word at the first column of its row.
        """
        plain = [text.text for text in texts]
        rows: list[EncodedText] = []
        for item, text in zip(self._tokenise(plain, first_index=first_index), texts, strict=True):
            self._dropped.require_none(item)
            rows += self._encode(item, text.spans)
        return rows

    def _encode(self, item: TokenisedText, spans: Sequence[tuple[int, int]]) -> Iterator[EncodedText]:
        columns = item.text_columns
        aligned = align_words(item.offsets[columns], spans)
        if self.words.on_lost == "error" and aligned.is_lost.any():
            raise _lost(item, spans, int(np.argmax(aligned.is_lost)))
        if not len(columns):
            yield self._without_text(item, aligned)
        elif len(item.ids) > self.max_tokens and self.template.on_long == "windows":
            yield from self._windows(item, aligned)
        else:
            fitted, fitting = self._tokenise.fit(item, max_tokens=self.max_tokens)
            is_cut, read = aligned.ends > len(columns) - (len(item.ids) - len(fitting)), aligned
            if fitted is not item:  # written again without its end
                read = align_words(fitted.offsets[fitted.text_columns], spans)
                is_cut = (np.array([end for _, end in spans]) > fitted.n_characters) | read.is_lost
            flags = aligned.flags & WORD_LOST | read.flags & WORD_SHARED | (~aligned.is_lost & is_cut) * WORD_CUT
            words = _words(read, flags.astype(np.uint8), slice(None))
            words = replace(words, echo=self._echo(fitted, spans, words)) if self.template.repeat > 1 else words
            numbers = fitted.number_spans(self.spans, fitting)
            is_truncated = len(fitting) < len(item.ids)
            yield self._row(fitted, fitting, words=words, first_token=0, spans=numbers, is_cut=is_truncated)

    def _echo(
        self, item: TokenisedText, spans: Sequence[tuple[int, int]], words: WordColumns
    ) -> Int[np.ndarray, "W 2"]:
        """Find the columns of each word in the last copy; words without a latent have none."""
        columns, offsets = item.last_copy()
        aligned = align_words(offsets, spans)
        is_read = words.columns[:, 0] < words.columns[:, 1]
        if (is_read & aligned.is_lost).any():
            raise _lost(item, spans, int(np.argmax(is_read & aligned.is_lost)), where=" in the last copy")
        echo = np.zeros_like(words.columns)
        starts, ends = aligned.starts[is_read], aligned.ends[is_read]
        echo[is_read] = np.stack([columns[starts], columns[ends - 1] + 1], axis=1) - int(self.words.shift)
        return echo

    def _windows(self, item: TokenisedText, aligned: AlignedWords) -> Iterator[EncodedText]:
        # A shifted word is read at the token before it too, which must then be in the window.
        needed = aligned.starts - (self.words.shift & (aligned.starts > 0) & ~aligned.is_lost)
        placed, windows = lay_windows(item, needed, aligned.ends, max_tokens=self.max_tokens)
        flags = aligned.flags | (~aligned.is_lost & ~placed.is_whole) * np.uint8(WORD_CUT)
        spans = item.number_spans(self.spans, np.arange(len(item.ids)))
        for window, columns in enumerate(windows):
            first, last = np.searchsorted(placed.window_of, [window, window + 1])
            words = _words(aligned, flags, slice(first, last))
            in_window = None if spans is None else spans[columns]
            first_token = int(placed.starts[window])
            yield self._row(item, columns, words=words, first_token=first_token, spans=in_window, is_cut=False)

    def _row(
        self,
        item: TokenisedText,
        columns: NDArray[np.int64],
        *,
        words: WordColumns,
        first_token: int,
        spans: NDArray[np.int64] | None,
        is_cut: bool,
    ) -> EncodedText:
        """Make the row of some columns; until here, those of words count the tokens of the text alone."""
        text_columns = np.flatnonzero(item.copies[columns] == 1)
        has_latent = words.columns[:, 0] < words.columns[:, 1]
        starts, ends = (words.columns[has_latent] - first_token).T
        read = np.zeros_like(words.columns)
        read[has_latent] = np.stack([text_columns[starts], text_columns[ends - 1] + 1], axis=1) - int(self.words.shift)
        if (read < 0).any():
            raise InputError(
                f"{item.label} begins with a word at its very first token, and words.shift reads a word at the token "
                "before it: set template.bos to 'force'."
            )
        return self._tokenise.row(item, columns, is_truncated=is_cut, spans=spans, words=replace(words, columns=read))

    def _without_text(self, item: TokenisedText, aligned: AlignedWords) -> EncodedText:
        """Make the row of a text all of whose words are lost: its specials, or one token where there is none."""
        ids = item.ids[: self.max_tokens] if len(item.ids) else np.array([self._filler])
        roles = np.full(len(ids), SPECIAL, np.int8)
        words = _words(aligned, aligned.flags, slice(None))
        words = replace(words, echo=np.zeros_like(words.columns)) if self.template.repeat > 1 else words
        return EncodedText(ids, roles, False, None, item.index, words)


def _words(aligned: AlignedWords, flags: NDArray[np.uint8], some: slice) -> WordColumns:
    """Select some words; truncated ones have no columns."""
    is_whole = (flags[some] & WORD_CUT) == 0
    columns: Int[np.ndarray, "W 2"] = np.stack([aligned.starts[some], aligned.ends[some]], axis=1)
    return WordColumns(columns * is_whole[:, None], flags[some], int(some.start or 0))


def _lost(item: TokenisedText, spans: Sequence[tuple[int, int]], word: int, *, where: str = "") -> InputError:
    start, end = spans[word]
    return InputError(
        f"no token covers word {word} ({item.text[start:end]!r}, characters {start} to {end}) of {item.label}{where}: "
        "this tokenizer drops it. Take it out of the text, or set words.on_lost to 'count' to flag it and go on."
    )


@dataclass(frozen=True, eq=False)
class EmbeddedWords:
    """Latents of the words of texts, one text after the other."""

    latents: Float[Tensor, "L P W D"]
    """Float32 on the CPU; zeros where a word has no latent."""
    offsets: NDArray[np.int64]
    """(N + 1,) where the words of each text start."""
    flags: UInt8[np.ndarray, " W"]
    """Bits of `extract.inputs.joined_text`."""

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
        parts = embed_readings(decoder, texts, readings=spec.readings)
        return torch.stack([parts[name] for name in spec.views], dim=1)
    if len(spec.members) > 1:
        return torch.stack([embed_texts(decoder, texts, spec=member) for member in spec.members]).mean(0)
    encoder = make_encoder(decoder, spec, has_words=False)
    return _embed(decoder, encoder(texts), spec, spec.poolings)


def embed_readings(
    decoder: Decoder, texts: Sequence[str], *, readings: Mapping[str, ExtractionSpec]
) -> dict[str, Float[Tensor, "L N D"]]:
    """Compute latents as `embed_texts` does by several readings, of one pooling each; what they share runs once."""
    n_blocks, parts = len(decoder.blocks), dict[str, Float[Tensor, "L N D"]]()
    for one, names in join_readings(readings):
        latents, layers = embed_texts(decoder, texts, spec=one), select_layers(one.layers, n_blocks)
        for name in names:
            spec = readings[name]
            own = select_layers(spec.layers, n_blocks)
            widths = layer_widths(decoder, spec.mask_plan, own)
            width = max(widths.get(layer, decoder.description.width) for layer in own)
            rows = [layers.index(layer) for layer in own]
            parts[name] = latents[rows, one.poolings.index(spec.poolings[0]), :, :width]
    return parts


def embed_words(decoder: Decoder, texts: Sequence[JoinedText], *, spec: ExtractionSpec) -> EmbeddedWords:
    """Compute latents of words as `embed_texts` does; `InputError` also for a lost word under the policy `error`."""
    if spec.views:
        views = _embed_word_views(decoder, texts, spec)
        latents = torch.cat([views[name].latents for name in spec.views], dim=1)
        flags = np.bitwise_or.reduce([view.flags for view in views.values()])
        return replace(views[next(iter(spec.views))], latents=latents, flags=flags)
    if len(spec.members) > 1:
        parts = [embed_words(decoder, texts, spec=member) for member in spec.members]
        latents = torch.stack([part.latents for part in parts]).mean(0)
        return replace(parts[0], latents=latents, flags=np.bitwise_or.reduce([part.flags for part in parts]))
    encoder = make_encoder(decoder, spec, has_words=True)
    encoded = encoder(texts)
    return EmbeddedWords(
        latents=_embed(decoder, encoded, spec, _word_poolings(decoder, spec)),
        offsets=np.cumsum([0, *(len(text.spans) for text in texts)], dtype=np.int64),
        flags=np.concatenate([item.words.flags for item in encoded if item.words is not None]),
    )


def _embed_word_views(decoder: Decoder, texts: Sequence[JoinedText], spec: ExtractionSpec) -> dict[str, EmbeddedWords]:
    """Compute every view of words; those that differ in their poolings and layers alone are one pass."""
    views = {}
    for one, names in join_readings(spec.readings):
        joined = embed_words(decoder, texts, spec=one)
        layers, poolings = select_layers(one.layers, len(decoder.blocks)), _word_poolings(decoder, one)
        for name in names:
            view = spec.readings[name]
            rows = [layers.index(layer) for layer in select_layers(view.layers, len(decoder.blocks))]
            columns = [poolings.index(pooling) for pooling in _word_poolings(decoder, view)]
            views[name] = replace(joined, latents=joined.latents[rows][:, columns])
    return views


def _word_poolings(decoder: Decoder, spec: ExtractionSpec) -> tuple[str, ...]:
    first, *_ = spec.template.members  # an extraction refuses templates that pool words in other ways
    return select_word_poolings(spec.words.poolings, spec.mask_plan, len(decoder.blocks), n_copies=first.repeat)


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
    shares = spec.shares_prefix(len(encoded))
    with plan_in_force(decoder, spec.mask_plan, looks_inside=spec.looks_inside, shares=shares):
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

    n_rows: int
    """Of the store: unique texts, or windows of them where words are read in windows."""
    n_tokens: int
    """To compute, specials and instruction included, in each window again."""
    n_truncated: int
    """Texts longer than the window."""
    longest: int
    """Tokens of the longest text."""
    bytes_by_array: dict[str, int]
    """On disk, per array of the store."""
    tokens_per_second: float
    """The median of a few batches of these texts, after warm-up, scaled to all lengths."""
    seconds: float
    """Estimated time of the computation."""
    n_words: int = 0
    """Over all texts; 0 for whole texts."""
    example: str = ""
    """The first row, written out with roles."""

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
    shares = spec.shares_prefix(len(encoded))
    with plan_in_force(decoder, spec.mask_plan, looks_inside=spec.looks_inside, shares=shares):
        for k in (*[picks[N_TIMED // 2]] * N_WARM, *picks):
            whole = [encoded[i] for i in groups[k]]  # as many rows as hold `most` tokens; one that holds more is cut
            n_rows = max(1, most // max(len(row.ids) for row in whole))
            rows = [_cut(row, most) for row in whole[:n_rows]]
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
