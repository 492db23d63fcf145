"""The table of a run, for the screen and for Markdown."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

COLUMNS = ("head", "pooling", "validation Pearson", "test Pearson", "95 % interval", "test Spearman", "seeds", "epochs")
SCREEN_COLUMNS = ("head", "validation Pearson", "test Pearson", "95 % interval", "test Spearman", "seeds")  # 80 columns


def score_rows(scores: dict[str, Any]) -> list[tuple[str, ...]]:
    """Lay the scores of a run out as rows of text.

    Args:
        scores: The content of scores.json.

    Returns:
        One row per head, in the columns of `COLUMNS`; correlations times 100, mean +- spread over seeds.
    """
    rows: list[tuple[str, ...]] = []
    for name, result in scores["heads"].items():
        summary = result["summary"]
        validation, test = summary["validation"]["pearson"], summary.get("test", {})
        seeds = result["seeds"]
        epochs = ", ".join(str(entry["best_epoch"]) for entry in seeds if entry["best_epoch"])
        label = name + (f" ({result['chosen']['kind']} {result['chosen']['layer']})" if "chosen" in result else "")
        label += " (optimistic)" if result["is_optimistic"] else ""
        rows.append(
            (
                label,
                result["pooling"],
                spread(validation),
                spread(test["pearson"]) if test else "-",
                interval(test["pearson"]) if test else "-",
                spread(test["spearman"]) if test else "-",
                str(len(seeds)) if epochs else "-",
                epochs or "-",
            )
        )
    return rows


def screen_table(scores: dict[str, Any]) -> Table:
    """Make the table for a terminal."""
    rows = [tuple(row[COLUMNS.index(column)] for column in SCREEN_COLUMNS) for row in score_rows(scores)]
    return terminal_table(scores, rows, SCREEN_COLUMNS)


def terminal_table(scores: dict[str, Any], rows: Sequence[tuple[str, ...]], columns: tuple[str, ...]) -> Table:
    """Make a table for a terminal, numbers to the right."""
    title = f"{scores['name']}: {scores['task']['name']} on {scores['decoder']['name']}"
    table = Table(title=title, box=SIMPLE, padding=(0, 1))
    for column in columns:
        table.add_column("\n".join(column.rsplit(" ", 1)), justify="left" if column == "head" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(rows: Sequence[tuple[str, ...]], columns: tuple[str, ...]) -> str:
    """Make a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "|".join("---" for _ in columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def spread(summary: dict[str, Any]) -> str:
    """Write mean and standard deviation over seeds, times 100."""
    mean = f"{100 * summary['mean']:.1f}"
    return f"{mean} ± {100 * summary['std']:.1f}" if len(summary["values"]) > 1 else mean


def interval(summary: dict[str, Any]) -> str:
    """Write the interval, times 100."""
    return f"{100 * summary['low']:.1f} to {100 * summary['high']:.1f}"
