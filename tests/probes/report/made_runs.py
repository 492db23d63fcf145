"""Finished runs of every kind of task, made in memory with real heads on planted latents."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extract.store.cache import LatentCache
from probes.data.task import Task
from probes.fitting.fit_options import ignore_epoch
from probes.heads.head_table import HEADS, TaskKind, resolve_head
from probes.heads.layer_head import FitContext
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import SeedSummary
from probes.report.scores import Header, PretrainingScores, RunScores
from probes.runs.folder import describe_cache
from probes.runs.run import leads_over_cosine, score_baselines
from probes.runs.task_kinds import KINDS
from tests.probes.data.planted_classes import make_class_task, plant_classes
from tests.probes.data.planted_numbers import make_number_task, plant_numbers
from tests.probes.heads.words import planted_words
from tests.probes.planted_latents import make_task, plant

NAN = float("nan")
HEADS_OF: dict[str, dict[str, dict[str, Any]]] = {
    "pairs": {"layer-cosine": {}, "cosine-mlp": {"max_epochs": 3, "hidden": 4, "batch_size": 20}},
    "classes": {"logistic-probe": {"Cs": [0.1, 1.0], "oversampling": "times-5"}, "cosine-threshold": {}},
    "numbers": {"ridge-probe": {"alphas": [1.0, 100.0]}},
    "words": {
        "token-classifier": {"max_epochs": 3, "epoch_steps": 1, "batch_size": 8},
        "token-mix": {"max_epochs": 3, "epoch_steps": 1, "batch_size": 8},
    },
}
"""Heads of every kind with options that make them quick."""
SIZES = {"train": 48, "validation": 32, "test": 32}
DECODER: Any = {
    "name": "planted",
    "family": "llama",
    "n_layers": 3,
    "width": 12,
    "dtype": "float32",
    "revision": "",
    "weight_digest": "w" * 64,
}
AUTOENCODERS: dict[str, Any] = {
    "mean+last": {
        "layers": ["mean/block_01", "mean/final_norm", "last/block_01"],
        "codes": [4, 4, 8],
        "seed": 0,
        "best_epochs": [2, 1, 2],
        "held_out_losses": [0.25, 0.75, 0.5],
        "seconds": 3.0,
        "standardises_latents": True,
        "held_out_squared_errors": [4.0, 90.0, 8.0],
        "history": [{"train_loss": 0.9, "held_out_loss": 0.8}, {"train_loss": 0.6, "held_out_loss": 0.5}],
        "n_texts": {"train": 1900, "held_out": 100},
    }
}


@dataclass(frozen=True, eq=False)
class MadeRun:
    """A finished run."""

    scores: RunScores
    task: Task
    cache: LatentCache
    kind: TaskKind

    def with_head(self, name: str, **changes: Any) -> "MadeRun":
        """Change fields of a head's result."""
        heads = {**self.scores.heads, name: replace(self.scores.heads[name], **changes)}
        return replace(self, scores=replace(self.scores, heads=heads))

    def with_header(self, **changes: Any) -> "MadeRun":
        """Change fields of the header; those of the task are added to it."""
        task: Any = {**self.scores.header.task, **changes.pop("task", {})}
        return replace(self, scores=replace(self.scores, header=replace(self.scores.header, task=task, **changes)))


def make_run(kind: str, folder: Path) -> MadeRun:
    """Fit heads of a kind on planted latents."""
    makers = {"pairs": _pairs, "classes": _classes, "numbers": _numbers, "words": _words}
    task, cache = makers[kind](folder)
    setting = FitContext(cache, task, (0, 3), 100, "cpu", folder / "heads")
    heads = {}
    for name, options in HEADS_OF[kind].items():
        heads[name] = HEADS[name].evaluate(resolve_head(name, options, kind=kind), setting, lambda _: ignore_epoch)
    header = make_header(kind, KINDS[kind].describe(task, cache).to_plain())
    about = describe_cache(cache) if kind != "words" else WORD_CACHE
    seconds = {"extraction": 1.0, "heads": 2.0, "baselines": 0.5}
    baselines = score_baselines(
        KINDS[kind].baselines(task), heads, task=task, report=KINDS[kind].report, n_resamples=100
    )
    over_cosine = leads_over_cosine(heads, task=task, report=KINDS[kind].report, n_resamples=100)
    return MadeRun(RunScores(header, about, heads, {}, seconds, baselines, over_cosine), task, cache, KINDS[kind])


def make_header(kind: str, task: Any, what: str = "run") -> Header:
    """Make a header; its commit is that of an installed package."""
    return Header(
        what=what,
        kind=kind,
        protocol="icecore",
        name="made",
        command="icecore run made.yaml",
        commit="",
        versions={"torch": "2"},
        device="cpu",
        n_resamples=100,
        decoder=DECODER,
        task=task,
        products={"linear": "oneDNN", "cpu": "AVX512"},
    )


def make_pretraining() -> PretrainingScores:
    """Make the scores of autoencoders."""
    about: Any = {"corpus": {}, "cache": {}, "autoencoders": AUTOENCODERS}
    return PretrainingScores(make_header("", {}, "pretraining"), WORD_CACHE, about)


def make_result(name: str = "made", score: float = 0.5, **fields: Any) -> HeadResult:
    """Make the result of a head whose score is `score` on every split."""
    values: dict[str, Any] = {
        "pooling": "mean",
        "layers": ("block_01", "final_norm"),
        "options": {},
        "metric": "accuracy",
        "selection": "validation (layer)",
        "selection_score": score,
        "chosen": {"layer": "final_norm"},
        "summary": {split: {"accuracy": make_summary(score)} for split in ("validation", "test")},
    }
    return HeadResult(name, **{**values, **fields})


def make_summary(mean: float, n_seeds: int = 1) -> SeedSummary:
    """Make a summary with a deviation of 0.02 and an interval of 0.1 to both sides."""
    return SeedSummary(mean, 0.02, mean - 0.1, mean + 0.1, 0.95, (mean,) * n_seeds)


WORD_CACHE: Any = {
    "file": "c.h5",
    "id": "i" * 64,
    "plan": "causal",
    "poolings": ["mean"],
    "storage_dtype": "float32",
    "n_rows": 7,
    "n_truncated": 0,
    "template": {"bos": "auto", "instruction": ""},
    "certificate": {},
}


def _pairs(folder: Path) -> tuple[Task, LatentCache]:
    task = make_task(sizes=SIZES)
    return task, plant(folder / "pairs.h5", task)


def _classes(folder: Path) -> tuple[Task, LatentCache]:
    task = make_class_task(sizes=SIZES, n_classes=2, is_pairs=True)
    return task, plant_classes(folder / "classes.h5", task)


def _numbers(folder: Path) -> tuple[Task, LatentCache]:
    task = make_number_task(sizes=SIZES)
    return task, plant_numbers(folder / "numbers.h5", task)


def _words(_: Path) -> tuple[Task, LatentCache]:
    task = planted_words.make_task(sizes=SIZES)
    n_train = sum(map(len, task.splits["train"]["words"]))
    return task, planted_words.plant(task, noise=0.8, cut=[1, n_train + 2])
