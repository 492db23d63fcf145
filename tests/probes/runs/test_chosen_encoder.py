"""From the answer to an encoder: what a run or sweep chose, as vectors in Python and in a folder for others."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.base import clone

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import CacheIdentityError, ConfigError, HeadError, UnknownNameError
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.run.extraction_spec import ExtractionSpec
from probes.cli.main import main
from probes.data.task_table import load_task
from probes.latents.text_latents import Transform
from probes.report.scores import seal_scores
from probes.runs import predict
from probes.runs.config_file import as_config
from probes.runs.folder import RunFolder
from probes.runs.predict import ChosenEncoder, LoadedRun, load_run, moved_decoder, relative_cost
from probes.runs.probe import Encoder
from probes.runs.run import run
from probes.runs.sweep_run import sweep
from tests.extract.tiny_decoders import save_decoder
from tests.probes.runs.plan_sweeps import run_sweep

SAMPLE = load_task("sts-sample").splits["test"].select(range(20))
PAIRS = list(zip(SAMPLE["sentence1"], SAMPLE["sentence2"], strict=True))


def configure(base: Path, decoder: Path, **fields: Any) -> Any:
    values = {
        "name": "encoders",
        "decoder": {"name": str(decoder), "device": "cpu"},
        "task": {"name": "sts-sample", "pairs": 24},
        "heads": {"layer-cosine": {}},
        "bootstrap": 100,
        "caches": str(base / "caches"),
        "runs": str(base / "runs"),
    }
    return values | fields


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> LoadedRun:
    """A run that chose one layer of two views, by standardised cosines, beside a head that reads all of them."""
    base = tmp_path_factory.mktemp("chosen")
    views = {"plain": {}, "echo": {"template": "echo", "poolings": "echo-mean"}}
    siamese = {"max_epochs": 1, "batch_size": 16, "hidden": 8, "bottleneck": 4}
    heads = {"layer-cosine": {"transform": "standardise"}, "siamese-cosine": siamese}
    return run(configure(base, decoder_folder, views=views, heads=heads))


def cosines(encoder: Encoder) -> np.ndarray:
    a, b = (torch.from_numpy(encoder.encode([pair[k] for pair in PAIRS])) for k in (0, 1))
    return torch.nn.functional.cosine_similarity(a, b, dim=-1).numpy()


def require_same_order(encoder: Encoder, folder: Path, head: str = "layer-cosine") -> None:
    """Compare the cosines of an encoder with the scores of the head, which a line made of them, cut at 0 and 5."""
    scores = np.array(load_run(folder).predict(PAIRS, head=head))
    inside = (scores > 0) & (scores < 5)
    assert inside.sum() > 5
    alike, scores = cosines(encoder)[inside], scores[inside]
    slope, offset = np.polyfit(alike, scores, 1)
    np.testing.assert_allclose(slope * alike + offset, scores, rtol=1e-3, atol=1e-3)


def test_a_run_becomes_the_encoder_that_it_chose(viewed: LoadedRun, tmp_path: Path) -> None:
    chosen = ChosenEncoder.of(viewed.folder)
    view, _, layer = viewed.record.heads["layer-cosine"].chosen["layer"].partition("/")
    assert (chosen.head, chosen.layer) == ("layer-cosine", layer)
    assert chosen.spec.poolings == {"plain": ("mean",), "echo": ("echo-mean",)}[view]
    assert chosen.spec.template.repeat == (2 if view == "echo" else 1)
    assert isinstance(chosen.read_out, Transform)
    assert chosen.read_out.name == "standardise"
    encoder = Encoder.from_sweep(viewed.folder, caches=str(tmp_path))
    assert encoder.encode(["Ice."]).shape == (1, 32)
    require_same_order(encoder, viewed.folder)
    raw = encoder.set_params(read_out=None)
    assert isinstance(raw, Encoder)
    with pytest.raises(AssertionError):  # without the transform they are other cosines
        require_same_order(raw, viewed.folder)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> LoadedRun:
    """A run over the blocks of three views, by cosines, raw or standardised, and by one that saves one transform."""
    base = tmp_path_factory.mktemp("joined")
    views = {"plain": {}, "echo": {"template": "echo", "poolings": "echo-mean"}, "mask": {"plan": "backward:2"}}
    heads = {"layer-cosine": {"layers": "blocks"}}
    return run(configure(base, decoder_folder, views=views, heads=heads))


def test_views_become_one_encoder_each_with_the_layer_and_transform_that_it_has_alone(
    blocks: LoadedRun, decoder_folder: Path, tmp_path: Path
) -> None:
    """As a run of each view by itself chooses, and the cosine of joined vectors is the mean of the views' cosines."""
    caches = blocks.cache().path.parent
    chosen = ChosenEncoder.of(blocks.folder, pooling="mask+echo")
    assert isinstance(chosen.layer, dict)
    assert isinstance(chosen.read_out, dict)
    assert (list(chosen.layer), len(set(chosen.layer.values()))) == (["mask", "echo"], 2)
    extractions = {"echo": {"template": "echo", "poolings": "echo-mean"}, "mask": {"plan": "backward:2"}}
    means = []
    for view, extraction in extractions.items():
        own = configure(tmp_path, decoder_folder, name=view, extraction=extraction, caches=str(caches))
        alone = ChosenEncoder.of(run({**own, "heads": {"layer-cosine": {"layers": "blocks"}}}).folder)
        assert chosen.layer[view] == alone.layer
        assert isinstance(alone.read_out, Transform)
        assert torch.equal(chosen.read_out[view].scale, alone.read_out.scale)
        means.append(cosines(Encoder.from_sweep(blocks.folder, pooling=view, caches=str(caches))))
    joined = Encoder.from_sweep(blocks.folder, pooling="mask+echo", caches=str(caches))
    assert joined.encode(["Ice."]).shape == joined.transform(["Ice."]).shape == (1, 64)
    np.testing.assert_allclose(cosines(joined), np.mean(means, axis=0), atol=1e-5)
    again = clone(joined)
    np.testing.assert_array_equal(again.encode(["Ice."], pooling="echo"), joined.encode(["Ice."])[:, 32:])


