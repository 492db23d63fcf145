"""Tasks without fitting, solved by one layer of synthetic latents: no decoder, no text that means anything."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from extract.registry import resolve
from extract.store.cache import LatentCache
from probes.data.zero_shot_task import (
    BitextTask,
    ClusteringTask,
    OddOneOutTask,
    PairClassTask,
    RerankingTask,
    RetrievalTask,
    ZeroShotTask,
)
from probes.fitting.saved_fits import SavedHead
from probes.heads.head_table import HEADS, HeadOptions
from probes.heads.layer_head import FitContext
from probes.heads.zero_shot_heads import ZeroShotOptions
from tests.probes.heads.words import planted_words
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH, write_latents

SIZES = {"train": 30, "validation": 30, "test": 40}
N_DOCUMENTS, N_LABELS, N_SENTENCES = 30, 4, 4
Shuffled = Sequence[str]


def _make(
    kind: type[ZeroShotTask],
    column: str,
    rows: Callable[[str, int], Mapping[str, Any]],
    shuffled: Shuffled,
    sizes: Mapping[str, int],
    **more: Any,
) -> Any:
    """Make the rows of every split; `column` is permuted in the splits whose gold is shuffled."""
    columns: dict[str, dict[str, Any]] = {}
    for split, n in sizes.items():
        made = [rows(split, k) for k in range(n)]
        columns[split] = {key: [row[key] for row in made] for key in made[0]}
        if split in shuffled:
            order = np.random.default_rng(5).permutation(n)
            columns[split][column] = [columns[split][column][k] for k in order]
    return kind("planted", kind.hold(columns), "made up", **more)


def make_retrieval(*, shuffled: Shuffled = (), sizes: Mapping[str, int] = SIZES) -> Any:
    """Ask for one document a query, by the number in its text."""
    names = sorted((f"d{k:02d}" for k in range(N_DOCUMENTS)), reverse=True)
    corpus = tuple(f"document {int(name[1:])}" for name in names)

    def rows(split: str, k: int) -> Mapping[str, Any]:
        place = names.index(f"d{k % N_DOCUMENTS:02d}")
        return {"id": f"{split}{k}", "query": f"{split} {k}", "documents": [place], "grades": [1.0]}

    return _make(RetrievalTask, "documents", rows, shuffled, sizes, corpus_ids=tuple(names), corpus=corpus)


def make_reranking(*, shuffled: Shuffled = (), sizes: Mapping[str, int] = SIZES) -> Any:
    """Offer four candidates a query, the first of them relevant; shuffled splits mark any."""
    names = sorted((f"d{k:02d}" for k in range(N_DOCUMENTS)), reverse=True)
    corpus = tuple(f"document {int(name[1:])}" for name in names)

    def rows(split: str, k: int) -> Mapping[str, Any]:
        places = [names.index(f"d{(k + 7 * j) % N_DOCUMENTS:02d}") for j in range(4)]
        grades = np.array([1.0, 0.0, 0.0, 0.0])
        if split in shuffled:
            grades = np.roll(grades, k % 4)
        order = np.argsort(places)
        return {
            "id": f"{split}{k}",
            "query": f"{split} {k}",
            "documents": [places[j] for j in order],
            "grades": grades[order].tolist(),
        }

    return _make(RerankingTask, "id", rows, shuffled, sizes, corpus_ids=tuple(names), corpus=corpus)


def make_clustering(*, shuffled: Shuffled = (), sizes: Mapping[str, int] = SIZES) -> Any:
    def rows(split: str, k: int) -> Mapping[str, Any]:
        return {"text": f"{split} {k}", "label": "abcd"[k % N_LABELS]}

    return _make(ClusteringTask, "label", rows, shuffled, sizes)


def make_pairs(*, shuffled: Shuffled = (), sizes: Mapping[str, int] = SIZES) -> Any:
    def rows(split: str, k: int) -> Mapping[str, Any]:
        return {"text1": f"{split} {k}", "text2": f"{split}' {k + k % 2}", "label": 1 - k % 2}

    return _make(PairClassTask, "label", rows, shuffled, sizes)


def make_bitext(*, shuffled: Shuffled = (), sizes: Mapping[str, int] = SIZES) -> Any:
    def rows(split: str, k: int) -> Mapping[str, Any]:
        return {"text1": f"{split} {k}", "text2": f"{split}' {k}"}

    return _make(BitextTask, "text2", rows, shuffled, sizes)


def make_odd(*, shuffled: Shuffled = (), sizes: Mapping[str, int] = SIZES) -> Any:
    def rows(split: str, k: int) -> Mapping[str, Any]:
        sentences = [f"{split} {k} {j}" for j in range(N_SENTENCES)]
        ends = [len(split)] * N_SENTENCES
        return {"id": f"{k}", "sentences": sentences, "starts": [0] * N_SENTENCES, "ends": ends, "answer": k % 4}

    return _make(OddOneOutTask, "answer", rows, shuffled, sizes)


KINDS: dict[str, tuple[Callable[..., Any], tuple[float, float]]] = {
    "retrieval": (make_retrieval, (0.0, 0.4)),
    "reranking": (make_reranking, (0.3, 0.75)),
    "clustering": (make_clustering, (0.0, 0.4)),
    "pair-classification": (make_pairs, (0.25, 0.8)),
    "bitext": (make_bitext, (0.0, 0.25)),
    "odd-one-out": (make_odd, (0.05, 0.55)),
}
"""Kind to its maker, and what is chance."""


def plant_task(folder: Path, task: Any, *, noise: float = 0.1) -> LatentCache:
    """Write latents that solve the unshuffled task at one layer; elsewhere they are noise."""
    rng, texts = np.random.default_rng(3), task.texts()
    base = np.random.default_rng(8).normal(size=(200, WIDTH))
    meanings = base[[_meaning(task, getattr(text, "text", text)) for text in texts]]
    latents = rng.normal(size=(len(LAYERS), len(texts), WIDTH))
    planted = LAYERS.index(PLANTED)
    latents[planted] = noise * latents[planted] + meanings
    found = latents.astype(np.float32)
    if isinstance(task, OddOneOutTask):
        flags = np.zeros(len(texts), np.uint8)
        return planted_words.PlantedCache(texts, {"mean": torch.from_numpy(found)}, flags)
    return write_latents(folder / "c.h5", texts, {"mean": found})


def _meaning(task: ZeroShotTask, text: str) -> int:
    """Say which of the base vectors a text means."""
    number = int(text.split()[1])
    if task.kind == "clustering":
        return number % N_LABELS
    if task.kind == "odd-one-out":
        return 100 + number if int(text.split()[2]) == number % N_SENTENCES else number
    return number % N_DOCUMENTS if task.kind in ("retrieval", "reranking") else number


def predict(saved: Sequence[SavedHead[Any]], setting: FitContext, split: str, _: Mapping[str, Any]) -> NDArray[Any]:
    """Judge a split by a head read back from disk."""
    [head] = saved
    resolved = HeadOptions(head.record.name, (ZeroShotOptions(),), head.record.pooling, head.record.layers)
    entry: Any = HEADS[head.record.name]
    judged = resolve(entry.evaluate).__self__(resolved, setting).predict(head.head, 0, split)
    return np.asarray(judged[setting.task.metrics[0]][0])
