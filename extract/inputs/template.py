"""Settings of an input template. Reading a config loads no numpy."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from extract.errors import InputError, unknown_name
from extract.inputs.named_templates import TEMPLATES, split_names
from extract.records import GIVEN, given, remembers_given

BosPolicy = Literal["auto", "force", "none"]
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
EosPolicy = Literal["auto", "force", "none"]
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
    "prompt": "the last token of text and template; specials and marks of a chat are passed over",
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
    "bos": ("BOS policy", BOS_POLICIES), "on_long": ("policy for long texts", LONG_POLICIES),
    "eos": ("EOS policy", EOS_POLICIES), "chat": ("chat mode", CHAT_MODES), "last": ("last token", LAST_TOKENS),
    "normalise": ("normalisation", NORMALISATIONS),
}  # fmt: skip
FIRST_FIELDS = ("bos", "instruction", "max_tokens", "on_long", "spans")
"""Written out always; every later field where it differs from its default, so that records of old stay equal."""
UNREAD = ("name", "task", "document_instruction")
"""What decides no token by itself, and so is no part of an identity."""
TASK = "{task}"


@remembers_given
@dataclass(frozen=True)
class InputTemplate:
    """How a text becomes tokens; part of a cache's identity.

    A row is: specials, system and user marks of a chat, instruction, text, then joiner and text again for every further
    copy, suffix, marks and answer of a chat, EOS token.
    """

    bos: BosPolicy = "auto"
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
    eos: EosPolicy = "auto"
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
        """Fill in what a name stands for; refuse values outside the tables and what does not go together."""
        names = split_names(self.name)
        if len(names) == 1:
            self._fill(TEMPLATES[names[0]].fields)
        for field, (noun, table) in TABLES.items():
            if getattr(self, field) not in table:
                raise unknown_name(noun, getattr(self, field), table)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; allowed: a whole number of at least 1, or none.")
        if self.repeat < 1:
            raise InputError(f"repeat is {self.repeat}; allowed: a whole number of at least 1.")
        for is_refused, why in self._refusals():
            if is_refused:
                raise InputError(why)

    def _fill(self, values: Mapping[str, Any]) -> None:
        for field in values.keys() - given(self):
            object.__setattr__(self, field, values[field])
        object.__setattr__(self, GIVEN, given(self) | frozenset(values))  # to a protocol, which comes before a template
        for field in ("instruction", "document_instruction"):
            text = getattr(self, field)
            if TASK in (text or ""):
                if not self.task:
                    raise InputError(f"template {self.name!r} says what the task is; set template.task.")
                object.__setattr__(self, field, text.replace(TASK, self.task))

    def _refusals(self) -> Iterable[tuple[bool, str]]:
        is_chat, is_repeated = self.chat != "none", self.repeat > 1
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
        # Records write the first fields of several templates always, so their defaults say nothing.
        told = {key: value for key, value in values.items() if key not in FIRST_FIELDS or value != DEFAULTS[key]}
        return tuple(InputTemplate(**{**told, "name": name}) for name in names)

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
        told = {*FIRST_FIELDS, *overruled}
        return {key: value for key, value in asdict(self).items() if key in told or value != DEFAULTS[key]}

    def to_dict(self) -> dict[str, Any]:
        """Return what decides how a text is read as plain values, for a manifest; of several templates, each."""
        from extract.inputs.spans import read_spans  # brings numpy with it

        source = read_spans(self.spans)
        without_effect = (*UNREAD, *(("joiner",) if self.repeat == 1 else ()))
        own = {
            key: value
            for key, value in self.settings().items()
            if key not in without_effect and (key in FIRST_FIELDS or value != DEFAULTS[key])
        }
        found = {**own, "spans": source.identity if source else ""}
        if len(self.members) == 1:
            return found
        return {**found, "name": self.name, "mean_of": [member.to_dict() for member in self.members]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "InputTemplate":
        """Read a template back from the fields of `to_dict`; spans from a file are not kept there."""
        return cls(**{key: value for key, value in values.items() if key != "mean_of"})


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(InputTemplate)}
