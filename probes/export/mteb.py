"""Scores of mteb for every layer of a decoder, from one pass over the texts of each task."""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import select_layers
from extract.errors import ConfigError, first_line
from extract.inputs.template import TASK, TEMPLATES
from extract.masks.mask_plan import MaskPlan
from extract.poolings.pooling_table import JOIN
from extract.records import load_yaml
from extract.registry import require_extra
from extract.run.extraction_spec import ExtractionProgress, ExtractionSpec
from probes.data.task import Task
from probes.data.task_table import INSTRUCTIONS

if TYPE_CHECKING:
    import pandas as pd
    from mteb.models.abs_encoder import AbsEncoder


COLUMNS = {
    "STS": ("pairs", {"sentence1": "sentence1", "sentence2": "sentence2", "score": "score"}),
    "Classification": ("classes", {"text": "text", "label": "label"}),
}
"""Types of tasks of mteb that rows of this project can fill: the kind of the rows, and mteb's columns by theirs."""


@dataclass(frozen=True)
class TaskList:
    """Tasks of mteb that a paper reports."""

    source: str
    """The paper, and what is our own reading."""
    tasks: tuple[str, ...]
    """Names, as `find_tasks` reads them; of tasks with several splits, test alone is scored."""
    instructions: Mapping[str, str] = field(default_factory=dict)
    """What the paper puts before the texts, by task or by type of tasks."""


_STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICK-R")
_CLUSTERING = tuple(f"{source}Clustering{part}" for source in ("Biorxiv", "Medrxiv") for part in ("P2P", "S2S"))
TASK_LISTS: dict[str, TaskList] = {
    "lbw": TaskList(
        "Look Both Ways, the fifteen of LLM2Vec, which its Table 3 names but for TwentyNewsgroupsClustering",
        (
            *("ArguAna", "NFCorpus", "SciFact", "SciDocsRR", "StackOverflowDupQuestions"),
            *("BiorxivClusteringS2S", "MedrxivClusteringS2S", "TwentyNewsgroupsClustering"),
            *("SprintDuplicateQuestions", "Banking77Classification", "EmotionClassification"),
            *("MassiveIntentClassification:en", "STS17:en-en", "SICK-R", "STSBenchmark"),
        ),
        {name: entry.prompt for name, entry in INSTRUCTIONS.items() if entry.text},
    ),
    "magnet": TaskList(
        "MAGNET, Tables 2 and 3; the colon after an instruction is ours",
        (*_STS, *_CLUSTERING, "TwentyNewsgroupsClustering"),
        {
            name: str(TEMPLATES[f"magnet-{template}"].fields["instruction"])
            for name, template in {
                "STS": "sts",
                "TwentyNewsgroupsClustering": "twenty-newsgroups",
                **{name: name.lower().replace("clustering", "-") for name in _CLUSTERING},
            }.items()
        },
    ),
    "c-mteb": TaskList("ReBA, the 31 of C-MTEB in six types", ("MTEB(cmn, v1)",)),
}
"""Lists of tasks by name."""


def split_tasks(text: str) -> tuple[str, ...]:
    """Split names of tasks at commas; those inside brackets belong to a name.

    Example:
        >>> split_tasks("STSBenchmark, MTEB(eng, v2):STS")
        ('STSBenchmark', 'MTEB(eng, v2):STS')
    """
    return tuple(filter(None, map(str.strip, re.split(r",(?![^(]*\))", text))))


def find_tasks(names: Sequence[str]) -> list[Any]:
    """Find tasks of mteb, each once, in the order they are named.

    A name is a task, or one of its subsets as `STS17:en-en`; a benchmark of mteb, as `MTEB(eng, v2)`, or a list of
    `TASK_LISTS`, perhaps of one type of tasks alone, as `c-mteb:Clustering`.
    """
    mteb: Any = require_extra("mteb")
    found: dict[tuple[str, str], Any] = {}
    for name in names:
        for task in _named_tasks(mteb, name):
            found.setdefault((task.metadata.name, str(task.hf_subsets)), task)
    return list(found.values())


