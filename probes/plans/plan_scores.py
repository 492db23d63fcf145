"""Plans of a sweep or a search: the heads of a configuration on each, and what choosing among them gained."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError, HeadError
from extract.masks.plan import CAUSAL, MaskPlan
from extract.store.cache import LatentCache
from probes.fitting.protocols import find_protocol
from probes.heads.result import HeadResult
from probes.report.scores import PlanChoice, PlanGain, PlanScores, PlansScores
from probes.report.write import write_plans
from probes.runs.config import RunConfig, describe_sources
from probes.runs.kinds import KINDS
from probes.runs.obtain import check_heads, load_run_task
from probes.runs.record import open_folder
from probes.runs.run import RunResult, evaluate_heads, make_header, make_setting
from probes.tasks.base import Task


def load_for_plans(config: RunConfig) -> Task:
    """Load the task of a configuration, cut as the protocol says, that is to be scored under many plans."""
    task = load_run_task(config)
    check_heads(config, task, chooses_plan=True)
    return task


def require_unread_test(config: RunConfig) -> None:
    """Refuse a protocol that fits no head without test, where plans are to be chosen before test is read."""
    if find_protocol(config.protocol).selection == "test":
        raise ConfigError(
            f"protocol {config.protocol!r} chooses epochs on test, which is read for chosen plans alone; use protocol "
            "icecore, or `icecore sweep --test all`, which reads test for every plan."
        )


def open_plans_folder(config: RunConfig, what: str, plans: Sequence[MaskPlan], **settings: Any) -> Path:
    """Open the folder of a `sweep` or a `search`; settings are those that the configuration does not hold."""
    wanted = {**config.to_dict(), **settings, "plans": [plan.text for plan in plans]}
    name = f"{config.name.removesuffix(f'-{what}')}-{what}"
    return open_folder(config.runs, name, wanted, sources=describe_sources(config))


def report_plans(
    config: RunConfig, what: str, folder: Path, *, decoder: Decoder, task: Task, command: str, **scores: Any
) -> RunResult:
    """Write the report of a `sweep` or a `search`; `scores` are the fields of `PlansScores` after its header."""
    described = decoder.description.to_dict()
    header = make_header(config, what, folder, command=command, decoder=described, task=task.describe())
    record = PlansScores(header, **scores)
    write_plans(folder, record, KINDS[config.task.kind].report, formats=config.figures)
    return RunResult(folder, record)


def evaluate_plan(config: RunConfig, task: Task, plan: MaskPlan, cache: LatentCache, folder: Path) -> PlanScores:
    """Fit the heads of a configuration on the cache of one plan, which holds every text of the task, or a part of it.

    The fitted heads are kept in the run folder.
    """
    kind = KINDS[config.task.kind]
    if kind.zero_shot_head:
        first = {kind.zero_shot_head: config.heads.get(kind.zero_shot_head)}
        config = replace(config, heads={**first, **config.heads})
    place = folder / "heads" / cache.manifest.short_id
    heads = evaluate_heads(config, make_setting(config, task, cache, place, has_details=False))
    zero_shot = kind.zero_shot(heads[kind.zero_shot_head]) if kind.zero_shot_head else {}
    return PlanScores(plan, cache.path.name, cache.certificate, heads, zero_shot)


def best_row(rows: Iterable[PlanScores], head: str) -> PlanScores:
    """Choose the plan a head is best with on validation; of equals the first."""
    return max(rows, key=lambda row: finite_score(row, head))


def finite_score(row: PlanScores, head: str) -> float:
    """Return the validation score of a plan; refuse one by which plans cannot be compared.

    It is no number where there was nothing to choose on, or where the head predicts one constant.
    """
    score = row.heads[head].selection_score
    if not math.isfinite(score):
        raise HeadError(
            f"the score of head {head!r} under plan {row.plan.text!r} is {score}, by which no plan can be chosen; give "
            "the task a validation split or the head several layers or Cs; leave the plan out if it alone has no score."
        )
    return score


def causal_row(rows: Iterable[PlanScores]) -> PlanScores | None:
    """Find the causal plan, if it is among them."""
    return next((row for row in rows if row.plan.text == CAUSAL), None)


def default_row(rows: Collection[PlanScores]) -> PlanScores:
    """Return the plan that one would take without choosing: causal, or the first where causal is not among them."""
    return causal_row(rows) or next(iter(rows))


def describe_choices(chosen: Mapping[str, PlanScores], default: PlanScores | None) -> dict[str, PlanChoice]:
    """Describe what was chosen for every head, and what it gained on test over the default; test decides nothing."""
    return {
        head: PlanChoice(row.plan, row.heads[head], _gain(row.heads[head], head, default))
        for head, row in chosen.items()
    }


def _gain(result: HeadResult, head: str, default: PlanScores | None) -> PlanGain | None:
    if default is None or "test" not in result.summary:
        return None
    before = default.heads[head].mean("test", result.metric)
    return PlanGain(result.metric, default.plan.text, before, result.mean("test"))


def headline(row: PlanScores) -> str:
    """Return the validation scores of a plan in one line."""
    parts = [f"{name} {100 * result.selection_score:.1f}" for name, result in row.heads.items()]
    if row.zero_shot:
        parts.insert(0, f"zero-shot validation Spearman {100 * row.zero_shot['validation']['spearman']:.1f}")
    return ", ".join(parts)
