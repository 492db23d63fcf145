"""The report of a run on a classification task: table, figures, predictions and summary."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from probes.heads.classes.logistic_probe import ProbeResult
from probes.report.figures import mark_layers, new_figure
from probes.report.table import interval, markdown_table, terminal_table
from probes.tasks.classes.task import ClassTask

SCREEN_COLUMNS = ("head", "layer", "metric", "validation", "test", "95 % interval")  # 80 columns
COLUMNS = (
    "head", "layer", "metric", "validation", "test", "95 % interval", "majority class on test",
    "test, chosen - default",
)  # fmt: skip


def class_rows(scores: dict[str, Any]) -> list[tuple[str, ...]]:
    """Lay the scores of a run out as rows of text, one per head and metric, times 100.

    Args:
        scores: The content of scores.json.

    Returns:
        Rows in the columns of `COLUMNS`.
    """
    rows: list[tuple[str, ...]] = []
    for name, result in scores["heads"].items():
        chosen = result["chosen"]
        how = f", C {chosen['C']:g}" if "C" in chosen else f", {chosen['kind']}"
        for k, metric in enumerate(scores["task"]["metrics"]):
            summary = {split: found[metric] for split, found in result["summary"].items()}
            test = summary.get("test")
            rows.append(
                (
                    name + (" (optimistic)" if result["is_optimistic"] else ""),
                    chosen["layer"] + how,
                    metric,
                    f"{100 * summary['validation']['mean']:.1f}" if "validation" in summary else "-",
                    f"{100 * test['mean']:.1f}" if test else "-",
                    interval(test) if test else "-",
                    f"{100 * result['majority']['test']:.1f}" if test and not k else "-",
                    _gain(result, test["mean"]) if test and not k else "-",
                )
            )
    return rows


def _gain(result: dict[str, Any], test: float) -> str:
    """Tell what choosing layer and C gained over the default point, on test."""
    return f"{100 * (test - result['default']['scores']['test']):+.1f}" if "default" in result else "-"


def class_table(scores: dict[str, Any]) -> Table:
    """Make the table for a terminal."""
    rows = [tuple(row[COLUMNS.index(column)] for column in SCREEN_COLUMNS) for row in class_rows(scores)]
    return terminal_table(scores, rows, SCREEN_COLUMNS)


def draw_surface(result: dict[str, Any], path: Path, *, title: str) -> None:
    """Draw the selection score over layers: a line per C, or per kind of cosine.

    Args:
        result: The scores of one head.
        path: Where the PNG goes.
        title: Title.
    """
    figure, axes = new_figure()
    if "surface" in result:
        lines = {f"C {c:g}": column for c, column in zip(result["Cs"], np.transpose(result["surface"]), strict=True)}
    else:
        lines = result["curve"]
    for label, values in lines.items():
        axes.plot([100 * value for value in values], marker=".", label=label)
    axes.axvline(result["layers"].index(result["chosen"]["layer"]), color="grey", linewidth=0.8)
    mark_layers(axes, result["layers"])
    axes.set_ylabel(f"score x 100 ({result['selection']})")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title(title)
    figure.savefig(path, dpi=130)


def draw_confusion(task: ClassTask, predicted: np.ndarray, path: Path, *, split: str, title: str) -> None:
    """Draw the confusion matrix of a split, rows gold, as shares of the gold class.

    Args:
        task: The task.
        predicted: `(N,)` predicted classes.
        path: Where the PNG goes.
        split: The split.
        title: Title.
    """
    table = np.zeros((task.n_classes, task.n_classes))
    np.add.at(table, (task.labels(split), predicted), 1)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    figure, axes = new_figure(7.0, 6.2)
    figure.colorbar(axes.imshow(shares, cmap="Blues", vmin=0, vmax=1), ax=axes)
    if task.n_classes <= 20:
        axes.set_xticks(range(task.n_classes), task.class_names, rotation=60, fontsize=8, ha="right")
        axes.set_yticks(range(task.n_classes), task.class_names, fontsize=8)
    axes.set_xlabel("predicted")
    axes.set_ylabel("gold")
    axes.set_title(title)
    figure.savefig(path, dpi=130)


def write_class_predictions(path: Path, task: ClassTask, results: Mapping[str, ProbeResult]) -> None:
    """Write every head's prediction for every row: `split,row`, the texts, `gold`, then a column per head.

    Args:
        path: The CSV file.
        task: The task.
        results: Head to what came of it.
    """
    names = task.class_names
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["split", "row", *task.text_columns, "gold", *results])
        for split, rows in task.splits.items():
            texts = list(zip(*(rows[column] for column in task.text_columns), strict=True))
            for i, label in enumerate(task.labels(split)):
                found = [names[int(result.predictions[split][i])] for result in results.values()]
                writer.writerow([split, i, *texts[i], names[int(label)], *found])


def _defaults(scores: dict[str, Any]) -> list[str]:
    """Say which point each head's gain is measured against."""
    return [
        f"The default of `{name}` is {found['layer']}, C {found['C']:g}: the highest layer and the C nearest 1.\n"
        for name, found in ((name, result.get("default")) for name, result in scores["heads"].items())
        if found
    ]


