"""A kind of task is one class and one row: ordered triples of texts run, sweep, score and show their layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from probes.cli.main import main
from probes.data.task import GradedTask
from probes.data.task_table import TASKS, TaskEntry, load_task
from probes.heads.head_table import HEADS, TaskKind, layer_head
from probes.heads.layer_head import embed_once, only_channel, read_channels
from probes.heads.linear_probes import RidgeHead, RidgeOptions, RidgeProbe
from probes.report.document import KindReport
from probes.report.kind_reports import NumberReport
from probes.runs.predict import load_run
from probes.runs.task_kinds import KINDS, add_kind

TEXTS = ("first", "second", "third")


@dataclass(frozen=True, eq=False)
class TripleTask(GradedTask):
    """Triples of texts with one number each."""

    kind: ClassVar[Any] = "triples"
    columns: ClassVar[Any] = {**dict.fromkeys(TEXTS, "string"), "number": "float64"}
    text_columns: ClassVar[tuple[str, ...]] = TEXTS
    gold_column: ClassVar[str] = "number"
    name: str
    splits: Any
    source: str
    is_sample: bool = False
    notes: tuple[str, ...] = ()

    def numbers(self, split: str) -> np.ndarray:
        return np.asarray(self.rows(split)["number"], dtype=np.float64)

    def audit(self) -> tuple[str, ...]:
        return ()

    def describe_kind(self) -> dict[str, Any]:
        return {"has_groups": False}


def load_triples() -> TripleTask:
    """Make triples of the pairs that ship with the project, of each text and the next one."""
    columns = {}
    for split, rows in load_task("sts-sample").splits.items():
        first, second = list(rows["sentence1"]), list(rows["sentence2"])
        columns[split] = {"first": first, "second": second, "third": [*first[1:], first[0]], "number": rows["score"]}
    return TripleTask("triple-sample", TripleTask.hold(columns), "sts-sample", is_sample=True)


class TripleHead(RidgeHead):
    """Ridge regression of three latents beside each other."""

    def read(self, layer: int, split: str) -> Tensor:
        cache, channel = self.context.cache, only_channel(self.channels, layer)
        rows = [cache.rows_of(list(self.task.rows(split)[column])) for column in TEXTS]
        return torch.cat([channel.gather(cache, part)[0] for part in rows], dim=-1)


class TripleKind(TaskKind):
    """Ordered triples of texts with one number each; no baseline and no control."""

    name = "triples"
    texts_per_row = 3
    predicts = "number"
    tasks = (TaskEntry("triple-sample", "triples", "made of pairs", load_triples),)
    heads = (layer_head("ridge-triples", "triples", "ridge", head=TripleHead, build=RidgeProbe, options=RidgeOptions),)

    @property
    def report(self) -> KindReport:
        return NumberReport()

    def score(self, heads: Any, rows: Sequence[Sequence[str]], decoder: Any, spec: Any) -> Any:
        latents, positions = embed_once((text for row in rows for text in row), decoder, spec)
        [read] = read_channels(latents, heads[0].record, layers=spec.layers, poolings=spec.poolings)
        columns = [read[[positions[text] for text in column]] for column in zip(*rows, strict=True)]
        return heads[0].head.predict(torch.cat(columns, dim=-1))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("triples")
    tables: list[dict[Any, Any]] = [KINDS, TASKS, HEADS]
    before = [dict(table) for table in tables]
    add_kind(TripleKind())
    settings = {
        "name": "triples",
        "decoder": {"name": str(decoder_folder), "device": "cpu"},
        "task": {"name": "triple-sample"},
        "heads": {"ridge-triples": {}},
        "bootstrap": 100,
        "caches": str(folder / "caches"),
        "runs": str(folder / "runs"),
    }
    (folder / "triples.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert main(["run", str(folder / "triples.yaml"), "--quiet"]) == 0
    yield folder / "triples.yaml"
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)


def test_new_rows_are_scored_as_those_of_the_run(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = load_run(config.parent / "runs" / "triples")
    task = load_triples()
    rows = list(zip(*(task.rows("test")[column] for column in TEXTS), strict=True))
    predicted = np.array(run.predict(rows))
    pearson = np.corrcoef(predicted, task.numbers("test"))[0, 1]
    [score] = run.results().query("record == 'score' and split == 'test' and metric == 'pearson'")["value"]
    assert pearson == pytest.approx(score, abs=1e-5)
    assert main(["score", str(run.folder), *rows[0]]) == 0
    assert capsys.readouterr().out == "\t".join([f"{predicted[0]:.3f}", *rows[0]]) + "\n"
    assert main(["score", str(run.folder), "alone"]) == 1
    assert "1 texts were given; allowed: 3 texts for a run on triples" in capsys.readouterr().err


def test_layers_plans_and_reports_need_no_more(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = config.parent / "runs" / "triples"
    assert main(["layers", str(folder), "--quiet", "--resamples", "100"]) == 0
    assert "ridge-triples" in capsys.readouterr().out
    assert main(["layers", str(folder), "--controls", "type"]) == 1
    told = capsys.readouterr()
    assert told.out == "", "it is refused before anything is computed"
    assert told.err == (
        "icecore: controls refit a head on other labels, and tasks of triples name no labels to replace; leave "
        "controls out.\n"
    )
    assert main(["report", str(folder)]) == 0
    assert main(["sweep", str(config), "--plans", "causal; backward:1", "--quiet", "--figures", "svg"]) == 0
    assert main(["list", "tasks", "heads"]) == 0
    out = capsys.readouterr().out
    assert "triple-sample" in out
    assert "ridge-triples" in out
