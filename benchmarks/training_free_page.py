"""The tables of docs/encoders_compared.md, from the committed JSON: `python -m benchmarks.training_free_page`.

Each task of the page is one sweep, `icecore sweep --over encoders`; the JSON holds what was measured, an encoder at a
time. `tests/test_encoders_compared.py` holds the page against the JSON, and the JSON against the preset.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
OUT = ROOT / "benchmarks" / "results" / "training_free.json"
PAGE = ROOT / "docs" / "encoders_compared.md"
TABLE = ROOT / "docs" / "tables" / "encoders.csv"
DECODERS = {"smollm2-135m-instruct": "SmolLM2-135M-Instruct", "gemma-3-270m-q4_k_m": "Gemma-3-270M"}
TITLES = {
    "stsb": "STS-B",
    "banking77": "Banking77, few shots",
    "banking77-clusters": "Banking77, clusters",
    "odd-sample": "word sense",
}
HEADS = {
    "stsb": "layer-cosine",
    "banking77": "few-shot-probe",
    "banking77-clusters": "layer-clusters",
    "odd-sample": "layer-odd",
}
"""Task to the head that scores it without training, or on a few rows."""
ENCODERS = {
    "mean": "mean",
    "mean-standardised": "mean, standardised",
    "last": "last",
    "prompt-eol": "PromptEOL, one word",
    "pretended-cot": "pretended CoT, one word",
    "knowledge": "knowledge, one word",
    "echo-mean": "echo, mean",
    "echo-last": "echo, last",
    "reba-mean": "ReBA-2, mean",
    "reba-last": "ReBA-2, last",
    "token-prepending": "Token Prepending, one word",
    "kv-prefix": "KV prefix, one word",
    "attention-tap": "attention tap, mean",
    "value-tap": "value tap, mean",
    "nosink-sixth": "no sink, top sixth, mean",
    "nosink-third": "no sink, top third, mean",
    "nosink-half": "no sink, top half, mean",
    "nosink-third-standardised": "no sink, top third, mean, standardised",
    "nosink-third-last": "no sink, top third, last",
    "nosink-middle-third": "no sink, middle third, mean",
    "nosink-third-echo": "no sink, top third, echo, mean",
    "nosink-third-cot": "no sink, top third, pretended CoT",
}
"""Value of the axis `encoder` to what the page and the JSON call it."""
CERTAIN = 0.05
"""Corrected p-value below which a difference is marked."""


def read_tables() -> dict[str, Any]:
    """Read the results: keyed by decoder and task."""
    found: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8"))
    return found


def of_decoder(results: Mapping[str, Any], decoder: str) -> dict[str, dict[str, Any]]:
    """Take the encoders of every task that a decoder was scored on."""
    found = {task: results.get(f"{decoder} {task}") for task in HEADS}
    return {task: each["encoders"] for task, each in found.items() if each}


def gap_of(row: Mapping[str, Any]) -> str:
    """Write the difference from the plain mean, in bold where it is certain."""
    if "difference" not in row:
        return ""
    gap = f"{100 * row['difference']:+.1f}"
    return f"**{gap}**" if row["bootstrap_corrected"] < CERTAIN else gap


def command_of(row: Mapping[str, Any]) -> str:
    """Write the command of a run so that a shell can take it."""
    options = re.sub(r"\[([^]]+)\]", r"\1", str(row["options"]))
    return re.sub(r"--heads (\{.*?\}\})", r"--heads '\1'", f"icecore run {options}")


def summary_table(results: Mapping[str, Any], decoder: str) -> Iterator[str]:
    """Write one row per encoder: tokens, and for every task the test score and the difference from the plain mean."""
    tasks = of_decoder(results, decoder)
    titles = " | ".join(f"{TITLES[task]} | over mean" for task in tasks)
    yield f"| {DECODERS[decoder]} | tokens | {titles} |"
    yield "|---" * (2 * len(tasks) + 2) + "|"
    first = next(iter(tasks.values()))
    for encoder, row in first.items():
        cells: list[str] = []
        for encoders in tasks.values():
            scored = encoders.get(encoder)
            cells += ["", ""] if scored is None else [f"{100 * scored['test']['mean']:.1f}", gap_of(scored)]
        times = row["n_tokens"] / first["mean"]["n_tokens"]
        yield f"| {encoder} | {times:.1f}x | {' | '.join(cells)} |"


def command_block(results: Mapping[str, Any]) -> Iterator[str]:
    """Write the command that measures every encoder on a task."""
    yield "```console"
    for decoder in DECODERS:
        for task, head in HEADS.items():
            rows = results[f"{decoder} {task}"]["rows_per_split"] if f"{decoder} {task}" in results else 0
            few = f" --task.pairs {rows}" * bool(rows and not task.endswith("sample"))
            name = f"{decoder}.gguf" if "-q4" in decoder else decoder
            settings = f"--decoder.name {name} --task.name {task}{few} --heads '{{{head}: {{}}}}'"
            yield f"icecore sweep {settings} --over encoders --test all --name {task}-{decoder.partition('-')[0]}"
    yield "```"


def csv_rows(results: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Give one row per decoder, task and encoder, with everything that was measured; scores are not multiplied."""
    yield [
        "decoder",
        "task",
        "encoder",
        "layer",
        "metric",
        "validation",
        "test",
        "test_low",
        "test_high",
        "over_mean",
        "over_mean_low",
        "over_mean_high",
        "p_corrected",
        "n_tokens",
        "command",
    ]
    for decoder in DECODERS:
        for task, encoders in of_decoder(results, decoder).items():
            for encoder, row in encoders.items():
                scores = [row["validation"]["mean"], *(row["test"][name] for name in ("mean", "low", "high"))]
                scores += [row.get(name) for name in ("difference", "low", "high", "bootstrap_corrected")]
                rounded = ["" if score is None else f"{score:.4f}" for score in scores]
                layer = row["chosen"].get("layer", "")
                yield [decoder, task, encoder, layer, row["metric"], *rounded, row["n_tokens"], command_of(row)]


def csv_text(results: Mapping[str, Any]) -> str:
    """Write the table of every decoder, task and encoder."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(csv_rows(results))
    return text.getvalue()


def blocks(results: Mapping[str, Any]) -> dict[str, str]:
    """Make every generated table by the name it has in the pages."""
    tables = {f"summary {decoder}": summary_table(results, decoder) for decoder in DECODERS}
    tables["commands"] = command_block(results)
    return {name: "\n".join(lines) for name, lines in tables.items()}


def filled(page: str, tables: Mapping[str, str]) -> str:
    """Fill a page: each table stands between a comment that names it and one that ends it; other tables stay."""

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}{tables[found[2]]}\n{found[3]}" if found[2] in tables else found[0]

    return re.sub(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", fill, page, flags=re.DOTALL)


def main() -> None:
    """Write the tables into the page, and the long one beside it."""
    results = read_tables()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks(results)), encoding="utf-8")
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(csv_text(results), encoding="utf-8")


if __name__ == "__main__":
    main()
