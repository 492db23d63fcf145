"""Whether rows hold the tokens that poolings name."""

from collections.abc import Sequence

from extract.errors import InputError
from extract.inputs.batching import collate
from extract.inputs.tokenised import EncodedText, label_text
from extract.poolings.pages import CPU
from extract.poolings.pooling import index_rows
from extract.poolings.table import find_token_set


def require_tokens(
    rows: Sequence[EncodedText], texts: Sequence[str], poolings: Sequence[str], *, first_index: int = 0
) -> None:
    """Refuse rows in which a pooling of a set of tokens finds none: `InputError` names pooling and text."""
    sets = {name: found for name in poolings if (found := find_token_set(name))}
    for row in rows if sets else ():
        index = index_rows(collate([row], [0]), CPU)
        for name, (select, argument) in sets.items():
            if not select(index, argument).any():
                text = label_text(texts[row.index - first_index], row.index)
                raise InputError(
                    f"the pooling {name!r} finds no such token in {text}; choose another, or leave it out."
                )
