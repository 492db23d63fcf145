"""Scores of mteb for every layer of a decoder, from one pass over the texts of each task."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import select_layers
from extract.errors import ConfigError, first_line
from extract.registry import require_extra
from extract.run.extraction_spec import ExtractionSpec
from extract.run.progress import ExtractionProgress
from probes.data.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from mteb.models.abs_encoder import AbsEncoder


COLUMNS = {
    "STS": ("pairs", {"sentence1": "sentence1", "sentence2": "sentence2", "score": "score"}),
    "Classification": ("classes", {"text": "text", "label": "label"}),
}
"""Types of tasks of mteb that rows of this project can fill: the kind of the rows, and mteb's columns by theirs."""


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
        spec: Plan, template, poolings; all of its layers are extracted in one pass.
        layer: The layer to serve, by name or number.
        pooling: The pooling to serve; the first of `spec` when empty.
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
    pooling = pooling or shared.spec.poolings[0]
    return LayerEncoder(shared, layer=name, pooling=pooling, instructions=instructions)


def fill_task(task: Any, rows: Task) -> Any:
    """Fill a task of mteb with rows of this project, so that nothing is downloaded; returns the task.

    Raises:
        ConfigError: A task of another type, rows of another kind, or without one of the splits that mteb reads.
    """
    import datasets

    kind, columns = COLUMNS.get(task.metadata.type, ("", {}))
    if kind != rows.kind:
        raise ConfigError(
            f"task {task.metadata.name!r} of mteb is of type {task.metadata.type}, and {rows.name!r} has rows of kind "
            f"{rows.kind}; allowed: {', '.join(f'{name} with {wanted}' for name, (wanted, _) in COLUMNS.items())}."
        )
    needed = [*task.eval_splits, *["train"] * (kind == "classes")]
    for split in needed:
        if split not in rows.splits:
            raise ConfigError(f"{rows.name!r} has no {split} rows, which task {task.metadata.name!r} of mteb reads.")
    task.dataset = datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({mine: part[own] for mine, own in columns.items()})
            for name, part in rows.splits.items()
        }
    )
    task.dataset_transform()
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
    out: str | Path = "mteb",
    caches: str | Path = "caches",
    instructions: Mapping[str, str] | None = None,
    progress: ExtractionProgress | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> "pd.DataFrame":
    """Evaluate every layer and pooling of an extraction on tasks of mteb.

    Args:
        decoder: The decoder.
        spec: What to extract; every layer and pooling of it is scored.
        tasks: Names of tasks, or tasks of mteb, perhaps filled by `fill_task`.
        out: Folder for mteb's own JSON results. Results that are there are read and not computed again.
        caches: Folder of the caches.
        instructions: As for `as_mteb_encoder`.
        progress: Receives what has been extracted.
        report: Receives a line per score.

    Returns:
        A row per task, split, pooling and layer, with the columns `task`, `type`, `split`, `plan`, `pooling`,
        `layer`, `metric`, `score` (mteb's main score) and `revision`.

    Raises:
        ConfigError: The extra is missing, or a task is unknown, cannot be loaded or fails.
    """
    import pandas as pd

    mteb: Any = require_extra("mteb")
    from probes.export.layer_encoder import LayerEncoder, TextCaches

    shared = TextCaches(decoder, spec, folder=caches, progress=progress)
    results = mteb.ResultCache(Path(out))
    rows = []
    points = [
        (pooling, layer) for pooling in spec.poolings for layer in select_layers(spec.layers, len(decoder.blocks))
    ]
    for task in [_find(mteb, task) if isinstance(task, str) else task for task in tasks]:
        was_loaded, name = task.data_loaded, task.metadata.name
        _load(task)
        for pooling, layer in points:
            encoder = LayerEncoder(shared, layer=layer, pooling=pooling, instructions=instructions)
            with _quiet():
                outcome = mteb.evaluate(encoder, task, cache=results, co2_tracker=False, show_progress_bar=False)
            revision = encoder.mteb_model_meta.revision
            for split, scores in outcome.task_results[0].scores.items():
                metric, score = task.metadata.main_score, sum(score["main_score"] for score in scores) / len(scores)
                rows.append((name, task.metadata.type, split, spec.plan, pooling, layer, metric, score, revision))
                report(f"{name} {split}, {pooling} {layer}: {metric} {score:.4f}")
        if not was_loaded:
            task.unload_data()
    columns = ["task", "type", "split", "plan", "pooling", "layer", "metric", "score", "revision"]
    return pd.DataFrame(rows, columns=columns)


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


def _find(mteb: Any, name: str) -> Any:
    try:
        return mteb.get_task(name)
    except KeyError as error:
        raise ConfigError(
            f"mteb has no task {name!r} ({first_line(error)}); allowed: names of mteb.get_tasks()."
        ) from error


def _load(task: Any) -> None:
    """Load the data of a task once for all layers; mteb leaves data alone that was loaded before."""
    if task.data_loaded:
        return
    try:
        task.load_data()
    except Exception as error:  # the hub, the network and readers of data sets raise unrelated types
        raise ConfigError(
            f"the data of task {task.metadata.name!r} cannot be loaded ({first_line(error)}); fill it from local rows: "
            "icecore mteb CONFIG --local."
        ) from error