def _cautions(scores: dict[str, Any]) -> list[str]:
    """Say which numbers are optimistic and why, and what became of the released limit of iterations."""
    lines = [
        f"> `{name}` is **optimistic**: {result['optimistic_because']}.\n"
        for name, result in scores["heads"].items()
        if result["is_optimistic"]
    ]
    for name, result in scores["heads"].items():
        found = result.get("convergence")
        if found and scores["protocol"] == "look-both-ways":
            own, limit = found["chosen"], result["options"]["max_iterations"]
            lines.append(
                f"> `{name}` may take {limit} iterations, the released code's limit; it took {own['n_iterations']} and "
                f"{'converged' if own['is_converged'] else 'did not converge'}. The released code's solver often stops "
                "at that limit unconverged, so where ours converges its weights are a better minimum, not the same.\n"
            )
    return lines


def _growth(scores: dict[str, Any]) -> list[str]:
    """Say what SMOTE added, and which classes were too small for its neighbours."""
    lines = []
    for name, result in scores["heads"].items():
        found = result.get("oversampled")
        if found:
            lines.append(
                f"- `{name}`: SMOTE (`{found['mode']}`) put {found['n_synthetic']:,} rows to {found['n_rows']:,}; "
                f"{len(found['clipped'])} classes have fewer than 5 neighbours, {len(found['duplicated'])} have one "
                "row, which is repeated"
            )
    return lines


def class_summary(scores: dict[str, Any], figures: dict[str, str]) -> str:
    """Write the summary of a run on a classification task.

    Args:
        scores: The content of scores.json.
        figures: Title to file name, relative to the run folder.

    Returns:
        Markdown.
    """
    task, cache, decoder = scores["task"], scores["cache"], scores["decoder"]
    sample = "\n> The task is a **sample** shipped with the project: its scores are no benchmark result.\n"
    lines = [
        f"# {scores['name']}",
        sample if task["is_sample"] else "",
        f"Command: `{scores['command']}`\n",
        markdown_table(class_rows(scores), COLUMNS),
        f"\nScores times 100; the interval is a {scores['n_resamples']}-fold bootstrap over test "
        f"{'groups' if task['has_groups'] else 'rows'}. Chosen on: "
        + "; ".join(f"`{name}` {result['selection']}" for name, result in scores["heads"].items())
        + f" (protocol `{scores['protocol']}`, docs/protocol.md).\n",
        *_defaults(scores),
        *_cautions(scores),
        "## What was used\n",
        f"- Decoder: `{decoder['name']}` ({decoder['family']}, {decoder['n_layers']} blocks, width {decoder['width']}, "
        f"{decoder['dtype']}, weights `{decoder['weight_digest'][:12]}`)",
        f"- Plan `{cache['plan']}`, poolings {', '.join(cache['poolings'])}, BOS policy `{cache['template']['bos']}`",
        f"- Cache: `{cache['file']}`, {cache['n_rows']:,} texts, {cache['n_truncated']} truncated",
        f"- Task: `{task['name']}`, {task['source']}; {task['n_classes']} classes; "
        + ", ".join(f"{split} {n:,}" for split, n in task["n_rows"].items()),
    ]
    lines += [
        f"- `{name}`: {found['n_converged']:,} of {found['n_problems']:,} problems converged, largest gradient norm "
        f"{found['largest_gradient_norm']:.1e}, {found['n_iterations']:,} iterations"
        for name, found in ((name, result.get("convergence")) for name, result in scores["heads"].items())
        if found
    ]
    lines += _growth(scores)
    if task["notes"]:
        lines += ["\n## Mind in the data\n", *(f"- {note}" for note in task["notes"])]
    lines += ["\n## Figures\n", *(f"![{title}]({file})" for title, file in figures.items())]
    return "\n".join(line for line in lines if line) + "\n"
