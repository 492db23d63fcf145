"""The tables of docs/encoders_compared.md and of the README, from the committed JSON.

`python -m benchmarks.training_free_page` writes both; `tests/test_encoders_compared.py` holds them against the JSON.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.training_free import OUT, TASKS

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs" / "encoders_compared.md", ROOT / "README.md")
DECODERS = {"smollm2-135m-instruct": "SmolLM2-135M-Instruct", "gemma-3-270m-q4_k_m": "Gemma-3-270M"}
TITLES = {
    "stsb": "STS-B", "banking77": "Banking77, few shots", "banking77-clusters": "Banking77, clusters",
    "odd-sample": "word sense",
}  # fmt: skip
METRICS = {"pearson": "Pearson", "spearman": "Spearman", "accuracy": "accuracy", "v-measure": "V-measure"}
CERTAIN = 0.05
"""Corrected p-value below which a difference is marked."""


def read_tables() -> dict[str, Any]:
    """Read the results: keyed by decoder and task."""
    found: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8"))
    return found


def of_decoder(results: Mapping[str, Any], decoder: str) -> dict[str, dict[str, Any]]:
    """Take the encoders of every task that a decoder was scored on."""
    found = {task: results.get(f"{decoder} {task}") for task in TASKS}
    return {task: each["encoders"] for task, each in found.items() if each}


def layer_of(row: Mapping[str, Any]) -> str:
    """Write the chosen layer."""
    return str(row["chosen"].get("layer", "")).replace("block_0", "block ").replace("block_", "block ")


def gap_of(row: Mapping[str, Any]) -> str:
    """Write the difference from the plain mean, in bold where it is certain."""
    if "difference" not in row:
        return ""
    gap = f"{100 * row['difference']:+.1f}"
    return f"**{gap}**" if row["bootstrap_corrected"] < CERTAIN else gap


def options_of_row(row: Mapping[str, Any]) -> str:
    """Take what makes an encoder from the options of its run; the prefix that they share is left out."""
    options = str(row["options"]).partition("--extraction.template.bos force ")[2]
    transform = re.search(r"transform: standardise", str(row["options"]))
    return options.replace("--extraction.", "") + (", transform: standardise" if transform else "")


def summary_table(results: Mapping[str, Any], decoder: str) -> Iterator[str]:
    """Write one row per encoder: tokens, test on every task with what it has over the plain mean, and the options."""
    tasks = of_decoder(results, decoder)
    yield f"| {DECODERS[decoder]} | tokens | " + " | ".join(TITLES[task] for task in tasks) + " | `icecore run` with |"
    yield "|---" * (len(tasks) + 3) + "|"
    first = next(iter(tasks.values()))
    for encoder, row in first.items():
        cells = []
        for found in tasks.values():
            own = found.get(encoder)
            cells.append("-" if own is None else f"{100 * own['test']['mean']:.1f} {gap_of(own)}".strip())
        times = row["n_tokens"] / first["mean"]["n_tokens"]
        yield f"| {encoder} | {times:.1f}x | " + " | ".join(cells) + f" | `{options_of_row(row)}` |"


def task_table(encoders: Mapping[str, Any]) -> Iterator[str]:
    """Write one row per encoder on one task: layer, validation, test with its interval, and the paired difference."""
    metric = next(iter(encoders.values()))["metric"]
    yield f"| encoder | layer | validation {METRICS[metric]} | test | 95 % | over plain mean | p, corrected | tokens |"
    yield "|---" * 8 + "|"
    for encoder, row in encoders.items():
        test, gap, p = row["test"], gap_of(row), ""
        if gap:
            gap += f" ({100 * row['low']:.1f} to {100 * row['high']:.1f})"
            p = "< 0.01" if row["bootstrap_corrected"] < 0.01 else f"{row['bootstrap_corrected']:.2f}"
        yield (
            f"| {encoder} | {layer_of(row)} | {100 * row['validation']['mean']:.1f} | {100 * test['mean']:.1f} | "
            f"{100 * test['low']:.1f} to {100 * test['high']:.1f} | {gap} | {p} | {row['n_tokens']:,} |"
        )


def blocks(results: Mapping[str, Any]) -> dict[str, str]:
    """Make every generated table by the name it has in the pages."""
    found = {}
    for decoder in DECODERS:
        tasks = of_decoder(results, decoder)
        if tasks:
            found[f"summary {decoder}"] = summary_table(results, decoder)
        found |= {f"{task} {decoder}": task_table(encoders) for task, encoders in tasks.items()}
    return {name: "\n".join(lines) for name, lines in found.items()}


def filled(page: str, tables: Mapping[str, str]) -> str:
    """Fill a page: each table stands between a comment that names it and one that ends it; other tables stay."""

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}{tables[found[2]]}\n{found[3]}" if found[2] in tables else found[0]

    return re.sub(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", fill, page, flags=re.DOTALL)


def main() -> None:
    """Write the tables into the pages."""
    tables = blocks(read_tables())
    for path in PAGES:
        path.write_text(filled(path.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
