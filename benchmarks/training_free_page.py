"""The tables of docs/encoders_compared.md, from the committed JSON: `python -m benchmarks.training_free_page [SWEEP]`.

Each task of the page is one sweep, `icecore sweep --over encoders --test all`, whose folder puts its numbers into the
JSON. `tests/test_encoders_compared.py` holds the page against the JSON, and the JSON against the preset.
"""

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from probes.report import style
from probes.report.document import EVERY_PLAN

ROOT = Path(__file__).parent.parent
OUT = ROOT / "benchmarks" / "results" / "training_free.json"
SOME = ROOT / "benchmarks" / "results" / "training_free_some.json"
"""Of tasks that some of the encoders were read with."""
PICTURE = ROOT / "docs" / "figures" / "transfer.png"
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
READ_ON = {
    "stsb": "STS-B",
    "snli-triples": "SNLI, triples",
    "banking77": "Banking77, few shots",
    "banking77-clusters": "Banking77, clusters",
    "pubmedqa": "PubMedQA",
    "odd-sample": "word sense",
}
"""Tasks on which an encoder is chosen and read, in the table of transfer."""
DRAWN = {
    "PromptEOL, one word": "PromptEOL",
    "no sink, top third, mean": "masks, top third",
    "echo, mean": "echo",
    "no sink, top third, echo, mean": "echo and masks",
}
"""Encoders of the picture, with their labels there."""
CERTAIN = 0.05
"""Corrected p-value below which a difference is marked."""


def read_tables() -> dict[str, Any]:
    """Read the results: keyed by decoder and task."""
    found: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8"))
    return found


def read_transfer() -> dict[str, Any]:
    """Read the results of all tasks that the table of transfer has."""
    some: dict[str, Any] = json.loads(SOME.read_text(encoding="utf-8"))
    return read_tables() | some


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


def transfer_table(results: Mapping[str, Any], decoder: str) -> Iterator[str]:
    """Write one row per task to choose on: the encoder that is best on its validation, and its gains on all tasks.

    Only encoders that some other task was read with are chosen among.
    """
    tasks = {task: results[f"{decoder} {task}"]["encoders"] for task in READ_ON if f"{decoder} {task}" in results}
    yield f"| chosen on | encoder of {DECODERS[decoder]} | {' | '.join(READ_ON[task] for task in tasks)} |"
    yield "|---" * (len(tasks) + 2) + "|"
    for chosen_on, encoders in tasks.items():
        others = [read for name, read in tasks.items() if name != chosen_on]
        shared = [encoder for encoder in encoders if any(encoder in read for read in others)]
        best = max(shared, key=lambda encoder: encoders[encoder]["validation"]["mean"])
        cells = [gain_of(read.get(best)) for read in tasks.values()]
        yield f"| {READ_ON[chosen_on]} | {best} | {' | '.join(cells)} |"


def gain_of(row: Mapping[str, Any] | None) -> str:
    """Write the difference from the plain mean with its interval, in bold where the interval leaves out 0."""
    if row is None or "difference" not in row:
        return "" if row is None else "0"
    low, high = 100 * row["low"], 100 * row["high"]
    gap = f"{100 * row['difference']:+.1f}"
    return f"{f'**{gap}**' if low * high > 0 else gap} ({low:.1f} to {high:.1f})"


def drawn_tasks(results: Mapping[str, Any]) -> dict[str, str]:
    """Name the tasks of the picture: those with rows enough, on every decoder."""
    is_there = {task: all(f"{decoder} {task}" in results for decoder in DECODERS) for task in READ_ON}
    return {task: title for task, title in READ_ON.items() if is_there[task] and task != "odd-sample"}


def draw_gains(figure: Figure, results: Mapping[str, Any]) -> None:
    """Draw the gains of four encoders over the plain mean on every task, a marker for each decoder."""
    tasks = drawn_tasks(results)
    places = range(len(DRAWN), 0, -1)
    panels = style.panels(figure, 1, len(tasks), sharey=True)
    for axes, (task, title) in zip(panels, tasks.items(), strict=True):
        for decoder, colour, shift in zip(DECODERS, (style.BLUE, style.ORANGE), (0.15, -0.15), strict=True):
            rows = [results[f"{decoder} {task}"]["encoders"].get(encoder) for encoder in DRAWN]
            for place, row in zip(places, rows, strict=True):
                if row is not None:
                    gain, low, high = (100 * row[name] for name in ("difference", "low", "high"))
                    axes.plot([low, high], [place + shift] * 2, color=colour, linewidth=1)
                    axes.plot(gain, place + shift, "o", color=colour, markersize=4)
        axes.axvline(0, color=style.GREY, linewidth=0.8)
        axes.set_title(title, fontsize=8)
        axes.set_ylim(-0.4, len(DRAWN) + 0.5)
    panels[0].set_yticks(places, DRAWN.values())
    for decoder, colour, y in zip(DECODERS.values(), (style.BLUE, style.ORANGE), (0.09, 0.02), strict=True):
        panels[0].text(0.97, y, decoder, color=colour, fontsize=7, ha="right", transform=panels[0].transAxes)


