"""Runs with named templates, and with several whose latents are averaged: folders, reports, and caches found again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from extract.inputs.template import InputTemplate
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache, MeanCache
from probes.cli.main import main
from probes.runs.folder import RunFolder, without_absolute_paths
from probes.runs.run import run
from probes.runs.run_caches import config_of, find_cache_of
from probes.runs.run_config import RunConfig, load_run_task
from tests.probes.finished_run import Finished

NAME = "prompt-eol+kv-embedding"


def averaged(finished: Finished, base: Path) -> RunConfig:
    """Make the tiny run read the mean of two prompts, with one head."""
    config = RunFolder(finished.folder).config
    spec = ExtractionSpec(template=InputTemplate(name=NAME), poolings=("last",))
    return replace(
        config,
        extraction=spec,
        heads={"layer-cosine": {"pooling": "last"}},
        seeds=(0,),
        caches=str(base / "caches"),
        runs=str(base / "runs"),
    )


@pytest.mark.long
def test_a_run_reads_the_mean_of_several_templates(finished: Finished, tmp_path: Path) -> None:
    config = averaged(finished, tmp_path)
    result = run(config)
    [one, other] = [LatentCache(path) for path in (tmp_path / "caches").glob("*.h5")]
    assert {c.identity.template["instruction"] for c in (one, other)} == {'This sentence : "', "Context: "}
    template: Any = result.record.cache["template"]
    assert template["name"] == NAME
    assert len(template["mean_of"]) == 2
    settings = yaml.safe_load((result.folder / "config.yaml").read_text(encoding="utf-8"))
    assert settings["extraction"]["template"]["name"] == NAME
    assert RunFolder(result.folder).config.extraction.template == config.extraction.template
    assert "name 'prompt-eol+kv-embedding'" in (result.folder / "summary.md").read_text(encoding="utf-8")
    found = RunFolder(result.folder).cache(str(tmp_path / "caches"))
    assert isinstance(found, MeanCache)
    assert found.manifest.id == result.record.cache["id"]
    by_config = find_cache_of(config, load_run_task(config))
    assert isinstance(by_config, MeanCache)
    assert by_config.manifest.id == found.manifest.id
    assert config_of(config, found) is config
    other_config = replace(config, extraction=ExtractionSpec(poolings=("last",)))
    assert config_of(other_config, found).extraction.template == config.extraction.template
    again = run(config, cache=found)
    assert again.folder == result.folder


def test_old_settings_are_written_as_before(finished: Finished) -> None:
    written = yaml.safe_load((finished.folder / "config.yaml").read_text(encoding="utf-8"))
    assert list(written["extraction"]["template"]) == ["bos", "instruction", "max_tokens", "on_long", "spans"]
    config = RunFolder(finished.folder).config
    more = replace(config, extraction=replace(config.extraction, template=InputTemplate(name="echo")))
    assert set(more.to_dict()["extraction"]["template"]) - set(written["extraction"]["template"]) == {
        "name",
        "repeat",
        "joiner",
    }


def test_words_of_a_template_are_no_paths() -> None:
    wording = {"suffix": "/tmp", "joiner": "/", "system": "/tmp", "answer": "/tmp", "document_instruction": "/tmp"}
    assert without_absolute_paths(wording) == wording


def test_a_dry_run_shows_a_row_for_every_template(decoder_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--dry-run", "--decoder.name", str(decoder_folder), "--decoder.device", "cpu", "--task.pairs", "8"]
    assert main(["run", *fixed, "--extraction.template.name", NAME]) == 0
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if line.startswith("example ")]
    assert len(rows) == 2
    assert "special '<s>' | instruction 'This sentence : \"' | text '" in rows[0]
    assert "| suffix '\" means in one word:\"'; last reads '\"', token " in rows[0]
    assert "instruction 'Context: '" in rows[1]
    assert "together:\ndisk " in shown


def test_templates_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "templates"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "prompt-eol PromptEOL (2307.16645): 'This sentence : \"X\" means in one word:\"', last 'prompt'" in shown
    assert "echo Echo embeddings" in shown
    assert "'Rewrite the sentence: X, rewritten sentence: X'" in shown
    assert "meta-eol-8 the mean of 8: meta-eol-8/1 to meta-eol-8/8" in shown
