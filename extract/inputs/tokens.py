"""Texts as rows of tokens.

A `Frame` writes instruction, further copies, suffix and the marks of a chat around a text; the `Tokeniser` turns that
into tokens with roles and characters, and cuts what is too long; `TextEncoder` makes rows of plain texts, long ones in
overlapping windows. Words are placed in rows by `extract.run.embed`.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int, Int8
from numpy.typing import NDArray

from extract.errors import InputError, first_line, without_panics
from extract.files import digest_json
from extract.inputs.joined_text import (
    CHAT,
    CONTEXT,
    ELSEWHERE,
    INSTRUCTION,
    JOINER,
    ROLES,
    SPECIAL,
    SUFFIX,
    TEXT,
    JoinedText,
    SpanSource,
    read_spans,
)
from extract.inputs.template import InputTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MARK = "\ue000"
"""A private-use character that stands for the copies of a text while a chat is written."""
TEXTS_PER_CALL = 256
"""Texts tokenised in one call, whose result holds several kB per text."""
MOST_LETTERS = 60
"""Of a run of tokens with one role in `show_row`; of more, only the ends are shown."""
Pieces = tuple[tuple[int, str], ...]
"""Roles and the text of each."""


@dataclass(frozen=True)
class Frame:
    """Everything around a text, as a template writes it."""

    before: Pieces
    after: Pieces
    joiner: str
    """Between copies."""
    repeat: int
    """Copies of a text."""
    is_chat: bool
    """The pieces bring special tokens with them."""
    changes_ends: bool
    """The end and the quotes of texts are normalised first."""

    @property
    def is_open(self) -> bool:
        """Whether nothing follows a text, so that the tokens at its end can be dropped."""
        return self.repeat == 1 and not any(piece for _, piece in self.after)

    def write(self, text: str) -> "WrittenText":
        """Write a text, as it is, with everything around it."""
        copies: list[tuple[int, str]] = [(TEXT, text), *((JOINER, self.joiner), (TEXT, text)) * (self.repeat - 1)]
        pieces = [*self.before, *copies, *self.after]
        borders = np.array([0, *accumulate(len(piece) for _, piece in pieces)], np.int64)
        return WrittenText("".join(piece for _, piece in pieces), borders, np.array([role for role, _ in pieces]))


@dataclass(frozen=True, eq=False)
class WrittenText:
    """The characters of a row, before the tokenizer adds its specials."""

    whole: str
    borders: NDArray[np.int64]
    """`(P + 1,)` where each piece begins, and the end."""
    roles: NDArray[np.int64]
    """`(P,)`."""

    @property
    def starts(self) -> Int[np.ndarray, " K"]:
        """The character at which each copy of the text begins."""
        return np.asarray(self.borders[:-1][self.roles == TEXT])

    def assign(self, offsets: Int[np.ndarray, "T 2"]) -> tuple[Int8[np.ndarray, " T"], Int8[np.ndarray, " T"]]:
        """Find the role of each token, and the copy of the text that it belongs to; 0 outside the text.

        A token across a border holds characters of the text, so it counts as text, and as that of the first copy it
        touches.
        """
        end = np.maximum(offsets[:, 1] - 1, 0)
        last = self._piece_of(end)
        first = np.minimum(self._piece_of(offsets[:, 0]), last)
        texts = np.flatnonzero(self.roles == TEXT)
        next_text = np.append(texts, len(self.roles))[np.searchsorted(texts, first)]
        piece = np.where(next_text <= last, next_text, first)
        roles = self.roles[piece].astype(np.int8)
        copies = np.where(roles == TEXT, np.searchsorted(texts, piece) + 1, 0).astype(np.int8)
        return roles, copies

    def _piece_of(self, characters: Int[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
        """Find the piece of each character; empty pieces hold none."""
        return (np.searchsorted(self.borders, characters, side="right") - 1).clip(max=len(self.roles) - 1)


def build_frame(tokenizer: "PreTrainedTokenizerBase", template: InputTemplate) -> Frame:
    """Build the frame of a template; `InputError` where the tokenizer's chat template does not fit it."""
    before: Pieces = ((INSTRUCTION, template.instruction),)
    after: Pieces = ((SUFFIX, template.suffix),)
    is_chat = template.chat != "none"
    if is_chat:
        head, tail = _write_chat(tokenizer, template)
        before = _split(head, template.instruction, INSTRUCTION)
        after = _split(tail[::-1], template.suffix[::-1], SUFFIX)
        after = (*((role, piece[::-1]) for role, piece in after[::-1]), (SUFFIX, template.answer))
    return Frame(before, after, template.joiner, template.repeat, is_chat, template.normalise == "sentence")


