"""The Markdown summary of a run folder."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from probes.report.table import COLUMNS, interval, markdown_table, score_rows, spread
from probes.tasks.pairs.leakage import SUBSETS


def reported_split(of_splits: Iterable[str]) -> str:
    """Choose the split that a report speaks of: test, or validation where there is no test."""
    return "test" if "test" in set(of_splits) else "validation"


def summary_text(scores: dict[str, Any], figures: dict[str, str], worst: Mapping[str, list[dict[str, Any]]]) -> str:
    """Write the summary of a run.

    Args:
        scores: The content of scores.json.
        figures: Title to file name, relative to the run folder.
        worst: Head to the rows with its largest residuals.

    Returns:
        Markdown.
    """
    task, cache, decoder = scores["task"], scores["cache"], scores["decoder"]
    sample = "\n> The task is a **sample** shipped with the project: its scores are no benchmark result.\n"
    parts = [
        f"# {scores['name']}",
        sample if task["is_sample"] else "",
        f"Command: `{scores['command']}`\n",
        markdown_table(score_rows(scores), COLUMNS),
        "\nCorrelations are of the whole split, times 100; mean ± standard deviation over seeds. The interval is a "
        f"{scores['n_resamples']}-fold bootstrap over test pairs. {_choice(scores)}\n",
        "## What was used\n",
        f"- Decoder: `{decoder['name']}` ({decoder['family']}, {decoder['n_layers']} blocks, width {decoder['width']}, "
        f"{decoder['dtype']}, weights `{decoder['weight_digest'][:12]}`, revision `{decoder['revision'] or 'local'}`)",
        f"- Plan `{cache['plan']}`, poolings {', '.join(cache['poolings'])}, BOS policy `{cache['template']['bos']}`, "
        f"instruction {cache['template']['instruction']!r}",
        f"- Cache: `{cache['file']}`, {cache['n_rows']:,} texts, identity `{cache['id'][:12]}`, "
        f"{cache['n_truncated']} truncated",
        f"- Task: `{task['name']}`, {task['source']}; "
        + ", ".join(f"{split} {n:,}" for split, n in task["n_pairs"].items()),
        f"- {_machine(scores)}",
    ]
    if task["notes"]:
        parts += ["\n## Mind in the data\n", *(f"- {note}" for note in task["notes"])]
    identical = [
        f"- `{name}`: " + ", ".join(_number(entry["identical_similarity"]) for entry in result["seeds"])
        for name, result in scores["heads"].items()
    ]
    parts += _pretraining_lines(scores)
    parts += _subset_lines(scores)
    parts += _residual_lines(scores, worst)
    parts += [
        "\n## Prediction for a text paired with itself\n",
        "Before calibration, in [0, 1], per seed. A cosine head gives all identical pairs this one constant.\n",
        *identical,
        "\n## Figures\n",
        *(f"![{title}]({file})" for title, file in figures.items()),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def pretraining_text(scores: dict[str, Any], figures: dict[str, str]) -> str:
    """Write the summary of autoencoders that were fitted by themselves.

    Args:
        scores: The content of scores.json.
        figures: Title to file name, relative to the run folder.

    Returns:
        Markdown.
    """
    parts = [f"# {scores['name']}", f"Command: `{scores['command']}`", *_pretraining_lines(scores), ""]
    parts += [f"- {_machine(scores)}", "", *(f"![{title}]({file})" for title, file in figures.items())]
    return "\n".join(parts) + "\n"


def _choice(scores: dict[str, Any]) -> str:
    if not any(result["is_optimistic"] for result in scores["heads"].values()):
        return (
            "Epoch, layer and kind were chosen on validation; nothing was chosen on test (protocol `icecore`, "
            "docs/protocol.md)."
        )
    return (
        f"**Optimistic**: protocol `{scores['protocol']}` chooses the epoch of every trained head on the very test "
        "split that is reported, to compare with a paper that did (docs/protocol.md)."
    )


def _number(value: float | None) -> str:
    return "depends on the text" if value is None else f"{value:.3f}"


def _pretraining_lines(scores: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for pooling, found in scores["pretraining"]["autoencoders"].items():
        losses = found["held_out_losses"]
        lines.append(
            f"- `{pooling}`: codes of {', '.join(map(str, dict.fromkeys(found['codes'])))}, "
            f"{found['n_texts']['train']:,} texts, {_epochs(found)}; share of the "
            f"variance lost on {found['n_texts']['held_out']:,} held-out texts: {sum(losses) / len(losses):.3f} on "
            f"average, {min(losses):.3f} ({found['layers'][losses.index(min(losses))]}) to {max(losses):.3f} "
            f"({found['layers'][losses.index(max(losses))]})"
        )
    return ["\n## Layer-wise autoencoders\n", *lines] if lines else []


def _epochs(found: dict[str, Any]) -> str:
    """Tell which epochs the layers kept."""
    first, last = min(found["best_epochs"]), max(found["best_epochs"])
    kept = f"epoch {last}" if first == last else f"epochs {first} to {last}"
    return f"{kept} of {len(found['history'])}"


def _subset_lines(scores: dict[str, Any]) -> list[str]:
    counts = {name: found["n"] for result in scores["heads"].values() for name, found in result["subsets"].items()}
    shown = [name for name, n in counts.items() if 0 < n < counts["full"]]
    if not shown:
        return []
    rows = []
    for head, result in scores["heads"].items():
        cells = [result["subsets"][name].get("pearson") for name in shown]
        rows.append((head, *(f"{spread(cell)} ({interval(cell)})" if cell else "-" for cell in cells)))
    return [
        "\n## Subsets of test\n",
        "Test Pearson with its interval; `-` where a subset has fewer rows than a correlation needs.\n",
        markdown_table(rows, ("head", *(f"{name}, {counts[name]:,} rows" for name in shown))),
        "",
        *(f"- {name}: {SUBSETS[name]}" for name in shown),
    ]


def _residual_lines(scores: dict[str, Any], worst: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    lines = ["\n## Where the heads are wrong\n"]
    rows = []
    for name, result in scores["heads"].items():
        split = reported_split(result["residuals"])
        found = result["residuals"][split]
        against = found["size_against"]
        rows.append(
            (
                name, split, f"{found['mean_absolute']:.2f}", f"{found['root_mean_square']:.2f}",
                f"{found['bias']:+.2f}", *(f"{against[side]:+.2f}" for side in ("n_words", "overlap", "gold")),
                f"{found['prediction_against_overlap']:+.2f} ({found['gold_against_overlap']:+.2f})",
            )
        )  # fmt: skip
    columns = (
        "head", "split", "mean abs. error", "RMSE", "bias", "size vs length", "size vs overlap", "size vs gold",
        "prediction vs overlap (gold)",
    )  # fmt: skip
    lines.append(markdown_table(rows, columns))
    lines.append(
        "\nIn the units of the gold, after calibration on validation; `vs` is a Pearson correlation. Every prediction "
        "is in predictions.csv."
    )
    best = max(scores["heads"], key=lambda name: _validation(scores["heads"][name]))
    table = [
        (f"{row['gold']:.1f}", f"{row['predicted']:.1f}", _cell(row["sentence1"]), _cell(row["sentence2"]))
        for row in worst[best]
    ]
    lines += [f"\nFurthest off, `{best}`:\n", markdown_table(table, ("gold", "predicted", "first", "second"))]
    return lines + _quarter_lines(best, scores["heads"][best]["residuals"])


def _quarter_lines(head: str, residuals: dict[str, Any]) -> list[str]:
    split = reported_split(residuals)
    rows = []
    for name, label, digits in (("n_words", "words in both texts", 0), ("overlap", "lexical overlap", 2)):
        for part in residuals[split]["quarters"][name]:
            r = "-" if math.isnan(part["pearson"]) else f"{100 * part['pearson']:.1f}"
            span = f"{part['low']:.{digits}f} to {part['high']:.{digits}f}"
            rows.append((label, span, f"{part['n']:,}", r, f"{part['mean_absolute']:.2f}"))
    return [
        f"\nBy length and by lexical overlap, in quarters (pairs of equal value stay together), `{head}` on {split}:\n",
        markdown_table(rows, ("by", "from", "pairs", "Pearson", "mean abs. error")),
    ]


def _validation(result: dict[str, Any]) -> float:
    mean = float(result["summary"]["validation"]["pearson"]["mean"])
    return -2.0 if math.isnan(mean) else mean


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _machine(scores: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in scores["versions"].items())
    return f"Commit `{scores['commit'] or 'not a checkout'}`, device `{scores['device']}`, {versions}"
