"""No configuration runs or imports anything, whatever it names, in whichever section and at whichever depth."""

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from probes.cli.main import main
from tests.probes.finished_run import Finished, edit_config

MODULE = "named_by_a_stranger"
SECTIONS = (
    "",
    "decoder",
    "decoder.quantization",
    "decoder.max_memory",
    "decoder.device_map",
    "decoder.merge",
    "extraction",
    "extraction.plan",
    "extraction.template",
    "extraction.poolings",
    "extraction.words",
    "extraction.reba",
    "extraction.layers",
    "task",
    "task.name",
    "task.options",
    "task.options.score_range",
    "task.options.files",
    "heads",
    "heads.layer-cosine",
    "heads.layer-cosine.layers",
    "pretraining",
    "pretraining.options",
    "pretraining.options.file",
    "pretraining.autoencoder",
    "pretraining.autoencoder.bottleneck",
    "seeds",
    "figures",
    "loggers",
)
COMMANDS = (
    ("run", "CONFIG", "--dry-run"),
    ("run", "--config", "CONFIG"),
    ("extract", "CONFIG", "--dry-run"),
    ("fit", "CONFIG"),
    ("sweep", "CONFIG", "--plans", "backward:1", "--dry-run"),
    ("embed", "TEXTS", "CONFIG"),
    ("mteb", "CONFIG"),
    ("export", "sentence-transformers", "CONFIG", "encoder"),
)


class Trap:
    """Values that run something where a parser makes objects of them, and whether one has."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "mark"
        script = folder / "script.py"
        script.write_text(f"open({str(self.mark)!r}, 'w').close()\n", encoding="utf-8")
        shutil.copy(script, folder / f"{MODULE}.py")
        self.objects: tuple[dict[str, Any], ...] = (
            {"class_path": "os.system", "init_args": {"command": f"touch {self.mark}"}},
            {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", str(self.mark)]}},
            {"class_path": "runpy.run_path", "init_args": {"path_name": str(script)}},
            {"class_path": f"{MODULE}.Thing", "init_args": {}},
        )

    def values(self) -> Iterator[Any]:
        """Give every object bare, two below lists and mappings, and what is imported where a class is wanted."""
        yield from self.objects
        for thing in (self.objects[0], self.objects[-1]):
            yield from ([thing, 5], {"a": thing}, {"a": [[{"b": thing}], 5]}, {"__orig__": thing})
        yield from (f"{MODULE}.Thing", [f"{MODULE}.Thing"], {"a": f"{MODULE}.Thing"}, f"{MODULE}:Thing")

    def require_unsprung(self, where: object) -> None:
        assert not self.mark.exists(), f"{where} ran what a configuration names"
        assert MODULE not in sys.modules, f"{where} imported what a configuration names"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trap]:
    """A trap whose module can be imported, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("texts.txt").write_text("one\ntwo\n", encoding="utf-8")
    yield Trap(tmp_path)
    sys.modules.pop(MODULE, None)


def configuration(section: str, value: Any) -> dict[str, Any]:
    """Put a value into a section of a configuration that names no decoder that is there."""
    config: dict[str, Any] = {"decoder": {"name": "./nowhere"}, "task": {"name": "pair-files"}}
    inner = config
    *parents, last = section.split(".") if section else ["name"]
    for part in parents:
        inner = inner.setdefault(part, {})
    inner[last] = value
    return {**config, **value} if not section and isinstance(value, dict) else config


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("argv", [COMMANDS[0], COMMANDS[3]], ids=lambda argv: argv[0])
def test_no_section_of_a_file_runs_anything(argv: tuple[str, ...], section: str, trap: Trap) -> None:
    for value in trap.values():
        Path("c.yaml").write_text(yaml.safe_dump(configuration(section, value)), encoding="utf-8")
        assert main([word.replace("CONFIG", "c.yaml") for word in argv])
        trap.require_unsprung((argv, section, value))


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_no_command_runs_what_a_file_names(argv: tuple[str, ...], trap: Trap) -> None:
    names = {"CONFIG": "c.yaml", "TEXTS": "texts.txt"}
    for section in ("task.options.score_range", "heads.layer-cosine.layers", "decoder.quantization", "decoder.merge"):
        for value in trap.values():
            Path("c.yaml").write_text(yaml.safe_dump(configuration(section, value)), encoding="utf-8")
            main([names.get(word, word) for word in argv])
            trap.require_unsprung((argv, section, value))


