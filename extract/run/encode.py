"""Texts with their words as rows of tokens: the columns each word is read at, and long texts in windows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from extract.decoders.decoder import Decoder
from extract.errors import InputError
from extract.inputs.joined_text import WORD_CUT, WORD_LOST, WORD_SHARED, AlignedWords, JoinedText, align_words
from extract.inputs.spans import CONTEXT, SPECIAL, read_spans
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
)
from extract.poolings.pooling_table import find_token_set
from extract.poolings.poolings import require_joinable, require_tokens
from extract.run.extraction_spec import ExtractionSpec, WordSpec, require_one_reading

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
    window = decoder.description.window - (spec.mask_plan.prepend is not None)
    encode: Encoder
    if has_words:
        encode = WordEncoder(decoder.tokenizer, spec.template, window=window, words=spec.words)
    else:
        encode = requiring_tokens(TextEncoder(decoder.tokenizer, spec.template, window=window), spec.poolings)
    if spec.mask_plan.prepend is not None:
        encode = prepending(encode, decoder.tokenizer)
    return keeping_dense(encode, decoder)


def requiring_tokens(encode: Encoder, poolings: Sequence[str]) -> Encoder:
    """Let an encoder refuse rows without the tokens that a pooling reads."""
    if not any(map(find_token_set, poolings)):
        return encode

    def encode_checked(texts: Sequence[str], *, first_index: int = 0) -> list[EncodedText]:
        rows = encode(texts, first_index=first_index)
        require_tokens(rows, texts, poolings, first_index=first_index)
        return rows

    return encode_checked


def keeping_dense(encode: Encoder, decoder: Decoder) -> Encoder:
    """Let an encoder refuse rows of which a sparse indexer would leave keys out: they depend on their neighbours."""
    most = decoder.longest_dense_row
    if most is None or most >= decoder.description.window:
        return encode

    def encode_checked(texts: Sequence[str | JoinedText], *, first_index: int = 0) -> list[EncodedText]:
        encoded = encode(texts, first_index=first_index)
        for item in encoded:
            n_tokens = max(len(row.ids) for row in item.rows)
            if n_tokens > most:
                text = texts[item.index - first_index]
                label = label_text(text.text if isinstance(text, JoinedText) else text, item.index)
                raise InputError(
                    f"{label} takes {n_tokens} tokens, and in rows of more than {most} the sparse attention of the "
                    f"family {decoder.description.family!r} depends on the other rows of a batch; set "
                    f"template.max_tokens to {most} or less, and template.on_long to 'windows' to read all of the text."
                )
        return encoded

    return encode_checked


def prepending(encode: Encoder, tokenizer: "PreTrainedTokenizerBase") -> Encoder:
    """Let an encoder put a placeholder before the first token of every text, and before a quotation mark in front."""

    def encode_prepended(texts: Sequence[str | JoinedText], *, first_index: int = 0) -> list[EncodedText]:
        rows = encode(texts, first_index=first_index)
        return [insert_placeholder(row, _first_column(row, tokenizer)) for row in rows]

    return encode_prepended


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
        return EncodedText(ids, roles, False, None, item.index, _words(aligned, aligned.flags, slice(None)))


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
