"""Mask plans: one attention-mask kind per layer, in a short text form shared by CLI, configs and manifests."""

from dataclasses import dataclass

from extract.errors import unknown_name

PLANS = {"causal": "token i attends to j <= i at every layer: the decoder as it was trained"}


@dataclass(frozen=True)
class MaskPlan:
    """A mask plan in its canonical text form.

    Attributes:
        text: The canonical form; `parse_plan(plan.text) == plan`.
    """

    text: str

    def reachable(self, n_tokens: int, depth: int) -> list[list[bool]]:
        """Say which positions may influence which through the first `depth` blocks.

        Args:
            n_tokens: Length of the row, in real tokens.
            depth: Number of blocks passed; 0 is the embedding.

        Returns:
            A `(n_tokens, n_tokens)` table, true at `[i][j]` when output `i` may depend on input `j`. A causal
            plan reaches the lower triangle at every depth but the embedding, where a token sees itself:

                depth 0     depth >= 1
                1 0 0       1 0 0
                0 1 0       1 1 0
                0 0 1       1 1 1
        """
        return [[j == i or (depth > 0 and j < i) for j in range(n_tokens)] for i in range(n_tokens)]


def parse_plan(text: str) -> MaskPlan:
    """Read a mask plan from its text form.

    Args:
        text: The plan, for instance `"causal"`; surrounding blanks do not count.

    Returns:
        The plan.

    Raises:
        UnknownNameError: A plan that stands in no table.

    Example:
        >>> parse_plan(" causal ").text
        'causal'
    """
    name = text.strip()
    if name not in PLANS:
        raise unknown_name("mask plan", text, PLANS)
    return MaskPlan(name)