def _named_tasks(mteb: Any, name: str) -> list[Any]:
    """Find what one name stands for."""
    if name in TASK_LISTS:
        tasks = find_tasks(TASK_LISTS[name].tasks)
        for task in tasks:
            if "test" in task.eval_splits:
                task._eval_splits = ["test"]
        return tasks
    try:
        return [mteb.get_task(name)]
    except KeyError:
        pass
    try:
        return [copy(task) for task in mteb.get_benchmark(name).tasks]  # which are the same ones in every call
    except KeyError as error:
        whole, _, part = name.rpartition(":")
        if not whole:
            raise ConfigError(
                f"mteb has no task or benchmark {name!r} ({first_line(error)}); allowed: names of mteb.get_tasks() and "
                f"mteb.get_benchmarks(), {', '.join(TASK_LISTS)}."
            ) from error
    tasks = _named_tasks(mteb, whole)
    if len(tasks) == 1:
        if part not in (allowed := tasks[0].metadata.hf_subsets):
            raise ConfigError(f"task {whole!r} of mteb has no subset {part!r}; allowed: {', '.join(allowed)}.")
        return [mteb.get_task(whole, hf_subsets=[part], eval_splits=tasks[0].eval_splits)]
    if part not in (types := sorted({task.metadata.type for task in tasks})):
        raise ConfigError(f"{whole!r} has no tasks of type {part!r}; allowed: {', '.join(types)}.")
    return [task for task in tasks if task.metadata.type == part]


def read_instructions(source: str) -> Mapping[str, str]:
    """Read the instructions of a list of `TASK_LISTS`, or of a YAML file: texts by task or by type of tasks.

    The key `format` of a file is what every instruction is written into, in place of its `{task}`.
    """
    if source in TASK_LISTS:
        if not TASK_LISTS[source].instructions:
            raise ConfigError(f"the list {source!r} has no instructions; give a YAML file of them.")
        return TASK_LISTS[source].instructions
    try:
        values = load_yaml(Path(source).read_bytes(), where=f"{source!r}")
    except OSError as error:
        lists = ", ".join(name for name, entry in TASK_LISTS.items() if entry.instructions)
        raise ConfigError(f"there is no file {source!r} of instructions; allowed: a YAML file, or {lists}.") from error
    if not isinstance(values, dict) or not all(isinstance(text, str) for pair in values.items() for text in pair):
        raise ConfigError(f"{source!r} holds no instructions; allowed: TASK: TEXT, a line each.")
    written = values.pop("format", TASK)
    return {name: written.replace(TASK, text) for name, text in values.items()}


def _parts(task: Any) -> list[Any]:
    """Return the tasks that a task is the mean of, or the task itself."""
    return list(task.tasks) if task.is_aggregate else [task]


def _title(task: Any) -> str:
    """Name a task, with its subsets where it has not all of them."""
    is_whole = set(task.metadata.hf_subsets) <= set(task.hf_subsets)
    return str(task.metadata.name) if is_whole else f"{task.metadata.name}:{','.join(task.hf_subsets)}"


def _instructions_of(task: Any, instructions: Mapping[str, str]) -> dict[str, str]:
    """Return the instructions of a task, or of its parts: its own, or that of its type."""
    texts = {
        part.metadata.name: instructions.get(
            part.metadata.name, instructions.get(task.metadata.name, instructions.get(task.metadata.type))
        )
        for part in _parts(task)
    }
    return {name: text for name, text in texts.items() if text is not None}


def _require_known(mteb: Any, instructions: Mapping[str, str], tasks: Sequence[Any]) -> None:
    """Refuse an instruction that is for no task and no type of mteb: it would not be read."""
    from mteb.abstasks.task_metadata import TaskType

    known = {name for task in tasks for name in (task.metadata.name, task.metadata.type)}
    for name in sorted(instructions.keys() - known - {*get_args(TaskType)}):
        try:
            mteb.get_task(name)
        except KeyError as error:
            raise ConfigError(
                f"there is an instruction for {name!r}, which is no task and no type of tasks of mteb "
                f"({first_line(error)}); allowed: names of mteb.get_tasks(), and types as STS or Clustering."
            ) from error


