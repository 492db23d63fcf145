"""A run over many plans: one cache per plan, the same heads on each, the plan chosen on validation, then test read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from extract.decoders.loading import load_decoder
from extract.errors import ConfigError
from extract.masks.plan import MaskPlan
from extract.run.runner import unique_texts
from extract.run.sweep import sweep_cost, sweep_latents
from extract.store.cache import LatentCache
from probes.plans.plan_scores import (
    best_row,
    default_row,
    describe_choices,
    evaluate_plan,
    finite_score,
    headline,
    load_for_plans,
    open_plans_folder,
    report_plans,
    require_unread_test,
)
from probes.report.document import EVERY_PLAN
from probes.report.kind_reports import ZERO_SHOT
from probes.report.scores import PlanChoice, PlanScores, SweepCost
from probes.runs.config import RunConfig
from probes.runs.obtain import SILENT, Watcher
from probes.runs.run import RunResult
from probes.tasks.base import Task

TEST_READS = ("chosen", "all")
"""Plans that test is read for: that of every head with causal (or the first plan) beside it, or every plan."""


def run_sweep(
    config: RunConfig, plans: Sequence[MaskPlan], *, test: str = "chosen", watcher: Watcher = SILENT, command: str = ""
) -> RunResult:
    """Extract a task under many plans, fit the heads of a configuration on each, choose, and read test.

    `test` is one of `TEST_READS`; unless it is `all`, test is set aside until every plan is fitted and chosen. The
    scores hold per plan the heads and the zero-shot correlations of the final norm, and for each head the plan with the
    best validation score. What is cached or fitted stays after an error.
    """
    if test not in TEST_READS:
        raise ConfigError(f"test is {test!r}; allowed: {', '.join(TEST_READS)}, the plans that test is read for.")
    if test == "chosen":
        require_unread_test(config)
    task = load_for_plans(config)
    decoder = load_decoder(config.decoder, report=watcher.say)
    cost = sweep_cost(plans, decoder.description.n_layers)
    texts = unique_texts(task.texts())
    watcher.say(
        f"{cost.n_plans} plans over {len(texts):,} texts: {cost.n_blocks} block passes per batch instead of "
        f"{cost.n_blocks_apart} ({cost.ratio:.2f} of separate extractions)"
    )
    progress = watcher.extraction(f"sweeping {task.name}")
    caches = sweep_latents(decoder, texts, plans, spec=config.extraction, folder=config.caches, progress=progress)
    folder = open_plans_folder(config, "sweep", plans)
    comparison = _Comparison(config, task, dict(zip(plans, caches, strict=True)), folder, watcher)
    rows, chosen, test_read = comparison.compare(reads_all=test == "all")
    return report_plans(
        config, "sweep", folder, decoder=decoder, task=task, command=command,
        test_read=test_read, plans=rows, chosen=chosen,
        cost=SweepCost(cost.n_blocks, cost.n_blocks_apart, cost.ratio),
    )  # fmt: skip


@dataclass(frozen=True)
class _Comparison:
    """Plans with their caches, which hold every text, those of test as well."""

    config: RunConfig
    task: Task
    caches: dict[MaskPlan, LatentCache]
    folder: Path
    watcher: Watcher

    def compare(self, *, reads_all: bool) -> tuple[tuple[PlanScores, ...], dict[str, PlanChoice], str]:
        """Fit every head on every plan, choose, and say which plans test was read for."""
        judged = self.task if reads_all else self.task.without_test()
        rows = {plan: self._score(plan, judged) for plan in self.caches}
        chosen = {name: best_row(rows.values(), name).plan for name in self.config.heads}
        default = default_row(rows.values()).plan
        if "test" not in self.task.splits:
            test_read = "no plan"
        elif reads_all:
            test_read = EVERY_PLAN
        else:
            read = [plan for plan in rows if plan in (default, *chosen.values())]
            test_read = " and ".join(plan.text for plan in read)
            for plan in read:
                heads = [name for name in self.config.heads if plan in (default, chosen[name])]
                rows[plan] = self._read_test(rows[plan], heads)
        choices = describe_choices({name: rows[plan] for name, plan in chosen.items()}, rows[default])
        return tuple(rows.values()), choices, test_read

    def _score(self, plan: MaskPlan, judged: Task) -> PlanScores:
        row = evaluate_plan(self.config, judged, plan, self.caches[plan], self.folder)
        for name in self.config.heads:
            finite_score(row, name)  # refused at the first plan, and not after the last
        self.watcher.say(f"{plan.text}: {headline(row)}")
        return row

    def _read_test(self, row: PlanScores, heads: Iterable[str]) -> PlanScores:
        """Score heads of one plan on test as well; those that are kept are not fitted again."""
        part = replace(self.config, heads={name: self.config.heads[name] for name in heads})
        self.watcher.say(f"{row.plan.text}: reading test")
        found = evaluate_plan(part, self.task, row.plan, self.caches[row.plan], self.folder)
        zero_shot = found.zero_shot if ZERO_SHOT in part.heads else row.zero_shot
        return replace(row, zero_shot=zero_shot, heads={**row.heads, **{name: found.heads[name] for name in heads}})
