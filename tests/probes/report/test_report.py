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

from extract.store.cache import LatentCache
from probes.cli.screen import screen_watcher
from probes.heads.pairs.residuals import Residuals
from probes.report.figures import draw_contributions, draw_history, draw_layer_curve
from probes.report.summary import pretraining_text, reported_split, summary_text
from probes.report.table import COLUMNS, markdown_table, score_rows, screen_table
from probes.report.write import write_pretraining, write_report

NAN = float("nan")


def summary(mean: float, *values: float) -> dict[str, Any]:
    return {"mean": mean, "std": 0.02, "low": mean - 0.1, "high": mean + 0.1, "confidence": 0.95, "values": values}


def make_scores(test: float = 0.5) -> dict[str, Any]:
    def metrics(mean: float, n: int) -> dict[str, Any]:
        return {"pearson": summary(mean, *[mean] * n), "spearman": summary(mean - 0.05, *[mean] * n)}

    history = [{"train_loss": 0.3, "validation_pearson": NAN}, {"train_loss": 0.2, "validation_pearson": 0.4}]
    seeds = [{"best_epoch": 2, "history": history, "identical_similarity": 0.875, "seed": seed} for seed in (0, 1)]
    curve = {"raw": [0.1, 0.4], "standardised": [0.2, NAN]}
    wrong = {
        "n": 40,
        "bias": -0.25,
        "mean_absolute": 0.5,
        "root_mean_square": 0.75,
        "size_against": {"n_words": 0.125, "overlap": -0.5, "gold": NAN},
        "prediction_against_overlap": 0.75,
        "gold_against_overlap": 0.5,
        "quarters": {
            "n_words": [{"low": 2.0, "high": 11.0, "n": 39, "pearson": 0.625, "mean_absolute": 0.25}],
            "overlap": [{"low": 0.0, "high": 0.5, "n": 1, "pearson": NAN, "mean_absolute": 1.0}],
        },
    }
    residuals = {"validation": {**wrong, "mean_absolute": 9.0}, "test": wrong}
    subsets = {"full": {"n": 40}, "clean": {"n": 33, **metrics(0.3, 2)}, "leaked": {"n": 7}, "repeated": {"n": 0}}
    return {
        "name": "made", "command": "icecore run made.yaml", "commit": "", "device": "cpu", "versions": {"torch": "2"},
        "protocol": "icecore", "n_resamples": 100,
        "pretraining": {"corpus": {}, "cache": {}, "autoencoders": {}},
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
                "is_optimistic": False, "subsets": subsets, "residuals": residuals,
            },
            "cosine-mlp": {
                "pooling": "mean", "layers": ["block_01", "final_norm"], "seeds": seeds,
                "contributions": {
                    "split": "validation", "layers": ["block_01", "final_norm"],
                    "alone": [0.1, NAN], "without": [0.0, NAN],
                },
                "summary": {"validation": metrics(0.6, 2), "test": metrics(0.55, 2)},
                "is_optimistic": False, "subsets": subsets, "residuals": residuals,
            },
        },
    }  # fmt: skip


AUTOENCODERS: dict[str, Any] = {
    "mean+last": {
        "layers": ["mean/block_01", "mean/final_norm", "last/block_01"], "codes": [4, 4, 8],
        "best_epochs": [2, 1, 2], "seed": 0,
        "history": [{"train_loss": 0.9, "held_out_loss": 0.8}, {"train_loss": 0.6, "held_out_loss": 0.5}],
        "held_out_losses": [0.25, 0.75, 0.5], "n_texts": {"train": 1900, "held_out": 100}, "seconds": 3.0,
    },
}  # fmt: skip
WORST = {
    name: [{"row": 3, "gold": 1.0, "predicted": 4.5, "sentence1": f"{name} | a\nb", "sentence2": "second"}]
    for name in ("layer-cosine", "cosine-mlp")
}


def make_residuals(n_rows: int = 40, *, noise: float = 1.0) -> Residuals:
    rng = np.random.default_rng(0)
    gold = rng.uniform(0, 5, n_rows)
    texts = tuple((f"first {i}", f"second {i}") for i in range(n_rows))
    words, overlap = rng.integers(2, 30, n_rows).astype(float), rng.uniform(size=n_rows)
    return Residuals(gold + noise * rng.normal(size=n_rows), gold, words, overlap, texts)


