"""WikiText: articles, tokenisation undone, sentences."""

from pathlib import Path

import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.sources import detokenise, parse_articles, read_wikitext, split_sentences

LINES = (
    "",
    "= First <unk> =",
    "",
    "It is 3 @.@ 5 km long . It is <unk> .",
    "<formula>",
    "",
    "= = Section = =",
    "",
    "A second @-@ rate paragraph .",
    "= 1 <unk> / s and a nominal k =",
    "",
    "",
    "= Second =",
    "",
    '" Yes , " he said .',
)
PAGE = "".join(f" {line} \n" for line in LINES)


def test_articles_have_paragraphs_and_no_headings() -> None:
    first, second = parse_articles(PAGE)
    assert first.title == "First <unk>"
    assert first.paragraphs == (
        "It is 3.5 km long. It is <unk>.",
        "A second-rate paragraph.",
        "= 1 <unk> / s and a nominal k =",  # no title: no blank line is before it
    )
    assert second.title == "Second"
    assert second.text == '"Yes," he said.'


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("two @-@ part , 1 @,@ 000 and 2 @.@ 5 %", "two-part, 1,000 and 2.5%"),
        ('the episode , " In Safe Hands " .', 'the episode, "In Safe Hands".'),
        ("Teddy 's Story ( 2004 ) [ sic ] ; don 't", "Teddy's Story (2004) [sic]; don't"),
        ("the brothers ' house : ' closed ' now", "the brothers' house: 'closed' now"),
        ("at 04 : 30 : it cost US $ 5 !", "at 04:30: it cost US $5!"),
        ("2000 \u2013 2005 , hurt / Hurt ...", "2000 \u2013 2005, hurt / Hurt..."),
        ("", ""),
    ],
)
def test_tokenisation_is_undone(line: str, text: str) -> None:
    assert detokenise(line) == text


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "No." She left. (It rained.) Then', ['He said "No."', "She left.", "(It rained.)", "Then"]),
        (
            "Mr. J. R. Smith of St. Ives met No. 7. It was late.",
            ["Mr. J. R. Smith of St. Ives met No. 7.", "It was late."],
        ),
        ("It is 3.5 km. <unk> is not.", ["It is 3.5 km.", "<unk> is not."]),
        ("in U.S. waters\nA line", ["in U.S. waters", "A line"]),
        ("", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_the_published_splits(icecore_data: Path) -> None:
    for split, n_articles in (("validation", 60), ("test", 60)):
        articles, source = read_wikitext(split, icecore_data / "wikitext2")
        assert len(articles) == n_articles  # as published
        assert source.startswith(f"{split} of WikiText-2, wiki.")
        assert not any("@" in paragraph and "@-@" in paragraph for one in articles for paragraph in one.paragraphs)


def test_other_names_and_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match=r"split of WikiText-2 'dev'.*Allowed: validation, test, train"):
        read_wikitext("dev")
    monkeypatch.delenv("ICECORE_DATA", raising=False)
    with pytest.raises(TaskError, match=r"ICECORE_DATA is not set.*wikitext2/wiki.test.tokens"):
        read_wikitext()
    (tmp_path / "wiki.test.tokens").write_text("no title\n", encoding="utf-8")
    with pytest.raises(TaskError, match="holds no article"):
        read_wikitext("test", tmp_path)


@pytest.mark.parametrize("text", ["." * 100_000 + "a", "A. " * 50_000, '. "' * 50_000, "." + " " * 100_000 + "a"])
def test_sentences_of_a_hostile_text_take_no_longer_than_it_is(text: str) -> None:
    """Each took hours or minutes; the limit of a test ends it where it does again."""
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_headings_of_a_hostile_text_take_no_longer_than_it_is() -> None:
    assert [article.title for article in parse_articles("\n".join(["", "= A =", "", "= " * 50_000 + "x", ""]))] == ["A"]
