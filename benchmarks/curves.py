"""Draws docs/figures/stsb_layers.png, of docs/results.md, from the committed results: `python -m benchmarks.curves`."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from probes.report import style

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "figures" / "stsb_layers.png"
RUNS = {"stsb-nosink": style.BLUE, "stsb-siamese": style.ORANGE}
CURVE = "standardised"


def read_results(name: str) -> dict[str, Any]:
    """Read committed results by the name of their file."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def draw_curves(figure: Figure) -> None:
    """Draw the validation curve of `layer-cosine` under each plan, a ring at the best layer."""
    axes = style.panel(figure)
    for name, colour in RUNS.items():
        results = read_results(name)
        head = results["heads"]["layer-cosine"]
        scores = [100 * score for score in head["curves"]["validation"]["pearson"][CURVE]]
        label = results["cache"]["plan"] + " with BOS" * (results["cache"]["template"]["bos"] == "force")
        style.draw_line(axes, range(len(scores)), scores, colour=colour, label=label)
        best = scores.index(max(scores))
        axes.plot(best, scores[best], "o", color=colour, markerfacecolor="none", markersize=8)
    style.mark_layers(axes, head["layers"])
    axes.set_ylabel("Pearson x 100, validation")


def make_picture() -> Figure:
    """Make the picture, with its sample size."""
    results = read_results("stsb-siamese")
    note = (
        f"cosine of mean-pooled, standardised latents; {results['task']['n_pairs']['validation']:,} pairs; "
        f"{results['decoder']['name']}; ring: best layer"
    )
    title = "What each layer knows of STS-B, untrained: two changes at once, a BOS token and the masks"
    return style.make_figure(draw_curves, title=title, note=note)


if __name__ == "__main__":
    style.save_figure(make_picture(), PICTURE, file_format="png")