def of_all_heads(*splits: str) -> dict[str, dict[str, Residuals]]:
    return {name: {split: make_residuals() for split in splits} for name in WORST}


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
    text = summary_text(make_scores(), {"A figure": "figures/a.png"}, WORST)
    assert "its scores are no benchmark result" in text
    assert "![A figure](figures/a.png)" in text
    assert "- mind this" in text
    assert "- `cosine-mlp`: 0.875, 0.875" in text
    assert "Commit `not a checkout`, device `cpu`, torch 2" in text
    scores = make_scores()
    scores["task"]["is_sample"] = False
    assert "benchmark" not in summary_text(scores, {}, WORST)


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
    write_report(tmp_path, make_scores(test=NAN), cache, residuals=of_all_heads("validation", "test"))
    scores = read_json(tmp_path / "scores.json")
    assert scores["heads"]["layer-cosine"]["summary"]["test"]["pearson"]["mean"] is None
    assert scores["heads"]["cosine-mlp"]["contributions"]["alone"] == [0.1, None]
    assert "nan" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> list[str]:
    """Give the lines under a heading of Markdown."""
    return text.split(f"\n## {title}\n")[1].partition("\n## ")[0].strip().splitlines()


def test_the_summary_scores_subsets_that_have_rows() -> None:
    lines = section(summary_text(make_scores(), {}, WORST), "Subsets of test")
    assert "| head | clean, 33 rows | leaked, 7 rows |" in lines  # not the whole, nor what is empty
    assert "| cosine-mlp | 30.0 ± 2.0 (20.0 to 40.0) | - |" in lines
    assert "- clean: no sentence of the row is in train" in lines
    assert not any("repeated" in line or "full" in line for line in lines)
    scores = make_scores()
    for result in scores["heads"].values():
        result["subsets"] = {"full": {"n": 8}, "leaked": {"n": 0}}
    assert "Subsets of test" not in summary_text(scores, {}, WORST)
    for result in scores["heads"].values():
        result["subsets"] = {}
    assert "Subsets of test" not in summary_text(scores, {}, WORST)


def test_the_summary_says_where_heads_are_wrong() -> None:
    lines = section(summary_text(make_scores(), {}, WORST), "Where the heads are wrong")
    assert "| cosine-mlp | test | 0.50 | 0.75 | -0.25 | +0.12 | -0.50 | +nan | +0.75 (+0.50) |" in lines
    assert any("Furthest off, `cosine-mlp`" in line for line in lines)  # the best on validation
    assert "| 1.0 | 4.5 | cosine-mlp \\| a b | second |" in lines
    assert any("stay together), `cosine-mlp` on test:" in line for line in lines)
    assert "| words in both texts | 2 to 11 | 39 | 62.5 | 0.25 |" in lines
    assert "| lexical overlap | 0.00 to 0.50 | 1 | - | 1.00 |" in lines
    scores = make_scores()
    scores["heads"]["cosine-mlp"]["summary"]["validation"]["pearson"] = summary(NAN, NAN, NAN)
    assert "Furthest off, `layer-cosine`" in summary_text(scores, {}, WORST)


def test_without_a_test_split_validation_is_told() -> None:
    scores = make_scores()
    for result in scores["heads"].values():
        result["residuals"] = {"validation": result["residuals"]["validation"]}
    assert "| cosine-mlp | validation | 9.00 |" in summary_text(scores, {}, WORST)
    assert [reported_split(names) for names in (["validation", "test"], ["validation"], ["train"])] == [
        "test",
        "validation",
        "validation",
    ]


def test_a_prediction_that_depends_on_the_text_has_no_number() -> None:
    scores = make_scores()
    scores["heads"]["cosine-mlp"]["seeds"][1]["identical_similarity"] = None
    assert "- `cosine-mlp`: 0.875, depends on the text" in summary_text(scores, {}, WORST)


def test_an_optimistic_head_is_marked_in_every_table() -> None:
    scores = make_scores()
    assert "nothing was chosen on test (protocol `icecore`" in summary_text(scores, {}, WORST)
    scores["protocol"] = "freeze-released"
    scores["heads"]["cosine-mlp"]["is_optimistic"] = True
    assert [row[0].endswith("(optimistic)") for row in score_rows(scores)] == [False, True]
    console = Console(file=StringIO(), width=200)
    console.print(screen_table(scores))
    assert "cosine-mlp (optimistic)" in console.file.getvalue()  # type: ignore[attr-defined]
    text = summary_text(scores, {}, WORST)
    assert "**Optimistic**: protocol `freeze-released` chooses the epoch" in text
    assert "nothing was chosen on test" not in text


def test_the_summary_tells_what_the_autoencoders_lose() -> None:
    scores = make_scores()
    assert "Layer-wise autoencoders" not in summary_text(scores, {}, WORST)
    scores["pretraining"]["autoencoders"] = AUTOENCODERS
    for text in (summary_text(scores, {}, WORST), pretraining_text(scores, {})):
        [line] = [line for line in text.splitlines() if line.startswith("- `mean+last`")]
        assert "codes of 4, 8, 1,900 texts, epochs 1 to 2 of 2" in line
        assert "on 100 held-out texts: 0.500 on average, 0.250 (mean/block_01) to 0.750 (mean/final_norm)" in line


