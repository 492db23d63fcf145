"""The table of tasks, and loading one of them with its options checked. A new task is one loader and one row here."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, TypeVar

from extract.errors import TaskError, require_name
from extract.registry import later, option_names, parameter_names, resolve

if TYPE_CHECKING:
    from probes.data.task import Corpus, Task


FILE_OPTIONS = "options"
"""Parameter of a loader whose value is a `FileOptions`; the fields of that record are options of the task."""
Loaded = TypeVar("Loaded")
_TYPES: dict[object, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    str: ((str,), "a text"),
    str | None: ((str, NoneType), "a text"),
    int: ((int,), "a whole number of at least 0"),
    float: ((int, float), "a number"),
    str | Path: ((str, Path), "a path"),
    str | Path | None: ((str, Path, NoneType), "a path"),
    Mapping[str, str | Path] | str | Path: ((str, Path, Mapping), "a path, or a mapping of splits to paths,"),
    Sequence[str] | None: ((list, tuple, NoneType), "a list of texts"),
    Mapping[str, str] | None: ((Mapping, NoneType), "a mapping of texts to texts"),
}
"""Annotation of an option, the types it allows, and their name in messages; lists and mappings hold texts or paths.
The loader checks options with other annotations."""


@dataclass(frozen=True)
class TaskEntry:
    """One row of the table of tasks."""

    name: str
    kind: str
    description: str
    load: "Callable[..., Task]"
    """Its parameters are the options of the task, with the fields of a `FileOptions` in place of that record."""

    def options(self) -> tuple[str, ...]:
        """Name the options of the task, in the order of its loader, without importing it."""
        names = parameter_names(self.load)
        if FILE_OPTIONS not in names:
            return names
        shared = option_names(later("probes.data.table_files:FileOptions"))
        return (*(name for name in names if name != FILE_OPTIONS), *shared)


_ENTRIES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "pairs": (
        ("sts-sample", "load_sample", "small sample written for this project, gold 0-5, no benchmark"),
        ("stsb", "load_stsb", "STS Benchmark: $ICECORE_DATA/stsb where it exists, else the hub"),
        ("stsb-local", "load_stsb_local", "STS Benchmark from its three CSV files, gold 0-5"),
        ("stsb-hub", "load_stsb_hub", "STS Benchmark (or its like) from the hub, gold 0-1"),
        ("sts-files", "read_sts_files", "STS12 to STS17 and SICK-R in their published files, scored by subset"),
        ("pair-files", "read_pair_files", "your own CSV, TSV, JSON Lines or Parquet files"),
    ),
    "classes": (
        ("class-sample", "load_class_sample", "sentences of six topics written for this project, no benchmark"),
        ("banking77", "domains:load_banking77", "Banking77 from its CSV files, 77 intents, accuracy"),
        ("pubmedqa", "domains:load_pubmedqa", "PubMedQA labelled set from its JSON files, yes/no/maybe, weighted F1"),
        (
            "chemprot",
            "domains:load_chemprot",
            "ChemProt from its JSON Lines files, else the hub, 13 relations, weighted F1",
        ),
        ("mqp", "domains:load_mqp", "medical question pairs from mqp.csv, similar or different, accuracy"),
        ("rct", "domains:load_rct", "PubMed 20k RCT from its text files, 5 parts of an abstract, weighted F1"),
        (
            "financial-phrasebank",
            "domains:load_phrasebank",
            "Financial PhraseBank from its text files, 3 sentiments, weighted F1",
        ),
        ("fiqa-sa", "domains:load_fiqa", "FiQA sentiment from its JSON files, else the hub, 3 sentiments, weighted F1"),
        ("scotus", "domains:load_scotus", "LexGLUE SCOTUS, 13 issue areas, micro and macro F1"),
        ("unfair-tos", "domains:load_unfair_tos", "LexGLUE UNFAIR-ToS, 8 unfair terms or none, weighted F1"),
        ("class-files", "read_class_files", "your own CSV, TSV, JSON Lines or Parquet files, by column names"),
        ("class-hub", "load_class_hub", "a classification dataset of the hub, by column names"),
    ),
    "numbers": (
        (
            "number-sample",
            "load_number_sample",
            "review sentences rated 1 to 5, written for this project, no benchmark",
        ),
        ("number-files", "read_number_files", "your own texts with numbers: CSV, TSV, JSON Lines or Parquet files"),
    ),
    "words": (
        ("words-sample", "load_words_sample", "small sample written for this project: ner, chunk or pos"),
        ("conll2003", "load_conll2003", "CoNLL-2003 English: ner, chunk or pos; local files, else the hub"),
        ("conll2000", "load_conll2000", "CoNLL-2000: chunk or pos; local files, else the hub"),
        ("wnut17", "load_wnut17", "WNUT-17 emerging entities from $ICECORE_DATA/wnut17"),
        ("ud-ewt", "load_ud_ewt", "UD English EWT: upos or xpos from $ICECORE_DATA/ud-ewt"),
        ("financial-ner", "load_financial_ner", "financial agreements from $ICECORE_DATA/financial-ner"),
        ("word-files", "load_word_files", "your own CoNLL columns, CoNLL-U or JSON Lines"),
        ("word-hub", "load_word_hub", "a token dataset of the hub, by column names"),
    ),
    "retrieval": (
        (
            "retrieval-sample",
            "load_retrieval_sample",
            "questions about 60 notes written for this project, no benchmark",
        ),
        ("retrieval-files", "read_retrieval_files", "a folder in BEIR's layout: corpus, queries and qrels"),
    ),
    "reranking": (
        (
            "reranking-sample",
            "load_reranking_sample",
            "questions with candidates written for this project, no benchmark",
        ),
        ("reranking-files", "read_reranking_files", "your own files with a row per query and candidate"),
        ("snli-triples", "load_snli_triples", "SNLI: is the entailed sentence nearer than the contradicting one"),
        ("triple-files", "read_triple_files", "your own triples: a text, one that belongs to it and one that does not"),
    ),
    "clustering": (
        (
            "clustering-sample",
            "load_clustering_sample",
            "the sentences of class-sample, without its training, no benchmark",
        ),
        (
            "banking77-clusters",
            "load_banking77_clusters",
            "Banking77 from its CSV files, 77 intents to find as clusters",
        ),
        ("clustering-files", "read_clustering_files", "your own texts with labels"),
    ),
    "pair-classification": (
        (
            "pair-class-sample",
            "load_pair_class_sample",
            "the pairs of sts-sample, alike from a gold of 3.5 on, no benchmark",
        ),
        ("pair-class-files", "read_pair_class_files", "your own pairs that are alike or not"),
    ),
    "bitext": (
        (
            "bitext-sample",
            "load_bitext_sample",
            "80 English sentences with German translations written for this project, no benchmark",
        ),
        ("bitext-files", "read_bitext_files", "your own texts with their translations"),
    ),
    "odd-one-out": (
        ("odd-sample", "load_odd_sample", "60 questions of word sense written for this project, no benchmark"),
        ("sense-files", "read_sense_files", "Chinese questions of word sense as published: C-SEM's SLPWC, ReBA's WSD"),
        ("odd-files", "read_odd_files", "your own questions: sentences with a marked word, one in another sense"),
    ),
}
"""Kind to its tasks: name, loader in the module of the kind (or MODULE:LOADER), and a line about it."""
_MODULES = {"pairs": "pair_task", "classes": "class_task", "numbers": "class_task", "words": "word_files"}
"""Kind to its module in this folder; all others are in `zero_shot_task`."""
TASKS: dict[str, TaskEntry] = {
    name: TaskEntry(name, kind, description, later(f"probes.data.{path}"))
    for kind, rows in _ENTRIES.items()
    for name, loader, description in rows
    for path in [loader if ":" in loader else f"{_MODULES.get(kind, 'zero_shot_task')}:{loader}"]
}
"""Every task, by name."""
RENAMED = {"validation_share": "validation_fraction"}
"""Old names of task options that are still read."""


CORPORA: dict[str, tuple["Callable[..., Corpus]", str]] = {
    "generics": (later("probes.data.task:load_generics"), "generic sentences: $ICECORE_DATA/genericskb"),
    "text-file": (
        later("probes.data.task:load_text_file"),
        "a line per text, or a column of CSV, TSV, JSON Lines or Parquet",
    ),
    "text-hub": (later("probes.data.task:load_hub_texts"), "a column of a hub dataset"),
}
"""Corpora by name (`icecore list corpora`): what loads one, and what it is."""


def load_task(name: str, /, **options: object) -> "Task":
    """Load a task of any kind.

    Args:
        name: A key of `TASKS`.
        options: The task's own options, plain values as they come from a YAML file.

    Returns:
        The task, checked.

    Raises:
        UnknownNameError: The task or an option is unknown.
        TaskError: An option is missing or of the wrong type, or the rows cannot be used.

    Example:
        >>> task = load_task("words-sample", tags="pos")
        >>> task.kind, task.metrics
        ('words', ('accuracy',))
    """
    require_name("task", name, TASKS)
    renamed = {key: value for key, value in options.items() if key not in RENAMED}
    for old in options.keys() & RENAMED.keys():
        warnings.warn(f"task option {old!r} is now {RENAMED[old]!r}; use the new name.", FutureWarning, stacklevel=2)
        renamed.setdefault(RENAMED[old], options[old])
    return call_loader(TASKS[name].load, renamed, owner=f"task {name!r}")


def task_title(name: str) -> str:
    """Name a task as its user does: the readers of files are no tasks.

    Example:
        >>> task_title("number-files"), task_title("stsb")
        ('your file', 'stsb')
    """
    return "your file" if name.endswith("-files") else name


def call_loader(load: Callable[..., Loaded], options: Mapping[str, object], *, owner: str) -> Loaded:
    """Call a loader with options checked against its parameters and their annotations; `owner` is for messages."""
    parameters = dict(inspect.signature(resolve(load)).parameters)
    record = parameters.pop(FILE_OPTIONS).default if FILE_OPTIONS in parameters else None
    types: dict[str, object] = {name: parameter.annotation for name, parameter in parameters.items()}
    shared = {field.name: field.type for field in fields(record)} if record is not None else {}
    types |= shared
    kind = owner.partition(" ")[0]
    for option, value in options.items():
        require_name(f"{kind} option", option, types, hint=f"These are the options of {owner}.")
        needed = _wrong_type(types[option], value)
        if needed:
            raise TaskError(f"option `{option}` of {owner} is {value!r}, but {needed} is needed.")
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise TaskError(f"{owner} needs the option `{option}`.")
    arguments = {option: value for option, value in options.items() if option not in shared}
    if record is not None:
        arguments[FILE_OPTIONS] = replace(record, **{key: options[key] for key in shared if key in options})
    return load(**arguments)


def _wrong_type(annotation: object, value: object) -> str:
    """Name the type that is needed instead of a value's; empty for a value of the right type."""
    allowed, noun = _TYPES.get(annotation, ((object,), ""))
    # `header: "false"` is true to Python, and true is the number 1
    is_right = isinstance(value, allowed) and (not isinstance(value, bool) or annotation is bool)
    if annotation is int and is_right:
        is_right = int(str(value)) >= 0
    if is_right and noun and isinstance(value, list | tuple | Mapping):
        inner = [*value, *value.values()] if isinstance(value, Mapping) else value
        is_right = all(isinstance(item, str | Path) for item in inner)
    return "" if is_right else noun


