"""One plan of a sweep or a search: the heads of a configuration on it, and what choosing it gained."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from extract.errors import ConfigError, HeadError
from extract.masks.plan import MaskPlan
from extract.store.cache import LatentCache
from probes.fitting.protocols import find_protocol
from probes.heads.result import HeadResult
from probes.report.scores import PlanChoice, PlanGain, PlanScores
from probes.runs.config import RunConfig
from probes.runs.kinds import KINDS
from probes.runs.load import check_heads, load_run_task
from probes.runs.run import evaluate_heads, make_setting
from probes.tasks.base import Task

CAUSAL_PLAN = "causal"


def load_for_plans(config: RunConfig) -> Task:
    """Load the task of a configuration that is to be scored under many plans.

    Args:
        config: The run.

    Returns:
        The task, cut as the protocol says.

    Raises:
        ConfigError: A head that needs autoencoders.
        TaskError: Rows that cannot be used, or a split that is missing.
    """
    task = load_run_task(config)
    check_heads(config, task, chooses_plan=True)
    return task


def require_unread_test(config: RunConfig) -> None:
    """Refuse a protocol that fits no head without test, where plans are to be chosen before test is read.

    Raises:
        ConfigError: Names the protocol.
    """
    if find_protocol(config.protocol).selection == "test":
        raise ConfigError(
            f"protocol {config.protocol!r} chooses epochs on test, which is read for chosen plans alone; use protocol "
            "icecore, or `icecore sweep --test all`, which reads test for every plan."
        )


def evaluate_plan(config: RunConfig, task: Task, plan: MaskPlan, cache: LatentCache, folder: Path) -> PlanScores:
    """Fit the heads of a configuration on the cache of one plan.

    Args:
        config: The run.
        task: Its task, or a part of it.
        plan: The plan.
        cache: Latents of every text of the task under the plan.
        folder: The run folder, where fitted heads are kept.

    Returns:
        The results of every head.

    Raises:
        IcecoreError: Rows or options that a head cannot work with.
    """
    kind = KINDS[config.task.kind]
    if kind.zero_shot_head:
        first = {kind.zero_shot_head: config.heads.get(kind.zero_shot_head)}
        config = replace(config, heads={**first, **config.heads})
    place = folder / "heads" / cache.manifest.short_id
    heads = evaluate_heads(config, make_setting(config, task, cache, place, has_details=False))
    zero_shot = kind.zero_shot(heads[kind.zero_shot_head]) if kind.zero_shot_head else {}
    return PlanScores(plan.text, cache.path.name, cache.certificate, heads, zero_shot)


def best_row(rows: Sequence[PlanScores], head: str) -> PlanScores:
    """Choose the plan a head is best with on validation; of equals the first.

    Args:
        rows: Plans with their scores.
        head: Name of the head.

    Returns:
        Its row.

    Raises:
        HeadError: A plan whose score is no number.
    """
    return max(rows, key=lambda row: finite_score(row, head))


def finite_score(row: PlanScores, head: str) -> float:
    """Return the validation score of a plan, which must be one that plans can be compared by.

    Args:
        row: The plan with its scores.
        head: Name of the head.

    Returns:
        The score.

    Raises:
        HeadError: It is no number: there was nothing to choose on, or the head predicts one constant.
    """
    score = row.heads[head].selection_score
    if not math.isfinite(score):
        raise HeadError(
            f"the score of head {head!r} under plan {row.plan!r} is {score}, by which no plan can be chosen; give "
            "the task a validation split or the head several layers or Cs; leave the plan out if it alone has no score."
        )
    return score


def default_row(rows: Sequence[PlanScores]) -> PlanScores:
    """Return the plan that one would take without choosing: causal, or the first where causal is not among them."""
    return next((row for row in rows if row.plan == CAUSAL_PLAN), rows[0])


def describe_choices(chosen: Mapping[str, PlanScores], default: PlanScores | None) -> dict[str, PlanChoice]:
    """Describe what was chosen for every head, and what choosing gained on test; test decides nothing.

    Args:
        chosen: Head to the row of its plan.
        default: The row of the plan that one would take without choosing, if there is one.

    Returns:
        Head to its choice.
    """
    return {
        head: PlanChoice(row.plan, row.heads[head], _gain(row.heads[head], head, default))
        for head, row in chosen.items()
    }


def _gain(result: HeadResult, head: str, default: PlanScores | None) -> PlanGain | None:
    if default is None or "test" not in result.summary:
        return None
    return PlanGain(result.metric, default.plan, default.heads[head].mean("test", result.metric), result.mean("test"))


def headline(row: PlanScores) -> str:
    """Return the validation scores of a plan in one line."""
    parts = []
    if row.zero_shot:
        parts.append(f"zero-shot validation Spearman {100 * row.zero_shot['validation']['spearman']:.1f}")
    parts += [f"{name} {100 * result.selection_score:.1f}" for name, result in row.heads.items()]
    return ", ".join(parts)
