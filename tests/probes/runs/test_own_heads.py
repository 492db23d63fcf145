"""A head of the user for every kind of task: it runs, is reported, and is found and read back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import icecore
from extract import registry
from extract.errors import HeadError
from probes.heads.class_heads import CentroidHead, NearestCentroid
from probes.heads.head_table import HEADS, layer_head
from probes.heads.layer_head import LayerHead
from probes.heads.linear_probes import RidgeHead, RidgeOptions, RidgeProbe
from probes.heads.zero_shot_heads import (
    AlikeHead,
    ClusterHead,
    ClusterOptions,
    OddHead,
    OddOptions,
    RerankHead,
    SearchHead,
    TranslateHead,
    ZeroShotHead,
    ZeroShotOptions,
)
from probes.networks.layerwise_networks import TokenClassifier
from tests.probes.finished_run import stamps


class MyPairs(icecore.CosineLinear):
    """Squared cosines."""

    def similarities(self, a: Any, b: Any) -> Any:
        return super().similarities(a, b) ** 2


class MyWords(TokenClassifier):
    """Latents twice as long."""

    def logits(self, prepared: Any) -> Any:
        return super().logits(2 * prepared)


class MyClasses(CentroidHead):
    """The last class for every row."""

    def predict(self, module: Any, layer: int, split: str) -> Any:
        return {metric: 0 * rows + rows.max() for metric, rows in super().predict(module, layer, split).items()}


class MyNumbers(RidgeHead):
    """Whole numbers."""

    def predict(self, module: Any, layer: int, split: str) -> Any:
        return {metric: rows.round() for metric, rows in super().predict(module, layer, split).items()}


class MySearch(SearchHead):
    """As it is, under another name."""


class MyRerank(RerankHead):
    """As it is, under another name."""


class MyClusters(ClusterHead):
    """As it is, under another name."""


class MyAlike(AlikeHead):
    """As it is, under another name."""


class MyTranslate(TranslateHead):
    """As it is, under another name."""


class MyOdd(OddHead):
    """As it is, under another name."""


def without_fitting(kind: str, head: type[LayerHead[Any]], options: type = ZeroShotOptions) -> icecore.HeadEntry:
    return layer_head(f"my-{kind}", kind, "mine", head=head, build=ZeroShotHead, options=options)


PAIR, TEXT = ("Ice is cold.", "Snow is white."), "Ice is cold."
CASES: dict[str, tuple[str, icecore.HeadEntry, Any]] = {
    "pairs": (
        "sts-sample",
        icecore.pair_head("my-pairs", MyPairs, icecore.EpochOptions(batch_size=16, max_epochs=2), "mine"),
        PAIR,
    ),
    "words": ("words-sample", icecore.token_head("my-words", MyWords, "mine"), "Ice is cold ."),
    "classes": (
        "class-sample",
        icecore.HeadEntry(
            "my-classes",
            "classes",
            "mine",
            (),
            evaluate=MyClasses.run,
            check=MyClasses.check,
            build=NearestCentroid,
            oldest_schema=3,
        ),
        TEXT,
    ),
    "numbers": (
        "number-sample",
        layer_head("my-numbers", "numbers", "mine", head=MyNumbers, build=RidgeProbe, options=RidgeOptions),
        TEXT,
    ),
    "pair-classification": ("pair-class-sample", without_fitting("pair-classification", MyAlike), PAIR),
    "retrieval": ("retrieval-sample", without_fitting("retrieval", MySearch), None),
    "reranking": ("reranking-sample", without_fitting("reranking", MyRerank), None),
    "clustering": ("clustering-sample", without_fitting("clustering", MyClusters, ClusterOptions), None),
    "bitext": ("bitext-sample", without_fitting("bitext", MyTranslate), None),
    "odd-one-out": ("odd-sample", without_fitting("odd-one-out", MyOdd, OddOptions), None),
}
"""Kind of task to a task, a head, and a row to score; None where single rows mean nothing."""
OFTEN = ("words", "classes")
"""Kinds of the default suite; the others are `long`."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take off what a test adds."""
    monkeypatch.setattr(registry, "ADDED", {**registry.ADDED})
    before = dict(HEADS)
    yield
    HEADS.clear()
    HEADS.update(before)


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == {entry.kind for entry in HEADS.values()}


@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.long) for kind in CASES]
)
def test_it_runs_is_reported_and_is_read_back(
    kind: str, decoder_folder: Path, tmp_path: Path, unchecked_shapes: None
) -> None:
    del unchecked_shapes
    task, entry, row = CASES[kind]
    icecore.register_head(entry)
    config = icecore.RunConfig(
        name=kind,
        decoder=icecore.DecoderSpec(str(decoder_folder), device="cpu"),
        task=icecore.TaskSpec(task) if row is None else icecore.TaskSpec(task, pairs=40),
        heads={entry.name: {"max_epochs": 2} if kind == "words" else {}},
        bootstrap=100,
        seeds=(0,),
        caches=str(tmp_path / "caches"),
        runs=str(tmp_path / "runs"),
    )
    scores = icecore.run(config).record.heads[entry.name]
    folder = tmp_path / "runs" / kind
    assert entry.name in (folder / "summary.md").read_text(encoding="utf-8")
    assert entry.name in (folder / "report.html").read_text(encoding="utf-8")
    assert scores.chosen.keys() >= ({"layer"} if kind != "pairs" else set())
    before = stamps(folder / "heads")
    icecore.run(config)
    assert stamps(folder / "heads") == before  # found, not fitted again
    loaded = icecore.load_run(folder)
    assert loaded.best == entry.name
    if row is None:
        with pytest.raises(HeadError, match="predicts nothing of single rows"):
            loaded.predict([TEXT])
    else:
        assert len(loaded.predict([row])) == 1
