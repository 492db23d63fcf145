"""What the tasks of the README's table give without a decoder: a bag of words, and each word's most frequent tag.

`python -m benchmarks.baselines` reads the files in $ICECORE_DATA and writes benchmarks/results/baselines.json.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine
from probes.metrics.bootstrap import Resampling, summarise_resamples
from probes.runs.config_file import read_config
from probes.runs.run_config import load_run_task
from probes.runs.task_kinds import KINDS

OUT = Path(__file__).parent / "results" / "baselines.json"
CONFIGS = {
    "stsb-nosink": ("bag-of-words", "pearson"),
    "banking77": ("bag-of-words", "accuracy"),
    "wnut17-ner": ("majority", "span-f1"),
    "ud-ewt-pos": ("majority", "accuracy"),
}
"""Config to its baseline and the metric of the table."""


def measure(config: str) -> dict[str, Any]:
    """Score the baseline of a config on test, with an interval over its rows."""
    name, metric = CONFIGS[config]
    task = load_run_task(read_config([], file=f"configs/{config}.yaml"))
    kind = KINDS[task.kind]
    baseline = dict(kind.baselines(task))[name]
    resampling = Resampling(1000)
    rows = kind.report.split_rows(task, "test")
    predicted, info = baseline.predictions["test"], task.describe()
    if names := info.of_kind.get("tags") or info.of_kind.get("class_names"):
        predicted = np.array(names)[predicted].tolist()
    values, resampled = rows.score([[predicted]], metric, resampling)
    summary = summarise_resamples(values, resampled[0], confidence=resampling.confidence)
    return {
        "task": {"name": info.name, "n_rows": info.n_rows},
        "baseline": name,
        "note": baseline.note,
        "metric": metric,
        "test": {"mean": summary.mean, "low": summary.low, "high": summary.high},
    }


def main() -> None:
    """Measure all, print, write JSON."""
    rows = {config: measure(config) for config in CONFIGS}
    OUT.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    for config, row in rows.items():
        test = row["test"]
        print(f"{config:12} {100 * test['mean']:.1f} ({100 * test['low']:.1f} to {100 * test['high']:.1f})")


if __name__ == "__main__":
    main()
