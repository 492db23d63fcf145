import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import CacheError, HeadError, InputError, UnknownNameError
from extract.records import to_plain
from probes.heads.layer_head import ablate
from probes.layers import FINDINGS
from probes.layers.findings import OF_TEXTS, VIEWS, describe_layers, load_findings, load_predictions, read_findings
from probes.layers.study import StudyOptions
from probes.metrics.prediction_metrics import pearson
from probes.report.predictions import read_predictions
from probes.runs.layer_studies import LAYER_COLUMNS, compare_at_layers, compare_layers
from tests.probes.finished_run import Finished

QUICK = StudyOptions(n_resamples=100, orders=4, mix_seeds=(0,))


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> Path:
    """Copy a finished run, so that the shared one stays as it is."""
    return Path(shutil.copytree(finished.folder, tmp_path / finished.folder.name))


def _compare(finished: Finished, folder: Path, **how: Any) -> Any:
    return compare_layers(folder, caches=finished.base / "caches", **{"options": QUICK, **how})


def test_every_view_of_every_head_is_in_one_tidy_frame(finished: Finished, copied: Path) -> None:
    frame = _compare(finished, copied, head="all")
    assert tuple(frame.columns) == LAYER_COLUMNS
    assert set(frame["head"]) == set(finished.scores["heads"])
    assert set(frame["view"]) == set(VIEWS) - {"control", "selectivity", "code-length", *OF_TEXTS}
    assert not frame.duplicated(["head", "view", "name", "layer"]).any()
    alone = frame[frame["view"] == "alone"]
    known = alone.dropna(subset=["value"])  # the cosine of the embedding of a last token that never changes has none
    assert (known["low"] <= known["value"]).all()
    assert (known["value"] <= known["high"]).all()
    assert alone.groupby("head")["in_set"].any().all()
    assert frame["depth"].dropna().between(0, 1).all()


def test_scores_alone_are_those_of_the_run(finished: Finished, copied: Path) -> None:
    frame = _compare(finished, copied, head="layer-cosine", options=StudyOptions(views=("alone",), n_resamples=100))
    result = finished.scores["heads"]["layer-cosine"]
    curve = next(
        each
        for each in result["curves"]
        if (each["name"], each["split"], each["metric"]) == (result["chosen"]["kind"], "test", "pearson")
    )
    assert np.allclose(frame["value"], np.array(curve["values"], float), atol=1e-6, equal_nan=True)


