"""Every layer gets mteb's own scores from one pass over the texts. Needs the extra."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.run import extraction
from extract.run.embed import embed_texts
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from probes.cli.main import main
from probes.data.task import Task
from probes.data.task_table import load_task
from probes.export.mteb import (
    as_mteb_encoder,
    fill_task,
    find_tasks,
    mean_scores,
    read_instructions,
    run_mteb,
    split_tasks,
)
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


def test_views_are_scored_by_themselves_and_side_by_side(
    mteb: Any, decoder: Decoder, pairs: Task, tmp_path: Path
) -> None:
    """A view as an extraction of its own, and all of them as an encoder with these views."""

    def scores(spec: ExtractionSpec, **how: Any) -> pd.DataFrame:
        task = fill_task(mteb.get_task("STSBenchmark"), pairs)
        return run_mteb(decoder, spec, [task], out=tmp_path / "mteb", caches=tmp_path / "caches", **how)

    changes: dict[str, Any] = {"template": InputTemplate(name="echo"), "poolings": ("echo-mean",)}
    own = {"plain": {}, "echo": changes, "mask": {"plan": "backward:1"}}
    views: dict[str, dict[str, object] | None] = {
        "plain": {},
        "echo": {"template": "echo", "poolings": "echo-mean"},
        "mask": {"plan": "backward:1"},
    }
    layers = ("block_01", "block_03")
    spec = ExtractionSpec(layers=layers, views=views)
    frame = scores(spec)
    keys = frame[["plan", "pooling"]].drop_duplicates()
    assert list(keys["pooling"]) == ["plain", "echo", "mask", "plain+echo+mask"]
    assert list(keys["plan"]) == ["causal", "causal", "backward:1", "causal, causal, backward:1"]
    by_view = frame.set_index("pooling")["score"]
    for name, fields in own.items():
        alone = scores(ExtractionSpec(**{"layers": layers, **fields}))["score"]
        np.testing.assert_allclose(by_view[name], alone, atol=1e-4)
    rows = pairs.rows("test")
    sides = [embed_texts(decoder, list(rows[name]), spec=spec)[1] for name in ("sentence1", "sentence2")]
    first, second = (torch.cat([*side], dim=-1) for side in sides)
    cosines = torch.nn.functional.cosine_similarity(first, second, dim=-1)
    joined = frame.query("layer == 'block_03'").set_index("pooling")
    assert joined["score"]["plain+echo+mask"] == pytest.approx(spearmanr(cosines, rows["score"]).statistic, abs=1e-4)
    assert joined["revision"]["plain+echo+mask"].startswith("causal_causal_backward_1.block_03.plain_echo_mask.")
    plans = [parse_plan(text) for text in ("causal", "backward:1")]
    frame = scores(spec, plans=plans).query("layer == 'block_03' and pooling == 'plain+echo+mask'")
    assert list(frame["plan"]) == ["causal, causal, backward:1", "backward:1"], "none takes the place of another"
    assert joined["score"].nunique() == 4
    encoder: Any = as_mteb_encoder(decoder, spec=spec, layer="block_03", caches=tmp_path / "caches")
    assert encoder.mteb_model_meta.revision == joined["revision"]["plain+echo+mask"]
    given: dict[str, Any] = {"task_metadata": mteb.get_task("STSBenchmark").metadata, "hf_split": "", "hf_subset": ""}
    told: Any = as_mteb_encoder(
        decoder, spec=spec, layer="block_03", caches=tmp_path / "caches", instructions={"STSBenchmark": "Find it: "}
    )
    texts = [{"text": ["Ice is cold."]}]
    changed = np.abs(encoder.encode(texts, **given) - told.encode(texts, **given)).reshape(3, -1).max(axis=1)
    assert (changed > 1e-3).all(), "the instruction is before the text of every view"
    both = scores(spec, plans=[parse_plan("causal"), parse_plan("backward:2")])
    assert len(both) == 2 * (4 + 3), "a view with a plan of its own is the same under both"


@pytest.mark.usefixtures("mteb")
def test_subsets_of_one_task_are_scored_apart_though_mteb_returns_all_that_its_folder_holds(
    decoder: Decoder, pairs: Task, tmp_path: Path
) -> None:
    tasks = find_tasks(["STS17:en-en", "STS17:ko-ko"])
    for task, rows in zip(tasks, (pairs.rows("train"), pairs.rows("test")), strict=True):
        part = datasets.Dataset.from_dict({name: rows[name][:8] for name in rows.column_names})
        task.dataset, task.data_loaded = {task.hf_subsets[0]: datasets.DatasetDict({"test": part})}, True
    spec = ExtractionSpec(layers=("block_02",))
    kept: dict[str, Any] = {"out": tmp_path / "mteb", "caches": tmp_path / "caches"}
    both = run_mteb(decoder, spec, tasks, **kept)
    assert both["task"].tolist() == ["STS17:en-en", "STS17:ko-ko"]
    alone = run_mteb(decoder, spec, tasks[1:], out=tmp_path / "other", caches=tmp_path / "caches")
    assert alone["score"].tolist() == pytest.approx(both["score"].tolist()[1:], abs=1e-5)  # mteb rounds
    again = run_mteb(decoder, spec, tasks[:1], **kept)["score"].tolist()
    assert again == pytest.approx(both["score"].tolist()[:1], abs=1e-5)


def test_local_rows_fill_one_subset_of_a_task(mteb: Any, decoder: Decoder, pairs: Task, tmp_path: Path) -> None:
    spec = ExtractionSpec(layers=("block_02",))
    kept: dict[str, Any] = {"out": tmp_path / "mteb", "caches": tmp_path / "caches"}
    plain = run_mteb(decoder, spec, [fill_task(mteb.get_task("STSBenchmark"), pairs)], **kept)["score"].item()
    for name in ("STS17:en-en", "STS17:ko-ko", "STS22.v2:en"):
        [task] = find_tasks([name])
        frame = run_mteb(decoder, spec, [fill_task(task, pairs)], **kept)
        assert frame["task"].tolist() == [name]
        assert frame["score"].item() == pytest.approx(plain, abs=1e-5), "the same rows"
    [task] = find_tasks(["MassiveIntentClassification:en"])
    task._eval_splits = ["test"]
    frame = run_mteb(decoder, spec, [fill_task(task, load_task("class-sample"))], **kept)
    assert frame["metric"].tolist() == ["accuracy"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "STS17",
            r"task 'STS17' of mteb has 11 subsets, .* are one; name it, as 'STS17:ko-ko'; allowed: ko-ko, ar-ar, .*",
        ),
        ("SICK-BR-STS", "'SICK-BR-STS' of mteb reads columns that local rows lack .* give another task of type STS"),
    ],
)
@pytest.mark.usefixtures("mteb")
def test_tasks_that_local_rows_cannot_fill_are_refused(name: str, complaint: str, pairs: Task) -> None:
    [task] = find_tasks([name])
    with pytest.raises(ConfigError, match=complaint):
        fill_task(task, pairs)


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
    with pytest.raises(ConfigError, match="mteb has no task or benchmark 'STSBenchmrk'"):
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


@pytest.mark.parametrize("views", [{}, {"one": {}, "two": {"plan": "backward"}}])
def test_documents_are_read_with_their_own_instruction(
    views: dict[str, Any], mteb: Any, decoder: Decoder, tmp_path: Path
) -> None:
    def read(prompt_type: str, **template: str) -> Any:
        spec = ExtractionSpec(layers=("block_02",), template=InputTemplate(**template), views=views)  # type: ignore[arg-type]
        encoder: Any = as_mteb_encoder(decoder, spec=spec, layer="block_02", caches=tmp_path)
        metadata = mteb.get_task("NFCorpus").metadata
        texts = [{"text": ["Ice is cold.", "Snow fell on the harbour."]}]
        return encoder.encode(
            texts, prompt_type=prompt_type, task_metadata=metadata, hf_split="test", hf_subset="default"
        )

    both = {"instruction": "Find this: ", "document_instruction": "A table: "}
    np.testing.assert_array_equal(read("document", **both), read("query", instruction="A table: "))
    np.testing.assert_array_equal(read("query", **both), read("query", instruction="Find this: "))
    assert np.abs(read("document", **both) - read("query", **both)).max() > 1e-3


def test_lists_benchmarks_types_and_subsets_are_found_offline(mteb: Any) -> None:
    del mteb
    lbw, magnet, chinese = (find_tasks([name]) for name in ("lbw", "magnet", "c-mteb"))
    assert [len(tasks) for tasks in (lbw, magnet, chinese)] == [15, 12, 31]
    by_name = {task.metadata.name: task for task in lbw}
    assert list(by_name["MassiveIntentClassification"].hf_subsets) == ["en"]
    assert list(by_name["STS17"].hf_subsets) == ["en-en"]
    assert {tuple(task.eval_splits) for task in lbw} == {("test",)}
    assert {task.metadata.type for task in magnet} == {"STS", "Clustering"}
    groups = Counter(task.metadata.type for task in chinese)
    assert [groups[kind] for kind in ("Classification", "Clustering", "PairClassification")] == [6, 4, 2]
    assert [groups[kind] for kind in ("Reranking", "Retrieval", "STS")] == [4, 8, 7]
    assert len(find_tasks(["c-mteb:Clustering"])) == len(find_tasks(["MTEB(cmn, v1):Clustering"])) == 4
    assert find_tasks(split_tasks("BQ, c-mteb:STS"))[0].metadata.name == "BQ"
    assert len(find_tasks(["BQ", "c-mteb:STS"])) == 7
    with pytest.raises(ConfigError, match=r"no subset 'en'; allowed: .*en-en"):
        find_tasks(["STS17:en"])
    with pytest.raises(ConfigError, match="no tasks of type 'Sts'; allowed: Classification, Clustering"):
        find_tasks(["c-mteb:Sts"])
    with pytest.raises(ConfigError, match=r"no task or benchmark 'lbv' .*lbw, magnet, c-mteb"):
        find_tasks(["lbv"])


def test_what_is_done_to_tasks_of_a_benchmark_is_not_done_to_the_benchmark(mteb: Any) -> None:
    benchmark = mteb.get_benchmark("MTEB(cmn, v1)")
    before = [list(task.eval_splits) for task in benchmark.tasks]
    assert ["validation", "test"] in before
    assert ["validation", "test"] not in [list(task.eval_splits) for task in find_tasks(["c-mteb"])]
    assert [list(task.eval_splits) for task in benchmark.tasks] == before
    filled, again = (find_tasks(["MTEB(eng, v2):STS"])[-1] for _ in range(2))
    filled.data_loaded = True  # as `fill_task` sets it
    assert not again.data_loaded
    assert not find_tasks(["MTEB(eng, v2):STS"])[-1].data_loaded


def test_instructions_are_read_by_task_and_by_type(mteb: Any, decoder: Decoder, pairs: Task, tmp_path: Path) -> None:
    of_lbw, of_magnet = read_instructions("lbw"), read_instructions("magnet")
    assert of_lbw["STS"] == "Instruct: Retrieve semantically similar text.\nQuery: "
    assert set(of_lbw) - {"STS"} <= {task.metadata.name for task in find_tasks(["lbw"])}
    assert of_magnet["MedrxivClusteringS2S"] == "Identify the main category of Medrxiv papers based on the titles: "
    file = tmp_path / "instructions.yaml"
    file.write_text("format: 'Instruct: {task}. '\nSTS: Find the same\nSICK-R: Compare\n", encoding="utf-8")
    instructions = read_instructions(str(file))
    assert instructions == {"STS": "Instruct: Find the same. ", "SICK-R": "Instruct: Compare. "}
    spec = ExtractionSpec(layers=("block_02",))
    how: dict[str, Any] = {"out": tmp_path / "mteb", "caches": tmp_path / "caches"}

    def scores(given: Any) -> list[float]:
        tasks = [fill_task(mteb.get_task(name), pairs) for name in ("STSBenchmark", "SICK-R")]
        found: list[float] = run_mteb(decoder, spec, tasks, instructions=given, **how)["score"].tolist()
        return found

    plain, told = scores(None), scores(instructions)
    assert plain[0] == plain[1], "the same rows"
    assert len({plain[0], *told}) == 3, "an instruction for each of them"
    apart = [scores({"STSBenchmark": instructions["STS"]})[0], scores({"STS": instructions["SICK-R"]})[1]]
    assert told == pytest.approx(apart, abs=1e-5)  # mteb rounds
    with pytest.raises(ConfigError, match="instruction for 'STSBenchmrk', which is no task and no type"):
        scores({"STSBenchmrk": "Find the same: "})
    file.write_text("STS: [1]\n", encoding="utf-8")
    for source, message in {
        str(file): "holds no instructions",
        "c-mteb": "has no",
        "gone.yaml": "allowed: a YAML file, or lbw",
    }.items():
        with pytest.raises(ConfigError, match=message):
            read_instructions(source)


def test_several_plans_share_what_they_have_in_common(mteb: Any, decoder: Decoder, pairs: Task, tmp_path: Path) -> None:
    spec, plans = ExtractionSpec(), [parse_plan(text) for text in ("causal", "backward:1", "bidirectional:1")]
    alone = [
        run_mteb(
            decoder,
            spec.with_plan(plan),
            [fill_task(mteb.get_task("STSBenchmark"), pairs)],
            out=tmp_path / f"mteb-{number}",
            caches=tmp_path / f"caches-{number}",
        )
        for number, plan in enumerate(plans)
    ]
    task = fill_task(mteb.get_task("STSBenchmark"), pairs)
    frame = run_mteb(decoder, spec, [task], plans=plans, out=tmp_path / "mteb", caches=tmp_path / "caches")
    caches = [LatentCache(path) for path in (tmp_path / "caches").glob("*.h5")]
    assert len(caches) == 2 * len(plans), "a cache for each side of the pairs and plan"
    assert {cache.certificate["swept_with"] for cache in caches} == {len(plans)}
    assert frame["plan"].unique().tolist() == [plan.text for plan in plans]
    together = pd.concat(alone).reset_index(drop=True)
    pd.testing.assert_frame_equal(frame, together, atol=1e-4, rtol=0)


def test_means_are_over_tasks_and_over_types() -> None:
    keys = {"plan": "causal", "pooling": "mean", "layer": "block_01"}
    scores = {
        ("a", "STS", "test"): 0.2,
        ("a", "STS", "validation"): 0.4,
        ("b", "STS", "test"): 0.5,
        ("c", "Clustering", "test"): 0.9,
    }
    frame = pd.DataFrame([{"task": t, "type": k, "split": s, **keys, "score": v} for (t, k, s), v in scores.items()])
    means = mean_scores(frame).set_index("mean")
    assert means["score"].to_dict() == pytest.approx(
        {"STS": 0.4, "Clustering": 0.9, "all tasks": (0.3 + 0.5 + 0.9) / 3, "all types": 0.65}
    )
    assert means["n_tasks"].to_dict() == {"STS": 2, "Clustering": 1, "all tasks": 3, "all types": 3}


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
    assert main(["mteb", "--tasks", "STS17", "--local", *options]) == 1
    assert "name it, as 'STS17:ko-ko'" in capsys.readouterr().err
    plans = ["--plans", "causal;bidirectional:1", "--instructions", "lbw", "--out", "both"]
    assert main(["mteb", "--tasks", "STSBenchmark,SICK-R", "--local", *plans, "--figures", "svg", *options]) == 0
    means = pd.read_csv("both/mteb_means.csv")
    assert set(means["mean"]) == {"STS", "all tasks", "all types"}
    assert set(means["plan"]) == {"causal", "bidirectional:1"}
    assert "all tasks" in capsys.readouterr().out