def test_views_that_were_chosen_together_become_one_encoder(
    blocks: LoadedRun, decoder_folder: Path, tmp_path: Path
) -> None:
    caches = blocks.cache().path.parent
    views = {"plain": {}, "echo": {"template": "echo", "poolings": "echo-mean"}, "mask": {"plan": "backward:2"}}
    heads = {"joined-cosine": {"layers": "blocks"}}
    config = configure(tmp_path, decoder_folder, views=views, heads=heads, caches=str(caches))
    folder = run(config).folder
    picked = load_run(folder).record.heads["joined-cosine"].chosen["views"]
    chosen = ChosenEncoder.of(folder)
    assert isinstance(chosen.layer, dict)
    assert {f"{view}/{layer}" for view, layer in chosen.layer.items()} == {view["layer"] for view in picked}
    encoder = Encoder.from_sweep(folder, caches=str(caches))
    assert encoder.encode(["Ice."]).shape == (1, 96)
    require_same_order(encoder, folder, "joined-cosine")
    with pytest.raises(AssertionError):  # without one of the views they are other cosines
        require_same_order(
            Encoder.from_sweep(folder, pooling="plain+echo", caches=str(caches)), folder, "joined-cosine"
        )
    alone = Encoder.from_sweep(folder, pooling="echo", caches=str(caches)).encode(["Ice."])
    np.testing.assert_allclose(encoder.encode(["Ice."])[:, 32:64], alone / np.linalg.norm(alone), atol=1e-5)
    with pytest.raises(UnknownNameError, match=r"view or pooling that head 'joined-cosine' reads 'tail'"):
        ChosenEncoder.of(folder, pooling="plain+tail")