def test_two_runs_of_the_same_rows_differ_layer_by_layer(
    finished: Finished, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _compare(finished, copied, head="all", options=StudyOptions(views=("alone",), n_resamples=100))
    alone = {head: part["value"].to_numpy() for head, part in found.groupby("head")}
    how: Any = {"caches": finished.base / "caches", "n_resamples": 100, "split": "test"}
    gaps = compare_at_layers(copied, finished.folder, head="layer-cosine", **how)
    assert np.allclose(gaps["value"], alone["layer-cosine"], equal_nan=True)
    assert (gaps["difference"].dropna() == 0).all()
    rng = np.random.default_rng(0)

    def noised(resolved: Any, setting: Any, *rest: Any) -> Any:
        parts: Any = ablate(resolved, setting, *rest)
        is_copy = setting.folder.parent == copied
        return replace(parts, alone=parts.alone + rng.normal(size=parts.alone.shape)) if is_copy else parts

    monkeypatch.setattr("probes.runs.layer_studies.ablate", noised)
    gaps = compare_at_layers(finished.folder, copied, head="layer-cosine", **how)
    known = gaps.dropna()
    assert np.allclose(known["value"], alone["layer-cosine"][known.index])
    assert (known["difference"] != 0).all()
    assert np.allclose(known["difference"], known["value"] - known["over"])
    assert ((known["low"] <= known["difference"]) & (known["difference"] <= known["high"])).all()


def test_shapley_values_of_a_head_sum_to_its_score(finished: Finished, copied: Path) -> None:
    frame = _compare(finished, copied, head="cosine-mlp", options=StudyOptions(("shapley",), n_resamples=100, orders=4))
    score = finished.scores["heads"]["cosine-mlp"]["summary"]["test"]["pearson"]["mean"]
    assert frame[frame["view"] == "shapley"]["value"].sum() == pytest.approx(score, abs=1e-5)
    assert frame[frame["view"] == "shapley-group"]["value"].sum() == pytest.approx(score, abs=1e-5)
    assert (frame[frame["view"] == "shapley"]["std"] > 0).any()  # two seeds


def test_findings_are_kept_beside_the_scores_head_by_head(finished: Finished, copied: Path) -> None:
    only_alone = StudyOptions(("alone",), n_resamples=100)
    _compare(finished, copied, head="layer-cosine", options=only_alone)
    _compare(finished, copied, head="cosine-mlp", options=only_alone)
    kept = load_findings(copied)
    assert {each.head for each in kept} == {"layer-cosine", "cosine-mlp"}
    for each in kept:
        assert each.answer.startswith(f"Use {each.recommended}, chosen on validation")
        assert each.best in each.best_set
        assert each.chosen == finished.scores["heads"][each.head]["chosen"].get("layer", each.chosen)
        again = read_findings(json.loads(json.dumps(to_plain(each))))
        assert json.dumps(to_plain(again)) == json.dumps(to_plain(each))
    (copied / FINDINGS).write_text("{}", encoding="utf-8")
    with pytest.raises(HeadError, match="make it again: icecore layers"):
        load_findings(copied)


def test_a_control_is_fitted_beside_the_head_and_said_to_be_as_good(finished: Finished, copied: Path) -> None:
    options = StudyOptions(("alone",), ("shuffled",), n_resamples=100)
    frame = _compare(finished, copied, head="cosine-mlp", options=options)
    assert {"control", "selectivity"} <= set(frame["view"])
    views = {view: part.set_index("layer")["value"] for view, part in frame.groupby("view")}
    assert np.allclose(views["alone"] - views["control"], views["selectivity"])
    assert not np.allclose(views["control"], 0)
    [kept] = load_findings(copied)
    assert any("on control labels" in line for line in kept.warnings)  # cosines of layers need no gold
    assert (copied / "heads" / "controls").is_dir()


def test_bad_input_is_one_sentence_and_writes_nothing(finished: Finished, copied: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="head of this run"):
        _compare(finished, copied, head="ridge-probe")
    with pytest.raises(InputError, match="no runs"):
        compare_layers([])
    with pytest.raises(CacheError, match="say where it is"):
        compare_layers(copied, caches=tmp_path / "nowhere", options=QUICK)
    with pytest.raises(UnknownNameError, match="view of layers"):
        StudyOptions(views=("shap",))
    with pytest.raises(UnknownNameError, match="control"):
        StudyOptions(controls=("types",))
    with pytest.raises(HeadError, match="orders is 5"):
        StudyOptions(orders=5)
    with pytest.raises(HeadError, match="confidence is 1"):
        StudyOptions(confidence=1.0)
    assert not (copied / FINDINGS).exists()


def test_layers_are_named_by_runs() -> None:
    every = ["embedding", *(f"block_{k:02}" for k in range(1, 6)), "final_norm"]
    assert describe_layers(["block_03"], every) == "block_03"
    assert describe_layers(["block_04", "embedding", "block_01"], every) == "embedding, block_01 and block_04"
    assert (
        describe_layers(["block_02", "block_03", "block_04", "final_norm"], every)
        == "block_02 to block_04 and final_norm"
    )


def test_predictions_of_every_layer_are_those_that_were_scored(finished: Finished, copied: Path) -> None:
    frame = _compare(finished, copied, head="layer-cosine", options=StudyOptions(views=("alone",), n_resamples=100))
    kept = load_predictions(copied, "layer-cosine")
    assert kept is not None
    rows = read_predictions(copied)["test"]
    gold = np.array(rows["gold"], float)
    assert kept.layers == tuple(frame["layer"])
    scores = [pearson(np.array(kept.of_layer(k)), gold) for k in range(len(kept.layers))]
    np.testing.assert_allclose(scores, frame["value"], atol=2e-3)  # kept as half floats
