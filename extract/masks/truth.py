"""What masks and plans must be, stated a second time and by hand: the source of every certificate.

Nothing here is read from `mask_rules` or `mask_plan`: a certificate that asked the implementation's own
rule or reader would prove every mistake that the two share. `TABLES` and `PLANS_BY_BLOCK` are typed, cell by cell and
block by block; `visible_keys` and `literal_plan` continue them to texts of any length and plans of any depth.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from extract.errors import CertificateError
from extract.inputs.joined_text import CONTEXT
from extract.masks.mask_plan import SHIPPED, MaskPlan, parse_kind, parse_plan
from extract.masks.mask_rules import batch_mask, kind_matrix

TABLES: dict[tuple[str, int | None], str] = {
    ("causal", None): "1....... .1...... .11..... .111.... .1111... .11111.. .111111. .......1",
    ("causal", 3): "1....... .1...... .11..... .111.... ..111... ...111.. ....111. .......1",
    ("backward", None): "1....... .111111. ..11111. ...1111. ....111. .....11. ......1. .......1",
    ("bidirectional", None): "1....... .111111. .111111. .111111. .111111. .111111. .111111. .......1",
    ("bidirectional", 2): "1....... .11..... .111.... ..111... ...111.. ....111. .....11. .......1",
    ("nosink-causal", None): "1....... .1...... ..1..... ..11.... ..111... ..1111.. ..11111. .......1",
    ("nosink2-causal", None): "1....... .1...... ..1..... ...1.... ...11... ...111.. ...1111. .......1",
    ("nosink3-causal", None): "1....... .1...... ..1..... ...1.... ....1... ....11.. ....111. .......1",
    ("nosink4-causal", None): "1....... .1...... ..1..... ...1.... ....1... .....1.. .....11. .......1",
    ("nosink-bidirectional", None): "1....... .111111. ..11111. ..11111. ..11111. ..11111. ..11111. .......1",
    ("nosink2-bidirectional", None): "1....... .111111. ..11111. ...1111. ...1111. ...1111. ...1111. .......1",
    ("nosink3-bidirectional", None): "1....... .111111. ..11111. ...1111. ....111. ....111. ....111. .......1",
    ("nosink4-bidirectional", None): "1....... .111111. ..11111. ...1111. ....111. .....11. .....11. .......1",
    ("nosink6-bidirectional", None): "1....... .111111. ..11111. ...1111. ....111. .....11. ......1. .......1",
    ("hybrid", None): "1....... .1..1... .11.1... .1111... .1..1... .1..11.. .1..111. .......1",
    ("local", None): "1....... .11..... .111.... ..111... ...111.. ....111. .....11. .......1",
    ("local2", None): "1....... .111.... .1111... .11111.. ..11111. ...1111. ....111. .......1",
}
"""By kind and sliding window: six tokens with a column of padding on either side, a word per query from the top. In
`hybrid` the second and third token are a span, the fifth and sixth another."""
TABLE_SPANS = (CONTEXT, CONTEXT, 0, 0, CONTEXT, 1, 1, CONTEXT)
PLANS_BY_BLOCK = {
    "causal": "causal causal causal causal",
    "backward": "backward backward backward backward",
    "backward:1": "causal causal causal backward",
    "bidirectional:2": "causal causal bidirectional bidirectional",
    "bidirectional:3": "causal bidirectional bidirectional bidirectional",
    "bidirectional:4": "bidirectional bidirectional bidirectional bidirectional",
    "nosink4-bidirectional:2": "causal causal nosink4-bidirectional nosink4-bidirectional",
    "nosink-bidirectional:1+nosink-causal": "nosink-causal nosink-causal nosink-causal nosink-bidirectional",
    "nosink-bidirectional:1+bidirectional:2": "causal bidirectional bidirectional nosink-bidirectional",
    "causal:1+hybrid:2": "causal hybrid hybrid causal",
    "backward@2-3": "causal backward backward causal",
    "backward@1-1+local8@3-4": "backward causal local8 local8",
    "[causal,backward,causal,nosink3-causal]": "causal backward causal nosink3-causal",
    "extend/backward:2": "causal causal causal causal + backward@4 backward@4",
    "extra/backward:2": "causal causal causal causal + backward@1 backward@2",
    "inter-stack/backward:2": "causal causal causal causal + backward@3 backward@4",
    "inter-block/backward:2": "causal causal causal causal + backward@3 backward@4",
    "causal~tp1-3": "causal causal causal causal + tp@1 tp@2 tp@3",
    "backward:1~kv2-3": "causal causal causal backward + kv@2 kv@3",
}
"""Kinds of four blocks, from the bottom up; after a plus, what runs again or is done, and in which block, from 1."""


@dataclass(frozen=True)
class LiteralPlan:
    """A plan, read by `literal_plan`; kinds are texts, and blocks count from 0."""

    kinds: tuple[str, ...]
    """Mask kind of every block, from the bottom up."""
    architecture: str = "inplace"
    kind: str = "causal"
    """Kind of the blocks that run again."""
    again: tuple[int, ...] = ()
    """Blocks that run again, in their order."""
    prepend: range | None = None
    """Blocks after which a placeholder takes the last token's state; None without a placeholder."""
    prefix: range = range(0)
    """Blocks in which every token sees the last one's key and value once more."""

    @property
    def runs(self) -> list[tuple[int, bool]]:
        """Every run of a block, in order: its position from 0, and whether it runs again."""
        runs = [(block, False) for block in range(len(self.kinds))]
        if self.architecture != "inter-block":
            return [*runs, *((block, True) for block in self.again)]
        return sorted([*runs, *((block, True) for block in self.again)])

    def kind_of(self, block: int, *, is_again: bool) -> str:
        """Return the kind of a block, or that of its second run."""
        return self.kind if is_again else self.kinds[block]


