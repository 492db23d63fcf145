"""What masks and plans must be is stated by hand, and the certificate refuses every rule and reader that differs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from extract.errors import CertificateError
from extract.inputs.joined_text import CONTEXT
from extract.masks import mask_plan as plan_reader
from extract.masks.mask_plan import ARCHITECTURES, KINDS, SHIPPED, MaskPlan, Segment, parse_kind, parse_plan
from extract.masks.mask_rules import batch_mask
from extract.masks.truth import (
    PLANS_BY_BLOCK,
    TABLE_SPANS,
    TABLES,
    literal_mask,
    literal_plan,
    require_reading,
    require_truth,
    table_of,
)
from extract.wiring.certificate import check_influence
from tests.extract.masks.paper_plans import lbw_plan
from tests.extract.tiny_decoders import make_decoder

BY_BLOCK = {
    ("INPLACE-BACK", 2, 0): ("causal", "causal", "backward", "backward"),
    ("MASK0-FOR", 1, 0): ("causal", "causal", "causal", "nosink-causal"),
    ("MASK0-BIDIR", 3, 0): ("causal", "nosink-bidirectional", "nosink-bidirectional", "nosink-bidirectional"),
    ("MASK0-ALL", 1, 0): ("nosink-causal", "nosink-causal", "nosink-causal", "nosink-bidirectional"),
    ("MASK0&BIDIR", 3, 1): ("causal", "bidirectional", "bidirectional", "nosink-bidirectional"),
    ("MASK3", 2, 0): ("causal", "causal", "nosink4-bidirectional", "nosink4-bidirectional"),
    ("MASK5", 1, 0): ("causal", "causal", "causal", "nosink6-bidirectional"),
    ("MASK7", 1, 0): ("causal", "causal", "causal", "nosink8-bidirectional"),
}
"""Four blocks of configurations of Look Both Ways, from the bottom up, by name, k and k0."""


def hybrid_one_span(i: Tensor, j: Tensor, _: int, spans: Tensor) -> Tensor:
    of_query, of_key = spans.unsqueeze(-1), spans.unsqueeze(-2)
    return (of_key == CONTEXT) | ((of_query != CONTEXT) & (j <= i))


WRONG_RULES: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "the old MASK3": ("nosink-bidirectional", lambda i, j, n, _: (j >= n) | (i < n)),
    "m - 1": ("nosink-bidirectional", lambda i, j, n, _: (j >= n - 1) | (j >= i)),
    "m + 1": ("nosink-bidirectional", lambda i, j, n, _: (j > n) | (j >= i)),
    "m - 1, causal": ("nosink-causal", lambda i, j, n, _: (j <= i) & ((j >= n - 1) | (j >= i))),
    "m of one alone": ("nosink-causal", lambda i, j, n, _: (j <= i) & ((j >= min(n, 1)) | (j >= i))),
    "causal transposed": ("causal", lambda i, j, *_: j >= i),
    "backward blind to itself but last": ("backward", lambda i, j, *_: (j > i) | (i == j) & (i > 2)),
    "bidirectional with a hole": ("bidirectional", lambda i, j, *_: (i + j) != 5),
    "spans blind to themselves": ("hybrid", lambda i, j, _, s: (s.unsqueeze(-2) == CONTEXT) | (i == j)),
    "spans seen both ways": (
        "hybrid",
        lambda *args: (args[3].unsqueeze(-2) == CONTEXT) | (args[3].unsqueeze(-1) == args[3].unsqueeze(-2)),
    ),
    "all spans one": ("hybrid", hybrid_one_span),
    "w + 1": ("local", lambda i, j, n, _: (i - j).abs() <= n + 1),
    "w on one side": ("local", lambda i, j, n, _: ((i - j) <= n) & (j <= i)),
}


@pytest.mark.parametrize("wrong", WRONG_RULES)
def test_a_wrong_rule_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, rule = WRONG_RULES[wrong]
    monkeypatch.setitem(KINDS, kind, KINDS[kind]._replace(rule=rule))
    with pytest.raises(CertificateError, match=rf"the mask rule of '{kind.split('-')[0]}.*' is wrong: .* column \d"):
        check_influence(make_decoder(), parse_plan("causal"))


def one_less(self: MaskPlan, n_blocks: int, *, expand: Any = MaskPlan.kinds) -> tuple[str, ...]:
    kinds = expand(self, n_blocks)
    return ("causal", *kinds[1:-1], kinds[-1]) if kinds[0] != "causal" else (*kinds[1:], kinds[-1])


def segment_less(part: str, text: str, *, read: Any = plan_reader._segment) -> Segment:
    segment: Segment = read(part, text)
    return segment if segment.count in (None, 1) else Segment(segment.kind, (segment.count or 0) - 1)


@pytest.mark.parametrize(
    ("owner", "name", "wrong"), [(MaskPlan, "kinds", one_less), (plan_reader, "_segment", segment_less)]
)
def test_a_count_read_as_one_less_is_refused(owner: Any, name: str, wrong: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(CertificateError, match=r"the plan '.*' is read wrongly: of four blocks it makes"):
        check_influence(make_decoder(), parse_plan("causal"))


def test_a_count_that_no_written_plan_has_is_refused_where_it_is_misread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader errs from ten blocks on: tables of four blocks hold, and the plan of the extraction does not."""
    require_reading("nosink1-bidirectional:10 + bidirectional:2\n", 14)
    read = plan_reader._segment

    def wrong(part: str, text: str) -> Segment:
        segment = read(part, text)
        return segment if (segment.count or 0) < 10 else Segment(segment.kind, 9)

    monkeypatch.setattr(plan_reader, "_segment", wrong)
    require_truth()
    with pytest.raises(CertificateError, match="'backward:10' is read wrongly, as 'backward:9': over 14 blocks"):
        require_reading("backward:10", 14)


