"""Ways to break a mask plan on purpose, and whether the certificate sees them.

A mutation wraps what `extract.wiring.attention` does for one block, one head, one shape, or throughout. Some of them
change nothing on some families (a dropped soft cap on a family without one): those are harmless there and need not be
seen. `python -m tests.extract.wiring.mutations` prints the table of docs/masks.md, docs/tables/mutations.csv.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError, DecoderError
from extract.inputs.joined_text import CONTEXT
from extract.masks import mask_plan as plan_reader
from extract.masks.mask_plan import CAUSAL_KIND, KINDS, MaskKind, MaskPlan, Segment, parse_kind, parse_plan
from extract.masks.mask_rules import batch_mask
from extract.wiring import plan_wiring as applied
from extract.wiring.attention import Wiring, attend, mask_argument, wiring_of
from extract.wiring.certificate import check_batch_invariance, check_influence
from extract.wiring.plan_wiring import plan_in_force
from tests.extract.mask_families import drift, family_decoder, id_batch, random_ids, run_layers

FAMILIES = ("llama", "gpt2", "mistral", "gemma2", "gpt_oss", "granite")
PAST_INTERFACE = ("bloom", "gpt_neo")  # ALiBi; a causal triangle as a buffer
N_ROWS, N_TOKENS = 16, 24  # a large batch and a long row of the extraction that is certified
HARMLESS = 1e-3
"""Change of latents, relative to the largest value of the layer, above which a mutation must be caught."""

Mask = Tensor | str
MaskMethod = Callable[[Wiring, int, int | None], Mask]


@dataclass(frozen=True)
class Mutation:
    """One way to break a plan.

    Attributes:
        what: What is broken, in a few words.
        plan: The plan that is in force, of a decoder of three blocks.
        apply: Breaks it until the `with` block ends.
    """

    what: str
    plan: str
    apply: Callable[[], Any]


def _table(wiring: Wiring, mask: Mask) -> Tensor:
    """Write a shortcut out as a mask `(1 or B, 1, T, T)`."""
    if isinstance(mask, Tensor):
        return mask
    n_tokens = wiring.current.is_real.shape[1]
    full = torch.ones(1, 1, n_tokens, n_tokens, dtype=torch.bool)
    return {"none": full, "causal": full.tril(), "backward": full.triu()}[mask]


def _of_kind(wiring: Wiring, kind: str, window: int | None) -> Tensor:
    """Build the mask that another kind would have given."""
    batch, mask_kind = wiring.current, parse_kind(kind)
    spans = batch.spans if mask_kind.needs_spans else None
    return batch_mask(mask_kind, batch.is_real, spans=spans, window=window).unsqueeze(1)


@contextmanager
def masks(change: Callable[[Wiring, int, int | None, Mask], Mask]) -> Iterator[None]:
    """Change the mask that a block gets: `change(wiring, block, window, mask)`."""
    ask = Wiring.mask

    def changed(self: Wiring, block: int, window: int | None) -> Mask:
        return change(self, block, window, ask(self, block, window))

    with patch.object(Wiring, "mask", changed):
        yield


@contextmanager
def attention(change: Callable[..., Tensor]) -> Iterator[None]:
    """Change how attention is computed: `change(attend, query, key, value, how)`."""

    def changed(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
        return change(attend, query, key, value, how)

    with patch("extract.wiring.attention.attend", changed):
        yield


def kind_in(kind: str, *blocks: int) -> Callable[[], Any]:
    """Give some blocks, or all of them, another kind than planned; causal passes of the wiring stay as they are."""

    def change(wiring: Wiring, block: int, window: int | None, mask: Mask) -> Mask:
        is_meant = (not blocks or block in blocks) and _has_plan(wiring)
        return _of_kind(wiring, kind, window) if is_meant else mask

    return lambda: masks(change)


def _has_plan(wiring: Wiring) -> bool:
    return any(kind.name != "causal" for kind in wiring.plan.kinds)


def _is_converted(wiring: Wiring, block: int) -> bool:
    return wiring.plan.kinds[block].name != "causal"


def heads_causal(keep: int, blocks: tuple[int, ...]) -> Callable[[], Any]:
    """Leave heads of some blocks causal: the first `keep` when positive, all but the last `-keep` otherwise."""

    def change(wiring: Wiring, block: int, window: int | None, mask: Mask) -> Mask:
        if block not in blocks or not _is_converted(wiring, block):
            return mask
        table = _table(wiring, mask).repeat(1, 4, 1, 1)
        chosen = slice(None, keep) if keep > 0 else slice(None, 4 + keep)
        table[:, chosen] &= (
            _of_kind(wiring, "causal", window)[:1] if table.shape[0] == 1 else _of_kind(wiring, "causal", window)
        )
        return table

    return lambda: masks(change)


def where(test: Callable[[Wiring], bool], kind: str = "causal") -> Callable[[], Any]:
    """Fall back to another kind where a batch is of some shape."""

    def change(wiring: Wiring, block: int, window: int | None, mask: Mask) -> Mask:
        return _of_kind(wiring, kind, window) if _is_converted(wiring, block) and test(wiring) else mask

    return lambda: masks(change)


def edited(edit: Callable[[Wiring, int, Tensor], Tensor], *blocks: int) -> Callable[[], Any]:
    """Edit the mask of converted blocks, or of some of them."""

    def change(wiring: Wiring, block: int, _: int | None, mask: Mask) -> Mask:
        if not _is_converted(wiring, block) or (blocks and block not in blocks):
            return mask
        return edit(wiring, block, _table(wiring, mask).clone())

    return lambda: masks(change)


def windows(change: Callable[[int | None], int | None], *blocks: int) -> Callable[[], Any]:
    """Change the sliding window of blocks, of masked calls only."""
    ask = Wiring.mask

    def changed(self: Wiring, block: int, window: int | None) -> Mask:
        is_meant = _has_plan(self) and (not blocks or block in blocks)
        found = ask(self, block, change(window) if is_meant else window)
        self.windows[block] = window
        return found

    return lambda: patch.object(Wiring, "mask", changed)


def _looks_ahead(mask: Tensor | str) -> bool:
    """Whether a mask is not causal: under a causal one the wiring is checked first, and another way is taken."""
    return isinstance(mask, Tensor) and bool(mask.triu(1).any())


def without(option: str) -> Callable[[], Any]:
    """Drop an option of attention in masked calls only."""

    def change(attend: Any, query: Tensor, key: Tensor, value: Tensor, how: dict[str, Any]) -> Tensor:
        mixed: Tensor = attend(query, key, value, **({**how, option: None} if _looks_ahead(how["mask"]) else how))
        return mixed

    return lambda: attention(change)


def _other_heads(attend: Any, query: Tensor, key: Tensor, value: Tensor, how: dict[str, Any]) -> Tensor:
    """Repeat key heads in another order, in masked calls only."""
    if _looks_ahead(how["mask"]) and key.shape[1] < query.shape[1]:
        n = query.shape[1] // key.shape[1]
        key, value = key.repeat(1, n, 1, 1), value.repeat(1, n, 1, 1)
    mixed: Tensor = attend(query, key, value, **how)
    return mixed


def _soft(attend: Any, query: Tensor, key: Tensor, value: Tensor, how: dict[str, Any]) -> Tensor:
    """Hide by subtracting 4 instead of infinity."""
    if _looks_ahead(how["mask"]):
        how = {**how, "bias": (~how["mask"]).to(query.dtype) * -4.0}
    mixed: Tensor = attend(query, key, value, **how)
    return mixed


def _rows_shared(_: Wiring, __: int, mask: Tensor) -> Tensor:
    return mask[:1]


def _padding_seen(_: Wiring, __: int, mask: Tensor) -> Tensor:
    """Let every token see padding."""
    return mask | ~mask.any(-2, keepdim=True) | (mask.sum(-2, keepdim=True) == 1)


def _spans_as_context(wiring: Wiring, _: int, __: Tensor) -> Tensor:
    spans = torch.full(wiring.current.is_real.shape, CONTEXT)
    return batch_mask(parse_kind("hybrid"), wiring.current.is_real, spans=spans).unsqueeze(1)


def _spans_both_ways(wiring: Wiring, _: int, mask: Tensor) -> Tensor:
    spans = wiring.current.spans
    assert spans is not None
    own = (spans.unsqueeze(-1) == spans.unsqueeze(-2)) & (spans.unsqueeze(-1) != CONTEXT)
    return mask | own.unsqueeze(1)


def again_as(kind: str) -> Callable[[], Any]:
    """Run the blocks that an architecture runs again under another kind."""
    run = applied.Replay.run
    return lambda: patch.object(
        applied.Replay, "run", lambda self, index, hidden, _: run(self, index, hidden, parse_kind(kind))
    )


def mixer(strength: float) -> Callable[[], Any]:
    """Add to every block's output a causal mean over tokens that no mask reaches, as a hybrid family would."""

    @contextmanager
    def apply() -> Iterator[None]:
        hooks = []

        def mix(_: Any, __: Any, output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            counts = torch.arange(1, hidden.shape[1] + 1).reshape(1, -1, 1)
            changed = hidden + strength * hidden.cumsum(1) / counts
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        for name in (*FAMILIES, *PAST_INTERFACE):
            for block in family_decoder(name).blocks:
                mlp = next(part for child, part in block.named_children() if child in ("mlp", "feed_forward"))
                hooks.append(mlp.register_forward_hook(mix))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    return apply


def arguments(change: Callable[[Wiring, int, Tensor, Tensor, str], Tensor]) -> Callable[[], Any]:
    """Change what goes into the mask argument of converted blocks: `change(wiring, block, own, mask, family)`."""

    def changed(wiring: Wiring, block: int, own: Tensor, triangles: Any) -> Tensor:
        mask = mask_argument(wiring, block, own, triangles)
        return change(wiring, block, own, mask, wiring.family) if _is_converted(wiring, block) else mask

    return lambda: patch("extract.wiring.attention.mask_argument", changed)


def _without_alibi(_: Wiring, __: int, own: Tensor, mask: Tensor, family: str) -> Tensor:
    """Subtract what the family will add."""
    n_tokens = own.shape[-1]
    alibi = build_alibi_tensor(torch.ones(1, n_tokens), 4, mask.dtype).reshape(1, 4, 1, n_tokens)
    return mask - alibi if family == "bloom" else mask


def unless_watched(*blocks: int) -> Callable[[], Any]:
    """Let some blocks, or all, be causal in every forward pass of a decoder whose attention nobody watches."""

    @contextmanager
    def apply() -> Iterator[None]:
        unwatched: list[bool] = []
        with ExitStack() as stack:
            for name in (*FAMILIES, *PAST_INTERFACE):
                decoder = family_decoder(name)
                forward = decoder.module.forward

                def passing(*args: Any, decoder: Decoder = decoder, forward: Any = forward, **kwargs: Any) -> Any:
                    wiring = wiring_of(decoder.blocks)
                    unwatched.append(wiring is not None and wiring.watch is None)
                    try:
                        return forward(*args, **kwargs)
                    finally:
                        unwatched.pop()

                stack.enter_context(patch.object(decoder.module, "forward", passing))

            def change(wiring: Wiring, block: int, window: int | None, mask: Mask) -> Mask:
                is_meant = bool(unwatched) and unwatched[-1] and (not blocks or block in blocks)
                return _of_kind(wiring, "causal", window) if is_meant else mask

            stack.enter_context(masks(change))
            yield

    return apply


def rule(kind: str, wrong: Callable[[Tensor, Tensor, int, Tensor | None], Tensor]) -> Callable[[], Any]:
    """Put another rule in the place of a kind's own, wherever the library asks for it."""
    return lambda: patch.dict(KINDS, {kind: KINDS[kind]._replace(rule=wrong)})


def _previous_hidden(i: Tensor, j: Tensor, _: int, spans: Tensor | None) -> Tensor:
    """Hide from a span token the one before it in its span."""
    assert spans is not None
    of_query, of_key = spans.unsqueeze(-1), spans.unsqueeze(-2)
    return (of_key == CONTEXT) | ((of_query == of_key) & (j <= i) & (j != i - 1))


def _one_block_less(plan: MaskPlan, n_blocks: int) -> tuple[MaskKind, ...]:
    """Expand a plan with K read as K - 1."""
    kinds = list(EXPAND(plan, n_blocks))
    lowest = next((block for block, kind in enumerate(kinds) if kind != CAUSAL_KIND), None)
    if lowest is not None:
        kinds[lowest] = CAUSAL_KIND
    return tuple(kinds)


def _segment_less(part: str, text: str) -> Segment:
    """Read a count as one less."""
    segment = READ(part, text)
    return segment if segment.count is None else replace(segment, count=max(segment.count - 1, 1))


def rest_of(plan: str) -> Callable[[], Any]:
    """Put the architecture and tails of another plan in force."""
    rest = applied.rest_in_force
    other = parse_plan(plan)
    return lambda: patch.object(applied, "rest_in_force", lambda decoder, wiring, _: rest(decoder, wiring, other))


EXPAND, READ = MaskPlan.kinds, plan_reader._segment
NOSINK = "nosink-bidirectional:2"
MUTATIONS: tuple[Mutation, ...] = (
    Mutation("sink mask dropped on every converted block", NOSINK, kind_in("bidirectional", 1, 2)),
    Mutation("sink mask dropped on one block", NOSINK, kind_in("bidirectional", 2)),
    Mutation("one token more hidden", NOSINK, kind_in("nosink2-bidirectional", 1, 2)),
    Mutation("one token more hidden on one block", NOSINK, kind_in("nosink2-bidirectional", 1)),
    Mutation("one token fewer hidden", "nosink3-bidirectional:2", kind_in("nosink2-bidirectional", 1, 2)),
    Mutation("sink mask dropped of a causal kind", "nosink-causal", kind_in("causal")),
    Mutation("the top block left causal", "bidirectional:2", kind_in("causal", 2)),
    Mutation("the lowest converted block left causal", "bidirectional:2", kind_in("causal", 1)),
    Mutation("every block but the lowest left causal", "bidirectional", kind_in("causal", 1, 2)),
    Mutation("a block converted below the plan", "bidirectional:1", kind_in("bidirectional", 1, 2)),
    Mutation("one head of one block left causal", "bidirectional:2", heads_causal(1, (2,))),
    Mutation("all heads but one of the top block left causal", NOSINK, heads_causal(-1, (2,))),
    Mutation("one head of every block left causal", "bidirectional", heads_causal(1, (0, 1, 2))),
    Mutation("backward off by one", "backward:2", edited(lambda _, __, mask: mask | mask.roll(-1, -1).tril(-1))),
    Mutation("the last token hidden", "bidirectional:2", edited(lambda _, __, mask: _hide(mask, -1))),
    Mutation("mask transposed", NOSINK, edited(lambda _, __, mask: mask.transpose(-1, -2))),
    Mutation("mask transposed in one block", "backward:2", edited(lambda _, __, mask: mask.transpose(-1, -2), 1)),
    Mutation("window lost in one block", "bidirectional", windows(lambda _: None, 2)),
    Mutation("window lost in every block", "bidirectional", windows(lambda _: None)),
    Mutation("window off by one in one block", "bidirectional", windows(lambda w: w and w + 1, 0)),
    Mutation("window one short in every block", NOSINK, windows(lambda w: w and w - 1)),
    Mutation("causal in rows of more than nine tokens", NOSINK, where(lambda w: _shape(w)[1] > 9)),
    Mutation("causal in batches of more than nine rows", NOSINK, where(lambda w: _shape(w)[0] > 9)),
    Mutation("sink seen in rows of more than 20 tokens", NOSINK, where(lambda w: _shape(w)[1] > 20, "bidirectional")),
    Mutation("causal in padded batches", NOSINK, where(lambda w: w.current.is_padded)),
    Mutation("causal in unpadded batches", NOSINK, where(lambda w: not w.current.is_padded)),
    Mutation("scale dropped in masked calls", NOSINK, without("scaling")),
    Mutation("soft cap dropped in masked calls", NOSINK, without("softcap")),
    Mutation("learned sinks dropped in masked calls", NOSINK, without("sinks")),
    Mutation("key heads repeated in another order in masked calls", NOSINK, lambda: attention(_other_heads)),
    Mutation("hidden tokens faded, not hidden", NOSINK, lambda: attention(_soft)),
    Mutation("padding attended to", NOSINK, edited(_padding_seen)),
    Mutation("one row's mask for every row of a padded batch", NOSINK, edited(_rows_shared)),
    Mutation("spans taken for context", "hybrid:2", edited(_spans_as_context)),
    Mutation("spans seen both ways", "hybrid:2", edited(_spans_both_ways)),
    Mutation("a second stack left causal", "extra/bidirectional:2", again_as("causal")),
    Mutation("blocks run again with the sink", "inter-block/nosink-bidirectional:2", again_as("bidirectional")),
    Mutation("tokens mixed beside attention", "bidirectional", mixer(0.1)),
    Mutation("causal unless watched", "bidirectional:2", unless_watched()),
    Mutation("one block causal unless watched", NOSINK, unless_watched(2)),
    Mutation(
        "a rule that shows hidden tokens to each other",
        "nosink3-bidirectional:2",
        rule("nosink-bidirectional", lambda i, j, n, _: (j >= n) | (i < n)),
    ),
    Mutation(
        "a rule that hides one token fewer",
        "nosink4-bidirectional:2",
        rule("nosink-bidirectional", lambda i, j, n, _: (j >= n - 1) | (j >= i)),
    ),
    Mutation("a rule that hides a span token from the next", "hybrid:2", rule("hybrid", _previous_hidden)),
    Mutation("a rule that looks one token back", "backward:2", rule("backward", lambda i, j, *_: j >= i - 1)),
    Mutation("K blocks expanded as K - 1", "bidirectional:2", lambda: patch.object(MaskPlan, "kinds", _one_block_less)),
    Mutation("K read as K - 1", "bidirectional:2", lambda: patch.object(plan_reader, "_segment", _segment_less)),
    Mutation("one block fewer run again", "extend/bidirectional:2", rest_of("extend/bidirectional:1")),
    Mutation("a second stack one block short", "extra/bidirectional:2", rest_of("extra/bidirectional:1")),
    Mutation("a placeholder copied in the first block alone", "causal~tp1-3", rest_of("causal~tp1-1")),
    Mutation("a placeholder copied one block too few", "causal~tp1-3", rest_of("causal~tp1-2")),
    Mutation("a placeholder copied one block too many", "causal~tp1-2", rest_of("causal~tp1-3")),
    Mutation("the last key prepended one block too few", "causal~kv1-3", rest_of("causal~kv1-2")),
)
ARGUMENT_MUTATIONS = (
    Mutation(
        "mask argument of one block not replaced", NOSINK, arguments(lambda _, b, own, m, __: own if b == 2 else m)
    ),
    Mutation("ALiBi dropped in masked calls", NOSINK, arguments(_without_alibi)),
    Mutation("mask argument faded, not hidden", NOSINK, arguments(lambda _, __, ___, m, ____: m.clamp(min=-4))),
    Mutation(
        "triangle of a buffer left closed",
        "bidirectional:2",
        lambda: patch("extract.wiring.attention._triangles", _none),
    ),
)


def _none(_: object) -> tuple[()]:
    return ()


def _hide(mask: Tensor, column: int) -> Tensor:
    mask[..., column] = torch.eye(mask.shape[-1], dtype=torch.bool)[:, column]
    return mask


def _shape(wiring: Wiring) -> tuple[int, ...]:
    return wiring.current.shape


def change_of(mutation: Mutation, family: str) -> float:
    """Measure how much a mutation changes the hidden states of real tokens, in unpadded and padded batches."""
    decoder, worst = family_decoder(family), 0.0
    for lengths in ((N_TOKENS,) * N_ROWS, (N_TOKENS, 7, 15, 3)):
        rows = random_ids(*lengths)
        spans = [[CONTEXT] * 2 + [0] * 3 + [CONTEXT] * (n - 5) if n > 5 else [CONTEXT] * n for n in lengths]
        plan, batch = parse_plan(mutation.plan), id_batch(rows, spans=spans)
        if plan.prepend is not None:
            batch = replace(batch, placeholder=torch.zeros(len(rows), dtype=torch.long))
        with plan_in_force(decoder, plan):
            right = run_layers(decoder, batch)
        with mutation.apply(), plan_in_force(decoder, parse_plan(mutation.plan)):  # or wired another way
            wrong = run_layers(decoder, batch)
        worst = max(worst, drift(wrong[:, batch.is_real], right[:, batch.is_real]))
    return worst


def certify(decoder: Decoder, plan: str) -> None:
    """Make the whole certificate of an extraction."""
    parsed = parse_plan(plan)
    with plan_in_force(decoder, parsed):
        check_influence(decoder, parsed, n_rows=N_ROWS, n_tokens=N_TOKENS)
        check_batch_invariance(decoder)


def is_caught(mutation: Mutation, family: str) -> bool:
    """Whether the certificate refuses the mutated plan."""
    try:
        with mutation.apply():
            certify(family_decoder(family), mutation.plan)
    except (CertificateError, DecoderError):
        return True
    return False


@cache
def outcome(mutation: Mutation, family: str) -> str:
    """Name what became of a mutation: `caught`, `harmless` or `MISSED`."""
    if is_caught(mutation, family):
        return "caught"
    return "harmless" if change_of(mutation, family) <= HARMLESS else "MISSED"


def table() -> str:
    """Write docs/tables/mutations.csv, the table of docs/masks.md."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["what is broken", "plan", *FAMILIES])
    for mutation in MUTATIONS:
        rows.writerow([mutation.what, mutation.plan, *(outcome(mutation, family) for family in FAMILIES)])
    return text.getvalue()


if __name__ == "__main__":
    sys.stdout.write(table())
