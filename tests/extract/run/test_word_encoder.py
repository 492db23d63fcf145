"""Texts with words as rows: the tokens of the one tokenisation, and for each word the columns it is read at."""

from typing import Any, Literal

import numpy as np
import pytest
from tokenizers import normalizers

from extract.decoders.decoder import Decoder
from extract.errors import InputError
from extract.inputs.joined_text import (
    INSTRUCTION,
    SPECIAL,
    TEXT,
    WORD_CUT,
    WORD_LOST,
    WORD_SHARED,
    JoinedText,
    RandomSpans,
    join_words,
)
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText, TextEncoder
from extract.run.embed import WordEncoder, make_encoder
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from tests.extract.tiny_decoders import SENTENCES, make_tokenizer
from tests.extract.word_tokenizers import dropping_tokenizer, word_tokenizer

BOS, EOS = 1, 2


def joined(text: str) -> JoinedText:
    """Split a text at its blanks."""
    return join_words(text.split(), [True] * len(text.split()))


def encode(
    text: JoinedText, *, tokenizer: Any = None, window: int = 64, words: WordSpec | None = None, **template: Any
) -> list[EncodedText]:
    """Encode one text into its rows."""
    made = make_tokenizer() if tokenizer is None else tokenizer
    encoder = WordEncoder(made, InputTemplate(**template), window=window, words=words or WordSpec())
    return encoder([text], first_index=4)


def read(row: EncodedText, tokenizer: Any = None) -> list[str]:
    """Decode the tokens that each word of a row is read at."""
    assert row.words is not None
    made = make_tokenizer() if tokenizer is None else tokenizer
    return [str(made.decode(row.ids[first:last].tolist())).strip() for first, last in row.words.columns]


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("instruction", ["", "Snow: "])
def test_rows_are_those_of_plain_texts_with_the_words_in_them(adds_bos: bool, instruction: str) -> None:
    tokenizer = make_tokenizer(adds_bos=adds_bos, adds_eos=True)
    template = InputTemplate(instruction=instruction)
    plain = TextEncoder(tokenizer, template, window=64)(SENTENCES)
    rows = WordEncoder(tokenizer, template, window=64, words=WordSpec())([joined(text) for text in SENTENCES])
    for text, one, other, i in zip(SENTENCES, plain, rows, range(len(SENTENCES)), strict=True):
        assert (one.ids.tolist(), one.roles.tolist()) == (other.ids.tolist(), other.roles.tolist())
        assert (other.is_truncated, other.index) == (False, i)
        assert read(other, tokenizer) == text.split()
        assert other.words is not None
        assert (other.words.flags.tolist(), other.words.start) == ([0] * len(text.split()), 0)


def test_words_that_share_a_token_are_flagged() -> None:
    text = join_words(["mou", "se", "under"], [False, True, True])
    (row,) = encode(text, tokenizer=word_tokenizer("byte-level, prefix space, trimmed offsets"))
    assert row.words is not None
    assert row.words.columns.tolist() == [[0, 1], [0, 1], [1, row.words.columns[2, 1]]]
    assert row.words.flags.tolist() == [0, WORD_SHARED, 0]


def test_truncated_words_are_flagged_and_have_no_columns() -> None:
    text = joined(SENTENCES[1])
    (whole,) = encode(text, instruction="Snow: ")
    assert whole.words is not None
    n_tokens = int(whole.words.columns[4, 0]) + 1  # one token of the fifth word
    assert n_tokens < whole.words.columns[4, 1]
    (row,) = encode(text, instruction="Snow: ", max_tokens=n_tokens)
    assert row.words is not None
    assert row.is_truncated
    assert row.ids.tolist() == whole.ids[:n_tokens].tolist()
    assert row.words.columns[:4].tolist() == whole.words.columns[:4].tolist()
    assert row.words.columns[4:].tolist() == [[0, 0]] * (len(text.spans) - 4)
    assert row.words.flags.tolist() == [0] * 4 + [WORD_CUT] * (len(text.spans) - 4)


