"""Attention under a mask equals a slow, obvious reference."""

from math import exp, sqrt, tanh

import pytest
import torch
from torch import Tensor

from extract.masks.mask_plan import MaskKind, parse_kind
from extract.masks.mask_rules import batch_mask, kind_matrix
from extract.wiring.attention import attend

N_TOKENS, N_HEADS, WIDTH = 5, 4, 3


def slow_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    *,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute attention one query, one key at a time; `(B, T, heads, H)`, `mask` being `(B, T, T)`."""
    B, n_heads, T, _ = query.shape
    mixed = torch.zeros(B, T, n_heads, value.shape[-1])
    for b in range(B):
        for head in range(n_heads):
            shared = head * key.shape[1] // n_heads  # grouped queries share the head of their group
            for i in range(T):
                weights = {}
                for j in range(T):
                    if mask[b, i, j]:
                        score = float(query[b, head, i] @ key[b, shared, j]) * scaling
                        weights[j] = exp(score if softcap is None else softcap * tanh(score / softcap))
                total = sum(weights.values()) + (0.0 if sinks is None else exp(float(sinks[head])))
                for j, weight in weights.items():
                    mixed[b, i, head] += weight / total * value[b, shared, j]
    return mixed


def random_heads(n_key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, N_HEADS, N_TOKENS, WIDTH), *[(2, n_key_heads, N_TOKENS, WIDTH)] * 2)
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return query, key, value


@pytest.mark.parametrize("n_key_heads", [1, 2, 4])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("kind", ["causal", "nosink-bidirectional", "backward"])
def test_attention_equals_loops(n_key_heads: int, softcap: float | None, has_sinks: bool, kind: str) -> None:
    query, key, value = random_heads(n_key_heads)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0]) if has_sinks else None
    is_real = torch.tensor([[True] * N_TOKENS, [False, False, True, True, True]])
    mask = batch_mask(parse_kind(kind), is_real)
    got = attend(query, key, value, mask=mask.unsqueeze(1), scaling=0.4, softcap=softcap, sinks=sinks)
    expected = slow_attention(query, key, value, mask, scaling=0.4, softcap=softcap, sinks=sinks)
    assert torch.allclose(got, expected, atol=1e-6)
    if softcap is not None or has_sinks:  # these matter, so that leaving them out would show
        assert not torch.allclose(got, slow_attention(query, key, value, mask, scaling=0.4), atol=1e-2)


@pytest.mark.parametrize(
    ("shortcut", "kind"), [("none", "bidirectional"), ("causal", "causal"), ("backward", "backward")]
)
@pytest.mark.parametrize("softcap", [None, 0.7])
def test_shortcuts_equal_loops(shortcut: str, kind: str, softcap: float | None) -> None:
    query, key, value = random_heads(2)
    mask = kind_matrix(MaskKind(kind), N_TOKENS).expand(2, -1, -1)
    got = attend(query, key, value, mask=shortcut, softcap=softcap)
    expected = slow_attention(query, key, value, mask, scaling=1 / sqrt(WIDTH), softcap=softcap)
    assert torch.allclose(got, expected, atol=1e-6)


def test_values_may_have_another_width() -> None:
    query, key, _ = random_heads(2)
    value = torch.randn(2, 2, N_TOKENS, 7, generator=torch.Generator().manual_seed(1))
    mask = kind_matrix(MaskKind("causal"), N_TOKENS).expand(2, -1, -1)
    got = attend(query, key, value, mask="causal")
    assert got.shape == (2, N_TOKENS, N_HEADS, 7)
    assert torch.allclose(got, slow_attention(query, key, value, mask, scaling=1 / sqrt(WIDTH)), atol=1e-6)