def _write_chat(tokenizer: "PreTrainedTokenizerBase", template: InputTemplate) -> tuple[str, str]:
    """Write the parts of a chat before and after the copies of a text."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(f"the tokenizer has no chat template; set chat to 'none', not {template.chat!r}.")
    messages = [{"role": "user", "content": template.instruction + MARK + template.suffix}]
    if template.system:
        messages.insert(0, {"role": "system", "content": template.system})
    written = render_chat(tokenizer, messages, begins_answer=template.chat == "assistant")
    before, *after = written.split(MARK)
    if len(after) != 1:
        raise InputError(
            f"the chat template of this tokenizer writes the user's text {len(after)} times; allowed: once."
        )
    return before, after[0]


def _split(written: str, words: str, role: int) -> Pieces:
    """Split the words of an input template off the end of a part of a chat, which may strip blanks at the far end."""
    for ending in (words, words.lstrip()):
        if written.endswith(ending):
            return ((CHAT, written.removesuffix(ending)), (role, ending))
    raise InputError(f"the chat template of this tokenizer changes {words!r}, which is beside the text.")


def digest_chat(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Digest the chat template of a tokenizer and its output today, as some write the date."""
    written = _write_chat(tokenizer, InputTemplate(chat="assistant"))
    return digest_json([str(getattr(tokenizer, "chat_template", "")), written])


def normalise_sentence(text: str) -> str:
    """Normalise a text as the released programs of PromptEOL do; no character changes its position.

    Example:
        >>> normalise_sentence('Is it "cold"?'), normalise_sentence("It is cold")
        ("Is it 'cold'.", 'It is cold.')
    """
    ended = text if text[-1:] in (".", "?", '"', "'") else text + "."
    quoted = ended.replace('"', "'")
    return f"{quoted[:-1]}." if quoted.endswith("?") else quoted


@dataclass(frozen=True)
class WordColumns:
    """The `W` words of a row."""

    columns: NDArray[np.int64]
    """`(W, 2)` first and one past the last column each word is read at; equal for no latent."""
    flags: NDArray[np.uint8]
    """`(W,)` bits of `extract.inputs.joined_text`."""
    start: int = 0
    """Position of the first of them among the words of the text."""
    echo: NDArray[np.int64] | None = None
    """`(W, 2)` the same as `columns` in the last copy; None without another copy."""


@dataclass(frozen=True)
class EncodedText:
    """One row of `T` tokens: a text, or a piece of one."""

    ids: NDArray[np.int64]
    roles: NDArray[np.int8]
    """`SPECIAL`, `INSTRUCTION`, `TEXT`, `SUFFIX`, `JOINER`, `CHAT` or `ELSEWHERE`."""
    is_truncated: bool
    """Text tokens were dropped from the end."""
    spans: NDArray[np.int64] | None = None
    """Span number per token, `CONTEXT` outside spans; None without spans."""
    index: int = 0
    """Position of the text in the caller's list."""
    words: WordColumns | None = None
    """The words read from this row; None for a plain text."""
    copy_of: NDArray[np.int8] | None = None
    """`copies`; None for a text that is written once."""
    placeholder: int | None = None
    """Column of a placeholder that a plan prepends to the text."""
    last: int | None = None
    """Column that the pooling `last` reads; that of the last token when absent."""
    windows: tuple["EncodedText", ...] = ()
    """Of a plain text longer than a row: read instead of `ids`."""

    @property
    def rows(self) -> tuple["EncodedText", ...]:
        """The rows that go through the decoder: the windows of a text that has some, else the text itself."""
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

    text: str
    """Without its frame."""
    index: int
    """Position in the caller's list."""
    ids: NDArray[np.int64]
    roles: NDArray[np.int8]
    offsets: NDArray[np.int64]
    """`(T, 2)` characters of each token, from the first copy's beginning; negative before it."""
    copies: NDArray[np.int8]
    """Copy of the text that each token is of, from 1; 0 outside the text."""
    written: WrittenText
    """The text with everything around it."""
    n_characters: int
    """Of the text, in `written`."""

    @property
    def label(self) -> str:
        """The name of the text in messages."""
        return label_text(self.text, self.index)

    @property
    def text_columns(self) -> Int[np.ndarray, " T"]:
        """Columns of the text's own tokens, in its first copy."""
        return np.flatnonzero(self.copies == 1)

    def last_copy(self) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, "T 2"]]:
        """Return the columns of the tokens in the last copy, and their characters from its beginning."""
        starts = self.written.starts
        offsets = self.offsets - (starts[-1] - starts[0])
        is_touched = (offsets[:, 1] > 0) & (offsets[:, 0] < self.n_characters) & (self.roles == TEXT)
        columns = np.flatnonzero(is_touched | (self.copies == len(starts)))
        return columns, offsets[columns]

    def number_spans(self, source: SpanSource | None, columns: Int[np.ndarray, " T"]) -> Int[np.ndarray, " T"] | None:
        """Number the columns of a row by the spans of the text's own tokens; None without a source.

        Columns outside spans, specials and the frame are `CONTEXT`.
        """
        if source is None:
            return None
        numbers = np.full(len(columns), CONTEXT, np.int64)
        is_text = self.roles[columns] == TEXT
        numbers[is_text] = source.assign(self.text, self.offsets[columns[is_text]])
        return numbers


