"""Spans of characters in a text, roles of tokens, and words in the text they came from."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int, UInt8
from numpy.typing import NDArray

from extract.errors import ConfigError, InputError
from extract.files import DIGEST_BYTES, canonical_json, digest_json

PADDING, SPECIAL, INSTRUCTION, TEXT, SUFFIX, JOINER, CHAT = -1, 0, 1, 2, 3, 4, 5
ELSEWHERE = 6  # a text token that this window reads as context, while another window represents it
ROLES = {
    "special": SPECIAL,
    "instruction": INSTRUCTION,
    "text": TEXT,
    "suffix": SUFFIX,
    "joiner": JOINER,
    "chat": CHAT,
}
"""Roles by name; specials are BOS, EOS and other tokens that the tokenizer adds."""
CONTEXT = -1
"""Span number of tokens outside spans."""
FEWEST, MOST = 1, 2  # random spans per text (MAGNET)
SHORTEST, LONGEST = 4, 128  # tokens of a random span (MAGNET)
CharSpans = Mapping[str, Sequence[tuple[int, int]]]


@runtime_checkable
class SpanSource(Protocol):
    """Gives the tokens of a text their span numbers."""

    @property
    def identity(self) -> str:
        """What decides the spans, beside the text and its tokens."""
        ...

    def assign(self, text: str, offsets: Int[np.ndarray, "T 2"]) -> NDArray[np.int64]:
        """Number each token of a text by its span, `CONTEXT` outside spans; `offsets` are its characters' range."""
        ...


class GivenSpans:
    """Character spans of given texts, which must not overlap; a text that is not named has none.

    `spans` maps a text to its spans `(first character, one past the last)`; `InputError` names one that is unusable.
    """

    def __init__(self, spans: CharSpans) -> None:
        self._spans = {text: sorted((int(a), int(b)) for a, b in ranges) for text, ranges in spans.items()}
        for text, ranges in self._spans.items():
            ends = [0, *(end for _, end in ranges)]
            for (start, end), before in zip(ranges, ends, strict=False):
                if not 0 <= start < end <= len(text) or start < before:
                    raise InputError(
                        f"the span {start}-{end} of {text[:40]!r} cannot be used; allowed: non-empty spans inside its "
                        f"{len(text)} characters that do not overlap."
                    )
        self.identity = f"given:{digest_json(self._spans)}"

    def __contains__(self, text: str) -> bool:
        """Whether a text is named."""
        return text in self._spans

    def assign(self, text: str, offsets: Int[np.ndarray, "T 2"]) -> NDArray[np.int64]:
        """Number spans by the characters a token covers; a token that touches a span belongs to it."""
        numbers = np.full(len(offsets), CONTEXT, np.int64)
        for number, (start, end) in enumerate(self._spans.get(text, ())):
            is_touched = (offsets[:, 0] < end) & (offsets[:, 1] > start) & (numbers == CONTEXT)
            numbers[is_touched] = number
        return numbers


