"""Every metric by its name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from extract.errors import unknown_name
from probes.metrics.class_metrics import CLASS_METRICS
from probes.metrics.correlation import CORRELATIONS
from probes.metrics.spans import f1_of_counts
from probes.metrics.zero_shot.scorers import ROW_METRICS, average_precision, v_measure


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    compares: Literal["numbers", "classes", "spans", "scores", "similarities", "clusters"]
    compute: Callable[..., NDArray[np.floating[Any]]]
    """Numbers: predictions and gold `(..., N)`. Classes: `ClassCounts` `(..., K)`. Spans: counts `(..., 3)` of correct,
    predicted and gold spans. Scores: scores of rows `(..., N)`. Similarities: `(N,)`, and `(N,)` gold of 0 and 1.
    Clusters: rows of each label and cluster `(..., K, C)`. Returns values `(...)`."""
    unit: str
    higher_is_better: bool = True


def _mean(scores: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    return np.asarray(np.mean(scores, axis=-1))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(Metric(name, "numbers", compute, "correlation, -1 to 1") for name, compute in CORRELATIONS.items()),
        *(Metric(name, "classes", compute, "share, 0 to 1") for name, compute in CLASS_METRICS.items()),
        Metric("span-f1", "spans", f1_of_counts, "share, 0 to 1"),
        *(Metric(name, "scores", _mean, unit) for name, unit in ROW_METRICS.items()),
        Metric("average-precision", "similarities", average_precision, "share, 0 to 1"),
        Metric("v-measure", "clusters", v_measure, "share, 0 to 1"),
    )
}


def find_metric(name: str) -> Metric:
    """Look a metric up; an unknown one is refused with the names of all."""
    if name not in METRICS:
        raise unknown_name("metric", name, METRICS)
    return METRICS[name]