def _count_test(results: Mapping[str, Any], task: str) -> str:
    """Count the test rows of a task, on every decoder where they differ."""
    of_task = [results[f"{decoder} {task}"] for decoder in DECODERS]
    return " and ".join(dict.fromkeys(str(result.get("n_test", result["rows_per_split"])) for result in of_task))


def make_picture(results: Mapping[str, Any]) -> Figure:
    """Make the picture of what holds on more than one task and decoder."""
    n_rows = ", ".join(f"{title} {_count_test(results, task)}" for task, title in drawn_tasks(results).items())
    note = f"Gain over the plain mean, x 100, with 95 % intervals over test rows ({n_rows}); layer chosen on validation"
    title = "Nothing trained: what another reading of the same texts gains, by task and decoder"
    return style.make_figure(draw_gains, results, title=title, note=note, size=(7.2, 2.6))


def read_sweep(folder: Path, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Take what a sweep over encoders with `--test all` says of every encoder; `before` has commands of single runs.

    Of two candidates a mean average precision of `x` is a share of `2 x - 1` that are right.
    """
    record = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    if record["test_read"] != EVERY_PLAN or record["grid"]["failed"]:
        raise ValueError(f"{folder} has points that failed or were not read on test; run it with --test all.")
    settings = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    rows_per_split = settings["task"].get("pairs", 0)
    gaps = {gap["point"]["encoder"]: gap for gap in record["grid"]["gaps"]}
    is_share = record["task"]["name"] == "snli-triples"
    times, less = (2, 1) if is_share else (1, 0)
    encoders = {}
    for point in record["plans"]:
        name, [(head, result)] = point["point"]["encoder"], point["heads"].items()
        row = {"head": head, "metric": "share of triples" if is_share else result["metric"], "chosen": result["chosen"]}
        for split in ("validation", "test"):
            score = result["summary"][split][result["metric"]]
            row[split] = {end: round(times * score[end] - less, 6) for end in ("mean", "low", "high")}
        if gap := gaps.get(name):
            ends = {end: round(times * gap[end], 6) for end in ("value", "low", "high")}
            row |= {"difference": ends.pop("value"), **ends, "bootstrap_corrected": gap["p_corrected"]}
        if before:
            options = before["encoders"][ENCODERS[name]]["options"]
            row["options"] = re.sub(r"--task.pairs \d+", f"--task.pairs {rows_per_split}", options)
        encoders[ENCODERS[name]] = row | {"n_tokens": point["n_tokens"]}
    program = {name: record[name] for name in ("command", "commit", "versions", "products") if name in record}
    program["command"] = re.sub(r" --(runs|caches) \S+|(?<=--decoder\.name )\S*/", "", program["command"])
    by_source = [transfer for transfer in record["grid"]["transfers"] if transfer["over"] == "sources"]
    about = {"rows_per_split": rows_per_split, "n_test": record["task"]["n_rows"]["test"]}
    baselines = {}
    for name, baseline in record.get("baselines", {}).items():
        [test] = baseline["summary"]["test"].values()
        over = {
            head: {end: round(times * lead[end], 6) for end in ("value", "low", "high")}
            for head, lead in baseline["leads"].items()
        }
        baselines[name] = {"test": round(times * test["mean"] - less, 6), "chosen_over_it": over}
    return {**about, "encoders": encoders, "baselines": baselines, "by_source": by_source, **program}


def add_sweep(folder: Path) -> None:
    """Put what a sweep says into the JSON of its task."""
    record = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    file = OUT if record["task"]["name"] in HEADS else SOME
    results = json.loads(file.read_text(encoding="utf-8"))
    key = f"{record['decoder']['name'].removesuffix('.gguf')} {record['task']['name']}"
    results[key] = read_sweep(folder, results[key] if file is OUT else None)
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def command_block(results: Mapping[str, Any]) -> Iterator[str]:
    """Write the command that measures every encoder of the first decoder on a task."""
    decoder, *_ = DECODERS
    yield "```console"
    for task, head in HEADS.items():
        rows = results[f"{decoder} {task}"]["rows_per_split"] if f"{decoder} {task}" in results else 0
        few = f" --task.pairs {rows}" * bool(rows and not task.endswith("sample"))
        settings = f"--decoder.name {decoder} --task.name {task}{few} --heads '{{{head}: {{}}}}'"
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
    transfer = read_transfer()
    tables |= {f"transfer {decoder}": transfer_table(transfer, decoder) for decoder in DECODERS}
    tables["commands"] = command_block(results)
    return {name: "\n".join(lines) for name, lines in tables.items()}


def filled(page: str, tables: Mapping[str, str]) -> str:
    """Fill a page: each table stands between a comment that names it and one that ends it; other tables stay."""

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}{tables[found[2]]}\n{found[3]}" if found[2] in tables else found[0]

    return re.sub(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", fill, page, flags=re.DOTALL)


def main() -> None:
    """Take in the folders of sweeps, if any, and write the tables into the page, and the long one beside it."""
    for folder in sys.argv[1:]:
        add_sweep(Path(folder))
    results = read_tables()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks(results)), encoding="utf-8")
    style.save_figure(make_picture(read_transfer()), PICTURE, file_format="png")
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(csv_text(results), encoding="utf-8")


if __name__ == "__main__":
    main()