class RandomSpans:
    """One or two random spans of 4 to 128 tokens per text, drawn from the seed and the text's digest."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.identity = f"random:{seed}"

    def assign(self, text: str, offsets: Int[np.ndarray, "T 2"]) -> NDArray[np.int64]:
        """Draw spans over the tokens; a text shorter than 4 tokens has none."""
        n_tokens = len(offsets)
        numbers = np.full(n_tokens, CONTEXT, np.int64)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        generator = np.random.default_rng([self.seed, int.from_bytes(digest[:8], "little")])
        for number in range(int(generator.integers(FEWEST, MOST + 1))):
            length = int(generator.integers(SHORTEST, LONGEST + 1))
            length = min(length, max(SHORTEST, n_tokens // 2))  # leave some context
            starts = [s for s in range(n_tokens - length + 1) if (numbers[s : s + length] == CONTEXT).all()]
            if starts:
                start = starts[int(generator.integers(len(starts)))]
                numbers[start : start + length] = number
        return numbers


def _whole(bound: Any) -> int:
    if int(bound) != float(bound):
        raise ValueError(f"{bound!r} is no whole number")
    return int(bound)


def read_spans(text: str) -> SpanSource | None:
    """Read the source of spans: empty for none, `random:SEED`, or a JSON Lines file with `text` and `spans`."""
    if not text:
        return None
    if match := re.fullmatch(r"random:(\d+)", text):
        return RandomSpans(int(match[1]))
    path = Path(text)
    if not path.is_file():
        raise ConfigError(f"spans are {text!r}; allowed: 'random:SEED', or a JSON Lines file with text and spans.")
    spans: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line.decode("utf-8"))
                row["text"].encode("utf-8")  # what is no text, or holds half a character, is refused
                bounds = [(_whole(start), _whole(end)) for start, end in row["spans"]]
                if spans.setdefault(row["text"], bounds) != bounds:
                    raise ValueError("an earlier line has other spans of this text")
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise ConfigError(
                    f"line {number} of {text!r} cannot be read ({type(error).__name__}: {error}); allowed: "
                    '{"text": "...", "spans": [[0, 5]]}.'
                ) from error
    return GivenSpans(spans)


WORD_SHARED = 1  # begins inside a token that the word before also uses
WORD_CUT = 2  # a token of it was dropped; no latent
WORD_LOST = 4  # no token covers it; no latent


@dataclass(frozen=True)
class JoinedText:
    """The text of one sentence and where its words are; equal texts with other words are not equal."""

    text: str
    spans: tuple[tuple[int, int], ...]
    """First character and the one after the last, of each word."""


def plain_text(text: str | JoinedText) -> str:
    """Return a text without the places of its words."""
    return text if isinstance(text, str) else text.text


def join_words(words: Sequence[str], space_after: Sequence[bool]) -> JoinedText:
    """Put words back into the text they came from.

    Args:
        words: At least one.
        space_after: Whether a space follows each word; the last one is not used.

    Example:
        >>> join_words(["Is", "n't", "it", "?"], [False, True, False, True])
        JoinedText(text="Isn't it?", spans=((0, 2), (2, 5), (6, 8), (8, 9)))
    """
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for word, has_space in zip(words, space_after, strict=True):
        spans.append((start, start + len(word)))
        parts.append(word + " " if has_space else word)
        start += len(parts[-1])
    parts[-1] = words[-1]
    return JoinedText("".join(parts), tuple(spans))


def require_words(text: JoinedText, index: int) -> None:
    """Refuse a text without words, or with a word outside the text or before the end of the word before it."""
    where = f"text {index} ({text.text[:40]!r})"
    if not text.spans:
        raise InputError(f"{where} has no words; give each text at least one.")
    before = 0
    for word, (start, end) in enumerate(text.spans):
        if not before <= start <= end <= len(text.text):
            raise InputError(
                f"word {word} of {where} has the characters {start} to {end}; allowed: words in order, without "
                f"overlap, inside the {len(text.text)} characters of the text."
            )
        before = end


def digest_texts(texts: Sequence[str | JoinedText]) -> NDArray[np.uint8]:
    """Digest each text by itself, a text with words together with the spans of its words: `(N, 16)`.

    A digest is BLAKE2b over the UTF-8 bytes of the text, or of the canonical JSON of text and spans; lone surrogates
    are kept as they are.
    """
    written = (text if isinstance(text, str) else canonical_json([text.text, text.spans]) for text in texts)
    encoded = (text.encode("utf-8", "surrogatepass") for text in written)
    joined = b"".join(hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest() for data in encoded)
    return np.frombuffer(joined, np.uint8).reshape(len(texts), DIGEST_BYTES)


@dataclass(frozen=True, eq=False)
class AlignedWords:
    """Which tokens each of the `W` words of a text uses."""

    starts: NDArray[np.int64]
    """First token of each word."""
    ends: NDArray[np.int64]
    """One past its last token; equal to `starts` where no token covers the word."""

    @property
    def is_lost(self) -> Bool[np.ndarray, " W"]:
        """Whether no token covers the word."""
        return np.asarray(self.starts == self.ends)

    @property
    def is_shared(self) -> Bool[np.ndarray, " W"]:
        """Whether the word begins inside a token that the word before also uses."""
        # A lost word between two others does not separate them.
        reached: NDArray[np.int64] = np.maximum.accumulate(np.where(self.is_lost, 0, self.ends))
        is_shared = np.zeros(len(reached), np.bool_)
        is_shared[1:] = (self.starts[1:] < reached[:-1]) & ~self.is_lost[1:]
        return is_shared

    @property
    def flags(self) -> UInt8[np.ndarray, " W"]:
        """Bits `WORD_SHARED` and `WORD_LOST`."""
        return np.asarray(self.is_shared * WORD_SHARED + self.is_lost * WORD_LOST, np.uint8)


def align_words(offsets: Int[np.ndarray, "T 2"], spans: Sequence[tuple[int, int]]) -> AlignedWords:
    """Find the tokens of each word: all that share characters with it.

    A token of no width (a byte of a character that another token stands for, or a blank that the tokenizer trims)
    belongs to no word. Where offsets do not ascend, as around characters that a normaliser reorders, a word's tokens
    are all from the first to the last that shares a character with it.

    Example:
        >>> aligned = align_words(np.array([[0, 3], [3, 5], [5, 9]]), [(0, 2), (2, 5), (6, 9)])
        >>> aligned.starts.tolist(), aligned.ends.tolist(), aligned.flags.tolist()
        ([0, 0, 2], [1, 2, 3], [0, 1, 0])
    """
    words = np.asarray(spans, np.int64).reshape(-1, 2)
    tokens = np.flatnonzero(offsets[:, 0] < offsets[:, 1])
    firsts, lasts = offsets[tokens].T
    if (np.diff(firsts) >= 0).all() and (np.diff(lasts) >= 0).all():
        starts = np.searchsorted(lasts, words[:, 0], side="right")
        ends = np.searchsorted(firsts, words[:, 1], side="left")
    else:
        starts, ends = _search(firsts, lasts, words)
    has_tokens = (starts < ends) & (words[:, 0] < words[:, 1])
    aligned = np.zeros((2, len(words)), np.int64)
    aligned[0, has_tokens] = tokens[starts[has_tokens]]
    aligned[1, has_tokens] = tokens[ends[has_tokens] - 1] + 1
    return AlignedWords(*aligned)


def _search(
    firsts: Int[np.ndarray, " T"], lasts: Int[np.ndarray, " T"], words: Int[np.ndarray, "W 2"]
) -> tuple[Int[np.ndarray, " W"], Int[np.ndarray, " W"]]:
    """Compare every token with every word."""
    ranges = np.zeros((2, len(words)), np.int64)
    for k, (start, end) in enumerate(words):
        shared = np.flatnonzero((firsts < end) & (lasts > start))
        if len(shared):
            ranges[:, k] = shared[0], shared[-1] + 1
    return ranges[0], ranges[1]
