"""Every row of `KINDS`: its drawing, its padding, its text form, and what it does to a decoder."""

import inspect
import re

import pytest
import torch
from torch import Tensor

from extract.inputs.joined_text import CONTEXT
from extract.masks.mask_plan import KINDS, MaskKind, parse_kind, parse_plan
from extract.masks.mask_rules import batch_mask, draw, kind_matrix
from extract.registry import resolve
from extract.wiring.certificate import influence
from extract.wiring.plan_wiring import plan_in_force, probe_spans
from tests.extract.tiny_decoders import make_decoder

SPANS = torch.tensor([CONTEXT, 0, 0, CONTEXT])
VARIANTS = [
    MaskKind(name, row.default + more) for name, row in KINDS.items() for more in ((0, 1, 4) if row.default else (0,))
]


def matrix(kind: MaskKind, spans: Tensor) -> Tensor:
    """Return the truth table of a kind for one unpadded row."""
    return kind_matrix(kind, len(spans), spans=spans if kind.needs_spans else None)


@pytest.mark.parametrize("name", KINDS)
def test_the_docstring_draws_the_rule(name: str) -> None:
    drawn = re.findall(r"(?:^[01](?: [01])+\n?)+", inspect.getdoc(resolve(KINDS[name].rule)) or "", re.MULTILINE)
    assert drawn[0].strip() == draw(matrix(parse_kind(name), SPANS))


@pytest.mark.parametrize("name", KINDS)
def test_a_row_says_what_it_does_and_where_it_is_from(name: str) -> None:
    row = KINDS[name]
    assert len(row.what) > 10
    assert row.source
    others = [other for other in KINDS if other != name]
    assert all(draw(matrix(parse_kind(other), SPANS)) != draw(matrix(parse_kind(name), SPANS)) for other in others)


@pytest.mark.parametrize("kind", VARIANTS, ids=lambda kind: kind.text)
def test_the_text_form_round_trips(kind: MaskKind) -> None:
    assert parse_kind(kind.text) == kind
    assert parse_plan(f"{kind.text}:2").kinds(3)[1:] == (kind, kind)
    assert parse_plan(parse_plan(f"{kind.text}@1-2").text).kinds(3)[:2] == (kind, kind)


@pytest.mark.parametrize("kind", VARIANTS, ids=lambda kind: kind.text)
@pytest.mark.parametrize("n_real", [1, 3, 6])
def test_padding_on_either_side_changes_nothing(kind: MaskKind, n_real: int) -> None:
    spans = torch.tensor([CONTEXT, 0, 0, CONTEXT, 1, 1])[:n_real]
    alone = matrix(kind, spans)
    assert bool(alone.diagonal().all()), "a token that does not see itself"
    for left, right in ((0, 0), (2, 0), (0, 3), (1, 2)):
        is_real = torch.tensor([[False] * left + [True] * n_real + [False] * right])
        padded = torch.nn.functional.pad(spans, (left, right), value=CONTEXT).unsqueeze(0)
        mask = batch_mask(kind, is_real, spans=padded if kind.needs_spans else None)[0]
        real, pad = is_real[0], ~is_real[0]
        assert torch.equal(mask[real][:, real], alone)
        assert not bool(mask[real][:, pad].any()), "padding is attended to"
        assert torch.equal(mask[pad], torch.eye(len(real), dtype=torch.bool)[pad]), "a pad query sees only itself"


@pytest.mark.parametrize("kind", VARIANTS, ids=lambda kind: kind.text)
def test_a_perturbed_token_moves_exactly_the_allowed_positions(kind: MaskKind) -> None:
    decoder, n_tokens = make_decoder(), 6
    with plan_in_force(decoder, parse_plan(f"{kind.text}@1-1")):
        moved = influence(decoder, n_tokens=n_tokens)[1]  # of the first block, whose inputs do not mix yet
    assert torch.equal(moved, matrix(kind, probe_spans(n_tokens)))
