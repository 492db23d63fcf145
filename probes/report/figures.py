"""Figures of a run. Matplotlib's object interface only: no global state is touched."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def new_figure(width: float = 8.0, height: float = 4.2) -> tuple[Figure, Axes]:
    """Make an empty figure, sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def mark_layers(axes: Axes, layers: list[str]) -> None:
    """Write the names of layers under an axis, not more than fit."""
    step = max(1, len(layers) // 16)
    ticks = sorted({*range(0, len(layers), step), len(layers) - 1})
    axes.set_xticks(ticks, [layers[k].removeprefix("block_") for k in ticks], rotation=60, fontsize=8)
    axes.set_xlabel("layer")


def draw_layer_curve(result: dict[str, Any], path: Path, *, title: str) -> None:
    """Draw the correlation of each layer's cosine with gold.

    Args:
        result: The scores of the head `layer-cosine`.
        path: Where the PNG goes.
        title: Title.
    """
    figure, axes = new_figure()
    layers = result["layers"]
    for split, style in (("validation", "-"), ("test", ":")):
        for kind, colour in (("raw", "tab:blue"), ("standardised", "tab:orange")):
            if split in result["curves"]:
                values = [100 * value for value in result["curves"][split]["pearson"][kind]]
                axes.plot(values, style, color=colour, marker=".", label=f"{kind} cosine, {split}")
    chosen = layers.index(result["chosen"]["layer"])
    axes.axvline(chosen, color="grey", linewidth=0.8)
    axes.annotate(
        "chosen on validation", (chosen, axes.get_ylim()[0]), fontsize=8, rotation=90, va="bottom", ha="right"
    )
    mark_layers(axes, layers)
    axes.set_ylabel("Pearson x 100")
    axes.set_title(title)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=130)


def draw_contributions(contributions: dict[str, Any], path: Path, *, title: str) -> None:
    """Draw what each layer contributes to a head: alone, and by what is lost without it.

    Args:
        contributions: As from `layer_contributions`.
        path: Where the PNG goes.
        title: Title.
    """
    figure, axes = new_figure()
    layers = contributions["layers"]
    axes.plot([100 * value for value in contributions["alone"]], marker=".", color="tab:blue", label="alone")
    axes.set_ylabel("Pearson x 100, layer alone", color="tab:blue")
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    other = axes.twinx()
    other.bar(range(len(layers)), [100 * value for value in contributions["without"]], color="tab:orange", alpha=0.6)
    other.axhline(0, color="grey", linewidth=0.5)
    other.set_ylabel("Pearson x 100 lost without it", color="tab:orange")
    mark_layers(axes, layers)
    axes.set_title(f"{title} ({contributions['split']})")
    figure.savefig(path, dpi=130)


def draw_history(result: dict[str, Any], path: Path, *, title: str) -> None:
    """Draw training loss and the correlation that chose, per epoch: a line per seed, the chosen epoch marked.

    Args:
        result: The scores of one trained head.
        path: Where the PNG goes.
        title: Title.
    """
    figure, axes = new_figure()
    other = axes.twinx()
    metric = "validation_pearson"
    for entry in result["seeds"]:
        epochs = range(1, len(entry["history"]) + 1)
        axes.plot(epochs, [step["train_loss"] for step in entry["history"]], color="tab:blue", alpha=0.6)
        looks = [(epoch, step) for epoch, step in zip(epochs, entry["history"], strict=True) if len(step) > 1]
        metric = next(key for key in looks[0][1] if key.endswith("_pearson"))
        scores = {epoch: 100 * step[metric] for epoch, step in looks}
        other.plot(list(scores), list(scores.values()), color="tab:orange", alpha=0.8)
        other.plot(entry["best_epoch"], scores[entry["best_epoch"]], "o", color="tab:orange")
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss", color="tab:blue")
    other.set_ylabel(f"{metric.removesuffix('_pearson')} Pearson x 100 (dot: chosen)", color="tab:orange")
    axes.set_title(title)
    figure.savefig(path, dpi=130)
