"""Sweeps and searches over mask plans alone, as the flags of `icecore sweep` ask for them."""

from collections.abc import Sequence
from typing import Any

from extract.masks.mask_plan import MaskPlan
from probes.report.scores import PlansScores
from probes.runs.grid import plan_grid
from probes.runs.grid_search import require_search
from probes.runs.run import RunResult
from probes.runs.run_config import RunConfig
from probes.runs.sweep_run import run_grid, search_grid


def run_sweep(config: RunConfig, plans: Sequence[MaskPlan], **options: Any) -> RunResult[PlansScores]:
    """Run a configuration under many plans."""
    return run_grid(config, plan_grid(config, plans), **options)


def run_search(
    config: RunConfig, plans: Sequence[MaskPlan], *, strategy: str, budget: float = 0.25, **options: Any
) -> RunResult[PlansScores]:
    """Search mask plans."""
    require_search(strategy, budget)
    return search_grid(config, plan_grid(config, plans), strategy=strategy, budget=budget, **options)
