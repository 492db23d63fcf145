"""The command: what it says, and with which code it ends."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import pytest

from extract.decoders.decoder_spec import GROUPS, KNOWN_DECODERS
from extract.inputs.template import TEMPLATES
from extract.masks.mask_plan import KINDS as MASK_KINDS
from extract.masks.mask_plan import PLANS
from extract.poolings.pooling_table import POOLINGS, WORD_POOLINGS
from probes.cli import listing
from probes.cli.arguments import Command, print_help, read_command, split_keys
from probes.cli.commands import COMMANDS, HELP_GROUPS
from probes.cli.main import MESSAGE, load_command, main
from probes.data.task_table import CORPORA, INSTRUCTIONS, TASKS
from probes.heads.head_table import HEADS
from probes.networks.network_options import LOSSES
from probes.runs.config_file import shipped_configs
from probes.runs.encoders import ENCODERS

NAMES: dict[str, Iterable[str]] = {
    "decoders": KNOWN_DECODERS,
    "plans": PLANS,
    "masks": MASK_KINDS,
    "poolings": [*POOLINGS, *(f"words: {name}" for name in WORD_POOLINGS)],
    "tasks": TASKS,
    "corpora": [*CORPORA, "any task"],
    "heads": HEADS,
    "losses": LOSSES,
    "instructions": INSTRUCTIONS,
    "layers": GROUPS,
    "templates": TEMPLATES,
    "encoders": ENCODERS,
    "configs": shipped_configs(),
}


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen on which no table row is cut."""
    monkeypatch.setenv("COLUMNS", "400")


