"""The wheel stands alone: built, checked, installed in a fresh environment and used in another folder.

The fresh environment finds the packages that icecore needs where this one has them, and has icecore from the wheel
alone, so that the test takes seconds and no network.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import icecore
from tests.pages import ROOT

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "icecore.py", "extract", "probes", "configs", "constraints.txt")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD_TOOLS = ("build", "twine")
NEEDS = f"needs the extra: pip install '.[release]' ({', '.join(BUILD_TOOLS)})"


def shell(*words: str | Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, without the checkout on Python's path."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [*map(str, words)],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheel and the source archive, which `python -m build` makes of a copy of the sources."""
    for name in BUILD_TOOLS:
        pytest.importorskip(name, reason=NEEDS)
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    built = shell(sys.executable, "-m", "build", "--no-isolation", folder=source)
    assert built.returncode == 0, built.stdout + built.stderr
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [wheel] = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment that finds our packages, and not icecore."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(folder, with_pip=True, symlinks=True)
    inside = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (inside / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin"


@pytest.fixture(scope="module")
def fresh(bare: Path, wheel: Path) -> Path:
    """The programs of that environment, with the wheel installed."""
    options = ("--no-deps", "--no-index", "--force-reinstall")
    done = shell(bare / "python", "-m", "pip", "install", *options, wheel, folder=wheel.parent)
    assert done.returncode == 0, done.stderr
    return bare


@pytest.mark.slow
def test_wheel_and_source_archive_are_as_an_index_wants_them(dist: Path) -> None:
    files = sorted(dist.iterdir())
    assert [file.name for file in files] == ["icecore-0.1.0-py3-none-any.whl", "icecore-0.1.0.tar.gz"]
    done = shell(sys.executable, "-m", "twine", "check", "--strict", *files, folder=dist)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


@pytest.mark.slow
def test_the_wheel_holds_what_it_needs_and_nothing_else(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    configs = {f"probes/configs/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.yaml")}
    modules = {str(path.relative_to(ROOT)) for name in ("extract", "probes") for path in (ROOT / name).rglob("*.py")}
    assert modules | configs | {"probes/constraints.txt", "icecore.py"} <= names
    assert {name.partition("/")[0] for name in names} == {"icecore.py", "extract", "probes", "icecore-0.1.0.dist-info"}
    assert not [name for name in names if "test" in name.rpartition("/")[2] and name.endswith(".py")]


@pytest.mark.slow
def test_the_wheel_works_in_another_folder(fresh: Path, tmp_path: Path) -> None:
    where = shell(
        fresh / "python", "-c", "import icecore; print(icecore.__file__, icecore.__version__)", folder=tmp_path
    )
    assert where.stdout.split() == [str(next(fresh.parent.rglob("icecore.py"))), PROJECT["version"]]
    shown = shell(fresh / "icecore", "version", folder=tmp_path).stdout
    for name in ("icecore", "torch", "transformers"):
        assert re.search(rf"^{name} +{re.escape(version(name))}$", shown, re.MULTILINE)
    assert re.search(r"^device +\w+", shown, re.MULTILINE)
    assert "numbers-sample" in shell(fresh / "icecore", "list", "configs", folder=tmp_path).stdout
    pins = Path(shell(fresh / "icecore", "version", "--constraints", folder=tmp_path).stdout.strip())
    assert pins.read_bytes() == (ROOT / "constraints.txt").read_bytes()
    assert pins.is_relative_to(fresh.parent)
    trial = shell(fresh / "icecore", "run", "demo", "--dry-run", folder=tmp_path)
    assert trial.returncode == 0, trial.stderr
    assert "454" in trial.stdout or "rows" in trial.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_commands_of_the_dockerfile_work(bare: Path, wheel: Path, tmp_path: Path) -> None:
    """Run its lines in a plain folder, `/` being that folder; pip installs the wheel, and nothing from an index."""
    context = tmp_path / "context"
    (context / "dist").mkdir(parents=True)
    shutil.copy(wheel, context / "dist")
    shutil.copy(ROOT / "constraints.txt", context)
    folder, root, entry = tmp_path, tmp_path, list[str]()
    variables = {"PATH": f"{bare}{os.pathsep}{os.environ['PATH']}", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}
    for word, rest in dockerfile_lines():
        if word == "WORKDIR":
            folder = root / rest.lstrip("/")
            folder.mkdir()
        elif word == "COPY":
            *sources, target = shlex.split(rest)
            assert target.endswith("/")
            for source in sources:
                assert is_sent(source), f".dockerignore leaves out {source}"
                shutil.copy(context / source, folder / target)
        elif word == "RUN":
            done = shell("sh", "-ec", rest, folder=folder, **variables)
            assert done.returncode == 0, f"{rest}: {done.stdout}{done.stderr}"
        else:
            assert word in ("FROM", "ENTRYPOINT", "CMD")
            entry += yaml.safe_load(rest) if word != "FROM" else []
    help_text = shell(*entry, folder=folder, **variables)
    assert "usage: icecore COMMAND" in help_text.stdout
    assert shell(*entry[:1], "list", "configs", folder=folder, **variables).stdout.startswith("configs")


def dockerfile_lines() -> Iterator[tuple[str, str]]:
    """Yield the instructions of the Dockerfile with what follows them."""
    for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def is_sent(name: str) -> bool:
    """Whether .dockerignore lets a file through: everything is left out but what it lists."""
    everything, *exceptions = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert everything == "*"
    return any(Path(name).match(pattern.removeprefix("!")) for pattern in exceptions)


def test_the_dockerfile_copies_the_wheel_of_this_version() -> None:
    lines = dict.fromkeys(dockerfile_lines())
    [[_, copied]] = [line for line in lines if line[0] == "COPY"]
    name = f"icecore-{PROJECT['version']}-py3-none-any.whl"
    assert copied.split() == [f"dist/{name}", "constraints.txt", "./"]
    assert any(name in rest for word, rest in lines if word == "RUN")
    for page in ("docs/install.md", "CHANGELOG.md", "CITATION.cff"):
        assert PROJECT["version"] in (ROOT / page).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"] == icecore.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"]
    dated = re.search(
        r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert dated
    assert dated.groups() == (citation["version"], str(citation["date-released"]))


def test_the_pins_that_the_wheel_carries_are_a_whole_install() -> None:
    """Whatever `icecore[gguf]` brings, and what that brings, is pinned; torch as any build, the CPU's among them."""
    pins: dict[str, SpecifierSet] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            pin = Requirement(line)
            pins[canonicalize_name(pin.name)] = pin.specifier
    waiting, seen = [("icecore", frozenset({"gguf"}))], set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        own = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["gguf"]]
        for text in own if name == "icecore" else requires(name) or ():
            needed = Requirement(text)
            if needed.marker and not any(needed.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                continue
            waiting.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    names = {name for name, _ in seen} - {"icecore"}
    on_gpu = {name for name in names if name.startswith(("nvidia-", "cuda-")) or name == "triton"}
    assert not names - on_gpu - pins.keys()
    assert {name for name in names - on_gpu if not pins[name].contains(version(name))} == set()
    assert pins["torch"].contains(f"{str(pins['torch']).removeprefix('==')}+cpu")


@pytest.mark.parametrize(
    ("made", "package"), [("extract.py", "extract"), ("probes", "probes"), ("probes.py", "probes")]
)
@pytest.mark.parametrize("words", [("-c", "import icecore"), ("-m", "icecore", "version")])
def test_a_file_that_hides_a_package_is_named(made: str, package: str, words: tuple[str, ...], tmp_path: Path) -> None:
    hiding = tmp_path / made
    if hiding.suffix:
        hiding.write_text("", encoding="utf-8")
    else:
        hiding.mkdir()
        (hiding / "__init__.py").write_text("", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    [sentence] = [line for line in done.stderr.splitlines() if "hides the package" in line]
    assert f"{made}" in sentence
    assert f"hides the package {package!r} of icecore; rename it, or start Python in another folder." in sentence


def test_what_reads_the_default_decoder_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from extract.decoders import fetch
    from probes.cli import main

    monkeypatch.setattr(fetch, "find_spec", lambda name: None if name == "gguf" else object())
    assert fetch.missing_gguf_modules() == ["gguf"]
    assert main.main(["version"]) == 0
    [*_, last] = capsys.readouterr().out.splitlines()
    assert last.startswith("The default decoder, smollm2-135m-instruct, comes as a GGUF file")
    assert last.endswith("pip install gguf")
    monkeypatch.undo()
    assert main.main(["version"]) == 0
    assert "GGUF" not in capsys.readouterr().out
