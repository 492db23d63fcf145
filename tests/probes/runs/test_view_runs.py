"""Runs that read several views of the texts: every kind of task, from the fit to new rows, and what is refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from extract.errors import CacheIdentityError, ConfigError, IcecoreError
from extract.store.cache import ViewCache
from probes.cli.main import main
from probes.heads import layer_head, word_heads
from probes.layers.geometry import measure_geometry
from probes.layers.study import StudyOptions
from probes.report.scores import plans_read
from probes.runs import run as run_module
from probes.runs.config_file import as_config
from probes.runs.folder import RunFolder, find_finished
from probes.runs.layer_studies import LayerStudy
from probes.runs.predict import LoadedRun, load_run
from probes.runs.probe import Encoder, Probe
from probes.runs.results import results
from probes.runs.run import run
from probes.runs.run_caches import find_cache_of
from probes.runs.run_config import RunConfig, load_run_task
from probes.runs.task_kinds import KINDS
from tests.probes.finished_run import edit_config, forbid

ECHO: dict[str, object] = {"template": "echo", "poolings": ["echo-mean"]}
OF_TEXTS: dict[str, Any] = {"plain": {}, "echo": ECHO}
OF_WORDS: dict[str, Any] = {
    "plain": None,
    "back": {"plan": "backward"},
    "start": {"words": {"poolings": "first"}},
    "twice": {"template": {"repeat": 2}},
}
SIAMESE = {"max_epochs": 2, "batch_size": 16, "hidden": 8, "bottleneck": 4}
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "pairs": ("sts-sample", {"layer-cosine": {}, "siamese-cosine": SIAMESE}, OF_TEXTS),
    "classes": ("class-sample", {"logistic-probe": {}, "nearest-centroid": {"pooling": "echo"}}, OF_TEXTS),
    "numbers": ("number-sample", {"ridge-probe": {}}, OF_TEXTS),
    "words": ("words-sample", {"token-classifier": {"steps": 20, "keep": "last"}, "token-logistic": {}}, OF_WORDS),
}


def configure(base: Path, decoder: Path, kind: str, **fields: Any) -> RunConfig:
    task, heads, views = CASES[kind]
    options = {"tags": "pos"} if kind == "words" else {}
    values: dict[str, Any] = {
        "name": kind,
        "decoder": {"name": str(decoder), "device": "cpu"},
        "task": {"name": task, "pairs": 24, "options": options},
        "views": views,
        "heads": heads,
        "bootstrap": 100,
        "caches": str(base / "caches"),
        "runs": str(base / "runs"),
    }
    return as_config(values | fields)


@pytest.fixture(scope="module")
def finished_views(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Callable[[str], LoadedRun]:
    """The run of a kind, made once; read-only."""
    base, made = tmp_path_factory.mktemp("view-runs"), dict[str, LoadedRun]()

    def obtain(kind: str) -> LoadedRun:
        if kind not in made:
            made[kind] = run(configure(base, decoder_folder, kind))
        return made[kind]

    return obtain


def test_rows(config: RunConfig) -> list[Any]:
    rows = KINDS[config.task.kind].row_texts(load_run_task(config), "test")
    return [row[0] if len(row) == 1 else row for row in rows]


test_rows.__test__ = False  # type: ignore[attr-defined]


def require_same_predictions(result: LoadedRun, head: str) -> None:
    """Compare what a head, read from its folder, predicts of the texts of test with what it did from the cache."""
    scored = result.record.heads[head]
    rows = test_rows(RunFolder(result.folder).config)
    now: Any = load_run(result.folder).predict(rows, head=head)
    then: Any = scored.predictions["test"]
    if "test" in scored.names:
        then = [scored.names["test"][code] for code in then]
        assert ([tag for row in now for tag in row] if isinstance(now[0], list) else now) == then
    else:
        np.testing.assert_allclose(now, then, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["pairs", "classes", "numbers", pytest.param("words", marks=pytest.mark.long)])
def test_every_kind_reads_views_and_predicts_new_rows_by_them(
    kind: str, finished_views: Callable[[str], LoadedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = finished_views(kind)
    views = CASES[kind][2]
    for name, head in result.record.heads.items():
        read = ["echo"] if CASES[kind][1][name].get("pooling") else list(views)
        assert head.pooling == "+".join(read)
        layers = ("embedding", "block_01", "block_02", "block_03", "final_norm")
        assert head.layers == (layers if len(read) == 1 else tuple(f"{v}/{layer}" for v in read for layer in layers))
        require_same_predictions(result, name)
    cache = result.cache()
    assert isinstance(cache, ViewCache)
    assert (list(cache.views), cache.manifest.id) == (list(views), result.record.cache["id"])
    config = RunFolder(result.folder).config
    assert config.views == views
    assert find_cache_of(config, load_run_task(config)).manifest.id == cache.manifest.id
    found = find_finished(config)
    assert found is not None
    assert found.path.resolve() == result.folder.resolve()
    forbid(monkeypatch, run_module, "load_decoder")
    again = run(replace(config, name="again"), cache=cache)
    assert {k: v.summary for k, v in again.record.heads.items()} == {
        k: v.summary for k, v in result.record.heads.items()
    }
    if kind == "pairs":
        tokens = {name: int(part.n_tokens.sum()) for name, part in cache.views.items()}
        cost = f"{tokens['echo'] / tokens['plain']:.1f} times the tokens of `plain`"
        assert cost in (result.folder / "summary.md").read_text(encoding="utf-8")
    frame = results(result.folder)
    assert {f"{view}/block_02" for view in views} <= set(frame["layer"])


@pytest.mark.parametrize("kind", ["pairs", "words"])
def test_views_in_another_order_would_change_predictions(
    kind: str, finished_views: Callable[[str], LoadedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels are read by name: with the latents of views exchanged, the comparison above fails."""
    result = finished_views(kind)
    head = {"pairs": "siamese-cosine", "words": "token-classifier"}[kind]
    if kind == "pairs":
        plain = layer_head.embed_once
        monkeypatch.setattr("probes.heads.pair_heads.embed_once", lambda *a: flip(*plain(*a)))
    else:
        embed: Any = vars(word_heads)["embed_words"]

        def flipped(*args: Any, **kwargs: Any) -> Any:
            words = embed(*args, **kwargs)
            return replace(words, latents=torch.roll(words.latents, 1, dims=1))

        monkeypatch.setattr(word_heads, "embed_words", flipped)
        # One view is read by the chosen layer, so it is another one that is computed.
        monkeypatch.setattr("probes.runs.predict.narrow_spec", lambda spec, *_, **__: spec_of_all(spec))
    with pytest.raises(AssertionError):
        require_same_predictions(result, head)


