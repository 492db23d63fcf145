"""Generated tables of docs/results.md and the figure of merges: `python -m benchmarks.results_page [SWEEP ...]`.

A SWEEP is the folder of one over ratios of the decoder and an adapter, `merge-TASK-sweep`, whose scores go into the
JSON of merges. Beside it is `nosink-TASK`, a run of the decoder alone on the same rows under its best plan.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.curves import read_results
from benchmarks.training_free_page import ROOT, filled
from benchmarks.views import shown
from probes.report import style
from probes.report.sweep_figures import draw_numbers

PAGE = ROOT / "docs" / "results.md"
MERGES = ROOT / "benchmarks" / "results" / "merges-smollm2.json"
CURVES = ROOT / "docs" / "figures" / "merges.png"
MERGED = {"stsb": "STS-B, cosine", "wnut17": "WNUT-17", "ud-ewt": "UD-EWT"}
"""Tasks of the figure of merges, by the start of their names."""
TITLES = {"stsb": "STS-B", "banking77": "Banking77", "wnut17_ner": "WNUT-17", "ud_ewt_pos": "UD-EWT"}
PROBED = {
    "stsb layer-cosine": "STS-B, cosine of the best layer",
    "stsb siamese-cosine": "STS-B, siamese head",
    "wnut17 token-classifier": "WNUT-17, span F1",
    "ud-ewt token-classifier": "UD-EWT, accuracy",
    "conll2000 token-classifier": "CoNLL-2000 chunks, span F1",
}
"""Probes of adapters to their columns."""
LEVEL = 0.05
"""Of a corrected p-value, below which a difference is bold."""
NUMBER = r"([+-]?[\d.]+)"
READOUT = re.compile(
    rf"A readout of all layers has {NUMBER}, one of (\w+) alone {NUMBER} \({NUMBER}, {NUMBER} to {NUMBER}\)"
)
ENOUGH = re.compile(r"(\d+) layers \(|(\d+) picked layers still lack")
LOSS = re.compile(rf"(?:Without (\w+) it loses most,|at most) {NUMBER} \({NUMBER} to {NUMBER}\)")


def short(layer: str) -> str:
    """Write a layer as a number where it is a block."""
    return layer.removeprefix("block_").lstrip("0") or layer


def stretches(layers: list[str], order: list[str]) -> str:
    """Write layers as stretches of neighbours."""
    runs: list[list[str]] = []
    for layer in sorted(layers, key=order.index):
        if runs and order.index(layer) == order.index(runs[-1][-1]) + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs]
    return ", ".join(re.sub(r"block_0*", "", part).replace("final_norm", "final norm") for part in parts)


def layer_rows() -> Iterator[str]:
    """Write the layers that are tied for the best, the best one's score, a readout of all, and the largest loss."""
    yield "| task | plan | tied for best | best alone | all layers | over one layer | enough | most lost |"
    yield "|---" * 8 + "|"
    for name, answer in read_results("layer_answers").items():
        [alone] = [curve for curve in answer["curves"] if curve["view"] == "alone"]
        index = alone["layers"].index(answer["best"])
        value, low, high = (100 * alone[side][index] for side in ("values", "low", "high"))
        readout, enough, loss = (_match(pattern, answer) for pattern in (READOUT, ENOUGH, LOSS))
        task = next(title for key, title in TITLES.items() if name.startswith(key))
        without = f"block {short(loss[1])}: " if loss[1] else ""
        yield (
            f"| {task} | `{answer['plan']}` | {stretches(answer['best_set'], answer['layers'])} | "
            f"{value:.1f} ({low:.1f} to {high:.1f}) | {readout[1]} | {readout[4]} ({readout[5]} to {readout[6]}) | "
            f"{enough[1] or f'more than {enough[2]}'} | {without}{loss[2]} ({loss[3]} to {loss[4]}) |"
        )


def _match(pattern: re.Pattern[str], answer: dict[str, Any]) -> re.Match[str]:
    match = pattern.search(answer["answer"].partition(" on test")[2])
    if match is None:
        raise ValueError(f"no {pattern.pattern!r} in {answer['answer']!r}")
    return match


def view_rows(file: str) -> Iterator[str]:
    """Write what a head scores on one, two and three views, and the gain over the first."""
    yield "| views | validation | test | 95 % interval | over the first |"
    yield "|---" * 5 + "|"
    for row in read_results(file)["rows"]:
        low, high = (100 * value for value in row["interval"])
        gain = (
            "{difference:+.1f} ({low:.1f} to {high:.1f})".format(
                **{name: 100 * row[name] for name in ("difference", "low", "high")}
            )
            if "difference" in row
            else ""
        )
        scores = f"{shown(row['validation'])} | {shown(row['test'])} | {low:.1f} to {high:.1f}"
        yield f"| {', '.join(row['views'])} | {scores} | {gain} |"


