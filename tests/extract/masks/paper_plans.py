"""The configurations of Look Both Ways by their names there, as plans."""

from extract.masks.mask_plan import MaskPlan, parse_plan

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
"""`{below}` stands for `k - k0`, and `{m}` for the number of hidden tokens, 1 as the paper has it."""


def lbw_plan(name: str, k: int, *, k0: int = 0) -> MaskPlan:
    """Make the plan of a configuration with `k` converted blocks; of MASK0&BIDIR `k0` hide the first token."""
    return parse_plan(LBW_PLANS[name].format(k=k, k0=k0, below=k - k0, m=1))
