"""Words cut into pieces where their tokens begin, for whoever labels every token and not every word."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from extract.inputs.joined import JoinedText
from extract.inputs.template import InputTemplate
from extract.inputs.tokenised import Tokeniser

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def cut_at_tokens(
    texts: Sequence[JoinedText], tokenizer: "PreTrainedTokenizerBase", *, template: InputTemplate
) -> list[list[list[int]]]:
    """Find where the tokens of each word begin.

    The pieces of a text join to the very same text, so they are read at the tokens that were counted here. Tokens that
    stand for bytes of one character are one piece; so is a word that no token begins in.

    Args:
        texts: Any number of texts with their words.
        tokenizer: A fast tokenizer (the offsets come from it).
        template: The input template; nothing is cut off at its `max_tokens`.

    Returns:
        For each text, for each of its words, the characters inside the word at which a piece begins; the first is 0.

    Raises:
        InputError: As by `Tokeniser`.
    """
    tokenise = Tokeniser(tokenizer, bos=template.bos, instruction=template.instruction)
    found = []
    for item, text in zip(tokenise([text.text for text in texts]), texts, strict=True):
        offsets = item.offsets[item.text_columns]
        begins = np.unique(offsets[offsets[:, 0] < offsets[:, 1], 0])
        found.append(
            [[0, *(begins[(begins > start) & (begins < end)] - start).tolist()] for start, end in text.spans]
        )  # fmt: skip
    return found
