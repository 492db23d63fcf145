"""A mask plan in force on a decoder: its masks, its architecture and its skip, over the very same frozen parameters.

Architectures run blocks again, with the arguments their own call received, as hooks on the blocks; no weight is copied.
Sums are taken before the final norm, so `block_L` and `final_norm` are those of the converted decoder.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from extract.decoders.decoder import Decoder
from extract.masks.plan import CAUSAL, MaskPlan
from extract.wiring.certificate import probe_layers, require_equal
from extract.wiring.interface import Wiring, wired
from extract.wiring.isolation import short_windows

Blocks = tuple[nn.Module, ...]


@dataclass(eq=False)
class Replay:
    """The blocks of a wired decoder, which can be run again with the arguments of the last forward pass.

    Attributes:
        blocks: The blocks, bottom up.
        wiring: The wiring of the decoder.
        inputs: Hidden states `(B, T, D)` each block received, by its position from 0.
    """

    blocks: Blocks
    wiring: Wiring
    inputs: dict[int, Tensor] = field(default_factory=dict)
    _calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note every call of a block until the `with` block ends."""
        with ExitStack() as hooks:
            for index, block in enumerate(self.blocks):
                hooks.enter_context(block.register_forward_pre_hook(self._note(index), with_kwargs=True))
            hooks.callback(self.inputs.clear)
            hooks.callback(self._calls.clear)
            yield

    def run(self, index: int, hidden: Tensor, kind: str) -> Tensor:
        """Run a block of the last forward pass once more, on other hidden states `(B, T, D)` and under a mask kind."""
        args, kwargs = self._calls[index]

        def forward(hidden: Tensor) -> Tensor:
            # `forward` and not the call itself: hooks of the outer pass must not fire for an inner one.
            output = self.blocks[index].forward(hidden, *args, **kwargs)
            changed: Tensor = output[0] if isinstance(output, tuple) else output
            return changed

        with self.wiring.converted(index, kind):
            return self.wiring.around(index, hidden, forward)

    def _note(self, index: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.inputs[index] = args[0] if args else kwargs["hidden_states"]
            self._calls[index] = (args[1:], {k: v for k, v in kwargs.items() if k != "hidden_states"})

        return hook


@contextmanager
def architecture_in_force(blocks: Blocks, wiring: Wiring, plan: MaskPlan) -> Iterator[None]:
    """Put a plan's architecture, other than `inplace`, in force; the wiring is causal at every block."""
    stack = Replay(blocks, wiring)
    kind, n_converted = plan.converted
    last = len(blocks) - 1
    top = range(len(blocks) - n_converted, len(blocks))

    def rerun(indices: Iterable[int], hidden: Tensor) -> Tensor:
        for index in indices:
            hidden = stack.run(index, hidden, kind)
        return hidden

    def adding(indices: range) -> Callable[[Tensor], Tensor]:
        return lambda hidden: hidden + rerun(indices, stack.inputs[indices[0]])

    changes: dict[int, Callable[[Tensor], Tensor]]
    if plan.architecture == "inter-block":
        changes = {index: adding(range(index, index + 1)) for index in top}
    elif plan.architecture == "extend":
        changes = {last: lambda hidden: rerun([last] * n_converted, hidden)}
    else:
        changes = {last: adding({"extra": range(n_converted), "inter-stack": top}[plan.architecture])}
    with ExitStack() as hooks:
        for index, change in changes.items():
            hooks.enter_context(blocks[index].register_forward_hook(_changing(change)))
        with stack.noting():
            yield


def _changing(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    return hook


@contextmanager
def skip_in_force(blocks: Blocks, skip: tuple[int, int] | None) -> Iterator[None]:
    """Re-add an earlier hidden state, as LBW's released code does (`res_connect`, 3 there); nothing without a skip.

    For a skip of stride `n` from block `f` on, before block `i` (from 0) with `i >= f` and `(i - f)` divisible by `n`:
    `h += s`, then `s = h`, with `s = 0` at the start; `s` is added once more before the final norm.
    """
    if skip is None:
        yield
        return
    stride, first = skip
    kept: dict[str, Tensor] = {}

    def before(index: int) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            if index == first:
                kept.clear()
            kept["s"] = hidden + kept["s"] if "s" in kept else hidden
            if args:
                return (kept["s"], *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": kept["s"]}

        return hook

    with ExitStack() as hooks:
        for index in range(first, len(blocks), stride):
            # In front of other hooks: a block that an architecture runs again starts from the same input.
            hook = blocks[index].register_forward_pre_hook(before(index), with_kwargs=True, prepend=True)
            hooks.enter_context(hook)
        hooks.enter_context(blocks[-1].register_forward_hook(_changing(lambda hidden: hidden + kept["s"])))
        yield


@contextmanager
def masks_in_force(decoder: Decoder, kinds: Sequence[str]) -> Iterator[Wiring]:
    """Wire a decoder with a mask kind per block, bottom up, after checking that wired causal masks change nothing.

    Raises:
        DecoderError: The family does not let its attention be chosen, or computes something else through ours.
    """
    family = decoder.description.family
    with short_windows(decoder):
        untouched = probe_layers(decoder)
    with wired(decoder.module, decoder.blocks, [CAUSAL] * len(decoder.blocks), family=family) as wiring:
        with short_windows(decoder), wiring.windows_apart():
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
