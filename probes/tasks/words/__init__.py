"""Words: tasks with one tag a word, read from the published formats, and their scores by the rules of conlleval."""

from probes.metrics.decoding import decode_legal, repair_labels
from probes.metrics.intervals import summarise_accuracy, summarise_span_f1
from probes.metrics.span_scores import SpanScore, SpanScores, score_spans
from probes.metrics.spans import NO_PREDICTION, SpanCounts, SpanLabels, count_spans, count_tag_spans, index_labels
from probes.metrics.tags import SCHEMES, convert_tags
from probes.tasks.words.files import load_word_files
from probes.tasks.words.known import (
    WORD_TASKS,
    WordTaskEntry,
    load_conll2000,
    load_conll2003,
    load_ud_ewt,
    load_wnut17,
    load_words_sample,
)
from probes.tasks.words.schemes import SchemeRecord, detect_scheme, to_iob2
from probes.tasks.words.task import JoinedText, WordTask, join_words

__all__ = [
    "NO_PREDICTION",
    "SCHEMES",
    "WORD_TASKS",
    "JoinedText",
    "SchemeRecord",
    "SpanCounts",
    "SpanLabels",
    "SpanScore",
    "SpanScores",
    "WordTask",
    "WordTaskEntry",
    "convert_tags",
    "count_spans",
    "count_tag_spans",
    "decode_legal",
    "detect_scheme",
    "index_labels",
    "join_words",
    "load_conll2000",
    "load_conll2003",
    "load_ud_ewt",
    "load_wnut17",
    "load_word_files",
    "load_words_sample",
    "repair_labels",
    "score_spans",
    "summarise_accuracy",
    "summarise_span_f1",
    "to_iob2",
]
