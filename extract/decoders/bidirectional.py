"""Checkpoints that attend to both sides by a flag of their configuration: recorded, and off while icecore runs them.

A mask plan starts from causal attention, so the flag gives way to the plan: `causal` is the same weights with the flag
off, and `bidirectional` the checkpoint as it was trained.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

READ_BY_ALL, READ_BY_SOME = "is_causal", "use_bidirectional_attention"
BIDIRECTIONAL = {READ_BY_ALL: (False,), READ_BY_SOME: (True, "all")}  # "vision" is about images alone
CAUSAL = {READ_BY_ALL: True, READ_BY_SOME: None}


def bidirectional_flags(config: Any) -> dict[str, Any]:
    """Return the flags by which a checkpoint attends to both sides, with their values; empty for most.

    Example:
        >>> from transformers import Gemma3TextConfig
        >>> bidirectional_flags(Gemma3TextConfig(use_bidirectional_attention=True))
        {'use_bidirectional_attention': True}
    """
    return {
        name: getattr(owner, name)
        for owner in (config, config.get_text_config())
        for name, values in BIDIRECTIONAL.items()
        # A family that reads the second flag declares it; elsewhere it has no effect.
        if (name == READ_BY_ALL or hasattr(type(owner), name)) and getattr(owner, name, None) in values
    }


@contextmanager
def flags_off(module: nn.Module, blocks: Sequence[nn.Module], flags: Mapping[str, Any]) -> Iterator[None]:
    """Switch such flags of a decoder off until the `with` block ends; transformers then runs it as a causal one."""
    if not flags:
        yield
        return
    config: Any = module.config
    owners = {id(owner): owner for owner in (config, config.get_text_config())}.values()
    changes = [(owner, name, CAUSAL[name]) for owner in owners for name in flags if hasattr(owner, name)]
    if READ_BY_SOME in flags:  # attention modules read it when they were made
        parts = [part for block in blocks for part in block.modules()]
        changes += [(part, "is_causal", True) for part in parts if vars(part).get("is_causal") is False]
    with ExitStack() as stack:
        for owner, name, value in changes:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
