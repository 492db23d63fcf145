"""Roles of tokens. Loads nothing."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from extract.errors import ConfigError, InputError
from extract.files import digest_json

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
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                row = json.loads(line)
                spans[row["text"]] = [(int(a), int(b)) for a, b in row["spans"]]
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"line {number} of {text!r} cannot be read ({type(error).__name__}: {error}); allowed: "
                    '{"text": "...", "spans": [[0, 5]]}.'
                ) from error
    return GivenSpans(spans)
