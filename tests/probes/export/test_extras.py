"""The way out without the extras: a sentence says what to install, and caches are written by commands."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from extract.errors import ConfigError
from extract.inputs.template import InputTemplate
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from probes.cli.main import main
from probes.export.mteb import as_mteb_encoder
from probes.export.sentence_transformers import Recipe, export_sentence_transformer, why_not_stock
from probes.latents.text_latents import no_transform
from tests.extract.tiny_decoders import make_decoder
from tests.probes.finished_run import Finished


@pytest.mark.parametrize("package", ["mteb", "sentence_transformers"])
def test_a_missing_extra_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = package.replace("_", "-")
    with pytest.raises(ConfigError, match=rf"extra package {extra} .* pip install '{extra}'"):
        if package == "mteb":
            as_mteb_encoder(make_decoder())
        else:
            export_sentence_transformer(make_decoder(), ExtractionSpec(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("spec", "layer", "adds_bos", "reason"),
    [
        (ExtractionSpec(), "final_norm", False, ""),
        (ExtractionSpec(poolings=("last",)), "block_01", True, ""),
        (ExtractionSpec(template=InputTemplate(max_tokens=9)), "embedding", False, ""),
        (ExtractionSpec(), "block_03", False, "hands out block_03 only after the final norm"),
        (ExtractionSpec(), "block_01", True, "adds special tokens"),
        (ExtractionSpec(plan="backward"), "block_01", False, "the plan is 'backward'"),
        (ExtractionSpec(poolings=("median",)), "block_01", False, "its pooling is 'median'"),
        (ExtractionSpec(poolings=("weighted-mean",)), "block_01", False, "its pooling is 'weighted-mean'"),
        (ExtractionSpec(template=InputTemplate(instruction="Say: ")), "block_01", False, "its template"),
    ],
)
def test_what_stock_modules_cannot_read_is_known(spec: ExtractionSpec, layer: str, adds_bos: bool, reason: str) -> None:
    decoder = make_decoder(adds_bos=adds_bos)
    recipe = Recipe.of(decoder, spec, layer=layer, pooling=spec.poolings[0], normalise=False)
    assert reason in why_not_stock(recipe, decoder)
    assert bool(reason) == bool(why_not_stock(recipe, decoder))


def test_a_recipe_is_read_back(tmp_path: Path) -> None:
    spec = ExtractionSpec(plan="nosink-bidirectional:2", template=InputTemplate(bos="force", max_tokens=9))
    recipe = Recipe.of(make_decoder(), spec, layer="-1", pooling="mean", normalise=True)
    (tmp_path / Recipe.FILE).write_text(json.dumps(recipe.to_dict()))
    found = Recipe.read(tmp_path)
    assert (found.spec, found.normalise, found.layer) == (recipe.spec, True, "final_norm")
    with pytest.raises(ConfigError, match="'blocks', which are 3; allowed: one"):
        Recipe.of(make_decoder(), spec, layer="blocks", pooling="mean", normalise=True)
    one = no_transform(1, 0)
    with pytest.raises(ConfigError, match=r"read_out is 'none' for mean, last together; allowed: a mapping of each"):
        Recipe.of(make_decoder(), spec, layer="1", pooling="mean+last", normalise=True, read_out=one)
    spans = ExtractionSpec(plan="hybrid", template=InputTemplate(spans=str(tmp_path / Recipe.FILE)))
    with pytest.raises(ConfigError, match=r"template\.spans is the file 'icecore\.json'"):
        Recipe.of(make_decoder(), spans, layer="1", pooling="mean", normalise=False)


def test_a_run_is_exported_as_a_table_with_its_texts(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "latents.parquet"
    command = ["export", "parquet", str(finished.folder), str(out), "--texts", "task", "--layer", "1,-1"]
    assert main([*command, "--poolings", "last"]) == 0
    table = pd.read_parquet(out)
    cache = LatentCache(finished.cache)
    last = cache.layers[-1]
    assert [name for name in table.columns if "/" in name] == ["last/block_01", f"last/{last}"]
    row = int(cache.rows_of([table["text"][3]])[0])
    assert table[f"last/{last}"][3].tolist() == cache.layer(last, "last")[row].tolist()
    assert main(["export", "safetensors", str(finished.cache), str(tmp_path / "x.safetensors")]) == 0
    assert main(["export", "arrow", str(finished.cache), str(out)]) == 1
    assert "allowed for arrow: a name that ends in .arrow" in capsys.readouterr().err
    assert main(["export", "parquet", str(finished.cache), str(out), "--texts", "task"]) == 1
    assert "is for a run folder" in capsys.readouterr().err