def as_mteb_encoder(
    decoder: Decoder,
    *,
    spec: ExtractionSpec = ExtractionSpec(),  # noqa: B008
    layer: str = "final_norm",
    pooling: str = "",
    instructions: Mapping[str, str] | None = None,
    caches: "str | Path | Any" = "caches",
) -> "AbsEncoder":
    """Return an encoder for `mteb.evaluate` that serves one layer under any plan, template and pooling.

    Args:
        decoder: The decoder.
        spec: Plan, template, poolings, or views; all of its layers are extracted in one pass.
        layer: The layer to serve, by name or number.
        pooling: The pooling or view to serve, or several side by side, joined by `+`; when empty all views, or the
            first pooling of `spec`.
        instructions: Task of mteb to the instruction before its texts, or before its queries where it has documents.
        caches: Folder of the caches; or the `caches` of another encoder, so that both share one pass.

    Raises:
        ConfigError: The extra is missing.
        UnknownNameError: No such layer.
    """
    require_extra("mteb")
    from probes.export.layer_encoder import LayerEncoder, TextCaches

    shared = caches if isinstance(caches, TextCaches) else TextCaches(decoder, spec, folder=caches)
    [name] = select_layers(layer, len(decoder.blocks))
    pooling = pooling or JOIN.join(shared.spec.views) or shared.spec.poolings[0]
    return LayerEncoder(shared, layer=name, pooling=pooling, instructions=instructions)


def fill_task(task: Any, rows: Task) -> Any:
    """Fill a task of mteb, or one subset of it, with rows of this project, so that nothing is downloaded.

    Returns the task.

    Raises:
        ConfigError: A task of another type, of several subsets or with columns of its own; rows of another kind, or
            without one of the splits that mteb reads.
    """
    import datasets

    kind, columns = COLUMNS.get(task.metadata.type, ("", {}))
    if kind != rows.kind:
        raise ConfigError(
            f"task {task.metadata.name!r} of mteb is of type {task.metadata.type}, and {rows.name!r} has rows of kind "
            f"{rows.kind}; allowed: {', '.join(f'{name} with {wanted}' for name, (wanted, _) in COLUMNS.items())}."
        )
    if len(task.hf_subsets) > 1:
        raise ConfigError(
            f"task {_title(task)!r} of mteb has {len(task.hf_subsets)} subsets, and the rows of {rows.name!r} are one; "
            f"name it, as '{task.metadata.name}:{task.hf_subsets[0]}'; allowed: {', '.join(task.hf_subsets)}."
        )
    needed = [*task.eval_splits, *["train"] * (kind == "classes")]
    for split in needed:
        if split not in rows.splits:
            raise ConfigError(f"{rows.name!r} has no {split} rows, which task {task.metadata.name!r} of mteb reads.")
    splits = datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({mine: part[own] for mine, own in columns.items()})
            for name, part in rows.splits.items()
        }
    )
    task.dataset = {task.hf_subsets[0]: splits} if task.metadata.is_multilingual else splits  # as mteb loads them
    try:
        task.dataset_transform()
    except (KeyError, ValueError) as error:  # it renames columns of the published data
        raise ConfigError(
            f"task {task.metadata.name!r} of mteb reads columns that local rows lack ({first_line(error)}); give "
            f"another task of type {task.metadata.type}."
        ) from error
    task.data_loaded = True
    # mteb keeps results apart by the revision of the data as well.
    source = {**task.metadata.dataset, "revision": f"local-{rows.digest()[:12]}"}
    task.metadata = task.metadata.model_copy(update={"dataset": source})
    return task


