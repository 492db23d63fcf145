"""Which input positions a plan lets influence which outputs: the product of its masks, layer by layer."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from extract.masks.kinds import parse_kind
from extract.masks.matrices import batch_mask
from extract.masks.plan import MaskPlan


def expected_reach(
    plan: MaskPlan,
    n_blocks: int,
    n_tokens: int,
    *,
    windows: Sequence[int | None],
    spans: Int[Tensor, " T"] | None = None,
    placeholder: int | None = None,
) -> Bool[Tensor, "L T T"]:
    """Work out which input positions may influence which outputs of every layer, from the embedding to the final norm.

    A block hands on what it received (the residual) and what it attends to, so reach is the product of the masks of
    the blocks passed, each with a true diagonal. The row is unpadded; `windows` are the sliding windows per block, in
    tokens; the hybrid mask needs `spans`. The placeholder of a plan that prepends one is at the column `placeholder`.
    """
    row = torch.ones(1, n_tokens, dtype=torch.bool)
    row_spans = None if spans is None else spans.unsqueeze(0)

    def step(reach: Tensor, kind: str, block: int) -> Tensor:
        mask = batch_mask(parse_kind(kind), row, spans=row_spans, window=windows[block])[0]
        if plan.prefix is not None and plan.prefix[0] <= block + 1 <= plan.prefix[1]:
            mask[:, -1] = True
        passed: Tensor = (mask.float() @ reach.float()) > 0
        return passed | reach

    def climb(reach: Tensor, blocks: Iterable[int], kind: str) -> Tensor:
        for block in blocks:
            reach = step(reach, kind, block)
        return reach

    layers = [torch.eye(n_tokens, dtype=torch.bool)]
    if placeholder is not None:
        layers[0][placeholder] = False  # what it is drawn as depends on no token
    kind, n_converted = plan.converted if plan.architecture != "inplace" else ("causal", 0)
    first = n_blocks - n_converted
    for block, own in enumerate(plan.kinds(n_blocks)):
        layers.append(step(layers[-1], own, block))
        if placeholder is not None and plan.prepend is not None and plan.prepend[0] <= block + 1 <= plan.prepend[1]:
            layers[-1][placeholder] = layers[-1][-1]
        if plan.architecture == "inter-block" and block >= first:
            layers[-1] |= step(layers[-2], kind, block)
    if plan.architecture == "extend":
        layers[-1] = climb(layers[-1], [n_blocks - 1] * n_converted, kind)
    elif plan.architecture == "extra":
        layers[-1] |= climb(layers[0], range(n_converted), kind)
    elif plan.architecture == "inter-stack":
        layers[-1] |= climb(layers[first], range(first, n_blocks), kind)
    layers.append(layers[-1])
    return torch.stack(layers)
