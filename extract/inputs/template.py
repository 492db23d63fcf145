"""Settings of an input template. Reading a config loads no numpy."""

from dataclasses import asdict, dataclass
from typing import Literal

from extract.errors import InputError, unknown_name

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
    "windows": "read it in overlapping windows, each token or word where it has most context",
}


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
    """What happens to a longer text: `truncate` (flagged in the cache), `error`, or `windows` that overlap."""

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
        from extract.inputs.spans import read_spans  # brings numpy with it

        source = read_spans(self.spans)
        return {**asdict(self), "spans": source.identity if source else ""}
