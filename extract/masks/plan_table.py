"""The tables of plans and architectures, each row with its name in the papers."""

ARCHITECTURES = {
    "inplace": "masks are swapped, nothing else (LBW INPLACE)",
    "extend": "K copies of the last block, converted, on top (LBW EXTEND)",
    "extra": "plus the output of a second stack: the first K blocks, converted, from the embeddings (LBW EXTRA)",
    "inter-stack": "the top K blocks run twice from one input, causal and converted, summed on top (LBW INTER, code)",
    "inter-block": "each of the top K blocks runs causal and converted, summed at each (LBW INTER, text)",
}
FORMS = "'causal', 'KIND', 'KIND:K', 'KIND:K+KIND:K', 'KIND:K+KIND', 'KIND@A-B', '[KIND,KIND,...]'"
PLANS = {
    "causal": "token i attends to j <= i at every block: the decoder as it was trained",
    "backward:K": "the top K blocks attend to j >= i (LBW INPLACE-BACK)",
    "bidirectional:K": "the top K blocks attend everywhere (LBW INPLACE-BIDIR)",
    "nosink-causal:K": "the top K blocks are causal and hide the first token from later ones (LBW MASK0-FOR)",
    "nosink3-causal:K": "the same, hiding the first 3 tokens (LBW MASK3; 5 and 7 likewise)",
    "nosink-bidirectional:K": "the top K blocks attend everywhere but to the first token (LBW MASK0-BIDIR)",
    "nosink-bidirectional:K+nosink-causal": "every block hides the first token, the top K see ahead (LBW MASK0-ALL)",
    "nosink-bidirectional:K0+bidirectional:K-K0": "the top K0, then bidirectional down to K (LBW MASK0&BIDIR)",
    "hybrid": "context sees context; spans given per text see it and, causally, themselves (MAGNET)",
    "KIND@A-B": "blocks A to B from the bottom, for reading below the top",
    "[KIND,KIND,...]": "every block by itself, from the bottom up",
    **{f"{name}/KIND:K": text for name, text in ARCHITECTURES.items() if name != "inplace"},
    "PLAN~skipN@I": "any plan, an earlier hidden state re-added every N blocks after the first I (LBW, code)",
}
