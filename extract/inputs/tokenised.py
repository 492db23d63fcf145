"""Texts as tokens, each with its role and its characters, from the offsets of one tokenisation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from extract.errors import InputError
from extract.inputs.frame import WrittenText, build_frame, normalise_sentence
from extract.inputs.roles import CHAT, SPECIAL, TEXT
from extract.inputs.spans import CONTEXT, SpanSource
from extract.inputs.template import InputTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXTS_AT_A_TIME = 256  # tokenised in one call; its result holds several kB per text


@dataclass(frozen=True)
class WordColumns:
    """The `W` words of a row."""

    columns: NDArray[np.int64]  # `(W, 2)` first and one past the last column each word is read at; equal for no latent
    flags: NDArray[np.uint8]  # `(W,)` bits of `extract.inputs.alignment`
    start: int = 0  # position of the first of them among the words of the text
    echo: NDArray[np.int64] | None = None  # `(W, 2)` the same as `columns` in the last copy; None without another copy


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
    placeholder: int | None = None  # column of a placeholder that a plan prepends to the text
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

    text: str  # without what a template writes around it
    index: int  # position in the caller's list
    ids: NDArray[np.int64]
    roles: NDArray[np.int8]
    offsets: NDArray[np.int64]  # `(T, 2)` characters of each token, from the first copy's beginning; negative before it
    copies: NDArray[np.int8]  # copy of the text that each token is of, from 1; 0 outside the text
    written: WrittenText  # the text with everything around it
    n_characters: int  # of the text, that were written

    @property
    def label(self) -> str:
        """The text as messages call it."""
        return label_text(self.text, self.index)

    @property
    def text_columns(self) -> Int[np.ndarray, " T"]:
        """Columns of the text's own tokens, in its first copy."""
        columns: NDArray[np.int64] = np.flatnonzero(self.copies == 1)
        return columns

    def last_copy(self) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, "T 2"]]:
        """Return the columns of the tokens in the last copy, and their characters from its beginning."""
        starts = self.written.starts
        offsets = self.offsets - (starts[-1] - starts[0])
        is_met = (offsets[:, 1] > 0) & (offsets[:, 0] < self.n_characters) & (self.roles == TEXT)
        columns: NDArray[np.int64] = np.flatnonzero(is_met | (self.copies == len(starts)))
        return columns, offsets[columns]

    def number_spans(self, source: SpanSource | None, columns: Int[np.ndarray, " T"]) -> Int[np.ndarray, " T"] | None:
        """Number the columns of a row by the spans of the text's own tokens; None without a source.

        Columns outside spans, specials and what a template writes are `CONTEXT`.
        """
        if source is None:
            return None
        numbers = np.full(len(columns), CONTEXT, np.int64)
        is_text = self.roles[columns] == TEXT
        numbers[is_text] = source.assign(self.text, self.offsets[columns[is_text]])
        return numbers


