"""Mask kinds are what their drawings and the design's table say, wherever the padding is."""

import inspect
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from extract.errors import UnknownNameError
from extract.inputs.joined_text import CONTEXT
from extract.masks.mask_plan import KINDS, MaskKind, parse_kind
from extract.masks.mask_rules import additive, batch_mask, draw, kind_matrix
from extract.registry import resolve

DRAWN_SPANS = torch.tensor([CONTEXT, 0, 0, CONTEXT])
M = (1, 2, 3, 4, 6, 8)
ALL_KINDS = [
    *(MaskKind(name) for name in ("causal", "backward", "bidirectional", "hybrid")),
    *(MaskKind(name, m) for name in ("nosink-causal", "nosink-bidirectional") for m in M),
]


def is_allowed(kind: MaskKind, i: int, j: int, spans: list[int]) -> bool:
    """Say what the table of the design says, one cell at a time."""
    m = kind.n
    sees_context = spans[j] == CONTEXT
    sees_own_span = spans[i] != CONTEXT and spans[j] == spans[i] and j <= i
    cells = {
        "causal": j <= i,
        "backward": j >= i,
        "bidirectional": True,
        "nosink-causal": j <= i and (j >= m or j >= i),
        "nosink-bidirectional": j >= m or j >= i,
        "hybrid": sees_context or sees_own_span,
    }
    return cells[kind.name]


def table(kind: MaskKind, spans: list[int], *, window: int | None = None) -> Tensor:
    """Build a truth table cell by cell."""
    n_tokens = len(spans)
    rows = [
        [is_allowed(kind, i, j, spans) and (window is None or abs(i - j) < window) for j in range(n_tokens)]
        for i in range(n_tokens)
    ]
    return torch.tensor(rows, dtype=torch.bool).reshape(n_tokens, n_tokens)


def drawings(text: str) -> list[str]:
    """Find the drawn matrices in a docstring."""
    return [found.strip() for found in re.findall(r"(?:^[01](?: [01])+\n?)+", text, re.MULTILINE)]


def kinds_drawn(name: str) -> list[MaskKind]:
    """List the kinds that a row draws: its own, and hiding 3 tokens where it hides some."""
    return [parse_kind(name), *([MaskKind(name, 3)] if name.startswith("nosink") else [])]


@pytest.mark.parametrize("name", KINDS)
def test_the_drawing_of_a_kind_is_its_table(name: str) -> None:
    drawn = drawings(inspect.getdoc(resolve(KINDS[name].rule)) or "")
    assert drawn == [draw(kind_matrix(kind, 4, spans=DRAWN_SPANS)) for kind in kinds_drawn(name)]


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.text)
@pytest.mark.parametrize("n_tokens", range(1, 8))
def test_a_table_is_as_the_design_defines_it(kind: MaskKind, n_tokens: int) -> None:
    spans = [CONTEXT, 0, 0, CONTEXT, 1, 1, 1][:n_tokens]
    assert torch.equal(kind_matrix(kind, n_tokens, spans=torch.tensor(spans)), table(kind, spans))


@st.composite
def padded_batches(draw_from: st.DrawFn) -> tuple[Tensor, Tensor, MaskKind, int | None]:
    """Draw rows with padding on either side, or on both, with spans, a kind and a window."""
    n_columns = draw_from(st.integers(1, 7))
    real, spans = [], []
    for _ in range(draw_from(st.integers(1, 3))):
        first = draw_from(st.integers(0, n_columns - 1))
        end = draw_from(st.integers(first + 1, n_columns))
        real.append([first <= column < end for column in range(n_columns)])
        spans.append(draw_from(st.lists(st.sampled_from([CONTEXT, 0, 1]), min_size=n_columns, max_size=n_columns)))
    window = draw_from(st.none() | st.integers(1, 8))
    return torch.tensor(real), torch.tensor(spans), draw_from(st.sampled_from(ALL_KINDS)), window


@given(padded_batches())
@settings(max_examples=150, deadline=None)
def test_padding_changes_nothing(case: tuple[Tensor, Tensor, MaskKind, int | None]) -> None:
    is_real, spans, kind, window = case
    masks = batch_mask(kind, is_real, spans=spans, window=window)
    assert bool(masks.any(-1).all())  # no query row is empty, so no softmax is NaN
    itself = torch.eye(is_real.shape[1], dtype=torch.bool)
    for mask, real, numbers in zip(masks, is_real, spans, strict=True):
        assert torch.equal(mask[real][:, real], table(kind, numbers[real].tolist(), window=window))
        assert not bool(mask[real][:, ~real].any())
        assert torch.equal(mask[~real], itself[~real])


