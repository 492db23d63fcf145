"""Which layers matter on real data: `python -m benchmarks.layer_answers RUN...`, after `icecore layers RUN...`.

Writes the answers, with the curve and the set that they rest on, to benchmarks/results/layer_answers.json, and a figure
of each run to docs/figures/layers. Runs that are named again are replaced, others kept.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from extract.records import to_plain
from probes.layers.findings import load_findings
from probes.report.layer_figures import draw_alone, findings_note
from probes.report.scores import without_nan
from probes.report.style import Album, on_panel
from probes.runs.predict import read_run_folder

ROOT = Path(__file__).parent.parent
OUT = ROOT / "benchmarks" / "results" / "layer_answers.json"
FIGURES = ROOT / "docs" / "figures" / "layers"
KEPT = ("alone", "baseline", "greedy", "without", "shapley-group", "v-information", "new-information")


def main() -> None:
    """Record and draw every head of every run that was named."""
    results: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    album = Album(FIGURES, ("png",))
    for folder in map(Path, sys.argv[1:]):
        run = read_run_folder(folder)
        for found in load_findings(folder):
            header, name = run.scores.header, f"{folder.name}_{found.head}".replace("-", "_")
            values = to_plain(replace(found, curves=tuple(curve for curve in found.curves if curve.view in KEPT)))
            results[name] = without_nan(
                {
                    "task": header.task["name"],
                    "n_rows": header.task["n_rows"],
                    "decoder": header.decoder["name"],
                    "plan": run.scores.cache["plan"],
                    **values,
                }
            )
            title = f"{header.task['name']}: every layer alone, {run.scores.cache['plan']}"
            note, frame = findings_note(found), pd.DataFrame(found.rows())
            album.add(name, on_panel(draw_alone), frame, title=title, note=note)
            print(f"{name}: {found.answer}")
    OUT.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
