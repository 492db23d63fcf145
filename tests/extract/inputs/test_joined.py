"""Words in their text: put together, and refused where they are not in it."""

from typing import Any

import pytest

from extract.errors import InputError
from extract.inputs.joined_text import JoinedText, join_words
from extract.run.extraction import unique_texts


def test_equal_texts_with_other_words_are_different() -> None:
    one, other = join_words(["ab"], [True]), join_words(["a", "b"], [False, True])
    assert one.text == other.text
    assert unique_texts([one, other, one]) == [one, other]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ((), r"text 1 \('the mouse'\) has no words; give each text at least one"),
        (((0, 3), (4, 10)), r"word 1 of text 1 \('the mouse'\) has the characters 4 to 10; .* inside the 9 characters"),
        (((4, 9), (0, 3)), "word 1 of text 1 .* has the characters 0 to 3; allowed: words in order"),
        (((0, 5), (4, 9)), "word 1 of text 1 .* has the characters 4 to 9"),
        (((3, 1),), "word 0 of text 1 .* has the characters 3 to 1"),
        (((-1, 3),), "word 0 of text 1 .* has the characters -1 to 3"),
    ],
)
def test_words_must_be_in_their_text(spans: tuple[tuple[int, int], ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        unique_texts([join_words(["ice"], [True]), JoinedText("the mouse", spans)])


def test_plain_texts_and_words_do_not_mix() -> None:
    mixed: list[Any] = [join_words(["ice"], [True]), "ice"]
    with pytest.raises(InputError, match="text 1 is 'ice'; allowed: either plain texts or texts with their words"):
        unique_texts(mixed)
    with pytest.raises(InputError, match=r"text 1 is JoinedText\(.*; allowed: either plain texts"):
        unique_texts(mixed[::-1])