def literal_plan(text: str, n_blocks: int) -> LiteralPlan:
    """Read the text of a valid plan without the library's reader."""
    head, *tails = "".join(text.split()).split("~")
    tasks: dict[str, range] = {}
    for tail in tails:
        if tail[:2] in ("tp", "kv"):
            first, last = tail[2:].partition("@")[0].split("-")
            tasks[tail[:2]] = range(int(first) - 1, int(last))
    causal = ("causal",) * n_blocks
    name, slash, rest = head.partition("/")
    if slash and name != "inplace":
        kind, _, count = rest.rpartition(":")
        k = int(count)
        positions = {
            "extend": [n_blocks - 1] * k,
            "extra": list(range(k)),
            "inter-stack": list(range(n_blocks - k, n_blocks)),
            "inter-block": list(range(n_blocks - k, n_blocks)),
        }
        return LiteralPlan(causal, name, kind, tuple(positions[name])) if k else LiteralPlan(causal)
    head = rest if slash else head
    if head.startswith("["):
        kinds = head[1:-1].split(",")
    elif "@" in head:
        kinds = list(causal)
        for part in head.split("+"):
            kind, _, window = part.rpartition("@")
            lowest, highest = map(int, window.split("-"))
            kinds[lowest - 1 : highest] = [kind] * (highest - lowest + 1)
    else:
        kinds = []  # from the top down
        for part in head.split("+"):
            kind, _, count = part.rpartition(":")
            kinds += [kind] * int(count) if count.isdigit() else [part] * (n_blocks - len(kinds))
        kinds = (kinds + ["causal"] * (n_blocks - len(kinds)))[::-1]
    return LiteralPlan(tuple(kinds), prepend=tasks.get("tp"), prefix=tasks.get("kv", range(0)))


def visible_keys(kind: str, query: int, n_tokens: int, spans: Sequence[int]) -> set[int] | None:
    """Return the tokens that a token attends to under a kind of the library; None for a kind that a user registered."""
    up_to, onwards, everything = range(query + 1), range(query, n_tokens), range(n_tokens)
    if kind in ("causal", "backward", "bidirectional"):
        return set({"causal": up_to, "backward": onwards, "bidirectional": everything}[kind])
    if kind == "hybrid":
        context = {key for key in everything if spans[key] == CONTEXT}
        return context | {key for key in up_to if spans[key] == spans[query]} if spans[query] != CONTEXT else context
    name = re.fullmatch(r"(nosink|local)(\d*)(-causal|-bidirectional|)", kind)
    if name is None or name[1] + name[3] not in SHIPPED:
        return None
    n = int(name[2] or 1)
    if name[1] == "local":
        return set(range(max(query - n, 0), min(query + n + 1, n_tokens)))
    if name[3] == "-causal":
        return {query, *range(n, query + 1)}
    return set(onwards if query < n else range(n, n_tokens))


def literal_mask(
    kind: str, n_tokens: int, *, window: int | None, spans: Int[Tensor, " T"], queries: Sequence[int] | None = None
) -> Bool[Tensor, "Q T"]:
    """Build the mask of an unpadded row, or some rows of it; a user's kind has no second statement than its rule."""
    rows = range(n_tokens) if queries is None else queries
    numbers = spans.tolist()
    if visible_keys(kind, 0, n_tokens, numbers) is None:
        mask = kind_matrix(parse_kind(kind), n_tokens, spans=spans)[list(rows)]
    else:
        cells = np.zeros((len(rows), n_tokens), bool)
        for seen, query in zip(cells, rows, strict=True):
            seen[list(visible_keys(kind, query, n_tokens, numbers) or ())] = True
        mask = torch.from_numpy(cells)
    for row, query in enumerate(rows if window is not None else ()):
        mask[row, : max(query - (window or 0) + 1, 0)] = False
        mask[row, query + (window or 0) :] = False
    return mask


