from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.errors import UnknownNameError
from probes.metrics.prediction_metrics import (
    SCHEMES,
    Span,
    convert_tags,
    is_span_tag,
    read_spans,
    split_tag,
    write_spans,
)

LOSSLESS = [scheme for scheme in SCHEMES if scheme != "IO"]


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Spans in order and without overlap, with the number of words."""
    cuts = sorted(draw(st.sets(st.integers(0, 12), max_size=8)))
    spans = [
        Span(start, end, draw(st.sampled_from(["PER", "LOC", "creative-work"])))
        for start, end in pairwise(cuts)
        if draw(st.booleans())
    ]
    return spans, 12


@given(sentences())
@pytest.mark.parametrize("scheme", LOSSLESS)
def test_spans_survive_every_scheme_but_io(scheme: str, sentence: tuple[list[Span], int]) -> None:
    spans, n_words = sentence
    tags = write_spans(spans, n_words, scheme=scheme)
    assert read_spans(tags) == spans
    assert len(tags) == n_words


@given(sentences())
@pytest.mark.parametrize(("first", "second"), list(product(LOSSLESS, LOSSLESS)))
def test_schemes_convert_into_each_other_and_back(first: str, second: str, sentence: tuple[list[Span], int]) -> None:
    tags = write_spans(sentence[0], sentence[1], scheme=first)
    assert convert_tags(convert_tags(tags, second), first) == tags


@given(sentences())
def test_io_keeps_which_words_are_inside_and_what_they_are(sentence: tuple[list[Span], int]) -> None:
    tags = write_spans(sentence[0], sentence[1], scheme="IO")
    inside = {word: span.type for span in sentence[0] for word in range(span.start, span.end)}
    assert tags == [f"I-{inside[word]}" if word in inside else "O" for word in range(sentence[1])]


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", "I-A I-A B-A O I-B I-A O I-B"),
        ("IOB2", "B-A I-A B-A O B-B B-A O B-B"),
        ("BIOES", "B-A E-A S-A O S-B S-A O S-B"),
        ("BILOU", "B-A L-A U-A O U-B U-A O U-B"),
        ("IO", "I-A I-A I-A O I-B I-A O I-B"),
    ],
)
def test_the_schemes_as_they_are_written(scheme: str, tags: str) -> None:
    spans = [Span(0, 2, "A"), Span(2, 3, "A"), Span(4, 5, "B"), Span(5, 6, "A"), Span(7, 8, "B")]
    assert write_spans(spans, 8, scheme=scheme) == tags.split()


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O I-A I-A", [(1, 3, "A")]),
        ("B-A I-B", [(0, 1, "A"), (1, 2, "B")]),
        ("B-A B-A", [(0, 1, "A"), (1, 2, "A")]),
        ("I-A B-A", [(0, 1, "A"), (1, 2, "A")]),
        ("E-A I-A", [(0, 1, "A"), (1, 2, "A")]),
        ("S-A I-A E-A", [(0, 1, "A"), (1, 3, "A")]),
        ("", []),
    ],
)
def test_tags_that_break_their_scheme_are_read_as_conlleval_would(tags: str, spans: list[tuple[int, int, str]]) -> None:
    assert read_spans(tags.split()) == spans


def test_types_may_hold_hyphens() -> None:
    assert split_tag("I-creative-work") == ("I", "creative-work")
    assert convert_tags(["S-a-b", "B-a-b", "E-a-b"]) == ["B-a-b", "B-a-b", "I-a-b"]


def test_what_a_span_tag_is() -> None:
    assert all(map(is_span_tag, ["O", "B-PER", "I-x", "E-x", "S-x", "L-x", "U-x", "B-a-b"]))
    assert not any(map(is_span_tag, ["", "NN", "B", "B-", "X-PER", "o", "b-PER", "O-PER", "-", "B_PER"]))


def test_another_scheme_is_unknown() -> None:
    with pytest.raises(UnknownNameError, match="unknown tagging scheme 'IOB3': did you mean 'IOB2'"):
        write_spans([], 0, scheme="IOB3")
