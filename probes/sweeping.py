"""A run over many plans: one cache per plan, the same heads on each, the plan chosen on validation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from extract.cache import LatentCache
from extract.errors import ConfigError
from extract.layers import FINAL_NORM
from extract.loading import choose_device, load_decoder
from extract.plan import MaskPlan
from extract.runner import unique_texts
from extract.sweep import sweep_cost, sweep_latents
from probes.class_runs import cut_task, describe_class_task, evaluate_classes, require_rows
from probes.classes.task import ClassTask
from probes.config import RunConfig
from probes.evaluate import evaluate_head
from probes.fitted import Setting
from probes.known_tasks import AnyTask
from probes.obtain import SILENT, Watcher
from probes.record import describe_program, describe_task, open_folder
from probes.report.sweeps import curve_label, draw_sweep, selection_score, sweep_summary
from probes.report.write import write_scores
from probes.runs import RunResult, require_splits
from probes.word_runs import describe_word_task, evaluate_words, require_word_splits
from probes.words.task import WordTask

ZERO_SHOT = "layer-cosine"
CAUSAL_PLAN = "causal"


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
    for name, options in config.heads.items():
        start = (options or {}).get("start", "fresh")
        if start != "fresh":
            raise ConfigError(
                f"head {name!r} has start {start!r}, but a sweep fits no autoencoders, of which every plan would need "
                "its own; use start: fresh, or `icecore run` for each plan."
            )
    task = config.task.load()
    if isinstance(task, ClassTask):
        task = cut_task(config, task)
        require_rows(task)
    elif isinstance(task, WordTask):
        require_word_splits(task, config)
    else:
        require_splits(task)
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
        watcher.say(f"{plan.text}: {_headline(rows[-1])}")
    scores = {
        "name": folder.name,
        "command": command,
        **describe_program(),
        "device": str(choose_device(config.decoder.device)),
        "decoder": decoder.description.to_dict(),
        "task": _describe_task(task),
        "cost": {"block_passes": cost.n_blocks, "apart": cost.n_blocks_apart, "ratio": cost.ratio},
        "plans": rows,
        "chosen": {name: _choose(rows, name) for name in config.heads},
    }
    write_scores(folder, scores)
    draw_sweep(rows, folder / "sweep.png", title=f"{curve_label(scores)}: {task.name} on {decoder.description.name}")
    (folder / "summary.md").write_text(sweep_summary(scores), encoding="utf-8")
    return RunResult(folder, scores)


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
    if isinstance(task, ClassTask):
        results = evaluate_classes(config, task, cache, device=device)
        return {**row, "heads": {name: result.scores for name, result in results.items()}}
    place = folder / "heads" / cache.manifest.short_id
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


def _describe_task(task: AnyTask) -> dict[str, Any]:
    if isinstance(task, ClassTask):
        return describe_class_task(task)
    return describe_word_task(task) if isinstance(task, WordTask) else describe_task(task)


def _choose(rows: list[dict[str, Any]], head: str) -> dict[str, Any]:
    """Choose the plan a head is best with on validation; its test score is told, never asked.

    What choosing gained is told where the sweep holds the causal plan: test score of the chosen minus that of causal.
    """
    best = max(rows, key=lambda row: selection_score(row["heads"][head]))
    chosen = {"plan": best["plan"], "summary": best["heads"][head]["summary"]}
    if "chosen" in best["heads"][head]:
        chosen["point"] = best["heads"][head]["chosen"]
    causal = next((row for row in rows if row["plan"] == CAUSAL_PLAN), None)
    if causal is not None and "test" in chosen["summary"]:
        both = (chosen["summary"], causal["heads"][head]["summary"])
        metric = next(iter(chosen["summary"]["test"]))
        with_choice, without = (summary["test"][metric]["mean"] for summary in both)
        chosen["gain"] = {"metric": metric, "causal": without, "chosen": with_choice, "gain": with_choice - without}
    return chosen


def _headline(row: dict[str, Any]) -> str:
    parts = []
    if "zero_shot" in row:
        parts.append(f"zero-shot validation Spearman {100 * row['zero_shot']['validation']['spearman']:.1f}")
    parts += [f"{name} {100 * selection_score(result):.1f}" for name, result in row["heads"].items()]
    return ", ".join(parts)
