"""Findings about layers, made by hand."""

import json
import math
from pathlib import Path
from typing import Any

from extract.records import to_plain
from probes.layers import FINDINGS
from probes.layers.findings import Agreement, HeadFindings, ViewCurve

LAYERS = ("embedding", *(f"block_{k:02d}" for k in range(1, 13)), "final_norm")
BEST = ("block_05", "block_06", "block_07", "block_08", "final_norm")
ORDER = ("block_07", "block_02", "block_11", "embedding", "block_04")
SCORES = tuple(0.4 + 0.3 * math.sin(k / 4.5) for k in range(14))
GAINS = tuple(0.01 * (k - 3) if k > 2 else 0.0 for k in range(14))


def make_curve(view: str, values: tuple[float, ...], half: float = 0.03, **fields: Any) -> ViewCurve:
    """Make a curve with intervals of `half` to both sides; none where it is 0."""
    low, high = ((tuple(v + side * half for v in values) if half else ()) for side in (-1, 1))
    return ViewCurve(
        view, **{"metric": "pearson", "layers": LAYERS, "values": values, "low": low, "high": high} | fields
    )


def make_findings(**fields: Any) -> HeadFindings:
    """Make findings with a view of every form: scores, gains, groups, an order, bits, controls, several names."""
    shares = tuple(abs(value) for value in GAINS)
    halved = tuple(value / 2 for value in SCORES)
    values: dict[str, Any] = {
        "head": "cosine-mlp",
        "pooling": "mean",
        "metric": "pearson",
        "split": "test",
        "unit": "rows",
        "n_units": 1379,
        "layers": LAYERS,
        "best": "block_07",
        "best_set": BEST,
        "confidence": 0.95,
        "curves": (
            make_curve("alone", SCORES),
            make_curve("control", halved, 0.0, name="word types"),
            make_curve("control", tuple(value / 3 for value in SCORES), 0.0, name="shuffled gold"),
            make_curve("baseline", (0.35, 0.2), 0.01, layers=("bag-of-words", "<majority>")),
            make_curve("shapley", GAINS, 0.01, note="200 permutations"),
            make_curve("shapley-group", (0.02, 0.2, 0.1), layers=("embedding", "lower half", "upper half")),
            make_curve("without", GAINS, 0.0, name="cosine-mlp"),
            make_curve("without", shares, 0.0, name="logistic"),
            make_curve("greedy", SCORES[3:8], 0.01, layers=ORDER),
            make_curve("new-information", shares, 0.02, metric="bits"),
            make_curve("mix", (1 / 14,) * 14, 0.0, metric="weight", spread=(0.01,) * 14),
        ),
        "agreement": (
            Agreement("alone", "shapley", 0.82, 0.6, 0.93),
            Agreement("alone", "without", -0.15, -0.6, 0.35),
            Agreement("shapley", "without", 0.4, -0.1, 0.7),
        ),
        "answer": "Blocks 5 to 8 and the final norm are statistically tied with the best.",
        "warnings": ("Two layers did not converge.",),
    }
    return HeadFindings(**{**values, **fields})


def write_findings(folder: Path, *findings: HeadFindings, **fields: Any) -> None:
    """Write the file of a run folder that holds findings."""
    values = {"schema": 1, "run": folder.name, "heads": [to_plain(each) for each in findings], **fields}
    (folder / FINDINGS).write_text(json.dumps(values), encoding="utf-8")
