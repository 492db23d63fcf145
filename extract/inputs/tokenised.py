"""Texts as tokens, each with its role and its characters, from the offsets of one tokenisation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from extract.errors import InputError
from extract.inputs.spans import CONTEXT, SpanSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PADDING, SPECIAL, INSTRUCTION, TEXT, SUFFIX, JOINER, CHAT = -1, 0, 1, 2, 3, 4, 5  # token roles
ELSEWHERE = 6  # role of a text token in a window that gives it context, while another window represents it
TEXTS_AT_A_TIME = 256  # tokenised in one call; its result holds several kB per text


@dataclass(frozen=True)
class WordColumns:
    """The `W` words of a row."""

    columns: NDArray[np.int64]  # `(W, 2)` first and one past the last column each word is read at; equal for no latent
    flags: NDArray[np.uint8]  # `(W,)` bits of `extract.inputs.alignment`
    start: int = 0  # position of the first of them among the words of the text


@dataclass(frozen=True)
class EncodedText:
    """One row of `T` tokens: a text, or a piece of one."""

    ids: NDArray[np.int64]
    roles: NDArray[np.int8]  # `SPECIAL`, `INSTRUCTION`, `TEXT`, `SUFFIX`, `JOINER`, `CHAT` or `ELSEWHERE`
    is_truncated: bool  # text tokens were dropped from the end
    spans: NDArray[np.int64] | None = None  # span number per token, `CONTEXT` outside spans; None without spans
    index: int = 0  # position of the text in the caller's list
    words: WordColumns | None = None  # the words read from this row; None for a plain text
    copy_of: NDArray[np.int8] | None = None  # copy of the text that each token is of, from 1; None where it has one
    last: int | None = None  # column that the pooling `last` reads; that of the last token when absent
    windows: tuple["EncodedText", ...] = ()  # of a plain text longer than a row: what is read instead of `ids`

    @property
    def rows(self) -> tuple["EncodedText", ...]:
        """What goes through the decoder: the windows of a text that has some, else the text itself."""
        return self.windows or (self,)

    @property
    def copies(self) -> NDArray[np.int8]:
        """The copy of the text that each token is of, from 1; 0 outside the text."""
        return (self.roles == TEXT).astype(np.int8) if self.copy_of is None else self.copy_of

    @property
    def last_column(self) -> int:
        """Column that the pooling `last` reads."""
        return len(self.ids) - 1 if self.last is None else self.last


@dataclass(frozen=True, eq=False)
class TokenisedText:
    """One text with all of its `T` tokens, before anything is cut."""

    text: str  # without instruction
    index: int  # position in the caller's list
    ids: NDArray[np.int64]
    roles: NDArray[np.int8]
    offsets: NDArray[np.int64]  # `(T, 2)` characters of each token, from the text's beginning; negative before it

    @property
    def label(self) -> str:
        """The text as messages call it."""
        return label_text(self.text, self.index)

    @property
    def text_columns(self) -> Int[np.ndarray, " T"]:
        """Columns of the text's own tokens."""
        columns: NDArray[np.int64] = np.flatnonzero(self.roles == TEXT)
        return columns

    def number_spans(self, source: SpanSource | None, columns: Int[np.ndarray, " T"]) -> Int[np.ndarray, " T"] | None:
        """Number the columns of a row by the spans of the text's own tokens; None without a source.

        Columns outside spans, specials and the instruction are `CONTEXT`.
        """
        if source is None:
            return None
        numbers = np.full(len(columns), CONTEXT, np.int64)
        is_text = self.roles[columns] == TEXT
        numbers[is_text] = source.assign(self.text, self.offsets[columns[is_text]])
        return numbers


