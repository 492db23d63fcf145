import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.errors import TaskError, UnknownNameError
from probes.data.word_task import detect_scheme, to_iob2
from probes.metrics.prediction_metrics import SCHEMES, Span, convert_tags, write_spans

# In touch and apart, of one word and of several: enough to tell every scheme from every other.
SPANS = [[Span(0, 2, "A"), Span(2, 3, "A"), Span(4, 5, "B")], [], [Span(1, 2, "B"), Span(2, 4, "A")]]


def written(scheme: str) -> list[list[str]]:
    return [write_spans(spans, 6, scheme=scheme) for spans in SPANS]


def place(sentence: int, word: int) -> str:
    return f"eng.train, line {10 * sentence + word}"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_found_and_converted(scheme: str) -> None:
    tags, record = to_iob2(written(scheme))
    assert (record.name, record.is_declared, record.n_tags) == (scheme, False, 18)
    assert record.n_changed == sum(
        a != b for x, y in zip(written(scheme), tags, strict=True) for a, b in zip(x, y, strict=True)
    )
    if scheme != "IO":  # the two spans in touch became one
        assert tags == written("IOB2")
    assert all(convert_tags(row) == row for row in tags)


def test_one_sentence_fits_several_schemes_and_the_whole_task_decides() -> None:
    apart = [["O", "I-A", "I-A"]]
    assert detect_scheme(apart) == "IO"
    assert detect_scheme([*apart, ["I-A", "B-A"]]) == "IOB1"
    assert detect_scheme([["B-A", "B-A"]]) == "IOB2"
    assert detect_scheme([["S-A"], ["O"]]) == "BIOES"
    assert detect_scheme([["U-A"], ["B-A", "L-A"]]) == "BILOU"


def test_the_note_says_what_was_found() -> None:
    assert to_iob2([["I-A", "B-A", "O"]])[1].note() == "tags are IOB1 as detected; 1 of 3 were rewritten as IOB2"
    assert to_iob2([["B-A"]], scheme="IOB2")[1].note() == "tags are IOB2 as declared; none had to be rewritten as IOB2"


def test_a_mixture_of_iob1_and_iob2_is_refused_with_both_places() -> None:
    with pytest.raises(TaskError) as caught:
        detect_scheme([["O", "I-PER", "I-PER"], ["O"], ["I-LOC", "O", "B-ORG"]], locate=place)
    assert str(caught.value) == (
        "eng.train, line 22: 'B-ORG' after 'O' is no IOB1, and eng.train, line 1: 'I-PER' after 'O' is no IOB2: fix "
        "the tags, or name the scheme with `scheme` (IOB1, IOB2, IO, BIOES, BILOU) to have them read by the rules of "
        "conlleval."
    )


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ("S-A O B-A I-A", "eng.train, line 3: 'I-A' after 'B-A' is no BIOES"),
        ("S-A O I-A E-A", "eng.train, line 2: 'I-A' after 'O' is no BIOES"),
        ("B-A L-A B-A O", "eng.train, line 2: 'B-A' after 'L-A' is no BILOU"),
        ("E-A", "eng.train, line 0: 'E-A' at the start of a sentence is no BIOES"),
        ("S-A U-A", "line 0: 'S-A' at the start of a sentence and eng.train, line 1: 'U-A' after 'S-A' belong to diff"),
        ("B-A E-A B-B L-B", "line 1: 'E-A' after 'B-A' and eng.train, line 3: 'L-B' after 'B-B' belong to different"),
    ],
)
def test_other_mixtures(tags: str, said: str) -> None:
    with pytest.raises(TaskError) as caught:
        detect_scheme([tags.split()], locate=place)
    assert said in str(caught.value)


def test_a_few_slips_can_be_tolerated_and_are_counted() -> None:
    tags = [["B-A", "I-A", "O", "B-A"]] * 30 + [["O", "I-B"]]
    with pytest.raises(TaskError, match="line 301: 'I-B' after 'O' is no IOB2"):
        detect_scheme(tags, locate=place)
    with pytest.raises(TaskError, match="line 301: 'I-B' after 'O' is no IOB2"):
        detect_scheme(tags, tolerance=0.01, locate=place)
    new, record = to_iob2(tags, tolerance=0.02, locate=place)
    assert new == [*tags[:-1], ["O", "B-B"]]
    assert (record.name, record.n_broken, record.n_changed) == ("IOB2", 1, 1)
    assert record.note().endswith(
        "1 of 122 were rewritten as IOB2; breaks of IOB2, read by the rules of conlleval: 1 "
        "(eng.train, line 301: 'I-B' after 'O')"
    )


def test_a_declared_scheme_is_taken_at_its_word() -> None:
    mixed = [["O", "I-PER", "I-PER"], ["O", "B-ORG"]]
    tags, record = to_iob2(mixed, scheme="IOB2")
    assert tags == [["O", "B-PER", "I-PER"], ["O", "B-ORG"]]
    assert (record.name, record.is_declared, record.n_changed, record.n_broken) == ("IOB2", True, 1, 1)
    with pytest.raises(
        TaskError, match=r"line 0: 'S-A' at the start of a sentence is not a tag of the declared scheme IOB1"
    ):
        to_iob2([["S-A"]], scheme="IOB1", locate=place)
    with pytest.raises(UnknownNameError, match=r"unknown tagging scheme 'IOB': did you mean 'IOB\d'\? Allowed: auto, "):
        to_iob2([["B-A"]], scheme="IOB")


@pytest.mark.parametrize("scheme", ["auto", "IOB2"])
def test_a_tag_of_no_scheme(scheme: str) -> None:
    with pytest.raises(TaskError, match=r"eng.train, line 11: 'NN' is not a span tag \(O, or one of B I E S L U"):
        to_iob2([["O"], ["B-A", "NN"]], scheme=scheme, locate=place)


def test_tags_without_any_span() -> None:
    with pytest.raises(TaskError, match="no tag marks a span, all of them are O"):
        detect_scheme([["O", "O"], ["O"]])


@given(st.lists(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), min_size=1, max_size=6), max_size=4))
def test_whatever_is_found_rewrites_nothing_in_its_own_scheme(tags: list[list[str]]) -> None:
    try:
        found = detect_scheme(tags)
    except TaskError:
        return
    assert [convert_tags(row, found) for row in tags] == tags
