"""What a template writes around a text: every role, copy, special and cut, beside an obvious reference."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from extract.errors import InputError, UnknownNameError
from extract.inputs.joined_text import CHAT, INSTRUCTION, JOINER, SPECIAL, SUFFIX, TEXT
from extract.inputs.template import DEFAULTS, FIRST_FIELDS, SETS, TEMPLATES, InputTemplate
from extract.inputs.tokens import EncodedText, TextEncoder, digest_chat, normalise_sentence, show_row
from tests.extract.tiny_decoders import SENTENCES, make_tokenizer
from tests.extract.word_tokenizers import word_tokenizer

BOS, EOS = 1, 2
CHAT_TEMPLATE = (
    "<s>{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
OLD = {"bos": "auto", "instruction": "", "max_tokens": None, "on_long": "truncate", "spans": ""}


@cache
def plain() -> PreTrainedTokenizerBase:
    """Share one tokenizer that adds no specials; nothing may change it."""
    return make_tokenizer()


def chatting() -> PreTrainedTokenizerBase:
    """Make a tokenizer with a chat template, which writes BOS itself and strips blanks around the user's words."""
    made = make_tokenizer(adds_bos=True)
    made.chat_template = CHAT_TEMPLATE
    return made


def encode(
    text: str, *, tokenizer: PreTrainedTokenizerBase | None = None, window: int = 200, **template: Any
) -> EncodedText:
    """Encode one text."""
    (row,) = TextEncoder(tokenizer or plain(), InputTemplate(**template), window=window)([text])
    return row


def decode(row: EncodedText, chosen: Any, tokenizer: PreTrainedTokenizerBase | None = None) -> str:
    """Decode some tokens of a row."""
    return str((tokenizer or plain()).decode(row.ids[chosen].tolist()))


