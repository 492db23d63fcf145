"""Running single blocks again, with the arguments their own call received."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from extract.wiring.interface import Wiring


@dataclass(eq=False)
class Replay:
    """The blocks of a wired decoder, and what each was called with in the last forward pass.

    Attributes:
        blocks: The blocks, bottom up.
        wiring: The wiring of the decoder.
        inputs: Hidden states `(B, T, D)` each block received, by its position from 0.
    """

    blocks: tuple[nn.Module, ...]
    wiring: Wiring
    inputs: dict[int, Tensor] = field(default_factory=dict)
    _calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note every call of a block until the `with` block ends."""
        handles = [
            block.register_forward_pre_hook(self._note(index), with_kwargs=True)
            for index, block in enumerate(self.blocks)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.inputs.clear()
            self._calls.clear()

    def run(self, index: int, hidden: Tensor, kind: str) -> Tensor:
        """Run a block once more.

        Args:
            index: Its position, from 0; it must have been called in the last forward pass.
            hidden: `(B, T, D)` hidden states to run it on.
            kind: Mask kind it attends under, as text.

        Returns:
            `(B, T, D)`, its output.
        """
        args, kwargs = self._calls[index]
        with self.wiring.converted(index, kind):
            # `forward` and not the call itself: hooks of the outer pass must not fire for an inner one.
            output = self.blocks[index].forward(hidden, *args, **kwargs)
        changed: Tensor = output[0] if isinstance(output, tuple) else output
        return changed

    def _note(self, index: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.inputs[index] = args[0] if args else kwargs["hidden_states"]
            self._calls[index] = (args[1:], {k: v for k, v in kwargs.items() if k != "hidden_states"})

        return hook
