"""Reading the pages of the documentation: fenced blocks, prose, and the commands that either shows."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
SHELLS = {"console", "bash", "sh", "shell"}
STOPS = {"|", "||", "&&", ";", ">", ">>", "2>", "&"}
RUN_WHOLE = ("README.md", "docs/guide.md", "docs/adapt.md", "docs/cookbook/")
"""Pages whose commands are run by `test_docs_run.py`; those of other pages are parsed."""
NOT_RUN = {
    "icecore run configs/demo.yaml --decoder.name openai-community/gpt2 --decoder.revision main": "needs the hub",
    "icecore run configs/demo.yaml --decoder.adapter my-lora": "needs an adapter",
    "icecore run configs/demo.yaml --decoder.name owner/model --decoder.trust_remote_code true": "needs the hub",
    "icecore sweep configs/demo.yaml --kinds bidirectional,nosink-bidirectional --k 0,5,10,15": "takes long",
    "icecore sweep my-topics.yaml --kinds bidirectional,nosink-bidirectional --k 0,5,10,15": "takes long",
    "icecore run configs/demo.yaml --heads.cosine-mlp.hidden 32": "as the run before it",
    "icecore run my-pairs.yaml --name my-pairs-clean --task.drop_leaked sentences": "as the run before it",
    "icecore sweep configs/demo.yaml --decoder.name EleutherAI/pythia-160m"
    " --over decoder.revision=step512,step4000,step143000 --remove-decoders": "needs the hub",
    "icecore sweep configs/demo.yaml --over plan=causal,bidirectional:10,bidirectional:20,bidirectional:30"
    " --over poolings=mean,last --search halving --budget 0.5": "needs more blocks and rows than the tests have",
    "icecore fetch smollm2-135m-instruct": "needs the network",
    "icecore serve runs/demo": "lasts until it is stopped",
    "icecore extract configs/stsb-nosink.yaml": "needs STS-B",
    "icecore run configs/stsb-nosink.yaml": "needs STS-B",
}
"""Commands on these pages that cannot run offline on tiny decoders; they are parsed."""


@dataclass(frozen=True)
class Block:
    """One fenced block; `name` is what stands after its language: a file, or a remark to the tests."""

    language: str
    name: str
    text: str
    line: int


def name_of(path: Path) -> str:
    """Name a file in a test's id."""
    return path.relative_to(ROOT).as_posix()


def read_blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for found in re.finditer(r"^( *)```([^\n`]*)\n(.*?)^\1```[ ]*$", text, re.MULTILINE | re.DOTALL):
        language, _, name = found[2].strip().partition(" ")
        lines = [line.removeprefix(found[1]) for line in found[3].splitlines(keepends=True)]
        yield Block(language, name, "".join(lines), text[: found.start()].count("\n") + 2)


def read_page(page: Path) -> tuple[list[Block], str]:
    """Return the fenced blocks of a page, and its prose without them."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^( *)```.*?^\1```[ ]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    return list(read_blocks(text)), prose


def shell_lines(text: str) -> Iterator[str]:
    """Yield the commands of a shell block; where there are prompts, the other lines are output."""
    lines = text.replace("\\\n", " ").splitlines()
    prompts = [line[2:] for line in lines if line.startswith("$ ")]
    for line in prompts or lines:
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def split_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, without its comment, variables, redirections and `srun`."""
    words: list[str] = []
    lexer = shlex.shlex(line.partition(" < ")[0], posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    for word in [*lexer, ";"]:
        if word in STOPS:
            if words:
                yield words
            words = []
        elif word == "probes.cli.main":  # after `python -m` or torchrun
            words = ["icecore"]
        elif words or not (re.fullmatch(r"[A-Z_]+=.*", word) or word == "srun"):
            words.append(word)


def is_run(page: Path) -> bool:
    """Whether the commands of a page are run."""
    return name_of(page).startswith(RUN_WHOLE)


def block_commands(page: Path) -> Iterator[list[str]]:
    """Yield every command in the blocks of a page."""
    for block in read_page(page)[0]:
        if block.language in SHELLS or (not block.language and re.match(r"(\$ |make |icecore )", block.text)):
            for line in shell_lines(block.text):
                yield from split_commands(line)


def parsed_commands(page: Path) -> Iterator[list[str]]:
    """Yield every command that a page shows, in blocks and in inline code, and that no test runs."""
    for words in block_commands(page):
        if words[0] != "icecore" or not is_run(page) or " ".join(words) in NOT_RUN:
            yield words
    for code in re.findall(r"`((?:icecore|make|torchrun) [^`]+)`", read_page(page)[1]):
        yield from split_commands(code.replace("\n", " "))
