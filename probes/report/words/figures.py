"""Figures of a run on words: the score of each layer, how the fit went, what is taken for what."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from probes.heads.words.evaluation import WordResult
from probes.report.figures import mark_layers, new_figure
from probes.report.summary import reported_split

MOST_TAGS = 25


def draw_word_figures(folder: Path, scores: dict[str, Any], results: dict[str, WordResult]) -> dict[str, str]:
    """Draw the figures of every head.

    Args:
        folder: Where they go; made when absent.
        scores: The content of scores.json.
        results: Head to what came of it.

    Returns:
        Title to file name, relative to the run folder.
    """
    folder.mkdir(exist_ok=True)
    drawn: dict[str, str] = {}
    for name, result in scores["heads"].items():
        stem = name.replace("-", "_")
        split = reported_split(results[name].confusion)
        has_curve = len(result["layers"]) > 1 and bool(result["curve"])
        few_tags = len(results[name].names[split]) <= MOST_TAGS
        figures: tuple[tuple[str, str, Callable[..., None], Any], ...] = (
            (f"{name}: score of each layer", "layers", draw_layers, result if has_curve else None),
            (f"Fitting {name}", "history", draw_history, result),
            (
                f"What {name} takes for what ({split})", "confusion", draw_confusion,
                (results[name], split) if few_tags else None,
            ),
            (f"What each layer gives {name}", "weights", draw_mix, result.get("mix")),
        )  # fmt: skip
        for title, kind, draw, what in figures:
            if what is not None:
                draw(what, folder / f"{stem}_{kind}.png", title=title)
                drawn[title] = f"figures/{stem}_{kind}.png"
    return drawn


def draw_layers(result: dict[str, Any], path: Path, *, title: str) -> None:
    """Draw the validation score of every layer, mean and spread over seeds, the chosen layer marked.

    Args:
        result: The scores of one head.
        path: Where the PNG goes.
        title: Title.
    """
    figure, axes = new_figure()
    curve, layers = result["curve"], result["layers"]
    mean, std = (100 * np.array(curve[key]) for key in ("mean", "std"))
    axes.plot(mean, marker=".", color="tab:blue", label=f"{result['metric']}, {curve['split']}")
    axes.fill_between(range(len(mean)), mean - std, mean + std, color="tab:blue", alpha=0.2)
    axes.axhline(
        100 * result["majority"][curve["split"]], color="grey", linestyle=":", label="majority tag of each word"
    )
    axes.axvline(layers.index(result["chosen"]["layer"]), color="grey", linewidth=0.8)
    mark_layers(axes, layers)
    axes.set_ylabel(f"{result['metric']} x 100")
    axes.legend(fontsize=8)
    axes.set_title(title)
    figure.savefig(path, dpi=130)


def draw_history(result: dict[str, Any], path: Path, *, title: str) -> None:
    """Draw the training loss, the mean over layers, and the validation score of the chosen layer: a line per seed.

    Args:
        result: The scores of one head.
        path: Where the PNG goes.
        title: Title.
    """
    figure, axes = new_figure()
    other = axes.twinx()
    for entry in result["seeds"]:
        history = entry["history"]
        epochs = range(1, len(history) + 1)
        axes.plot(epochs, [step["train_loss"] for step in history], color="tab:blue", alpha=0.6, marker=".")
        values = [100 * step.get("validation_score", np.nan) for step in history]  # none once a layer is done
        if np.isfinite(values).any():
            other.plot(epochs, values, color="tab:orange", alpha=0.8)
            other.plot(entry["best_epoch"], values[entry["best_epoch"] - 1], "o", color="tab:orange")
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss, mean over layers", color="tab:blue")
    other.set_ylabel(f"validation {result['metric']} x 100, chosen layer (dot: kept)", color="tab:orange")
    axes.set_title(title)
    figure.savefig(path, dpi=130)


def draw_confusion(what: tuple[WordResult, str], path: Path, *, title: str) -> None:
    """Draw the confusion of tags, rows gold, as shares of the gold tag.

    Args:
        what: What came of a head, and the split.
        path: Where the PNG goes.
        title: Title.
    """
    result, split = what
    table, names = result.confusion[split], result.names[split]
    columns = (*names, "none")
    if not table[:, -1].any():
        table, columns = table[:, :-1], names
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    figure, axes = new_figure(7.4, 6.4)
    figure.colorbar(axes.imshow(shares, cmap="Blues", vmin=0, vmax=1), ax=axes)
    axes.set_xticks(range(len(columns)), columns, rotation=70, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("predicted")
    axes.set_ylabel("gold")
    axes.set_title(title)
    figure.savefig(path, dpi=130)


def draw_mix(mix: dict[str, Any], path: Path, *, title: str) -> None:
    """Draw the weights of a mix, and beside them what each layer scores alone.

    Args:
        mix: As from `describe_mix`.
        path: Where the PNG goes.
        title: Title.
    """
    figure, axes = new_figure()
    axes.bar(range(len(mix["layers"])), mix["weights"], color="tab:orange", alpha=0.6)
    axes.set_ylabel("weight in the mix", color="tab:orange")
    if "alone" in mix:
        other = axes.twinx()
        other.plot([100 * value for value in mix["alone"]], marker=".", color="tab:blue")
        other.set_ylabel("score x 100 with this layer in place of the mix", color="tab:blue")
    mark_layers(axes, mix["layers"])
    axes.set_title(title)
    figure.savefig(path, dpi=130)