LBW_TABLE = "Look Both Ways, Table 3"
LBW_DOMAIN = "Look Both Ways, section 4.1"


@dataclass(frozen=True)
class Instruction:
    """The instruction that a paper puts before the texts of a task, to be copied into `extraction.template`."""

    text: str
    """Quoted; empty where the paper uses none."""
    source: str = LBW_TABLE
    """Table or section of the paper."""
    task: str = ""
    """The task of `icecore list tasks` that it is for; empty where there is none."""

    @property
    def prompt(self) -> str:
        """The text that the released code puts before a text (in retrieval, before queries only), or none."""
        return f"Instruct: {self.text}\nQuery: " if self.text else ""


INSTRUCTIONS: dict[str, Instruction] = {
    "ArguAna": Instruction("Given a claim, find documents that refute the claim."),
    "NFCorpus": Instruction("Given a question, retrieve relevant documents that best answer the question."),
    "SciFact": Instruction("Given a scientific claim, retrieve documents that support or refute the claim."),
    "SciDocsRR": Instruction("Given a title of a scientific paper, retrieve the titles of other relevant papers."),
    "StackOverflowDupQuestions": Instruction("Retrieve duplicate questions from StackOverflow forum."),
    "BiorxivClusteringS2S": Instruction("Identify the main category of Biorxiv papers based on the titles."),
    "MedrxivClusteringS2S": Instruction("Identify the main category of Medrxiv papers based on the titles."),
    "SprintDuplicateQuestions": Instruction("Retrieve duplicate questions from Sprint forum."),
    "Banking77Classification": Instruction(
        "Given an online banking query, find the corresponding intents.", task="banking77"
    ),
    "EmotionClassification": Instruction(
        "Classify the emotion expressed in the given Twitter message into one of the six emotions: anger, fear, joy, "
        "love, sadness, and surprise."
    ),
    "MassiveIntentClassification": Instruction("Given a user utterance as query, find the user intents."),
    "STS": Instruction("Retrieve semantically similar text.", task="stsb"),
    "PubMedQA": Instruction("", LBW_DOMAIN, "pubmedqa"),
    "ChemProt": Instruction("", LBW_DOMAIN, "chemprot"),
    "MQP": Instruction("", LBW_DOMAIN, "mqp"),
    "RCT": Instruction("", LBW_DOMAIN, "rct"),
    "FPB": Instruction("", LBW_DOMAIN, "financial-phrasebank"),
    "FiQA-SA": Instruction("", LBW_DOMAIN, "fiqa-sa"),
    "NER": Instruction("", LBW_DOMAIN, "financial-ner"),
    "SCOTUS": Instruction("", LBW_DOMAIN, "scotus"),
    "UNFAIR-ToS": Instruction("", LBW_DOMAIN, "unfair-tos"),
}
"""Instructions by the name of the task in the paper; `STS` stands for all its STS tasks."""
