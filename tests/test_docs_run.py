"""The code of README and docs runs, from top to bottom of a page as a reader would run it.

A page gets an empty folder with `configs`, a tiny random decoder `my-decoder`, and the run of the demo where it uses
one. In the default suite the tiny decoder stands in for every known one, heads are fitted for one epoch on a few rows,
and no figures are drawn; the slow suite runs the pages of `REAL` on the real decoder. `NOT_RUN` lists every command
that no test runs.
"""

import io
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import yaml

from extract import registry as own
from extract.decoders import decoder as loading
from extract.decoders.decoder_spec import KNOWN_DECODERS
from extract.decoders.fetch import Located, locate_decoder
from extract.masks.mask_plan import KINDS
from extract.poolings.pooling_table import POOLINGS
from extract.registry import resolve
from probes.cli.main import main
from probes.data.task_table import TASKS
from probes.heads.head_table import HEADS
from probes.report.style import Album
from probes.runs import probe
from tests.extract.tiny_decoders import save_decoder
from tests.pages import (
    NOT_RUN,
    PAGES,
    ROOT,
    Block,
    block_commands,
    is_run,
    name_of,
    read_page,
    shell_lines,
    split_commands,
)

OWN_TEST = {"docs/cache_format.md"}
"""Pages with a test of their own."""
REAL = ("README.md", "docs/cookbook/serving.md")
OFTEN = ("docs/report.md",)
"""Pages whose code runs in the default suite; that of the others is `long`."""
TRAINED = ("cosine-mlp", "siamese-cosine", "token-classifier")
N_BLOCKS = 12  # of the stand-in; pages convert up to ten of them
N_ROWS = 20  # of each split of a sample


def has_code(page: Path) -> bool:
    blocks = read_page(page)[0]
    return name_of(page) not in OWN_TEST and (is_run(page) or any(block.language == "python" for block in blocks))


def pages_with_code() -> list[Any]:
    """Give the pages to run, as test parameters."""
    return [
        pytest.param(page, id=name, marks=() if name in OFTEN else pytest.mark.long)
        for page in PAGES
        if has_code(page) and (name := name_of(page))
    ]


def quickened(words: list[str]) -> list[str]:
    """Let a command that fits heads do so with one seed for one epoch, on a few rows."""
    if words[0] != "run":
        return words
    is_config = Path(words[1]).suffix == ".yaml" and "--heads" not in words
    heads = yaml.safe_load(Path(words[1]).read_text(encoding="utf-8"))["heads"] if is_config else ()
    quick = ["--bootstrap", "100", "--seeds", "0", "--task.pairs", "40"]
    for head in set(TRAINED) & set(heads):
        quick += [f"--heads.{head}.max_epochs", "1"]
    return [*words, *quick]


def run_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands of a line that are icecore's own, and not in `NOT_RUN`."""
    _, _, given = line.partition(" < ")
    for words in split_commands(line):
        if words[0] == "icecore" and " ".join(words) not in NOT_RUN:
            with monkeypatch.context() as patch:
                if given:
                    patch.setattr(
                        sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(given).read_bytes()), encoding="utf-8")
                    )
                assert main(quickened(words[1:])) == 0, line


