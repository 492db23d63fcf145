"""Settings of an input template. Reading a config loads no numpy."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from extract.errors import InputError, require_counts, require_name, unknown_name
from extract.records import GIVEN, given, remembers_given

JOIN = "+"
ONE_WORD = 'this sentence : "'
IN_ONE_WORD = '" means in one word:"'


@dataclass(frozen=True)
class NamedTemplate:
    """A template with a name."""

    source: str
    """The paper or program, and what is our own reading."""
    fields: Mapping[str, str | int]
    """Fields of `InputTemplate` that it fills in."""

    def show(self) -> str:
        """Write the row of a text X, and the other fields."""
        rest = dict(self.fields)
        text = str(rest.pop("joiner", " ")).join("X" * int(rest.pop("repeat", 1)))
        row = f"{rest.pop('instruction', '')}{text}{rest.pop('suffix', '')}"
        return ", ".join([repr(row), *(f"{key} {value!r}" for key, value in rest.items())])


def _prompt(source: str, before: str, after: str) -> NamedTemplate:
    return NamedTemplate(source, {"instruction": before, "suffix": after, "last": "prompt"})


def _one_word(source: str, before: str) -> NamedTemplate:
    return _prompt(source, before + ONE_WORD, IN_ONE_WORD)


def _meta(task: str, why: str, what: str) -> NamedTemplate:
    """Write a prompt of MetaEOL's structure: a task, why it matters, and what one word is to say."""
    source = "MetaEOL (2402.18458) in structure, the wording is ours"
    return _prompt(source, f"In this task, {task} {why} So {ONE_WORD}", f'" {what} in one word:"')


def _magnet(task: str) -> NamedTemplate:
    source = "MAGNET, Table 8, read at EOS; the colon after it is ours"
    return NamedTemplate(source, {"instruction": f"{task}: ", "eos": "force", "last": "eos"})


