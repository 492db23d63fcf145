"""Input templates at work: plain texts as rows of tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from extract.errors import InputError
from extract.inputs.joined import JoinedText
from extract.inputs.roles import TEXT
from extract.inputs.spans import read_spans
from extract.inputs.template import InputTemplate
from extract.inputs.tokenised import EncodedText, Tokeniser
from extract.inputs.windows import split_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextEncoder:
    """Turns plain texts into rows of tokens, none longer than `window`.

    Raises:
        InputError: As `Tokeniser`.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: InputTemplate, *, window: int) -> None:
        self._tokenise = Tokeniser(tokenizer, template)
        self.template = template
        self.spans = read_spans(template.spans)
        self.max_tokens = min(window, template.max_tokens or window)

    def __call__(self, texts: Sequence[str], *, first_index: int = 0) -> list[EncodedText]:
        """Encode texts, each into one row with at least one token of role `TEXT`, or into windows where it is too long.

        Raises:
            InputError: As by `Tokeniser`, its `fit` and its `row`, or a text without tokens. The message names the text
                by its beginning and its position, `texts[0]` being at `first_index`.
        """
        encoded: list[EncodedText] = []
        for item in self._tokenise(texts, first_index=first_index):
            if len(item.ids) > self.max_tokens and self.template.on_long == "windows":
                windows = split_tokens(item, self._tokenise, max_tokens=self.max_tokens, spans=self.spans)
                encoded.append(EncodedText(item.ids, item.roles, False, None, item.index, windows=windows))
                continue
            fitted, kept = self._tokenise.fit(item, max_tokens=self.max_tokens)
            if TEXT not in fitted.roles[kept]:
                raise InputError(
                    f"{item.label} has no token to pool over; give a text with at least one visible character."
                )
            is_cut = len(kept) < len(item.ids)
            spans = fitted.number_spans(self.spans, kept)
            encoded.append(self._tokenise.row(fitted, kept, is_truncated=is_cut, spans=spans))
        return encoded


def cut_at_tokens(
    texts: Sequence[JoinedText], tokenizer: "PreTrainedTokenizerBase", *, template: InputTemplate
) -> list[list[list[int]]]:
    """Find where the tokens of each word begin.

    The pieces of a text join to the very same text, so they are read at the tokens that were counted here. Tokens that
    stand for bytes of one character are one piece; so is a word that no token begins in.

    Returns:
        For each text, for each of its words, the characters inside the word at which a piece begins; the first is 0.
        Nothing is cut off at the template's `max_tokens`.
    """
    tokenise = Tokeniser(tokenizer, template)
    found = []
    for item, text in zip(tokenise([text.text for text in texts]), texts, strict=True):
        offsets = item.offsets[item.text_columns]
        begins = np.unique(offsets[offsets[:, 0] < offsets[:, 1], 0])
        found.append([[0, *(begins[(begins > start) & (begins < end)] - start).tolist()] for start, end in text.spans])
    return found
