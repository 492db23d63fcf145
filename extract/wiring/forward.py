"""One forward pass, every layer shown to a visitor."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extract.decoders.decoder import Decoder, flags_off
from extract.decoders.decoder_spec import FINAL_NORM
from extract.errors import DecoderError
from extract.inputs.batches import Batch, collate
from extract.inputs.spans import CONTEXT, TEXT
from extract.inputs.tokens import EncodedText
from extract.linear import QuickLinear
from extract.poolings.memory import send
from extract.wiring.attention import Arguments, Keywords, Run, wiring_of

FAMILY_FAULTS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)
"""What the code of a family raises where it cannot run as it is configured."""
Visit = Callable[[int, Tensor], None]
Output = Tensor | Arguments
"""What a module of a block returns: its hidden states, alone or before others."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class _EnoughError(Exception):
    """Raised by a hook once the topmost wanted layer has been seen, so that higher blocks are not computed."""


def run_batch(decoder: Decoder, batch: Batch, visit: Visit, *, depth: int | None = None) -> None:
    """Run a batch through a decoder and show every layer's hidden states to a visitor.

    `visit` is called bottom up with the position of the layer (0 is the embedding, `L + 1` the final norm) and its
    hidden states `(B, T, D)`, which it must not keep. Blocks above the position `depth` are not computed.
    """
    top = len(decoder.blocks) + 1
    if wiring := wiring_of(decoder.blocks):
        wiring.begin(batch, decoder.device)
    flags = decoder.description.bidirectional or {}
    with (
        torch.inference_mode(),
        QuickLinear(varied=True),
        flags_off(decoder.module, decoder.blocks, flags),
        _tapped(decoder, visit, top if depth is None else depth, tuple(batch.ids.shape)),
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


def states_with_gradients(
    decoder: Decoder, batch: Batch, positions: Collection[int] = ()
) -> dict[int, Float[Tensor, "B T D"]]:
    """Run a batch while torch records gradients; return the states of some layers by position, the final norm's too.

    The parameters that a caller trains must be in the decoder already (LoRA).
    """
    states: dict[int, Tensor] = {}
    if wiring := wiring_of(decoder.blocks):
        wiring.begin(batch, decoder.device)

    def keep(position: int, hidden: Tensor) -> None:
        if position in positions:
            states[position] = hidden

    flags = decoder.description.bidirectional or {}
    top = len(decoder.blocks) + 1
    with flags_off(decoder.module, decoder.blocks, flags), _tapped(decoder, keep, top, tuple(batch.ids.shape)):
        states[top] = decoder.module(**forward_inputs(decoder, batch)).last_hidden_state
    return states


def forward_inputs(decoder: Decoder, batch: Batch) -> Keywords:
    """Build the arguments of the forward call; an unpadded batch has no mask, which is plain causal and fastest."""
    inputs: Keywords = {"input_ids": send(batch.ids, decoder.device), "use_cache": False}
    if batch.is_padded:
        is_real = send(batch.is_real, decoder.device)
        inputs["attention_mask"] = is_real.long()
        if decoder.takes_position_ids:
            inputs["position_ids"] = (is_real.long().cumsum(1) - 1).clamp(min=0)
    return inputs


@contextmanager
def _tapped(decoder: Decoder, visit: Visit, depth: int, shape: tuple[int, ...]) -> Iterator[None]:
    def check(output: object) -> Tensor:
        hidden = output[0] if isinstance(output, tuple) else output
        if not isinstance(hidden, Tensor) or tuple(hidden.shape[:2]) != shape or hidden.dim() != 3:
            got = f"a tensor {tuple(hidden.shape)}" if isinstance(hidden, Tensor) else f"a {type(hidden).__name__}"
            raise DecoderError(
                f"a block of the {decoder.description.family!r} decoder returns {got}, not one tensor "
                f"({shape[0]}, {shape[1]}, D); this family cannot be read layer by layer."
            )
        return hidden

    def see(position: int, hidden: Tensor) -> None:
        visit(position, hidden)
        if position >= depth:
            raise _EnoughError

    def before(_: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        see(0, check(args[0] if args else kwargs.get("hidden_states")))

    def after(position: int) -> Callable[..., None]:
        return lambda _, __, output: see(position, check(output))

    with ExitStack() as hooks:
        hooks.enter_context(decoder.blocks[0].register_forward_pre_hook(before, with_kwargs=True))
        for position, block in enumerate(decoder.blocks, start=1):
            hooks.enter_context(block.register_forward_hook(after(position)))
        yield


def hidden_of(output: Output) -> Tensor:
    """Return the hidden states of a module's output, which comes alone or before others."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


def changing_input(change: Run) -> Callable[[nn.Module, Arguments, Keywords], tuple[Arguments, Keywords]]:
    """Make a forward pre-hook, with keywords, that changes the hidden states that a block receives."""

    def hook(_: nn.Module, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

    return hook


def changing_output(change: Run) -> Callable[[nn.Module, Arguments, Output], Output]:
    """Make a forward hook that changes the hidden states that a block returns."""

    def hook(_: nn.Module, __: Arguments, output: Output) -> Output:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return hook


def seeing_output(see: Callable[[Tensor], None]) -> Callable[[nn.Module, Arguments, Output], None]:
    """Make a forward hook that shows the hidden states that a module returns."""
    return lambda _, __, output: see(hidden_of(output))


@contextmanager
def in_float32(decoder: Decoder) -> Iterator[Decoder]:
    """Compute in float32 until the `with` block ends, and yield the decoder as one of that dtype.

    Certificates need it: rounding then flips no router and hides no small influence. Weights are widened,
    which is exact, one module at a time while it runs, and are their old tensors again afterwards.
    """
    if decoder.description.dtype == "float32":
        yield decoder
        return
    with ExitStack() as stack:
        for part in decoder.module.modules():
            narrow_weights = {name: p for name, p in part.named_parameters(recurse=False) if p.is_floating_point()}
            if narrow_weights:
                before, after = _widening(part, narrow_weights)
                stack.callback(after)
                stack.enter_context(part.register_forward_pre_hook(before, with_kwargs=True))
                stack.enter_context(part.register_forward_hook(after, always_call=True))
        yield replace(decoder, description=replace(decoder.description, dtype="float32"))


def _widening(
    part: nn.Module, narrow_weights: dict[str, nn.Parameter]
) -> tuple[Callable[..., tuple[Arguments, Keywords]], Callable[..., None]]:
    # Parameters are replaced and not changed: accelerate puts others in their place while an offloaded module runs, in
    # the dtype that it finds.
    def before(_: nn.Module, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
        for name, weight in narrow_weights.items():
            setattr(part, name, nn.Parameter(weight.data.float(), requires_grad=False))
        return tuple(map(_wide, args)), {name: _wide(value) for name, value in kwargs.items()}

    def after(*_: object) -> None:
        for name, weight in narrow_weights.items():
            setattr(part, name, weight)

    return before, after


def _wide(value: object) -> object:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value


def hidden_states(decoder: Decoder, batch: Batch) -> Float[Tensor, "L B T D"]:
    """Compute the hidden states of a batch in float32, from the embedding to the last block, on the CPU."""
    states: list[Tensor] = []
    with in_float32(decoder):
        run_batch(decoder, batch, lambda _, hidden: states.append(hidden.float().cpu()), depth=len(decoder.blocks))
    return torch.stack(states)


def has_experts(decoder: Decoder) -> bool:
    """Whether a router chooses experts for each token, so that rounding can change a latent by any amount."""
    return any((getattr(decoder.text_config, name, None) or 0) > 1 for name in EXPERTS)


def vocabulary_size(decoder: Decoder) -> int:
    """Return how many tokens a decoder knows."""
    return int(decoder.text_config.vocab_size)


def probe_ids(decoder: Decoder, n_tokens: int, *, seed: int) -> Int[Tensor, " T"]:
    """Draw tokens from the whole vocabulary of a decoder."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary_size(decoder), (n_tokens,), generator=generator)


def encode_ids(ids: Int[Tensor, " T"]) -> EncodedText:
    """Make a text without specials of tokens."""
    return EncodedText(ids.numpy(), np.full(len(ids), TEXT, np.int8), is_truncated=False)


def plain_batch(ids: Int[Tensor, "B T"], *, spans: Int[Tensor, " T"] | None = None) -> Batch:
    """Make a batch of rows of one length, all with the same spans."""
    batch = collate([encode_ids(row) for row in ids], range(len(ids)))
    return replace(batch, spans=None if spans is None else spans.repeat(len(ids), 1))


def probe_spans(n_tokens: int) -> Int[Tensor, " T"]:
    """Put one span over the third and fourth token, so that a hybrid mask shows itself."""
    spans = torch.full((n_tokens,), CONTEXT)
    spans[2:4] = 0
    return spans
