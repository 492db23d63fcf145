"""Logs beside a fit: every epoch is in them, and the fit is the same to the last bit."""

import csv
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from extract.errors import ConfigError, UnknownNameError
from probes.cli.main import main
from probes.data.task_table import load_task
from probes.fitting import fit_options as loggers
from probes.fitting.fit_options import require_loggers, with_loggers
from probes.runs.run import check_heads
from probes.runs.run_config import RunConfig
from tests.probes.finished_run import Finished

pytestmark = pytest.mark.long


def log_epochs(folder: Path, names: tuple[str, ...], n_epochs: int = 3) -> list[tuple[int, int]]:
    """Report some epochs of two seeds; returns what the report behind the logs received."""
    heard: list[tuple[int, int]] = []
    watch = with_loggers(lambda seed: lambda epoch, _: heard.append((seed, epoch)), names, folder)
    for seed in (0, 3):
        report = watch(seed)
        for epoch in range(1, n_epochs + 1):
            values = {"train_loss": 1 / epoch, "max_epochs": 9.0}
            report(epoch, values | ({"validation_pearson": 0.1 * epoch} if epoch > 1 else {}))
    return heard


def read_log(folder: Path) -> list[dict[str, str]]:
    with (folder / "log" / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_epoch_of_every_seed_is_logged(tmp_path: Path) -> None:
    assert log_epochs(tmp_path, ("csv",)) == [(seed, epoch) for seed in (0, 3) for epoch in (1, 2, 3)]
    rows = read_log(tmp_path / "seed_3")
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [float(row["validation_pearson"] or 0) for row in rows] == pytest.approx([0, 0.2, 0.3])
    assert "max_epochs" not in rows[0]
    log_epochs(tmp_path, ("csv",), n_epochs=1)
    assert len(read_log(tmp_path / "seed_3")) == 1  # that of the last fit


def test_without_loggers_nothing_is_written(tmp_path: Path) -> None:
    log_epochs(tmp_path, ())
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not find_spec("tensorboard"), reason="the extra package tensorboard is not installed")
def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_epochs(tmp_path, ("csv", "tensorboard"))
    events: Any = EventAccumulator(str(tmp_path / "seed_0" / "log"))
    events.Reload()
    assert [each.step for each in events.Scalars("train_loss")] == [1, 2, 3]
    assert len(read_log(tmp_path / "seed_0")) == 3


def test_a_logger_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="unknown logger 'mlflow'"):
        RunConfig(loggers=("mlflow",))
    monkeypatch.setattr(loggers, "find_spec", lambda _: None)
    require_loggers(("csv",))
    with pytest.raises(
        ConfigError, match=r"'tensorboard' needs the extra package .*pip install tensorboard, or use loggers"
    ):
        require_loggers(("tensorboard",))
    with pytest.raises(ConfigError, match=r"'wandb' needs the extra package .*pip install wandb, or use loggers"):
        require_loggers(("wandb",))


def test_a_sweep_refuses_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda _: object())
    config = RunConfig(loggers=("wandb",))
    with pytest.raises(ConfigError, match="which logs single runs; allowed here: csv, tensorboard"):
        check_heads(config, load_task("sts-sample"), chooses_plan=True)


def test_a_logged_fit_is_the_same_fit(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["fit", str(finished.config), "--cache", str(finished.cache), "--runs", str(tmp_path), "--loggers", "csv"]
    assert main([*argv, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    for head in ("cosine-mlp", "siamese-cosine"):
        for seed in (0, 3):
            place = Path("heads") / head / f"seed_{seed}"
            mine, theirs = (
                json.loads((run / place / "head.json").read_text()) for run in (tmp_path / "tiny", finished.folder)
            )
            assert mine["weights_sha256"] == theirs["weights_sha256"]
            rows = read_log(tmp_path / "tiny" / place)
            assert [float(row["train_loss"]) for row in rows] == [epoch["train_loss"] for epoch in mine["history"]]
    scores = json.loads((tmp_path / "tiny" / "scores.json").read_text(encoding="utf-8"))
    assert scores["heads"]["cosine-mlp"]["summary"] == finished.scores["heads"]["cosine-mlp"]["summary"]
    assert not list((finished.folder / "heads").rglob("log"))


@pytest.mark.long
@pytest.mark.skipif(not find_spec("wandb"), reason="the extra package wandb is not installed")
def test_wandb_keeps_epochs_scores_table_and_figures_offline(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, as W&B starts a service beside it; what it would send is read from its file."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    argv = ["fit", str(finished.config), "--cache", str(finished.cache), "--runs", str(tmp_path), "--loggers", "wandb"]
    command = [sys.executable, "-m", "icecore", *argv, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    [log] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    sent = log.read_bytes()
    for key in ("cosine-mlp/seed_3/train_loss", "cosine-mlp/test/pearson/low", "table", "figures"):
        assert key.encode() in sent, key
    assert not [path for path in tmp_path.glob("[!w]*/**/*") if path.is_symlink()]  # a run folder with links is refused
    scores = json.loads(next(tmp_path.glob("*/scores.json")).read_text(encoding="utf-8"))
    assert scores["heads"].keys() >= {"cosine-mlp", "siamese-cosine"}
