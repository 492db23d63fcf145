"""One forward pass, every layer shown to a visitor."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from extract.decoders.bidirectional import flags_off
from extract.decoders.decoder import Decoder
from extract.decoders.layers import FINAL_NORM
from extract.errors import DecoderError
from extract.inputs.batching import Batch
from extract.linear import QuickLinear
from extract.poolings.transfer import send
from extract.wiring.interface import wiring_of

FAMILY_FAULTS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)
"""What the code of a family raises where it cannot run as it is configured."""
Visit = Callable[[int, Tensor], None]


class _EnoughError(Exception):
    """Raised by a hook once the topmost wanted layer has been seen, so that higher blocks are not computed."""


def run_batch(decoder: Decoder, batch: Batch, visit: Visit, *, depth: int | None = None) -> None:
    """Run a batch through a decoder and show every layer's hidden states to a visitor.

    Args:
        decoder: The frozen decoder.
        batch: The batch, on any device.
        visit: Called bottom up with the position of the layer (0 is the embedding, `L + 1` the final norm) and
            its hidden states `(B, T, D)`; it must not keep them.
        depth: Topmost position to visit; blocks above it are not computed. The final norm when absent.

    Raises:
        DecoderError: A block that does not hand on one `(B, T, D)` tensor.
    """
    top = len(decoder.blocks) + 1
    wanted = top if depth is None else depth
    wiring = wiring_of(decoder.blocks)
    if wiring is not None:
        device = decoder.device
        spans, places = (None if side is None else send(side, device) for side in (batch.spans, batch.placeholder))
        wiring.begin(
            send(batch.is_real, device),
            spans,
            last=send(batch.last, device),
            placeholder=places,
            is_padded=batch.is_padded,
        )
    flags = decoder.description.bidirectional or {}
    with (
        torch.inference_mode(),
        QuickLinear(varied=True),
        flags_off(decoder.module, decoder.blocks, flags),
        _tapped(decoder, visit, wanted, tuple(batch.ids.shape)),
    ):
        try:
            output = decoder.module(**forward_inputs(decoder, batch))
        except _EnoughError:
            return
        except FAMILY_FAULTS as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            why = " ".join(str(error).split()) or type(error).__name__
            raise DecoderError(
                f"the forward pass of the family {decoder.description.family!r} fails on a batch of "
                f"{tuple(batch.ids.shape)} tokens ({type(error).__name__}: {why[:200]}); it cannot be "
                "extracted with this release of transformers and this configuration."
            ) from error
        final = output.last_hidden_state
        if final.shape[-1] != decoder.description.width:
            raise DecoderError(
                f"the {decoder.description.family!r} decoder projects its output from {decoder.description.width} to "
                f"{final.shape[-1]} dimensions; choose layers without {FINAL_NORM!r}, for instance 'blocks'."
            )
        visit(top, final)


def forward_inputs(decoder: Decoder, batch: Batch) -> dict[str, Any]:
    """Build the arguments of the forward call.

    Without padding no mask is passed, which every attention implementation takes as plain causal and computes
    fastest. With padding the mask and positions counted from the first real token are passed.
    """
    inputs: dict[str, Any] = {"input_ids": send(batch.ids, decoder.device), "use_cache": False}
    if batch.is_padded:
        is_real = send(batch.is_real, decoder.device)
        inputs["attention_mask"] = is_real.long()
        if decoder.takes_position_ids:
            inputs["position_ids"] = (is_real.long().cumsum(1) - 1).clamp(min=0)
    return inputs


@contextmanager
def _tapped(decoder: Decoder, visit: Visit, depth: int, shape: tuple[int, ...]) -> Iterator[None]:
    def check(value: Any) -> Tensor:
        hidden = value[0] if isinstance(value, tuple) else value
        if not isinstance(hidden, Tensor) or tuple(hidden.shape[:2]) != shape or hidden.dim() != 3:
            got = f"a tensor {tuple(hidden.shape)}" if isinstance(hidden, Tensor) else f"a {type(hidden).__name__}"
            raise DecoderError(
                f"a block of the {decoder.description.family!r} decoder hands on {got}, not one tensor "
                f"({shape[0]}, {shape[1]}, D); this family cannot be read layer by layer."
            )
        return hidden

    def see(position: int, hidden: Tensor) -> None:
        visit(position, hidden)
        if position >= depth:
            raise _EnoughError

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(0, check(args[0] if args else kwargs.get("hidden_states")))

    def after(position: int) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            see(position, check(output))

        return hook

    with ExitStack() as hooks:
        hooks.enter_context(decoder.blocks[0].register_forward_pre_hook(before, with_kwargs=True))
        for position, block in enumerate(decoder.blocks, start=1):
            hooks.enter_context(block.register_forward_hook(after(position)))
        yield
