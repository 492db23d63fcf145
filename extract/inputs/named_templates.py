"""Named templates, and where they come from. A new one is a row of `TEMPLATES`; loads nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from extract.errors import unknown_name

JOIN = "+"
ONE_WORD = 'this sentence : "'
IN_ONE_WORD = '" means in one word:"'


@dataclass(frozen=True)
class NamedTemplate:
    """What a name stands for.

    Attributes:
        source: The paper or program, and what is our own reading.
        fields: Fields of `InputTemplate` that it fills in.
    """

    source: str
    fields: Mapping[str, Any]

    def show(self) -> str:
        """Write the row of a text X, and what else is filled in."""
        told = dict(self.fields)
        text = "X" + (told.pop("joiner", " ") + "X") * (told.pop("repeat", 1) - 1)
        row = told.pop("instruction", "") + text + told.pop("suffix", "")
        return ", ".join([repr(row), *(f"{key} {value!r}" for key, value in told.items())])


def _prompt(source: str, before: str, after: str, **more: Any) -> NamedTemplate:
    return NamedTemplate(source, {"instruction": before, "suffix": after, "last": "prompt", **more})


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
    """Read the name of a template, or of several joined by `+`, as names of `TEMPLATES`; none when empty.

    Raises:
        UnknownNameError: An unknown name.
    """
    names = [name.strip() for name in text.split(JOIN)] if text else []
    for name in names:
        if name not in TEMPLATES and name not in SETS:
            raise unknown_name("template", name, [*SETS, *TEMPLATES])
    return tuple(dict.fromkeys(each for name in names for each in SETS.get(name, (name,))))