def flip(latents: Any, positions: Any) -> Any:
    return latents.flip(1), positions


def spec_of_all(spec: Any) -> Any:
    return replace(spec, layers=("embedding", "block_01", "block_02", "block_03", "final_norm"))


def test_views_with_other_contents_are_no_views_of_the_run(
    finished_views: Callable[[str], LoadedRun], tmp_path: Path
) -> None:
    """Whoever exchanges the contents of two views in a run folder, seal and all, is refused before a row is scored."""
    result = finished_views("pairs")
    folder = tmp_path / "runs" / "pairs"
    folder.parent.mkdir()
    shutil.copytree(result.folder, folder)

    def exchange(config: Any) -> None:
        config["views"] = {"plain": config["views"]["echo"], "echo": config["views"]["plain"]}

    edit_config(folder, exchange)
    with pytest.raises(
        CacheIdentityError, match=r"fitted on something else: views\.echo\.pooling is 'mean', the run has"
    ):
        load_run(folder, decoder=RunFolder(result.folder).decoder).predict([("a cat", "a dog")])


def test_another_order_of_views_is_another_run_and_another_fit(decoder_folder: Path, tmp_path: Path) -> None:
    first = run(configure(tmp_path, decoder_folder, "numbers"))
    turned = configure(tmp_path, decoder_folder, "numbers", views={"echo": ECHO, "plain": {}})
    assert find_finished(turned) is None
    second = run(turned)
    assert second.folder != first.folder
    assert second.record.cache["id"] != first.record.cache["id"]
    heads = [one.record.heads["ridge-probe"] for one in (first, second)]
    assert heads[0].layers == (*heads[1].layers[5:], *heads[1].layers[:5])
    assert heads[0].mean("test") == pytest.approx(heads[1].mean("test"))
    assert len(list((tmp_path / "caches").glob("*.h5"))) == 2, "and both read the same caches"