def test_views_side_by_side_may_each_have_a_layer(blocks: LoadedRun, decoder_folder: Path) -> None:
    options: dict[str, Any] = {"caches": str(blocks.cache().path.parent)}
    options["views"] = {"plain": {}, "echo": {"template": "echo", "poolings": "echo-mean"}}
    texts = ["A cold core was drilled.", "Ice."]
    joined = Encoder(decoder_folder, layer={"plain": 1, "echo": "block_03"}, **options).encode(texts)
    every = Encoder(decoder_folder, **options)
    parts = [every.encode(texts, layer=layer, pooling=view) for view, layer in (("plain", 1), ("echo", 3))]
    np.testing.assert_array_equal(joined, np.concatenate(parts, axis=1))
    with pytest.raises(UnknownNameError, match=r"unknown view with a layer 'echo'.* Allowed: plain"):
        Encoder(decoder_folder, layer={"plain": 1}, **options).encode(texts, pooling="echo")


def test_views_of_a_head_that_saved_one_transform_are_refused(tmp_path: Path, decoder_folder: Path) -> None:
    """Its other layers could not be transformed; what it takes as it is can be joined."""
    views = {"plain": {}, "last": {"poolings": "last"}}
    for transform in ("standardise", "none"):
        heads = {"layer-rerank": {"transform": transform}}
        task = {"name": "reranking-sample"}
        folder = run(configure(tmp_path, decoder_folder, name=transform, views=views, heads=heads, task=task)).folder
        if transform == "none":
            joined = ChosenEncoder.of(folder, pooling="plain+last").read_out
            assert isinstance(joined, dict)
            assert {read_out.is_unit for read_out in joined.values()} == {True}
        else:
            with pytest.raises(HeadError, match=r"'layer-rerank' saved .* of (plain|last)/\w+ alone, and of "):
                ChosenEncoder.of(folder, pooling="plain+last")


@pytest.mark.parametrize("plans", [["causal", "bidirectional:2"], ["bidirectional:2", "causal"]])
def test_of_plans_with_views_the_head_of_the_chosen_one_is_loaded(
    plans: list[str], tmp_path: Path, decoder_folder: Path
) -> None:
    """The first view has a plan of its own, so that it is the same at every point."""
    views = {"mask": {"plan": "backward:2"}, "plain": {}}
    heads = {"layer-cosine": {"transform": "standardise", "layers": "block_03"}}
    config = as_config(configure(tmp_path, decoder_folder, views=views, heads=heads))
    swept = run_sweep(config, [parse_plan(text) for text in plans])
    [choice] = swept.record.chosen.values()
    views["plain"] = {"plan": choice.plan.text}
    alone = run(configure(tmp_path, decoder_folder, name="alone", heads=heads, views=views))
    mine, theirs = (ChosenEncoder.of(folder, pooling="plain").read_out for folder in (swept.folder, alone.folder))
    assert isinstance(mine, Transform)
    assert isinstance(theirs, Transform)
    torch.testing.assert_close(mine.mean, theirs.mean, atol=1e-5, rtol=0)


def test_what_is_no_encoder_is_refused(viewed: LoadedRun, tmp_path: Path) -> None:
    with pytest.raises(HeadError, match=r"head 'siamese-cosine' .* reads several layers together, .*: layer-cosine\."):
        ChosenEncoder.of(viewed.folder, head="siamese-cosine")
    with pytest.raises(UnknownNameError, match="unknown head 'layer-cosin': did you mean 'layer-cosine'"):
        ChosenEncoder.of(viewed.folder, head="layer-cosin")
    with pytest.raises(UnknownNameError, match=r"unknown view or pooling .* reads 'eco': did you mean 'echo'"):
        ChosenEncoder.of(viewed.folder, pooling="plain+eco")
    with pytest.raises(HeadError, match="holds no finished run"):
        ChosenEncoder.of(tmp_path / "nowhere")


