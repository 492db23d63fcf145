"""Word poolings by index, against the textbook, whatever stands in the padding."""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.errors import UnknownNameError
from extract.inputs.batches import collate
from extract.inputs.joined_text import TEXT, WORD_CUT
from extract.inputs.tokens import EncodedText, WordColumns
from extract.masks.mask_plan import parse_plan
from extract.poolings.pooling_table import REBA, WORD_POOLINGS, check_word_poolings, select_word_poolings
from extract.poolings.poolings import index_words
from extract.run.extraction_spec import WordSpec

WIDTH = 5
ROWS: tuple[tuple[int, list[tuple[int, int]]], ...] = (  # tokens, and the columns of each word
    (4, [(0, 1), (1, 4)]),
    (7, [(0, 3), (2, 5), (0, 0), (6, 7)]),  # two that share a token, one without any
    (1, [(0, 1)]),
    (3, [(0, 0)]),
)


def row(n_tokens: int, columns: list[tuple[int, int]]) -> EncodedText:
    """Make a row of tokens with words."""
    flags = np.array([WORD_CUT * (first == last) for first, last in columns], np.uint8)
    mirrored = [(n_tokens - last, n_tokens - first) for first, last in columns]  # as if the last copy were there
    words = WordColumns(np.array(columns, np.int64), flags, echo=np.array(mirrored, np.int64))
    return EncodedText(
        np.arange(n_tokens), np.full(n_tokens, TEXT, np.int8), is_truncated=False, spans=None, index=0, words=words
    )


def expected(name: str, tokens: Tensor) -> Tensor:
    """Pool one word's tokens `(T, D)` by the textbook; zeros without any."""
    if not len(tokens):
        return torch.zeros(WIDTH)
    of = {"first": tokens[0], "last": tokens[-1], "mean": tokens.mean(0)}
    return of[name.removeprefix("echo-").replace("echo", "mean")]


@pytest.mark.parametrize("fill", [0.0, 1e4, float("nan")])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", sorted(WORD_POOLINGS.keys() - REBA))
def test_words_are_pooled_by_the_textbook(name: str, side: Literal["right", "left"], fill: float) -> None:
    batch = collate([row(*item) for item in ROWS], range(len(ROWS)), side=side)
    assert batch.words is not None
    hidden = torch.randn(*batch.ids.shape, WIDTH, generator=torch.Generator().manual_seed(3))
    hidden[~batch.is_real] = fill
    pooled = WORD_POOLINGS[name][0](hidden, index_words(batch.words, torch.device("cpu")))
    place = 0
    for b, (_, columns) in enumerate(ROWS):
        real = hidden[b, batch.is_real[b]]
        for first, last in columns:
            read = slice(len(real) - last, len(real) - first) if name.startswith("echo") else slice(first, last)
            assert torch.allclose(pooled[place], expected(name, real[read]), atol=1e-6), (b, first, last)
            place += 1
    assert place == len(pooled)


def test_words_stand_row_by_row() -> None:
    batch = collate([row(*item) for item in ROWS], range(4), first_word=17)
    assert batch.words is not None
    assert batch.words.n_words.tolist() == [2, 4, 1, 1]
    assert batch.words.first_word == 17
    assert batch.words.flags.tolist() == [0, 0, 0, 0, WORD_CUT, 0, 0, WORD_CUT]
    assert collate([EncodedText(np.arange(2), np.full(2, TEXT, np.int8), is_truncated=False)], [0]).words is None


@pytest.mark.parametrize("name", sorted(WORD_POOLINGS.keys() - REBA))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_word_latents_are_float32_and_share_no_memory(name: str, dtype: torch.dtype) -> None:
    batch = collate([row(*item) for item in ROWS], range(4))
    assert batch.words is not None
    hidden = torch.full((4, 7, WIDTH), 40000.0).to(dtype)  # three of these overflow float16
    pooled = WORD_POOLINGS[name][0](hidden, index_words(batch.words, torch.device("cpu")))
    assert pooled.dtype == torch.float32
    before = pooled.clone()
    assert torch.allclose(before[0], torch.full((WIDTH,), float(hidden[0, 0, 0])))
    hidden.fill_(7)
    assert torch.equal(pooled, before)


@pytest.mark.parametrize(
    ("plan", "best"),
    [
        ("causal", "last"),
        ("nosink-causal", "last"),
        ("nosink3-causal:2", "last"),
        ("backward", "first"),
        ("[backward,backward,backward]", "first"),
        ("backward:2", "mean"),
        ("backward:1+causal", "mean"),
        ("bidirectional:1", "mean"),
        ("nosink-bidirectional", "mean"),
        ("local999999", "mean"),
        ("hybrid", "mean"),
        ("extend/causal:1", "last"),
        ("extend/backward:1", "mean"),
    ],
)
def test_auto_follows_what_a_token_has_seen(plan: str, best: str) -> None:
    assert select_word_poolings(["auto"], parse_plan(plan), 3) == (best,)
    assert select_word_poolings(["auto", best], parse_plan(plan), 3) == (best,)


@pytest.mark.parametrize(
    ("plan", "best"), [("causal", "echo-last"), ("backward", "echo-first"), ("nosink-bidirectional", "echo")]
)
def test_auto_reads_the_last_copy_of_a_text_that_is_repeated(plan: str, best: str) -> None:
    """In the first copy a causal token has not seen what follows its word, which is what a second copy is for."""
    assert select_word_poolings(["auto"], parse_plan(plan), 3, n_copies=2) == (best,)
    assert select_word_poolings(["last"], parse_plan(plan), 3, n_copies=2) == ("last",)


def test_named_poolings_stay_as_they_are() -> None:
    assert select_word_poolings(["mean", "first", "mean"], parse_plan("causal"), 3) == ("mean", "first")
    assert check_word_poolings(["auto", "mean"]) == ("auto", "mean")
    assert WordSpec().poolings == ("auto",)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown word pooling 'meen': did you mean 'mean'\? Allowed: auto,"):
        WordSpec(poolings=("meen",))
    with pytest.raises(UnknownNameError, match=r"no word pooling was selected\. Allowed: auto, first, last, mean"):
        WordSpec(poolings=())
    lost = "counted"
    with pytest.raises(UnknownNameError, match="unknown policy for lost words 'counted': did you mean 'count'"):
        WordSpec.__post_init__(_spec(lost))


def _spec(on_lost: str) -> WordSpec:
    spec = WordSpec()
    object.__setattr__(spec, "on_lost", on_lost)  # as a caller without type checks would
    return spec