def run_python(block: Block, names: dict[str, Any], page: Path) -> str:
    """Run a block; return what it prints. Empty lines in front let a traceback name the line of the page."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    return printed.getvalue()


def is_there(line: str) -> bool:
    """Whether a line of output names no block that only the real decoder has."""
    block = re.match(r" *block_(\d+)", line)
    return not block or int(block[1]) <= N_BLOCKS


def run_page(page: Path, monkeypatch: pytest.MonkeyPatch, *, runs_slow: bool = False) -> None:
    """Write the files of a page and run its code, in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = read_page(page)[0]
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        file = re.match(r"# ([\w./-]+\.yaml)\n", block.text)
        if block.language == "yaml" and file:
            Path(file[1]).write_text(block.text, encoding="utf-8")
        elif block.name.endswith((".py", ".sbatch")):
            Path(block.name).write_text(block.text, encoding="utf-8")
        elif block.language == "console" and is_run(page):
            for line in shell_lines(block.text):
                run_command(line, monkeypatch)
        elif block.language == "python" and (runs_slow or block.name != "slow"):
            shown = run_python(block, names, page)
            if after is not None and after.language == "text" and after.line <= block.line + block.text.count("\n") + 3:
                # Numbers depend on where the weights came from; their labels do not.
                labels = [line.split()[:1] for line in after.text.splitlines() if runs_slow or is_there(line)]
                assert [line.split()[:1] for line in shown.splitlines()] == labels, name_of(page)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random decoder."""
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 128}
    return save_decoder(tmp_path_factory.mktemp("docs") / "my-decoder", num_hidden_layers=N_BLOCKS, **sizes)


@pytest.fixture
def desk(tmp_path: Path, decoder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, with the configs in it; what a page registers is taken off again."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    shutil.copytree(decoder, tmp_path / "my-decoder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tables: list[dict[Any, Any]] = [own.ADDED, POOLINGS, KINDS, HEADS]
    before = [dict(table) for table in tables]
    yield tmp_path
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
    sys.modules.pop("my_parts", None)


@pytest.fixture
def stand_in(decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the tiny decoder stand in for known ones, in a cache folder of its own, and draw no figures."""
    monkeypatch.setenv("ICECORE_HOME", str(tmp_path / "home"))
    probe._loaded.cache_clear()

    def locate_tiny(name: str, **how: Any) -> Located:
        known = name in KNOWN_DECODERS
        return Located(name, "folder", str(decoder), "") if known else locate_decoder(name, **how)

    monkeypatch.setattr(loading, "locate_decoder", locate_tiny)
    monkeypatch.setattr(Album, "add", lambda *_, **__: None)
    for name in ("sts-sample", "class-sample", "number-sample", "words-sample"):
        monkeypatch.setitem(TASKS, name, replace(TASKS[name], load=fewer_rows(resolve(TASKS[name].load))))
    yield
    probe._loaded.cache_clear()


def fewer_rows(load: Any) -> Any:
    """Let a loader of a sample give some of its rows."""

    @wraps(load)
    def load_fewer(**options: Any) -> Any:
        return load(**options).subset(N_ROWS)

    return load_fewer


def make_demo() -> None:
    """Make the run of the demo, which pages may use."""
    assert main(quickened(["run", "configs/demo.yaml"])) == 0


@pytest.mark.filterwarnings("ignore:.* defined in a notebook or script")  # as the code of a page is
@pytest.mark.usefixtures("unchecked_shapes", "stand_in", "desk")
@pytest.mark.parametrize("page", pages_with_code())
def test_the_code_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "runs/demo" in page.read_text(encoding="utf-8") and "run configs/demo.yaml\n" not in page.read_text("utf-8"):
        make_demo()
    run_page(page, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes", "desk")
@pytest.mark.parametrize("page", REAL)
def test_the_code_of_a_page_runs_on_the_real_decoder(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    make_demo()
    run_page(ROOT / page, monkeypatch, runs_slow=True)


def test_commands_that_are_not_run_are_still_shown() -> None:
    shown = {" ".join(words) for page in PAGES if is_run(page) for words in block_commands(page)}
    assert set(NOT_RUN) <= shown
    ignored = {command.split()[0] for command in shown} - {"icecore"}
    assert ignored == {"git", "cd", "make", "pip", "sbatch", "export"}, "programs that no test runs"


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    with pytest.raises(NameError, match="cahce") as raised:
        run_python(Block("python", "", "cahce.layers\n", 7), {}, tmp_path / "page.md")
    assert raised.traceback[-1].lineno == 6  # counted from 0
