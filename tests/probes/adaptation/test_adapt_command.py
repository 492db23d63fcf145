"""`icecore adapt` from its YAML file to a probe of what it made, killed on the way."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from extract.decoders.decoder import load_decoder
from probes.adaptation.adapt_config import MntpOptions, MsgOptions, Phase, SscOptions, read_adapt_config
from probes.cli.main import main
from tests.extract.tiny_decoders import save_decoder
from tests.probes.adaptation.test_adapt_data import write_lines

SETTINGS = {
    "name": "tiny",
    "plan": "hybrid",
    "corpus": [{"files": "texts.txt"}],
    "phases": [{"steps": 6, "weights": {"mntp": 1, "msg": 1}}],
    "objectives": {"msg": {"shortest": 2}},
    "training": {"batch": 4, "length": 16, "check_every": 2, "held_out": 4},
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny decoder, texts and a config."""
    save_decoder(tmp_path / "decoder")
    write_lines(tmp_path / "texts.txt", n=60)
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_config(folder: Path, **changes: object) -> None:
    values = {**SETTINGS, "decoder": {"name": "./decoder"}, **changes}
    (folder / "adapt.yaml").write_text(yaml.safe_dump(values))


def test_the_command_makes_an_adapter_that_a_decoder_takes(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapt", "adapt.yaml", "--threads", "1"]) == 0
    shown = capsys.readouterr()
    assert "step 6 of 6" in shown.err
    assert "plan hybrid took effect" in shown.err
    assert "icecore run CONFIG --decoder.adapter adapters/tiny" in shown.out
    plain = load_decoder("./decoder").description
    adapted = load_decoder({"name": "./decoder", "adapter": "adapters/tiny"}).description
    assert adapted.weight_digest != plain.weight_digest
    assert main(["adapt", "adapt.yaml", "--quiet"]) == 0
    assert not capsys.readouterr().err
    assert (desk / "adapters" / "tiny" / "losses.csv").read_text().count("\n") == 7


def test_an_adapter_on_another_is_probed_with_both(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapt", "adapt.yaml", "--quiet"]) == 0
    capsys.readouterr()
    upon = ["--name", "second", "--decoder.adapter", "adapters/tiny", "--plan", "nosink-bidirectional"]
    assert main(["adapt", "adapt.yaml", *upon, "--phases", "[{steps: 2, weights: {mntp: 1}}]", "--quiet"]) == 0
    advice = "--decoder.adapter adapters/tiny,adapters/second --extraction.plan nosink-bidirectional\n"
    assert advice in capsys.readouterr().out
    both = load_decoder({"name": "./decoder", "adapter": "adapters/tiny,adapters/second"}).description
    first = load_decoder({"name": "./decoder", "adapter": "adapters/tiny"}).description
    assert both.weight_digest != first.weight_digest
    assert desk.joinpath("adapters", "second", "adaptation.json").exists()


CONFIGS = sorted((Path(__file__).parents[3] / "configs" / "adapt").glob("*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_config_adapts_with_other_texts_and_a_step_of_each_phase(config: Path, desk: Path) -> None:
    row = {name: f"A dog sleeps on {name}." for name in ("anchor", "positive", "negative", "text", "paraphrase")}
    rows = [{name: f"{text} {number}" for name, text in row.items()} for number in range(12)]
    (desk / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings = read_adapt_config([], file=str(config))
    phases = [{"steps": 1, "weights": dict(phase.weights)} for phase in settings.phases]
    words = ["--decoder.name", "./decoder", "--phases", json.dumps(phases), "--exclude", "[]"]
    words += ["--corpus", "[{files: texts.txt}]", "--objectives.sscl.batch", "4", "--objectives.msg.shortest", "2"]
    words += ["--training.batch", "2", "--training.length", "16", "--training.held_out", "4"]
    if "files" in (settings.objectives.get("sscl") or {}):
        words += ["--objectives.sscl.files", "rows.jsonl"]
    if settings.decoder.adapters:  # of the stage before
        assert settings.decoder.adapters == ("adapters/llm2vec",)
        assert main(["adapt", "adapt.yaml", "--name", "llm2vec", "--quiet"]) == 0
    assert main(["adapt", str(config), *words, "--quiet"]) == 0
    record = json.loads((desk / "adapters" / settings.name / "adaptation.json").read_text())
    assert (record["steps"], set(record["objectives"])) == (len(phases), settings.used)
    assert record["config"]["lora"]["rank"] == settings.lora.rank


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--plan", "bidirectional"], "msg generates spans"),
        (["--phases", "[{steps: 5, weights: {mntpp: 1}}]"], "did you mean 'mntp'"),
        (["--plan", "hybrid:2"], "tokens of a span are seen where they are predicted"),
        (["--objectives.msg.shortest", "0"], "allowed: at least one span"),
        (["--objectives.msg.lenght", "3"], "unknown key 'objectives.msg.lenght'"),
        (["--training.batch", "0"], "training.batch is 0"),
        (["--lora.targets", "nothing"], "'nothing' cannot be adapted"),
        (["--lora.targets", "q_proj,typo"], "no module of the blocks is called 'typo'"),
        (["--lora.targets", "lm_head"], "'lm_head' cannot be adapted"),
        (["--lora.alpha", "0"], "alpha 0 and dropout 0.05; allowed"),
        (["--objectives.sscl.dropout", "0"], "sscl.dropout is 0, and without sscl.files"),
        (["--corpus", "[{files: nowhere.txt}]"], "there is no file 'nowhere.txt'"),
        (["--trainig.batch", "4"], "Did you mean"),
        (["--decoder.trust_remote_code", "maybe"], "allowed: true or false"),
        (["--name", "../up"], "allowed: the name of a folder"),
    ],
)
def test_bad_settings_are_a_sentence_and_write_nothing(
    desk: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["adapt", "adapt.yaml", *words]) in (1, 2)
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
    assert not list((desk / "adapters").glob("*/adapter_model.safetensors"))


def test_code_that_a_file_names_is_not_imported(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "mine.py").write_text("raise SystemExit('this ran')\n")
    objectives = {"sscl": {"pooling": "mine:pool", "batch": 4}}
    write_config(desk, objectives=objectives, phases=[{"steps": 2, "weights": {"sscl": 1}}])
    assert main(["adapt", "adapt.yaml"]) == 1
    assert "--allow-code mine" in capsys.readouterr().err
    write_config(desk, decoder={"name": "./decoder", "trust_remote_code": True})
    assert main(["adapt", "adapt.yaml"]) == 1
    assert "allowed: on the command line alone" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_command_says_so_once_and_goes_on(desk: Path) -> None:
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from probes.cli.main import main; raise SystemExit(main())"
    words = [sys.executable, "-c", program, "adapt", "adapt.yaml", "--threads", "1", "--verbose"]
    words += ["--phases", "[{steps: 5000, weights: {mntp: 1}}]"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(words, cwd=desk, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 3 "):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert rest.count("interrupted") == 1
    assert "Traceback" not in rest


@pytest.mark.slow
def test_a_killed_command_goes_on_with_the_same_bits(desk: Path) -> None:
    write_config(desk, phases=[{"steps": 40, "weights": {"mntp": 1, "msg": 1}}])
    assert main(["adapt", "adapt.yaml", "--adapters", "whole", "--threads", "1", "--quiet"]) == 0
    program = "from probes.fitting import saved_fits; saved_fits.PAUSE_SECONDS = 0.0; saved_fits.LARGEST_SHARE = 1e9; "
    program += "from probes.cli.main import main; raise SystemExit(main())"
    words = [sys.executable, "-c", program, "adapt", "adapt.yaml", "--threads", "1", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    n_killed = 0
    for _ in range(20):
        process = subprocess.Popen(words, cwd=desk, env=environment)
        wait_for_state(desk, process, after=n_killed)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        n_killed += 1
        if n_killed == 2:
            assert subprocess.run(words, cwd=desk, env=environment, check=False).returncode == 0
            break
    assert n_killed >= 1
    one, other = (desk / folder / "tiny" / "adapter_model.safetensors" for folder in ("whole", "adapters"))
    assert one.read_bytes() == other.read_bytes()


def wait_for_state(desk: Path, process: "subprocess.Popen[bytes]", *, after: int) -> None:
    """Wait until a training has written its state anew, or has ended."""
    started = {path: path.stat().st_mtime_ns for path in (desk / "adapters").glob("tiny/unfinished*")}
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        now = {path: path.stat().st_mtime_ns for path in (desk / "adapters").glob("tiny/unfinished*")}
        if now and now != started:
            return
        time.sleep(0.05)
    assert process.poll() is not None or after >= 0


def test_the_help_shows_phases_that_can_be_typed_and_every_option_of_objectives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["adapt", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    [default] = re.findall(r"weights: \{mntp: 1, msg: 1\}\}\]` \(default: (.+?)\) --seed", shown)
    config = read_adapt_config([("phases", default), ("corpus", "[{files: a.txt}]")])
    assert config.phases == (Phase(600, {"mntp": 1.0}),)
    [listed] = re.findall(r"--objectives .*?`\. (Of mntp .+?)\. --phases", shown)
    names = re.findall(r"\w+", listed)
    for options in (MntpOptions, MsgOptions, SscOptions):
        assert {field.name for field in fields(options)} <= {*names}