def test_a_closing_special_survives_the_cut() -> None:
    tokenizer = make_tokenizer(adds_bos=True, adds_eos=True)
    (row,) = encode(joined(SENTENCES[1]), tokenizer=tokenizer, max_tokens=9)
    assert (row.ids[0], row.ids[-1], len(row.ids)) == (BOS, EOS, 9)
    assert row.words is not None
    assert row.words.columns.max() <= 8


def test_long_texts_can_be_an_error() -> None:
    with pytest.raises(InputError, match=r"text 4 \('A cold core was .*\) has \d+ tokens; at most 5 fit"):
        encode(joined(SENTENCES[1]), max_tokens=5, on_long="error")


@pytest.mark.parametrize("shift", [False, True])
def test_windows_are_slices_of_the_one_tokenisation(shift: bool) -> None:
    tokenizer = make_tokenizer(adds_bos=True, adds_eos=True)
    text = joined(" ".join(SENTENCES * 3))
    how: dict[str, Any] = {"tokenizer": tokenizer, "instruction": "Snow: ", "words": WordSpec(shift=shift)}
    (whole,) = encode(text, window=10_000, **how)
    rows = encode(text, window=24, on_long="windows", **how)
    ids = whole.ids[whole.roles == TEXT]
    n_around = int((whole.roles != TEXT).sum())
    assert whole.words is not None
    assert len(rows) > 5
    place = 0
    for row in rows:
        assert row.words is not None
        assert (row.is_truncated, row.index, row.words.start) == (False, 4, place)
        assert row.ids[row.roles != TEXT].tolist() == whole.ids[whole.roles != TEXT].tolist()
        assert row.roles.tolist() == [SPECIAL, *[INSTRUCTION] * (n_around - 2), *[TEXT] * (24 - n_around), SPECIAL]
        for (first, last), (first_whole, last_whole) in zip(
            row.words.columns, whole.words.columns[place:], strict=False
        ):
            assert row.ids[first:last].tolist() == whole.ids[first_whole:last_whole].tolist()
        own = row.ids[row.roles == TEXT].tolist()
        starts = [k for k in range(len(ids) - len(own) + 1) if ids[k : k + len(own)].tolist() == own]
        assert starts, "a window is a run of the text's tokens"
        place += len(row.words.flags)
    assert place == len(text.spans)
    flags = np.concatenate([row.words.flags for row in rows if row.words is not None])
    assert flags.tolist() == [0] * place


def test_a_text_that_fits_is_one_row_under_windows_too() -> None:
    text = joined(SENTENCES[0])
    (one,), (other,) = encode(text, on_long="windows"), encode(text)
    assert one.ids.tolist() == other.ids.tolist()


def test_a_word_longer_than_a_window_is_cut() -> None:
    text = join_words(["a", "x" * 50, "b"], [True, True, True])
    rows = encode(text, window=8, on_long="windows")
    flags = np.concatenate([row.words.flags for row in rows if row.words is not None])
    assert flags.tolist() == [0, WORD_CUT, 0]


def test_windows_need_room_beside_the_instruction() -> None:
    with pytest.raises(InputError, match=r"instruction and specials take \d+ of 4 tokens and leave no room"):
        encode(joined(SENTENCES[1]), window=4, on_long="windows", instruction="Represent this sentence: ")


def test_spans_of_a_hybrid_mask_are_those_of_the_whole_text() -> None:
    text = joined(" ".join(SENTENCES))
    (whole,) = encode(text, window=10_000, spans="random:3")
    assert whole.spans is not None
    assert set(whole.spans.tolist()) > {-1}
    item_offsets = np.array([(i, i + 1) for i in range(len(whole.ids))])
    assert whole.spans.tolist() == RandomSpans(3).assign(text.text, item_offsets).tolist()
    rows = encode(text, window=20, on_long="windows", spans="random:3")
    start = 0
    for row in rows:
        assert row.spans is not None
        while whole.ids[start : start + 20].tolist() != row.ids.tolist():
            start += 1
        assert row.spans.tolist() == whole.spans[start : start + 20].tolist()


