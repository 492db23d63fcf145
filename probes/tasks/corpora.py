"""The table of corpora, and loading one of them, or the texts of any task."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from extract.errors import unknown_name
from extract.names import later
from probes.tasks.table import TASKS, check_options, load_task

if TYPE_CHECKING:
    from probes.tasks.corpus import Corpus

CORPORA: dict[str, tuple["Callable[..., Corpus]", str]] = {
    "generics": (later("probes.tasks.corpus:load_generics"), "generic sentences: $ICECORE_DATA/genericskb"),
    "text-file": (
        later("probes.tasks.corpus:load_text_file"),
        "a line per text, or a column of CSV, TSV, JSON Lines or Parquet",
    ),
    "text-hub": (later("probes.tasks.corpus:load_hub_texts"), "a column of a hub dataset"),
}


def load_corpus(name: str, n_texts: int, options: Mapping[str, object]) -> "Corpus":
    """Load the first `n_texts` texts of a corpus, or of a task of any kind.

    Args:
        name: A key of `CORPORA`, or a task, all of whose texts are taken.
        n_texts: The most texts to take, from the start.
        options: The options of the corpus or task.

    Raises:
        UnknownNameError: The corpus, task or option is unknown.
        TaskError: An option is missing or of the wrong type, or the texts cannot be read or are fewer than 8.
    """
    from probes.tasks.corpus import Corpus, make_corpus

    if name in CORPORA:
        load, _ = CORPORA[name]
        check_options("corpus", name, load, options)
        found = load(**options)
    elif name in TASKS:
        task = load_task(name, **options)
        found = make_corpus(task.name, task.source, task.plain_texts())
    else:
        raise unknown_name("corpus", name, [*CORPORA, *TASKS])
    return Corpus(found.name, found.source, found.lines[:n_texts])