def reference(pieces: list[tuple[int, str]], tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Find roles and copies of the tokens of joined pieces, character by character."""
    of_character, n_copies = [], 0
    for role, piece in pieces:
        n_copies += role == TEXT
        of_character += [(role, n_copies if role == TEXT else 0)] * len(piece)
    roles, copies = [], []
    whole = "".join(piece for _, piece in pieces)
    for start, end in tokenizer(whole, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]:
        texts = [found for found in of_character[start:end] if found[0] == TEXT]
        role, copy = (texts or of_character[max(0, min(start, end - 1)) :])[
            0
        ]  # one of no width is that of the one before it
        roles.append(role)
        copies.append(copy)
    return roles, copies


@pytest.mark.parametrize("tokenizer", ["own", "byte-level, prefix space, trimmed offsets", "unigram"])
@pytest.mark.parametrize(
    ("before", "joiner", "after", "n_copies"),
    [
        ("", " ", '" means:', 1),
        ("Say: ", " ", "!", 1),
        ("", " ", "", 2),
        ("Say: ", ", again: ", " So", 2),
        ('The "', "", '"', 3),
    ],
)
def test_roles_and_copies_are_those_of_the_characters(
    tokenizer: str, before: str, joiner: str, after: str, n_copies: int
) -> None:
    made = plain() if tokenizer == "own" else word_tokenizer(tokenizer)
    text = "The mouse ran under the table."
    row = encode(text, tokenizer=made, instruction=before, joiner=joiner, suffix=after, repeat=n_copies)
    copies = [(TEXT, text), *[(JOINER, joiner), (TEXT, text)] * (n_copies - 1)]
    roles, numbers = reference([(INSTRUCTION, before), *copies, (SUFFIX, after)], made)
    assert row.roles.tolist() == roles
    assert row.copies.tolist() == numbers
    assert set(numbers) >= set(range(1, n_copies + 1))


def test_a_token_across_a_border_is_text_of_the_first_copy_it_touches() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([":T", "se!", "seT"])
    row = encode("The mouse", tokenizer=tokenizer, instruction="Say:", joiner="", suffix="!", repeat=2)
    found = {tokenizer.decode([i]): (r, c) for i, r, c in zip(row.ids, row.roles, row.copies, strict=True)}
    assert found[":T"] == (TEXT, 1)
    assert found["seT"] == (TEXT, 1)
    assert found["se!"] == (TEXT, 2)


def test_copies_may_tokenise_differently() -> None:
    row = encode("mouse under", repeat=2)
    first, second = (row.ids[row.copies == copy].tolist() for copy in (1, 2))
    assert first != second, "else this test shows nothing"
    assert decode(row, row.copies == 1) == "mouse under"
    assert decode(row, row.copies == 2).strip() == "mouse under"


def test_copies_without_a_token_of_their_own_are_refused() -> None:
    tokenizer = word_tokenizer("byte-level")
    tokenizer.add_tokens(["aaa"])
    with pytest.raises(InputError, match=r"copies of text 0 \('a'\) share a token.*set joiner, which is ''"):
        encode("a", tokenizer=tokenizer, repeat=3, joiner="")
    assert set(encode("a", tokenizer=tokenizer, repeat=3, joiner=" ").copies.tolist()) >= {1, 2, 3}


@pytest.mark.parametrize(
    ("adds_eos", "policy", "has_eos"),
    [
        (a, policy, policy == "force" or (a and policy == "auto"))
        for a in (0, 1)
        for policy in ("auto", "force", "none")
    ],
)
def test_eos_policy(adds_eos: bool, policy: str, has_eos: bool) -> None:
    tokenizer = make_tokenizer(adds_bos=True, adds_eos=adds_eos)
    row = encode("The mouse", tokenizer=tokenizer, eos=policy, suffix="!")
    assert row.ids.tolist().count(EOS) == int(has_eos)
    assert (row.ids[-1] == EOS) == has_eos
    assert (row.roles == SPECIAL).tolist() == [True, *[False] * (len(row.ids) - 1 - has_eos), *[True] * has_eos]


def test_a_forced_eos_counts_and_stays() -> None:
    row = encode(SENTENCES[1], eos="force", max_tokens=8)
    assert (len(row.ids), row.ids[-1], row.is_truncated) == (8, EOS, True)


@pytest.mark.parametrize(
    ("last", "eos", "read"),
    [
        ("row", "auto", ":"),
        ("row", "force", "</s>"),
        ("prompt", "force", ":"),
        ("text", "force", "se"),
        ("eos", "force", "</s>"),
    ],
)
def test_last_reads_the_token_the_template_says(last: str, eos: str, read: str) -> None:
    row = encode("The mouse", suffix=" means:", last=last, eos=eos)
    assert decode(row, [row.last_column]).endswith(read)


def test_last_passes_over_the_marks_of_a_chat() -> None:
    tokenizer = chatting()
    row = encode("ice", tokenizer=tokenizer, chat="user", suffix=" means:", last="prompt")
    assert decode(row, [row.last_column]) == ":"
    assert row.roles[-1] == CHAT
    begun = encode("ice", tokenizer=tokenizer, chat="assistant", answer="One word:", last="row")
    assert decode(begun, [begun.last_column]) == ":"


def test_eos_cannot_be_read_where_there_is_none() -> None:
    with pytest.raises(InputError, match=r"the row of text 0 \('ice'\) ends without an EOS token; set eos"):
        encode("ice", last="eos")


@pytest.mark.parametrize("system", ["", "Be brief."])
@pytest.mark.parametrize("chat", ["user", "assistant"])
def test_a_chat_is_what_the_tokenizer_writes(chat: str, system: str) -> None:
    tokenizer = chatting()
    row = encode("The mouse", tokenizer=tokenizer, chat=chat, system=system, instruction="Say: ", suffix=" So. ")
    messages = [{"role": "user", "content": "Say: The mouse So. "}]
    messages = ([{"role": "system", "content": system}] if system else []) + messages
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=chat == "assistant")
    assert row.ids.tolist() == tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert (row.ids[0], row.roles[0]) == (BOS, SPECIAL), "the BOS of a chat template is a special"
    assert decode(row, row.roles == INSTRUCTION, tokenizer) == "Say: "
    assert decode(row, row.roles == TEXT, tokenizer) == "The mouse"
    assert decode(row, row.roles == SUFFIX, tokenizer) == " So.", (
        "its blank at the end is stripped by the chat template"
    )
    assert (row.roles == CHAT).any()


def test_chats_that_cannot_be_written_are_refused() -> None:
    tokenizer = chatting()
    with pytest.raises(InputError, match="the tokenizer has no chat template; set chat to 'none', not 'user'"):
        encode("ice", chat="user")
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(InputError, match="this tokenizer cannot be written: TemplateError: no system role"):
        encode("ice", tokenizer=tokenizer, chat="user")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"
    with pytest.raises(InputError, match="writes the user's text 2 times"):
        encode("ice", tokenizer=tokenizer, chat="user")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    with pytest.raises(InputError, match="chat template of this tokenizer changes 'say'"):
        encode("ice", tokenizer=tokenizer, chat="user", instruction="say")


def test_the_digest_of_a_chat_is_of_its_template() -> None:
    one, other = chatting(), chatting()
    assert digest_chat(one) == digest_chat(other)
    other.chat_template = CHAT_TEMPLATE + " "
    assert digest_chat(one) != digest_chat(other)


CUTS: list[dict[str, Any]] = [
    {"suffix": '" means:', "instruction": 'This: "'},
    {"repeat": 2},
    {"repeat": 3, "joiner": ", again: ", "suffix": " So", "eos": "force", "bos": "force"},
    {"repeat": 2, "normalise": "sentence"},
]


@pytest.mark.parametrize("template", CUTS, ids=str)
@pytest.mark.parametrize("n_missing", [1, 5, 20])
def test_only_the_text_is_cut_and_every_copy_alike(template: dict[str, Any], n_missing: int) -> None:
    text, tokenizer = SENTENCES[1], plain()
    whole = encode(text, **template)
    most = len(whole.ids) - n_missing
    row = encode(text, **template, max_tokens=most)
    assert row.is_truncated
    # The reference tries every beginning that ends with a token of the text, and takes the longest that fits.
    ends = sorted({end for _, end in tokenizer(text, return_offsets_mapping=True)["offset_mapping"]})
    fitting = [encode(text[:end], **template) for end in ends]
    longest = [found for found in fitting if len(found.ids) <= most][-1]
    assert row.ids.tolist() == longest.ids.tolist()
    assert row.roles.tolist() == longest.roles.tolist()
    assert row.copies.tolist() == longest.copies.tolist()
    assert row.copies.max() == template.get("repeat", 1)


def test_a_token_across_the_end_of_the_text_is_not_lost_with_it() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(['."'])
    row = encode(SENTENCES[0], tokenizer=tokenizer, suffix='" means', max_tokens=12)
    assert row.is_truncated
    assert decode(row, slice(None), tokenizer).endswith('" means')


def test_a_template_must_leave_room() -> None:
    with pytest.raises(InputError, match=r"take \d+ of 6 tokens and leave no room for the text"):
        encode(SENTENCES[1], suffix=" means in one word:", max_tokens=6)
    with pytest.raises(InputError, match=r"has \d+ tokens; at most 9 fit"):
        encode(SENTENCES[1], repeat=2, max_tokens=9, on_long="error")


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ('Is it "cold"?', "Is it 'cold'."),
        ("It is", "It is."),
        ("It is.", "It is."),
        ("So 'it' is'", "So 'it' is'"),
        ('He said "no"', "He said 'no'"),
        ("Why?", "Why."),
    ],
)
def test_sentences_are_normalised_as_released(text: str, normalised: str) -> None:
    assert normalise_sentence(text) == normalised
    assert encode(text, normalise="sentence").ids.tolist() == encode(normalised).ids.tolist()


def test_rows_can_be_shown() -> None:
    row = encode("ice", instruction="Say: ", repeat=2, suffix="!", bos="force", last="text")
    assert show_row(row, plain()) == (
        "special '<s>' | instruction 'Say: ' | text 1 'ice' | joiner ' ' | text 2 'ice' | suffix '!'; "
        "last reads 'ce', token 10 of 11"
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_named_template_is_read_as_its_fields_say(name: str) -> None:
    template = InputTemplate(name=name, task="Find ice.")
    fields = {key: value for key, value in template.settings().items() if key not in ("name", "task")}
    assert fields == {**OLD, **TEMPLATES[name].fields, "instruction": template.instruction}
    assert "{" not in template.instruction
    tokenizer = chatting()
    named = encode("ice", tokenizer=tokenizer, name=name, task="Find ice.")
    written = encode("ice", tokenizer=tokenizer, **fields)
    assert named.ids.tolist() == written.ids.tolist()
    assert named.last_column == written.last_column
    assert template.to_dict() == InputTemplate(**fields).to_dict(), "the identity is that of the fields"
    assert TEMPLATES[name].source
    assert "X" in TEMPLATES[name].show()


def test_names_fill_only_what_is_not_given() -> None:
    assert InputTemplate(name="prompt-eol", last="row").instruction == 'This sentence : "'
    assert InputTemplate(name="prompt-eol", instruction="So: ").instruction == "So: "
    assert InputTemplate(name="echo").repeat == 2


def test_several_names_are_several_templates() -> None:
    meta = InputTemplate(name="meta-eol-8", bos="force")
    assert [each.name for each in meta.members] == list(SETS["meta-eol-8"])
    assert {each.bos for each in meta.members} == {"force"}
    assert len({each.instruction for each in meta.members} | {each.suffix for each in meta.members}) == 16
    two = InputTemplate(name="pretended-cot+knowledge")
    assert [each.name for each in two.members] == ["pretended-cot", "knowledge"]
    assert two.to_dict()["mean_of"] == [each.to_dict() for each in two.members]
    assert InputTemplate.from_dict(two.to_dict()) == two
    with pytest.raises(InputError, match="the template 'meta-eol-8' is 8 templates, whose latents are averaged"):
        TextEncoder(make_tokenizer(), InputTemplate(name="meta-eol-8"), window=64)


def test_documents_have_their_own_instruction() -> None:
    query = InputTemplate(name="instruct", task="Find ice.")
    assert query.instruction == "Instruct: Find ice.\nQuery: "
    assert query.for_documents() == InputTemplate(task="Find ice.")
    assert query.for_documents().to_dict() == OLD
    plain = InputTemplate(instruction="Say: ")
    assert plain.for_documents() is plain
    assert InputTemplate(instruction="Q: ", document_instruction="D: ").for_documents().instruction == "D: "
    with pytest.raises(InputError, match="template 'meta-eol-8' is several, which have no document_instruction"):
        InputTemplate(name="meta-eol-8", document_instruction="").for_documents()


def test_old_records_stay_and_only_what_has_an_effect_is_recorded() -> None:
    assert InputTemplate().to_dict() == OLD
    assert InputTemplate().settings() == OLD
    assert InputTemplate(joiner=", ").to_dict() == OLD, "nothing is joined"
    assert InputTemplate(document_instruction="D: ").to_dict() == OLD
    changes: dict[str, Any] = {"suffix": "!", "repeat": 2, "eos": "force", "last": "text", "normalise": "sentence"}
    for key, value in changes.items():
        assert InputTemplate(**{key: value}).to_dict() == {**OLD, key: value}
    assert InputTemplate(repeat=2, joiner="|").to_dict() == {**OLD, "repeat": 2, "joiner": "|"}
    assert set(FIRST_FIELDS) == set(OLD) < set(DEFAULTS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"repeat": 0}, "repeat is 0; allowed: a whole number of at least 1"),
        ({"repeat": 2, "spans": "random:1"}, "a text that is repeated has no spans"),
        ({"repeat": 2, "on_long": "windows"}, "on_long is 'windows', but what a template writes after a text belongs"),
        ({"suffix": "!", "on_long": "windows"}, "on_long is 'windows', but what a template writes after a text"),
        ({"name": "meta-eol-8", "on_long": "windows"}, "on_long is 'windows', but the rows of several templates"),
        ({"last": "eos", "eos": "none"}, "last is 'eos' but the EOS policy is 'none'; set eos to 'force'"),
        ({"chat": "user", "bos": "none"}, "the BOS policy is 'none', but a chat template is made of special tokens"),
        ({"system": "Be brief."}, "there is a system message but no chat; set chat to 'user'"),
        ({"answer": "So", "chat": "user"}, "there is an answer but no turn of the assistant"),
        ({"name": "instruct"}, "template 'instruct' needs a task; set template.task"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        InputTemplate(**fields)


@pytest.mark.parametrize(
    ("field", "noun"),
    [
        ("eos", "EOS policy"),
        ("chat", "chat mode"),
        ("last", "last token"),
        ("normalise", "normalisation"),
        ("name", "template"),
    ],
)
def test_unknown_values_are_refused(field: str, noun: str) -> None:
    template = InputTemplate()
    object.__setattr__(template, field, "hat")  # as a caller without type checks would
    with pytest.raises(UnknownNameError, match=f"unknown {noun} 'hat'"):
        template.__post_init__()


def test_forcing_eos_needs_an_eos_token() -> None:
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="the EOS policy is 'force' but this tokenizer has no EOS token"):
        encode("ice", tokenizer=tokenizer, eos="force")


def test_a_plain_row_has_one_copy() -> None:
    row = encode("The mouse", bos="force")
    assert row.copies.tolist() == [0, *[1] * (len(row.ids) - 1)]
    assert row.copies.dtype == np.int8
    assert row.last_column == len(row.ids) - 1
