"""`icecore score`: new pairs through a finished run."""

import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentError, ArgumentParser
from rich.console import Console

from extract.errors import ConfigError, InputError
from probes.runs.scorer import load_scorer


def score_command(argv: Sequence[str]) -> int:
    """Score new pairs of texts with a finished run; prints a tab-separated score per pair."""
    parser = ArgumentParser(prog="icecore score", description=score_command.__doc__, exit_on_error=False)
    parser.add_argument("run", type=str, help="run folder, as runs/demo")
    parser.add_argument("texts", type=str, nargs="*", help="two texts")
    parser.add_argument("--pairs", type=str, default="", help="tab-separated file, two texts a line; '-' reads stdin")
    parser.add_argument("--head", type=str, default="", help="head of the run; the best on validation when absent")
    try:
        found = parser.parse_args(list(argv))
    except ArgumentError as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"score cannot be done: {text}. Usage: icecore score RUN TEXT TEXT.") from error
    pairs = _read_pairs(found.pairs) if found.pairs else [_two(found.texts)]
    scorer = load_scorer(found.run, head=found.head or None)
    Console(stderr=True, markup=False).print(f"head {scorer.name}, mean of {len(scorer.seeds)} seeds", highlight=False)
    for score, (left, right) in zip(scorer.score(pairs), pairs, strict=True):
        sys.stdout.write(f"{score:.3f}\t{left}\t{right}\n")
    return 0


def _two(texts: Sequence[str]) -> tuple[str, str]:
    if len(texts) != 2:
        raise InputError(f"{len(texts)} texts were given; allowed: two texts, or a file of pairs with --pairs FILE.")
    return texts[0], texts[1]


def _read_pairs(name: str) -> list[tuple[str, str]]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"pairs file {name!r} cannot be read ({error}); give a tab-separated UTF-8 file.") from error
    pairs = []
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines would also break inside a text
        if not line:
            continue
        row = line.split("\t")
        if len(row) != 2 or not all(cell.strip() for cell in row):
            raise InputError(f"line {number} of {name!r} is {row!r}; allowed: two texts with one tab between them.")
        pairs.append((row[0], row[1]))
    return pairs