@pytest.mark.parametrize("section", SECTIONS[1:])
def test_no_key_on_the_command_line_runs_anything(section: str, trap: Trap) -> None:
    Path("c.yaml").write_text(yaml.safe_dump(configuration("seeds", [0])), encoding="utf-8")
    typed = f"{MODULE}:Thing"  # which is the user's own
    for value in (value for value in trap.values() if value != typed):
        text = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
        main(["run", "c.yaml", "--dry-run", f"--{section}", text])
        trap.require_unsprung((section, value))


def test_no_section_in_a_file_of_its_own_runs_anything(trap: Trap) -> None:
    for section, inner in (("task", {"name": "pair-files"}), ("decoder", {"name": "./nowhere"})):
        key = {"task": "options", "decoder": "quantization"}[section]
        for value in trap.values():
            Path("section.yaml").write_text(yaml.safe_dump({**inner, key: {"x": value}}), encoding="utf-8")
            assert main(["run", "--dry-run", "--decoder.name", "./nowhere", f"--{section}", "section.yaml"])
            trap.require_unsprung((section, value))


@pytest.mark.parametrize(
    "section", ["task.options.score_range", "heads.layer-cosine.layers", "decoder.quantization", "extraction.poolings"]
)
def test_no_run_folder_runs_anything(section: str, finished: Finished, trap: Trap) -> None:
    def put(config: dict[str, Any], value: Any) -> None:
        config["caches"] = str(finished.base / "caches")
        *parents, last = section.split(".")
        for part in parents:
            config = config[part]
        config[last] = value

    commands = (
        ["geometry", "stranger", "--measures", "gold"],
        ["fit", "stranger/config.yaml"],
        ["export", "parquet", "stranger", "o.parquet", "--texts", "task"],
        ["export", "sentence-transformers", "stranger/config.yaml", "encoder"],
        ["sweep", "stranger/config.yaml", "--plans", "backward:1", "--dry-run"],
        ["mteb", "stranger/config.yaml"],
    )
    for value in trap.values():
        shutil.rmtree("stranger", ignore_errors=True)
        shutil.copytree(finished.folder, "stranger")
        edit_config(Path("stranger"), partial(put, value=value))
        for argv in commands:
            main(argv)
            trap.require_unsprung((argv, section, value))


@pytest.mark.parametrize("key", ["__orig__", "__path__", "class_path", "init_args"])
@pytest.mark.parametrize("section", ["task.options", "heads.layer-cosine", "pretraining.options", "decoder"])
def test_keys_of_a_parser_are_unknown_keys(
    key: str, section: str, trap: Trap, capsys: pytest.CaptureFixture[str]
) -> None:
    del trap
    Path("c.yaml").write_text(yaml.safe_dump(configuration(f"{section}.{key}", "x")), encoding="utf-8")
    for argv in (["c.yaml"], ["--decoder.name", "./nowhere", f"--{section}.{key}", "x"]):
        assert main(["run", "--dry-run", *argv]) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"icecore: unknown key '{section}.{key}'")
        assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--config="], "--config is empty; allowed: a YAML file, as --config configs/demo.yaml."),
        (["--config", ""], "--config is empty; allowed: a YAML file, as --config configs/demo.yaml."),
        (["--task.options", "{null: 1}"], "task.options has the key None; allowed: names of options, which are texts."),
        (["--heads", "{3: {}}"], "heads has the key 3; allowed: names of heads, which are texts."),
        (
            ["--heads", "{layer-cosine: {null: 1}}"],
            "heads.layer-cosine has the key None; allowed: names of options, which are texts.",
        ),
    ],
)
def test_what_is_no_name_is_one_sentence(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--dry-run", *argv])
    assert capsys.readouterr().err == f"icecore: {message}\n"
