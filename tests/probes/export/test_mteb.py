"""Every layer gets mteb's own scores from one pass over the texts. Needs the extra."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError
from extract.inputs.template import InputTemplate
from extract.run import extraction
from extract.run.extraction_spec import ExtractionSpec
from probes.cli.main import main
from probes.data.task import Task
from probes.data.task_table import load_task
from probes.export.mteb import as_mteb_encoder, fill_task, run_mteb
from tests.extract.tiny_decoders import make_decoder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def mteb() -> Any:
    return pytest.importorskip("mteb", reason="needs the extra: pip install '.[mteb]'")


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return make_decoder(max_position_embeddings=256)


@pytest.fixture
def pairs() -> Task:
    return load_task("sts-sample").subset(40)


def test_scores_are_those_of_the_cosines_of_a_cache(mteb: Any, decoder: Decoder, pairs: Task, tmp_path: Path) -> None:
    task = fill_task(mteb.get_task("STSBenchmark"), pairs)
    spec = ExtractionSpec(poolings=("mean", "last"))
    frame = run_mteb(decoder, spec, [task], out=tmp_path / "mteb", caches=tmp_path / "caches")
    assert len(frame) == 2 * len(decoder.layers)
    rows = pairs.rows("test")
    encoder: Any = as_mteb_encoder(decoder, spec=spec, layer="block_02", pooling="last", caches=tmp_path / "caches")
    sides = [
        encoder.encode([{"text": list(rows[name])}], task_metadata=task.metadata, hf_split="test", hf_subset="default")
        for name in ("sentence1", "sentence2")
    ]
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
    expected = spearmanr((unit[0] * unit[1]).sum(1), rows["score"]).statistic
    found = frame.query("layer == 'block_02' and pooling == 'last'")["score"].item()
    assert found == pytest.approx(expected, abs=1e-5)  # mteb rounds
    [written] = (tmp_path / "mteb").rglob(f"{encoder.mteb_model_meta.revision}/STSBenchmark.json")
    assert json.loads(written.read_text())["scores"]["test"][0]["main_score"] == pytest.approx(found, abs=1e-5)
    assert encoder.mteb_model_meta.revision.startswith("causal.block_02.last.")


def test_one_pass_serves_every_layer(
    mteb: Any, decoder: Decoder, pairs: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    run = extraction.Extraction.run

    def counted(self: extraction.Extraction) -> None:
        runs.append(len(self.texts))
        run(self)

    monkeypatch.setattr(extraction.Extraction, "run", counted)
    task = fill_task(mteb.get_task("STSBenchmark"), pairs)
    run_mteb(decoder, ExtractionSpec(), [task], out=tmp_path / "mteb", caches=tmp_path / "caches")
    assert len(runs) == 2, "one extraction for each side of the pairs, whatever the number of layers"


def test_results_of_another_plan_layer_or_data_are_not_returned(
    mteb: Any, decoder: Decoder, pairs: Task, tmp_path: Path
) -> None:
    """mteb keeps results by name and revision of model and data; it would return the first score for all of them."""

    def score(plan: str, rows: Task) -> pd.Series:
        task = fill_task(mteb.get_task("STSBenchmark"), rows)
        spec = ExtractionSpec(plan=plan, layers=("block_02", "final_norm"))
        frame = run_mteb(decoder, spec, [task], out=tmp_path / "mteb", caches=tmp_path / "caches")
        return frame.set_index("layer")["score"]

    causal, backward, other = score("causal", pairs), score("backward", pairs), score("causal", pairs.subset(20))
    assert len({*causal, *backward, *other}) == 6
    pd.testing.assert_series_equal(score("causal", pairs), causal, atol=1e-5)


def test_instructions_go_before_queries_alone(mteb: Any, decoder: Decoder, tmp_path: Path) -> None:
    name = "STSBenchmark"
    spec = ExtractionSpec(layers=("block_02",))
    how: dict[str, Any] = {"spec": spec, "layer": "block_02", "caches": tmp_path}
    plain: Any = as_mteb_encoder(decoder, **how)
    told: Any = as_mteb_encoder(decoder, instructions={name: "Find the same: "}, **how)
    given: dict[str, Any] = {"task_metadata": mteb.get_task(name).metadata, "hf_split": "test", "hf_subset": "default"}
    texts = [{"text": ["Ice is cold.", " "]}]
    np.testing.assert_array_equal(
        told.encode(texts, prompt_type="document", **given), plain.encode(texts, prompt_type="document", **given)
    )
    changed = np.abs(told.encode(texts, prompt_type="query", **given) - plain.encode(texts, **given)).max(axis=1)
    assert (changed > 1e-3).all()
    assert told.mteb_model_meta.revision != plain.mteb_model_meta.revision


def test_classification_is_evaluated_too(mteb: Any, decoder: Decoder, tmp_path: Path) -> None:
    rows = load_task("class-sample")
    task = fill_task(mteb.get_task("Banking77Classification"), rows)
    frame = run_mteb(decoder, ExtractionSpec(layers=("block_02",)), [task], out=tmp_path, caches=tmp_path / "caches")
    assert frame["metric"].tolist() == ["accuracy"]
    assert 0 <= frame["score"].item() <= 1
    with pytest.raises(ConfigError, match=r"'STSBenchmark' of mteb is of type STS, .* allowed: STS with pairs"):
        fill_task(mteb.get_task("STSBenchmark"), rows)
    with pytest.raises(ConfigError, match="mteb has no task 'STSBenchmrk'"):
        run_mteb(decoder, ExtractionSpec(), ["STSBenchmrk"], out=tmp_path)
    with pytest.raises(ConfigError, match=r"data of task 'STSBenchmark' cannot be loaded .* fill it from local rows"):
        run_mteb(decoder, ExtractionSpec(), ["STSBenchmark"], out=tmp_path)


def test_retrieval_reads_documents_as_the_template_says(mteb: Any, decoder: Decoder, tmp_path: Path) -> None:
    words = ("Ice is cold.", "Snow fell on the harbour.", " ", "The mouse ran.")
    corpus = [{"id": f"d{number}", "title": "", "text": text} for number, text in enumerate(words)]
    queries = [{"id": "q0", "text": words[0]}, {"id": "q1", "text": words[3]}]
    task = mteb.get_task("NFCorpus")
    parts = {"corpus": datasets.Dataset.from_list(corpus), "queries": datasets.Dataset.from_list(queries)}
    gold = {"q0": {"d0": 1}, "q1": {"d3": 1}}
    task.dataset = {"default": {"test": {**parts, "relevant_docs": gold, "top_ranked": None}}}
    task.data_loaded = True
    scores = {}
    for name, template in {
        "same": InputTemplate(instruction="Find this: "),
        "other": InputTemplate(instruction="Find this: ", document_instruction="A table: "),
    }.items():
        spec = ExtractionSpec(layers=("embedding",), poolings=("mean",), template=template)
        frame = run_mteb(decoder, spec, [task], out=tmp_path / "mteb", caches=tmp_path / "caches")
        assert frame["metric"].tolist() == ["ndcg_at_10"]
        scores[name] = (frame["score"].item(), frame["revision"].item())
    # A query that is a document of the corpus is found first, as the instruction is not in the mean.
    assert scores["same"][0] == scores["other"][0] == 1
    assert scores["same"][1] != scores["other"][1]


def test_the_command_scores_local_rows_and_draws_the_curve(
    mteb: Any, decoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del mteb
    monkeypatch.chdir(tmp_path)
    options = ["--decoder.name", str(decoder_folder), "--decoder.device", "cpu", "--task.pairs", "30"]
    command = ["mteb", "--tasks", "STSBenchmark", "--local", "--figures", "svg", *options]
    assert main(command) == 0
    shown = capsys.readouterr().out
    frame = pd.read_csv("mteb/mteb.csv")
    assert f"{100 * frame['score'].max():.1f}" in shown
    assert "no benchmark result" in shown
    assert Path("mteb/mteb.svg").is_file()
    assert main(["mteb", "--local", *options]) == 2
    assert "--tasks is missing" in capsys.readouterr().err
