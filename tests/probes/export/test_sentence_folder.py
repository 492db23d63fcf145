"""What sentence-transformers encodes with an exported folder is what a cache holds. Needs the extra."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from extract.decoders.decoder import Decoder
from extract.errors import CodeError, ConfigError, DecoderError, HeadError
from extract.inputs.template import InputTemplate
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache, ViewCache
from probes.cli.main import main
from probes.data.task_table import load_task
from probes.export import sentence_transformers as sentence_folder
from probes.export.sentence_transformers import Recipe, export_sentence_transformer, load_sentence_transformer
from probes.runs.probe import Encoder
from probes.runs.run import run
from tests.extract.tiny_decoders import make_decoder, make_texts

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
TEXTS = make_texts(20)
CUT = InputTemplate(max_tokens=12)


@pytest.fixture(autouse=True)
def extra() -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra: pip install '.[sentence-transformers]'")


def encoded(folder: Path, **how: Any) -> Any:
    return load_sentence_transformer(folder).encode(TEXTS, batch_size=7, **how)


def cached(decoder: Decoder, spec: ExtractionSpec, layer: str, folder: Path) -> Any:
    cache = extract_latents(decoder, TEXTS, spec=spec, folder=folder)
    return cache.gather(cache.rows_of(TEXTS), spec.poolings[0], layers=[layer])[0].numpy()


@pytest.mark.parametrize(
    ("family", "adds_bos"), [("llama", False), ("llama", True), ("gpt2", False), ("gemma3_text", True)]
)
@pytest.mark.parametrize(("layer", "pooling"), [("block_02", "mean"), ("final_norm", "last"), ("block_03", "max")])
def test_a_causal_folder_encodes_as_a_cache_holds(
    family: str, adds_bos: bool, layer: str, pooling: str, tmp_path: Path
) -> None:
    decoder = make_decoder(family, adds_bos=adds_bos)
    spec = ExtractionSpec(poolings=(pooling,), template=CUT)
    made = export_sentence_transformer(decoder, spec, tmp_path / "folder", layer=layer)
    # Block 3 is the last: transformers hands it out normed. A BOS token would be in the mean.
    assert made.is_stock == (layer != "block_03" and not (adds_bos and pooling == "mean"))
    np.testing.assert_allclose(
        encoded(tmp_path / "folder"), cached(decoder, spec, layer, tmp_path / "caches"), atol=1e-4
    )
    if made.is_stock:
        from sentence_transformers import SentenceTransformer

        plain = SentenceTransformer(str(tmp_path / "folder"), device="cpu")
        assert {type(module).__module__.partition(".")[0] for module in plain} == {"sentence_transformers"}
        np.testing.assert_allclose(plain.encode(TEXTS), encoded(tmp_path / "folder"), atol=1e-5)


@pytest.mark.parametrize(
    "spec",
    [
        ExtractionSpec(plan="nosink-bidirectional:2", template=InputTemplate(bos="force")),
        ExtractionSpec(plan="backward", poolings=("first",)),
        ExtractionSpec(template=InputTemplate(instruction="Say what this is about: ")),
        ExtractionSpec(poolings=("median",)),
    ],
    ids=["plan", "backward", "instruction", "median"],
)
def test_other_plans_templates_and_poolings_encode_as_a_cache_holds(spec: ExtractionSpec, tmp_path: Path) -> None:
    decoder = make_decoder()
    made = export_sentence_transformer(decoder, spec, tmp_path / "folder", layer="2", normalise=True)
    assert not made.is_stock
    expected = cached(decoder, spec, "block_02", tmp_path / "caches")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(encoded(tmp_path / "folder"), expected, atol=1e-4)


def test_a_prompt_takes_the_place_of_the_instruction(tmp_path: Path) -> None:
    decoder, prompt = make_decoder(), "Say what this is about: "
    spec = ExtractionSpec(plan="backward")
    export_sentence_transformer(decoder, spec, tmp_path / "folder", layer="block_02")
    asked = ExtractionSpec(plan="backward", template=InputTemplate(instruction=prompt))
    expected = cached(decoder, asked, "block_02", tmp_path / "caches")
    np.testing.assert_allclose(encoded(tmp_path / "folder", prompt=prompt), expected, atol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "max", "first", "last", "weighted-mean"])
def test_a_stock_folder_leaves_the_prompt_out_as_an_extraction_does(pooling: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    decoder, prompt = make_decoder(), "Say what this is about:\n"
    asked = ExtractionSpec(poolings=(pooling,), template=InputTemplate(instruction=prompt))
    made = export_sentence_transformer(
        decoder, ExtractionSpec(poolings=(pooling,)), tmp_path / "folder", layer="block_02"
    )
    # Stock weights count on from the tokens of the prompt, those of an extraction start at the text.
    assert made.is_stock == (pooling != "weighted-mean")
    folder = str(tmp_path / "folder")
    model = SentenceTransformer(folder, device="cpu") if made.is_stock else load_sentence_transformer(folder)
    expected = cached(decoder, asked, "block_02", tmp_path / "caches")
    np.testing.assert_allclose(model.encode(TEXTS, prompt=prompt), expected, atol=1e-4)


def test_a_stock_folder_that_would_differ_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is known against it, the trial still finds that BOS is in the mean, and block 3 normed."""
    monkeypatch.setattr(sentence_folder, "why_not_stock", lambda *_: "")
    decoder = make_decoder(adds_bos=True)
    for layer in ("block_01", "block_03"):
        made = export_sentence_transformer(decoder, ExtractionSpec(), tmp_path / layer, layer=layer)
        assert not made.is_stock


