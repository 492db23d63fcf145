"""Searches of a grid against the whole grid, on two real tasks: what is found, how far it is below the best, the cost.

    python -m benchmarks.grid_search stsb --folder searches [--out benchmarks/results/grid-search-stsb.json]

The search runs as `icecore sweep --search` does, then every other point is completed, so that each point has its score
on all rows of train and validation. Regret is how far the found point is below the best there, in points. Cost is in
texts that pass a block, those that points share counted once. Searches at other budgets are replayed on the same
latents. Stopped or killed, the same command goes on, but then seconds are those of the last call alone.
"""

import argparse
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from extract.errors import ConfigError
from probes.data.task import Task
from probes.runs.config_file import as_config
from probes.runs.grid import Grid, grid_of, load_tasks
from probes.runs.grid_search import Search, Trial, search_points
from probes.runs.sweep_caches import Grown, PointCaches
from probes.runs.sweep_run import SearchedGrid, slots_of
from probes.runs.watcher import Watcher

DECODER = "smollm2-135m-instruct"
ENCODERS = {
    "prompt": {"plain": {}, "prompt-eol": {"template": "prompt-eol"}},
    "plan": ["causal", *(f"nosink-bidirectional:{k}" for k in (10, 20, 30)), "bidirectional:30"],
    "poolings": ["mean", "last"],
}
GRIDS: dict[str, dict[str, Any]] = {
    "stsb": {"task": {"name": "stsb", "pairs": 300}, "heads": {"layer-cosine": {}}},
    "banking77": {
        "task": {"name": "banking77", "pairs": 560},
        "heads": {"few-shot-probe": {"layers": "final_norm"}},
    },
}
"""The configurations, each of the grid `ENCODERS`."""
BUDGETS = (0.2, 0.25, 0.35, 0.5)


def make_searched(config: Mapping[str, Any], over: Mapping[str, Any], folder: Path) -> SearchedGrid:
    """Make the grid of a configuration, whose caches and heads are below a folder."""
    places = {"caches": str(folder / "caches"), "runs": str(folder / "runs")}
    record = as_config(
        {"decoder": DECODER, "name": "searched", "bootstrap": 100, **config, **places, "sweep": {"over": dict(over)}}
    )
    grid = grid_of(record).check_heads()
    return SearchedGrid(record, grid, load_tasks(grid), "", slots_of(grid), Watcher(say=print), Grown(), removes=False)


def compare_search(
    searched: SearchedGrid, folder: Path, *, budget: float = 0.25, budgets: tuple[float, ...] = BUDGETS
) -> dict[str, Any]:
    """Search a grid, then score every point on all rows, and replay searches at other budgets."""
    space, score = searched.space, partial(searched.score, folder=folder)
    started = time.process_time()
    search = search_points("halving", space, score, budget=budget)
    score(Trial((search.chosen,), space.n_rows))
    after_search = time.process_time()
    scores = dict(zip(space.points, score(Trial(space.points, space.n_rows)), strict=True))
    finished = time.process_time()
    whole = searched.obtain(searched.grid, searched.judged)

    def read(grid: Grid, tasks: Mapping[str, Task]) -> PointCaches:
        del tasks  # a part of the texts that every cache holds
        return PointCaches({point.label: whole.of[point.label] for point in grid.points})

    replayed = partial(searched.score, folder=folder, obtain=read)
    best = max(scores, key=lambda point: scores[point])
    searches = []
    for share in budgets:
        try:
            searches.append(_describe(search_points("halving", space, replayed, budget=share), scores, share))
        except ConfigError as error:  # too few rows to fit a head on
            print(error)
    return {
        "axes": list(searched.grid.axes),
        "n_points": len(space.points),
        "rows_per_split": space.n_rows,
        "n_texts": space.n_texts(space.n_rows),
        "full_cost": space.full_cost,
        "best": {"point": best, "validation": scores[best]},
        "search": _describe(search, scores, budget),
        "processor_seconds": {
            "search": round(after_search - started, 1),
            "rest_of_the_grid": round(finished - after_search, 1),
        },
        "replayed": searches,
        "scores": scores,
    }


def _describe(search: Search, scores: Mapping[str, float], budget: float) -> dict[str, Any]:
    return {
        "budget": budget,
        "point": search.chosen,
        "validation": scores[search.chosen],
        "regret": 100 * (max(scores.values()) - scores[search.chosen]),
        "share": search.share,
        "trials": [[len(trial.scores), trial.n_rows, trial.cost] for trial in search.trials],
    }


def main() -> None:
    """Compare, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=GRIDS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=0.25)
    parser.add_argument("--rows", type=int, default=None, help="rows per split, in place of those of the grid")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    config, folder = GRIDS[asked.task], asked.folder / asked.task
    if asked.rows is not None:
        config, folder = config | {"task": config["task"] | {"pairs": asked.rows}}, folder / str(asked.rows)
    result = compare_search(make_searched(config, ENCODERS, folder), folder / "heads", budget=asked.budget)
    command = f"python -m benchmarks.grid_search {asked.task} --folder searches --budget {asked.budget:g}"
    command += f" --rows {asked.rows}" if asked.rows is not None else ""
    result = {"command": command, "machine": describe_machine(), **config, "over": ENCODERS, **result}
    for search in (result["search"], *result["replayed"]):
        line = "{budget:.2f} {point:60} {validation:.3f} regret {regret:.2f} share {share:.3f} {trials}"
        print(line.format(**search))
    print(result["best"], result["processor_seconds"])
    if asked.out is not None:
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
