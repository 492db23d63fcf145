"""A finished run is found without torch, and anything that decides it, once changed, sends it the whole way."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import yaml

from extract import registry
from extract.masks.mask_plan import parse_plan
from probes.cli.main import main
from probes.report.predictions import digest_code
from probes.runs import folder as run_stamp
from probes.runs.config_file import read_config
from probes.runs.folder import STAMP, describe_inputs, find_finished
from probes.runs.grid import grid_of, plan_grid
from tests.probes.worded_classes import write_worded_classes

SAME = "nothing is computed"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Path:
    """A folder with a decoder, data, a config, and the finished run of it."""
    base = tmp_path_factory.mktemp("stamped")
    shutil.copytree(decoder_folder, base / "decoder")
    write_worded_classes(base / "rows.csv", share_told=0.7)
    config = {
        "name": "r",
        "decoder": {"name": "decoder", "device": "cpu"},
        "task": {"name": "class-files", "options": {"files": "rows.csv"}},
        "heads": {"logistic-probe": {"Cs": [1.0]}},
        "bootstrap": 100,
    }
    (base / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    before = Path.cwd()
    os.chdir(base)
    try:
        assert main(["run", "config.yaml", "--quiet"]) == 0
    finally:
        os.chdir(before)
    return base


@pytest.fixture
def there(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, as the working folder; what a test changes is computed again at its end, if need be."""
    monkeypatch.chdir(base)
    if find() is None:
        assert main(["run", "config.yaml", "--quiet"]) == 0
    assert find() == Path("runs/r")
    return base


def find(*typed: tuple[str, str]) -> Path | None:
    """Find the finished run of the config, with keys of the command line."""
    finished = find_finished(read_config(list(typed), file="config.yaml", checks_heads=False))
    return finished.path if finished else None


def rewrite(path: Path, change: Callable[[bytes], bytes] = lambda content: content) -> None:
    path.write_bytes(change(path.read_bytes()))


def test_an_unchanged_run_is_found_without_torch_and_its_files_stay(there: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in there.rglob("*") if path.is_file()}
    program = (
        "import sys; from probes.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit(code or ' '.join({'torch', 'lightning', 'transformers'} & {*sys.modules}) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "config.yaml"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert SAME in done.stderr
    assert "logistic-probe" in done.stdout
    assert "runs/r/report.html is the report" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in there.rglob("*") if path.is_file()} == before