def test_alone_it_tells_its_usage_and_that_this_was_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: icecore COMMAND")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    out = capsys.readouterr().out
    assert all(out.count(f"\n  {name} ") == 1 for name in COMMANDS)
    assert re.findall(r"^(\S.*):$", out, re.MULTILINE) == list(HELP_GROUPS)
    rows = [line for line in out.splitlines() if line.startswith("  ")]
    assert len(rows) == len(COMMANDS), "a summary does not fit into a line"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"icecore {version('icecore')}\n"


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    assert capsys.readouterr().err.startswith(
        "icecore: unknown command 'rnu': did you mean 'run'? Allowed: run, init, extract"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == main([command, "anything", "-h"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: icecore {command}")
    assert "\nexamples:\n  icecore " in captured.out
    assert max(map(len, captured.out.splitlines())) <= 80
    assert not captured.err


@pytest.mark.parametrize("command", ["run", "extract", "fit"])
def test_help_tells_every_key_with_its_docstring(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    for key in ("--extraction.plan", "--decoder.name", "--seeds", "--bootstrap", "--task.options", "--heads"):
        assert key in out
    assert "Bootstrap resamples behind every interval" in out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["run", "nowhere.yaml"], "icecore: there is no config file 'nowhere.yaml'."),
        (["run", "--heads.layer-cosin.patience", "3"], "icecore: unknown head 'layer-cosin': did you mean"),
        (["run", "--heads.siamese-cosine.start", "frozen"], "icecore: head 'siamese-cosine' has start 'frozen', but "),
        (["fit", "--head", "autoencodr"], "icecore: unknown head 'autoencodr'"),
        (["fit", "--head", "autoencoder"], "icecore: there are no texts to fit autoencoders on; give --cache FILE, or"),
        (["extract", "--extraction.poolings", "[meen]"], "icecore: unknown pooling 'meen': did you mean 'mean'?"),
        (["fit", "--cache", "no.h5"], "icecore: there is no cache 'no.h5'; make a cache with: icecore extract; it was"),
        (["score", "runs/none", "a", "b"], "icecore: folder 'runs/none' holds no finished run "),
        (["score", "runs/none", "a"], "icecore: folder 'runs/none' holds no finished run "),
        (["fetch", "smolm2"], "icecore: unknown decoder 'smolm2'"),
    ],
)
def test_an_error_is_one_sentence_and_no_traceback(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert err.startswith(sentence)
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["run", "--seedz", "[1]"], "unknown key 'seedz'. Did you mean 'seeds'?"),
        (["run", "--protocol", "freeze"], "unknown protocol 'freeze': did you mean 'freeze-released'?"),
        (
            ["run", "-x"],
            "unknown option of run '-x': did you mean '--text'? Allowed: --text, --label, --score, --dry-run,",
        ),
        (["list", "haeds"], "unknown table 'haeds': did you mean 'heads'? Allowed: decoders, plans"),
        (["inspect"], "FILE is missing (the cache file; of shards the index.json, its folder or its address);"),
        (["inspect", "a.h5", "b.h5"], "'b.h5' is one word too many; allowed: icecore inspect FILE [options]."),
        (["table"], "RUNS is missing (run folders, as runs/demo); allowed: icecore table RUNS [RUNS ...] [options]."),
        (["score", "runs/none", "a", "--sede", "3"], "unknown option of score '--sede'"),
        (["score", "runs/none", "--file"], "--file lacks its value; allowed: --file VALUE, or --file=VALUE."),
        (["fetch", "gpt2", "--source", "moon"], "unknown source 'moon'. Allowed: auto, hub, wheel."),
        (["verify", "gpt2", "causal", "--tokens", "many"], "--tokens is 'many'; allowed: a whole number."),
        (["table", "runs/demo", "--format", "word"], "unknown format 'word'. Allowed: markdown, csv, latex, tidy."),
        (["predict", "runs/demo", "--format", "xml"], "unknown format 'xml'. Allowed: csv, jsonl."),
        (["sweep", "--budget", "half"], "--budget is 'half'; allowed: a number."),
        (["embed", "--column", "a"], "FILE is missing (text file, table, or '-'); allowed: icecore embed FILE "),
    ],
)
def test_wrong_usage_is_one_sentence_and_ends_with_2(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"icecore: {sentence}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_has_a_function(command: Command) -> None:
    assert load_command(command).__name__ == f"{command.name}_command"


def test_headings_alone_are_bold_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def text() -> str:
        print_help(COMMANDS["run"])
        return capsys.readouterr().out

    plain = text()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    bold = text()
    assert plain != bold
    assert bold.replace("\x1b[1m", "").replace("\x1b[0m", "") == plain
    assert all(len(line.split("\x1b[0m")[-1]) <= 80 for line in bold.splitlines())
    monkeypatch.setenv("NO_COLOR", "1")
    assert text() == plain


def test_places_options_and_what_stands_behind_dashes() -> None:
    args = read_command(COMMANDS["score"], ["runs/demo", "--jsonl", "--", "--help", "-1", "-"])
    assert (args.run, args.texts) == ("runs/demo", ("--help", "-1", "-"))
    assert (args.file, args.jsonl, args.head) == ("", True, "")
    args = read_command(COMMANDS["score"], ["--pairs=a.tsv", "runs/demo"])
    assert (args.file, args.texts) == ("a.tsv", ())
    args = read_command(COMMANDS["export"], ["parquet", "runs/demo", "x.parquet", "--layer", "-1,-4", "--texts", "-"])
    assert (args.layer, args.texts) == ("-1,-4", "-")
    own, pairs = split_keys(COMMANDS["embed"], ["-", "c.yaml", "--extraction.layers", "-1", "--column=x"])
    assert (own, pairs) == (["-", "c.yaml", "--column=x"], [("extraction.layers", "-1")])
    args = read_command(COMMANDS["embed"], ["-", "--extraction.layers", "-1", "--column", "-"])
    assert (args.file, args.column, args.config.extraction.layers) == ("-", "-", ("-1",))


# Runs command lines, one a line of standard input, until one of them imports what it does not need; names both.
LIGHT = """
import shlex, sys
from probes.cli.main import main
heavy = ["torch", "lightning", "transformers", "scipy", "sklearn", "matplotlib", "pandas", "h5py", "datasets", "numpy"]
for line in sys.stdin.read().splitlines():
    main(shlex.split(line))
    if found := [name for name in heavy if name in sys.modules]:
        sys.exit(f"{line}: {' '.join(found)}")
"""
LINES = (
    "--help",
    "run --help",
    "predict --help",
    "rnu",
    "list hats",
    "verify gpt2 backwrd:2",
    "fetch smol",
    "run nowhere.yaml",
    "run --seedz 1",
    "sweep --kinds backwrd --k 2",
    "run --heads.cosine-mpl.hidden 3",
    "run --heads.cosine-mlp.hiden 3",
    "run --extraction.poolings meen",
    "run --extraction.plan causl",
    "run --task.name stbs",
    "run --bootstrap many",
    "list",
    "completion bash",
)


def run_light(*lines: str, first: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", first + LIGHT],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stderr.splitlines()[-1] if done.returncode else ""


def test_names_help_and_wrong_words_load_nothing_heavy() -> None:
    assert not run_light(*LINES)


def test_a_command_that_loads_something_heavy_would_be_found() -> None:
    assert run_light("list hats", "rnu", first="import numpy") == "list hats: numpy"


def test_ctrl_c_ends_with_130_and_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("probes.runs.run.run", interrupt)
    assert main(["run", "--name", "x"]) == 130
    assert "interrupted; every row and head that is done is kept" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_with_130_and_a_sentence(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.runs.run.run", lambda *_, **__: signal.raise_signal(number))
    # A suite that a shell started in the background inherits SIGINT ignored.
    inherited = signal.signal(number, signal.default_int_handler)
    try:
        assert main(["run", "--name", "x"]) == 130
        assert "interrupted; every row and head that is done is kept" in capsys.readouterr().err
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, inherited)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_imports_shows_no_traceback(number: signal.Signals) -> None:
    code = (
        "import importlib, os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored below a shell's background job
        "from probes.cli import main\n"
        f"main.import_module = lambda name: os.kill(os.getpid(), {int(number)})\n"
        "sys.exit(main.main(['run']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, MESSAGE)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG])
def test_what_the_system_refuses_is_one_sentence(
    number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "runs/x/summary.md")

    monkeypatch.setattr("probes.runs.run.run", fail)
    assert main(["run", "--name", "x"]) == 1
    err = capsys.readouterr().err
    assert os.strerror(number) in err
    assert "summary.md" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"seeds: null", "seeds is null; give a value, or leave the key out"),
        (b"seeds: [99999999999]", "seeds are [99999999999]; allowed: whole numbers from 0 to 4294967295"),
        (b"\xff\xfe", "cannot be read ('utf-8' codec"),
        (b'name: "a\\0b"', "the run name is 'a\\x00b'; allowed: a folder name"),
        (b"name: " + b"x" * 300, "of at most 150 bytes"),
        (b"[1]", "is [1]; allowed: keys with values, as in configs/demo.yaml"),
        (b"a: &a [*a]", "or an anchor holds itself"),
        (b"[" * 5000, "is nested too deeply"),
        (
            b"a: &a [1,1,1]\n"
            + b"".join(b"%c: &%c [%s]\n" % (98 + k, 98 + k, b",".join([b"*%c" % (97 + k)] * 9)) for k in range(12)),
            "values with its anchors written out; allowed: 20,000",
        ),
        (b"task: {name: pair-files, options: {files: 3}}", "`files` of task 'pair-files' is 3, but a path"),
        (
            b"task: {name: pair-files, options: {files: {train: 3}}}",
            "`files` of task 'pair-files' is {'train': 3}",
        ),
        (
            b"task: {name: pair-files, options: {files: /dev/null, columns: 3}}",
            "`columns` of task 'pair-files' is 3, but a list of",
        ),
    ],
)
def test_a_config_that_cannot_be_used_is_one_sentence(
    content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    assert main(["run", str(tmp_path / "x.yaml")]) == 1
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("table", listing.TABLES)
def test_a_table_lists_every_name(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", table]) == 0
    out = capsys.readouterr().out
    assert out.startswith(table)
    for name in NAMES[table]:
        assert f"  {name} " in out.replace("\n", " ")


def test_heads_and_corpora_are_listed_with_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "heads", "corpora"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for part in (
        "layer-cosine pairs: raw and standardised cosine of each layer; the best on validation is the score; options: "
        "transform, components, shrinkage, pooling, layers joined-cosine pairs: mean of the cosines of several views",
        "chosen together on validation; no training; options: transform, components, shrinkage, pooling, layers "
        "cosine-mlp",
        "encoder_learning_rate, weight_decay, batch_size, max_epochs, patience, every, keep, pooling, layers",
        "logistic-probe classes:",
        "options: Cs, oversampling",
        "token-classifier words:",
        "autoencoder pretraining.autoencoder: layer-wise",
        "options: bottleneck, encoder, standardises_latents, dropout,",
        "generics generic sentences: $ICECORE_DATA/genericskb; options: folder, templated, seed",
    ):
        assert part in out


def test_all_tables_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert set(NAMES) == set(listing.TABLES)
    assert all(f"\n{table}" in f"\n{out}" for table in NAMES)


def test_the_installed_command_runs() -> None:
    command = shutil.which("icecore", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("icecore is not installed beside this Python")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"icecore {version('icecore')}\n")


def test_brackets_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans are written in brackets, which Rich would take for markup."""
    monkeypatch.setitem(listing.TABLES, "plans", lambda: [("[causal,backward]", "every [bold]block[/bold]")])
    assert main(["list", "plans"]) == 0
    assert "[causal,backward]  every [bold]block[/bold]" in capsys.readouterr().out


def test_configs_are_described_by_their_first_sentence_and_not_by_their_runtime() -> None:
    about = dict(listing.TABLES["configs"]())
    assert about.keys() == shipped_configs().keys()
    assert [name for name, text in about.items() if not text[:1].isalpha() or "Runtime" in text] == []
