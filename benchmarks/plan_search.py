"""Searches for a mask plan against the full grid, replayed on the caches of a finished sweep: nothing is extracted.

    python -m benchmarks.plan_search RUNS/NAME-sweep --caches CACHES [--layers final_norm] [--budgets 0.1 0.25]

Every plan is scored on all rows (train and validation), to find what the grid would choose, and on the rows that a
search asks for. Regret is how far the found plan is below the best on validation, in points.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from extract.decoders.decoder_spec import DecoderSpec
from extract.files import digest_rows
from extract.inputs.joined_text import digest_texts
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import MaskPlan, parse_plan
from extract.run.extraction import unique_texts
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from probes.data.task import Task
from probes.heads.result import HeadResult
from probes.runs.plan_runs import evaluate_plan, heads_folder
from probes.runs.plan_search import STRATEGIES, PlanSpace, Search, Trial, draw_rows, search_plans, space_of
from probes.runs.run_config import PretrainingSpec, RunConfig, TaskSpec, load_run_task


@dataclass
class Replay:
    """Scores of plans on parts of a task, from caches that hold all of it.

    Attributes:
        config: The sweep's configuration, with the one head that decides.
        task: Its task.
        caches: The cache of every plan, in the order of the grid.
        memory: Scores that are known, by plan and rows per split.
        keep: Called with the memory whenever it grows.
    """

    config: RunConfig
    task: Task
    caches: dict[MaskPlan, LatentCache]
    memory: dict[str, float] = field(default_factory=dict)
    keep: Callable[[dict[str, float]], None] = lambda _: None

    @property
    def space(self) -> PlanSpace:
        """The plans and rows that searches choose from."""
        n_blocks = int(next(iter(self.caches.values())).identity.decoder["n_layers"])
        return space_of(self.task.without_test(), tuple(self.caches), n_blocks=n_blocks)

    def score(self, trial: Trial) -> list[float]:
        """Score the plans of a trial on validation."""
        found = []
        for plan in trial.plans:
            key = f"{plan.text} on {trial.n_rows}"
            if key not in self.memory:
                part = draw_rows(self.task.without_test(), trial.n_rows)
                self.memory[key] = self._evaluate(part, plan).selection_score
                self.keep(self.memory)
            found.append(self.memory[key])
        return found

    def test_score(self, plan: MaskPlan) -> float:
        """Score a plan on test, fitted on all of train."""
        key = f"{plan.text} on test"
        if key not in self.memory:
            self.memory[key] = self._evaluate(self.task, plan).mean("test")
            self.keep(self.memory)
        return self.memory[key]

    def _evaluate(self, task: Task, plan: MaskPlan) -> HeadResult:
        with tempfile.TemporaryDirectory() as folder:
            row = evaluate_plan(
                self.config, task, plan, self.caches[plan], heads_folder(Path(folder), self.caches[plan])
            )
        return row.heads[next(iter(self.config.heads))]


def compare_searches(replay: Replay, *, budgets: tuple[float, ...]) -> dict[str, Any]:
    """Compare every strategy and budget with the full grid.

    Args:
        replay: Scores by plan and rows.
        budgets: Shares of the full grid's cost.

    Returns:
        The plan that the grid chooses, the spread of its scores, and for each search its plan, regret and cost.
    """
    space = replay.space
    everything = dict(zip(space.plans, replay.score(Trial(space.plans, space.n_rows)), strict=True))
    best = max(space.plans, key=lambda plan: everything[plan])
    searches = []
    for strategy in STRATEGIES:
        for budget in budgets:
            found = search_plans(strategy, space, replay.score, budget=budget)
            searches.append({"strategy": strategy, "budget": budget, **_compared(replay, found, everything, best)})
    return {
        "task": replay.task.name,
        "head": next(iter(replay.config.heads)),
        "options": next(iter(replay.config.heads.values())),
        "n_plans": len(space.plans),
        "n_texts": space.n_texts(space.n_rows),
        "full_cost": space.full_cost,
        "grid": {"plan": best.text, "validation": everything[best], "test": replay.test_score(best)},
        "causal": {"validation": everything[space.plans[0]], "test": replay.test_score(space.plans[0])},
        "scores": {plan.text: score for plan, score in everything.items()},
        "searches": searches,
    }


def _compared(replay: Replay, found: Search, everything: dict[MaskPlan, float], best: MaskPlan) -> dict[str, Any]:
    return {
        "plan": found.chosen.text,
        "validation": everything[found.chosen],
        "regret": 100 * (everything[best] - everything[found.chosen]),
        "test": replay.test_score(found.chosen),
        "share": found.share,
        "trials": [[len(step.trial.plans), step.trial.n_rows, step.cost] for step in found.steps],
    }


def open_sweep(folder: Path, *, caches: Path, head: str, options: dict[str, Any], memory: Path | None = None) -> Replay:
    """Open the folder of a sweep and the caches of its plans.

    Args:
        folder: The sweep's run folder; its config.yaml is read.
        caches: Where its caches are.
        head: The head to choose by.
        options: Options of the head that differ from the sweep's.
        memory: File that keeps scores between calls; None keeps none.

    Returns:
        The replay.
    """
    values = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    plans = [parse_plan(text) for text in values.pop("plans")]
    extraction = {**values["extraction"], "template": InputTemplate(**values["extraction"]["template"])}
    extraction |= {key: tuple(extraction[key]) for key in ("poolings", "layers")}
    config = RunConfig(
        **{
            **values,
            "decoder": DecoderSpec(**values["decoder"]),
            "extraction": ExtractionSpec(**extraction),
            "task": TaskSpec(**values["task"]),
            "pretraining": PretrainingSpec(**values["pretraining"]),
            "heads": {head: {**(values["heads"].get(head) or {}), **options}},
            "seeds": tuple(values["seeds"]),
            "bootstrap": 100,
        }
    )
    task = load_run_task(config)
    wanted = digest_rows(digest_texts(unique_texts(task.texts())))
    by_plan = {}
    for path in sorted(caches.glob("*.h5")):
        identity = LatentCache(path, allow_partial=True).identity
        if identity.text_digest == wanted:
            by_plan[identity.plan] = LatentCache(path)
    known = json.loads(memory.read_text(encoding="utf-8")) if memory is not None and memory.is_file() else {}
    if not options and (folder / "scores.json").is_file():
        rows = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["plans"]
        n_rows = max(len(part) for part in task.without_test().splits.values())
        known |= {f"{row['plan']} on {n_rows}": row["heads"][head]["selection_score"] for row in rows}

    def keep(scores: dict[str, float]) -> None:
        if memory is not None:
            memory.write_text(json.dumps(scores, indent=1), encoding="utf-8")

    return Replay(config, task, {plan: by_plan[plan.text] for plan in plans}, known, keep)


def main() -> None:
    """Replay, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--caches", type=Path, required=True)
    parser.add_argument("--head", default="logistic-probe")
    parser.add_argument("--layers", default=None)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.15, 0.25])
    parser.add_argument("--memory", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    options = {"layers": asked.layers} if asked.layers else {}
    replay = open_sweep(asked.sweep, caches=asked.caches, head=asked.head, options=options, memory=asked.memory)
    found = compare_searches(replay, budgets=tuple(asked.budgets))
    show(found)
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def show(found: dict[str, Any]) -> None:
    """Print the comparison."""
    grid, causal = found["grid"], found["causal"]
    print(f"{found['task']}, {found['head']} {found['options']}, {found['n_plans']} plans, {found['n_texts']} texts")
    print(f"{'':24} {'plan':44} {'validation':>10} {'regret':>7} {'test':>6} {'cost':>6}")
    line = "{:24} {:44} {:10.1f} {:7.2f} {:6.1f} {:6.2f}"
    print(line.format("full grid", grid["plan"], 100 * grid["validation"], 0.0, 100 * grid["test"], 1.0))
    for each in found["searches"]:
        name = f"{each['strategy']}, {each['budget']:g}"
        values = (100 * each["validation"], each["regret"], 100 * each["test"], each["share"])
        print(line.format(name, each["plan"], *values), each["trials"])
    regret = 100 * (grid["validation"] - causal["validation"])
    print(line.format("causal", "causal", 100 * causal["validation"], regret, 100 * causal["test"], 0.0))


if __name__ == "__main__":
    main()
