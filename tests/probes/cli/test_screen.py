"""What a terminal shows while heads are fitted."""

import re
from io import StringIO

import pytest
from rich.console import Console

from probes.cli.arguments import Watched
from probes.cli.commands import COMMANDS
from probes.cli.screen import screen_watcher, watcher_of


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_screen_shows_remarks_and_epochs(is_terminal: bool) -> None:
    stream = StringIO()
    watcher = screen_watcher(Console(file=stream, width=200, force_terminal=is_terminal, color_system=None))
    watcher.say("[a] remark")
    report = watcher.epochs("cosine-mlp", 3)
    for epoch in range(1, 21):
        report(epoch, {"train_loss": 0.5, "validation_pearson": 0.01 * (21 - epoch)})
    text = stream.getvalue()
    assert text.startswith("[a] remark\n")
    assert text.count("cosine-mlp seed 3") == (20 if is_terminal else 3)
    shown = "cosine-mlp seed 3 10: validation 11.00 (best 20.00)"
    assert (shown if is_terminal else "epoch 10, loss 0.5000, validation Pearson 11.00 (best 20.00)") in text


def test_an_epoch_without_a_score_is_not_the_best_one() -> None:
    stream = StringIO()
    report = screen_watcher(Console(file=stream, width=200, color_system=None), is_verbose=True).epochs("siamese", 0)
    for epoch, value in enumerate((float("nan"), 0.3, 0.2), start=1):
        report(epoch, {"train_loss": 0.5, "validation_pearson": value})
    assert re.findall(r"\(best (.*?)\)", stream.getvalue()) == ["nan", "30.00", "30.00"]


def test_a_terminal_shows_how_many_epochs_are_done() -> None:
    stream = StringIO()
    watcher = screen_watcher(Console(file=stream, width=200, force_terminal=True, color_system=None))
    report = watcher.epochs("encoders", 0)
    for epoch in (1, 2, 4):
        report(epoch, {"train_loss": 1.0, "held_out_loss": 0.5, "max_epochs": 4.0})
    lines = [line.rstrip() for line in stream.getvalue().split("\r")]
    assert lines[:2] == [
        "[##........] encoders seed 0 1/4: held-out loss 0.5000 (best 0.5000), 0 s",
        "[#####.....] encoders seed 0 2/4: held-out loss 0.5000 (best 0.5000), 0 s",
    ]
    assert lines[2] == "[##########] encoders seed 0 4/4: held-out loss 0.5000 (best 0.5000)"
    assert lines[3] == "encoders seed 0: ended with epoch 4, the last (max_epochs)"


@pytest.mark.parametrize("head", ["cosine-mlp", "siamese-cosine", "autoencoder (weighted-mean of a very long name)"])
def test_a_line_of_a_fit_does_not_wrap_and_says_all(head: str) -> None:
    stream = StringIO()
    watcher = screen_watcher(Console(file=stream, width=80, force_terminal=True, color_system=None))
    report = watcher.epochs(head, 12)
    limits = {"max_epochs": 150.0, "patience": 20.0, "patience_left": 17.0}
    for epoch, score in ((101, 0.6020), (102, 0.5931)):
        report(epoch, {"train_loss": 0.123456, "validation_pearson": score, "validation_spearman": 0.5, **limits})
    report(103, {"train_loss": 0.1, "validation_pearson": 0.1, **limits, "patience_left": 0.0})
    *lines, last = stream.getvalue().split("\n")[0].split("\r")
    assert {len(line) for line in [*lines, last]} == {79}
    assert "102/150: validation 59.31 (best 60.20), patience 17, 0 s" in lines[1]
    assert "stopped after epoch 103" in last


def test_a_log_says_why_a_fit_stopped() -> None:
    stream = StringIO()
    report = screen_watcher(Console(file=stream, width=80, color_system=None)).epochs("cosine-mlp", 0)
    report(2, {"train_loss": 1.0, "max_epochs": 9.0, "patience": 5.0, "patience_left": 0.0})
    assert stream.getvalue() == "cosine-mlp seed 0: stopped after epoch 2, as 5 epochs brought nothing better\n"


def test_slow_epochs_are_shown_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    clock = iter([0.0, *(40.0 * epoch for epoch in range(1, 100))])
    monkeypatch.setattr("probes.cli.screen.time.monotonic", lambda: next(clock))
    watcher = screen_watcher(Console(file=stream, width=200, color_system=None))
    report = watcher.epochs("autoencoder (mean)", 0)
    for epoch in range(1, 6):
        report(epoch, {"train_loss": 1.0, "max_epochs": 20.0})
    assert [line.split(",")[0].split(": ")[1] for line in stream.getvalue().splitlines()] == [
        f"epoch {epoch} of 20" for epoch in range(1, 6)
    ]


def test_a_screen_shows_what_chooses_the_epoch() -> None:
    stream = StringIO()
    watcher = screen_watcher(Console(file=stream, width=200, color_system=None))
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


@pytest.mark.parametrize("command", ["run", "extract", "sweep", "fit", "layers", "embed", "score", "predict", "fetch"])
def test_every_command_with_progress_can_be_quiet(command: str) -> None:
    assert issubclass(COMMANDS[command].args, Watched)


def test_quiet_shows_nothing_and_verbose_every_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*, quiet: bool = False, verbose: bool = False) -> list[str]:
        watcher = watcher_of(Watched(quiet=quiet, verbose=verbose))
        watcher.say("loading")
        report = watcher.epochs("mine", 0)
        for epoch in range(1, 6):
            report(epoch, {"train_loss": 0.5})
        return capsys.readouterr().err.splitlines()

    assert shown(quiet=True) == []
    assert len(shown()) == 2  # what is said, and the first epoch
    assert len(shown(verbose=True)) == 6
