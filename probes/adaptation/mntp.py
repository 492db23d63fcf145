"""Masked next-token prediction (LLM2Vec, 2404.05961), and masked token prediction for comparison."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from extract.errors import ConfigError
from extract.inputs.spans import CONTEXT
from probes.adaptation.adapt_config import MntpOptions
from probes.adaptation.token_rows import MarkedRow

FALLBACK = "_"
"""The mask token of decoders that have none (LLM2Vec and MAGNET)."""


@dataclass(frozen=True)
class MaskedTokens:
    """Hides tokens of the context and predicts them: `mntp` from the state before each, `mtp` from its own.

    Of the tokens that are predicted a share is replaced by the mask token, another by random tokens, and the rest is
    shown as it is. `mntp` predicts only a token whose neighbour on the left is context too, so that its state knows
    both sides; the first of a row has none.
    """

    name: str
    options: MntpOptions
    mask_id: int
    vocabulary: int

    def mark(self, row: MarkedRow, generator: np.random.Generator) -> None:
        """Choose at least one token of a row, where there is a candidate, and hide what is chosen."""
        is_context = (row.spans == CONTEXT) & ~row.is_special
        if self.name == "mntp":
            reads_context = np.append(False, row.spans[:-1] == CONTEXT)
            candidates = np.flatnonzero(is_context & reads_context)
        else:
            candidates = np.flatnonzero(is_context)
        n = min(len(candidates), max(1, round(self.options.rate * len(candidates))))
        chosen = np.sort(generator.choice(candidates, size=n, replace=False)) if n else candidates
        fate = generator.random(n)
        is_masked = fate < self.options.masked
        is_random = ~is_masked & (fate < self.options.masked + self.options.random)
        row.shown[chosen[is_masked]] = self.mask_id
        row.shown[chosen[is_random]] = generator.integers(0, self.vocabulary, int(is_random.sum()))
        row.targets[self.name] = (chosen, chosen - 1 if self.name == "mntp" else chosen)


def find_mask_id(tokenizer: Any, wanted: str = "") -> int:
    """Find the mask token: the one wanted, else the tokenizer's own, `FALLBACK` or EOS; `ConfigError` for none such."""
    if not wanted and tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    token = wanted or FALLBACK
    known = tokenizer.convert_tokens_to_ids(token)
    if known is not None and known != tokenizer.unk_token_id:
        return int(known)
    if not wanted and tokenizer.eos_token_id is not None:  # as LLM2Vec offers
        return int(tokenizer.eos_token_id)
    raise ConfigError(
        f"the mask token {token!r} is no token of this tokenizer; set objectives.mntp.mask_token to one that is."
    )
