"""Checkpoints as others publish them, tiny and random, go through every command that reads a decoder or its run."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from probes.cli.main import main
from tests.extract.tiny_decoders import MULTIMODAL, save_decoder, save_multimodal
from tests.probes.finished_run import write_config

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

LONG = {"max_position_embeddings": 256}
ONE_BY_THREE = {"sliding_window": 8, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "EmbeddingGemma": ("gemma3_text", {"use_bidirectional_attention": True, **ONE_BY_THREE}),
    "GTE-Qwen2": ("qwen2", {"is_causal": False}),
    "BidirLM, Gemma": ("gemma3_text", {"use_bidirectional_attention": True, "tie_word_embeddings": True}),
    "BidirLM, Qwen": ("qwen3", {"is_causal": False, "tie_word_embeddings": True}),
}


@pytest.mark.usefixtures("rendered_figures")
@pytest.mark.parametrize("name", [*PUBLISHED, "qwen3_vl", "qwen3_asr"])
def test_every_command_takes_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    ):
        assert main([*words]) == 0, (words, capsys.readouterr())
    said = capsys.readouterr()
    assert ("was trained to attend to both sides" in said.out + said.err) == is_flagged
    assert pd.read_csv("compared/weights.csv")["cosine"].min() == pytest.approx(1, abs=1e-9)
    [stored] = Path("encoder").glob("config.json")
    assert stored.is_file()
    merged, alone = (
        yaml.safe_load(Path(f"runs/{run}/scores.json").read_text(encoding="utf-8")) for run in ("merged", "tiny")
    )
    assert merged["decoder"]["weight_digest"] == alone["decoder"]["weight_digest"]
