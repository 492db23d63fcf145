"""WikiText as published, with its tokenisation undone: articles of paragraphs, and sentences."""

import re
from dataclasses import dataclass
from pathlib import Path

from extract.errors import TaskError, unknown_name
from probes.data.sources import need_local
from probes.data.table_files import read_text

FILES = {"validation": ("wiki.valid.tokens",), "test": ("wiki.test.tokens",), "train": ("wiki.train.tokens",)}
"""Names of the file of each split."""
UNREAD = re.compile(r"<(?:unk|formula)>")
"""What WikiText has in place of rare words and of formulas: no decoder's text."""
HEADING = re.compile(r"(?:= )+(?P<title>.*?)(?: =)+")
JOINS_BOTH = {"@-@": "-", "@,@": ",", "@.@": "."}
_NUMBERS = re.compile(r"(\d) : (?=\d)")
JOINS_LEFT = frozenset([*",.;:!?)]}%\u2019\u201d\u00b0", "...", ".."])
JOINS_RIGHT = frozenset("([{$\u00a3\u00a5\u20ac#\u201c\u2018")
SENTENCE_END = re.compile("([.!?]+[\"'\u201d\u2019)\\]]*)\\s+(?=[\"'\u201c\u2018(\\[<]*[A-Z0-9<])")
NO_END = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|St|No|Nos|vs|Jr|Sr|Prof|Gen|Col|Maj|Lt|Capt|Cmdr|Sgt|Adm|Rev|Hon|Mt|Ft|Vol|pp|cf|ca|c|e\.g|i\.e)"
    r"|\b[A-Z])\.$"
)
"""How a piece ends that is no sentence: an abbreviation that a name or number follows, or an initial."""


@dataclass(frozen=True)
class Article:
    """An article, without its section headings."""

    title: str
    paragraphs: tuple[str, ...]

    @property
    def text(self) -> str:
        """All paragraphs, with a blank line between two."""
        return "\n\n".join(self.paragraphs)


def read_wikitext(split: str = "test", folder: str | Path | None = None) -> tuple[list[Article], str]:
    """Read the articles of a split of WikiText-2, and say in a line where they are from.

    Args:
        split: `validation`, `test` or `train`.
        folder: Where `wiki.valid.tokens` and its siblings are; None is `$ICECORE_DATA/wikitext2`.

    Raises:
        TaskError: `ICECORE_DATA` is not set, or the file is missing or holds no article.
        UnknownNameError: Another split.

    Example:
        >>> articles, source = read_wikitext("test")  # doctest: +SKIP
        >>> articles[0].title  # doctest: +SKIP
        'Robert <unk>'
    """
    if split not in FILES:
        raise unknown_name("split of WikiText-2", split, FILES)
    local = need_local("wikitext2", folder, example=FILES[split][0])
    path = local.find(*FILES[split])
    articles = parse_articles(read_text(path))
    if not articles:
        raise TaskError(f"{path} holds no article; allowed: WikiText as published, with a title as ' = Title = '.")
    return articles, f"{split} of WikiText-2, {local.source(path)}"


def parse_articles(text: str) -> list[Article]:
    """Parse WikiText: a title is a heading of the first level between blank lines; further headings are left out."""
    lines = ["", *(line.strip() for line in text.split("\n")), ""]
    articles: list[tuple[str, list[str]]] = []
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        heading = HEADING.fullmatch(line)
        if heading and not before and not after:
            if not line.startswith("= ="):
                articles.append((detokenise(heading["title"]), []))
        elif UNREAD.sub("", line).strip() and articles:
            articles[-1][1].append(detokenise(line))
    return [Article(title, tuple(paragraphs)) for title, paragraphs in articles]


def detokenise(line: str) -> str:
    r"""Undo the tokenisation of a line of WikiText, as far as it can be: `/` and dashes keep the blanks around them.

    Example:
        >>> detokenise('He said : " It cost $ 1 @,@ 000 , didn \'t it ? " ( in a two @-@ part episode )')
        'He said: "It cost $1,000, didn\'t it?" (in a two-part episode)'
    """
    text, is_glued = "", True
    is_open = {'"': False, "'": False}
    for token in _NUMBERS.sub(r"\1:", line).split():
        word, joins_left, joins_right = token, False, False
        if token in JOINS_BOTH:
            word, joins_left, joins_right = JOINS_BOTH[token], True, True
        elif token in is_open and not (token == "'" and text.endswith("s") and not is_open[token]):
            joins_left, joins_right = is_open[token], not is_open[token]
            is_open[token] = not is_open[token]
        else:
            joins_left = token in JOINS_LEFT or token.startswith("'")
            joins_right = token in JOINS_RIGHT
        text += word if is_glued or joins_left else f" {word}"
        is_glued = joins_right
    return text


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences: after `.`, `!` or `?`, where blanks and a capital, digit or bracket follow.

    Not after an initial or a common abbreviation, as `Dr.` and `No.`. A line break ends a sentence too.

    Example:
        >>> split_sentences("Dr. J. Watson left. He came back at 5 p.m. on foot!")
        ['Dr. J. Watson left.', 'He came back at 5 p.m. on foot!']
    """
    sentences: list[str] = []
    for line in text.split("\n"):
        start = 0
        for match in SENTENCE_END.finditer(line):
            if not NO_END.search(line[start : match.end(1)]):
                sentences.append(line[start : match.end(1)].strip())
                start = match.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]
