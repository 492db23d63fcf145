"""What a run needs to know of a kind of task: one class, of which a kind overrides what it does differently."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # importing this module loads no torch
    from extract.decoders.decoder import Decoder
    from extract.run.extraction_spec import ExtractionSpec
    from extract.store.cache import LatentCache
    from probes.data.task import Task, TaskInfo
    from probes.data.task_table import TaskEntry
    from probes.fitting.saved_fits import FitRecord
    from probes.heads.baselines import Baselines
    from probes.heads.head_table import HeadEntry, HeadOptions
    from probes.heads.layer_head import Heads
    from probes.heads.result import HeadResult
    from probes.layers.views import LayerRows
    from probes.report.document import KindReport
    from probes.runs.run_config import RunConfig


class TaskKind:
    """A kind of task: rows of one text or several, whose heads are fitted on train and predict a number or a name."""

    name: str
    needs_train: ClassVar[bool] = True
    """Whether heads are fitted on train; otherwise validation is what a task must have."""
    reads_words: ClassVar[bool] = False
    """Whether latents are those of words, not of whole texts."""
    texts_per_row: ClassVar[int] = 1
    """Texts of a new row, unless a head was fitted on pairs."""
    predicts: ClassVar[str] = "prediction"
    """What the prediction of a row is called."""
    predicts_numbers: ClassVar[bool] = False
    """Whether predictions are numbers in the units of the gold."""
    gold_column: ClassVar[str] = ""
    """The column whose labels a control replaces; a kind without controls names none."""
    tasks: "ClassVar[tuple[TaskEntry, ...]]" = ()
    """Its tasks that are not in `probes.data.task_table`."""
    heads: "ClassVar[tuple[HeadEntry, ...]]" = ()
    """Its heads that are not in `probes.heads.head_table`."""
    zero_shot_head: ClassVar[str] = ""
    """The head without training that every sweep fits beside the others; none where empty."""

    @property
    def report(self) -> "KindReport":
        """What is particular to its reports."""
        raise NotImplementedError

    def row_texts(self, task: "Task", split: str) -> list[tuple[Any, ...]]:
        """Give the texts of each row of a split."""
        return list(zip(*(task.rows(split)[column] for column in task.text_columns), strict=True))

    def check_config(self, config: "RunConfig", resolved: "HeadOptions") -> None:
        """Refuse a head's options that contradict the configuration."""

    def describe(self, task: "Task", cache: "LatentCache") -> "TaskInfo":
        """Describe the task of a run, with what only the cache knows of it."""
        del cache
        return task.describe()

    def fewest_rows(self, task: "Task", folds: int) -> int:
        """Return the fewest rows per split that a search may draw, for a number of folds of cross-validation."""
        del task, folds
        return 0

    def zero_shot(self, result: "HeadResult") -> dict[str, dict[str, float]]:
        """Return split to metric to the score that the head without training has at the final norm."""
        del result
        return {}

    def baselines(self, task: "Task") -> "Baselines":
        """Predict a task without a decoder, for heads to be compared with; a kind needs none."""
        del task
        return {}

    # Which layers matter (`icecore layers`).

    @property
    def layer_rows(self) -> "Callable[..., LayerRows] | None":
        """What reads the rows of a run for probes of layers (`probes.layers.views`); None for a kind without them."""
        return None

    def control_labels(self, task: "Task", control: str, seed: int) -> Mapping[str, Sequence[object]]:
        """Draw labels that say nothing about the texts, by split, for `gold_column`."""
        raise NotImplementedError

    # New rows, scored by saved heads.

    def n_texts(self, record: "FitRecord") -> int:
        """Count the texts of a row, from the record of a head."""
        return 2 if record.details.get("is_pairs") else self.texts_per_row

    def check_record(self, record: "FitRecord") -> None:
        """Read what scoring takes from the record of a head; any error says that it cannot."""

    def score(self, heads: "Heads", rows: Sequence[Any], decoder: "Decoder", spec: "ExtractionSpec") -> Any:
        """Predict rows with a head whose latents the spec extracts, and no others; gives as many predictions."""
        from probes.heads.layer_head import score_texts

        return score_texts(heads, rows, decoder, spec)

    def fields(self, row: Any, prediction: Any) -> dict[str, Any]:
        """Name what a scored row holds: the prediction, and the texts as `text`, or `text1`, `text2` and so on.

        Where values are lists, all of a row are equally long.
        """
        texts = {"text": row} if isinstance(row, str) else {f"text{k}": text for k, text in enumerate(row, start=1)}
        return {self.predicts: prediction if isinstance(prediction, str) else float(prediction), **texts}
