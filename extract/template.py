"""Input templates: how a text becomes tokens, and which role each token has."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from extract.errors import InputError, unknown_name
from extract.spans import CONTEXT, read_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BosPolicy = Literal["auto", "force", "none"]
BOS_POLICIES = {
    "auto": "what the tokenizer does by itself",
    "force": "prepend a BOS token when the tokenizer adds none",
    "none": "no special tokens at all",
}
LongPolicy = Literal["truncate", "error", "windows"]
LONG_POLICIES = {
    "truncate": "drop text tokens from the end and flag the row",
    "error": "refuse the text by its position",
    "windows": "read its words in overlapping windows, each where it has most context (texts with words only)",
}
SPECIAL, INSTRUCTION, TEXT = 0, 1, 2  # token roles
TEXTS_AT_A_TIME = 256  # tokenised in one call; its result holds several kB per text


@dataclass(frozen=True)
class InputTemplate:
    """How a text becomes tokens; part of a cache's identity."""

    bos: BosPolicy = "auto"
    """BOS policy: `auto`, `force` or `none`."""
    instruction: str = ""
    """Text placed before every text, kept out of mean pooling; mind the blank at its end."""
    max_tokens: int | None = None
    """Longest row in tokens, specials and instruction included; the decoder's own window when absent."""
    on_long: LongPolicy = "truncate"
    """What happens to a longer text: `truncate` (flagged in the cache), `error`, or `windows` (for words only)."""

    spans: str = ""
    """Spans for the hybrid mask: `random:SEED`, or a JSON Lines file with `text` and `spans`; empty for none."""

    def __post_init__(self) -> None:
        """Refuse values outside the tables."""
        if self.bos not in BOS_POLICIES:
            raise unknown_name("BOS policy", self.bos, BOS_POLICIES)
        if self.on_long not in LONG_POLICIES:
            raise unknown_name("policy for long texts", self.on_long, LONG_POLICIES)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; allowed: a whole number of at least 1, or none.")

    def to_dict(self) -> dict[str, object]:
        """Return the template as plain values, for a manifest."""
        source = read_spans(self.spans)
        return {**asdict(self), "spans": source.identity if source else ""}


@dataclass(frozen=True)
class EncodedText:
    """One text as tokens.

    Attributes:
        ids: `(T,)` int64 token ids.
        roles: `(T,)` int8, one of `SPECIAL`, `INSTRUCTION`, `TEXT`.
        is_truncated: Text tokens were dropped from the end.
        spans: `(T,)` int64 span number per token, `CONTEXT` outside spans; None where the template has none.
    """

    ids: NDArray[np.int64]
    roles: NDArray[np.int8]
    is_truncated: bool
    spans: NDArray[np.int64] | None = None


