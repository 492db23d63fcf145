"""A configuration that is fitted on a given cache says what that cache holds."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from extract.decoders.decoder import load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError
from extract.inputs.joined_text import join_words
from extract.inputs.template import InputTemplate
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.store.cache import LatentCache
from probes.runs.run_caches import config_of
from probes.runs.run_config import RunConfig, TaskSpec

OTHER = ExtractionSpec(
    plan="nosink-bidirectional:1",
    template=InputTemplate(instruction="Say: ", max_tokens=9),
    poolings=("last", "max"),
    layers=("block_01", "final_norm"),
    storage_dtype="float16",
)
WORDS = replace(OTHER, poolings=("mean",), words=WordSpec(("first",), shift=True, on_lost="count"))


def extract(decoder: Path, spec: ExtractionSpec, folder: Path) -> LatentCache:
    text = join_words(["cold", "ice"], [True, True]) if spec is WORDS else "ice"
    return extract_latents(load_decoder(str(decoder)), [text], spec=spec, folder=folder)


@pytest.mark.parametrize(("spec", "task"), [(OTHER, "sts-sample"), (WORDS, "words-sample")])
def test_plan_template_poolings_and_layers_are_those_of_the_cache(
    spec: ExtractionSpec, task: str, decoder_folder: Path, tmp_path: Path
) -> None:
    cache = extract(decoder_folder, spec, tmp_path)
    head = "layer-cosine" if task == "sts-sample" else "token-classifier"
    config = RunConfig(decoder=DecoderSpec(str(decoder_folder)), task=TaskSpec(task), heads={head: {}})
    found = config_of(config, cache)
    assert replace(found, extraction=config.extraction) == config
    assert found.extraction == spec
    assert config_of(found, cache) is found


def test_another_decoder_is_named_as_the_cache_names_it(decoder_folder: Path, tmp_path: Path) -> None:
    cache = extract(decoder_folder, OTHER, tmp_path)
    found = config_of(RunConfig(decoder=DecoderSpec("gpt2", revision="main")), cache).decoder
    assert found == DecoderSpec(decoder_folder.name, dtype="float32")


def test_a_cache_that_is_not_as_the_protocol_extracts_is_refused(decoder_folder: Path, tmp_path: Path) -> None:
    cache = extract(decoder_folder, ExtractionSpec(), tmp_path)
    config = RunConfig(
        decoder=DecoderSpec(str(decoder_folder)),
        task=TaskSpec("class-sample"),
        heads={"logistic-probe": {}},
        protocol="look-both-ways",
    )
    with pytest.raises(ConfigError, match=r"does not hold what protocol 'look-both-ways' extracts"):
        config_of(config, cache)


def test_spans_of_a_file_must_be_given_again(decoder_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "spans.jsonl").write_text('{"text": "ice", "spans": [[0, 2]]}\n', encoding="utf-8")
    template = InputTemplate(spans=str(tmp_path / "spans.jsonl"))
    spec = ExtractionSpec(plan="hybrid", template=template)
    cache = extract(decoder_folder, spec, tmp_path)
    config = RunConfig(decoder=DecoderSpec(str(decoder_folder)))
    with pytest.raises(ConfigError, match=r"given:"):
        config_of(config, cache)
    given = config_of(replace(config, extraction=ExtractionSpec(template=template)), cache)
    assert yaml.safe_load(yaml.safe_dump(given.to_dict()))["extraction"]["template"]["spans"] == template.spans