class Tokeniser:
    """Turns texts, each behind the instruction, into tokens with roles and offsets; nothing is cut.

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
        """Tokenise texts, `texts[0]` being at `first_index` of the caller's list.

        Raises:
            InputError: A doubled BOS token, or a text that is not valid Unicode; names the text.
        """
        for start in range(0, len(texts), TEXTS_AT_A_TIME):
            some = texts[start : start + TEXTS_AT_A_TIME]
            for i, text in enumerate(some, start=first_index + start):
                _require_unicode(text, i)
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
            for i, (ids, is_special, offsets, text) in enumerate(rows, start=first_index + start):
                yield self._finish(
                    np.array(ids, np.int64), np.array(is_special, np.bool_),
                    np.array(offsets, np.int64).reshape(-1, 2), text=text, index=i,
                )  # fmt: skip

    def _finish(
        self, ids: NDArray[np.int64], is_special: NDArray[np.bool_], offsets: NDArray[np.int64], *, text: str,
        index: int,
    ) -> TokenisedText:  # fmt: skip
        n_instruction = len(self.instruction)
        # A token across the border holds characters of the text, so it counts as text.
        is_text = (offsets[:, 1] > n_instruction) | (n_instruction == 0)
        roles = np.where(is_special, SPECIAL, np.where(is_text, TEXT, INSTRUCTION)).astype(np.int8)
        bos = self.tokenizer.bos_token_id
        if self.bos == "force" and (not len(ids) or ids[0] != bos):
            ids, roles = np.insert(ids, 0, int(bos)), np.insert(roles, 0, SPECIAL)
            offsets = np.insert(offsets, 0, 0, axis=0)
        if bos is not None and len(ids) > 1 and (ids[:2] == bos).all():
            raise InputError(
                f"{label_text(text, index)} begins with two BOS tokens {self.tokenizer.bos_token!r}: the instruction "
                "or text brings one and the tokenizer adds another; take it out, or set bos to 'none'."
            )
        return TokenisedText(text, index, ids, roles, offsets - n_instruction)


def fit_columns(item: TokenisedText, *, max_tokens: int, on_long: str) -> Int[np.ndarray, " T"]:
    """Choose the columns a row keeps; text tokens are dropped from the end of a text that is too long.

    Raises:
        InputError: A text that is too long under the policy `error`, or an instruction that leaves no room for it.
    """
    n_tokens, n_excess = len(item.ids), len(item.ids) - max_tokens
    if n_excess <= 0:
        return np.arange(n_tokens)
    if on_long == "error":
        raise InputError(
            f"{item.label} has {n_tokens} tokens; at most {max_tokens} fit. Shorten it, or set on_long to 'truncate'."
        )
    if len(item.text_columns) <= n_excess:
        raise InputError(
            f"{item.label}: instruction and specials take {n_tokens - len(item.text_columns)} of {max_tokens} tokens "
            "and leave no room for the text; shorten the instruction or raise max_tokens."
        )
    return np.delete(np.arange(n_tokens), item.text_columns[-n_excess:])


class DroppedCharacters:
    """Finds texts of which a tokenizer drops characters, after which the offsets of their neighbours are wrong.

    Only a BPE without an unknown token, without byte fallback and without all 256 bytes in its vocabulary does so. It
    then counts the characters that are left, so that later tokens of the same piece get the characters of earlier
    ones. Characters that a normaliser removes are fine: the offsets account for them.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        from tokenizers.pre_tokenizers import ByteLevel

        core: Any = tokenizer.backend_tokenizer
        model = core.model
        is_bpe = type(model).__name__ == "BPE"
        is_open = is_bpe and model.unk_token is None and not model.byte_fallback
        if is_open and (model.continuing_subword_prefix or model.end_of_word_suffix):
            is_open = False  # tokens hold more than the text's own characters and cannot be compared with it
        self._core = core if is_open and not set(ByteLevel.alphabet()) <= tokenizer.get_vocab().keys() else None

    def require_none(self, item: TokenisedText, *, instruction: str) -> None:
        """Refuse a text of which a character was dropped; names the text and the first such character."""
        if self._core is None:
            return
        text = instruction + item.text
        if self._core.normalizer is not None:
            text = self._core.normalizer.normalize_str(text)
        if self._core.pre_tokenizer is not None:
            text = "".join(piece for piece, _ in self._core.pre_tokenizer.pre_tokenize_str(text))
        kept = iter("".join(self._core.id_to_token(token) for token in item.ids[item.roles != SPECIAL].tolist()))
        for character in text:
            if character != next(kept, ""):
                raise InputError(
                    f"the tokenizer has no token for {character!r} in {item.label} and drops it, after which it no "
                    "longer reports where its tokens are; remove the character, or use a tokenizer with an unknown "
                    "token."
                )


def label_text(text: str, index: int) -> str:
    """Name a text in a message: its position and its beginning."""
    return f"text {index} ({text if len(text) <= 40 else text[:39] + '…'!r})"


def _require_unicode(text: str, index: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{label_text(text, index)} is not valid Unicode; fix its surrogates.") from error
