"""Masks for families past the attention interface: the plan's mask replaces the one their attention modules get.

With the implementation `eager`, transformers builds causal masks per batch, and a decoder passes them down to its
attention modules as `attention_mask`. Hooks there replace them; biases that are added beside them, as ALiBi, stay.
A causal triangle that a module keeps as a buffer (GPT-Neo) is open while the module runs.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from extract.masks.kinds import parse_kind
from extract.masks.matrices import additive
from extract.wiring.attention import written_out
from extract.wiring.interface import MARK, Mark, Wiring, choose_attention

ARGUMENT = "attention_mask"
HIDDEN = -6e4  # scores below are minus infinity, in float16 too
SOFTMAXES = (torch.nn.functional.softmax, torch.softmax, Tensor.softmax)


@contextmanager
def wired_by_argument(
    module: nn.Module, blocks: Sequence[nn.Module], kinds: Sequence[str], *, family: str
) -> Iterator[Wiring]:
    """Wire a decoder as `interface.wired` does, through the mask argument of its attention modules.

    Raises:
        DecoderError: The family builds no causal mask, or none that this way knows.
    """
    wiring = Wiring([parse_kind(kind) for kind in kinds], by_argument=True)
    config: Any = module.config
    with ExitStack() as stack:
        stack.callback(choose_attention, module, config._attn_implementation, family)
        choose_attention(module, "eager", family)
        for index, block in enumerate(blocks):
            setattr(block, MARK, Mark(wiring, index))
            stack.callback(vars(block).pop, MARK, None)
            for part in _mask_takers(block):
                _hook(part, index, wiring, family, stack)
        yield wiring


def _mask_takers(part: nn.Module) -> Iterator[nn.Module]:
    """Find the outermost modules inside a block whose forward call takes a mask."""
    for child in part.children():
        if ARGUMENT in inspect.signature(child.forward).parameters:
            yield child
        else:
            yield from _mask_takers(child)


def _hook(part: nn.Module, block: int, wiring: Wiring, family: str, stack: ExitStack) -> None:
    """Replace the mask that a module is given, and open its triangles while it runs."""
    signature = inspect.signature(part.forward)
    triangles = [(owner, name, buffer) for owner in part.modules() for name, buffer in _triangles(owner)]

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = signature.bind(*args, **kwargs)
        own = call.arguments.get(ARGUMENT)
        if not isinstance(own, Tensor) or own.dim() != 4:  # of a recurrent block, or none
            return None
        call.arguments[ARGUMENT] = mask_argument(wiring, block, own, [each[2] for each in triangles], family=family)
        for owner, name, buffer in triangles:
            owner._buffers[name] = buffer.new_ones(()).expand(buffer.shape)
        wiring.attending = block
        wiring.carriers[block] = part
        return call.args, call.kwargs

    def after(*_: object) -> None:
        wiring.attending = None
        for owner, name, buffer in triangles:
            owner._buffers[name] = buffer

    stack.callback(after)
    stack.enter_context(part.register_forward_pre_hook(before, with_kwargs=True))
    stack.enter_context(part.register_forward_hook(after, always_call=True))


def _triangles(owner: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, buffer in owner.named_buffers(recurse=False):
        is_square = buffer.dtype == torch.bool and buffer.dim() > 1 and buffer.shape[-1] == buffer.shape[-2] > 1
        if is_square and not bool(buffer.triu(1).any()):
            yield name, buffer


def mask_argument(
    wiring: Wiring, block: int, own: Shaped[Tensor, "b Q T T"], triangles: Sequence[Tensor], *, family: str
) -> Shaped[Tensor, "b 1 T T"]:
    """Write the mask of a block in the form of the family's own: 0 and minus infinity, or true where hidden (MPT).

    The window is read off the family's own mask and kept. Biases in it are dropped: Falcon adds its ALiBi once more by
    itself, and where nobody does, the decoder differs from the untouched one. `DecoderError` where it is not causal.
    """

    def shown() -> Tensor:
        seen = ~own if own.dtype == torch.bool else own > HIDDEN
        for triangle in triangles:
            seen = seen & triangle[..., : own.shape[-2], : own.shape[-1]]
        return seen

    mask = wiring.mask(block, wiring.window_of((own, *triangles), shown, family=family))
    allowed = wiring.placed(mask, own.device) if isinstance(mask, Tensor) else written_out(mask, own)
    hidden = ~allowed if own.dtype == torch.bool else additive(allowed, own.dtype)
    return hidden.expand(len(own), -1, -1, -1)


class ScoreWatch(TorchFunctionMode):
    """Shows what attention modules put into their softmax, mask and biases included, and what comes out of it.

    `see` gets the block's position, scores `(B, heads, T, T)` and weights of the same shape; learned sinks are cut off.
    """

    def __init__(self, wiring: Wiring, see: Callable[[int, Tensor, Tensor], None]) -> None:
        super().__init__()
        self._wiring, self._see = wiring, see

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        block, shape = self._wiring.attending, self._wiring.batch_shape
        if func in SOFTMAXES and block is not None:
            scores = args[0] if args else (kwargs or {})["input"]
            if scores.dim() > 2 and scores.shape[-2] == shape[1] <= scores.shape[-1] <= shape[1] + 1:
                whole = (shape[0], -1, *scores.shape[-2:])
                self._see(block, *(side.reshape(whole)[..., : shape[1]] for side in (scores, result)))
        return result
