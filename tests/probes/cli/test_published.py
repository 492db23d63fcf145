"""Checkpoints as others publish them, tiny and random, go through every command that reads a decoder or its run."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from probes.cli.main import main
from probes.service.app import Limits, open_runs
from tests.extract.tiny_decoders import MULTIMODAL, save_decoder, save_multimodal
from tests.probes.adaptation.test_adapt_data import write_lines
from tests.probes.finished_run import write_config
from tests.probes.service.running import Client, running

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

LONG = {"max_position_embeddings": 256}
ONE_BY_THREE = {"sliding_window": 8, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "EmbeddingGemma": ("gemma3_text", {"use_bidirectional_attention": True, **ONE_BY_THREE}),
    "GTE-Qwen2": ("qwen2", {"is_causal": False}),
    "BidirLM, Gemma": ("gemma3_text", {"use_bidirectional_attention": True, "tie_word_embeddings": True}),
    "BidirLM, Qwen": ("qwen3", {"is_causal": False, "tie_word_embeddings": True}),
}


@pytest.fixture(scope="module", autouse=True)
def fast(sketched_figures: None) -> None:
    """Save the time of rendering for all but one."""


@pytest.mark.parametrize("name", [*PUBLISHED, "qwen3_vl", "qwen3_asr"])
def test_every_command_takes_it(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if name == "EmbeddingGemma":
        request.getfixturevalue("rendered_figures")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "decoder"
    if name in MULTIMODAL:
        save_multimodal(folder, name, **LONG)
    else:
        family, changes = PUBLISHED[name]
        save_decoder(folder, family=family, **{**LONG, **changes})
    decoder, config = str(folder), str(write_config(tmp_path, folder))
    values = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
    is_flagged = name in PUBLISHED
    values["extraction"]["plan"] = "bidirectional"
    values["heads"] = {"layer-cosine": {"pooling": "last"}}
    Path(config).write_text(yaml.safe_dump(values), encoding="utf-8")
    Path("texts.txt").write_text("A cat sleeps.\nSnow fell.\n", encoding="utf-8")
    write_lines(Path("lines.txt"), n=60)
    phases = ["--phases", "[{steps: 2, weights: {mntp: 1}}]", "--training.length", "16", "--training.batch", "4"]
    held_out = ["--training.held_out", "4", "--name", "adapted", "--quiet"]
    local = ["--tasks", "STSBenchmark", "--local", "--task.pairs", "20", "--figures", "svg", "--decoder.name", decoder]
    counts = ["--choices", "0", "--infillings", "1", "--window", "16", "--continuations", "1", "--new-tokens", "4"]
    plans = ("--plans", "causal;bidirectional", "--name", "swept")
    for words in (
        ("verify", decoder, "bidirectional"),
        ("verify", decoder, "causal"),
        ("attention", decoder, "nosink-bidirectional:2", "--figures", "svg"),
        ("extract", config),
        ("run", config),
        ("fit", config, "--head", "layer-cosine"),
        ("run", config, "--extraction.plan", "causal", "--name", "causal"),
        ("sweep", config, *plans),
        ("layers", "runs/tiny", "--views", "alone,shapley", "--orders", "10", "--resamples", "100"),
        ("geometry", "runs/tiny"),
        ("score", "runs/tiny", "A cat sleeps.", "The cat is asleep."),
        ("predict", "runs/tiny", "pairs.tsv", "--columns", "sentence1,sentence2", "--out", "scores.csv"),
        ("compare", "runs/causal", "runs/tiny", "--out", "compared", "--figures", "svg"),
        ("table", "runs/tiny", "runs/causal"),
        ("report", "runs/tiny"),
        ("embed", "texts.txt", "--out", "latents.npy", "--decoder.name", decoder, "--caches", "caches"),
        ("export", "parquet", "runs/tiny", "latents.parquet", "--layer", "2"),
        ("export", "sentence-transformers", "runs/tiny", "encoder", "--layer", "2"),
        ("push", "runs/tiny", "--to", "staged"),
        ("weights", decoder, decoder, "--out", "compared"),
        ("run", config, "--name", "merged", "--decoder.merge", f"[{{name: {decoder}, weight: 1.0}}]"),
        ("adapt", "--decoder.name", decoder, "--corpus", "[{files: lines.txt}]", *phases, *held_out),
        ("run", config, "--name", "adapted", "--decoder.adapter", "adapters/adapted"),
        ("infill", decoder, "--texts", "lines.txt", "--span-tokens", "2-4", *counts, "--quiet"),
        *([("mteb", *local)] if find_spec("mteb") else []),
    ):
        assert main([*words]) == 0, (words, capsys.readouterr())
    with running(open_runs(["runs/tiny"]), Limits()) as port, Client(port) as client:
        status, answer = client.post("/runs/tiny/predict", {"rows": [{"text1": "A cat.", "text2": "It sleeps."}]})
        assert status == 200 and len(answer["predictions"]) == 1, answer
    said = capsys.readouterr()
    assert ("was trained to attend to both sides" in said.out + said.err) == is_flagged
    assert pd.read_csv("compared/weights.csv")["cosine"].min() == pytest.approx(1, abs=1e-9)
    [stored] = Path("encoder").glob("config.json")
    assert stored.is_file()
    merged, alone, adapted = (
        json.loads(Path(f"runs/{run}/scores.json").read_text(encoding="utf-8"))["decoder"]["weight_digest"]
        for run in ("merged", "tiny", "adapted")
    )
    assert merged == alone != adapted