def test_no_spans_are_needed_by_other_kinds() -> None:
    is_real = torch.tensor([[True, True, False]])
    assert batch_mask(parse_kind("nosink-bidirectional"), is_real).shape == (1, 3, 3)
    with pytest.raises(ValueError, match="the hybrid mask needs spans"):
        batch_mask(parse_kind("hybrid"), is_real)


@pytest.mark.parametrize("n_tokens", [1, 2, 5, 7])
def test_the_ends_of_hybrid(n_tokens: int) -> None:
    one = kind_matrix(parse_kind("hybrid"), n_tokens, spans=torch.zeros(n_tokens, dtype=torch.long))
    assert torch.equal(one, kind_matrix(parse_kind("causal"), n_tokens))
    none = kind_matrix(parse_kind("hybrid"), n_tokens, spans=torch.full((n_tokens,), CONTEXT))
    assert torch.equal(none, kind_matrix(parse_kind("bidirectional"), n_tokens))


def test_two_spans_do_not_see_each_other() -> None:
    spans = torch.tensor([0, 0, CONTEXT, 1, 1])
    expected = "1 0 1 0 0\n1 1 1 0 0\n0 0 1 0 0\n0 0 1 1 0\n0 0 1 1 1"
    assert draw(kind_matrix(parse_kind("hybrid"), 5, spans=spans)) == expected


@pytest.mark.parametrize("n_tokens", [1, 4, 10])
def test_hiding_every_token_is_backward(n_tokens: int) -> None:
    """Appendix F.2 of Look Both Ways: the reverse causal mask of ten tokens is MASK9, which hides positions 0 to 9."""
    hidden = kind_matrix(MaskKind("nosink-bidirectional", n_tokens), n_tokens)
    assert torch.equal(hidden, kind_matrix(parse_kind("backward"), n_tokens))


@pytest.mark.parametrize("m", M)
def test_hidden_tokens_are_seen_from_no_later_position(m: int) -> None:
    for name in ("nosink-causal", "nosink-bidirectional"):
        later = kind_matrix(MaskKind(name, m), 9).tril(-1)
        assert not bool(later[:, :m].any())
        assert bool(later[m + 1 :, m].all()), "one token more than asked for is hidden"


def test_backward_is_causal_read_from_the_end() -> None:
    causal, backward = (kind_matrix(parse_kind(name), 6) for name in ("causal", "backward"))
    assert torch.equal(backward, causal.flip(0, 1))


def test_masks_are_added_to_scores() -> None:
    mask = kind_matrix(parse_kind("causal"), 3)
    bias = additive(mask, torch.bfloat16)
    assert bias.dtype == torch.bfloat16
    assert torch.equal(bias == 0, mask)
    assert torch.equal(bias == float("-inf"), ~mask)


@pytest.mark.parametrize("name", KINDS)
def test_the_text_of_a_kind_reads_back(name: str) -> None:
    assert parse_kind(name).text == name
    assert parse_kind(name).n == KINDS[name].default


@pytest.mark.parametrize("m", M)
def test_hidden_tokens_are_counted(m: int) -> None:
    kind = parse_kind(f"nosink{m}-causal")
    assert kind == MaskKind("nosink-causal", m)
    assert parse_kind(kind.text) == kind
    assert kind.text == ("nosink-causal" if m == 1 else f"nosink{m}-causal")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bidirectionl", "unknown mask kind 'bidirectionl': did you mean 'bidirectional'"),
        ("local1000000", "Kinds with a number take it after their first word, 1 to 999999"),
        ("nosink0-causal", "unknown mask kind 'nosink0-causal': did you mean 'nosink-causal'"),
        ("nosink-backward", "unknown mask kind 'nosink-backward'"),
        ("nosink-3-causal", "unknown mask kind 'nosink-3-causal'"),
        ("", "unknown mask kind ''. Allowed: causal, backward"),
        ("Causal", "unknown mask kind 'Causal': did you mean 'causal'"),
    ],
)
def test_a_misspelt_kind_never_becomes_another_one(text: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message) as caught:
        parse_kind(text)
    assert "1 to 999999" in str(caught.value)
