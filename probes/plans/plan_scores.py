"""One plan of a sweep or a search: the task it is scored on, the scores of its heads, and what choosing it gained."""

import math
from pathlib import Path
from typing import Any

from extract.decoders.layers import FINAL_NORM
from extract.decoders.loading import choose_device
from extract.errors import ConfigError, HeadError
from extract.masks.plan import MaskPlan
from extract.store.cache import LatentCache
from probes.fitting.protocols import PROTOCOLS
from probes.heads.pairs.evaluation import evaluate_head
from probes.heads.pairs.fitting import Setting
from probes.report.sweeps import selection_score
from probes.runs.class_runs import describe_class_task, evaluate_classes, require_rows, require_selection
from probes.runs.config import RunConfig
from probes.runs.protocol_tasks import load_run_task
from probes.runs.record import describe_task
from probes.runs.run import require_splits
from probes.runs.word_runs import describe_word_task, evaluate_words, require_word_splits
from probes.tasks.classes.task import ClassTask
from probes.tasks.table import AnyTask
from probes.tasks.words.task import WordTask

ZERO_SHOT = "layer-cosine"
CAUSAL_PLAN = "causal"


def load_for_plans(config: RunConfig) -> AnyTask:
    """Load the task of a configuration that is to be scored under many plans.

    Args:
        config: The run.

    Returns:
        The task, cut as the protocol says.

    Raises:
        ConfigError: A head that needs autoencoders.
        TaskError: Rows that cannot be used, or a split that is missing.
    """
    for name, options in config.heads.items():
        start = (options or {}).get("start", "fresh")
        if start != "fresh":
            raise ConfigError(
                f"head {name!r} has start {start!r}, but a sweep fits no autoencoders, of which every plan would need "
                "its own; use start: fresh, or `icecore run` for each plan."
            )
    task = load_run_task(config)
    if isinstance(task, ClassTask):
        require_rows(task)
        require_selection(config, task)
    elif isinstance(task, WordTask):
        require_word_splits(task, config, has_plans=True)
    else:
        require_splits(task)
    return task


def require_unread_test(config: RunConfig) -> None:
    """Refuse a protocol that fits no head without test, where plans are to be chosen before test is read.

    Raises:
        ConfigError: Names the protocol.
    """
    if config.protocol in PROTOCOLS and PROTOCOLS[config.protocol].selection == "test":
        raise ConfigError(
            f"protocol {config.protocol!r} chooses epochs on test, which is read for chosen plans alone; use protocol "
            "icecore, or `icecore sweep --test all`, which reads test for every plan."
        )


def evaluate_plan(
    config: RunConfig, task: AnyTask, plan: MaskPlan, cache: LatentCache, folder: Path
) -> dict[str, Any]:  # fmt: skip
    """Fit the heads of a configuration on the cache of one plan.

    Args:
        config: The run.
        task: Its task, or a part of it.
        plan: The plan.
        cache: Latents of every text of the task under the plan.
        folder: The run folder, where fitted heads are kept.

    Returns:
        The plan's row of scores.json: plan, cache, certificate, and the scores of every head.

    Raises:
        IcecoreError: Rows or options that a head cannot work with.
    """
    device = str(choose_device(config.decoder.device))
    row = {"plan": plan.text, "cache": cache.path.name, "certificate": cache.certificate}
    place = folder / "heads" / cache.manifest.short_id
    if isinstance(task, ClassTask):
        results = evaluate_classes(config, task, cache, device=device, folder=place)
        return {**row, "heads": {name: result.scores for name, result in results.items()}}
    if isinstance(task, WordTask):
        found = evaluate_words(config, task, cache, device=device, folder=place)
        return {**row, "heads": {name: result.scores for name, result in found.items()}}
    setting = Setting(
        cache, task, config.seeds, config.bootstrap, device, place, protocol=config.protocol,
        calibration=config.calibration, anchor_identical=config.anchor_identical, has_subsets=False,
    )  # fmt: skip
    names = {ZERO_SHOT: config.heads.get(ZERO_SHOT), **config.heads}
    heads = {name: evaluate_head(name, options or {}, setting).scores for name, options in names.items()}
    curves, layers = heads[ZERO_SHOT]["curves"], heads[ZERO_SHOT]["layers"]
    top = layers.index(FINAL_NORM) if FINAL_NORM in layers else len(layers) - 1
    return {
        **row,
        "zero_shot": {
            split: {metric: values["raw"][top] for metric, values in found.items()} for split, found in curves.items()
        },
        "heads": heads,
    }


def describe_any_task(task: AnyTask) -> dict[str, Any]:
    """Describe a task of any kind, for a record of results."""
    if isinstance(task, ClassTask):
        return describe_class_task(task)
    return describe_word_task(task) if isinstance(task, WordTask) else describe_task(task)


def best_row(rows: list[dict[str, Any]], head: str) -> dict[str, Any]:
    """Choose the plan a head is best with on validation; of equals the first.

    Args:
        rows: Plans with their scores, as `evaluate_plan` gives them.
        head: Name of the head.

    Returns:
        Its row.

    Raises:
        HeadError: A plan whose score is no number.
    """
    return max(rows, key=lambda row: finite_score(row, head))


def finite_score(row: dict[str, Any], head: str) -> float:
    """Give the validation score of a plan, which must be one that plans can be compared by.

    Args:
        row: The plan with its scores.
        head: Name of the head.

    Returns:
        The score.

    Raises:
        HeadError: It is no number: there was nothing to choose on, or the head predicts one constant.
    """
    score = selection_score(row["heads"][head])
    if not math.isfinite(score):
        raise HeadError(
            f"the score of head {head!r} under plan {row['plan']!r} is {score}, by which no plan can be chosen; give "
            "the task a validation split or the head several layers or Cs; leave the plan out if it alone has no score."
        )
    return score


def default_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the plan that one would take without choosing: causal, or the first where causal is not among them."""
    return next((row for row in rows if row["plan"] == CAUSAL_PLAN), rows[0])


def describe_choice(chosen: dict[str, Any], default: dict[str, Any] | None, head: str) -> dict[str, Any]:
    """Tell what a chosen plan scores; its test score is told, never asked.

    Args:
        chosen: The row of the plan.
        default: The row of the plan that one would take without choosing, if there is one.
        head: Name of the head.

    Returns:
        The plan, the summary of the head, its chosen point, and what choosing gained: test score of the chosen minus
        that of the default.
    """
    result = chosen["heads"][head]
    told = {"plan": chosen["plan"], "summary": result["summary"]}
    if "chosen" in result:
        told["point"] = result["chosen"]
    if default is not None and "test" in told["summary"]:
        both = (told["summary"], default["heads"][head]["summary"])
        metric = next(iter(told["summary"]["test"]))
        with_choice, without = (summary["test"][metric]["mean"] for summary in both)
        told["gain"] = {
            "metric": metric, "over": default["plan"], "default": without, "chosen": with_choice,
            "gain": with_choice - without,
        }  # fmt: skip
    return told


def headline(row: dict[str, Any]) -> str:
    """Tell the validation scores of a plan in one line."""
    parts = []
    if "zero_shot" in row:
        parts.append(f"zero-shot validation Spearman {100 * row['zero_shot']['validation']['spearman']:.1f}")
    parts += [f"{name} {100 * selection_score(result):.1f}" for name, result in row["heads"].items()]
    return ", ".join(parts)
