"""A placeholder before every text, for plans that prepend one: a column of its own, which no pooling reads."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from extract.inputs.roles import SPECIAL
from extract.inputs.spans import CONTEXT
from extract.inputs.tokenised import EncodedText, WordColumns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUOTES = ('"', "'", "“", "«", "„", "「")
FILLER = 0  # any token: what the decoder embeds it as is replaced


def prepending(encode: Callable[..., list[EncodedText]], tokenizer: "PreTrainedTokenizerBase") -> Any:
    """Let an encoder put a placeholder before the first token of every text, and before a quotation mark in front."""

    def encode_prepended(texts: Sequence[Any], *, first_index: int = 0) -> list[EncodedText]:
        rows = encode(texts, first_index=first_index)
        return [insert_placeholder(row, _place(row, tokenizer)) for row in rows]

    return encode_prepended


def _place(row: EncodedText, tokenizer: "PreTrainedTokenizerBase") -> int:
    text = np.flatnonzero(row.copies)
    place = int(text[0]) if len(text) else 0
    is_quoted = place > 0 and str(tokenizer.decode([int(row.ids[place - 1])])).strip() in QUOTES
    return place - is_quoted


def insert_placeholder(row: EncodedText, place: int) -> EncodedText:
    """Insert a placeholder as column `place` of a row; what is known of later columns moves with them."""
    return replace(
        row,
        ids=np.insert(row.ids, place, FILLER),
        roles=np.insert(row.roles, place, SPECIAL),
        copy_of=np.insert(row.copies, place, 0),
        spans=None if row.spans is None else np.insert(row.spans, place, CONTEXT),
        last=row.last_column + (row.last_column >= place),
        words=None if row.words is None else _moved(row.words, place),
        placeholder=place,
    )


def _moved(words: WordColumns, place: int) -> WordColumns:
    def move(columns: NDArray[np.int64]) -> NDArray[np.int64]:
        is_read = columns[:, :1] < columns[:, 1:]
        return columns + (is_read & (columns[:, :1] >= place))

    return replace(words, columns=move(words.columns), echo=None if words.echo is None else move(words.echo))
