"""What a study of layers costs at the size of STS-B: `python -m benchmarks.layers`, on a quiet machine.

Writes benchmarks/results/layers.json: seconds of 1,000 resamples of 32 layers on 1,379 pairs with the set and the
intervals, and of the Shapley values of a siamese head over 32 layers by 200 orders; medians of three runs.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.machine import describe_machine
from extract.linear import estimated_products
from probes.heads.pair_heads import Muted
from probes.layers.study import shapley_values
from probes.metrics.bootstrap import Resampling, correlation_scorer
from probes.metrics.significance import best_set, joint_intervals
from probes.networks.pair_networks import SiameseCosine

OUT = Path(__file__).parent / "results" / "layers.json"
N_LAYERS, N_PAIRS, WIDTH = 32, 1379, 576


def seconds(run: Callable[[], object], repeats: int = 3) -> list[float]:
    """Time a run several times."""
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        found.append(round(time.perf_counter() - started, 3))
    return found


def main() -> None:
    """Measure both."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    gold = rng.normal(size=N_PAIRS)
    predicted = (gold + rng.normal(size=(N_LAYERS, N_PAIRS))).astype(np.float32)
    scorer = correlation_scorer(gold, metric="pearson")

    def alone() -> None:
        values, drawn = scorer.score(predicted), scorer.resample(predicted, Resampling(1000))
        best_set(values, drawn)
        joint_intervals(values, drawn)

    head = SiameseCosine(N_LAYERS, WIDTH).eval()
    muted = Muted(head, torch.from_numpy(predicted).tanh(), torch.zeros(N_LAYERS))

    def shapley() -> None:
        with estimated_products():
            shapley_values(lambda masks: np.nan_to_num(scorer.score(muted.predict(masks))), N_LAYERS, n_orders=200)

    found = {"alone": seconds(alone), "shapley": seconds(shapley)}
    results = {
        "n_layers": N_LAYERS,
        "n_pairs": N_PAIRS,
        "n_resamples": 1000,
        "n_orders": 200,
        "seconds": found,
        "medians": {name: median(each) for name, each in found.items()},
        **describe_machine(),
    }
    OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results["medians"]))


if __name__ == "__main__":
    main()
