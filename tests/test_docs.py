"""README and docs: commands parse, configurations can be used, and what a page names exists.

`test_docs_run.py` runs the code of the pages.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import icecore
from extract.errors import IcecoreError
from probes.cli import main as main_module
from probes.cli.arguments import read_command
from probes.cli.commands import COMMANDS
from probes.cli.main import main
from tests.pages import PAGES, ROOT, Block, name_of, parsed_commands, read_blocks, read_page, split_commands

CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
FOLDERS = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._")
NAMED_FILE = rf"`((?:{FOLDERS})/[\w./-]+\.(?:py|md|yaml|csv|ipynb))`"
OPTION_IN_PROSE = r"`(--[\w-]+\.[\w.-]+[ =][^`]+)`"
LINK = r"\]\(([^)\s]+)\)"
PLACEHOLDERS = {"CONFIG": "configs/demo.yaml", "PLAN": "backward:2", "DECODER": "smollm2-135m-instruct"}


def header_commands(config: Path) -> Iterator[list[str]]:
    """Yield the commands in the comment that a config file opens with."""
    for line in config.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return
        for code in re.findall(r"(icecore \w+ [^()#]*|make [a-z-]+)", line):
            yield from split_commands(code.rstrip(". "))


def commands_of(program: str) -> list[Any]:
    """Return every command of one program on every page and in every config, as test parameters, each once.

    That which a config opens with has a test of its own.
    """
    shown = [(page, words) for page in PAGES for words in parsed_commands(page)]
    shown += [(config, words) for config in CONFIGS for words in list(header_commands(config))[1:]]
    chosen: dict[str, Any] = {}
    for path, words in shown:
        if Path(words[0]).name == program:
            text = " ".join(words[1:])
            chosen.setdefault(text, pytest.param(words[1:], id=f"{name_of(path)} {text}"))
    return list(chosen.values())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the configs in it and a file of data."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    rows = "".join(f"{k} stars and no more,{k % 5}\n" for k in range(40))
    (tmp_path / "reviews.csv").write_text(f"body,stars\n{rows}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class ReachedError(Exception):
    """A command had read all its arguments and was about to begin."""


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every command read its arguments and stop there."""

    def stop(_: SimpleNamespace) -> int:
        raise ReachedError

    monkeypatch.setattr(main_module, "load_command", lambda _: stop)


def write_shown_configs(folder: Path) -> None:
    """Write the YAML blocks that begin with a comment naming their file, so that commands can name it."""
    for page in PAGES:
        for block in read_page(page)[0]:
            named = re.match(r"# ([\w./-]+\.yaml)", block.text)
            if block.language == "yaml" and named and not (folder / named[1]).exists():
                (folder / named[1]).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("words", commands_of("icecore"))