TEMPLATES: dict[str, NamedTemplate] = {
    "prompt-eol": _prompt("PromptEOL (2307.16645)", 'This sentence : "', IN_ONE_WORD),
    "pretended-cot": _one_word("Pretended CoT (2404.03921)", "After thinking step by step , "),
    "knowledge": _one_word(
        "Knowledge enhancement (2404.03921)",
        "The essence of a sentence is often captured by its main subjects and actions, while descriptive terms provide "
        "additional but less central details. With this in mind , ",
    ),
    "e5-v": NamedTemplate(
        "E5-V (2407.12580), made for Llama-3's chat template",
        {"suffix": "\nSummary above sentence in one word: ", "chat": "assistant", "answer": " \n"},
    ),
    "kv-embedding": _prompt(
        "KV-Embedding (2601.01046), punctuation from a secondary source",
        "Context: ",
        "\nCompress the Context in one word:",
    ),
    "kv-embedding-query": _prompt(
        "KV-Embedding (2601.01046), queries; punctuation from a secondary source",
        "Query: ",
        "\nCompress the Query in one word:",
    ),
    "echo": NamedTemplate(
        "Echo embeddings (2402.15449), zero-shot, from a secondary source",
        {"instruction": "Rewrite the sentence: ", "repeat": 2, "joiner": ", rewritten sentence: "},
    ),
    "echo-query": NamedTemplate(
        "Echo embeddings (2402.15449), the released program for queries; set template.task",
        {"instruction": "Instruct:{task},\nQuery:", "repeat": 2, "joiner": "\nQuery again:", "eos": "force"},
    ),
    "echo-document": NamedTemplate(
        "Echo embeddings (2402.15449), the released program for documents",
        {"instruction": "Document:", "repeat": 2, "joiner": "\nDocument again:", "eos": "force"},
    ),
    "instruct": NamedTemplate(
        "Look Both Ways, released code; set template.task; documents have no instruction",
        {"instruction": "Instruct: {task}\nQuery: ", "document_instruction": ""},
    ),
    "magnet-sts": _magnet("Retrieve semantically similar text"),
    **{
        f"magnet-{name}-{part}": _magnet(f"Identify the main category of {name.title()} papers based on the {texts}")
        for name in ("biorxiv", "medrxiv")
        for part, texts in (("p2p", "titles and abstracts"), ("s2s", "titles"))
    },
    "magnet-twenty-newsgroups": _magnet("Identify the topic or theme of the given news articles"),
    "meta-eol-8/1": _meta(
        "a text is sorted into a broad field such as education, technology or health.",
        "The field tells a reader at once what to expect.",
        "belongs to the field named",
    ),
    "meta-eol-8/2": _meta(
        "you decide whether a statement reports a fact or voices an opinion.",
        "Facts can be checked, while opinions show what somebody thinks.",
        "is a statement of the type that one calls",
    ),
    "meta-eol-8/3": _meta(
        "a review of a product is rated on a scale from 1 to 5.",
        "The rating sums up how satisfied the customer is.",
        "deserves a rating that one puts",
    ),
    "meta-eol-8/4": _meta(
        "you name the emotion of somebody who writes a diary.",
        "A feeling often shows between the lines.",
        "expresses the feeling that one calls",
    ),
    "meta-eol-8/5": _meta(
        "two sentences are compared to find whether they say the same.",
        "Sentences can share a meaning and hardly a word.",
        "has a meaning that one puts",
    ),
    "meta-eol-8/6": _meta(
        "a phrase is replaced by another that fits the same place.",
        "Which words can stand for each other depends on those around them.",
        "can be replaced by what one says",
    ),
    "meta-eol-8/7": _meta(
        "you find the one fact that a report in the news is about.",
        "Details support that fact and can be left out.",
        "reports a fact that one puts",
    ),
    "meta-eol-8/8": _meta(
        "you list what a scientific abstract is about and how these things are related.",
        "Things and their relations make up what a paper claims.",
        "is about what one calls",
    ),
}
SETS: dict[str, tuple[str, ...]] = {"meta-eol-8": tuple(f"meta-eol-8/{n}" for n in range(1, 9))}
"""Names for several templates, whose latents are averaged."""


def split_names(text: str) -> tuple[str, ...]:
    """Read the name of a template, or of several joined by `+`, as names of `TEMPLATES`; none when empty."""
    names = [name.strip() for name in text.split(JOIN)] if text else []
    for name in names:
        if name not in TEMPLATES and name not in SETS:
            raise unknown_name("template", name, [*SETS, *TEMPLATES])
    return tuple(dict.fromkeys(member for name in names for member in SETS.get(name, (name,))))


TokenPolicy = Literal["auto", "force", "none"]
BOS_POLICIES = {
    "auto": "what the tokenizer does by itself",
    "force": "prepend a BOS token when the tokenizer adds none",
    "none": "no special tokens at all",
}
LongPolicy = Literal["truncate", "error", "windows"]
LONG_POLICIES = {
    "truncate": "drop text tokens from the end and flag the row",
    "error": "refuse the text by its position",
    "windows": "read it in overlapping windows, each token or word where it has most context",
}
EOS_POLICIES = {
    "auto": "what the tokenizer does by itself",
    "force": "append an EOS token when the tokenizer adds none",
    "none": "no special tokens after the text",
}
ChatMode = Literal["none", "user", "assistant"]
CHAT_MODES = {
    "none": "no chat template",
    "user": "the text as the turn of the user, in the chat template of the tokenizer",
    "assistant": "the same, and the beginning of the assistant's turn",
}
LastToken = Literal["row", "prompt", "text", "eos"]
LAST_TOKENS = {
    "row": "the last token of the row, an EOS token included",
    "prompt": "the last token of text and template; specials and marks of a chat are skipped",
    "text": "the last token of the text, of its last copy",
    "eos": "the EOS token that closes the row",
}
Normalisation = Literal["none", "sentence"]
NORMALISATIONS = {
    "none": "texts as they are",
    "sentence": "as PromptEOL's released program: \" becomes ', a final ? becomes a full stop, which is added "
    "to a text without . ? \" or ' at its end",
}
TABLES: dict[str, tuple[str, Mapping[str, str]]] = {
    "bos": ("BOS policy", BOS_POLICIES),
    "on_long": ("policy for long texts", LONG_POLICIES),
    "eos": ("EOS policy", EOS_POLICIES),
    "chat": ("chat mode", CHAT_MODES),
    "last": ("last token", LAST_TOKENS),
    "normalise": ("normalisation", NORMALISATIONS),
}
FIRST_FIELDS = ("bos", "instruction", "max_tokens", "on_long", "spans")
"""Recorded always; every later field only where it differs from its default, so that old records stay equal."""
UNREAD = ("name", "task", "document_instruction")
"""Fields that decide no token by themselves, and so are no part of an identity."""
TASK = "{task}"
MOST_COPIES = 127
"""Of a text in a row; what is counted in 8 bits."""


