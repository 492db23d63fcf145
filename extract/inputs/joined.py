"""Words in the text they came from."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from extract.digest import DIGEST_BYTES, canonical_json
from extract.errors import InputError


@dataclass(frozen=True)
class JoinedText:
    """The text of one sentence and where its words are; equal texts with other words are not equal."""

    text: str
    spans: tuple[tuple[int, int], ...]
    """First character and the one after the last, of each word."""


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
    """Digest each text by itself, a text with words together with the places of its words: `(N, 16)`.

    A digest is BLAKE2b over the UTF-8 bytes of the text, or of the canonical JSON of text and spans; lone surrogates
    are kept as they are.
    """
    joined = b"".join(
        hashlib.blake2b(_written(text).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
        for text in texts
    )
    return np.frombuffer(joined, np.uint8).reshape(len(texts), DIGEST_BYTES)


def _written(text: str | JoinedText) -> str:
    return text if isinstance(text, str) else canonical_json([text.text, text.spans])
