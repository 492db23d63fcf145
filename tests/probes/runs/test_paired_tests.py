"""Paired tests and tuning curves of finished runs: the numbers of `compare`, and those of a frame of predictions."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from extract.errors import HeadError, UnknownNameError
from probes.metrics.significance import correct_p_values
from probes.runs.compare import Comparison, compare, paired_tests
from probes.runs.folder import RunFolder
from probes.runs.results import expected_validation, results
from tests.probes.finished_run import Finished, edit_scores

FAST: dict[str, Any] = {"n_resamples": 200, "n_permutations": 199}


def test_heads_of_a_run_are_tested_in_pairs(finished: Finished) -> None:
    found = paired_tests(finished.folder, by="head", **FAST)
    heads = ["cosine-mlp", "layer-cosine", "siamese-cosine"]
    assert set(zip(found["one"], found["other"], strict=True)) == {
        (heads[0], heads[1]),
        (heads[0], heads[2]),
        (heads[1], heads[2]),
    }
    assert set(found["n_units"]) == {32}
    assert found["difference"].isna().tolist() == [True, False, True]  # constant predictions on test
    assert (found["low"] <= found["difference"]).tolist() == [False, True, False]
    for test in ("bootstrap", "permutation"):
        assert np.array_equal(found[f"{test}_corrected"], correct_p_values(found[test].tolist()), equal_nan=True)
        assert found[test].notna().tolist() == [False, True, False]
    trained = found.iloc[1]
    assert trained["high_total"] - trained["low_total"] > trained["high"] - trained["low"]  # both have two seeds
    beside = paired_tests(finished.folder, by="head", against="siamese-cosine", split="validation", **FAST)
    assert beside["other"].tolist() == ["siamese-cosine"] * 2
    turned = paired_tests(finished.folder, by="head", against="cosine-mlp", split="validation", **FAST)
    assert turned.iloc[1]["one"] == "siamese-cosine"
    assert turned.iloc[1]["difference"] == pytest.approx(-beside.iloc[0]["difference"])
    assert turned["permutation"].notna().all()


def test_runs_are_tested_as_they_are_compared(finished: Finished, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished.folder, tmp_path / "copy"))
    again = compare([finished.folder, copy], head="cosine-mlp", n_resamples=200)
    found = paired_tests([copy, finished.folder], head="cosine-mlp", **FAST).iloc[0]
    assert (found["difference"], found["low"], found["high"]) == again.differences[0][:3] == (0, 0, 0)
    assert found["bootstrap"] == found["permutation"] == 1.0 == again.p_values[0]
    with pytest.raises(HeadError, match="by 'plan' take two systems or more with different names, not causal, causal"):
        paired_tests([copy, finished.folder], by="plan")
    with pytest.raises(UnknownNameError, match="unknown kind of system 'layer'"):
        paired_tests([copy, finished.folder], by="layer")
    with pytest.raises(UnknownNameError, match="unknown system to compare with 'tinny'"):
        paired_tests([copy, finished.folder], against="tinny")


def test_p_values_are_corrected_for_all_runs_of_a_comparison() -> None:
    comparison = Comparison((), "test", "pearson", (), (0.01, 0.04, 0.03), ())
    assert comparison.p_values == pytest.approx((0.03, 0.06, 0.06))


def test_several_runs_have_corrected_p_values(finished: Finished, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(finished.folder, tmp_path / name)) for name in ("one", "two")]
    found = compare([finished.folder, *copies], head="siamese-cosine", n_resamples=100)
    assert found.p_values == (1.0, 1.0)
    assert found.verdicts()[0].endswith("+0.0 (+0.0 to +0.0; p 1.000, corrected for 2 runs; n = 32)")
    assert "| one | +0.0 | +0.0 to +0.0 | 1.000 | 32 |" in found.to_markdown()
    assert found.table["p_value"].tolist()[1:] == [1.0, 1.0]
    from io import StringIO

    from rich.console import Console

    stream = StringIO()
    Console(file=stream, width=80).print(found.to_screen())
    shown = stream.getvalue()
    assert "Holm" in shown
    assert max(map(len, shown.splitlines())) <= 80


def frame_of(n_rows: int = 40, *, units: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    gold = rng.normal(size=n_rows)
    layers = {f"block_{k:02d}": gold + noise * rng.normal(size=n_rows) for k, noise in enumerate((0.3, 0.3, 3.0), 1)}
    parts = [
        pd.DataFrame({"layer": layer, "row": range(n_rows), "gold": gold, "predicted": predicted})
        for layer, predicted in layers.items()
    ]
    frame = pd.concat(parts)
    return frame.assign(unit=frame["row"] % units) if units < n_rows else frame


def test_layers_are_tested_from_a_frame() -> None:
    found = paired_tests(frame_of(), by="layer", metric="pearson", **FAST)
    assert found["by"].tolist() == ["layer"] * 3
    assert (found["permutation_corrected"] < 0.05).tolist() == [False, True, True]
    assert found["low_total"].tolist() == found["low"].tolist()  # nothing is known of seeds
    shuffled = frame_of().sample(frac=1, random_state=0)
    again = paired_tests(shuffled, by="layer", metric="pearson", **FAST)
    assert set(again["difference"].abs().round(9)) == set(found["difference"].abs().round(9))
    assert set(paired_tests(frame_of(units=8), by="layer", metric="spearman", **FAST)["n_units"]) == {8}


def test_a_frame_that_cannot_be_tested_is_refused() -> None:
    frame = frame_of()
    with pytest.raises(UnknownNameError, match="unknown column 'plan'"):
        paired_tests(frame, by="plan", metric="pearson")
    with pytest.raises(HeadError, match="layer 'block_02' has other rows or gold than layer 'block_01'"):
        paired_tests(frame.iloc[:-41], by="layer", metric="pearson")
    with pytest.raises(UnknownNameError, match="unknown metric 'pearsson'"):
        paired_tests(frame, by="layer", metric="pearsson")


def test_words_of_one_sentence_are_swapped_together() -> None:
    gold = ["B-X", "I-X", "O", "B-X", "O", "O"] * 4
    rows = np.repeat(np.arange(8), 3)
    wrong = ["B-X", "O", "O"] * 8
    frame = pd.concat(
        [
            pd.DataFrame({"head": head, "row": rows, "gold": gold, "predicted": predicted})
            for head, predicted in (("right", gold), ("wrong", wrong))
        ]
    )
    [found] = paired_tests(frame, by="head", metric="span-f1", n_permutations=256).to_dict("records")
    assert (found["n_units"], found["difference"]) == (8, 0.5)
    assert found["permutation"] == pytest.approx(2 / 16)  # four sentences differ: swapped together, or not at all


def test_the_expected_validation_score_ends_at_the_best_layer(finished: Finished) -> None:
    found = expected_validation(finished.folder, n_resamples=50)
    curves = results(finished.folder).query("record == 'curve' and split == 'validation' and metric == 'pearson'")
    mine = found[found["head"] == "layer-cosine"]
    assert set(mine["n_tried"]) == {len(curves)}
    assert mine["value"].iloc[0] == pytest.approx(curves["value"].mean())
    assert curves["value"].mean() < mine["value"].iloc[-1] <= curves["value"].max()
    assert mine["value"].is_monotonic_increasing
    assert found[found["head"] == "cosine-mlp"]["n"].tolist() == [1]
    by_run = expected_validation([finished.folder], by=("run", "plan"), n_resamples=50)
    assert set(by_run["n_tried"]) == {len(curves) + 2}
    with pytest.raises(UnknownNameError, match="unknown column of systems 'layer'"):
        expected_validation(finished.folder, by=("layer",))


def test_runs_of_other_metrics_are_not_tuned_together(finished: Finished, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished.folder, tmp_path / "copy"))

    def rename(scores: dict[str, Any]) -> None:
        for head in scores["heads"].values():
            head["metric"] = "accuracy"
            for split in head["summary"].values():
                split["accuracy"] = split["pearson"]

    edit_scores(copy, rename)
    assert RunFolder(copy).values
    with pytest.raises(HeadError, match="scored by accuracy, pearson"):
        expected_validation([finished.folder, copy])


def test_many_tests_have_resamples_enough_for_a_certain_difference() -> None:
    rng = np.random.default_rng(0)
    gold = rng.normal(size=200)
    noise = {f"s{k:02d}": 0.01 if k == 0 else 3.0 for k in range(11)}
    predicted = {name: gold + scale * rng.normal(size=200) for name, scale in noise.items()}
    frame = pd.DataFrame(
        [(name, row, gold[row], numbers[row]) for name, numbers in predicted.items() for row in range(200)],
        columns=["layer", "row", "gold", "predicted"],
    )
    tests = paired_tests(frame, by="layer", metric="pearson", n_permutations=99)
    assert len(tests) == 55
    assert (tests[tests["one"] == "s00"]["bootstrap_corrected"] < 0.05).all()