def table_of(drawing: str) -> Bool[Tensor, "T T"]:
    """Read a drawing of `TABLES`."""
    return torch.tensor([[cell == "1" for cell in row] for row in drawing.split()])


def require_truth() -> None:
    """Check the library's rules and its reader of plans against what was written by hand."""
    is_real = torch.tensor([[False] + [True] * 6 + [False]])
    for (kind, window), drawing in TABLES.items():
        rule = batch_mask(parse_kind(kind), is_real, spans=torch.tensor([TABLE_SPANS]), window=window)[0]
        wrong = (rule ^ table_of(drawing)).nonzero()
        if len(wrong):
            i, j = wrong[0].tolist()
            verb = "shows" if rule[i, j] else "hides"
            raise CertificateError(
                f"the mask rule of {kind!r} is wrong: in a row of six tokens between padding it {verb} column {j} to "
                f"column {i}, unlike the truth table. Nothing is extracted with it; install icecore again."
            )
    for text, blocks in PLANS_BY_BLOCK.items():
        require_read(text, blocks)


def require_reading(text: str, n_blocks: int) -> None:
    """Check that a plan as a user wrote it has the meaning of the text that it is stored under (`CertificateError`)."""
    stored = parse_plan(text).text
    written, read = (literal_plan(form, n_blocks) for form in (text, stored))
    kinds = [tuple(parse_kind(kind).text for kind in (*plan.kinds, plan.kind)) for plan in (written, read)]
    if kinds[0] != kinds[1] or replace(written, kinds=(), kind="") != replace(read, kinds=(), kind=""):
        raise CertificateError(
            f"the plan {text!r} is read wrongly, as {stored!r}: over {n_blocks} blocks they differ. Nothing is "
            "extracted under it; install icecore again."
        )


def require_read(text: str, blocks: str) -> None:
    """Check how the library reads one plan for four blocks (`CertificateError`)."""
    plan = parse_plan(text)
    read = " ".join(map(str, plan.kinds(4)))
    kind, k = plan.converted
    if plan.architecture != "inplace":
        first = {"extra": 1, "extend": 4}.get(plan.architecture, 5 - k)
        step = plan.architecture != "extend"
        read += " + " + " ".join(f"{kind}@{first + index * step}" for index in range(k))
    for name, span in (("tp", plan.prepend), ("kv", plan.prefix)):
        read += "" if span is None else " + " + " ".join(f"{name}@{at}" for at in range(span[0], span[1] + 1))
    if read != blocks or plan.text != text:
        raise CertificateError(
            f"the plan {text!r} is read wrongly: of four blocks it makes {read!r}, not {blocks!r}. Nothing is "
            "extracted under plans; install icecore again."
        )


def expected_reach(
    plan: MaskPlan,
    n_blocks: int,
    n_tokens: int,
    *,
    windows: Sequence[int | None],
    spans: Int[Tensor, " T"] | None = None,
    placeholder: int | None = None,
) -> Bool[Tensor, "L T T"]:
    """Work out which input positions may influence which outputs of every layer, from the embedding to the final norm.

    A block passes on what it received (the residual) and what it attends to, so reach is the product of the masks of
    its blocks, each with a true diagonal. The row is unpadded; `windows` are the sliding windows per block, in
    tokens; the hybrid mask needs `spans`. The placeholder of a plan that prepends one is at the column `placeholder`.
    """
    literal = literal_plan(plan.text, n_blocks)
    row_spans = torch.full((n_tokens,), CONTEXT) if spans is None else spans

    def step(reach: Tensor, kind: str, block: int) -> Tensor:
        mask = literal_mask(kind, n_tokens, window=windows[block], spans=row_spans)
        if block in literal.prefix:
            mask[:, -1] = True
        passed: Tensor = (mask.float() @ reach.float()) > 0
        return passed | reach

    def climb(reach: Tensor, blocks: Iterable[int], kind: str) -> Tensor:
        for block in blocks:
            reach = step(reach, kind, block)
        return reach

    layers = [torch.eye(n_tokens, dtype=torch.bool)]
    if placeholder is not None:
        layers[0][placeholder] = False  # a random state depends on no token
    for block, kind in enumerate(literal.kinds):
        layers.append(step(layers[-1], kind, block))
        if placeholder is not None and block in (literal.prepend or ()):
            layers[-1][placeholder] = layers[-1][-1]
        if literal.architecture == "inter-block" and block in literal.again:
            layers[-1] |= step(layers[-2], literal.kind, block)
    if literal.architecture == "extend":
        layers[-1] = climb(layers[-1], literal.again, literal.kind)
    elif literal.architecture in ("extra", "inter-stack"):
        layers[-1] |= climb(layers[literal.again[0]], literal.again, literal.kind)
    layers.append(layers[-1])
    return torch.stack(layers)
