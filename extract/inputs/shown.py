"""A row of tokens as a line of text, for a look at what a template does."""

from itertools import groupby
from typing import TYPE_CHECKING

from extract.inputs.roles import ROLES, TEXT
from extract.inputs.tokenised import EncodedText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_LETTERS = 60
"""Of a run of tokens with one role; more is shown by its ends."""


def show_row(row: EncodedText, tokenizer: "PreTrainedTokenizerBase") -> str:
    """Write out the tokens of a row, role by role, and the token that the pooling `last` reads."""
    names = {number: name for name, number in ROLES.items()}
    is_repeated = row.copies.max(initial=0) > 1
    shown = []
    tokens = zip(row.ids.tolist(), row.roles.tolist(), row.copies.tolist(), strict=True)
    for (role, number), run in groupby(tokens, key=lambda token: token[1:]):
        what = names[role] + (f" {number}" if is_repeated and role == TEXT else "")
        shown.append(f"{what} {_short(tokenizer, [token for token, *_ in run])}")
    last = _short(tokenizer, [int(row.ids[row.last_column])])
    return f"{' | '.join(shown)}; last reads {last}, token {row.last_column + 1} of {len(row.ids)}"


def _short(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> str:
    text = str(tokenizer.decode(ids))
    half = MOST_LETTERS // 2
    return repr(text if len(text) <= MOST_LETTERS else f"{text[:half]}…{text[-half:]}")
