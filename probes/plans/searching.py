"""A run that searches for a mask plan: on more and more rows of train and validation, and on test once, at the end."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from extract.decoders.loading import load_decoder
from extract.masks.plan import CAUSAL, MaskPlan
from extract.run.sweep import sweep_cost
from probes.plans.plan_caches import GrowingCaches
from probes.plans.plan_scores import (
    causal_row,
    describe_choices,
    evaluate_plan,
    finite_score,
    headline,
    load_for_plans,
    open_plans_folder,
    report_plans,
    require_unread_test,
)
from probes.plans.plan_search import Search, Trial, require_search, search_plans
from probes.plans.plan_space import PlanSpace, draw_rows, space_of
from probes.report.scores import PlanScores, SearchCost, SearchTrial
from probes.runs.config import RunConfig
from probes.runs.kinds import KINDS
from probes.runs.obtain import SILENT, Watcher
from probes.runs.run import RunResult
from probes.tasks.base import Task


def run_search(
    config: RunConfig, plans: Sequence[MaskPlan], *, strategy: str, budget: float = 0.25, watcher: Watcher = SILENT,
    command: str = "",
) -> RunResult:  # fmt: skip
    """Search plans for the one that the first head of a configuration is best with, then fit every head on it.

    `budget` is the most that choosing may compute, as a share of sweeping all plans over train and validation. The
    scores hold every trial with its cost, the chosen plan on the whole task, and the causal plan beside it where it was
    tried. What is cached or fitted stays after an error.
    """
    require_search(strategy, budget)
    require_unread_test(config)
    task = load_for_plans(config)
    decoder = load_decoder(config.decoder, report=watcher.say)
    sweep_cost(plans, len(decoder.blocks))  # refuses plans that cannot share blocks
    judged = task.without_test()
    folds = int((next(iter(config.heads.values())) or {}).get("folds", 5))
    fewest = KINDS[config.task.kind].fewest_rows(judged, folds)
    space = space_of(judged, tuple(plans), n_blocks=len(decoder.blocks), fewest=fewest)
    folder = open_plans_folder(config, "search", plans, search=strategy, budget=budget)
    caches = GrowingCaches(decoder, config, watcher)
    scorer = _Scorer(config, judged, space, caches, folder)
    found = search_plans(strategy, space, scorer, budget=budget)
    watcher.say(f"{found.chosen.text} was found for {found.share:.2f} of what all {len(plans)} plans would cost")
    rows = _on_everything(config, task, found, caches, folder)
    return report_plans(
        config, "search", folder, decoder=decoder, task=task, command=command,
        test_read=" and ".join(row.plan.text for row in rows) if "test" in task.splits else "no plan",
        plans=tuple(rows),
        chosen=describe_choices(dict.fromkeys(config.heads, rows[0]), causal_row(rows)),
        search=describe_search(found, space, strategy=strategy, budget=budget, by=scorer.head),
    )  # fmt: skip


class _Scorer:
    """Scores the plans of a trial with the first head, on rows of train and validation."""

    def __init__(self, config: RunConfig, judged: Task, space: PlanSpace, caches: GrowingCaches, folder: Path) -> None:
        self.head, options = next(iter(config.heads.items()))
        self.config = replace(config, heads={self.head: options})
        self.judged, self.space, self.caches, self.folder = judged, space, caches, folder

    def __call__(self, trial: Trial) -> list[float]:
        part = draw_rows(self.judged, trial.n_rows)
        say, n_texts = self.caches.watcher.say, self.space.n_texts(trial.n_rows)
        say(f"{len(trial.plans)} plans on at most {trial.n_rows:,} rows per split ({n_texts:,} texts)")
        scores = []
        for plan, cache in zip(trial.plans, self.caches.obtain(trial.plans, part), strict=True):
            row = evaluate_plan(self.config, part, plan, cache, self.folder)
            scores.append(row.heads[self.head].selection_score)
            say(f"{plan.text}: {self.head} {100 * scores[-1]:.1f}")
        if not any(map(math.isfinite, scores)):  # a search ranks a plan without a score last, but must have one score
            finite_score(row, self.head)
        return scores


def _on_everything(
    config: RunConfig, task: Task, found: Search, caches: GrowingCaches, folder: Path
) -> list[PlanScores]:
    """Fit every head on the chosen plan, and on the causal one beside it: the only look at test."""
    causal = [plan for step in found.steps for plan in step.trial.plans if plan.text == CAUSAL]
    plans = tuple(dict.fromkeys([found.chosen, *causal]))
    rows = []
    for plan, cache in zip(plans, caches.obtain(plans, task), strict=True):
        rows.append(evaluate_plan(config, task, plan, cache, folder))
        caches.watcher.say(f"{plan.text} on all rows: {headline(rows[-1])}")
    return rows


def describe_search(search: Search, space: PlanSpace, *, strategy: str, budget: float, by: str) -> SearchCost:
    """Describe a search, for a record of results."""
    trials = [
        SearchTrial(
            step.trial.n_rows,
            space.n_texts(step.trial.n_rows),
            step.cost,
            {plan.text: score for plan, score in zip(step.trial.plans, step.scores, strict=True)},
        )
        for step in search.steps
    ]
    return SearchCost(
        strategy,
        budget,
        by,
        len(space.plans),
        space.n_texts(space.n_rows),
        search.cost,
        search.full_cost,
        search.share,
        tuple(trials),
    )
