"""Texts as tokens, each with its role and its characters, by the offsets of one tokenisation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from extract.errors import InputError
from extract.inputs.spans import CONTEXT, SpanSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL, INSTRUCTION, TEXT = 0, 1, 2  # token roles
TEXTS_AT_A_TIME = 256  # tokenised in one call; its result holds several kB per text


@dataclass(frozen=True)
class WordColumns:
    """The words that a row holds.

    Attributes:
        columns: `(W, 2)` int64, first and one past the last column that each is read at; equal where it has no latent.
        flags: `(W,)` uint8, bits of `extract.inputs.alignment`.
        start: Position of the first of them among the words of the text.
    """

    columns: NDArray[np.int64]
    flags: NDArray[np.uint8]
    start: int = 0


@dataclass(frozen=True)
class EncodedText:
    """One row of tokens: a text, or a piece of one.

    Attributes:
        ids: `(T,)` int64 token ids.
        roles: `(T,)` int8, one of `SPECIAL`, `INSTRUCTION`, `TEXT`.
        is_truncated: Text tokens were dropped from the end.
        spans: `(T,)` int64 span number per token, `CONTEXT` outside spans; None where the template has none.
        index: Position of the text in the caller's list.
        words: The words that are read from this row; None for a plain text.
    """

    ids: NDArray[np.int64]
    roles: NDArray[np.int8]
    is_truncated: bool
    spans: NDArray[np.int64] | None = None
    index: int = 0
    words: WordColumns | None = None


@dataclass(frozen=True)
class TokenisedText:
    """One text and all of its tokens, before anything is cut.

    Attributes:
        text: The text, without instruction.
        index: Position of the text in the caller's list.
        ids: Token ids.
        roles: Role per token.
        offsets: First and one past the last character of each token, counted with the instruction in front.
        n_instruction: Characters of the instruction.
    """

    text: str
    index: int
    ids: list[int]
    roles: list[int]
    offsets: list[tuple[int, int]]
    n_instruction: int

    @property
    def label(self) -> str:
        """The text as messages call it."""
        return label_text(self.text, self.index)

    def text_columns(self) -> list[int]:
        """Columns of the text's own tokens."""
        return [column for column, role in enumerate(self.roles) if role == TEXT]

    def text_offsets(self, columns: Sequence[int]) -> Int[np.ndarray, "T 2"]:
        """Characters of some tokens, counted from the beginning of the text itself.

        Args:
            columns: `T` columns.

        Returns:
            `(T, 2)` int64 first and one past the last character; below zero for what lies in the instruction.
        """
        picked = np.array([self.offsets[column] for column in columns], np.int64).reshape(-1, 2)
        return picked - self.n_instruction

    def number_spans(self, source: SpanSource, columns: Sequence[int]) -> Int[np.ndarray, " T"]:
        """Number the spans of the text's own tokens; specials and instruction are context.

        Args:
            source: Gives the numbers.
            columns: `T` columns of the row that is made of the text.

        Returns:
            `(T,)` span number per column, `CONTEXT` outside spans.
        """
        numbers = np.full(len(columns), CONTEXT, np.int64)
        places = [place for place, column in enumerate(columns) if self.roles[column] == TEXT]
        offsets = self.text_offsets([columns[place] for place in places]).tolist()
        numbers[places] = source.assign(self.text, [(first, last) for first, last in offsets])
        return numbers