def test_our_module_needs_no_flag_and_a_plain_load_asks_for_one(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = tmp_path / "folder"
    export_sentence_transformer(make_decoder(), ExtractionSpec(plan="backward"), folder, layer="1")
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    model = load_sentence_transformer(folder)
    assert (model.get_embedding_dimension(), model.max_seq_length) == (32, 64)
    model.save(str(tmp_path / "again"))
    np.testing.assert_array_equal(encoded(tmp_path / "again"), encoded(folder))


def test_a_tap_is_exported_at_its_own_width(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    export_sentence_transformer(make_decoder(), ExtractionSpec(), folder, layer="block_02.value")
    model = load_sentence_transformer(folder)
    assert model.get_embedding_dimension() == encoded(folder).shape[1] == 16  # two key heads of four


def test_a_changed_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    export_sentence_transformer(make_decoder(), ExtractionSpec(plan="backward"), folder, layer="1")
    other = make_decoder(seed=1)
    with pytest.raises(ConfigError, match="holds something already"):
        export_sentence_transformer(other, ExtractionSpec(), folder)
    other.module.save_pretrained(folder)
    with pytest.raises(HeadError, match=r"the decoder in .* is not the one it was exported with"):
        load_sentence_transformer(folder)
    values = json.loads((folder / "icecore.json").read_text())
    (folder / "icecore.json").write_text(json.dumps({**values, "schema": 99}))
    with pytest.raises(HeadError, match="its schema is 99, this version reads 1 and 2"):
        load_sentence_transformer(folder)


def test_the_command_exports_what_a_config_names(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"decoder: {{name: {decoder_folder}, device: cpu}}\nextraction: {{layers: [block_01]}}\n")
    assert main(["export", "sentence-transformers", str(config), str(tmp_path / "out")]) == 0
    assert "block_01, mean, plan causal" in capsys.readouterr().out
    assert encoded(tmp_path / "out").shape == (20, 32)


VIEWS: dict[str, Any] = {
    "plain": {},
    "echo": {"template": {"name": "echo", "bos": "force"}, "poolings": ["echo-mean"]},
    "mask": {"plan": "backward:2", "poolings": ["last"]},
}


def side_by_side(cache: LatentCache, texts: list[str], layers: dict[str, str]) -> dict[str, Any]:
    """Gather the latents of each view from its own file, by its own pooling."""
    assert isinstance(cache, ViewCache)
    files = {name: LatentCache(part.path) for name, part in cache.views.items()}
    poolings = {"plain": "mean", "echo": "echo-mean", "mask": "last"}
    return {
        name: files[name].gather(files[name].rows_of(texts), poolings[name], layers=[layer])[0].numpy()
        for name, layer in layers.items()
    }


@pytest.mark.usefixtures("unchecked_shapes", "sketched_figures")
def test_joined_views_encode_as_the_cache_of_the_run_holds(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its template, plan, pooling, layer and transform, which is fitted again by hand on the run's train."""
    finished = run(
        {
            "name": "joined",
            "decoder": {"name": str(decoder_folder), "device": "cpu"},
            "task": {"name": "sts-sample", "pairs": 24},
            "views": VIEWS,
            "heads": {"layer-cosine": {"layers": "blocks", "transform": "standardise"}},
            "bootstrap": 100,
            "caches": str(tmp_path / "caches"),
            "runs": str(tmp_path / "runs"),
        }
    )
    out = tmp_path / "out"
    names = "mask,plain,echo"
    assert main(["export", "sentence-transformers", str(finished.folder), str(out), "--poolings", names]) == 0
    shown = capsys.readouterr().out
    recipe = Recipe.read(out)
    layers = {name: spec.layers[0] for name, spec in recipe.readings.items()}
    assert list(layers) == names.split(",")
    assert len(set(layers.values())) > 1, "one layer for all proves little"
    assert f"echo: {layers['echo']}, echo-mean, template echo, plan causal, standardise, length 1" in shown
    assert "it joins the views mask, plain, echo" in shown
    assert "times what it costs as the plain mean" in shown
    task = load_task("sts-sample").subset(24)
    rows = {split: [*part["sentence1"], *part["sentence2"]] for split, part in task.splits.items()}
    train = side_by_side(finished.cache(), list(dict.fromkeys(rows["train"])), layers)
    parts = []
    for name, latents in side_by_side(finished.cache(), rows["test"], layers).items():
        part = (latents - train[name].mean(0)) / train[name].std(0, ddof=1)
        parts.append(part / np.linalg.norm(part, axis=1, keepdims=True))
    model = load_sentence_transformer(out)
    assert (model.get_embedding_dimension(), model.max_seq_length) == (96, 256)
    vectors = model.encode(rows["test"], batch_size=7)
    np.testing.assert_allclose(vectors, np.concatenate(parts, axis=1), atol=1e-5)
    encoder = Encoder.from_sweep(finished.folder, pooling="mask+plain+echo", caches=str(tmp_path / "caches"))
    np.testing.assert_allclose(vectors, encoder.encode(rows["test"]), atol=1e-5)
    model.save(str(tmp_path / "again"))
    again = load_sentence_transformer(tmp_path / "again")
    np.testing.assert_array_equal(again.encode(rows["test"], batch_size=7), vectors)


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_views_of_a_config_are_encoded_as_an_encoder_has_them(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        yaml.safe_dump({"decoder": {"name": str(decoder_folder), "device": "cpu"}, "views": VIEWS}, sort_keys=False)
    )
    command = ["export", "sentence-transformers", str(config)]
    options: dict[str, Any] = {"views": VIEWS, "caches": str(tmp_path / "caches")}
    assert main([*command, str(tmp_path / "all"), "--layer", "2"]) == 0
    expected = Encoder(decoder_folder, layer=2, **options).encode(TEXTS)
    np.testing.assert_allclose(encoded(tmp_path / "all"), expected, atol=1e-5)
    layers = {"echo": 1, "mask": -1}
    assert main([*command, str(tmp_path / "two"), "--layer", "echo/1,mask/-1", "--normalise"]) == 0
    echo, mask = np.split(Encoder(decoder_folder, layer=layers, **options).encode(TEXTS), 2, axis=1)
    expected = np.concatenate([part / np.linalg.norm(part, axis=1, keepdims=True) for part in (echo, mask)], axis=1)
    np.testing.assert_allclose(encoded(tmp_path / "two"), expected / np.sqrt(2), atol=1e-5)
    prompted = encoded(tmp_path / "two", prompt="Say what this is about: ")
    assert np.abs(prompted - encoded(tmp_path / "two")).max() > 1e-3
    for typed, message in (
        (["--poolings", "eco", "--layer", "1"], "unknown view 'eco': did you mean 'echo'"),
        (["--poolings", "plain,echo", "--layer", "echo/1"], "unknown view with a layer 'plain'"),
        (["--poolings", "plain", "--layer", "plain/1,echo/2"], "unknown view with a layer 'echo'"),
        (["--layer", "plain/1,2"], "--layer is 'plain/1,2'; allowed: one for all views, or one of each"),
        (["--layer", "plain/1,plain/2"], "--layer is 'plain/1,plain/2'; allowed: one for all views"),
        (["--poolings", "plain,echo"], "no single layer is chosen there; name one with --layer"),
        (["--layer", "echo/blocks"], "the layer is 'blocks', which are 3; allowed: one"),
    ):
        assert main([*command, str(tmp_path / "no"), *typed]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("sentence_bert_config.json", {"model_kwargs": {"device_map": "auto", "offload_folder": "elsewhere"}}),
        ("modules.json", "../elsewhere"),
    ],
)
def test_a_stock_folder_of_anybody_has_no_settings_but_those_of_an_export(
    file: str, change: dict[str, object] | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would have transformers write files where they say, or fetch code."""
    monkeypatch.chdir(tmp_path)
    export_sentence_transformer(make_decoder(), ExtractionSpec(), tmp_path / "folder", layer="block_02")
    path = tmp_path / "folder" / file
    values = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(values, list):
        values[1]["path"] = change
    else:
        values |= change
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CodeError, match="has settings that no export has"):
        load_sentence_transformer(tmp_path / "folder")
    assert not (tmp_path / "elsewhere").exists()


def test_a_stock_folder_is_read_by_the_rules_of_decoders(tmp_path: Path) -> None:
    export_sentence_transformer(make_decoder(), ExtractionSpec(), tmp_path / "folder", layer="block_02")
    path = tmp_path / "folder/config.json"
    values = {**json.loads(path.read_text(encoding="utf-8")), "transformers_weights": "x.safetensors.index.json"}
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(DecoderError, match="names its weights as transformers_weights"):
        load_sentence_transformer(tmp_path / "folder")
