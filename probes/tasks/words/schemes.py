"""The tagging scheme of a whole task: detected, converted to IOB2 and recorded. Mixtures are rejected."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from extract.errors import TaskError, unknown_name
from probes.metrics.tags import SCHEMES, Scheme, convert_tags, is_span_tag, split_tag

LETTERS: dict[Scheme, str] = {"IOB1": "BI", "IOB2": "BI", "IO": "I", "BIOES": "BIES", "BILOU": "BILU"}
"""The letters that may stand before a type."""

Place = Callable[[int, int], str]
"""Names the file and line of a word, given the numbers of its sentence and of the word, both from 0."""


@dataclass(frozen=True)
class SchemeRecord:
    """What the tags were before they became IOB2."""

    found: Scheme
    is_declared: bool
    """True if the user named the scheme, False if the tags showed it."""
    n_tags: int
    n_changed: int
    """Tags that had to be rewritten."""
    n_broken: int = 0
    """Tags that break the scheme; they were read by the rules of conlleval."""
    first_break: str = ""
    """Place of the first of them."""

    def note(self) -> str:
        """Say it in one line, for the reader of a report."""
        how = "declared" if self.is_declared else "detected"
        count = f"{self.n_changed} of {self.n_tags} were" if self.n_changed else "none had to be"
        note = f"tags are {self.found} as {how}; {count} rewritten as IOB2"
        if self.n_broken:
            note += f"; breaks of {self.found}, read by the rules of conlleval: {self.n_broken} ({self.first_break})"
        return note


def _say_sentence(sentence: int, word: int) -> str:
    return f"sentence {sentence + 1}, word {word + 1}"


def detect_scheme(
    sentences: Sequence[Sequence[str]], *, tolerance: float = 0.0, place: Place = _say_sentence
) -> Scheme:
    """Find the one scheme that every sentence of a task obeys.

    Args:
        sentences: The tags of every sentence of every split: one sentence alone often fits several schemes.
        tolerance: Share of the tags other than O that may break the scheme; 0 rejects any mixture.
        place: Names the file and line of a word, for errors.

    Returns:
        The scheme. Tags without any B are called IO; IOB1 in which no two spans of a type touch reads the same.

    Raises:
        TaskError: A tag belongs to no scheme, schemes are mixed, or there is no span at all.
    """
    first: dict[str, tuple[int, int]] = {}
    for tag, where in _first_places(sentences).items():
        if not is_span_tag(tag):
            raise _no_span_tag(tag, place(*where))
        first.setdefault(split_tag(tag)[0], where)
    letters = set(first) - {"O"}
    if not letters:
        raise TaskError("no tag marks a span, all of them are O: name the column of the span tags with `tags`.")
    if not any(letters <= set(allowed) for allowed in LETTERS.values()):
        places = [min(first[letter] for letter in letters & set(odd)) for odd in ("ES", "LU")]
        shown = " and ".join(_show(sentences, where, place) for where in sorted(places))
        raise _mixed(f"{shown} belong to different tagging schemes")
    broken = {scheme: _find_breaks(sentences, scheme) for scheme in _candidates(letters)}
    best = min(broken, key=lambda scheme: len(broken[scheme]))
    if len(broken[best]) <= tolerance * sum(tag != "O" for tags in sentences for tag in tags):
        return best
    raise _mixed(", and ".join(f"{_show(sentences, where[0], place)} is no {name}" for name, where in broken.items()))


def _first_places(sentences: Sequence[Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Find the first place of each tag, in order."""
    first: dict[str, tuple[int, int]] = {}
    for row, tags in enumerate(sentences):
        for word, tag in enumerate(tags):
            if tag not in first:
                first[tag] = (row, word)
    return first


def _candidates(letters: set[str]) -> list[Scheme]:
    """List what tags with these letters can be; the letters of IO are also letters of all the others."""
    if letters == {"I"}:
        return ["IO"]
    fitting = [scheme for scheme in SCHEMES if letters <= set(LETTERS[scheme])]
    return [scheme for scheme in fitting if not letters <= set("BI") or LETTERS[scheme] == "BI"]


def _find_breaks(sentences: Sequence[Sequence[str]], scheme: str) -> list[tuple[int, int]]:
    """List the tags that the scheme would write otherwise for the same spans."""
    breaks: list[tuple[int, int]] = []
    for row, tags in enumerate(sentences):
        right = convert_tags(tags, scheme)
        if right != list(tags):
            breaks += [(row, word) for word, tag in enumerate(tags) if tag != right[word]]
    return breaks


def _show(sentences: Sequence[Sequence[str]], where: tuple[int, int], place: Place) -> str:
    row, word = where
    before = f"after {sentences[row][word - 1]!r}" if word else "at the start of a sentence"
    return f"{place(row, word)}: {sentences[row][word]!r} {before}"


def _mixed(what: str) -> TaskError:
    return TaskError(
        f"{what}: fix the tags, or name the scheme with `scheme` ({', '.join(SCHEMES)}) to have them read by the "
        "rules of conlleval."
    )


def _no_span_tag(tag: str, where: str) -> TaskError:
    return TaskError(
        f"{where}: {tag!r} is not a span tag (O, or one of B I E S L U, a hyphen and a type): name the column of the "
        "span tags with `tags`, or set `metric: accuracy`."
    )


def to_iob2(
    sentences: Sequence[Sequence[str]],
    *,
    scheme: str = "auto",
    tolerance: float = 0.0,
    place: Place = _say_sentence,
) -> tuple[list[list[str]], SchemeRecord]:
    """Convert the span tags of a whole task to IOB2, and record what they were.

    `auto` detects the scheme as `detect_scheme` does, and rejects mixtures; a name is trusted, and tags that break that
    scheme are read by the rules of conlleval.

    Raises:
        TaskError: As `detect_scheme`, or a tag has a letter that the declared scheme lacks.
        UnknownNameError: There is no such scheme.
    """
    if scheme == "auto":
        found = detect_scheme(sentences, tolerance=tolerance, place=place)
    else:
        named = [known for known in SCHEMES if known == scheme]
        if not named:
            raise unknown_name("tagging scheme", scheme, ["auto", *SCHEMES])
        found = named[0]
        _check_letters(sentences, found, place)
    converted = [convert_tags(tags) for tags in sentences]
    n_changed = sum(
        old != new for olds, news in zip(sentences, converted, strict=True) for old, new in zip(olds, news, strict=True)
    )
    breaks = _find_breaks(sentences, found)
    shown = _show(sentences, breaks[0], place) if breaks else ""
    n_tags = sum(map(len, sentences))
    return converted, SchemeRecord(found, scheme != "auto", n_tags, n_changed, len(breaks), shown)


def _check_letters(sentences: Sequence[Sequence[str]], scheme: Scheme, place: Place) -> None:
    for tag, where in _first_places(sentences).items():
        if not is_span_tag(tag):
            raise _no_span_tag(tag, place(*where))
        if tag != "O" and split_tag(tag)[0] not in LETTERS[scheme]:
            shown = _show(sentences, where, place)
            raise TaskError(f"{shown} is not a tag of the declared scheme {scheme}: declare another, or `auto`.")