def test_a_sweep_becomes_the_encoder_of_the_chosen_plan(
    decoder_folder: Path, tmp_path: Path, read_json: Callable[[Path], Any]
) -> None:
    config = as_config(configure(tmp_path, decoder_folder, extraction={"template": {"bos": "force"}}))
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()), encoding="utf-8")
    assert main(["sweep", str(path), "--kinds", "backward", "--k", "0-2"]) == 0
    folder = tmp_path / "runs" / "encoders-sweep"
    plan = read_json(folder / "scores.json")["chosen"]["layer-cosine"]["plan"]
    chosen = ChosenEncoder.of(folder)
    assert (chosen.spec.plan, chosen.spec.template) == (plan, InputTemplate(bos="force"))
    encoder = Encoder.from_sweep(folder, caches=str(tmp_path / "caches"))
    alone = run(
        as_config(
            configure(tmp_path, decoder_folder, name="one", extraction={**config.to_dict()["extraction"], "plan": plan})
        )
    )
    assert alone.record.heads["layer-cosine"].chosen["layer"] == chosen.layer
    require_same_order(encoder, alone.folder)


@pytest.mark.long
def test_a_folder_of_sentence_transformers_encodes_as_the_encoder(
    viewed: LoadedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers")
    from probes.export.sentence_transformers import load_sentence_transformer

    out = tmp_path / "out"
    assert main(["export", "sentence-transformers", str(viewed.folder), str(out)]) == 0
    shown = capsys.readouterr().out
    assert ", standardise" in shown
    assert "times what it costs as the plain mean" in shown
    encoder = Encoder.from_sweep(viewed.folder, caches=str(tmp_path / "caches"))
    texts = [text for pair in PAIRS for text in pair]
    vectors = load_sentence_transformer(out).encode(texts, show_progress_bar=False)
    np.testing.assert_allclose(vectors, encoder.encode(texts), rtol=1e-3, atol=1e-4)


def test_the_cost_is_the_best_of_trials_after_a_warm_up(viewed: LoadedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by what each call is said to take: calls of the plain mean first, then of the encoder."""
    seconds, clock = iter([9.0, 2.0, 3.0, 2.5, 9.0, 7.0, 6.0, 8.0]), [0.0]
    asked = []

    def embed(_: object, texts: object, *, readings: object) -> None:
        del texts
        asked.append(readings)
        clock[0] += next(seconds)

    monkeypatch.setattr(predict, "embed_readings", embed)
    monkeypatch.setattr("probes.runs.predict.time.perf_counter", lambda: clock[0])
    both = {"plain": ExtractionSpec(), "echo": ExtractionSpec(template=InputTemplate(repeat=6))}
    assert relative_cost(viewed.scorer().decoder, both) == 3
    assert [readings is both for readings in asked] == [False] * 4 + [True] * 4


@pytest.fixture(scope="module")
def gridded(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Path:
    """A sweep over named sets of keys."""
    base = tmp_path_factory.mktemp("gridded")
    over = {"how": {"plain": {}, "last": {"poolings": ["last"]}}}
    return sweep(configure(base, decoder_folder), over).folder


def forge(folder: Path, place: Path, keys: dict[str, Any]) -> Path:
    """Copy a sweep with more keys at the values of its axis."""
    copy = Path(shutil.copytree(folder, place))
    settings = yaml.safe_load((copy / "config.yaml").read_text(encoding="utf-8"))
    for value in settings["sweep"]["over"]["how"].values():
        value.update(keys)
    (copy / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return copy


def test_another_decoder_in_the_place_of_the_run_s_is_refused(
    viewed: LoadedRun, gridded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_decoder(tmp_path / "other", seed=1, max_position_embeddings=256)
    for folder in (viewed.folder, gridded):
        with pytest.raises(CacheIdentityError, match=r"was fitted on something else: decoder\.weight_digest is "):
            Encoder.from_sweep(folder, decoder=str(other), caches=str(tmp_path / "caches"))
    export = ["export", "sentence-transformers", str(viewed.folder), str(tmp_path / "out"), "--decoder", str(other)]
    assert main(export) == 1
    assert "was fitted on something else: decoder.weight_digest is " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_decoder_that_moved_keeps_its_other_settings() -> None:
    spec = DecoderSpec("here", adapter="lora", dtype="bfloat16")
    assert moved_decoder(spec, "there") == DecoderSpec("there", adapter="lora", dtype="bfloat16")
    assert moved_decoder(spec, None) is spec
    assert moved_decoder(spec, {"name": "there"}) == DecoderSpec("there")


def test_a_layer_cannot_be_named_of_a_sweep(gridded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "sentence-transformers", str(gridded), "out", "--layer", "final_norm"]) == 2
    assert "is a sweep over many points; leave it out to take the point" in capsys.readouterr().err


def test_a_head_without_a_score_is_not_the_best(viewed: LoadedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    [(_, first)] = [item for item in RunFolder(viewed.folder).results if item[1].name == "layer-cosine"]
    unscored = replace(first, name="first", selection_score=float("nan"))
    results = [(viewed.record.cache["plan"], result) for result in (unscored, first)]
    monkeypatch.setattr(RunFolder, "results", results)
    assert ChosenEncoder.of(viewed.folder).head == "layer-cosine"


def test_a_sweep_of_anybody_cannot_have_code_of_a_checkpoint_run(
    gridded: Path, decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also not its configuration, run again: the points of a grid are held to what the command line says."""
    evil, mark = tmp_path / "evil", tmp_path / "was_run"
    shutil.copytree(decoder_folder, evil)
    config = json.loads((evil / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}
    (evil / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (evil / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Evil:\n    pass\n", encoding="utf-8")
    keys = {"decoder.name": str(evil), "decoder.trust_remote_code": True}
    copy = forge(gridded, tmp_path / "runs" / "theirs", keys)
    with pytest.raises(ConfigError, match=r"decoder\.trust_remote_code is true in sweep; allowed: on the command line"):
        ChosenEncoder.of(copy)
    export = ["export", "sentence-transformers", str(copy), str(tmp_path / "out")]
    for argv in (export, ["sweep", f"{copy}/config.yaml"]):
        assert main(argv) == 1
        assert "trust_remote_code is true in sweep" in capsys.readouterr().err
    over = {"how": {"a": {"decoder": {"name": str(evil), "trust_remote_code": True}}, "b": {}}}
    with pytest.raises(ConfigError, match=r"trust_remote_code is true in sweep"):
        sweep(configure(tmp_path, decoder_folder), over)
    assert not mark.exists()


def test_a_sweep_of_anybody_does_not_choose_where_a_decoder_is_held(gridded: Path, tmp_path: Path) -> None:
    keys = {
        "decoder.device": "auto",
        "decoder.device_map": {"": "disk"},
        "decoder.offload_folder": str(tmp_path / "chosen"),
    }
    decoder = ChosenEncoder.of(forge(gridded, tmp_path / "theirs", keys)).decoder
    assert (decoder.device_map, decoder.offload_folder) == ("auto", DecoderSpec().offload_folder)


def test_no_name_of_a_head_leads_out_of_a_sweep(gridded: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(gridded, tmp_path / "theirs"))
    [head, *_] = sorted(copy.glob("heads/*/layer-cosine"))
    outside = tmp_path / "outside"
    shutil.copytree(head, outside)
    for path in copy.glob("heads/*/layer-cosine"):
        shutil.rmtree(path)
    record = json.loads((copy / "scores.json").read_text(encoding="utf-8").replace("layer-cosine", "../../../outside"))
    (copy / "scores.json").write_text(json.dumps({**record, "sha256": seal_scores(record)}), encoding="utf-8")
    with pytest.raises(HeadError, match=r"names a head '\.\./\.\./\.\./outside', which this version does not know"):
        ChosenEncoder.of(copy)
