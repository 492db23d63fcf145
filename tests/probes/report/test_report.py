"""The report: rows as numbers say, figures also where a number is missing, JSON that every reader takes."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from extract.cache import LatentCache
from probes.cli.screen import screen_watcher
from probes.report.figures import draw_contributions, draw_history, draw_layer_curve
from probes.report.summary import summary_text
from probes.report.table import COLUMNS, markdown_table, score_rows, screen_table
from probes.report.write import write_report

NAN = float("nan")


def summary(mean: float, *values: float) -> dict[str, Any]:
    return {"mean": mean, "std": 0.02, "low": mean - 0.1, "high": mean + 0.1, "confidence": 0.95, "values": values}


def make_scores(test: float = 0.5) -> dict[str, Any]:
    def metrics(mean: float, n: int) -> dict[str, Any]:
        return {"pearson": summary(mean, *[mean] * n), "spearman": summary(mean - 0.05, *[mean] * n)}

    history = [{"train_loss": 0.3, "validation_pearson": NAN}, {"train_loss": 0.2, "validation_pearson": 0.4}]
    seeds = [{"best_epoch": 2, "history": history, "identical_similarity": 0.875, "seed": seed} for seed in (0, 1)]
    curve = {"raw": [0.1, 0.4], "standardised": [0.2, NAN]}
    return {
        "name": "made", "command": "icecore run made.yaml", "commit": "", "device": "cpu", "versions": {"torch": "2"},
        "protocol": "icecore", "n_resamples": 100,
        "decoder": {
            "name": "tiny", "family": "llama", "n_layers": 1, "width": 4, "dtype": "float32", "revision": "",
            "weight_digest": "w" * 64,
        },
        "cache": {
            "file": "c.h5", "id": "i" * 64, "plan": "causal", "poolings": ["mean"], "n_rows": 7, "n_truncated": 0,
            "template": {"bos": "auto", "instruction": ""},
        },
        "task": {"name": "pairs", "source": "made up", "is_sample": True, "n_pairs": {"test": 8},
            "notes": ["mind this"]},
        "heads": {
            "layer-cosine": {
                "pooling": "mean", "layers": ["block_01", "final_norm"],
                "chosen": {"kind": "raw", "layer": "final_norm"},
                "curves": {"validation": {"pearson": curve}, "test": {"pearson": curve}},
                "seeds": [{"best_epoch": 0, "history": [], "identical_similarity": 1.0, "seed": 0}],
                "summary": {"validation": metrics(0.4, 1), "test": metrics(test, 1)},
            },
            "cosine-mlp": {
                "pooling": "mean", "layers": ["block_01", "final_norm"], "seeds": seeds,
                "contributions": {
                    "split": "validation", "layers": ["block_01", "final_norm"],
                    "alone": [0.1, NAN], "without": [0.0, NAN],
                },
                "summary": {"validation": metrics(0.6, 2), "test": metrics(0.55, 2)},
            },
        },
    }  # fmt: skip


def test_rows_are_correlations_times_a_hundred() -> None:
    rows = score_rows(make_scores())
    assert all(part in rows[0][0] for part in ("layer-cosine", "raw", "final_norm"))
    assert rows[0][1:] == ("mean", "40.0", "50.0", "40.0 to 60.0", "45.0", "-", "-")
    assert rows[1][2:] == ("60.0 ± 2.0", "55.0 ± 2.0", "45.0 to 65.0", "50.0 ± 2.0", "2", "2, 2")
    assert all(len(row) == len(COLUMNS) for row in rows)


def test_a_run_without_a_test_split_has_dashes() -> None:
    scores = make_scores()
    del scores["heads"]["cosine-mlp"]["summary"]["test"]
    assert score_rows(scores)[1][3:6] == ("-", "-", "-")


def test_tables_hold_every_row() -> None:
    rows = score_rows(make_scores())
    lines = markdown_table(rows, COLUMNS).splitlines()
    assert [len(line.split("|")) for line in lines] == [len(COLUMNS) + 2] * 4
    console = Console(file=StringIO(), width=200)
    console.print(screen_table(make_scores()))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "made: pairs on tiny" in text
    assert "55.0 ± 2.0" in text


def test_the_summary_says_that_a_sample_is_no_benchmark() -> None:
    text = summary_text(make_scores(), {"A figure": "figures/a.png"})
    assert "its scores are no benchmark result" in text
    assert "![A figure](figures/a.png)" in text
    assert "- mind this" in text
    assert "- `cosine-mlp`: 0.875, 0.875" in text
    assert "Commit `not a checkout`, device `cpu`, torch 2" in text
    scores = make_scores()
    scores["task"]["is_sample"] = False
    assert "benchmark" not in summary_text(scores, {})


def test_figures_are_drawn_where_numbers_are_missing(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    heads = make_scores()["heads"]
    draw_layer_curve(heads["layer-cosine"], tmp_path / "curve.png", title="Curve")
    draw_contributions(heads["cosine-mlp"]["contributions"], tmp_path / "layers.png", title="Layers")
    draw_history(heads["cosine-mlp"], tmp_path / "history.png", title="History")
    for name in ("curve", "layers", "history"):
        with Image.open(tmp_path / f"{name}.png") as image:
            assert np.ptp(np.asarray(image.convert("L"))) > 100
    assert dict(mpl.rcParams) == before


def test_a_missing_number_is_null_in_json(tmp_path: Path, cache: LatentCache, read_json: Callable[[Path], Any]) -> None:
    write_report(tmp_path, make_scores(test=NAN), cache)
    scores = read_json(tmp_path / "scores.json")
    assert scores["heads"]["layer-cosine"]["summary"]["test"]["pearson"]["mean"] is None
    assert scores["heads"]["cosine-mlp"]["contributions"]["alone"] == [0.1, None]
    assert "nan" in (tmp_path / "summary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_screen_shows_remarks_and_epochs(is_terminal: bool) -> None:
    stream = StringIO()
    watcher = screen_watcher(Console(file=stream, width=200, force_terminal=is_terminal, color_system=None))
    watcher.say("[a] remark")
    assert watcher.epochs is not None
    report = watcher.epochs("cosine-mlp", 3)
    for epoch in range(1, 21):
        report(epoch, {"train_loss": 0.5, "validation_pearson": 0.01 * (21 - epoch)})
    text = stream.getvalue()
    assert text.startswith("[a] remark\n")
    assert text.count("cosine-mlp seed 3: epoch") == (20 if is_terminal else 3)
    assert "epoch 10, loss 0.5000, validation Pearson 11.00 (best 20.00)" in text