class Tokeniser:
    """Turns texts, each in the frame of a template, into tokens with roles and offsets, or refuses them."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: InputTemplate) -> None:
        if not tokenizer.is_fast:
            raise InputError(
                f"the tokenizer {type(tokenizer).__name__} gives no character offsets; "
                "allowed: a fast tokenizer (a folder with tokenizer.json)."
            )
        tokens = ("BOS", template.bos, tokenizer.bos_token_id), ("EOS", template.eos, tokenizer.eos_token_id)
        for noun, policy, token in tokens:
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

        `InputError` names a text with a doubled BOS token, invalid Unicode, or copies that share a token.
        """
        for start in range(0, len(texts), TEXTS_PER_CALL):
            some = texts[start : start + TEXTS_PER_CALL]
            for i, text in enumerate(some, start=first_index + start):
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise InputError(f"{label_text(text, i)} is not valid Unicode; fix its surrogates.") from error
            yield from self._tokenise(some, some, first_index + start)

    def _tokenise(self, texts: Sequence[str], parts: Sequence[str], first_index: int) -> Iterator[TokenisedText]:
        """Tokenise parts of texts, each the whole text or its beginning."""
        normalise = normalise_sentence if self.frame.changes_ends else str
        written = [self.frame.write(normalise(text)) for text in parts]
        with without_panics():
            encoded = self.tokenizer(
                [text.whole for text in written],
                add_special_tokens=self.template.bos != "none" and not self.frame.is_chat,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                return_attention_mask=False,
                truncation=False,
                verbose=False,
            )
        rows = zip(encoded["input_ids"], encoded["special_tokens_mask"], encoded["offset_mapping"], strict=True)
        for i, row in enumerate(rows):
            yield self._finish(written[i], row, text=texts[i], index=first_index + i, n_characters=len(parts[i]))

    def _finish(
        self, written: WrittenText, row: tuple[Sequence[Any], ...], *, text: str, index: int, n_characters: int
    ) -> TokenisedText:
        """Give tokens their roles, with BOS and EOS as the template has them."""
        ids, is_special = np.array(row[0], np.int64), np.array(row[1], np.bool_)
        offsets = np.array(row[2], np.int64).reshape(-1, 2)
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

        Where nothing follows the text, tokens are dropped from its end. Else the text is written again, up to the last
        token that fits, so that every copy holds the same characters. Returns the text and the columns of its row;
        `InputError` for a text that is too long under the policy `error`, or a template that leaves no room for it.
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
        ends, shorter = ends[ends > 0], None
        low, high = -1, min(len(ends) - 1, max_tokens)  # `low` fits and `high` does not
        while high - low > 1:
            middle = (low + high) // 2
            (cut,) = self._tokenise([item.text], [item.text[: ends[middle]]], item.index)
            if len(cut.ids) <= max_tokens:
                low, shorter = middle, cut
            else:
                high = middle
        if shorter is None:
            raise no_room(item, int((item.roles != TEXT).sum()), max_tokens)
        return shorter

    def row(
        self,
        item: TokenisedText,
        columns: Int[np.ndarray, " T"],
        *,
        is_truncated: bool,
        spans: Int[np.ndarray, " T"] | None,
        words: WordColumns | None = None,
    ) -> EncodedText:
        """Make the row of some columns of a text; `InputError` where `last` is `eos` and the row ends without one."""
        ids, roles = item.ids[columns], item.roles[columns]
        if self.template.last == "eos" and ids[-1] != self.tokenizer.eos_token_id:
            raise InputError(
                f"last is 'eos', but the row of {item.label} ends without an EOS token; set eos to 'force'."
            )
        is_last = {"prompt": (roles != SPECIAL) & (roles != CHAT), "text": roles == TEXT}.get(self.template.last)
        last = len(ids) - 1 if is_last is None else int(np.flatnonzero(is_last)[-1])
        return EncodedText(ids, roles, is_truncated, spans, item.index, words, copy_of=item.copies[columns], last=last)


