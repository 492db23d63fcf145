"""The trial of a user's mask kind on short texts, before a plan may use it."""

from collections.abc import Callable

import torch
from torch import Tensor

from extract.errors import InputError, first_line

TRIED = 9
"""Tokens of the longest text that a rule is tried on."""


def try_rule(name: str, rule: Callable[..., Tensor], n: int) -> None:
    """Refuse a rule that fails, or leaves a token nothing to attend to, on a text of up to `TRIED` tokens."""
    for n_tokens in range(1, TRIED + 1):
        order = torch.arange(n_tokens)
        try:
            found = rule(order.unsqueeze(-1), order.unsqueeze(-2), n, None)
        except Exception as error:
            raise InputError(
                f"the rule of your mask {name!r} fails on {n_tokens} tokens: {first_line(error)}."
            ) from error
        if not isinstance(found, Tensor) or found.dtype != torch.bool or found.shape != (n_tokens, n_tokens):
            raise InputError(
                f"the rule of your mask {name!r} must give a bool tensor (T, T) from positions (T, 1) and (1, T)."
            )
        blind = (~found.any(-1)).nonzero().flatten().tolist()
        if blind:
            raise InputError(
                f"under your mask {name!r} token {blind[0]} of {n_tokens} sees nothing, not even itself; let every "
                "token see at least one."
            )