@pytest.mark.usefixtures("parse_only")
def test_commands_parse(words: list[str], desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shown_configs(desk)
    known = {**PLACEHOLDERS, "CONFIG": "configs/adapt/demo.yaml"} if words[0] == "adapt" else PLACEHOLDERS
    arguments = [known.get(word, word) for word in words]
    if arguments[:1] == ["COMMAND"] or (len(arguments) == 1 and arguments[0] in COMMANDS):
        return  # a command that is only mentioned
    try:
        code = main(arguments)
    except ReachedError:
        return
    except SystemExit as stopped:  # --help
        code = int(stopped.code or 0)
    assert code == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_keys_in_prose_are_keys(page: Path, desk: Path) -> None:
    del desk
    for code in re.findall(OPTION_IN_PROSE, read_page(page)[1]):
        read_command(COMMANDS["run"], ["configs/demo.yaml", *shlex.split(code)]).config.check_heads()


def test_a_wrong_command_would_be_found(desk: Path, parse_only: None, capsys: pytest.CaptureFixture[str]) -> None:
    del desk, parse_only
    for line in ("run configs/demo.yaml --sedes [0]", "run configs/dmo.yaml", "rnu", "list hats", "fetch"):
        assert main(line.split()) != 0, line
    assert "Did you mean 'seeds'?" in capsys.readouterr().err
    with pytest.raises(ReachedError):
        main(["run", "configs/demo.yaml", "--seeds", "[0]"])


@pytest.mark.parametrize("words", commands_of("make"))
def test_make_targets_exist(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {word for word in words if "=" not in word and not word.startswith("-")} <= targets


def command_of(config: Path) -> str:
    """Return the command that a config is for."""
    return "adapt" if config.parent.name == "adapt" else "sweep" if config.stem.endswith("-sweep") else "run"


@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_a_config_opens_with_its_command(config: Path, desk: Path) -> None:
    del desk
    commands = list(header_commands(config))
    assert commands[0][:3] == ["icecore", commands[0][1], name_of(config)]
    assert commands[0][1] == command_of(config)
    assert any("untime" in line for line in config.read_text(encoding="utf-8").splitlines()[:6])
    made = read_command(COMMANDS[commands[0][1]], commands[0][2:]).config
    if command_of(config) != "adapt":
        made = made.check_heads()
    assert made.name in (config.stem, f"{config.parent.name}-{config.stem}")


def test_there_are_shipped_configs() -> None:
    assert CONFIGS


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_configs_on_pages_can_be_used(page: Path, tmp_path: Path) -> None:
    for block in read_page(page)[0]:
        if block.language == "yaml":
            assert isinstance(yaml.safe_load(block.text), dict), block
            (tmp_path / "shown.yaml").write_text(block.text, encoding="utf-8")
            try:
                name = "adapt" if "phases" in yaml.safe_load(block.text) else "run"
                made = read_command(COMMANDS[name], [str(tmp_path / "shown.yaml")]).config
                if name == "run":
                    made.check_heads()
            except IcecoreError as error:
                pytest.fail(f"{name_of(page)}:{block.line}: {error}")


def test_the_pages_show_something_of_each() -> None:
    """Otherwise the tests of links, trees, commands and configs would pass because they find nothing."""
    blocks = [block for page in PAGES for block in read_page(page)[0]]
    prose = "\n".join(read_page(page)[1] for page in PAGES)
    assert {"python", "yaml", "console", "text"} <= {block.language for block in blocks}
    assert any(is_tree(block) and list(tree_paths(block.text)) for block in blocks)
    assert commands_of("icecore")
    assert commands_of("make")
    assert re.search(OPTION_IN_PROSE, prose)
    assert re.search(LINK, prose)
    assert re.search(NAMED_FILE, prose)


def slug(heading: str) -> str:
    """Name a heading as a link to it does."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    prose = read_page(page)[1]
    for target in re.findall(LINK, prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name_of(page)} links to {target}"
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", read_page(linked)[1], re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_named_in_prose_exist(page: Path) -> None:
    named = re.findall(NAMED_FILE, read_page(page)[1])
    missing = [name for name in named if not (ROOT / name).is_file() and not name.startswith(("runs/", "caches/"))]
    assert not missing, f"{name_of(page)} names {missing}"


def tree_paths(text: str) -> Iterator[str]:
    """Yield the paths of a drawn file tree: `name   remark` lines, nested by indentation or by box characters."""
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        found = re.match(r"([\s│├└─]*)([\w.-][\w./-]*(?:, [\w.-][\w./-]*)*)(?:\s{2,}.*|\s+#.*|\s*)$", line)
        if not found:
            continue
        depth = len(found[1])
        while stack and stack[-1][0] >= depth:
            stack.pop()
        for name in found[2].split(", "):
            yield "/".join([*(folder.rstrip("/") for _, folder in stack), name])
        if found[2].endswith("/"):
            stack.append((depth, found[2]))


def is_tree(block: Block) -> bool:
    """Check whether a plain block is a file tree: it draws boxes, or begins with a folder."""
    is_drawn = re.search("[├└]──", block.text) or re.match(r"[\w.-]+/\s", block.text)
    return block.language in ("", "text") and bool(is_drawn)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_of_a_drawn_tree_exist(page: Path) -> None:
    made = ("runs", "caches", "icecore")
    for block in read_page(page)[0]:
        if is_tree(block) and not block.text.startswith(made):
            missing = [path for path in tree_paths(block.text) if not (ROOT / path).exists() and path != ROOT.name]
            missing = [path for path in missing if not path.startswith(made)]
            assert not missing, f"{name_of(page)}:{block.line} draws {missing}"


def test_trees_are_read() -> None:
    drawn = "extract/\n├── cache.py    reads\nprobes/\n├── heads/\n│   └── base.py  # all\n└── run.py\n"
    assert list(tree_paths(drawn)) == [
        "extract/",
        "extract/cache.py",
        "probes/",
        "probes/heads/",
        "probes/heads/base.py",
        "probes/run.py",
    ]
    indented = "docs/   pages\n  protocol.md, a.md   how\n               further words\nMakefile  targets\n"
    assert list(tree_paths(indented)) == ["docs/", "docs/protocol.md", "docs/a.md", "Makefile"]


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"auto(?:class|function):: (\w+)", page)) == sorted({*icecore.__all__} - {"IcecoreError"})
    assert "automodule:: extract.errors" in page, "which has IcecoreError"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_imports_from_icecore_alone(page: Path) -> None:
    code = "\n".join(block.text for block in read_page(page)[0] if block.language in ("python", "text"))
    assert re.findall(r"^\s*(?:from|import) (?:extract|probes)\b.*", code, re.MULTILINE) == []


@pytest.mark.long
def test_the_protocol_page_gives_the_counts_of_stsb(icecore_data: Path) -> None:
    from probes.data.pair_task import load_stsb_local

    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    shown = [line for block in read_blocks(page) if block.language == "text" for line in block.text.splitlines()]
    notes = load_stsb_local(icecore_data / "stsb").notes
    assert len(shown) > 5
    assert set(shown) <= {re.sub(r" \('.*\)$", " (...)", note) for note in notes}