class TextEncoder:
    """Turns texts into tokens with roles, by the character offsets of one tokenisation.

    Args:
        tokenizer: A fast tokenizer (the offsets come from it).
        template: The input template.
        window: Longest row the decoder takes, in tokens.

    Raises:
        InputError: The tokenizer has no offsets, or no BOS token where the template forces one.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: InputTemplate, *, window: int) -> None:
        if not tokenizer.is_fast:
            raise InputError(
                f"the tokenizer {type(tokenizer).__name__} gives no character offsets; "
                "allowed: a fast tokenizer (a folder with tokenizer.json)."
            )
        if template.bos == "force" and tokenizer.bos_token_id is None:
            raise InputError("the BOS policy is 'force' but this tokenizer has no BOS token; use 'auto' or 'none'.")
        self.tokenizer = tokenizer
        self.template = template
        self.spans = read_spans(template.spans)
        self.max_tokens = min(window, template.max_tokens or window)

    def __call__(self, texts: Sequence[str], *, first_index: int = 0) -> list[EncodedText]:
        """Encode texts.

        Args:
            texts: Any number of texts.
            first_index: Position of `texts[0]` in the caller's list, for messages.

        Returns:
            One `EncodedText` per text, each with at least one token of role `TEXT`.

        Raises:
            InputError: A text without tokens, a text too long under the policy `error`, an instruction that leaves
                no room for the text, a doubled BOS token, or a text that is no valid Unicode. The message names the
                position and the beginning of the text.
        """
        encoded: list[EncodedText] = []
        for start in range(0, len(texts), TEXTS_AT_A_TIME):
            encoded += self._encode(texts[start : start + TEXTS_AT_A_TIME], first_index=first_index + start)
        return encoded

    def _encode(self, texts: Sequence[str], *, first_index: int) -> list[EncodedText]:
        prefix = self.template.instruction
        for i, text in enumerate(texts):
            if not _is_unicode(text):
                raise InputError(f"text {first_index + i} ({_shorten(text)}) is no valid Unicode; mend its surrogates.")
        encoded = self.tokenizer(
            [prefix + text for text in texts],
            add_special_tokens=self.template.bos != "none",
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            truncation=False,
            verbose=False,
        )
        rows = zip(encoded["input_ids"], encoded["special_tokens_mask"], encoded["offset_mapping"], texts, strict=True)
        return [
            self._finish(ids, special, offsets, text=text, label=f"text {first_index + i} ({_shorten(text)})")
            for i, (ids, special, offsets, text) in enumerate(rows)
        ]

    def _finish(
        self, ids: list[int], special: list[int], offsets: list[tuple[int, int]], *, text: str, label: str
    ) -> EncodedText:
        roles = [
            _role(bool(s), end, len(self.template.instruction)) for s, (_, end) in zip(special, offsets, strict=True)
        ]
        bos = self.tokenizer.bos_token_id
        if self.template.bos == "force" and (not ids or ids[0] != bos):
            ids, roles, offsets = [int(bos), *ids], [SPECIAL, *roles], [(0, 0), *offsets]
        if bos is not None and ids[:2] == [bos, bos]:
            raise InputError(
                f"{label} begins with two BOS tokens {self.tokenizer.bos_token!r}: the instruction or text brings one "
                "and the tokenizer adds another; take it out, or set bos to 'none'."
            )
        n_excess = len(ids) - self.max_tokens
        kept = self._truncate(roles, n_excess, label=label) if n_excess > 0 else list(range(len(ids)))
        ids, roles, offsets = [ids[i] for i in kept], [roles[i] for i in kept], [offsets[i] for i in kept]
        if TEXT not in roles:
            raise InputError(f"{label} has no token to pool over; give a text with at least one visible character.")
        spans = self._assign_spans(text, roles, offsets) if self.spans is not None else None
        return EncodedText(np.array(ids, np.int64), np.array(roles, np.int8), n_excess > 0, spans)

    def _assign_spans(self, text: str, roles: list[int], offsets: list[tuple[int, int]]) -> NDArray[np.int64]:
        """Number the spans of the text's own tokens; specials and instruction are context."""
        assert self.spans is not None
        columns = [i for i, role in enumerate(roles) if role == TEXT]
        shift = len(self.template.instruction)
        numbers = np.full(len(roles), CONTEXT, np.int64)
        numbers[columns] = self.spans.assign(text, [(offsets[i][0] - shift, offsets[i][1] - shift) for i in columns])
        return numbers

    def _truncate(self, roles: list[int], n_excess: int, *, label: str) -> list[int]:
        if self.template.on_long == "error":
            raise InputError(
                f"{label} has {len(roles)} tokens; at most {self.max_tokens} fit. "
                "Shorten it, or set on_long to 'truncate'."
            )
        text_columns = [i for i, role in enumerate(roles) if role == TEXT]
        if len(text_columns) <= n_excess:
            raise InputError(
                f"{label}: instruction and specials take {len(roles) - len(text_columns)} of {self.max_tokens} tokens "
                "and leave no room for the text; shorten the instruction or raise max_tokens."
            )
        cut = set(text_columns[-n_excess:])
        return [i for i in range(len(roles)) if i not in cut]


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
