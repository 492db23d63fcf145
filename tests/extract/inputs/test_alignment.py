"""Words find their tokens by characters, whatever the tokenizer does to blanks, bytes and combining marks."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from extract.decoders.fetch import icecore_home
from extract.inputs.joined_text import WORD_LOST, WORD_SHARED, align_words, join_words
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import Tokeniser
from tests.extract.word_tokenizers import LOSSLESS, WORD_TOKENIZERS, word_tokenizer

FEW = settings(max_examples=15, deadline=None, database=None)
CHARACTERS = st.sampled_from(
    [
        *"aeimotuMÜé0159-.,!?'",
        *"氷水はからहिسर",
        "\u0301",
        "\u0323",
        "\u0308",
        "\u094d",
        "\u200b",
        "\u200d",
        "\u00ad",
        "\ufeff",
        "\u00a0",
        "ﬁ",
        "①",
        "½",
        "👍🏽",
        "👩\u200d🔬",
        "🇳🇴",
        "🔬",
        "\x07",
    ]
)
KNOWN = st.sampled_from(["The", "mouse", "didn't", "n't", "under", "Greenland", "e\u0301", "state-of-the-art", "…"])
WORDS = st.one_of(KNOWN, st.lists(CHARACTERS, min_size=1, max_size=6).map("".join))
PAIRS = st.lists(st.tuples(WORDS, st.booleans()), min_size=1, max_size=9)  # a word, and whether a blank follows
INSTRUCTIONS = st.sampled_from(["", "Query: ", "mou", "the 氷"])


@pytest.mark.parametrize(
    ("offsets", "spans", "expected", "flags"),
    [
        # one token a word, blanks outside the tokens or inside them
        ([(0, 3), (4, 9)], [(0, 3), (4, 9)], [(0, 1), (1, 2)], [0, 0]),
        ([(0, 3), (3, 9)], [(0, 3), (4, 9)], [(0, 1), (1, 2)], [0, 0]),
        ([(0, 4), (4, 9)], [(0, 3), (4, 9)], [(0, 1), (1, 2)], [0, 0]),
        # a blank that is a token of its own, with its width or trimmed
        ([(0, 3), (3, 4), (4, 9)], [(0, 3), (4, 9)], [(0, 1), (2, 3)], [0, 0]),
        ([(0, 3), (4, 4), (4, 9)], [(0, 3), (4, 9)], [(0, 1), (2, 3)], [0, 0]),
        # several tokens of one character
        ([(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)], [(0, 1), (1, 2), (2, 3)], [(0, 1), (1, 4), (4, 5)], [0, 0, 0]),
        # a token of two words, and of three
        ([(0, 4), (4, 5)], [(0, 2), (2, 5)], [(0, 1), (0, 2)], [0, WORD_SHARED]),
        ([(0, 9)], [(0, 2), (2, 5), (6, 9)], [(0, 1), (0, 1), (0, 1)], [0, WORD_SHARED, WORD_SHARED]),
        # no token at all: dropped, empty, or of a blank only
        ([(0, 3), (5, 9)], [(0, 3), (4, 5), (6, 9)], [(0, 1), (0, 0), (1, 2)], [0, WORD_LOST, 0]),
        ([(0, 9)], [(0, 3), (3, 3), (4, 9)], [(0, 1), (0, 0), (0, 1)], [0, WORD_LOST, WORD_SHARED]),
        ([(3, 4)], [(0, 3), (4, 6)], [(0, 0), (0, 0)], [WORD_LOST, WORD_LOST]),
        ([], [(0, 3)], [(0, 0)], [WORD_LOST]),
        # the instruction's last token reaches into the text
        ([(-3, 2), (2, 5)], [(0, 5)], [(0, 2)], [0]),
        # characters put in another order
        ([(0, 1), (2, 3), (1, 2), (3, 4)], [(0, 3), (3, 4)], [(0, 3), (3, 4)], [0, 0]),
        ([(0, 1), (2, 3), (1, 2), (3, 4)], [(0, 2), (2, 4)], [(0, 3), (1, 4)], [0, WORD_SHARED]),
    ],
)
def test_truth_table(
    offsets: list[tuple[int, int]], spans: list[tuple[int, int]], expected: list[tuple[int, int]], flags: list[int]
) -> None:
    aligned = align_words(np.array(offsets, np.int64).reshape(-1, 2), spans)
    assert list(zip(aligned.starts.tolist(), aligned.ends.tolist(), strict=True)) == expected
    assert aligned.flags.tolist() == flags
    assert aligned.is_lost.tolist() == [bool(flag & WORD_LOST) for flag in flags]


@settings(max_examples=200, deadline=None, database=None)
@given(st.data())
def test_any_offsets_equal_looking_at_every_token(data: st.DataObject) -> None:
    pairs = st.tuples(st.integers(0, 20), st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))
    offsets = data.draw(st.lists(pairs, max_size=12))
    if data.draw(st.booleans()):
        offsets = sorted(offsets)
    borders = sorted(data.draw(st.lists(st.integers(0, 24), min_size=2, max_size=8)))
    spans = list(zip(borders[::2], borders[1::2], strict=False))
    aligned = align_words(np.array(offsets, np.int64).reshape(-1, 2), spans)
    for (start, end), found in zip(spans, zip(aligned.starts, aligned.ends, strict=True), strict=True):
        meeting = [i for i, (a, b) in enumerate(offsets) if a < b and set(range(a, b)) & set(range(start, end))]
        assert tuple(found) == ((meeting[0], meeting[-1] + 1) if meeting else (0, 0))


def check(
    tokenizer: PreTrainedTokenizerBase, pairs: list[tuple[str, bool]], instruction: str, *, is_lossless: bool
) -> None:
    """Check every promise of an alignment on one text."""
    joined = join_words([word for word, _ in pairs], [space for _, space in pairs])
    (item,) = Tokeniser(tokenizer, InputTemplate(instruction=instruction))([joined.text])
    columns = item.text_columns
    offsets = item.offsets[columns]
    aligned = align_words(offsets, joined.spans)
    tokens = [range(int(a), int(b)) for a, b in zip(aligned.starts, aligned.ends, strict=True)]
    covered = {c for first, last in offsets.tolist() for c in range(first, last)}
    before = range(0)
    for word, (start, end) in enumerate(joined.spans):
        own = {c for i in tokens[word] for c in range(*offsets[i].tolist())}
        assert set(range(start, end)) & covered <= own, "the tokens of a word cover its characters"
        assert bool(tokens[word]) == bool(set(range(start, end)) & covered), "a word is lost where nothing covers it"
        if tokens[word]:
            assert tokens[word].start >= before.start and tokens[word].stop >= before.stop, "words stand in order"
            is_flagged = bool(aligned.flags[word] & WORD_SHARED)
            assert (tokens[word].start < before.stop) == is_flagged, "tokens are shared only where it is flagged"
            before = tokens[word]
        if is_lossless:
            # Not by offsets: what the tokens themselves say holds the word.
            said = tokenizer.decode([item.ids[columns[i]] for i in tokens[word]], clean_up_tokenization_spaces=False)
            assert joined.text[start:end] in str(said)


@pytest.mark.parametrize("name", WORD_TOKENIZERS)
@FEW
@given(PAIRS, INSTRUCTIONS)
def test_words_find_their_tokens(name: str, pairs: list[tuple[str, bool]], instruction: str) -> None:
    check(word_tokenizer(name), pairs, instruction, is_lossless=name in LOSSLESS)


@pytest.mark.parametrize("name", [name for name in WORD_TOKENIZERS if "across" not in name and "llama" not in name])
def test_plain_words_have_tokens_of_their_own(name: str) -> None:
    """Blanks part words in every tokenizer that does not merge across them."""
    words = ["the", "mouse", "ran", "under", "the", "table"]
    joined = join_words(words, [True] * len(words))
    tokenizer = word_tokenizer(name)
    (item,) = Tokeniser(tokenizer, InputTemplate())([joined.text])
    aligned = align_words(item.offsets[item.text_columns], joined.spans)
    assert aligned.flags.tolist() == [0] * len(words)
    said = [
        "".join(tokenizer.convert_ids_to_tokens(item.ids.tolist()[a:b])).strip("Ġ▁").replace("##", "")
        for a, b in zip(aligned.starts, aligned.ends, strict=True)
    ]
    assert said == words


def test_dropped_characters_lose_their_word_and_no_other() -> None:
    joined = join_words(["ice", "\u200b", "n\u200bo", "\x07"], [True, False, True, False])
    (item,) = Tokeniser(word_tokenizer("word piece, BERT"), InputTemplate())([joined.text])
    aligned = align_words(item.offsets[item.text_columns], joined.spans)
    assert aligned.flags.tolist() == [0, WORD_LOST, 0, WORD_LOST]


@pytest.mark.slow
def test_words_find_their_tokens_in_real_tokenizers() -> None:
    folder = icecore_home() / "decoders"
    found = sorted(path.parent for path in folder.glob("*/tokenizer.json"))
    if not found:
        pytest.skip(f"no decoder was fetched into {folder}")
    auto: Any = AutoTokenizer
    tokenizers = [auto.from_pretrained(path) for path in found]

    @settings(max_examples=600, deadline=None, database=None)
    @given(st.integers(0, len(tokenizers) - 1), PAIRS, INSTRUCTIONS)
    def check_one(which: int, pairs: list[tuple[str, bool]], instruction: str) -> None:
        tokenizer = tokenizers[which]
        check(tokenizer, pairs, instruction, is_lossless="ByteLevel" in tokenizer.backend_tokenizer.to_str())

    check_one()