def source_rows(file: str) -> Iterator[str]:
    """Write what views give on the rows of each source of STS-B over the plain mean, in bold what is certain."""
    parts = pd.DataFrame(read_results(file)["by_source"])
    names = list(dict.fromkeys(parts["views"]))
    yield f"| source | rows | {names[0]} | {' | '.join(name.replace('+', ', ') for name in names[1:])} |"
    yield "|---" * (2 + len(names)) + "|"
    for source, rows in parts.groupby("value", sort=False):
        gains = list((100 * rows[["difference", "low", "high"]].iloc[1:]).itertuples(index=False))
        marks = ["**" * (gain.low > 0) for gain in gains]
        cells = [f"{m}{g.difference:+.1f}{m} ({g.low:.1f} to {g.high:.1f})" for m, g in zip(marks, gains, strict=True)]
        first = rows.iloc[0]
        yield f"| {source} | {first['units']} | {100 * first['score']:.1f} | {' | '.join(cells)} |"


WORD_VIEWS = {
    "wnut17-views": "WNUT-17, span F1, `token-classifier`",
    "wnut17-views-mix": "WNUT-17, span F1, `token-mix`",
    "ud-ewt-views": "UD English EWT, accuracy, `token-classifier`",
}


def word_view_rows() -> Iterator[str]:
    """Write what heads of words score on one view and on several."""
    head, line, *_ = view_rows("ud-ewt-views")
    yield f"| task, metric, head {head}"
    yield f"|---{line}"
    for file, what in WORD_VIEWS.items():
        _, _, first, *rest = view_rows(file)
        yield f"| {what} {first}"
        yield from (f"| {row}" for row in rest)


def adapted_rows(file: str) -> Iterator[str]:
    """Write what a decoder and its adapters can do: held-out loss, perplexity of spans by plan, repetition.

    The decoder's scores have their own intervals, those of adapters the paired difference from the decoder's.
    """
    results = read_results(file)
    cells = {(row["system"], row["ability"], row["plan"]): row for row in results["abilities"]}
    spans = "infilling-perplexity"
    columns = ("held-out loss", "infilling, `causal`", "infilling, `hybrid`", "`hybrid` over `causal`", "Rep-4 x 100")
    yield f"| decoder | {' | '.join(columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    for system in dict.fromkeys(row["system"] for row in results["abilities"]):
        one, both, rep = (cells[system, *key] for key in ((spans, "causal"), (spans, "hybrid"), ("rep-4", "causal")))
        is_first = system not in results["adapters"]
        scores = [_ability(row, times, is_first=is_first) for row, times in ((one, 1), (both, 1), (rep, 100))]
        gap, low, high = both["over_own_causal"]
        scores.insert(2, f"{gap:+.1f} ({low:.1f} to {high:.1f})")
        adapter = results["adapters"].get(system)
        yield f"| {_name_adapter(adapter)} | {_held_out(results, system)} | {' | '.join(scores)} |"


def _ability(row: dict[str, Any], times: int, *, is_first: bool) -> str:
    """Write a score with the paired difference from the decoder as it is; of the decoder itself with its interval."""
    ends = [row["low"], row["high"]] if is_first else row["difference"]
    *gap, low, high = (times * end for end in ends)
    return f"{times * row['value']:.1f} ({''.join(f'{value:+.1f}, ' for value in gap)}{low:.1f} to {high:.1f})"


def _held_out(results: dict[str, Any], system: str) -> str:
    """Write the held-out loss before and after; of an adapter that is gone, that of the one trained beside, if any."""
    first, *_ = results["adapters"].values()
    for adapters in (results["adapters"], results.get("beside", {}).get("adapters", {})):
        if held_out := adapters.get(system, {}).get("held_out"):
            before = held_out.get("before") or first["held_out"]["before"]  # of the same rows and objectives
            objective = "mntp" if "mntp" in held_out["kept"] else "mtp"
            return f"{before[objective]:.2f} to {held_out['kept'][objective]:.2f}"
    return ""


def _name_adapter(adapter: dict[str, Any] | None) -> str:
    """Name an adapter by its steps, and by its seed where it is another than the first."""
    if adapter is None:
        return "as it is"
    *others, last = [f"`{name}`" for name in adapter["objectives"]]
    objectives = f"{', '.join(others)} and {last}" if others else last
    seed = f", seed {adapter['seed']}" if adapter["seed"] else ""
    return f"{adapter['steps']} steps of {objectives}{seed}"


def adapted_probe_rows(file: str, *, is_beside: bool = False) -> Iterator[str]:
    """Write what probes of a decoder and its adapters score, and how that differs from the best plan untrained.

    `is_beside` is for those of a second device.
    """
    results = read_results(file)
    tasks = results["beside"]["tasks"] if is_beside else results["tasks"]
    columns = {name: title for name, title in PROBED.items() if tasks.get(name)}
    cells = {(row["run"], name): row for name in columns for row in tasks[name]}
    yield f"| decoder | plan | {' | '.join(columns.values())} |"
    yield "|---" * (2 + len(columns)) + "|"
    for system in [*results["plans"], *results["adapters"]]:
        rows = [cells.get((system, name)) for name in columns]
        if any(rows):
            plan = next(row["plan"] for row in rows if row)
            written = " | ".join(_score(row) if row else "" for row in rows)
            yield f"| {_name_adapter(results['adapters'].get(system))} | `{plan}` | {written} |"


