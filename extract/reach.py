"""Which input positions a plan lets influence which outputs: the product of its masks, layer by layer."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from extract.masks import batch_mask, parse_kind
from extract.plan import MaskPlan


def expected_reach(
    plan: MaskPlan,
    n_blocks: int,
    n_tokens: int,
    *,
    windows: Sequence[int | None],
    spans: Int[Tensor, " T"] | None = None,
) -> Bool[Tensor, "L T T"]:
    """Work out which input positions may influence which outputs.

    A block hands on what it received (the residual) and what it attends to, so reach is the product of the masks of
    the blocks passed, each with a true diagonal.

    Args:
        plan: The plan.
        n_blocks: Blocks of the decoder.
        n_tokens: Tokens `T` of an unpadded row.
        windows: Sliding window per block, in tokens; None for none.
        spans: `(T,)` span numbers for the hybrid mask.

    Returns:
        `(n_blocks + 2, T, T)` bool from the embedding to the final norm: output `i` of layer `l` may depend on `j`.
    """

    def step(reach: Tensor, kind: str, block: int) -> Tensor:
        row = torch.ones(1, n_tokens, dtype=torch.bool)
        mask = batch_mask(
            parse_kind(kind), row, spans=None if spans is None else spans.unsqueeze(0), window=windows[block]
        )[0]
        passed: Tensor = (mask.float() @ reach.float()) > 0
        return passed | reach

    start = torch.eye(n_tokens, dtype=torch.bool)
    layers = [start]
    for block, kind in enumerate(plan.kinds(n_blocks)):
        layers.append(step(layers[-1], kind, block))
    layers.append(layers[-1])
    return torch.stack(layers)
