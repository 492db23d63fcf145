"""What is published of conlleval, and its output worked out by hand; then schemes it must count alike."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.data.word_task import to_iob2
from probes.heads.word_fits import TagScorer
from probes.latents.word_latents import GoldTags
from probes.metrics.prediction_metrics import count_tag_spans, score_spans
from tests.probes.metrics.conlleval_oracle import conlleval

# The sample output on the page of the CoNLL-2000 shared task. Its percentages leave one choice of small counts by type
# that adds up to its totals: correct, found and gold phrases.
TOTALS = {"n_words": 961, "n_gold": 459, "n_predicted": 539, "n_correct": 371}
OVERALL = ("84.08", "68.83", "80.83", "74.35")
PUBLISHED = {
    "ADJP": ((0, 1, 6), ("0.00", "0.00", "0.00")),
    "ADVP": ((5, 11, 8), ("45.45", "62.50", "52.63")),
    "NP": ((206, 317, 262), ("64.98", "78.63", "71.16")),
    "PP": ((89, 107, 90), ("83.18", "98.89", "90.36")),
    "SBAR": ((2, 3, 6), ("66.67", "33.33", "44.44")),
    "VP": ((69, 100, 87), ("69.00", "79.31", "73.80")),
}
# Nothing in the output says which phrases were taken for which, so this is one of many ways to reach it: 15 noun
# phrases of two words found as two of one word, 73 phrases taken for another type, 65 found where there is none.
N_SPLIT = 15
TAKEN_FOR = {
    ("NP", "VP"): 31,
    ("NP", "PP"): 10,
    ("ADJP", "NP"): 6,
    ("ADVP", "NP"): 3,
    ("PP", "NP"): 1,
    ("SBAR", "NP"): 4,
    ("VP", "NP"): 18,
}
MADE_UP = {"ADJP": 1, "ADVP": 6, "NP": 49, "PP": 8, "SBAR": 1}

Rows = list[list[str]]


def percent(*shares: float) -> tuple[str, ...]:
    return tuple(f"{100 * share:.2f}" for share in shares)


def published_corpus() -> tuple[Rows, Rows]:
    """Gold and guessed tags of sentences that have the published counts."""
    pairs = [([f"B-{kind}"], [f"B-{kind}"]) for kind, ((n, _, _), _) in PUBLISHED.items() for _ in range(n)]
    pairs += [(["B-NP", "I-NP"], ["B-NP", "B-NP"])] * N_SPLIT
    pairs += [([f"B-{gold}"], [f"B-{guess}"]) for (gold, guess), n in TAKEN_FOR.items() for _ in range(n)]
    pairs += [(["O"], [f"B-{kind}"]) for kind, n in MADE_UP.items() for _ in range(n)]
    pairs += [(["O"], ["O"])] * (TOTALS["n_words"] - sum(len(gold) for gold, _ in pairs))
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    drawn = [[pairs[k] for k in order[start : start + 20]] for start in range(0, len(order), 20)]
    gold, guess = ([[tag for pair in rows for tag in pair[side]] for rows in drawn] for side in (0, 1))
    return gold, guess


def tag_scorer(gold: Rows, guess: Rows) -> tuple[TagScorer, np.ndarray]:
    names = ("O", *sorted({tag for row in (*gold, *guess) for tag in row} - {"O"}))
    ids, guessed = (np.array([names.index(tag) for row in rows for tag in row]) for rows in (gold, guess))
    offsets = np.cumsum([0, *map(len, gold)])
    return TagScorer(GoldTags(names, ids), offsets, ["w"] * len(ids), None, "span-f1"), guessed


def test_the_published_counts_add_up() -> None:
    sums = np.sum([counts for counts, _ in PUBLISHED.values()], axis=0).tolist()
    assert sums == [TOTALS["n_correct"], TOTALS["n_predicted"], TOTALS["n_gold"]]


def test_the_published_output_comes_out_to_the_last_digit() -> None:
    gold, guess = published_corpus()
    scores = score_spans(count_tag_spans(gold, guess))
    micro = scores.micro
    found = {"n_words": scores.n_words, **{key: getattr(micro, key) for key in ("n_gold", "n_predicted", "n_correct")}}
    assert found == TOTALS
    assert percent(scores.accuracy, micro.precision, micro.recall, micro.f1) == OVERALL
    table = {row.type: percent(row.precision, row.recall, row.f1) for row in scores.by_type}
    assert table == {kind: shares for kind, (_, shares) in PUBLISHED.items()}
    plain = conlleval(gold, guess)
    assert (plain.n_words, sum(plain.gold.values())) == (TOTALS["n_words"], TOTALS["n_gold"])
    assert percent(plain.n_words_right / plain.n_words, plain.f1()) == (OVERALL[0], OVERALL[-1])


def test_reports_and_intervals_show_the_published_numbers_too() -> None:
    judge, guessed = tag_scorer(*published_corpus())
    rows = {row["type"]: percent(row["precision"], row["recall"], row["f1"]) for row in judge.by_type(guessed[None])}
    assert rows == {kind: shares for kind, (_, shares) in PUBLISHED.items()}
    assert percent(judge.score(guessed)) == OVERALL[-1:]
    assert percent(judge.summarise(guessed[None], n_resamples=20).mean) == OVERALL[-1:]


# Word, gold tag, guessed tag, as conlleval reads them.
SMALL = """
    Petra B-PER B-PER
    Veld  I-PER I-PER
    left  O     O
    New   B-LOC I-LOC
    Oslo  I-LOC I-LOC
    .     O     O

    Corwen B-ORG B-LOC
    hired  O     O
    Ana    B-PER B-PER
    Eva    B-PER I-PER
    in     O     B-LOC
    May    O     O