def test_layers_say_what_each_view_adds(finished_views: Callable[[str], LoadedRun], decoder_folder: Path) -> None:
    result = finished_views("pairs")
    options = StudyOptions(views=("alone", "by-view"), n_resamples=100)
    study = LayerStudy.of(result, head="layer-cosine", options=options)
    scores, lost = study.findings.curve("view-score"), study.findings.curve("without-view")
    assert scores is not None
    assert lost is not None
    assert scores.layers == ("all views", "without plain", "without echo")
    assert scores.values[0] == pytest.approx(result.record.heads["layer-cosine"].mean("test"))
    assert lost.values == pytest.approx([scores.values[0] - score for score in scores.values[1:]])
    assert all(low <= value <= high for low, value, high in zip(lost.low, lost.values, lost.high, strict=True))
    base = result.folder.parents[1]
    for left, name in (("plain", "without echo"), ("echo", "without plain")):
        only = configure(base, decoder_folder, "pairs", name=f"only-{left}", heads={"layer-cosine": {"pooling": left}})
        expected = run(only).record.heads["layer-cosine"].mean("test")
        assert scores.values[scores.layers.index(name)] == pytest.approx(expected)
    assert f"Both views together have {100 * scores.values[0]:.1f}; without plain" in study.answer
    whole = LayerStudy.of(result, head="siamese-cosine", options=options).findings
    assert whole.curve("without-view") is not None
    alone = LayerStudy.of(finished_views("classes"), head="nearest-centroid", options=options).findings
    assert alone.curve("without-view") is None, "a head of one view loses all without it"


@pytest.mark.long
def test_layers_say_what_each_of_three_views_reaches_alone(decoder_folder: Path, tmp_path: Path) -> None:
    views, heads = {**OF_TEXTS, "back": {"plan": "backward"}}, dict[str, Any]({"layer-cosine": {}})
    result = run(configure(tmp_path, decoder_folder, "pairs", views=views, heads=heads))
    study = LayerStudy.of(result, head="layer-cosine", options=StudyOptions(views=("by-view",), n_resamples=100))
    scores = study.findings.curve("view-score")
    assert scores is not None
    assert scores.layers == ("all views", *(f"without {view}" for view in views), *(f"{view} alone" for view in views))
    for view, changes in views.items():
        only = configure(tmp_path, decoder_folder, "pairs", views={view: changes}, heads=heads, name=f"of-{view}")
        expected = run(only).record.heads["layer-cosine"].mean("test")
        assert scores.values[scores.layers.index(f"{view} alone")] == pytest.approx(expected)
        assert f"({view} alone: {100 * expected:.1f})" in study.answer


