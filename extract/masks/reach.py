"""Which input positions a plan lets influence which outputs: the product of its masks, layer by layer."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from extract.inputs.spans import CONTEXT
from extract.masks.plan import MaskPlan
from extract.masks.truth import literal_mask, literal_plan


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
    literal = literal_plan(plan.text, n_blocks)
    row_spans = torch.full((n_tokens,), CONTEXT) if spans is None else spans

    def step(reach: Tensor, kind: str, block: int) -> Tensor:
        mask = literal_mask(kind, n_tokens, window=windows[block], spans=row_spans)
        if block in literal.prefix:
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
    for block, kind in enumerate(literal.kinds):
        layers.append(step(layers[-1], kind, block))
        if placeholder is not None and block in (literal.prepend or ()):
            layers[-1][placeholder] = layers[-1][-1]
        if literal.architecture == "inter-block" and block in literal.again:
            layers[-1] |= step(layers[-2], literal.kind, block)
    if literal.architecture == "extend":
        layers[-1] = climb(layers[-1], literal.again, literal.kind)
    elif literal.architecture in ("extra", "inter-stack"):
        layers[-1] |= climb(layers[literal.again[0]], literal.again, literal.kind)
    layers.append(layers[-1])
    return torch.stack(layers)
