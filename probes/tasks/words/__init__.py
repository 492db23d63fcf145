"""Word tasks: sentences with one tag per word, read from the published formats."""

from probes.tasks.words.files import load_word_files, load_word_hub
from probes.tasks.words.known import load_conll2000, load_conll2003, load_ud_ewt, load_wnut17, load_words_sample
from probes.tasks.words.schemes import SchemeRecord, detect_scheme, to_iob2
from probes.tasks.words.task import JoinedText, WordTask, join_words

__all__ = [
    "JoinedText",
    "SchemeRecord",
    "WordTask",
    "detect_scheme",
    "join_words",
    "load_conll2000",
    "load_conll2003",
    "load_ud_ewt",
    "load_wnut17",
    "load_word_files",
    "load_word_hub",
    "load_words_sample",
    "to_iob2",
]
