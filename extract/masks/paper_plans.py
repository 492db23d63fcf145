"""Mask plans by the names they have in the papers."""

from dataclasses import replace

from extract.errors import UnknownNameError, unknown_name
from extract.masks.plan import MaskPlan, parse_plan

LBW_PLANS = {
    "INPLACE-BACK": "backward:{k}",
    "INPLACE-BIDIR": "bidirectional:{k}",
    "INTER-BACK": "inter-stack/backward:{k}",  # as the released code adds: once, on top
    "INTER-BIDIR": "inter-stack/bidirectional:{k}",
    "INTER-BACK-TEXT": "inter-block/backward:{k}",  # as the paper's text adds: block by block
    "INTER-BIDIR-TEXT": "inter-block/bidirectional:{k}",
    "EXTRA-BACK": "extra/backward:{k}",
    "EXTRA-BIDIR": "extra/bidirectional:{k}",
    "EXTEND-BACK": "extend/backward:{k}",
    "EXTEND-BIDIR": "extend/bidirectional:{k}",
    "MASK0-FOR": "nosink{m}-causal:{k}",
    "MASK0-BIDIR": "nosink{m}-bidirectional:{k}",
    "MASK0-ALL": "nosink{m}-bidirectional:{k}+nosink{m}-causal",
    "MASK0&BIDIR": "nosink{m}-bidirectional:{k0}+bidirectional:{below}",
    "MASK3": "nosink4-bidirectional:{k}",  # named by the last hidden position
    "MASK5": "nosink6-bidirectional:{k}",
    "MASK7": "nosink8-bidirectional:{k}",
}
"""Every configuration of Look Both Ways, by its name there, with `{k}`, `{k0}`, `{below}` for `k - k0`, and `{m}` where
the number of hidden tokens may be chosen; blocks are counted from the top."""


def lbw_plan(name: str, k: int, *, k0: int | None = None, m: int | None = None, skip: int | None = None) -> MaskPlan:
    """Make the plan of a configuration of Look Both Ways.

    Args:
        name: A name from `LBW_PLANS`; case does not matter.
        k: Converted blocks, counted from the top (the first `k` of a second stack for EXTRA, copies for EXTEND); with
            0 the decoder stays causal, except under MASK0-ALL, which hides the first token at every block.
        k0: For MASK0&BIDIR alone: how many of the `k` hide the first token, counted from the top; 0 to `k`.
        m: First tokens to hide, for the MASK0 configurations; 1 when absent.
        skip: Stride of the extra skip of the released code (`res_connect`, 3 there); none when absent. It begins at the
            block whose position from 0 is the *number* of backward or nosink blocks, as released.

    Raises:
        UnknownNameError: An unknown name, or a number that does not fit it.

    Example:
        >>> lbw_plan("MASK0&BIDIR", 18, k0=10).text
        'nosink-bidirectional:10+bidirectional:8'
        >>> lbw_plan("MASK5", 4).text
        'nosink6-bidirectional:4'
        >>> lbw_plan("MASK0-BIDIR", 10, skip=3).text
        'nosink-bidirectional:10~skip3@10'
    """
    form = LBW_PLANS.get(name.upper())
    if form is None:
        raise unknown_name("configuration of Look Both Ways", name, LBW_PLANS)
    if k < 0:
        raise UnknownNameError(f"{name} was given k = {k}; allowed: 0 to the number of blocks.")
    if ("{k0}" in form) != (k0 is not None) or not 0 <= (k0 or 0) <= k:
        allowed = f"0 to k = {k}" if "{k0}" in form else "none, it has no second number of blocks"
        raise UnknownNameError(f"{name} was given k0 = {k0}; allowed: {allowed}.")
    if m is not None and (m < 1 or "{m}" not in form):
        allowed = "1 or more" if "{m}" in form else "none, its name says what is hidden"
        raise UnknownNameError(f"{name} was given m = {m}; allowed: {allowed}.")
    if skip is not None and (skip < 1 or name.upper() == "MASK0-ALL"):
        allowed = "none, the released code has no such configuration" if skip > 0 else "1 or more"
        raise UnknownNameError(f"{name} was given skip = {skip}; allowed: {allowed}.")
    plan = parse_plan(form.format(k=k, k0=k0, below=k - (k0 or 0), m=1 if m is None else m))
    if skip is None:
        return plan
    n_counted = k if k0 is None else k0  # the released code counts `num_unsink_layers`, and not `num_bidir_layers`
    return replace(plan, skip=(skip, 0 if "/bidirectional" in f"/{form}" else n_counted))


def magnet_plan(k: int | None = None) -> MaskPlan:
    """Make the plan of MAGNET: its hybrid mask, whose spans are given with each text.

    The hybrid mask is on the top `k` blocks; on every block, as in the paper, when `k` is absent. A text without spans
    is all context, hence bidirectional.

    Raises:
        UnknownNameError: A negative number of blocks.

    Example:
        >>> magnet_plan().text
        'hybrid'
    """
    if k is not None and k < 0:
        raise UnknownNameError(f"the hybrid plan was given k = {k}; allowed: 0 to the number of blocks.")
    return parse_plan("hybrid" if k is None else f"hybrid:{k}")
