"""The kinds of tasks: what differs between them in a run stands in one record each, never in a branch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from extract.errors import ConfigError
from extract.store.cache import LatentCache
from probes.data.task import MIN_SPLIT_ROWS, TaskInfo
from probes.heads.autoencoders import require_same_encoders
from probes.heads.class_heads import CLASSES_SCORING, fewest_rows
from probes.heads.head_table import HeadOptions
from probes.heads.layer_head import KindScoring, score_texts
from probes.heads.pair_heads import PAIRS_SCORING
from probes.heads.result import HeadResult
from probes.heads.word_heads import WORDS_SCORING
from probes.heads.zero_shot_heads import ALIKE_SCORING, no_scoring
from probes.report.document import KindReport
from probes.report.kind_reports import REPORTS, ZERO_SHOT, zero_shot_scores

if TYPE_CHECKING:
    from probes.runs.run_config import RunConfig


def _text_columns(task: Any, split: str) -> list[tuple[str, ...]]:
    return list(zip(*(task.rows(split)[column] for column in task.text_columns), strict=True))


@dataclass(frozen=True)
class TaskKind:
    """What a run needs to know of a kind of task; heads of the kind are in `probes.heads.head_table.HEADS`."""

    name: str
    report: KindReport
    scoring: KindScoring
    needs_train: bool = True
    """Whether heads are fitted on train; otherwise validation is what a task must have."""
    reads_words: bool = False
    """Whether latents are those of words, not of whole texts."""
    row_texts: Callable[[Any, str], list[tuple[Any, ...]]] = _text_columns
    """Gives, for a task and a split, the texts of each row."""
    check_config: "Callable[[RunConfig, HeadOptions], None]" = lambda *_: None
    """Refuses a head's options that contradict the configuration."""
    describe: Callable[[Any, LatentCache], TaskInfo] = lambda task, _: task.describe()
    """Describes the task of a run, with what only the cache knows of it."""
    fewest_rows: Callable[[Any, int], int] = lambda *_: 0
    """Fewest rows per split that a search may draw, for a number of folds of cross-validation."""
    zero_shot_head: str = ""
    """The head without training that every sweep fits beside the others; none where empty."""
    zero_shot: Callable[[HeadResult], dict[str, dict[str, float]]] = lambda _: {}
    """Gives split to metric to the score that this head has at the final norm."""


def check_pair_config(config: "RunConfig", resolved: HeadOptions) -> None:
    """Refuse an anchor that a head cannot have, and autoencoders that nobody fits."""
    arguments = resolved.own[0]
    n_features = arguments.get("pair_features", 0)
    if config.anchor_identical and n_features:
        raise ConfigError(
            f"anchor_identical is true, but head {resolved.name!r} has pair_features {n_features} and so predicts no "
            "constant for a text paired with itself; set it to false, or pair_features to 0."
        )
    start = arguments.get("start", "fresh")
    if start == "fresh":
        return
    if not config.pretraining.corpus:
        raise ConfigError(
            f"head {resolved.name!r} has start {start!r}, but `pretraining.corpus` is empty; name the corpus of its "
            "autoencoders (icecore list corpora), or use start: fresh."
        )
    require_same_encoders(resolved.name, arguments, config.pretraining.autoencoder)


_KINDS = (
    TaskKind(
        "pairs",
        REPORTS["pairs"],
        PAIRS_SCORING,
        check_config=check_pair_config,
        zero_shot_head=ZERO_SHOT,
        zero_shot=zero_shot_scores,
    ),
    TaskKind("classes", REPORTS["classes"], CLASSES_SCORING, fewest_rows=fewest_rows),
    TaskKind(
        "numbers",
        REPORTS["numbers"],
        KindScoring(score_texts, lambda text, number: {"number": float(number), "text": text}),
        fewest_rows=lambda _, folds: max(MIN_SPLIT_ROWS, folds),
    ),
    TaskKind(
        "words",
        REPORTS["words"],
        WORDS_SCORING,
        reads_words=True,
        row_texts=lambda task, split: [(text,) for text in task.joined(split)],
        describe=lambda task, cache: replace(task.describe(), words_in_cache=cache.word_report()),
    ),
    *(
        TaskKind(name, REPORTS[name], no_scoring(name), needs_train=False)
        for name in ("retrieval", "reranking", "clustering", "bitext")
    ),
    TaskKind("pair-classification", REPORTS["pair-classification"], ALIKE_SCORING, needs_train=False),
    TaskKind(
        "odd-one-out",
        REPORTS["odd-one-out"],
        no_scoring("odd-one-out"),
        needs_train=False,
        reads_words=True,
        row_texts=lambda task, split: [tuple(question) for question in task.marked(split)],
        describe=lambda task, cache: replace(task.describe(), words_in_cache=cache.word_report()),
    ),
)
KINDS: dict[str, TaskKind] = {kind.name: kind for kind in _KINDS}
