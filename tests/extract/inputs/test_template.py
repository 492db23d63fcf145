"""One tokenisation per text: roles by offsets, one BOS policy, nothing cut in silence."""

from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from extract.errors import InputError, UnknownNameError
from extract.inputs.joined_text import INSTRUCTION, SPECIAL, TEXT
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText, TextEncoder
from tests.extract.tiny_decoders import SENTENCES, make_tokenizer

BOS, EOS = 1, 2


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, window: int = 64, **template: Any) -> EncodedText:
    """Encode one text."""
    (encoded,) = TextEncoder(tokenizer, InputTemplate(**template), window=window)([text])
    return encoded


def decode(tokenizer: PreTrainedTokenizerBase, encoded: EncodedText, role: int) -> str:
    """Decode the tokens of one role."""
    return str(tokenizer.decode(encoded.ids[encoded.roles == role].tolist()))


@pytest.mark.parametrize(
    ("adds_bos", "policy", "starts_with_bos"),
    [
        (True, "auto", True),
        (False, "auto", False),
        (True, "force", True),
        (False, "force", True),
        (True, "none", False),
        (False, "none", False),
    ],
)
def test_bos_policy(adds_bos: bool, policy: str, starts_with_bos: bool) -> None:
    encoded = encode(make_tokenizer(adds_bos=adds_bos), "The mouse", bos=policy)
    assert encoded.ids.tolist().count(BOS) == int(starts_with_bos)
    assert (encoded.ids[0] == BOS) == starts_with_bos
    assert encoded.roles.tolist() == [SPECIAL] * starts_with_bos + [TEXT] * (len(encoded.ids) - starts_with_bos)


def test_a_closing_special_is_no_text() -> None:
    encoded = encode(make_tokenizer(adds_bos=True, adds_eos=True), "The mouse")
    assert encoded.ids[[0, -1]].tolist() == [BOS, EOS]
    assert encoded.roles[[0, -1]].tolist() == [SPECIAL, SPECIAL]
    assert set(encoded.roles[1:-1].tolist()) == {TEXT}


@pytest.mark.parametrize("policy", ["auto", "force"])
def test_a_bos_in_the_instruction_is_never_doubled(policy: str) -> None:
    with pytest.raises(InputError, match=r"text 0 \('ice'\) begins with two BOS tokens '<s>'"):
        encode(make_tokenizer(adds_bos=True), "ice", bos=policy, instruction="<s>Query: ")
    encoded = encode(make_tokenizer(adds_bos=True), "ice", bos="none", instruction="<s>Query: ")
    assert encoded.ids.tolist().count(BOS) == 1
    encoded = encode(make_tokenizer(), "ice", bos="force", instruction="<s>Query: ")
    assert encoded.ids.tolist().count(BOS) == 1


def test_forcing_needs_a_bos_token() -> None:
    with pytest.raises(InputError, match="BOS policy is 'force' but this tokenizer has no BOS token"):
        encode(make_tokenizer(has_bos=False), "ice", bos="force")
    assert BOS not in encode(make_tokenizer(has_bos=False), "ice", bos="auto").ids


def test_the_instruction_is_told_from_the_text() -> None:
    tokenizer = make_tokenizer(adds_bos=True)
    encoded = encode(tokenizer, "The mouse", instruction="Snow: ")
    assert decode(tokenizer, encoded, INSTRUCTION) == "Snow: "
    assert decode(tokenizer, encoded, TEXT) == "The mouse"
    assert encoded.ids.tolist() == tokenizer("Snow: The mouse")["input_ids"]


def test_a_token_that_straddles_the_seam_is_text() -> None:
    tokenizer = make_tokenizer()
    instruction, text = "under the mou", "se under"
    whole = tokenizer(instruction + text)["input_ids"]
    n_alone = len(tokenizer(instruction)["input_ids"])
    encoded = encode(tokenizer, text, instruction=instruction)
    assert encoded.ids.tolist() == whole
    assert decode(tokenizer, encoded, TEXT) == " mouse under"
    # Counting the instruction's tokens by themselves would have called the merged token instruction.
    assert int((encoded.roles == INSTRUCTION).sum()) < n_alone


def test_characters_of_several_tokens_keep_their_role() -> None:
    tokenizer = make_tokenizer()
    encoded = encode(tokenizer, "ø", instruction="ç")
    assert decode(tokenizer, encoded, INSTRUCTION) == "ç"
    assert decode(tokenizer, encoded, TEXT) == "ø"


