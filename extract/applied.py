"""A mask plan in force on a decoder."""

from collections.abc import Iterator
from contextlib import contextmanager

from extract.decoder import Decoder
from extract.plan import MaskPlan
from extract.wiring import Wiring, wired


@contextmanager
def plan_in_force(decoder: Decoder, plan: MaskPlan) -> Iterator[Wiring | None]:
    """Put a plan in force for the length of a block.

    A plan that is causal at every block leaves the decoder entirely alone: it runs on the library's own path.

    Args:
        decoder: The decoder.
        plan: The plan.

    Yields:
        The wiring, or None for a causal plan.

    Raises:
        UnknownNameError: The plan does not fit the number of blocks.
        DecoderError: The family does not let its attention be chosen; says which plan works.
    """
    kinds = plan.kinds(len(decoder.blocks))
    if plan.is_causal:
        yield None
        return
    with wired(decoder.module, decoder.blocks, kinds, family=decoder.description.family) as wiring:
        yield wiring
