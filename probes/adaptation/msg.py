"""Missing-span generation (MAGNET, section 3): spans are generated inside a context that is read in both directions."""

from dataclasses import dataclass

import numpy as np

from extract.inputs.spans import CONTEXT
from probes.adaptation.adapt_config import MsgOptions
from probes.adaptation.token_rows import MarkedRow


@dataclass(frozen=True)
class MissingSpans:
    """Makes spans of a row's tokens and predicts each of them from the state before it.

    Under the hybrid mask a span's tokens see the whole context and what is before them in their span. A token is
    predicted from the state before it, which is in the same span, or is the context's last before the span: no state
    that predicts a token has seen it. The first token of a row has no state before it, so no span begins there.
    """

    options: MsgOptions
    name: str = "msg"

    def mark(self, row: MarkedRow, generator: np.random.Generator) -> None:
        """Draw the spans of a row; of some rows every token is in one span."""
        n_tokens, options = len(row.ids), self.options
        if generator.random() < options.all_share:
            row.spans[1:] = 0
        else:
            room = n_tokens // 2
            for number in range(int(generator.integers(1, options.spans + 1))):
                length = min(int(generator.integers(options.shortest, options.longest + 1)), room)
                if length < options.shortest:
                    break
                # a border of context between two spans, so that the state before each has seen no other span
                taken = np.append(row.spans != CONTEXT, False)  # a span may end with the row
                is_free = np.convolve(taken, np.ones(length + 2), "valid") == 0
                starts = np.flatnonzero(is_free) + 1
                if not len(starts):
                    break
                start = int(generator.choice(starts))
                row.spans[start : start + length] = number
                room -= length
        columns = np.flatnonzero(row.spans != CONTEXT)
        row.targets[self.name] = (columns, columns - 1)
