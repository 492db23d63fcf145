"""A mask plan in force on a decoder."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from extract.decoders.decoder import Decoder
from extract.masks.plan import CAUSAL, MaskPlan
from extract.wiring.architectures import architecture_in_force, skip_in_force
from extract.wiring.certificate import probe_layers, require_equal
from extract.wiring.interface import Wiring, wired


@contextmanager
def masks_in_force(decoder: Decoder, kinds: Sequence[str]) -> Iterator[Wiring]:
    """Wire a decoder with a mask kind per block, bottom up, after checking that wired causal masks change nothing.

    Raises:
        DecoderError: The family does not let its attention be chosen, or computes something else through ours.
    """
    family = decoder.description.family
    untouched = probe_layers(decoder)
    with wired(decoder.module, decoder.blocks, [CAUSAL] * len(decoder.blocks), family=family) as wiring:
        require_equal(untouched, probe_layers(decoder), decoder)
        wiring.end()
        wiring.set_kinds(kinds)
        yield wiring


@contextmanager
def plan_in_force(decoder: Decoder, plan: MaskPlan) -> Iterator[Wiring | None]:
    """Put a plan in force until the `with` block ends.

    A plan that is causal at every block leaves the decoder alone, on the path of transformers itself: it yields None.

    Raises:
        UnknownNameError: The plan does not fit the number of blocks.
        DecoderError: The family does not let its attention be chosen; says which plan works.
    """
    kinds = plan.kinds(len(decoder.blocks))
    if plan.is_untouched:
        yield None
        return
    with ExitStack() as stack:
        wiring = stack.enter_context(masks_in_force(decoder, kinds))
        if plan.architecture != "inplace":
            stack.enter_context(architecture_in_force(decoder.blocks, wiring, plan))
        stack.enter_context(skip_in_force(decoder.blocks, plan.skip))
        yield wiring
