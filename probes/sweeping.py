"""A run over many plans: one cache per plan, the same heads on each, the plan chosen on validation."""

from collections.abc import Sequence

from extract.loading import choose_device, load_decoder
from extract.plan import MaskPlan
from extract.runner import unique_texts
from extract.sweep import sweep_cost, sweep_latents
from probes.config import RunConfig
from probes.obtain import SILENT, Watcher
from probes.plan_scores import best_row, describe_any_task, describe_choice, evaluate_plan, headline, load_for_plans
from probes.record import describe_program, open_folder
from probes.report.sweeps import curve_label, draw_sweep, sweep_summary
from probes.report.write import write_scores
from probes.runs import RunResult


def run_sweep(
    config: RunConfig,
    plans: Sequence[MaskPlan],
    *,
    watcher: Watcher = SILENT,
    command: str = "",
) -> RunResult:
    """Extract a task under many plans and fit the heads of a configuration on each.

    Args:
        config: The run; its own plan does not count.
        plans: The plans.
        watcher: Is told what happens.
        command: The command line, for the record.

    Returns:
        The folder and its scores: per plan the heads and the zero-shot correlations of the final norm, and for each
        head the plan with the best validation Pearson.

    Raises:
        IcecoreError: Any input the sweep cannot work with, in one sentence. What is cached or fitted stays.
    """
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
    rows = []
    for plan, cache in zip(plans, caches, strict=True):
        rows.append(evaluate_plan(config, task, plan, cache, folder))
        watcher.say(f"{plan.text}: {headline(rows[-1])}")
    scores = {
        "name": folder.name,
        "command": command,
        **describe_program(),
        "device": str(choose_device(config.decoder.device)),
        "decoder": decoder.description.to_dict(),
        "task": describe_any_task(task),
        "cost": {"block_passes": cost.n_blocks, "apart": cost.n_blocks_apart, "ratio": cost.ratio},
        "plans": rows,
        "chosen": {name: describe_choice(best_row(rows, name), rows, name) for name in config.heads},
    }
    write_scores(folder, scores)
    draw_sweep(rows, folder / "sweep.png", title=f"{curve_label(scores)}: {task.name} on {decoder.description.name}")
    (folder / "summary.md").write_text(sweep_summary(scores), encoding="utf-8")
    return RunResult(folder, scores)
