"""The files of a run folder that the report consists of."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from extract.cache import LatentCache
from probes.report.figures import draw_contributions, draw_history, draw_layer_curve
from probes.report.summary import summary_text


def write_report(folder: Path, scores: dict[str, Any], cache: LatentCache) -> None:
    """Write scores, manifest, figures and summary into a run folder.

    Args:
        folder: The run folder.
        scores: What the run found.
        cache: The cache it read; its manifest is copied.
    """
    text = json.dumps(without_nan(scores), indent=1, allow_nan=False)
    (folder / "scores.json").write_text(text + "\n", encoding="utf-8")
    (folder / "manifests").mkdir(exist_ok=True)
    (folder / "manifests" / f"{cache.path.stem}.json").write_text(cache.manifest.to_json() + "\n", encoding="utf-8")
    drawn = folder / "figures"
    drawn.mkdir(exist_ok=True)
    figures: dict[str, str] = {}

    def add(title: str, stem: str, draw: Callable[..., None], what: dict[str, Any]) -> None:
        draw(what, drawn / f"{stem}.png", title=title)
        figures[title] = f"figures/{stem}.png"

    for name, result in scores["heads"].items():
        stem = name.replace("-", "_")
        if "curves" in result:
            add("Cosine of each layer against gold", f"{stem}_curve", draw_layer_curve, result)
        if "contributions" in result:
            add(f"What each layer gives {name}", f"{stem}_layers", draw_contributions, result["contributions"])
            add(f"Fitting {name}", f"{stem}_history", draw_history, result)
    (folder / "summary.md").write_text(summary_text(scores, figures), encoding="utf-8")


def without_nan(value: Any) -> Any:
    """Put null where a number is missing: JSON knows no NaN."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