def test_a_shifted_word_is_read_one_token_earlier() -> None:
    tokenizer = make_tokenizer()
    text = joined(SENTENCES[0])
    (plain,), (shifted,) = (encode(text, bos="force", words=WordSpec(shift=shift)) for shift in (False, True))
    assert plain.words is not None
    assert shifted.words is not None
    assert shifted.words.columns.tolist() == (plain.words.columns - 1).tolist()
    assert shifted.words.columns[0, 0] == 0
    # An instruction before the text serves as well as a BOS token.
    (row,) = encode(text, tokenizer=tokenizer, instruction="Snow: ", words=WordSpec(shift=True))
    assert row.words is not None
    assert row.roles[row.words.columns[0, 0]] == INSTRUCTION
    message = r"text 4 \('The mouse ran .*\) begins with a word at its very first token.*set template.bos to 'force'"
    with pytest.raises(InputError, match=message):
        encode(text, tokenizer=tokenizer, words=WordSpec(shift=True))


def test_lost_words_are_refused_by_name_or_counted() -> None:
    tokenizer = word_tokenizer("word piece, BERT")
    text = join_words(["the", "\u200b", "mouse"], [True, True, True])
    message = r"no token covers word 1 \('\\u200b', characters 4 to 5\) of text 4 \(.*set words.on_lost to 'count'"
    with pytest.raises(InputError, match=message):
        encode(text, tokenizer=tokenizer)
    (row,) = encode(text, tokenizer=tokenizer, words=WordSpec(on_lost="count"))
    assert row.words is not None
    assert row.words.flags.tolist() == [0, WORD_LOST, 0]
    assert row.words.columns[1].tolist() == [0, 0]


@pytest.mark.parametrize("instruction", ["", "the mouse, "])
def test_characters_that_vanish_without_a_trace_are_refused(instruction: str) -> None:
    tokenizer = dropping_tokenizer()
    told = tokenizer("①mouse", return_offsets_mapping=True)["offset_mapping"]
    assert max(end for _, end in told) < len("①mouse"), "the offsets are wrong, so nothing can be aligned by them"
    fine = join_words(["the", "mouse", "didn't"], [True, True, True])
    (row,) = encode(fine, tokenizer=tokenizer, instruction=instruction)
    assert read(row, tokenizer) == ["▁the", "▁mouse", "▁didn't"]
    with pytest.raises(InputError, match=r"has no token for '①' in text 4 \('the ①mouse'\) and drops it, after which"):
        encode(join_words(["the", "①", "mouse"], [True, False, True]), tokenizer=tokenizer, instruction=instruction)
    normal = dropping_tokenizer(normalizer=normalizers.NFKC())  # makes a plain 1 of it
    (row,) = encode(join_words(["the", "①", "in"], [True, True, True]), tokenizer=normal, instruction=instruction)
    assert row.words is not None
    assert row.words.flags.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("bos", "ids"), [("none", [BOS]), ("force", [BOS])])
@pytest.mark.parametrize("spans", [((0, 1),), ((0, 0), (0, 1))])
def test_a_text_all_of_whose_words_are_lost_still_is_a_row(
    bos: str, ids: list[int], spans: tuple[tuple[int, int], ...]
) -> None:
    (row,) = encode(
        JoinedText("\u200b", spans),
        tokenizer=word_tokenizer("word piece, BERT"),
        bos=bos,
        words=WordSpec(on_lost="count"),
    )
    assert row.words is not None
    assert row.ids.tolist() == ids
    assert row.roles.tolist() == [SPECIAL]
    assert row.words.flags.tolist() == [WORD_LOST] * len(spans)
    assert not row.words.columns.any()


@pytest.mark.parametrize("on_long", ["truncate", "windows"])
def test_an_encoder_for_either_kind_of_text(on_long: Literal["truncate", "windows"], decoder: Decoder) -> None:
    spec = ExtractionSpec(template=InputTemplate(on_long=on_long))
    [words] = make_encoder(decoder, spec, has_words=True)([JoinedText("the cat", ((0, 3), (4, 7)))])
    [text] = make_encoder(decoder, spec, has_words=False)(["the cat"])
    assert words.words is not None
    assert text.words is None