def _score(row: dict[str, Any]) -> str:
    """Write a test score with the paired difference from the reference, bold where it is certain; or its interval."""
    score, (low, high) = f"{100 * row['test']:.1f}", (100 * end for end in row["interval"])
    if row["low"] is None:
        return f"{score} ({low:.1f} to {high:.1f})"
    gap, low, high = (100 * row[name] for name in ("difference", "low", "high"))
    text = f"{gap:+.1f}"
    return f"{score}, {f'**{text}**' if row['p_value'] < LEVEL else text} ({low:.1f} to {high:.1f})"


def tables() -> dict[str, str]:
    """Make the tables by their names on the page."""
    rows = {"layers": layer_rows(), "views gemma": view_rows("stsb-views-gemma")}
    for decoder in ("smollm2", "gemma"):
        rows[f"adapted {decoder}"] = adapted_rows(f"adapted-{decoder}")
        rows[f"adapted probes {decoder}"] = adapted_probe_rows(f"adapted-{decoder}")
        rows[f"adapted probes {decoder} beside"] = adapted_probe_rows(f"adapted-{decoder}", is_beside=True)
    rows |= {"views smollm2": view_rows("stsb-views-smollm2"), "views banking77": view_rows("banking77-views")}
    rows |= {f"joined {decoder}": view_rows(f"stsb-views-{decoder}-joined") for decoder in ("gemma", "smollm2")}
    rows |= {"views words": word_view_rows(), "views sources": source_rows("stsb-views-sources")}
    rows |= {"views sources gemma": source_rows("stsb-views-gemma-sources")}
    return {name: "\n".join(lines) for name, lines in rows.items()}


def read_merges(folder: Path) -> tuple[str, dict[str, Any]]:
    """Take the task of a sweep over ratios, its scores, their differences from ratio 0, and those of the run beside."""
    frame = pd.read_csv(folder / "points.csv", dtype={"ratio": str})
    scores = frame[(frame["record"] == "score") & frame["split"].isin(["validation", "test"])]
    scores = scores[scores["metric"] == scores["metric"].iloc[0]]
    columns = [
        "ratio",
        "split",
        "metric",
        "value",
        "low",
        "high",
        "is_chosen",
        "gap",
        "gap_low",
        "gap_high",
        "p_corrected",
    ]
    record = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    program = {name: record[name] for name in ("command", "commit", "versions")}
    program["n_test"] = record["task"]["n_rows"]["test"]
    rows = json.loads(scores[columns].round(6).to_json(orient="records"))
    beside = folder.with_name(folder.name.replace("merge-", "nosink-").removesuffix("-sweep"))
    untrained = json.loads((beside / "scores.json").read_text(encoding="utf-8"))
    [result] = untrained["heads"].values()
    if untrained["task"]["digest"] != record["task"]["digest"]:
        raise ValueError(f"{beside} has other rows than {folder}; run it with the same task.")
    summary = result["summary"]["test"][result["metric"]]
    score = {end: round(summary[end], 6) for end in ("mean", "low", "high")}
    program["untrained"] = {"command": untrained["command"], "commit": untrained["commit"], **score}
    return str(scores["task"].iloc[0]), {"rows": rows, **program}


def draw_merges(figure: Figure, results: dict[str, Any]) -> None:
    """Draw the score of every ratio with its interval, a panel per task; rings are at what validation chose."""
    panels = style.panels(figure, 1, len(results))
    for panel, (task, merges) in zip(panels, results.items(), strict=True):
        draw_numbers(panel, pd.DataFrame(merges["rows"]))
        panel.axhline(100 * merges["untrained"]["mean"], color=style.GREY, linewidth=0.9, linestyle="--")
        panel.set_title(next(title for start, title in MERGED.items() if task.startswith(start)), fontsize=9)
        panel.set_xlabel("weight of the adapted decoder")


def main() -> None:
    """Take in the folders of sweeps over ratios, if any, and write the tables into the page and the figure."""
    if len(sys.argv) > 1:
        merges = dict(read_merges(Path(folder)) for folder in sys.argv[1:])
        MERGES.write_text(json.dumps(merges, indent=1) + "\n", encoding="utf-8")
    if MERGES.is_file():
        title = "Merges of SmolLM2-135M with its adapted self, under bidirectional attention"
        note = "rings: chosen on validation; bands: 95 % over rows; dashed: test, untrained, best plan"
        figure = style.make_figure(draw_merges, read_results("merges-smollm2"), title=title, note=note, size=(7.2, 2.6))
        style.save_figure(figure, CURVES, file_format="png")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
