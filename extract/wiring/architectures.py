"""Architectures: what is run besides the decoder's own stack of blocks, over the very same frozen parameters.

All of them are hooks on the blocks; no weight is copied. Sums are taken before the final norm, so `block_L` and
`final_norm` are those of the converted decoder. Blocks are run again with the arguments their own call received.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from extract.wiring.interface import Wiring
from extract.wiring.replay import Replay


@contextmanager
def architecture_in_force(
    blocks: tuple[nn.Module, ...], wiring: Wiring, *, name: str, kind: str, n_converted: int
) -> Iterator[None]:
    """Put an architecture in force until the `with` block ends.

    Args:
        blocks: The decoder's blocks, bottom up.
        wiring: Its wiring, causal at every block.
        name: A name from `ARCHITECTURES` other than `inplace`.
        kind: Mask kind of the converted blocks.
        n_converted: How many are converted, `K`.

    Yields:
        Nothing; forward calls inside the block are those of the converted decoder.
    """
    stack = Replay(blocks, wiring)
    n_blocks, last = len(blocks), blocks[-1]
    handles = []

    def rerun(first: int, end: int, hidden: Tensor) -> Tensor:
        for index in range(first, end):
            hidden = stack.run(index, hidden, kind)
        return hidden

    def extend(hidden: Tensor) -> Tensor:
        for _ in range(n_converted):
            hidden = stack.run(n_blocks - 1, hidden, kind)
        return hidden

    def extra(hidden: Tensor) -> Tensor:
        return hidden + rerun(0, n_converted, stack.inputs[0])

    def inter_stack(hidden: Tensor) -> Tensor:
        first = n_blocks - n_converted
        return hidden + rerun(first, n_blocks, stack.inputs[first])

    if n_converted > 0 and name == "inter-block":
        top = range(n_blocks - n_converted, n_blocks)
        handles += [blocks[index].register_forward_hook(_adding(stack, index, kind)) for index in top]
    elif n_converted > 0:
        change = {"extend": extend, "extra": extra, "inter-stack": inter_stack}[name]
        handles.append(last.register_forward_hook(_changing(change)))
    try:
        with stack.noting():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _changing(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    return hook


def _adding(stack: Replay, index: int, kind: str) -> Callable[..., Any]:
    return _changing(lambda hidden: hidden + stack.run(index, stack.inputs[index], kind))


@contextmanager
def skip_in_force(blocks: tuple[nn.Module, ...], *, stride: int, first: int) -> Iterator[None]:
    """Re-add an earlier hidden state, as LBW's released code does (`res_connect`, 3 there).

    Before block `i` (from 0), for `i >= first` and `(i - first)` divisible by `stride`: `h += s`, then `s = h`, with
    `s = 0` at the start; `s` is added once more before the final norm.

    Args:
        blocks: The decoder's blocks, bottom up.
        stride: Blocks from one addition to the next.
        first: The first block it happens at, from 0.

    Yields:
        Nothing.
    """
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

    handles = [
        # In front of other hooks: a block that an architecture runs again starts from the same input.
        blocks[index].register_forward_pre_hook(before(index), with_kwargs=True, prepend=True)
        for index in range(first, len(blocks), stride)
    ]
    handles.append(blocks[-1].register_forward_hook(_changing(lambda hidden: hidden + kept["s"])))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