def test_every_kind_and_architecture_has_a_table() -> None:
    assert {parse_kind(kind).name for kind, _ in TABLES} == set(SHIPPED)
    assert {parse_plan(text).architecture for text in PLANS_BY_BLOCK} == set(ARCHITECTURES)


@pytest.mark.parametrize(("kind", "window"), TABLES)
def test_tables_are_what_is_proved_at_every_length(kind: str, window: int | None) -> None:
    """Inside the padding of a table is the statement that certificates continue to longer rows."""
    spans = torch.tensor(TABLE_SPANS[1:-1])
    table = table_of(TABLES[kind, window])
    assert torch.equal(table[1:-1, 1:-1], literal_mask(kind, 6, window=window, spans=spans))
    padding = torch.eye(8, dtype=torch.bool)[[0, -1]]
    assert torch.equal(table[[0, -1]], padding) and torch.equal(table[:, [0, -1]].T, padding)


@pytest.mark.parametrize("text", PLANS_BY_BLOCK)
def test_written_plans_are_read_without_the_reader(text: str) -> None:
    literal = literal_plan(text, 4)
    steps = [f"{literal.kind}@{block + 1}" for block in literal.again]
    steps += [f"tp@{block + 1}" for block in literal.prepend or ()] + [f"kv@{block + 1}" for block in literal.prefix]
    assert " ".join(literal.kinds) + " + ".join(["", " ".join(steps)] if steps else [""]) == PLANS_BY_BLOCK[text]


@pytest.mark.parametrize(("name", "k", "k0"), BY_BLOCK)
def test_names_of_the_paper_are_blocks(name: str, k: int, k0: int) -> None:
    assert tuple(map(str, lbw_plan(name, k, k0=k0).kinds(4))) == literal_plan(lbw_plan(name, k, k0=k0).text, 4).kinds
    assert tuple(map(str, lbw_plan(name, k, k0=k0).kinds(4))) == BY_BLOCK[name, k, k0]


KIND_TEXTS = st.sampled_from([kind for kind, _ in TABLES]) | st.builds(
    "nosink{}-{}".format, st.integers(2, 12), st.sampled_from(["causal", "bidirectional"])
)


@given(
    kind=KIND_TEXTS,
    n_tokens=st.integers(1, 14),
    window=st.none() | st.integers(1, 9),
    left=st.integers(0, 3),
    right=st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_statement_and_rule_agree_at_any_length(kind: str, n_tokens: int, window: Any, left: int, right: int) -> None:
    numbers = torch.tensor([CONTEXT, 0, 0, CONTEXT, 1, 1, 1, CONTEXT, CONTEXT, 2, 2, 2, 2, 2])[:n_tokens]
    is_real = torch.tensor([[False] * left + [True] * n_tokens + [False] * right])
    spans = torch.nn.functional.pad(numbers, (left, right), value=CONTEXT).unsqueeze(0)
    mask = batch_mask(parse_kind(kind), is_real, spans=spans, window=window)[0][is_real[0]][:, is_real[0]]
    assert torch.equal(mask, literal_mask(kind, n_tokens, window=window, spans=numbers))


SEGMENTS = st.lists(
    st.tuples(st.sampled_from(["causal", "backward", "nosink3-causal", "local8"]), st.integers(0, 3)), max_size=4
)


@given(segments=SEGMENTS, rest=st.sampled_from(["", "causal", "bidirectional"]), tail=st.sampled_from(["", "~kv2-5"]))
@settings(max_examples=100, deadline=None)
def test_reader_and_literal_reading_agree(segments: list[tuple[str, int]], rest: str, tail: str) -> None:
    parts = [f"{kind}:{k}" for kind, k in segments] + ([rest] if rest or not segments else [])
    text = "+".join(part or "causal" for part in parts) + tail
    plan = parse_plan(text)
    assert literal_plan(text, 13).kinds == literal_plan(plan.text, 13).kinds == tuple(map(str, plan.kinds(13)))
    require_reading(text, 13)