def no_room(item: TokenisedText, n_others: int, max_tokens: int) -> InputError:
    """Build the error for a text for which instruction and specials, `n_others` tokens, leave no room."""
    return InputError(
        f"{item.label}: instruction and specials take {n_others} of {max_tokens} tokens "
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
        tokens = item.ids[item.roles != SPECIAL].tolist()
        characters = iter("".join(self._core.id_to_token(token) for token in tokens))
        for character in text:
            if character != next(characters, ""):
                raise InputError(
                    f"the tokenizer has no token for {character!r} in {item.label} and drops it, after which it no "
                    "longer reports where its tokens are; remove the character, or use a tokenizer with an unknown "
                    "token."
                )


def label_text(text: str, index: int) -> str:
    """Name a text in a message: its position and its beginning."""
    return f"text {index} ({text if len(text) <= 40 else text[:39] + '…'!r})"


def show_row(row: EncodedText, tokenizer: "PreTrainedTokenizerBase") -> str:
    """Write the tokens of a row as a line of text, role by role, and the token that the pooling `last` reads."""
    names = {number: name for name, number in ROLES.items()}
    is_repeated = row.copies.max(initial=0) > 1
    parts = []
    tokens = zip(row.ids.tolist(), row.roles.tolist(), row.copies.tolist(), strict=True)
    for (role, number), run in groupby(tokens, key=lambda token: token[1:]):
        label = names[role] + (f" {number}" if is_repeated and role == TEXT else "")
        parts.append(f"{label} {_short(tokenizer, [token for token, *_ in run])}")
    last = _short(tokenizer, [int(row.ids[row.last_column])])
    return f"{' | '.join(parts)}; last reads {last}, token {row.last_column + 1} of {len(row.ids)}"


def _short(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> str:
    text = str(tokenizer.decode(ids))
    half = MOST_LETTERS // 2
    return repr(text if len(text) <= MOST_LETTERS else f"{text[:half]}…{text[-half:]}")


@dataclass(frozen=True, eq=False)
class PlacedWords:
    """Overlapping windows over the tokens of one text, each with words, and the window of each of its `W` words."""

    starts: NDArray[np.int64]
    """First token of each window, ascending."""
    window_of: NDArray[np.int64]
    """`(W,)`, ascending; a word that is not whole in any goes with its neighbours."""
    is_whole: NDArray[np.bool_]
    """`(W,)`, all tokens of the word are in its window."""


def place_words(starts: Int[np.ndarray, " W"], ends: Int[np.ndarray, " W"], *, n_tokens: int, room: int) -> PlacedWords:
    """Put windows over a text and give each word the one in which it has most context.

    Windows begin every half window, and the last one ends with the text. A word that fits into a window but crosses
    the borders of all of these gets a window of its own, around it. A word's context in a window is the number
    of tokens before or after it, whichever is less; a side on which the text itself ends does not count.

    Example:
        >>> placed = place_words(np.array([0, 3, 6]), np.array([3, 6, 8]), n_tokens=8, room=4)
        >>> placed.starts.tolist(), placed.window_of.tolist(), placed.is_whole.tolist()
        ([0, 2, 4], [0, 1, 2], [True, True, True])
    """
    last = n_tokens - room
    grid = np.append(np.arange(0, last, max(1, room // 2)), last)
    is_word = (starts < ends) & (ends - starts <= room)
    is_split = is_word & (_candidates(grid, starts, ends, room)[1] < 1)
    around = starts[is_split] - (room - (ends - starts)[is_split]) // 2
    grid = np.unique(np.concatenate([grid, around.clip(0, last)]))
    best = _with_neighbours(_best_windows(grid, starts, ends, n_tokens=n_tokens, room=room), is_word)
    used, window_of = np.unique(best, return_inverse=True)
    opens = grid[used][window_of]
    is_whole = is_word & (opens <= starts) & (ends <= opens + room)
    return PlacedWords(grid[used], window_of, is_whole)


def lay_windows(
    item: TokenisedText, starts: Int[np.ndarray, " W"], ends: Int[np.ndarray, " W"], *, max_tokens: int
) -> tuple[PlacedWords, list[NDArray[np.int64]]]:
    """Place the words of a text that is longer than a row, as `place_words` does.

    Also returns the columns of each window: the instruction and all specials, and the tokens that fit beside them.
    """
    others, columns = np.flatnonzero(item.roles != TEXT), item.text_columns
    room = max_tokens - len(others)
    if room < 1:
        raise no_room(item, len(others), max_tokens)
    placed = place_words(starts, ends, n_tokens=len(columns), room=room)
    return placed, [np.sort(np.append(others, columns[start : start + room])) for start in placed.starts]


def split_tokens(
    item: TokenisedText, tokenise: Tokeniser, *, max_tokens: int, spans: SpanSource | None
) -> tuple[EncodedText, ...]:
    """Split a text that is longer than a row into windows, each token of role `TEXT` in the one with most context.

    In the other windows that hold it a token has the role `ELSEWHERE`: it is read, and not pooled over.
    """
    columns = item.text_columns
    first = np.arange(len(columns))
    placed, window_columns = lay_windows(item, first, first + 1, max_tokens=max_tokens)
    numbers = item.number_spans(spans, np.arange(len(item.ids)))
    owner = np.full(len(item.ids), -1)
    owner[columns] = placed.window_of
    windows = []
    for window, some in enumerate(window_columns):
        is_away = (owner[some] >= 0) & (owner[some] != window)
        row = tokenise.row(item, some, is_truncated=False, spans=None if numbers is None else numbers[some])
        windows.append(replace(row, roles=np.where(is_away, ELSEWHERE, row.roles).astype(np.int8)))
    return tuple(windows)


def _candidates(
    grid: Int[np.ndarray, " P"], starts: Int[np.ndarray, " W"], ends: Int[np.ndarray, " W"], room: int
) -> tuple[Int[np.ndarray, " W"], Int[np.ndarray, " W"]]:
    """Find the first window in which each word is whole, and in how many it is."""
    first = np.searchsorted(grid, ends - room, side="left")
    return first, np.searchsorted(grid, starts, side="right") - first


def _best_windows(
    grid: Int[np.ndarray, " P"], starts: Int[np.ndarray, " W"], ends: Int[np.ndarray, " W"], *, n_tokens: int, room: int
) -> Int[np.ndarray, " W"]:
    first, count = _candidates(grid, starts, ends, room)
    best, most = first.clip(max=len(grid) - 1), np.full(len(starts), -1)
    for step in range(int(count.max(initial=0))):
        window = (first + step).clip(max=len(grid) - 1)
        opens = grid[window]
        before = np.where(opens == 0, n_tokens, starts - opens)
        after = np.where(opens + room == n_tokens, n_tokens, opens + room - ends)
        context = np.minimum(before, after)
        is_better = (step < count) & (context > most)
        best, most = np.where(is_better, window, best), np.where(is_better, context, most)
    return best


def _with_neighbours(best: Int[np.ndarray, " W"], is_word: Bool[np.ndarray, " W"]) -> Int[np.ndarray, " W"]:
    """Assign words without a window the one of the word before, or of the first that has one; keep windows upwards."""
    return np.maximum.accumulate(np.where(is_word, best, best[is_word][:1])) if is_word.any() else np.zeros_like(best)


class TextEncoder:
    """Turns plain texts into rows of tokens, none longer than `window`."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: InputTemplate, *, window: int) -> None:
        self._tokenise = Tokeniser(tokenizer, template)
        self.template = template
        self.spans = read_spans(template.spans)
        self.max_tokens = min(window, template.max_tokens or window)

    def __call__(self, texts: Sequence[str], *, first_index: int = 0) -> list[EncodedText]:
        """Encode texts, each into one row with at least one token of role `TEXT`, or into windows where it is too long.

        `InputError` names a text without tokens, or one that `Tokeniser` refuses; `texts[0]` is at `first_index`.
        """
        encoded: list[EncodedText] = []
        for item in self._tokenise(texts, first_index=first_index):
            if len(item.ids) > self.max_tokens and self.template.on_long == "windows":
                windows = split_tokens(item, self._tokenise, max_tokens=self.max_tokens, spans=self.spans)
                encoded.append(EncodedText(item.ids, item.roles, False, None, item.index, windows=windows))
                continue
            fitted, columns = self._tokenise.fit(item, max_tokens=self.max_tokens)
            if TEXT not in fitted.roles[columns]:
                raise InputError(
                    f"{item.label} has no token to pool over; give a text with at least one visible character."
                )
            is_cut = len(columns) < len(item.ids)
            spans = fitted.number_spans(self.spans, columns)
            encoded.append(self._tokenise.row(fitted, columns, is_truncated=is_cut, spans=spans))
        return encoded


def cut_at_tokens(
    texts: Sequence[JoinedText], tokenizer: "PreTrainedTokenizerBase", *, template: InputTemplate
) -> list[list[list[int]]]:
    """Find where the tokens of each word begin: for each text and word, characters inside the word, from 0.

    The pieces of a text join to the very same text, so they are read at the tokens that were counted here. Tokens that
    stand for bytes of one character are one piece; so is a word that no token begins in. Nothing is cut off at the
    template's `max_tokens`.
    """
    cuts = []
    for item, text in zip(Tokeniser(tokenizer, template)([text.text for text in texts]), texts, strict=True):
        offsets = item.offsets[item.text_columns]
        begins = np.unique(offsets[offsets[:, 0] < offsets[:, 1], 0])
        cuts.append([[0, *(begins[(begins > start) & (begins < end)] - start).tolist()] for start, end in text.spans])
    return cuts


# --- Chats: a template is a program of whoever made the checkpoint, so it runs in a process with a time limit ---

CHAT_SECONDS = 10
"""Longest time that a chat template may take; real ones take milliseconds."""
CHAT_START_SECONDS = 120
"""Longest time that the process may take in total; it is a second where the disk is quick."""
CHAT_LIMITS = {"bytes": 1 << 30, "letters": 10_000_000}
"""Memory that a template may use, and characters that it may write."""
CHAT_PROGRAM = """
import json, signal, sys
job = json.load(sys.stdin)
sys.path[:] = job["path"]
from transformers.utils.chat_template_utils import render_jinja_template
try:
    import resource
    with open("/proc/self/statm") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + job["bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
except (ImportError, OSError, ValueError):
    pass  # another system than Linux
if hasattr(signal, "alarm"):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process within one endless operation too
    signal.alarm(job["seconds"])
try:
    text = render_jinja_template(**job["arguments"])[0][0]
    if len(text) > job["letters"]:
        raise ValueError(f"it writes more than {job['letters']:,} characters")
    answer = {"text": text}
except Exception as error:
    line = (str(error).strip().splitlines() or [""])[0]
    answer = {"error": f"{type(error).__name__}: {line[:200]}".removesuffix(": ").rstrip(".")}
sys.stdout.write(json.dumps(answer))
"""
"""The program of the process. It reads nothing but its job, and imports from the same path as this process."""


def render_chat(tokenizer: "PreTrainedTokenizerBase", messages: list[dict[str, str]], *, begins_answer: bool) -> str:
    """Write a chat by the template of a tokenizer, as `apply_chat_template` does, with or without a begun answer.

    The template may come from anybody: `InputError` where it raises an error, or does not end in time.
    """
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:  # several templates, none of which is the default
        raise InputError(f"the chat template of this tokenizer cannot be written: {first_line(error)}.") from error
    arguments = {
        **tokenizer.special_tokens_map,
        "conversations": [messages],
        "chat_template": template,
        "add_generation_prompt": begins_answer,
    }
    return _render(json.dumps(arguments, default=str), CHAT_SECONDS)


@lru_cache(maxsize=256)
def _render(arguments: str, seconds: int) -> str:
    job = json.dumps({"arguments": json.loads(arguments), "seconds": seconds, "path": sys.path, **CHAT_LIMITS})
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-c", CHAT_PROGRAM],
            input=job,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=CHAT_START_SECONDS,
            check=False,
        )
        answer = json.loads(ended.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise InputError(
            f"the chat template of this tokenizer did not end within {seconds} seconds, or ended its process; set chat "
            "to 'none', or use a tokenizer of people you trust."
        ) from error
    if "error" in answer:
        raise InputError(f"the chat template of this tokenizer cannot be written: {answer['error']}.")
    return str(answer["text"])