class Tokeniser:
    """Turns texts, each in the frame of a template, into tokens with roles and offsets.

    Raises:
        InputError: The tokenizer has no offsets, no BOS or EOS token where one is forced, or no fitting chat template.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: InputTemplate) -> None:
        if not tokenizer.is_fast:
            raise InputError(
                f"the tokenizer {type(tokenizer).__name__} gives no character offsets; "
                "allowed: a fast tokenizer (a folder with tokenizer.json)."
            )
        for noun, policy, token in (
            ("BOS", template.bos, tokenizer.bos_token_id),
            ("EOS", template.eos, tokenizer.eos_token_id),
        ):
            if policy == "force" and token is None:
                raise InputError(
                    f"the {noun} policy is 'force' but this tokenizer has no {noun} token; use 'auto' or 'none'."
                )
        if len(template.members) > 1:
            raise InputError(
                f"the template {template.name!r} is {len(template.members)} templates, whose latents are averaged; "
                "read texts with each of its members."
            )
        self.tokenizer, self.template, self.frame = tokenizer, template, build_frame(tokenizer, template)

    def __call__(self, texts: Sequence[str], *, first_index: int = 0) -> Iterator[TokenisedText]:
        """Tokenise texts, `texts[0]` being at `first_index` of the caller's list; nothing is cut.

        Raises:
            InputError: A doubled BOS token, a text that is not valid Unicode, or copies of a text that share a token;
                names the text.
        """
        for start in range(0, len(texts), TEXTS_AT_A_TIME):
            some = texts[start : start + TEXTS_AT_A_TIME]
            for i, text in enumerate(some, start=first_index + start):
                _require_unicode(text, i)
            yield from self._tokenise(some, some, first_index + start)

    def _tokenise(self, texts: Sequence[str], kept: Sequence[str], first_index: int) -> Iterator[TokenisedText]:
        """Tokenise what is kept of texts."""
        normalise = normalise_sentence if self.frame.changes_ends else str
        written = [self.frame.lay(normalise(text)) for text in kept]
        encoded = self.tokenizer(
            [each.whole for each in written],
            add_special_tokens=self.template.bos != "none" and not self.frame.is_chat,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            truncation=False,
            verbose=False,
        )
        rows = zip(encoded["input_ids"], encoded["special_tokens_mask"], encoded["offset_mapping"], strict=True)
        for i, (ids, is_special, offsets) in enumerate(rows):
            yield self._finish(
                np.array(ids, np.int64),
                np.array(is_special, np.bool_),
                np.array(offsets, np.int64).reshape(-1, 2),
                text=texts[i],
                index=first_index + i,
                written=written[i],
                n_characters=len(kept[i]),
            )

    def _finish(
        self,
        ids: NDArray[np.int64],
        is_special: NDArray[np.bool_],
        offsets: NDArray[np.int64],
        *,
        text: str,
        index: int,
        written: WrittenText,
        n_characters: int,
    ) -> TokenisedText:
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        roles, copies = written.assign(offsets)
        if len(ids) and ids[0] == bos and roles[0] == CHAT:  # written by the chat template itself
            is_special[0] = True
        roles, copies = np.where(is_special, SPECIAL, roles), np.where(is_special, 0, copies)
        if self.template.bos == "force" and (not len(ids) or ids[0] != bos):
            ids, roles = np.insert(ids, 0, int(bos)), np.insert(roles, 0, SPECIAL)
            copies, offsets = np.insert(copies, 0, 0), np.insert(offsets, 0, 0, axis=0)
        if self.template.eos == "force" and (not len(ids) or ids[-1] != eos):
            ids, roles, copies = np.append(ids, int(eos)), np.append(roles, SPECIAL), np.append(copies, 0)
            offsets = np.append(offsets, np.full((1, 2), len(written.whole)), axis=0)
        if bos is not None and len(ids) > 1 and (ids[:2] == bos).all():
            raise InputError(
                f"{label_text(text, index)} begins with two BOS tokens {self.tokenizer.bos_token!r}: the instruction "
                "or text brings one and the tokenizer adds another; take it out, or set bos to 'none'."
            )
        if self.template.eos == "none" and (roles != SPECIAL).any():
            end = int(np.flatnonzero(roles != SPECIAL)[-1]) + 1
            ids, roles, copies, offsets = ids[:end], roles[:end], copies[:end], offsets[:end]
        starts = written.starts
        if len(starts) > 1 and copies.any() and len(np.unique(copies[copies > 0])) < len(starts):
            raise InputError(
                f"copies of {label_text(text, index)} share a token, so that one has none of its own; set joiner, "
                f"which is {self.template.joiner!r}."
            )
        return TokenisedText(
            text, index, ids, roles.astype(np.int8), offsets - starts[0], copies.astype(np.int8), written, n_characters
        )

    def fit(self, item: TokenisedText, *, max_tokens: int) -> tuple[TokenisedText, Int[np.ndarray, " T"]]:
        """Cut a text, and never its template, so that its row takes at most `max_tokens`.

        Where nothing is written after the text, tokens are dropped from its end. Else the text is written again, up to
        the last token that fits, so that every copy holds the same characters.

        Returns:
            The text with its tokens, and the columns that are kept.

        Raises:
            InputError: A text that is too long under the policy `error`, or a template that leaves no room for it.
        """
        n_tokens, n_excess = len(item.ids), len(item.ids) - max_tokens
        if n_excess <= 0:
            return item, np.arange(n_tokens)
        if self.template.on_long == "error":
            raise InputError(
                f"{item.label} has {n_tokens} tokens; at most {max_tokens} fit. Shorten it, or set on_long to "
                "'truncate'."
            )
        if not self.frame.is_open:
            shorter = self._shorten(item, max_tokens)
            return shorter, np.arange(len(shorter.ids))
        if len(item.text_columns) <= n_excess:
            raise no_room(item, n_tokens - len(item.text_columns), max_tokens)
        return item, np.delete(np.arange(n_tokens), item.text_columns[-n_excess:])

    def _shorten(self, item: TokenisedText, max_tokens: int) -> TokenisedText:
        """Write the longest beginning of a text that fits and ends with a token of its first copy."""
        ends = np.unique(item.offsets[item.text_columns, 1]).clip(max=item.n_characters)
        ends, found = ends[ends > 0], None
        low, high = -1, min(len(ends) - 1, max_tokens)  # `low` fits and `high` does not
        while high - low > 1:
            middle = (low + high) // 2
            (cut,) = self._tokenise([item.text], [item.text[: ends[middle]]], item.index)
            if len(cut.ids) <= max_tokens:
                low, found = middle, cut
            else:
                high = middle
        if found is None:
            raise no_room(item, int((item.roles != TEXT).sum()), max_tokens)
        return found

    def row(
        self,
        item: TokenisedText,
        kept: Int[np.ndarray, " T"],
        *,
        is_truncated: bool,
        spans: Int[np.ndarray, " T"] | None,
        words: WordColumns | None = None,
    ) -> EncodedText:
        """Make the row of some columns of a text.

        Raises:
            InputError: The row does not end with the EOS token that the pooling `last` is to read.
        """
        ids, roles = item.ids[kept], item.roles[kept]
        return EncodedText(
            ids,
            roles,
            is_truncated,
            spans,
            item.index,
            words,
            copy_of=item.copies[kept],
            last=self._last_column(item, ids, roles),
        )

    def _last_column(self, item: TokenisedText, ids: NDArray[np.int64], roles: NDArray[np.int8]) -> int:
        """Find the column that the pooling `last` reads."""
        last = self.template.last
        if last == "eos" and ids[-1] != self.tokenizer.eos_token_id:
            raise InputError(
                f"last is 'eos', but the row of {item.label} ends without an EOS token; set eos to 'force'."
            )
        if last == "prompt":
            return int(np.flatnonzero((roles != SPECIAL) & (roles != CHAT))[-1])
        return int(np.flatnonzero(roles == TEXT)[-1]) if last == "text" else len(ids) - 1


def no_room(item: TokenisedText, n_taken: int, max_tokens: int) -> InputError:
    """Make the error of a text for which instruction and specials, `n_taken` tokens, leave no room."""
    return InputError(
        f"{item.label}: instruction and specials take {n_taken} of {max_tokens} tokens "
        "and leave no room for the text; shorten the instruction or raise max_tokens."
    )


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

    def require_none(self, item: TokenisedText) -> None:
        """Refuse a text of which a character was dropped; names the text and the first such character."""
        if self._core is None:
            return
        text = item.written.whole
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
