"""Protocols: what each one chooses on, its options, its extraction, its cut of the task, and why it is optimistic."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from extract.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Protocol:
    """What a protocol does to a run. Options of the configuration take precedence over all of it.

    Attributes:
        description: One line.
        kinds: Kinds of tasks it is about; all where empty.
        selection: The split that epochs are chosen on.
        every: Epochs from one look at it to the next.
        optimistic_because: Why its numbers are optimistic; empty where they are not.
        heads: Head to the options that replace its defaults.
        task: Options of the task's reader, set where the reader has them.
        extraction: Kind of task to part of the extraction to the values that replace its defaults.
        cut: Kind of task to the name of what is done to the task before it is used.
    """

    description: str
    kinds: tuple[str, ...] = ()
    selection: str = "validation"
    every: int = 1
    optimistic_because: str = ""
    heads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    extraction: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    cut: Mapping[str, str] = field(default_factory=dict)


_MAGNET_TOKENS = {
    "steps": 4000, "batch_size": 8, "learning_rate": 5e-4, "weight_decay": 0.0, "keep": "last",
    "is_standardised": False, "start": "random", "offset": "none", "decoding": "plain", "layers": "final_norm",
}  # fmt: skip
_LBW_TOKENS = {
    "max_epochs": 3, "epoch_steps": 1, "batch_size": 32, "learning_rate": 5e-3, "schedule": "linear",
    "weight_decay": 0.0, "keep": "last", "is_standardised": False, "start": "random", "offset": "none",
    "decoding": "plain", "layers": "final_norm", "leaves_out_cut": True,
}  # fmt: skip
_LBW_PROBE = {
    "Cs": [1.0], "is_standardised": False, "max_iterations": 100, "oversampling": "times-5", "seed": 42,
    "layers": "final_norm",
}  # fmt: skip
LBW_TOKENS = 32
"""Tokens that the code released with Look Both Ways keeps of a sentence of words."""

LBW_TEXT_TOKENS = 512
"""Tokens that it keeps of a domain text."""

ICECORE, FREEZE, LBW, MAGNET = "icecore", "freeze-released", "look-both-ways", "magnet"

PROTOCOLS: dict[str, Protocol] = {
    ICECORE: Protocol("everything is chosen on validation, test is read once"),
    FREEZE: Protocol(
        "optimistic: the best of every tenth epoch on test, as FREEZE's released notebooks choose it",
        kinds=("pairs",), selection="test", every=10,
        optimistic_because="the epoch of every trained head is chosen on the test split that is reported",
    ),
    LBW: Protocol(
        "the splits and settings of the code released with Look Both Ways",
        kinds=("classes", "words"),
        heads={
            "logistic-probe": _LBW_PROBE,
            "few-shot-probe": {"layers": "final_norm"},
            "cosine-threshold": {
                "choose_on": "all", "kind": "raw", "thresholds": "hundred", "layers": "final_norm",
            },
            "token-classifier": _LBW_TOKENS,
            "token-mix": _LBW_TOKENS,
        },
        task={"rare": "drop"},
        extraction={
            "classes": {"template": {"max_tokens": LBW_TEXT_TOKENS}}, "words": {"template": {"max_tokens": LBW_TOKENS}},
        },
        cut={"classes": "released-split", "words": "every-token"},
    ),
    MAGNET: Protocol(
        "MAGNET's linear classifier of words (appendix A)",
        kinds=("words",),
        heads={"token-classifier": _MAGNET_TOKENS, "token-mix": _MAGNET_TOKENS},
        extraction={"words": {"words": {"shift": True, "poolings": ("mean",)}}},
    ),
}  # fmt: skip


def find_protocol(name: str, *, kind: str = "", task: str = "") -> Protocol:
    """Look up a protocol of `PROTOCOLS` for a kind of task, any where empty; `task` is its name, for the message.

    Raises:
        UnknownNameError: Another name.
        ConfigError: The protocol is about other kinds of tasks.
    """
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    protocol = PROTOCOLS[name]
    if kind and protocol.kinds and kind not in protocol.kinds:
        raise ConfigError(
            f"protocol {name!r} is for tasks of {' or '.join(protocol.kinds)}, but {task!r} is one of {kind}; use "
            f"protocol {ICECORE}."
        )
    return protocol
