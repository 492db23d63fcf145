"""Mask plans by the names they have in the papers."""

from dataclasses import dataclass

from extract.errors import UnknownNameError, unknown_name
from extract.masks.plan import MaskPlan, parse_plan

HIDES = "nosink{m}-"


@dataclass(frozen=True)
class PaperPlan:
    """One configuration of Look Both Ways.

    Attributes:
        form: Text form of the plan, with `{k}`, `{k0}`, `{below}` for `k - k0`, and `{m}` where tokens are hidden.
        n_hidden: First tokens it hides by default; 0 where it hides none.
        is_fixed: Whether its name says how many tokens it hides.
    """

    form: str
    n_hidden: int = 0
    is_fixed: bool = False

    @property
    def needs_k0(self) -> bool:
        """Whether the configuration has a second number of blocks."""
        return "{k0}" in self.form


LBW_PLANS: dict[str, PaperPlan] = {
    "INPLACE-BACK": PaperPlan("backward:{k}"),
    "INPLACE-BIDIR": PaperPlan("bidirectional:{k}"),
    "INTER-BACK": PaperPlan("inter-stack/backward:{k}"),  # as the released code adds: once, on top
    "INTER-BIDIR": PaperPlan("inter-stack/bidirectional:{k}"),
    "INTER-BACK-TEXT": PaperPlan("inter-block/backward:{k}"),  # as the paper's text adds: block by block
    "INTER-BIDIR-TEXT": PaperPlan("inter-block/bidirectional:{k}"),
    "EXTRA-BACK": PaperPlan("extra/backward:{k}"),
    "EXTRA-BIDIR": PaperPlan("extra/bidirectional:{k}"),
    "EXTEND-BACK": PaperPlan("extend/backward:{k}"),
    "EXTEND-BIDIR": PaperPlan("extend/bidirectional:{k}"),
    "MASK0-FOR": PaperPlan(HIDES + "causal:{k}", n_hidden=1),
    "MASK0-BIDIR": PaperPlan(HIDES + "bidirectional:{k}", n_hidden=1),
    "MASK0-ALL": PaperPlan(f"{HIDES}bidirectional:{{k}}+{HIDES}causal", n_hidden=1),
    "MASK0&BIDIR": PaperPlan(HIDES + "bidirectional:{k0}+bidirectional:{below}", n_hidden=1),
    "MASK3": PaperPlan(HIDES + "causal:{k}", n_hidden=3, is_fixed=True),
    "MASK5": PaperPlan(HIDES + "causal:{k}", n_hidden=5, is_fixed=True),
    "MASK7": PaperPlan(HIDES + "causal:{k}", n_hidden=7, is_fixed=True),
}
"""Every configuration of Look Both Ways, by its name there; blocks are counted from the top."""


def lbw_plan(name: str, k: int, *, k0: int | None = None, m: int | None = None) -> MaskPlan:
    """Make the plan of a configuration of Look Both Ways.

    Args:
        name: A name from `LBW_PLANS`; case does not matter.
        k: Converted blocks, counted from the top (the first `k` of a second stack for EXTRA, copies for EXTEND); with
            0 the decoder stays causal, except under MASK0-ALL, which hides the first token at every block.
        k0: For MASK0&BIDIR alone: how many of the `k` hide the first token, counted from the top; 0 to `k`.
        m: First tokens to hide, for the MASK0 configurations; 1 when absent.

    Returns:
        The plan, in canonical form. Whether it fits a decoder shows when its kinds are asked for.

    Raises:
        UnknownNameError: An unknown name, or a number that does not fit it.

    Example:
        >>> lbw_plan("MASK0&BIDIR", 18, k0=10).text
        'nosink-bidirectional:10+bidirectional:8'
        >>> lbw_plan("MASK5", 4).text
        'nosink5-causal:4'
    """
    row = LBW_PLANS.get(name.upper())
    if row is None:
        raise unknown_name("configuration of Look Both Ways", name, LBW_PLANS)
    if k < 0:
        raise UnknownNameError(f"{name} was given k = {k}; allowed: 0 to the number of blocks.")
    if row.needs_k0 != (k0 is not None) or not 0 <= (k0 or 0) <= k:
        allowed = f"0 to k = {k}" if row.needs_k0 else "none, it has no second number of blocks"
        raise UnknownNameError(f"{name} was given k0 = {k0}; allowed: {allowed}.")
    if m is not None and (m < 1 or row.is_fixed or not row.n_hidden):
        allowed = "1 or more" if row.n_hidden and not row.is_fixed else "none, its name says what is hidden"
        raise UnknownNameError(f"{name} was given m = {m}; allowed: {allowed}.")
    n_hidden = row.n_hidden if m is None else m
    return parse_plan(row.form.format(k=k, k0=k0, below=k - (k0 or 0), m=n_hidden))


def magnet_plan(k: int | None = None) -> MaskPlan:
    """Make the plan of MAGNET: its hybrid mask, whose spans are given with each text.

    Args:
        k: Blocks under the hybrid mask, counted from the top; every block, as in the paper, when absent.

    Returns:
        The plan. A text without spans is all context, hence bidirectional.

    Raises:
        UnknownNameError: A negative number of blocks.

    Example:
        >>> magnet_plan().text
        'hybrid'
    """
    if k is not None and k < 0:
        raise UnknownNameError(f"the hybrid plan was given k = {k}; allowed: 0 to the number of blocks.")
    return parse_plan("hybrid" if k is None else f"hybrid:{k}")
