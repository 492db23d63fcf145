"""Poolings of any set of tokens, by a name with an argument: the mean of the tokens that the name says.

A new one is a function here and a row of `TOKEN_SETS` in `extract.poolings.table`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from extract.inputs.roles import ROLES, SPECIAL, TEXT
from extract.poolings.pooling import PoolingIndex, pool_weights

Chosen = Bool[Tensor, "B T"]


def pool_tokens(
    select: Callable[[PoolingIndex, str], Chosen], argument: str, hidden: Float[Tensor, "B T D"], index: PoolingIndex
) -> Float[Tensor, "B D"]:
    """Average the tokens that a function selects."""
    weights = select(index, argument).to(torch.float32)
    return pool_weights(hidden, weights / weights.sum(1, keepdim=True))


def select_token(index: PoolingIndex, argument: str) -> Chosen:
    """Select the token at a position of the text, in its last copy: from 0, or from the end if negative."""
    position = int(argument)
    is_last = index.copies == index.copies.amax(1, keepdim=True)
    ranks = is_last.cumsum(1) if position >= 0 else is_last.flip(1).cumsum(1).flip(1)
    return is_last & (ranks == (position + 1 if position >= 0 else -position))


def select_last(index: PoolingIndex, argument: str) -> Chosen:
    """Select the last tokens up to the one that `last` reads, all of them where there are fewer; no other specials."""
    columns = torch.arange(index.roles.shape[1], device=index.roles.device)
    last = index.last.unsqueeze(1)
    is_open = ((index.roles > SPECIAL) & (columns < last)) | (columns == last)
    return is_open & (is_open.flip(1).cumsum(1).flip(1) <= int(argument))


def select_role(index: PoolingIndex, argument: str) -> Chosen:
    """Select the tokens of a role."""
    return index.roles == ROLES[argument]


def select_span(index: PoolingIndex, argument: str) -> Chosen:
    """Select the tokens of the spans of the template, or of one of them by its number from 0."""
    if index.spans is None:
        return torch.zeros_like(index.roles, dtype=torch.bool)
    is_text = index.roles == TEXT
    return is_text & (index.spans == int(argument) if argument else index.spans >= 0)
