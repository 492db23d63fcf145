"""One finished run of every kind, made once, and its folder."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from probes.report.write import write_run
from tests.probes.report.made_runs import HEADS_OF, MadeRun, make_run


@pytest.fixture(scope="session")
def made_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MadeRun]:
    """Kind to its run."""
    return {kind: make_run(kind, tmp_path_factory.mktemp(kind)) for kind in HEADS_OF}


@pytest.fixture
def pairs(made_runs: dict[str, MadeRun]) -> MadeRun:
    """A run on text pairs."""
    return made_runs["pairs"]


@pytest.fixture
def classes(made_runs: dict[str, MadeRun]) -> MadeRun:
    """A run on pairs of texts of two classes."""
    return made_runs["classes"]


@pytest.fixture
def numbers(made_runs: dict[str, MadeRun]) -> MadeRun:
    """A run on texts with numbers."""
    return made_runs["numbers"]


@pytest.fixture
def words(made_runs: dict[str, MadeRun]) -> MadeRun:
    """A run on words."""
    return made_runs["words"]


@pytest.fixture(params=HEADS_OF)
def made(request: pytest.FixtureRequest, made_runs: dict[str, MadeRun]) -> MadeRun:
    """A run of every kind in turn."""
    return made_runs[request.param]


@pytest.fixture(scope="session")
def write_once(made_runs: dict[str, MadeRun], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write the folder of a run of a kind, once; it is not to be written into."""

    @cache
    def write(kind: str) -> Path:
        made, folder = made_runs[kind], tmp_path_factory.mktemp(f"written-{kind}")
        write_run(folder, made.scores, made.task, made.kind.report)
        return folder

    return write


@pytest.fixture
def folder(made: MadeRun, write_once: Callable[[str], Path]) -> Path:
    """The folder of `made`."""
    return write_once(made.kind.name)