def test_files_and_encoders_know_the_views(
    finished_views: Callable[[str], LoadedRun], decoder_folder: Path, tmp_path: Path
) -> None:
    from pyarrow import parquet

    result = finished_views("pairs")
    out = tmp_path / "latents.parquet"
    assert main(["export", "parquet", str(result.folder), str(out), "--layer", "block_02"]) == 0
    columns = parquet.read_table(out)
    cache = result.cache()
    echo = np.stack(columns["echo/block_02"].to_pylist())
    np.testing.assert_array_equal(echo, cache.gather(np.arange(len(cache)), "echo", layers="block_02")[0].numpy())
    words = finished_views("words").cache()
    frame = measure_geometry(words, measures=["norm"])
    assert dict(zip(frame["pooling"], frame["plan"], strict=True)) == {
        "plain": "causal",
        "back": "backward",
        "start": "causal",
        "twice": "causal",
    }
    encoder = Encoder(str(decoder_folder), views=OF_TEXTS, layer="block_02", caches=str(tmp_path / "caches"))
    texts = ["Ice is cold.", "Snow falls on the hill."]
    joined, apart = encoder.encode(texts), [encoder.encode(texts, pooling=name) for name in OF_TEXTS]
    np.testing.assert_array_equal(joined, np.concatenate(apart, axis=1))
    more = encoder.encode([*texts, "Rain."])
    np.testing.assert_allclose(more[:2], joined, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_probe_in_python_reads_views(decoder_folder: Path, tmp_path: Path) -> None:
    texts = [f"{word} number {k}" for k in range(30) for word in ("ice", "fire")]
    probe = Probe(str(decoder_folder), views=OF_TEXTS, caches=str(tmp_path / "caches"), runs=str(tmp_path / "runs"))
    probe.fit(texts, ["cold", "hot"] * 30)
    assert probe.run.record.heads["logistic-probe"].pooling == "plain+echo"
    assert len(probe.predict(["ice", "fire"])) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "head", "template"),
    [
        ("retrieval-sample", "layer-search", {"instruction": "Query: ", "document_instruction": ""}),
        ("odd-sample", "layer-odd", {}),
    ],
)
def test_heads_without_fitting_read_views(
    task: str, head: str, template: dict[str, Any], decoder_folder: Path, tmp_path: Path
) -> None:
    views = OF_WORDS if task == "odd-sample" else OF_TEXTS
    config = configure(
        tmp_path,
        decoder_folder,
        "pairs",
        task={"name": task},
        heads={head: {}},
        views=views,
        extraction={"template": template},
    )
    scored = run(config).record.heads[head]
    assert len(scored.layers) == 5 * len(views)
    alone = scored.curves[0].values
    for name in views:
        one = run(replace(config, name=name, heads={head: {"pooling": name}})).record.heads[head]
        k = 5 * list(views).index(name)
        assert alone[k : k + 5] == pytest.approx(one.curves[0].values)
    if template:
        instructions = {
            path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("config.yaml")
        }
        assert instructions
        assert len(list((tmp_path / "caches").glob("*.h5"))) == 4, "queries and documents, each under both views"


@pytest.mark.long
def test_a_sweep_over_plans_moves_the_views_with_it(
    decoder_folder: Path, tmp_path: Path, read_json: Callable[[Path], Any]
) -> None:
    config = configure(tmp_path, decoder_folder, "pairs", heads={"layer-cosine": {}})
    path = tmp_path / "v.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()), encoding="utf-8")
    assert main(["sweep", str(path), "--kinds", "backward", "--k", "0-1"]) == 0
    scores = read_json(tmp_path / "runs" / "pairs-sweep" / "scores.json")
    assert {plan["plan"] for plan in scores["plans"]} == {"causal", "backward:1"}
    assert all(len(plan["heads"]["layer-cosine"]["layers"]) == 10 for plan in scores["plans"])
    flags = ["--search", "halving", "--budget", "1"]
    assert main(["sweep", str(path), "--kinds", "backward", "--k", "0-2", *flags]) == 0