def test_the_stamp_holds_no_path_of_this_machine(there: Path) -> None:
    assert str(there) not in (there / "runs/r" / STAMP).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "typed",
    [
        ("bootstrap", "200"),
        ("seeds", "[1]"),
        ("heads", "{logistic-probe: {Cs: [0.5]}}"),
        ("heads.logistic-probe.Cs", "[1.0, 2.0]"),
        ("extraction.plan", "backward"),
        ("extraction.template.instruction", "Say: "),
        ("figures", "[svg]"),
        ("name", "other"),
        ("caches", "elsewhere"),
        ("runs", "others"),
        ("task.options.seed", "5"),
        ("decoder.dtype", "bfloat16"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("there")
def test_another_key_is_another_run(typed: tuple[str, str]) -> None:
    if typed[0] == "caches":  # the same caches elsewhere are those of this run no more
        shutil.copytree("caches", "elsewhere", dirs_exist_ok=True)
    assert find(typed) is None


@pytest.mark.parametrize(
    "path",
    [
        "decoder/model.safetensors",
        "decoder/tokenizer.json",
        "runs/r/scores.json",
        "runs/r/report.html",
        "runs/r/heads/logistic-probe/head.json",
        "caches/*.h5",
    ],
)
def test_a_file_that_is_written_again_counts_as_changed(there: Path, path: str) -> None:
    [file] = there.glob(path)
    rewrite(file)
    assert find() is None


@pytest.mark.parametrize("path", ["runs/r/summary.md", "runs/r/predictions.csv", "runs/r/figures/*.png", "caches/*.h5"])
def test_what_was_removed_is_made_again(there: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = next(iter(there.glob(path)))
    file.unlink()
    assert main(["run", "config.yaml"]) == 0
    assert SAME not in capsys.readouterr().err
    assert file.exists()
    assert find() == Path("runs/r")


def test_other_rows_are_computed_and_the_old_rows_are_found_again(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (there / "rows.csv").read_bytes()
    rewrite(there / "rows.csv")  # the same content, written again: rows count, not times
    assert find() == Path("runs/r")
    rewrite(there / "rows.csv", lambda content: content[: content.rstrip().rindex(b"\n") + 1])  # a row less
    try:
        assert find() is None
        assert main(["run", "config.yaml"]) == 0
        assert SAME not in capsys.readouterr().err
    finally:
        (there / "rows.csv").write_bytes(before)


@pytest.mark.parametrize("name", ["digest_code", "package_versions"])
@pytest.mark.usefixtures("there")
def test_other_code_or_packages_count_as_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_stamp, name, lambda: ["other"])
    assert find() is None


def test_the_digest_of_the_code_sees_one_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("extract", "probes"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "code.py").write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(resources, "files", lambda package: tmp_path / package)
    before = digest_code.__wrapped__()
    assert digest_code.__wrapped__() == before
    (tmp_path / "probes" / "code.py").write_text("x = 2\n", encoding="utf-8")
    assert digest_code.__wrapped__() != before


@pytest.mark.usefixtures("there")
def test_code_of_the_users_own_and_a_decoder_at_the_hub_leave_no_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config([], file="config.yaml")
    assert describe_inputs(config) is not None
    assert describe_inputs(replace(config, decoder=replace(config.decoder, name="owner/name"))) is None
    monkeypatch.setitem(registry.ADDED, ("pooling", "mine"), registry.Own(len, "my_parts"))
    assert describe_inputs(config) is None
    assert find() is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema": 1}', "\x00"])
def test_a_stamp_that_cannot_be_read_is_none(there: Path, content: str) -> None:
    (there / "runs/r" / STAMP).write_text(content, encoding="utf-8")
    assert find() is None


def test_a_forged_stamp_of_a_folder_without_scores_is_none(there: Path) -> None:
    (there / "runs/r/scores.json").unlink()
    stamp = json.loads((there / "runs/r" / STAMP).read_text(encoding="utf-8"))
    del stamp["files"]["scores.json"]
    (there / "runs/r" / STAMP).write_text(json.dumps(stamp), encoding="utf-8")
    assert find() is None


@pytest.mark.long
def test_a_finished_sweep_is_found_without_torch_and_another_one_is_computed(there: Path) -> None:
    program = (
        "import sys; from probes.cli.main import main; code = main(sys.argv[1:]); "
        "print(code, *{'torch', 'lightning'} & {*sys.modules}, file=sys.stderr)"
    )

    def sweep(*options: str) -> tuple[str, str]:
        command = [sys.executable, "-c", program, "sweep", "config.yaml", "--plans", "causal;backward", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        return done.stdout, done.stderr

    first, said = sweep()
    assert SAME not in said
    before = {path: path.stat().st_mtime_ns for path in (there / "runs/r-sweep").rglob("*") if path.is_file()}
    again, said = sweep()
    assert said.splitlines()[-2:] == [
        "runs/r-sweep is finished, and nothing that decides it has changed: nothing is computed",
        "0",
    ]
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in (there / "runs/r-sweep").rglob("*") if path.is_file()} == before
    assert find() == Path("runs/r")
    config = read_config([], file="config.yaml", checks_heads=False)
    plans = plan_grid(config, list(map(parse_plan, ("causal", "backward"))))
    assert find_finished(config, plans, test="chosen") is not None
    assert find_finished(config, plans, test="all") is None
    assert find_finished(config, plan_grid(config, [parse_plan("causal")]), test="chosen") is None
    next((there / "runs/r-sweep").rglob("head.json")).unlink()
    assert find_finished(config, plans, test="chosen") is None


OVER = ("--over", "encoder", "--over", "plan=causal,backward")
SECTION = {"over": {"encoder": {"plain": {}, "last": {"poolings": ["last"]}}}}


def write_encoders(path: Path, section: object = SECTION) -> None:
    config = yaml.safe_load(Path("config.yaml").read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**config, "name": "g", "sweep": section}, sort_keys=False), encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("how", [[], ["--search", "halving", "--budget", "0.9"]], ids=["sweep", "search"])
def test_a_finished_grid_of_any_axes_is_found_and_another_one_is_computed(
    how: list[str], there: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def computes(*options: str) -> bool:
        assert main(["sweep", "encoders.yaml", *OVER, *how, *options]) == 0
        return SAME not in capfd.readouterr().err

    write_encoders(there / "encoders.yaml")
    assert computes()
    assert not computes()
    assert computes("--reference", "encoder=last")
    assert computes("--over", "heads.logistic-probe.Cs=[1.0],[0.1]")
    write_encoders(
        there / "encoders.yaml", {"over": {"encoder": {"plain": {}, "last": {"poolings": ["last", "mean"]}}}}
    )
    assert computes()
    write_encoders(there / "encoders.yaml")
    assert not computes()
    if not how:
        assert computes("--test", "all")
    decoder = next((there / "decoder").glob("*.safetensors"))
    rewrite(decoder)  # the same bytes at another time: it goes the whole way, and says what it finds
    assert computes()


@pytest.mark.usefixtures("there")
def test_a_checkpoint_that_was_fetched_and_removed_is_known_by_its_revision() -> None:
    config = read_config([], file="config.yaml", checks_heads=False)
    config = replace(config, decoder=replace(config.decoder, name="somebody/steps"))

    def inputs(*steps: str, removes: bool = True) -> str | None:
        grid = grid_of(config, [f"decoder.revision={','.join(steps)}"])
        described = describe_inputs(config, grid, test="chosen", removes=removes)
        return described.config if described else None

    first = inputs("step1", "step2")
    assert first is not None
    assert inputs("step1", "step2") == first
    assert inputs("step1", "step3") != first
    assert inputs("step1", "main") is None, "a branch moves"
    assert inputs("step1", "step2", removes=False) is None, "what stays at the hub's cache may be another one"
    assert describe_inputs(config, grid_of(config, ["poolings=mean,last"]), removes=True) is None, "it has no revision"
