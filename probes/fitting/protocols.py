"""Protocols: on which split an epoch is chosen, how often one looks, and whether the number is optimistic."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """How the epoch of a head is chosen.

    Attributes:
        selection: The split it is chosen on.
        every: Epochs from one look to the next.
        is_optimistic: Whether the reported split took part in the choice.
        description: One line.
    """

    selection: str
    every: int
    is_optimistic: bool
    description: str


PROTOCOLS = {
    "icecore": Protocol("validation", 1, False, "everything is chosen on validation, test is read once"),
    "freeze-released": Protocol(
        "test", 10, True, "optimistic: the best of every tenth epoch on test, as FREEZE's released notebooks choose it"
    ),
}
