"""Where commands look for caches and files: beside the run, in a folder that is named, and a message says where."""

import shutil
from pathlib import Path

import pytest

from probes.cli.commands import COMMANDS
from probes.cli.main import main
from probes.export.sentence_transformers import stage_run
from probes.runs.folder import RunFolder
from probes.runs.run_config import RunConfig
from tests.probes.finished_run import Finished, edit_config

OF_CACHES = (
    "layers RUN --views alone --resamples 100",
    "geometry RUN --measures norm",
    "compare RUN OTHER --by-layer --resamples 100",
    "export safetensors RUN latents.safetensors --layer 1",
    "push RUN --to staged",
)
"""Commands that read the cache of a finished run."""
OF_FILES = (
    "layers no/run",
    "report no/run",
    "inspect no.h5",
    "geometry no.h5",
    "fit demo --cache no.h5",
    "predict no/run no.csv",
    "embed no.txt",
    "extract --texts no.csv",
    "run --task.name pair-files --task.options.files no.csv",
    "run --task.name pair-files --task.options.files no/",
    "run no.yaml",
    "run no.csv",
    "init no.csv",
    "score RUN --file no.tsv",
)
"""Commands that name a file or folder which is not there."""


@pytest.fixture
def moved(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, with two runs in the folder `project`; their cache is in `latents`, where no run says."""
    for name in ("one", "other"):
        run = Path(shutil.copytree(finished.folder, tmp_path / "project/runs" / name))
        edit_config(run, lambda config: config.update(caches="caches", runs="runs"))
        edit_config(run, lambda config: config["task"]["options"].update(files="pairs.tsv"))
    shutil.copy(finished.base / "pairs.tsv", tmp_path / "project")
    shutil.copytree(finished.base / "caches", tmp_path / "latents")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words_of(line: str) -> list[str]:
    return line.replace("RUN", "project/runs/one").replace("OTHER", "project/runs/other").split()


@pytest.mark.parametrize("line", OF_CACHES)
def test_a_cache_is_read_from_a_folder_that_is_named(
    line: str, moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words_of(line)) == 1
    refusal = capsys.readouterr().err
    assert "say where it is with --caches FOLDER" in refusal
    assert f"is not in '{moved}/project/caches' nor in '{moved}/caches'" in refusal
    assert main([*words_of(line), "--caches", "latents"]) == 0, capsys.readouterr().err


def test_every_command_that_reads_caches_takes_their_folder() -> None:
    of_config = {name for name, command in COMMANDS.items() if command.record is RunConfig}  # a key there
    with_option = {name for name, command in COMMANDS.items() if any(o.name == "--caches" for o in command.options)}
    assert of_config == {"run", "extract", "sweep", "fit", "embed", "mteb"}
    assert with_option == {line.split()[0] for line in OF_CACHES}


@pytest.mark.usefixtures("moved")
def test_an_option_that_does_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("compare RUN OTHER", "push RUN --to staged --no-cache", "export sentence-transformers RUN encoder")
    for line in lines:
        assert main([*words_of(line), "--caches", "latents"]) == 2, line
        assert "--caches" in capsys.readouterr().err


def test_the_cache_of_a_run_is_beside_it_before_it_is_in_the_working_folder(moved: Path) -> None:
    run = moved / "project/runs/one"
    for folder in ("project/caches", "caches", run / "caches"):
        shutil.copytree("latents", folder)
    for folder in ("project/caches", "caches", run / "caches"):  # the last as in a folder that was pushed
        assert RunFolder(run).cache().path.parent == Path(folder)
        shutil.rmtree(folder)


def test_a_pushed_folder_is_a_run_with_its_cache(moved: Path) -> None:
    stage_run("project/runs/one", "staged", caches="latents")
    assert main(["geometry", str(moved / "staged"), "--measures", "norm"]) == 0


@pytest.mark.parametrize("line", OF_FILES)
def test_a_message_about_a_missing_file_says_where_it_looked(
    line: str, moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words_of(line)) == 1
    refusal = capsys.readouterr().err
    assert f"looked for in {str(moved)!r}" in refusal
    assert refusal.count("\n") == 1
    absolute = line.replace(" no", f" {moved}/no")
    assert main(words_of(absolute)) == 1
    assert "looked for" not in capsys.readouterr().err
