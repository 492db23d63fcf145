"""Settings of ReBA poolings. Reading a config loads no torch."""

from dataclasses import dataclass
from typing import Literal

from extract.errors import unknown_name

REBA = frozenset({"reba-last", "reba-mean", "reba"})
"""Poolings that need the attention of every block before they can be computed."""
ATTENTIONS = {
    "all": "the largest weight over all blocks and heads (ReBA, Algorithm 1)",
    "last": "the largest weight over the heads of the last block (appendix A.1.3)",
}
DIRECTIONS = {
    "backward": "a token gathers itself and what follows it (ReBA, equation 6)",
    "symmetric": "a token gathers what precedes it too (appendix A.1.3, as we read it)",
}


@dataclass(frozen=True)
class RebaOptions:
    """Which attention ReBA poolings gather states by."""

    attention: Literal["all", "last"] = "all"
    """`all` blocks and heads, the largest weight of each pair of tokens; or the heads of the `last` block."""
    direction: Literal["backward", "symmetric"] = "backward"
    """`backward`: a token gathers itself and later ones; `symmetric`: earlier ones too."""

    def __post_init__(self) -> None:
        """Refuse values outside the tables."""
        if self.attention not in ATTENTIONS:
            raise unknown_name("attention of ReBA", self.attention, ATTENTIONS)
        if self.direction not in DIRECTIONS:
            raise unknown_name("direction of ReBA", self.direction, DIRECTIONS)