@pytest.mark.long
def test_autoencoders_are_fitted_on_the_channels_of_all_views(decoder_folder: Path, tmp_path: Path) -> None:
    heads = {"siamese-cosine": {"start": "frozen", "max_epochs": 2, "batch_size": 16, "hidden": 8}}
    autoencoder = {"max_epochs": 2, "bottleneck": 4, "batch_size": 16}
    pretraining = {"corpus": "class-sample", "texts": 60, "autoencoder": autoencoder}
    result = run(configure(tmp_path, decoder_folder, "pairs", heads=heads, pretraining=pretraining))
    [(pooling, encoders)] = result.record.pretraining["autoencoders"].items()
    assert pooling == "plain+echo"
    assert list(encoders["layers"]) == list(result.record.heads["siamese-cosine"].layers)
    require_same_predictions(result, "siamese-cosine")


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (
            "pairs",
            {"heads": {"layer-cosine": {"pooling": "mean"}}},
            r"head 'layer-cosine' reads the pooling 'mean', but there are views, .*; allowed: plain, echo, or several",
        ),
        (
            "pairs",
            {"views": {"echo": {"poolings": ["echo-mean"]}}},
            "view 'echo': the pooling 'echo-mean' reads a further",
        ),
        (
            "pairs",
            {"views": {"one": {"poolings": ["mean", "last"]}}},
            "view 'one' has the poolings mean, last; allowed: one",
        ),
        ("pairs", {"views": ["plain"]}, "views is"),
        ("pairs", {"views": {"one": {"plan": "sideways"}}}, "view 'one': .*sideways"),
    ],
)
def test_views_that_no_head_can_read_are_refused(
    kind: str, fields: dict[str, Any], message: str, decoder_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(IcecoreError, match=message):
        configure(tmp_path, decoder_folder, kind, **fields)


def test_a_head_is_said_to_be_under_the_plans_of_the_views_that_it_reads(
    finished_views: Callable[[str], LoadedRun],
) -> None:
    cache: Any = {"plan": "causal", "views": {"a": {"plan": "causal"}, "b": {"plan": "backward"}}}
    assert plans_read(cache, "b") == ["backward"]
    assert plans_read(cache, "b+a") == ["backward", "causal"]
    assert plans_read({"plan": "causal"}, "mean") == ["causal"]
    run = finished_views("words")
    best = run.record.heads[run.best]
    plan = "backward" if best.chosen["layer"].startswith("back/") else "causal"
    assert f"under the plan `{plan}`: " in (run.folder / "summary.md").read_text(encoding="utf-8")
    assert {where["plan"] for where, _ in RunFolder(run.folder).systems} == {"causal and backward"}


def test_views_that_cut_words_otherwise_are_refused(decoder_folder: Path, tmp_path: Path) -> None:
    views = {"plain": {}, "prompt": {"template": {"instruction": "Text: "}}}
    config = configure(
        tmp_path, decoder_folder, "words", protocol="look-both-ways", views=views, heads={"token-classifier": {}}
    )
    with pytest.raises(ConfigError, match="tags every token as a word, and the views plain, prompt cut texts"):
        load_run_task(config)


def test_a_cache_of_other_views_is_refused(finished_views: Callable[[str], LoadedRun]) -> None:
    result = finished_views("pairs")
    config, cache = RunFolder(result.folder).config, result.cache()
    assert isinstance(cache, ViewCache)
    with pytest.raises(
        ConfigError, match=r"has other views \(none\) or other latents than the configuration \(plain, echo\)"
    ):
        run(config, cache=cache.views["plain"])
    with pytest.raises(ConfigError, match=r"has other views \(plain, echo\)"):
        run(replace(config, views={"one": {}, "other": ECHO}), cache=cache)
    with pytest.raises(ConfigError, match=r"has other views \(plain, echo\) or other latents than the configuration"):
        run(replace(config, views={"plain": {}, "echo": {**ECHO, "plan": "backward"}}), cache=cache)


def test_a_view_is_typed_key_by_key(decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configure(tmp_path, decoder_folder, "pairs", heads={"layer-cosine": {}})
    path = tmp_path / "v.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()), encoding="utf-8")
    assert main(["run", str(path), "--dry-run", "--views.back.plan", "backward", "--views.echo.poolings", "mean"]) == 0
    shown = capsys.readouterr().out
    assert "plan      backward" in shown
    assert shown.count("poolings  mean") == 3
    assert main(["run", str(path), "--dry-run", "--views.echo.template.nmae", "echo"]) != 0
    assert "unknown key 'views.echo.template.nmae'. Did you mean 'views.echo.template.name'" in capsys.readouterr().err