class Tokeniser:
    """Turns texts into tokens with roles and offsets; nothing is cut.

    Args:
        tokenizer: A fast tokenizer (the offsets come from it).
        bos: A name from `BOS_POLICIES`.
        instruction: Text placed before every text.

    Raises:
        InputError: The tokenizer has no offsets, or no BOS token where one is forced.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, bos: str, instruction: str) -> None:
        if not tokenizer.is_fast:
            raise InputError(
                f"the tokenizer {type(tokenizer).__name__} gives no character offsets; "
                "allowed: a fast tokenizer (a folder with tokenizer.json)."
            )
        if bos == "force" and tokenizer.bos_token_id is None:
            raise InputError("the BOS policy is 'force' but this tokenizer has no BOS token; use 'auto' or 'none'.")
        self.tokenizer, self.bos, self.instruction = tokenizer, bos, instruction

    def __call__(self, texts: Sequence[str], *, first_index: int = 0) -> Iterator[TokenisedText]:
        """Tokenise texts.

        Args:
            texts: Any number of texts.
            first_index: Position of `texts[0]` in the caller's list, for messages.

        Yields:
            One `TokenisedText` per text.

        Raises:
            InputError: A doubled BOS token, or a text that is no valid Unicode; names the text.
        """
        for start in range(0, len(texts), TEXTS_AT_A_TIME):
            some = texts[start : start + TEXTS_AT_A_TIME]
            for i, text in enumerate(some, start=first_index + start):
                if not _is_unicode(text):
                    raise InputError(f"{label_text(text, i)} is no valid Unicode; mend its surrogates.")
            encoded = self.tokenizer(
                [self.instruction + text for text in some],
                add_special_tokens=self.bos != "none",
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                return_attention_mask=False,
                truncation=False,
                verbose=False,
            )
            rows = zip(
                encoded["input_ids"], encoded["special_tokens_mask"], encoded["offset_mapping"], some, strict=True
            )
            for i, (ids, special, offsets, text) in enumerate(rows, start=first_index + start):
                yield self._finish(ids, special, offsets, text=text, index=i)

    def _finish(
        self, ids: list[int], special: list[int], offsets: list[tuple[int, int]], *, text: str, index: int
    ) -> TokenisedText:
        n_instruction = len(self.instruction)
        roles = [_role(bool(s), end, n_instruction) for s, (_, end) in zip(special, offsets, strict=True)]
        bos = self.tokenizer.bos_token_id
        if self.bos == "force" and (not ids or ids[0] != bos):
            ids, roles, offsets = [int(bos), *ids], [SPECIAL, *roles], [(0, 0), *offsets]
        if bos is not None and ids[:2] == [bos, bos]:
            raise InputError(
                f"{label_text(text, index)} begins with two BOS tokens {self.tokenizer.bos_token!r}: the instruction "
                "or text brings one and the tokenizer adds another; take it out, or set bos to 'none'."
            )
        return TokenisedText(text, index, ids, roles, offsets, n_instruction)


def fit_columns(item: TokenisedText, *, max_tokens: int, on_long: str) -> list[int]:
    """Choose the columns that a row keeps, text tokens dropped from the end where it is too long.

    Args:
        item: The text.
        max_tokens: Longest row in tokens.
        on_long: A name from `LONG_POLICIES`.

    Returns:
        The columns, in order.

    Raises:
        InputError: A text that is too long under the policy `error`, or an instruction that leaves no room for it.
    """
    n_excess = len(item.ids) - max_tokens
    if n_excess <= 0:
        return list(range(len(item.ids)))
    if on_long == "error":
        raise InputError(
            f"{item.label} has {len(item.ids)} tokens; at most {max_tokens} fit. "
            "Shorten it, or set on_long to 'truncate'."
        )
    text_columns = item.text_columns()
    if len(text_columns) <= n_excess:
        raise InputError(
            f"{item.label}: instruction and specials take {len(item.ids) - len(text_columns)} of {max_tokens} tokens "
            "and leave no room for the text; shorten the instruction or raise max_tokens."
        )
    cut = set(text_columns[-n_excess:])
    return [column for column in range(len(item.ids)) if column not in cut]


def label_text(text: str, index: int) -> str:
    """Name a text in a message: its position and its beginning."""
    return f"text {index} ({_shorten(text)})"


def _role(is_special: bool, end: int, n_instruction: int) -> int:
    # A token that straddles the seam carries characters of the text, so it counts as text.
    if is_special:
        return SPECIAL
    return INSTRUCTION if end <= n_instruction and n_instruction > 0 else TEXT


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shorten(text: str, width: int = 40) -> str:
    return repr(text if len(text) <= width else text[: width - 1] + "…")
