"""Words cut where their tokens begin: the text stays what it was, and each piece is one token or one character's."""

from itertools import pairwise

import pytest
from hypothesis import given

from extract.inputs.joined_text import align_words, join_words
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import Tokeniser, cut_at_tokens
from tests.extract.inputs.test_alignment import FEW, PAIRS
from tests.extract.word_tokenizers import WORD_TOKENIZERS, word_tokenizer


@pytest.mark.parametrize("name", WORD_TOKENIZERS)
@FEW
@given(PAIRS)
def test_each_piece_has_the_tokens_that_begin_where_it_begins(name: str, pairs: list[tuple[str, bool]]) -> None:
    tokenizer = word_tokenizer(name)
    words, spaces = [word for word, _ in pairs], [space for _, space in pairs]
    joined = join_words(words, spaces)
    (cuts,) = cut_at_tokens([joined], tokenizer, template=InputTemplate())
    pieces = [word[a:b] for word, begins in zip(words, cuts, strict=True) for a, b in pairwise([*begins, len(word)])]
    follow = [
        k == len(begins) - 1 and space for begins, space in zip(cuts, spaces, strict=True) for k in range(len(begins))
    ]
    again = join_words(pieces, follow)
    assert again.text == joined.text
    assert all(pieces)
    (item,) = Tokeniser(tokenizer, InputTemplate())([joined.text])
    offsets = item.offsets[item.text_columns]
    aligned = align_words(offsets, again.spans)
    for (start, end), a, b in zip(again.spans, aligned.starts, aligned.ends, strict=True):
        inside = {first for first, last in offsets[a:b].tolist() if first < last and start < first < end}
        assert not inside, "no token begins inside a piece"


def test_pieces_of_a_known_word() -> None:
    tokenizer = word_tokenizer("word piece, BERT")
    text = join_words(["Greenland", "melts"], [True, False])
    (cuts,) = cut_at_tokens([text], tokenizer, template=InputTemplate())
    (item,) = Tokeniser(tokenizer, InputTemplate())([text.text])
    assert sum(map(len, cuts)) == len(item.text_columns)