def assert_drawn(path: Path) -> None:
    with Image.open(path) as image:
        assert min(image.size) > 300
        assert np.ptp(np.asarray(image.convert("L"))) > 100


def test_a_report_draws_the_residuals_of_every_head(tmp_path: Path, cache: LatentCache) -> None:
    scores = make_scores()
    scores["pretraining"]["autoencoders"] = AUTOENCODERS
    write_report(tmp_path, scores, cache, residuals=of_all_heads("validation", "test"))
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {
        "layer_cosine_curve.png", "layer_cosine_residuals.png", "cosine_mlp_layers.png", "cosine_mlp_history.png",
        "cosine_mlp_residuals.png", "autoencoder_mean_last.png", "autoencoder_mean_last_history.png",
    }  # fmt: skip
    for name in names:
        assert f"](figures/{name})" in text
        assert_drawn(tmp_path / "figures" / name)
    assert "![Residuals of cosine-mlp (test)](figures/cosine_mlp_residuals.png)" in text


def test_autoencoders_by_themselves_are_reported(tmp_path: Path, read_json: Callable[[Path], Any]) -> None:
    keys = ("name", "command", "commit", "device", "versions")
    scores = {key: make_scores()[key] for key in keys} | {"pretraining": {"autoencoders": AUTOENCODERS}}
    write_pretraining(tmp_path, scores)
    assert read_json(tmp_path / "scores.json") == scores
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    for stem in ("autoencoder_mean_last", "autoencoder_mean_last_history"):
        assert f"](figures/{stem}.png)" in text
        assert_drawn(tmp_path / "figures" / f"{stem}.png")
    assert "Command: `icecore run made.yaml`" in text
    write_pretraining(tmp_path, scores)  # once more into the same folder


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


def test_a_terminal_shows_how_many_epochs_are_done() -> None:
    stream = StringIO()
    watcher = screen_watcher(Console(file=stream, width=200, force_terminal=True, color_system=None))
    assert watcher.epochs is not None
    report = watcher.epochs("encoders", 0)
    for epoch in (1, 2, 4):
        report(epoch, {"train_loss": 1.0, "held_out_loss": 0.5, "max_epochs": 4.0})
    assert stream.getvalue().split("\r")[:3] == [
        "[#####...............] encoders seed 0: epoch 1 of 4, loss 1.0000, held-out loss 0.5000 (best 0.5000)",
        "[##########..........] encoders seed 0: epoch 2 of 4, loss 1.0000, held-out loss 0.5000 (best 0.5000)",
        "[####################] encoders seed 0: epoch 4 of 4, loss 1.0000, held-out loss 0.5000 (best 0.5000)",
    ]


def test_slow_epochs_are_shown_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    clock = iter([0.0, *(40.0 * epoch for epoch in range(1, 100))])
    monkeypatch.setattr("probes.cli.screen.time.monotonic", lambda: next(clock))
    watcher = screen_watcher(Console(file=stream, width=200, color_system=None))
    assert watcher.epochs is not None
    report = watcher.epochs("autoencoder (mean)", 0)
    for epoch in range(1, 6):
        report(epoch, {"train_loss": 1.0, "max_epochs": 20.0})
    assert [line.split(",")[0].split(": ")[1] for line in stream.getvalue().splitlines()] == [
        f"epoch {epoch} of 20" for epoch in range(1, 6)
    ]


def test_a_screen_shows_what_chooses_the_epoch() -> None:
    stream = StringIO()
    watcher = screen_watcher(Console(file=stream, width=200, color_system=None))
    assert watcher.epochs is not None
    autoencoder, released = watcher.epochs("autoencoder (mean)", 0), watcher.epochs("cosine-mlp", 0)
    for epoch, loss in enumerate([0.9, *[0.4] * 8, 0.5], start=1):
        autoencoder(epoch, {"train_loss": 1.0, "held_out_loss": loss, "held_out_loss_0": 0.1})
        values = {"test_pearson": 0.5, "test_spearman": 0.4} if epoch % 10 == 0 else {}
        released(epoch, {"train_loss": 0.25, **values})
    lines = stream.getvalue().splitlines()
    assert lines == [
        "autoencoder (mean) seed 0: epoch 1, loss 1.0000, held-out loss 0.9000 (best 0.9000)",
        "cosine-mlp seed 0: epoch 1, loss 0.2500",
        "autoencoder (mean) seed 0: epoch 10, loss 1.0000, held-out loss 0.5000 (best 0.4000)",
        "cosine-mlp seed 0: epoch 10, loss 0.2500, test Pearson 50.00 (best 50.00)",
    ]