@remembers_given
@dataclass(frozen=True)
class InputTemplate:
    """How a text becomes tokens; part of a cache's identity.

    A row is: specials, system and user marks of a chat, instruction, text, then joiner and text again for every further
    copy, suffix, marks and answer of a chat, EOS token.
    """

    bos: TokenPolicy = "auto"
    """BOS policy: `auto`, `force` or `none`."""
    instruction: str = ""
    """Text placed before every text, kept out of mean pooling; mind the blank at its end."""
    max_tokens: int | None = None
    """Longest row in tokens, specials and instruction included; the decoder's own window when absent."""
    on_long: LongPolicy = "truncate"
    """What happens to a longer text: `truncate` (flagged in the cache), `error`, or `windows` that overlap."""

    spans: str = ""
    """Spans for the hybrid mask: `random:SEED`, or a JSON Lines file with `text` and `spans`; empty for none."""
    name: str = ""
    """A named template (`icecore list templates`), which decides the other fields where they are not given; several,
    joined by `+`, are extracted one by one and averaged."""
    task: str = ""
    """What replaces `{task}` in the instruction."""
    document_instruction: str | None = None
    """Instruction of documents, where queries and documents are told apart; the same as for queries when absent."""
    suffix: str = ""
    """Text placed after every text, kept out of mean pooling."""
    repeat: int = 1
    """How often the text is written; more than once for echo poolings."""
    joiner: str = " "
    """What is written between the copies of a repeated text."""
    eos: TokenPolicy = "auto"
    """EOS policy: `auto`, `force` or `none`."""
    chat: ChatMode = "none"
    """The chat template of the tokenizer: `none`, `user`, or `assistant`, whose turn is begun."""
    system: str = ""
    """The system message of a chat."""
    answer: str = ""
    """What the assistant's turn begins with."""
    last: LastToken = "row"
    """The token that the pooling `last` reads: of the `row`, the `prompt` or the `text` the last one, or the `eos`."""
    normalise: Normalisation = "none"
    """What is done to every text first: `none`, or `sentence` as released programs of PromptEOL do."""

    def __post_init__(self) -> None:
        """Fill in the fields of a named template; refuse unknown values and contradictions."""
        names = split_names(self.name)
        if len(names) == 1:
            self._fill(TEMPLATES[names[0]].fields)
        if len(names) < 2:
            self._fill_task()
        for field, (noun, table) in TABLES.items():
            require_name(noun, getattr(self, field), table)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; allowed: a whole number of at least 1, or none.")
        require_counts(self, "repeat", error=InputError)
        for is_refused, why in self._refusals():
            if is_refused:
                raise InputError(why)

    def _fill(self, values: Mapping[str, str | int]) -> None:
        for field in values.keys() - given(self):
            object.__setattr__(self, field, values[field])
        object.__setattr__(self, GIVEN, given(self) | frozenset(values))  # to a protocol, which comes before a template

    def _fill_task(self) -> None:
        for field in ("instruction", "document_instruction"):
            text = getattr(self, field)
            if TASK in (text or "") and (self.task or self.name):
                if not self.task:
                    raise InputError(f"template {self.name!r} needs a task; set template.task.")
                object.__setattr__(self, field, text.replace(TASK, self.task))

    def _refusals(self) -> Iterable[tuple[bool, str]]:
        is_chat, is_repeated = self.chat != "none", self.repeat > 1
        yield (
            re.search("[\ud800-\udfff]", "".join(map(str, vars(self).values()))) is not None,
            "a text of the template holds half a character (a lone surrogate); write it in UTF-8.",
        )
        yield self.repeat > MOST_COPIES, f"repeat is {self.repeat}; allowed: at most {MOST_COPIES}."
        yield is_repeated and bool(self.spans), "a text that is repeated has no spans; set repeat to 1, or no spans."
        yield (
            self.on_long == "windows" and (is_repeated or is_chat or bool(self.suffix)),
            "on_long is 'windows', but what a template writes after a text belongs to one row; allowed: 'truncate' or "
            "'error', or no suffix, repeat and chat.",
        )
        yield (
            self.on_long == "windows" and len(split_names(self.name)) > 1,
            "on_long is 'windows', but the rows of several templates would differ; allowed: 'truncate' or 'error'.",
        )
        yield (
            self.last == "eos" and self.eos == "none",
            "last is 'eos' but the EOS policy is 'none'; set eos to 'force'.",
        )
        yield (
            is_chat and self.bos == "none",
            "the BOS policy is 'none', but a chat template is made of special tokens; set bos to 'auto'.",
        )
        yield bool(self.system) and not is_chat, "there is a system message but no chat; set chat to 'user'."
        yield (
            bool(self.answer) and self.chat != "assistant",
            "there is an answer but no turn of the assistant; set chat to 'assistant'.",
        )

    @property
    def members(self) -> tuple["InputTemplate", ...]:
        """The templates whose latents are averaged: the template itself, unless its name is that of several."""
        names = split_names(self.name)
        if len(names) < 2:
            return (self,)
        values = {key: getattr(self, key) for key in given(self)}
        # Records always hold the first fields of several templates, so their defaults say nothing.
        chosen = {key: value for key, value in values.items() if key not in FIRST_FIELDS or value != DEFAULTS[key]}
        return tuple(InputTemplate(**{**chosen, "name": name}) for name in names)

    def for_documents(self) -> "InputTemplate":
        """Return the template that documents are read with, as opposed to queries."""
        if self.document_instruction is None:
            return self
        if len(self.members) > 1:
            raise InputError(f"the template {self.name!r} is several, which have no document_instruction.")
        return replace(self, name="", instruction=self.document_instruction, document_instruction=None)

    def settings(self) -> dict[str, Any]:
        """Return the fields as plain values, for a record of a configuration."""
        decided = [item for name in split_names(self.name) for item in TEMPLATES[name].fields.items()]
        overruled = {key for key, value in decided if key in given(self) and value != DEFAULTS[key]}
        recorded = {*FIRST_FIELDS, *overruled}
        return {key: value for key, value in asdict(self).items() if key in recorded or value != DEFAULTS[key]}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that decide how a text is read as plain values, for a manifest."""
        from extract.inputs.joined_text import read_spans

        source = read_spans(self.spans)
        without_effect = (*UNREAD, "joiner") if self.repeat == 1 else UNREAD
        values = {
            key: value
            for key, value in asdict(self).items()
            if key in FIRST_FIELDS or (key not in without_effect and value != DEFAULTS[key])
        }
        values["spans"] = source.identity if source else ""
        if len(self.members) > 1:
            values |= {"name": self.name, "mean_of": [member.to_dict() for member in self.members]}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "InputTemplate":
        """Read a template back from the fields of `to_dict`; spans from a file are not recorded there."""
        return cls(**{key: value for key, value in values.items() if key != "mean_of"})


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(InputTemplate)}
