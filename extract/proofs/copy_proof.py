"""Prove the range of Token Prepending by states: what reaches a layer is the same however long a state is copied."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.masks.plan import MaskPlan
from extract.masks.truth import literal_plan
from extract.wiring.forward import run_batch
from extract.wiring.precision import in_float32
from extract.wiring.probe_rows import plain_batch, probe_ids, probe_spans


def prove_copies(decoder: Decoder, plan: MaskPlan, *, n_tokens: int, placeholder: int) -> None:
    """Certify that the placeholder takes the last token's state after the blocks of the plan, and after no other.

    What a block itself computed is compared with what the next one is given.

    Args:
        decoder: The decoder, the plan in force.
        plan: The plan, with a placeholder.
        n_tokens: Tokens of the row that is looked at.
        placeholder: Its column.

    Raises:
        CertificateError: Names the first layer where the placeholder holds another state than planned.
    """
    copied = literal_plan(plan.text, len(decoder.blocks)).prepend or range(0)
    computed: list[Tensor] = []

    def note(_: nn.Module, __: Any, output: Any) -> None:
        computed.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    def visit(position: int, hidden: Tensor) -> None:
        if position == 0:  # drawn, by seed; that it depends on no token is seen in its influence
            return
        own, state = computed[-1], hidden[0]
        holds_last = torch.equal(state[placeholder], state[-1])
        if position - 1 in copied:
            if not holds_last:
                raise _refuse(decoder, plan, position, "does not hold the last token's state")
        elif holds_last and not torch.equal(own[placeholder], own[-1]):
            raise _refuse(decoder, plan, position, "holds the last token's state, which the plan does not copy there")

    ids = probe_ids(decoder, n_tokens, seed=0).unsqueeze(0)
    batch = replace(plain_batch(ids, spans=probe_spans(n_tokens)), placeholder=torch.tensor([placeholder]))
    with in_float32(decoder) as wide, ExitStack() as stack:
        for block in wide.blocks:
            stack.enter_context(block.register_forward_hook(note, prepend=True))  # before the hooks that copy
        run_batch(wide, batch, visit, depth=len(wide.blocks))


def _refuse(decoder: Decoder, plan: MaskPlan, position: int, what: str) -> CertificateError:
    return CertificateError(
        f"the plan {plan.text!r} did not take effect: the placeholder of {decoder.layers[position]} {what}. "
        f"The family {decoder.description.family!r} cannot be extracted under this plan."
    )