"""


def test_a_small_file_worked_out_by_hand() -> None:
    blocks = [[line.split() for line in block.splitlines()] for block in SMALL.strip().split("\n\n")]
    gold, guess = ([[line[side] for line in block] for block in blocks] for side in (1, 2))
    scores = score_spans(count_tag_spans(gold, guess))
    # Gold phrases: Petra Veld, New Oslo, Corwen, Ana, Eva: 5. Found: Petra Veld, New Oslo (an I after O starts one),
    # Corwen, Ana Eva, in: 5. Correct: Petra Veld and New Oslo: 2. Words with the right tag: all of 12 but New, Corwen,
    # Eva and in: 8. Precision 2/5, recall 2/5, F1 2/5.
    lines = [
        f"processed {scores.n_words} tokens with {scores.micro.n_gold} phrases; found: {scores.micro.n_predicted} "
        f"phrases; correct: {scores.micro.n_correct}.",
        "accuracy: {}; precision: {}; recall: {}; FB1: {}".format(
            *percent(scores.accuracy, scores.micro.precision, scores.micro.recall, scores.micro.f1)
        ),
        *(
            "{}: precision: {}; recall: {}; FB1: {} {}".format(
                row.type, *percent(row.precision, row.recall, row.f1), row.n_predicted
            )
            for row in scores.by_type
        ),
    ]
    assert lines == [
        "processed 12 tokens with 5 phrases; found: 5 phrases; correct: 2.",
        "accuracy: 66.67; precision: 40.00; recall: 40.00; FB1: 40.00",
        "LOC: precision: 33.33; recall: 100.00; FB1: 50.00 3",  # found New Oslo, Corwen, in; gold New Oslo
        "ORG: precision: 0.00; recall: 0.00; FB1: 0.00 0",
        "PER: precision: 50.00; recall: 33.33; FB1: 40.00 2",  # found Petra Veld, Ana Eva; gold Petra Veld, Ana, Eva
    ]


Pieces = list[tuple[str, int]]
"""A sentence as stretches: type (empty outside of spans) and number of words."""
pieces = st.lists(st.tuples(st.sampled_from(["", "A", "B-c", "O"]), st.integers(1, 3)), max_size=5)


def write(row: Pieces, scheme: str) -> list[str]:
    """Write spans in a scheme, the plain way: nothing of `probes.data` is used."""
    last, single = {"BIOES": ("E", "S"), "BILOU": ("L", "U")}.get(scheme, ("I", "B"))
    tags: list[str] = []
    before = ""
    for kind, n in row:
        if not kind:
            tags += ["O"] * n
        elif scheme == "IOB1":
            tags += [f"B-{kind}" if before == kind else f"I-{kind}", *[f"I-{kind}"] * (n - 1)]
        elif n == 1:
            tags.append(f"{single}-{kind}")
        else:
            tags += [f"B-{kind}", *[f"I-{kind}"] * (n - 2), f"{last}-{kind}"]
        before = kind
    return tags


def cut(row: Pieces, n_words: int) -> Pieces:
    """Make a sentence that long: stretches beyond it are cut, what is missing is outside of spans."""
    kept: Pieces = []
    for kind, n in (*row, ("", n_words)):
        left = n_words - sum(length for _, length in kept)
        if left:
            kept.append((kind, min(n, left)))
    return kept


@pytest.mark.parametrize("scheme", ["IOB1", "BIOES", "BILOU"])
@given(corpus=st.lists(st.tuples(pieces, pieces), min_size=1, max_size=5))
def test_spans_in_any_scheme_are_counted_as_conlleval_counts_them(
    scheme: str, corpus: Sequence[tuple[Pieces, Pieces]]
) -> None:
    lengths = [sum(n for _, n in gold) for gold, _ in corpus]
    sides = [[cut(pair[side], n) for pair, n in zip(corpus, lengths, strict=True)] for side in (0, 1)]
    gold, guess = ([write(row, "IOB2") for row in rows] for rows in sides)
    plain = conlleval(gold, guess)
    converted = [to_iob2([write(row, scheme) for row in rows], scheme=scheme) for rows in sides]
    assert [record.n_broken for _, record in converted] == [0, 0]
    counts = count_tag_spans(converted[0][0], converted[1][0])
    for k, kind in enumerate(counts.types):
        found = tuple(int(n[:, k].sum()) for n in (counts.n_correct, counts.n_predicted, counts.n_gold))
        assert found == (plain.correct[kind], plain.guessed[kind], plain.gold[kind])
    assert sum(plain.gold.values()) == counts.n_gold.sum()
    assert score_spans(counts).micro.f1 == pytest.approx(plain.f1())
    if scheme == "IOB1":  # which conlleval reads as it is
        other = conlleval(*([write(row, scheme) for row in rows] for rows in sides))
        assert (other.correct, other.guessed, other.gold) == (plain.correct, plain.guessed, plain.gold)
