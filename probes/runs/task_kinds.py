"""The table of kinds of tasks: a new kind is a folder of its own, and one row here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from extract.errors import ConfigError, HeadError
from probes.data.task_table import TASKS
from probes.heads.head_table import HEADS, HeadOptions, TaskKind

if TYPE_CHECKING:  # importing this module loads no torch
    from extract.decoders.decoder import Decoder
    from extract.run.extraction_spec import ExtractionSpec
    from extract.store.cache import LatentCache
    from probes.data.task import Task, TaskInfo
    from probes.fitting.saved_fits import FitRecord
    from probes.heads.baselines import Baselines
    from probes.heads.layer_head import Heads
    from probes.heads.result import HeadResult
    from probes.layers.views import LayerRows
    from probes.report.document import KindReport
    from probes.runs.run_config import RunConfig


class ShippedKind(TaskKind):
    """A kind whose tasks, heads, report and baselines are in the tables of the library."""

    @property
    def report(self) -> "KindReport":
        from probes.report.kind_reports import REPORTS

        return REPORTS[self.name]

    def baselines(self, task: "Task") -> "Baselines":
        from probes.heads.baselines import BASELINES

        return BASELINES[self.name](task)

    @property
    def layer_rows(self) -> "Callable[..., LayerRows] | None":
        from probes.layers.views import LAYER_ROWS

        return LAYER_ROWS.get(self.name)

    def control_labels(self, task: "Task", control: str, seed: int) -> Mapping[str, Sequence[object]]:
        from probes.layers.study import text_labels

        return text_labels(task, self.gold_column, control, seed)


class PairKind(ShippedKind):
    """Pairs of texts with a graded similarity."""

    name = "pairs"
    texts_per_row = 2
    predicts = "score"
    predicts_numbers = True
    gold_column = "score"
    zero_shot_head = "layer-cosine"

    def check_config(self, config: "RunConfig", resolved: HeadOptions) -> None:
        arguments = resolved.options
        n_features = arguments.get("pair_features", 0)
        if config.anchor_identical and n_features:
            raise ConfigError(
                f"anchor_identical is true, but head {resolved.name!r} has pair_features {n_features} and so predicts "
                "no constant for a text paired with itself; set it to false, or pair_features to 0."
            )
        if resolved.start == "fresh":
            return
        if config.random_decoder:
            raise ConfigError(
                f"random_decoder is true, but head {resolved.name!r} starts from autoencoders of the trained decoder; "
                "use start: fresh, or set random_decoder to false."
            )
        if not config.pretraining.corpus:
            raise ConfigError(
                f"head {resolved.name!r} has start {resolved.start!r}, but `pretraining.corpus` is empty; name the "
                "corpus of its autoencoders (icecore list corpora), or use start: fresh."
            )
        from probes.heads.pair_heads import require_same_encoders

        require_same_encoders(resolved.name, arguments, config.pretraining.autoencoder)

    def zero_shot(self, result: "HeadResult") -> dict[str, dict[str, float]]:
        from probes.report.kind_reports import zero_shot_scores

        return zero_shot_scores(result)

    def check_record(self, record: "FitRecord") -> None:
        from probes.heads.pair_heads import require_calibration

        require_calibration(record)

    def score(self, heads: "Heads", rows: Sequence[Any], decoder: "Decoder", spec: "ExtractionSpec") -> Any:
        from probes.heads.pair_heads import score_pairs

        return score_pairs(heads, rows, decoder, spec)


class ClassKind(ShippedKind):
    """Texts, or pairs of texts, of one class each."""

    name = "classes"
    predicts = "class"
    gold_column = "label"

    def fewest_rows(self, task: Any, folds: int) -> int:
        from probes.heads.class_heads import fewest_rows

        return fewest_rows(task, folds)


class NumberKind(ShippedKind):
    """Texts with one number each."""

    name = "numbers"
    predicts = "number"
    predicts_numbers = True
    gold_column = "number"

    def fewest_rows(self, task: "Task", folds: int) -> int:
        del task
        from probes.data.task import MIN_SPLIT_ROWS

        return max(MIN_SPLIT_ROWS, folds)


class _OfWords(ShippedKind):
    reads_words = True

    def describe(self, task: "Task", cache: "LatentCache") -> "TaskInfo":
        return replace(task.describe(), words_in_cache=cache.word_report())


class WordKind(_OfWords):
    """Sentences of words with a tag each."""

    name = "words"
    gold_column = "tags"

    def control_labels(self, task: "Task", control: str, seed: int) -> Mapping[str, Sequence[object]]:
        from probes.layers.study import word_labels

        return word_labels(task, self.gold_column, control, seed)

    def row_texts(self, task: Any, split: str) -> list[tuple[Any, ...]]:
        return [(text,) for text in task.joined(split)]

    def score(self, heads: "Heads", rows: Sequence[Any], decoder: "Decoder", spec: "ExtractionSpec") -> Any:
        from probes.heads.word_heads import score_words

        return score_words(heads, rows, decoder, spec)

    def fields(self, row: Any, prediction: Any) -> dict[str, Any]:
        from probes.heads.word_heads import find_words

        text = find_words(row)
        return {"word": [text.text[start:end] for start, end in text.spans], "tag": prediction}


class WholeTaskKind(ShippedKind):
    """A kind without fitting, whose rows mean nothing without the others."""

    needs_train = False
    predicts_rows = False

    def __init__(self, name: str) -> None:
        self.name = name

    def score(self, heads: "Heads", rows: Sequence[Any], decoder: "Decoder", spec: "ExtractionSpec") -> NoReturn:
        del rows, decoder, spec
        raise HeadError(
            f"head {heads[0].record.name!r} of a run on {self.name} predicts nothing of single rows; write them as "
            "a task and run it, or take their latents with `icecore embed`."
        )


class AlikeKind(ShippedKind):
    """Pairs of texts that are alike or not, told by a threshold."""

    name = "pair-classification"
    needs_train = False
    texts_per_row = 2
    predicts = "above"
    """How far the similarity is above the threshold; above 0 is alike."""


class OddKind(_OfWords, WholeTaskKind):
    """Questions of marked words, one of which is in another sense."""

    def row_texts(self, task: Any, split: str) -> list[tuple[Any, ...]]:
        return [tuple(question) for question in task.marked(split)]


KINDS: dict[str, TaskKind] = {}
"""Every kind, by name."""


def add_kind(kind: TaskKind) -> None:
    """Add a kind to the table, and its own tasks and heads to theirs."""
    KINDS[kind.name] = kind
    TASKS.update({entry.name: entry for entry in kind.tasks})
    HEADS.update({entry.name: entry for entry in kind.heads})


for _kind in (
    PairKind(),
    ClassKind(),
    NumberKind(),
    WordKind(),
    WholeTaskKind("retrieval"),
    WholeTaskKind("reranking"),
    WholeTaskKind("clustering"),
    WholeTaskKind("bitext"),
    AlikeKind(),
    OddKind("odd-one-out"),
):
    add_kind(_kind)