def run_mteb(
    decoder: Decoder,
    spec: ExtractionSpec,
    tasks: Sequence[Any],
    *,
    plans: Sequence[MaskPlan] = (),
    out: str | Path = "mteb",
    caches: str | Path = "caches",
    instructions: Mapping[str, str] | None = None,
    progress: ExtractionProgress | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> "pd.DataFrame":
    """Evaluate every layer and pooling of an extraction on tasks of mteb.

    Args:
        decoder: The decoder.
        spec: What to extract; every layer and pooling of it is scored, or every layer of each view and of all views
            side by side, named in the column `pooling`.
        tasks: Names as `find_tasks` reads them, or tasks of mteb, perhaps filled by `fill_task`.
        plans: Plans to score instead of that of `spec`; what they share is computed once.
        out: Folder for mteb's own JSON results. Results that are there are read and not computed again.
        caches: Folder of the caches.
        instructions: As for `as_mteb_encoder`; a type of tasks stands for all of its tasks that have none themselves.
        progress: Receives what has been extracted.
        report: Receives a line per score.

    Returns:
        A row per task, split, plan, pooling and layer, with the columns `task`, `type`, `split`, `plan`, `pooling`,
        `layer`, `metric`, `score` (mteb's main score) and `revision`.

    Raises:
        ConfigError: The extra is missing, or a task is unknown, cannot be loaded or fails.
    """
    import pandas as pd

    mteb: Any = require_extra("mteb")
    from probes.export.layer_encoder import LayerEncoder, TextCaches

    plans = list(dict.fromkeys(plans)) or [spec.mask_plan]
    shared = TextCaches(decoder, spec, folder=caches, progress=progress, plans=plans)
    results = mteb.ResultCache(Path(out))
    rows = []
    views = tuple(spec.views)
    poolings = (*views, JOIN.join(views)) if len(views) > 1 else views or spec.poolings
    read: dict[tuple[str, str], TextCaches] = {}  # a view with a plan of its own is the same under all
    for plan in plans:
        caches_of_plan = shared.under(plan)
        read |= {(caches_of_plan.plan_of(pooling), pooling): caches_of_plan for pooling in poolings}
    points = [(*key, layer) for key in read for layer in select_layers(spec.layers, len(decoder.blocks))]
    found = [task for item in tasks for task in (find_tasks([item]) if isinstance(item, str) else [item])]
    _require_known(mteb, instructions or {}, found)
    for task in found:
        name, loaded = _title(task), [part for part in _parts(task) if not part.data_loaded]
        for part in loaded:
            _load(part)
        for plan_text, pooling, layer in points:
            encoder = LayerEncoder(
                read[plan_text, pooling],
                layer=layer,
                pooling=pooling,
                instructions=_instructions_of(task, instructions or {}),
            )
            with _quiet():
                outcome = mteb.evaluate(encoder, task, cache=results, co2_tracker=False, show_progress_bar=False)
            revision = encoder.mteb_model_meta.revision
            # mteb returns what its folder holds of a task, of earlier commands as well
            by_split = outcome.task_results[0].scores
            for split in task.eval_splits:
                scores = [part["main_score"] for part in by_split[split] if part["hf_subset"] in task.hf_subsets]
                metric, score = task.metadata.main_score, sum(scores) / len(scores)
                rows.append((name, task.metadata.type, split, plan_text, pooling, layer, metric, score, revision))
                report(f"{name} {split}, {plan_text}, {pooling} {layer}: {metric} {score:.4f}")
        for part in loaded:
            part.unload_data()
    columns = ["task", "type", "split", "plan", "pooling", "layer", "metric", "score", "revision"]
    return pd.DataFrame(rows, columns=columns)


def mean_scores(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Average the scores of `run_mteb` over the tasks of every type, over all tasks, and over the types.

    A task with several splits counts once, with the mean of its splits. A row per plan, pooling, layer and mean: the
    type, `all tasks` or `all types`.
    """
    import pandas as pd

    keys = ["plan", "pooling", "layer"]
    by_task = frame.groupby([*keys, "type", "task"], sort=False, as_index=False)["score"].mean()
    by_type = by_task.groupby([*keys, "type"], sort=False)["score"].agg(n_tasks="size", score="mean").reset_index()
    of_type = by_type.rename(columns={"type": "mean"})
    of_tasks = by_task.groupby(keys, sort=False)["score"].agg(n_tasks="size", score="mean").reset_index()
    of_types = by_type.groupby(keys, sort=False).agg({"n_tasks": "sum", "score": "mean"}).reset_index()
    named = [of_type, of_tasks.assign(mean="all tasks"), of_types.assign(mean="all types")]
    return pd.concat(named)[["mean", *keys, "n_tasks", "score"]].reset_index(drop=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep mteb from saying of every layer that a newer version of the task exists."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The task .* is superseded", category=UserWarning)
        logger = logging.getLogger("mteb")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _load(task: Any) -> None:
    """Load the data of a task once for all layers; mteb leaves data alone that was loaded before."""
    try:
        task.load_data()
    except Exception as error:  # the hub, the network and readers of data sets raise unrelated types
        raise ConfigError(
            f"the data of task {task.metadata.name!r} cannot be loaded ({first_line(error)}); fill it from local rows: "
            "icecore mteb CONFIG --local."
        ) from error
