"""The table of tasks, and loading one of them with its options checked. A new task is one loader and one row here."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from extract.errors import TaskError, unknown_name
from probes.tasks.base import Kind, Task
from probes.tasks.classes.finance import load_banking77, load_fiqa, load_phrasebank
from probes.tasks.classes.law import load_scotus, load_unfair_tos
from probes.tasks.classes.medicine import load_chemprot, load_mqp, load_pubmedqa, load_rct
from probes.tasks.classes.readers import load_class_hub, load_class_sample, read_class_files
from probes.tasks.numbers.readers import load_number_sample, read_number_files
from probes.tasks.pairs.readers import load_sample, load_stsb, load_stsb_hub, load_stsb_local, read_pair_files
from probes.tasks.words.files import load_word_files, load_word_hub
from probes.tasks.words.known import (
    load_conll2000,
    load_conll2003,
    load_financial_ner,
    load_ud_ewt,
    load_wnut17,
    load_words_sample,
)

_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
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
"""Annotation of an option, the types it allows, and what to call them; what a list or mapping holds are texts or paths.
The loader checks options of other types."""


@dataclass(frozen=True)
class TaskEntry:
    """One row of the table of tasks."""

    name: str
    kind: Kind
    description: str
    load: Callable[..., Task]
    """Its parameters are the options of the task."""

    def options(self) -> tuple[str, ...]:
        """Name the options of the task, in the order of its loader."""
        return tuple(inspect.signature(self.load).parameters)


_ENTRIES: dict[Kind, tuple[tuple[str, str, Callable[..., Task]], ...]] = {
    "pairs": (
        ("sts-sample", "small sample written for this project, gold 0-5, no benchmark", load_sample),
        ("stsb", "STS Benchmark: $ICECORE_DATA/stsb where it exists, else the hub", load_stsb),
        ("stsb-local", "STS Benchmark from its three CSV files, gold 0-5", load_stsb_local),
        ("stsb-hub", "STS Benchmark (or its like) from the hub, gold 0-1", load_stsb_hub),
        ("pair-files", "your own CSV, TSV, JSON Lines or Parquet files", read_pair_files),
    ),
    "classes": (
        ("class-sample", "sentences of six topics written for this project, no benchmark", load_class_sample),
        ("banking77", "Banking77 from its CSV files, 77 intents, accuracy", load_banking77),
        ("pubmedqa", "PubMedQA labelled set from its JSON files, yes/no/maybe, weighted F1", load_pubmedqa),
        ("chemprot", "ChemProt from its JSON Lines files, else the hub, 13 relations, weighted F1", load_chemprot),
        ("mqp", "medical question pairs from mqp.csv, similar or different, accuracy", load_mqp),
        ("rct", "PubMed 20k RCT from its text files, 5 parts of an abstract, weighted F1", load_rct),
        (
            "financial-phrasebank",
            "Financial PhraseBank from its text files, 3 sentiments, weighted F1",
            load_phrasebank,
        ),
        ("fiqa-sa", "FiQA sentiment from its JSON files, else the hub, 3 sentiments, weighted F1", load_fiqa),
        ("scotus", "LexGLUE SCOTUS, 13 issue areas, micro and macro F1", load_scotus),
        ("unfair-tos", "LexGLUE UNFAIR-ToS, 8 unfair terms or none, weighted F1", load_unfair_tos),
        ("class-files", "your own CSV, TSV, JSON Lines or Parquet files, by column names", read_class_files),
        ("class-hub", "a classification dataset of the hub, by column names", load_class_hub),
    ),
    "numbers": (
        ("number-sample", "review sentences rated 1 to 5, written for this project, no benchmark", load_number_sample),
        ("number-files", "your own texts with numbers: CSV, TSV, JSON Lines or Parquet files", read_number_files),
    ),
    "words": (
        ("words-sample", "small sample written for this project: ner, chunk or pos", load_words_sample),
        ("conll2003", "CoNLL-2003 English: ner, chunk or pos; local files, else the hub", load_conll2003),
        ("conll2000", "CoNLL-2000: chunk or pos; local files, else the hub", load_conll2000),
        ("wnut17", "WNUT-17 emerging entities from $ICECORE_DATA/wnut17", load_wnut17),
        ("ud-ewt", "UD English EWT: upos or xpos from $ICECORE_DATA/ud-ewt", load_ud_ewt),
        ("financial-ner", "financial agreements from $ICECORE_DATA/financial-ner", load_financial_ner),
        ("word-files", "your own CoNLL columns, CoNLL-U or JSON Lines", load_word_files),
        ("word-hub", "a token dataset of the hub, by column names", load_word_hub),
    ),
}
TASKS: dict[str, TaskEntry] = {
    name: TaskEntry(name, kind, description, load)
    for kind, rows in _ENTRIES.items()
    for name, description, load in rows
}
"""Every task, by name."""


RENAMED = {"validation_share": "validation_fraction"}
"""Old names of task options that are still read."""


def load_task(name: str, /, **options: object) -> Task:
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
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    entry = TASKS[name]
    found = rename_options(options)
    check_options("task", name, entry.load, found)
    return entry.load(**found)


def rename_options(options: Mapping[str, object]) -> dict[str, object]:
    """Replace old names of options by today's, with a one-line warning for each; where both are given, today's wins."""
    found = {key: value for key, value in options.items() if key not in RENAMED}
    for old in options.keys() & RENAMED.keys():
        warnings.warn(f"task option {old!r} is now {RENAMED[old]!r}; use the new name.", FutureWarning, stacklevel=3)
        found.setdefault(RENAMED[old], options[old])
    return found


def check_options(what: str, name: str, load: Callable[..., object], options: Mapping[str, object]) -> None:
    """Check options against the parameters of a loader and their annotations; `what` and `name` are for messages.

    Raises:
        UnknownNameError: The loader does not take an option.
        TaskError: An option is missing, or of the wrong type.
    """
    parameters = inspect.signature(load).parameters
    for option, value in options.items():
        if option not in parameters:
            raise unknown_name(f"{what} option", option, parameters, hint=f"These are the options of {what} {name!r}.")
        needed = _wrong_type(parameters[option].annotation, value)
        if needed:
            raise TaskError(f"{what} option `{option}` of {name!r} is {value!r}, but {needed} is needed.")
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise TaskError(f"{what} {name!r} needs the option `{option}`, which was not given.")


def _wrong_type(annotation: Any, value: object) -> str:
    """Name what is needed instead of a value of the wrong type; empty for one of the right type."""
    allowed, noun = _KINDS.get(annotation, ((object,), ""))
    # `header: "false"` is true to Python, and true is the number 1
    is_right = isinstance(value, allowed) and (not isinstance(value, bool) or annotation is bool)
    if annotation is int and is_right:
        is_right = int(str(value)) >= 0
    if is_right and noun and isinstance(value, list | tuple | Mapping):
        inner = [*value, *value.values()] if isinstance(value, Mapping) else value
        is_right = all(isinstance(item, str | Path) for item in inner)
    return "" if is_right else noun
