"""What each view of a text adds: finished runs that differ in the views their head reads, or in seeds, in one table.

    python -m benchmarks.views runs/nosink runs/nosink-echo runs/three runs/three-1 --out views.json

The runs are those of `configs/stsb-views.yaml` with the head's `pooling` and `seeds` changed. Runs that read the same
views are one row with the scores of all their seeds; the difference from the first row is paired, on seed 0 of each.
`--by source` adds the gains on the rows of each source. `--layers` is the file of
`icecore layers RUN --views alone --out FILE`: its layers tied with the best are kept.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.machine import describe_machine
from probes.runs.compare import compare


def gather_views(folders: list[Path], head: str) -> list[dict[str, Any]]:
    """Gather the scores of a head by the views that it reads, those with the first folder's views first."""
    runs = {path: json.loads((path / "scores.json").read_text(encoding="utf-8")) for path in folders}
    rows: dict[str, dict[str, Any]] = {}
    for path, scores in runs.items():
        result = scores["heads"][head]
        summary = {split: result["summary"][split][result["metric"]] for split in ("validation", "test")}
        row = rows.setdefault(
            result["pooling"],
            {"views": result["pooling"].split("+"), "first": path, "command": scores["command"], "seeds": []}
            | {"validation": [], "test": [], "interval": [summary["test"]["low"], summary["test"]["high"]]},
        )
        row["seeds"] += [fit["seed"] for fit in result["seeds"]]
        for split, stats in summary.items():
            row[split] += stats["values"]
    first, *others = (row.pop("first") for row in rows.values())
    if not others:
        return list(rows.values())
    compared = compare([first, *others], head=head)
    for row, gain, p_value in zip(list(rows.values())[1:], compared.differences, compared.p_values, strict=True):
        row |= {
            "difference": gain.value,
            "low": gain.low,
            "high": gain.high,
            "p_value": p_value,
            "n_units": gain.n_units,
        }
    return list(rows.values())


def shown(values: list[float]) -> str:
    """Write a score times 100, with the spread over seeds where there are several."""
    spread = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{spread}"


def main() -> None:
    """Gather, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--head", default="siamese-cosine")
    parser.add_argument("--by", default="", help="column of the task whose values are compared by themselves")
    parser.add_argument("--layers", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    rows = gather_views(asked.runs, asked.head)
    scores = json.loads((asked.runs[0] / "scores.json").read_text(encoding="utf-8"))
    kept = {key: scores[key] for key in ("decoder", "versions", "device", "commit")}
    task = {key: scores["task"][key] for key in ("name", "n_rows", "digest")}
    result = {"head": asked.head, "machine": describe_machine(), **kept, "task": task, "rows": rows}
    if asked.by:
        parts = compare(asked.runs, head=asked.head, by=asked.by).part_table
        views = {asked.runs[k].name: "+".join(row["views"]) for k, row in enumerate(rows)}
        parts = parts.assign(views=parts["run"].map(views)).drop(columns=["by", "run"])
        result[f"by_{asked.by}"] = json.loads(parts.to_json(orient="records"))
    if asked.layers:
        layers = pd.read_csv(asked.layers)
        result["tied"] = layers.loc[layers["in_set"], "layer"].tolist()
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        gain = row.get("difference", 0.0)
        print(f"{'+'.join(row['views']):20} {shown(row['validation'])} {shown(row['test'])} {gain:+.4f}")


if __name__ == "__main__":
    main()