def test_long_texts_are_cut_at_the_end_and_flagged() -> None:
    tokenizer = make_tokenizer(adds_bos=True, adds_eos=True)
    whole = encode(tokenizer, SENTENCES[1], instruction="Snow: ")
    cut = encode(tokenizer, SENTENCES[1], instruction="Snow: ", max_tokens=len(whole.ids) - 5)
    assert cut.is_truncated
    assert not whole.is_truncated
    assert cut.ids.tolist() == [*whole.ids[:-6].tolist(), EOS]
    assert decode(tokenizer, cut, INSTRUCTION) == "Snow: "


def test_a_text_that_just_fits_is_not_flagged() -> None:
    tokenizer = make_tokenizer(adds_bos=True)
    n_tokens = len(encode(tokenizer, SENTENCES[1]).ids)
    assert not encode(tokenizer, SENTENCES[1], max_tokens=n_tokens).is_truncated
    assert len(encode(tokenizer, SENTENCES[1], max_tokens=n_tokens - 1).ids) == n_tokens - 1
    assert len(encode(tokenizer, SENTENCES[1], window=7, max_tokens=60).ids) == 7


def test_the_forced_bos_counts() -> None:
    encoded = encode(make_tokenizer(), SENTENCES[1], bos="force", max_tokens=8)
    assert (len(encoded.ids), encoded.ids[0], encoded.is_truncated) == (8, BOS, True)


def test_long_texts_can_be_an_error() -> None:
    encoder = TextEncoder(make_tokenizer(), InputTemplate(max_tokens=5, on_long="error"), window=64)
    with pytest.raises(
        InputError, match=r"text 8 \('A cold core was drilled through the ice…'\) has \d+ tokens; at most 5"
    ):
        encoder(["Ice!", SENTENCES[1]], first_index=7)


def test_an_instruction_must_leave_room() -> None:
    tokenizer = make_tokenizer(adds_bos=True)
    instruction = "Represent this sentence: "
    n_taken = int((encode(tokenizer, "ice", instruction=instruction).roles != TEXT).sum())
    with pytest.raises(
        InputError, match=rf"instruction and specials take {n_taken} of {n_taken} tokens and leave no room"
    ):
        encode(tokenizer, SENTENCES[1], instruction=instruction, max_tokens=n_taken)
    assert (encode(tokenizer, SENTENCES[1], instruction=instruction, max_tokens=n_taken + 1).roles == TEXT).sum() == 1


def test_a_text_without_tokens_is_refused() -> None:
    encoder = TextEncoder(make_tokenizer(adds_bos=True), InputTemplate(), window=64)
    with pytest.raises(InputError, match=r"text 1 \(''\) has no token to pool over"):
        encoder(["ice", ""])
    with pytest.raises(InputError, match=r"text 0 \(''\) has no token to pool over"):
        encode(make_tokenizer(), "", instruction="Query: ")


def test_a_lone_surrogate_is_refused_by_name() -> None:
    encoder = TextEncoder(make_tokenizer(), InputTemplate(), window=64)
    with pytest.raises(InputError, match=r"text 4 \('a\\ud800b'\) is not valid Unicode; fix its surrogates"):
        encoder(["ice", "a\ud800b"], first_index=3)


def test_a_one_token_text_has_one_row() -> None:
    encoded = encode(make_tokenizer(), "a")
    assert (encoded.ids.shape, encoded.roles.tolist(), encoded.is_truncated) == ((1,), [TEXT], False)
    assert encoded.ids.dtype == np.int64
    assert encoded.roles.dtype == np.int8


def test_no_texts_no_rows() -> None:
    assert TextEncoder(make_tokenizer(), InputTemplate(), window=64)([]) == []


def test_a_slow_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    monkeypatch.setattr(type(tokenizer), "is_fast", False)
    with pytest.raises(InputError, match=f"the tokenizer {type(tokenizer).__name__} gives no character offsets"):
        TextEncoder(tokenizer, InputTemplate(), window=64)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bos", "forced", "unknown BOS policy 'forced': did you mean 'force'"),
        ("on_long", "cut", "unknown policy for long texts 'cut'. Allowed: truncate, error, windows"),
        ("max_tokens", 0, "max_tokens is 0; allowed: a whole number of at least 1"),
    ],
)
def test_values_outside_the_tables_are_refused(field: str, value: object, message: str) -> None:
    template = InputTemplate()
    object.__setattr__(template, field, value)  # as a caller without type checks would
    with pytest.raises((UnknownNameError, InputError), match=message):
        template.__post_init__()


def test_a_task_is_filled_in_where_no_template_is_named() -> None:
    template = InputTemplate(instruction="Instruct: {task}\nQuery: ", task="find papers")
    assert template.instruction == "Instruct: find papers\nQuery: "


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"repeat": 128}, "repeat is 128; allowed: at most 127"),
        ({"instruction": "Say \udce9: "}, "holds half a character"),
    ],
)
def test_what_no_row_can_hold_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        InputTemplate(**values)
