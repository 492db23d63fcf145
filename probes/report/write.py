"""The files of a run folder that the report consists of."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from extract.store.cache import LatentCache
from probes.heads.pairs.residuals import Residuals
from probes.report.figures import draw_contributions, draw_history, draw_layer_curve
from probes.report.residual_figures import draw_pretraining, draw_reconstruction, draw_residuals
from probes.report.summary import pretraining_text, reported_split, summary_text


def write_report(
    folder: Path, scores: dict[str, Any], cache: LatentCache, *, residuals: Mapping[str, Mapping[str, Residuals]]
) -> None:
    """Write scores, manifest, figures and summary into a run folder.

    Args:
        folder: The run folder.
        scores: What the run found.
        cache: The cache it read; its manifest is copied.
        residuals: Head to split to residuals; those of test are drawn, or of validation where there is no test.
    """
    write_scores(folder, scores)
    write_manifest(folder, cache)
    figures = _Figures(folder)
    for name, result in scores["heads"].items():
        stem = name.replace("-", "_")
        if "curves" in result:
            figures.add("Cosine of each layer against gold", f"{stem}_curve", draw_layer_curve, result)
        if "contributions" in result:
            figures.add(f"What each layer gives {name}", f"{stem}_layers", draw_contributions, result["contributions"])
            figures.add(f"Fitting {name}", f"{stem}_history", draw_history, result)
        split = reported_split(residuals[name])
        figures.add(f"Residuals of {name} ({split})", f"{stem}_residuals", draw_residuals, residuals[name][split])
    _draw_autoencoders(figures, scores)
    worst = {name: of_head[reported_split(of_head)].largest() for name, of_head in residuals.items()}
    (folder / "summary.md").write_text(summary_text(scores, figures.drawn, worst), encoding="utf-8")


def write_pretraining(folder: Path, scores: dict[str, Any]) -> None:
    """Write scores, figures and summary of autoencoders that were fitted by themselves.

    Args:
        folder: The run folder.
        scores: What was found.
    """
    write_scores(folder, scores)
    figures = _Figures(folder)
    _draw_autoencoders(figures, scores)
    (folder / "summary.md").write_text(pretraining_text(scores, figures.drawn), encoding="utf-8")


class _Figures:
    """The figures of a run folder, drawn one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "figures"
        self.folder.mkdir(exist_ok=True)
        self.drawn: dict[str, str] = {}
        """Title to file name, relative to the run folder."""

    def add(self, title: str, stem: str, draw: Callable[..., None], what: Any) -> None:
        """Draw one."""
        draw(what, self.folder / f"{stem}.png", title=title)
        self.drawn[title] = f"figures/{stem}.png"


def _draw_autoencoders(figures: _Figures, scores: dict[str, Any]) -> None:
    for pooling, found in scores["pretraining"]["autoencoders"].items():
        stem = f"autoencoder_{pooling.replace('+', '_')}"
        figures.add(f"What the autoencoders lose ({pooling})", stem, draw_reconstruction, found)
        figures.add(f"Fitting the autoencoders ({pooling})", f"{stem}_history", draw_pretraining, found)


def write_manifest(folder: Path, cache: LatentCache) -> None:
    """Copy the manifest of a cache into a run folder."""
    (folder / "manifests").mkdir(exist_ok=True)
    (folder / "manifests" / f"{cache.path.stem}.json").write_text(cache.manifest.to_json() + "\n", encoding="utf-8")


def write_scores(folder: Path, scores: dict[str, Any]) -> None:
    """Write scores.json."""
    text = json.dumps(without_nan(scores), indent=1, allow_nan=False)
    (folder / "scores.json").write_text(text + "\n", encoding="utf-8")


def without_nan(value: Any) -> Any:
    """Put null where a number is missing: JSON knows no NaN."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
