"""A run over many plans: one cache per plan, the same heads on each, the plan chosen on validation, then test read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extract.decoders.loading import choose_device, load_decoder
from extract.errors import ConfigError
from extract.masks.plan import MaskPlan
from extract.run.runner import unique_texts
from extract.run.sweep import sweep_cost, sweep_latents
from extract.store.cache import LatentCache
from probes.plans.plan_scores import (
    ZERO_SHOT,
    best_row,
    default_row,
    describe_choice,
    evaluate_plan,
    finite_score,
    headline,
    load_for_plans,
    require_unread_test,
)
from probes.report.sweeps import EVERY_PLAN, curve_label, draw_sweep, sweep_summary
from probes.report.write import write_scores
from probes.runs.config import RunConfig
from probes.runs.obtain import SILENT, Watcher
from probes.runs.record import describe_program, open_folder
from probes.runs.run import RunResult
from probes.tasks.held_back import without_test
from probes.tasks.table import AnyTask

TEST_READS = {
    "chosen": "for the chosen plan of every head, and for causal (or the first plan) beside it",
    "all": "for every plan; nothing is chosen by it",
}
"""For which plans test is read."""


def run_sweep(
    config: RunConfig,
    plans: Sequence[MaskPlan],
    *,
    test: str = "chosen",
    watcher: Watcher = SILENT,
    command: str = "",
) -> RunResult:
    """Extract a task under many plans, fit the heads of a configuration on each, choose, and read test.

    Args:
        config: The run; its own plan does not count.
        plans: The plans.
        test: A key of `TEST_READS`: the plans that are scored on test. Unless it is `all`, test is set aside until
            every plan is fitted and chosen.
        watcher: Is told what happens.
        command: The command line, for the record.

    Returns:
        The folder and its scores: per plan the heads and the zero-shot correlations of the final norm, and for each
        head the plan with the best validation score.

    Raises:
        IcecoreError: Any input the sweep cannot work with, in one sentence. What is cached or fitted stays.
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
    progress = watcher.extraction(f"sweeping {task.name}") if watcher.extraction else None
    caches = sweep_latents(decoder, texts, plans, spec=config.extraction, folder=config.caches, progress=progress)
    settings = {**config.to_dict(), "plans": [plan.text for plan in plans]}
    folder = open_folder(config.runs, f"{config.name.removesuffix('-sweep')}-sweep", settings)
    comparison = _Comparison(config, task, tuple(zip(plans, caches, strict=True)), folder, watcher)
    scores = {
        "name": folder.name,
        "command": command,
        **describe_program(),
        "device": str(choose_device(config.decoder.device)),
        "decoder": decoder.description.to_dict(),
        "task": task.describe(),
        "cost": {"block_passes": cost.n_blocks, "apart": cost.n_blocks_apart, "ratio": cost.ratio},
        **comparison.compare(reads_all=test == "all"),
    }
    write_scores(folder, scores)
    title = f"{curve_label(scores)}: {task.name} on {decoder.description.name}"
    draw_sweep(scores["plans"], folder / "sweep.png", title=title)
    (folder / "summary.md").write_text(sweep_summary(scores), encoding="utf-8")
    return RunResult(folder, scores)


@dataclass(frozen=True)
class _Comparison:
    """Plans with their caches, which hold every text, those of test as well."""

    config: RunConfig
    task: AnyTask
    plans: tuple[tuple[MaskPlan, LatentCache], ...]
    folder: Path
    watcher: Watcher

    def compare(self, *, reads_all: bool) -> dict[str, Any]:
        """Fit every head on every plan, choose, and tell which plans test was read for."""
        judged = self.task if reads_all else without_test(self.task)
        rows = [self._score(place, judged) for place in range(len(self.plans))]
        texts = [row["plan"] for row in rows]
        chosen = {name: texts.index(best_row(rows, name)["plan"]) for name in self.config.heads}
        default = texts.index(default_row(rows)["plan"])
        read = sorted({default, *chosen.values()})
        if "test" not in self.task.splits:
            told = "no plan"
        elif reads_all:
            told = EVERY_PLAN
        else:
            told = " and ".join(texts[place] for place in read)
            for place in read:
                heads = [name for name in self.config.heads if place in (default, chosen[name])]
                rows[place] = self._read_test(rows[place], place, heads)
        return {
            "test_read": told,
            "plans": rows,
            "chosen": {name: describe_choice(rows[place], rows[default], name) for name, place in chosen.items()},
        }

    def _score(self, place: int, judged: AnyTask) -> dict[str, Any]:
        plan, cache = self.plans[place]
        row = evaluate_plan(self.config, judged, plan, cache, self.folder)
        for name in self.config.heads:
            finite_score(row, name)  # told at the first plan, and not after the last
        self.watcher.say(f"{plan.text}: {headline(row)}")
        return row

    def _read_test(self, row: dict[str, Any], place: int, heads: list[str]) -> dict[str, Any]:
        """Score heads of one plan on test as well; those that are kept by their circumstances are not fitted again."""
        plan, cache = self.plans[place]
        part = replace(self.config, heads={name: self.config.heads[name] for name in heads})
        self.watcher.say(f"{plan.text}: reading test")
        found = evaluate_plan(part, self.task, plan, cache, self.folder)
        zero_shot = {"zero_shot": found["zero_shot"]} if ZERO_SHOT in heads and "zero_shot" in found else {}
        return {**row, **zero_shot, "heads": {**row["heads"], **{name: found["heads"][name] for name in heads}}}
