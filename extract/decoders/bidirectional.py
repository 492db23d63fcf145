"""Checkpoints that attend to both sides by a flag of their configuration: recorded, and off while icecore runs them.

A mask plan starts from causal attention, so the flag gives way to the plan: `causal` is the same weights with the flag
off, and `bidirectional` the checkpoint as it was trained.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

READ_BY_ALL, READ_BY_SOME = "is_causal", "use_bidirectional_attention"
BIDIRECTIONAL = {READ_BY_ALL: (False,), READ_BY_SOME: (True, "all")}  # "vision" is about images alone
CAUSAL = {READ_BY_ALL: True, READ_BY_SOME: None}


def bidirectional_flags(config: PreTrainedConfig) -> dict[str, object]:
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
def flags_off(module: PreTrainedModel, blocks: Sequence[nn.Module], flags: Mapping[str, object]) -> Iterator[None]:
    """Switch such flags of a decoder off until the `with` block ends; transformers then runs it as a causal one."""
    with ExitStack() as stack:
        for owner in (module.config, module.config.get_text_config()):
            stack.enter_context(changed(owner, **{name: CAUSAL[name] for name in flags if hasattr(owner, name)}))
        if READ_BY_SOME in flags:  # attention modules read it when they were made
            for part in (part for block in blocks for part in block.modules()):
                if vars(part).get("is_causal") is False:
                    stack.enter_context(changed(part, is_causal=True))
        yield


@contextmanager
def changed(owner: object, **values: object) -> Iterator[None]:
    """Change attributes of an object until the `with` block ends."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
