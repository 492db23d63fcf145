"""Span tags of one sentence: read as spans, written in any of five schemes."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from extract.errors import unknown_name

Scheme = Literal["IOB1", "IOB2", "IO", "BIOES", "BILOU"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


class Span(NamedTuple):
    """Words `start` to `end`, the latter not among them, that are one `type`."""

    start: int
    end: int
    type: str


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into prefix and type at its first hyphen, since types may hold more; the type of `O` is empty."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def read_spans(tags: Sequence[str]) -> list[Span]:
    """Read the spans of one sentence, by the rules of conlleval, which hold for every scheme.

    A span starts at B, S or U, after O, after E, S or L, and where the type changes; so an I after O starts one. For
    every sequence of B, I and O the answer is that of `conlleval` of the CoNLL-2000 shared task.
    """
    spans: list[Span] = []
    start, before, kind_before = 0, "O", ""
    for index, tag in enumerate((*tags, "O")):
        prefix, kind = split_tag(tag)
        is_new = prefix in ("B", "S", "U") or before in ("E", "S", "L") or kind != kind_before
        if before != "O" and (prefix == "O" or is_new):
            spans.append(Span(start, index, kind_before))
        if prefix != "O" and (before == "O" or is_new):
            start = index
        before, kind_before = prefix, kind
    return spans


def write_spans(spans: Iterable[Span], n_words: int, *, scheme: str = "IOB2") -> list[str]:
    """Write spans, in order and without overlap, as the tags of one sentence, in one of the five schemes.

    IO cannot keep apart two spans of one type that touch.
    """
    if scheme not in SCHEMES:
        raise unknown_name("tagging scheme", scheme, SCHEMES)
    last, single = {"BIOES": ("E", "S"), "BILOU": ("L", "U")}.get(scheme, ("I", "B"))
    tags = ["O"] * n_words
    for span in spans:
        kind = span.type
        tags[span.start : span.end] = [f"I-{kind}"] * (span.end - span.start)
        touches = span.start > 0 and tags[span.start - 1][1:] == f"-{kind}"
        if scheme == "IO" or (scheme == "IOB1" and not touches):
            continue
        if span.end - span.start == 1:
            tags[span.start] = f"{single}-{kind}"
        else:
            tags[span.start], tags[span.end - 1] = f"B-{kind}", f"{last}-{kind}"
    return tags


def convert_tags(tags: Sequence[str], scheme: str = "IOB2") -> list[str]:
    """Write the tags of one sentence, of any scheme, in another; tags that break theirs are read as by `read_spans`."""
    return write_spans(read_spans(tags), len(tags), scheme=scheme)


def is_span_tag(tag: str) -> bool:
    """Return whether a label is `O`, or one of the letters B, I, E, S, L, U with a hyphen and a type."""
    prefix, kind = split_tag(tag)
    return tag == "O" or (prefix in tuple("BIESLU") and bool(kind))
