"""Certificates: proof, stored in every cache, that masks, batches and weights behaved as promised."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from extract.decoders.decoder import Decoder, changed
from extract.errors import CertificateError
from extract.inputs.batches import Batch, Side, collate
from extract.masks.mask_plan import CAUSAL_KIND, MaskKind, MaskPlan, parse_kind
from extract.masks.truth import LiteralPlan, expected_reach, literal_mask, literal_plan, require_truth
from extract.wiring.attention import (
    HIDDEN,
    AttentionCall,
    Run,
    ScoreWatch,
    Watch,
    Wiring,
    only_causal,
    require_attention,
    wired_attention,
    wiring_of,
)
from extract.wiring.plan_wiring import (
    DRIFT_ALLOWED,
    INFLUENCE_TOKENS,
    Visit,
    changing_input,
    encode_ids,
    has_experts,
    hidden_states,
    in_float32,
    layer_drift,
    plain_batch,
    probe_ids,
    probe_spans,
    run_batch,
    seeing_output,
    short_windows,
    vocabulary_size,
)
from extract.wiring.states import Pooler, pool_batch

# --- Every block by itself, on rows that differ at one token each, all in one forward pass ---

N_TOKENS = 8
MOVED = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}
"""Smallest change that counts, relative to a token's largest value."""
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 5e-3}
"""Of attention, relative to a head's largest value."""
WHERE = (0, 1, 2, 3, 5, 8, 13)
"""Tokens that are checked in long rows, counted from either end."""


Enter = Callable[[int, bool, Tensor], Tensor]
"""Receives a block's position, whether it runs again, and its input, before it runs; returns the input to use."""


ITSELF = MaskKind("nosink-causal", N_TOKENS)
"""Under which each of at most `N_TOKENS` tokens sees itself alone."""


@dataclass(frozen=True)
class Claim:
    """What is to be proved: that a plan is in force on a decoder."""

    decoder: Decoder
    plan: MaskPlan

    @cached_property
    def literal(self) -> LiteralPlan:
        """The plan as its text reads."""
        return literal_plan(self.plan.text, len(self.decoder.blocks))

    def refute(self, problem: str) -> CertificateError:
        """Build the error for a plan that is not in force."""
        return CertificateError(
            f"the plan {self.plan.text!r} did not take effect{problem}. The family "
            f"{self.decoder.description.family!r} cannot be extracted under this plan."
        )

    def refute_block(self, call: "BlockCall", problem: str) -> CertificateError:
        """Build the error for a block whose mask is not the plan's."""
        return self.refute(f" in block {call.block + 1}, planned as {self.kind_of(call)!r}: {problem}")

    def kind_of(self, call: "BlockCall") -> str:
        """Return the kind that the plan has for a run of a block."""
        return self.literal.kind_of(call.block, is_again=call.is_again)


def first_difference(
    seen: Bool[Tensor, "*N"], allowed: Bool[Tensor, "*M"], *, required: Bool[Tensor, "*M"] | None = None
) -> tuple[str, list[int]] | None:
    """Find where tokens depend on more than is allowed, or on less than is required: a verb, and the first place."""
    required = allowed if required is None else required
    for wrong, verb in ((seen & ~allowed, "depends on"), (required & ~seen, "ignores")):
        if len(places := wrong.nonzero()):
            return verb, places[0].tolist()
    return None


@dataclass(eq=False)
class BlockCall:
    """One run of one block, observed by itself."""

    block: int
    """Its position, from 0."""
    is_again: bool
    """Whether the plan's architecture runs it a second time."""
    entered: Tensor
    """`(B, T, D)`, its input."""
    attention: list[AttentionCall] = field(default_factory=list)
    moved: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    """`(T, T)` bool, true at `[i, j]` where the output at token `i` changed with token `j`."""
    scores: list[Tensor] = field(default_factory=list)
    """Inputs of the softmax of its attention, `(B, heads, T, T)`, where masks go into arguments."""

    def measured(self, dtype: str) -> Bool[Tensor, "T T"]:
        """Measure the block's mask: whether attention at token `i`, or else the output, changed with token `j`."""
        if not self.attention:
            return self.moved
        return torch.stack([moved_tokens(call.mixed, dtype).any(-1) for call in self.attention]).any(0)


def look_at_blocks(
    decoder: Decoder,
    wiring: Wiring,
    *,
    n_tokens: int = N_TOKENS,
    holds_attention: bool = False,
    inputs: Sequence[Tensor] = (),
) -> list[BlockCall]:
    """Run every block of a wired decoder on rows that differ at one token each, in the order the plan runs them.

    `holds_attention` gives every row the attention of the first, so that only other mixing of tokens shows. `inputs`
    are those of the runs, where they must not depend on the blocks below.
    """
    calls: list[BlockCall] = []
    dtype = decoder.description.dtype

    def enter(block: int, is_again: bool, hidden: Tensor) -> Tensor:
        varied = inputs[len(calls)] if inputs else _varied(hidden, seed=block)
        calls.append(BlockCall(block, is_again, varied))
        return varied

    def leave(hidden: Tensor) -> None:
        calls[-1].moved = moved_tokens(hidden.unsqueeze(2), dtype).squeeze(-1)

    def watch(_: int, call: AttentionCall) -> Tensor | None:
        calls[-1].attention.append(call)
        return call.mixed[:1].expand_as(call.mixed) if holds_attention else None

    n_tokens = min(n_tokens, decoder.description.window)
    batch = plain_batch(probe_ids(decoder, n_tokens, seed=0).repeat(n_tokens + 1, 1), spans=probe_spans(n_tokens))

    def see(scores: Tensor) -> None:
        calls[-1].scores.append(scores.cpu())

    run_apart(decoder, wiring, batch, enter=enter, leave=leave, watch=watch, see=see)
    return calls


def run_apart(
    decoder: Decoder,
    wiring: Wiring,
    batch: Batch,
    *,
    enter: Enter = lambda _block, _is_again, hidden: hidden,
    leave: Callable[[Tensor], None] = lambda _: None,
    watch: Watch = lambda _block, _call: None,
    see: Callable[[Tensor], None] = lambda _: None,
    visit: Visit = lambda _position, _hidden: None,
) -> None:
    """Run a batch, and show the input, attention and output of every block; `enter` may change the input."""

    def around(block: int, hidden: Tensor, run: Run) -> Tensor:
        output = run(enter(block, True, hidden))
        leave(output)
        return output

    with ExitStack() as stack:
        for index, block in enumerate(decoder.blocks):
            # In front of the hooks of architectures and skips: those keep and add the input of the isolated block.
            hook = changing_input(partial(enter, index, False))
            stack.enter_context(block.register_forward_pre_hook(hook, with_kwargs=True, prepend=True))
            stack.enter_context(block.register_forward_hook(seeing_output(leave), prepend=True))
        stack.enter_context(changed(wiring, watch=watch, around=around))
        if wiring.by_argument:
            stack.enter_context(ScoreWatch(wiring, lambda _block, scores, _weights: see(scores)))
        run_batch(decoder, batch, visit, depth=len(decoder.blocks))


def drift_when_watched(decoder: Decoder, wiring: Wiring) -> Float[Tensor, " L"]:
    """Measure per layer how a probe changes when it is watched: proofs hold for latents only where it does not."""
    n_tokens = min(N_TOKENS, decoder.description.window)
    rows = torch.stack([probe_ids(decoder, n_tokens, seed=seed) for seed in range(N_TOKENS)])
    batch = plain_batch(rows, spans=probe_spans(n_tokens))
    unwatched, watched = hidden_states(decoder, batch), list[Tensor]()
    run_apart(decoder, wiring, batch, visit=lambda _, hidden: watched.append(hidden.float().cpu()))
    return layer_drift(torch.stack(watched), unwatched)


def _varied(hidden: Float[Tensor, "B T D"], *, seed: int) -> Float[Tensor, "B T D"]:
    """Repeat the first row, and add to row `1 + j` noise of its token's own size at token `j`."""
    noise = torch.randn(hidden.shape[1:], generator=torch.Generator().manual_seed(seed)).to(hidden)
    size = hidden[0].float().square().mean(-1, keepdim=True).sqrt().clamp(min=1e-3).to(hidden)
    varied = hidden[:1].repeat(len(hidden), 1, 1)
    tokens = torch.arange(hidden.shape[1])
    varied[tokens + 1, tokens] += noise * size
    return varied


def moved_tokens(values: Float[Tensor, "B T Q V"], dtype: str) -> Bool[Tensor, "T T Q"]:
    """Find where a value of token `i` in row `1 + j` differs from that of the first row by more than rounding."""
    base = values[0].float()
    change = (values[1:].float() - base).abs().amax(-1) / base.abs().amax(-1).clamp(min=1e-6)
    return (change > MOVED[dtype]).transpose(0, 1).cpu()


class ProbeBatch(NamedTuple):
    """A batch in a shape of the extraction, of which some tokens of some rows are checked."""

    batch: Batch
    rows: list[int]
    queries: list[Tensor]
    """Tokens of these rows, from 0."""

    @classmethod
    def of(cls, decoder: Decoder, shape: tuple[int, int], *, is_padded: bool) -> "ProbeBatch":
        """Make a batch of so many rows and tokens."""
        n_rows, n_tokens = shape
        lengths = [n_tokens - (row * n_tokens // (2 * n_rows) if is_padded else 0) for row in range(n_rows)]
        batch = collate([encode_ids(probe_ids(decoder, n, seed=row)) for row, n in enumerate(lengths)], range(n_rows))
        batch = replace(batch, spans=probe_spans(n_tokens).repeat(n_rows, 1))
        rows = sorted({0, n_rows // 2, n_rows - 1})
        near = [sorted({token % n for k in WHERE if k < n for token in (k, -1 - k)}) for n in lengths]
        return cls(batch, rows, [torch.tensor(near[row]) for row in rows])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and tokens."""
        n_rows, n_tokens = self.batch.ids.shape
        return n_rows, n_tokens

    @property
    def text(self) -> str:
        """Its shape in words."""
        n_rows, n_tokens = self.shape
        return f"in {n_rows} {'padded' if self.batch.is_padded else 'unpadded'} rows of {n_tokens} tokens"


def prove_blocks(claim: Claim, wiring: Wiring, shape: tuple[int, int]) -> tuple[int, float]:
    """Certify the mask of every block, alone and in every head, on short rows and in a batch of rows and tokens.

    Returns the number of runs of blocks and the largest error. `CertificateError` names the block, the head and the
    tokens where decoder and plan differ; `DecoderError` a block that mixes tokens beside its attention, of which a plan
    would convert half.
    """
    decoder = claim.decoder
    with short_windows(decoder), wiring.windows_apart():
        with in_float32(decoder) as wide:
            calls = look_at_blocks(wide, wiring)
            fixed = look_at_blocks(wide, wiring, holds_attention=True)
        require_runs(calls, claim)
        for call, fixed_call in zip(calls, fixed, strict=True):
            if call.attention:
                _require_only_attention(call, fixed_call, wide)
            else:
                require_causal(call, wide)
        probes = [ProbeBatch.of(decoder, shape, is_padded=is_padded) for is_padded in (False, True)]
        return len(calls), max(_check_call(call, claim, wiring, probes) for call in calls)


def require_runs(calls: Sequence[BlockCall], claim: Claim) -> None:
    """Check that exactly the blocks of the plan ran, in its order."""
    runs, planned = [(call.block, call.is_again) for call in calls], claim.literal.runs
    if runs != planned:
        names, planned_names = (
            " ".join(f"{block + 1}{chr(39) * is_again}" for block, is_again in order) for order in (runs, planned)
        )
        raise claim.refute(f": blocks {names} ran, where {planned_names} are planned (n' is block n run again)")


def _check_call(call: BlockCall, claim: Claim, wiring: Wiring, probes: Sequence[ProbeBatch]) -> float:
    """Compare the attention of one call with the formula, as it was and at another shape; return the largest error."""
    dtype, kind = claim.decoder.description.dtype, claim.kind_of(call)
    is_prefixed = call.block in claim.literal.prefix
    errors = [0.0]
    for attention in call.attention:
        n_tokens, window = attention.query.shape[2], attention.options.get("sliding_window")
        allowed = literal_mask(kind, n_tokens, window=window, spans=probe_spans(n_tokens))
        error = _head_errors(attention.mixed, textbook_attention(attention, allowed, is_prefixed=is_prefixed))
        errors.append(float(error.max()))
        if errors[-1] > TOLERANCE["float32"]:
            head = int(error.argmax())
            problem = (
                f"differs by {errors[-1]:.2g} of its largest value from softmax attention with its scale, cap and sinks"
            )
            if difference := first_difference(moved_tokens(attention.mixed, "float32")[:, :, head], allowed):
                verb, (i, j) = difference
                problem = f"of token {i} {verb} token {j}"
            raise claim.refute_block(call, f"head {head + 1} {problem}")
        proved = (call.block, kind, call.is_again, probes[0].shape)
        if proved in wiring.proved:  # by an earlier plan of a sweep
            continue
        for probe in probes:
            narrow = replace(attention, query=attention.query.to(getattr(torch, dtype)))
            errors.append(_error_at(probe, call, narrow, claim, wiring))
            if errors[-1] > TOLERANCE[dtype]:
                raise claim.refute_block(call, f"{probe.text} its attention differs by {errors[-1]:.2g}")
        wiring.proved.add(proved)
    return max(errors)


def _require_only_attention(call: BlockCall, fixed: BlockCall, decoder: Decoder) -> None:
    """Check that nothing mixes tokens before attention, nor beside it, where attention is held fixed."""
    others = ~torch.eye(len(call.moved), dtype=torch.bool)
    inputs = [
        x.transpose(1, 2) for attention in call.attention for x in (attention.query, attention.key, attention.value)
    ]
    before = torch.stack([moved_tokens(x, decoder.description.dtype).any(-1) for x in inputs]).any(0)
    require_unmixed(call, before & others, "before", decoder)
    require_unmixed(call, fixed.moved & others, "beside", decoder)


def require_unmixed(call: BlockCall, mixed: Bool[Tensor, "T T"], where: str, decoder: Decoder) -> None:
    """Refuse a block that mixes pairs of tokens before or beside its attention (`DecoderError`)."""
    if len(pairs := mixed.nonzero()):
        i, j = pairs[0].tolist()
        raise only_causal(
            decoder.description.family,
            f"mixes tokens {where} its attention (block {call.block + 1}: token {i} depends on token {j}), where no "
            "mask plan reaches",
        )


def require_causal(call: BlockCall, decoder: Decoder) -> None:
    """Check that a recurrent block lets no token see a later one."""
    if len(pairs := call.moved.triu(1).nonzero()):
        i, j = pairs[0].tolist()
        why = f"lets token {i} depend on the later token {j} in block {call.block + 1}, which has no attention to mask"
        raise only_causal(decoder.description.family, why)


def _error_at(probe: ProbeBatch, call: BlockCall, attention: AttentionCall, claim: Claim, wiring: Wiring) -> float:
    """Run a block's attention on random vectors of another shape, and compare some of its tokens with the formula."""
    (n_rows, n_tokens), query, kind = probe.shape, attention.query, claim.kind_of(call)
    queries, keys, values = (
        _random((n_rows, x.shape[1], n_tokens, x.shape[3]), seed).to(query)
        for seed, x in enumerate((query, attention.key, attention.value))
    )
    wiring.begin(probe.batch, query.device)
    with wiring.converted(call.block, parse_kind(kind)) if call.is_again else nullcontext(), torch.inference_mode():
        mixed, _ = wired_attention(attention.module, queries, keys, values, None, **attention.options)
    wiring.end()
    worst = 0.0
    for row, at in zip(probe.rows, probe.queries, strict=True):
        n = int(probe.batch.n_tokens[row])
        window = attention.options.get("sliding_window")
        allowed = literal_mask(kind, n, window=window, spans=probe_spans(n), queries=at.tolist())
        one = replace(
            attention,
            query=queries[row : row + 1, :, at],
            key=keys[row : row + 1, :, :n],
            value=values[row : row + 1, :, :n],
        )
        formula = textbook_attention(one, allowed, is_prefixed=call.block in claim.literal.prefix)
        worst = max(worst, float(_head_errors(mixed[row : row + 1, at], formula).max()))
    return worst


@lru_cache(maxsize=3)
def _random(shape: tuple[int, ...], seed: int) -> Tensor:
    """Draw the same vectors for every block of one shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def textbook_attention(
    call: AttentionCall, allowed: Bool[Tensor, "*B I T"], *, is_prefixed: bool = False
) -> Float[Tensor, "B I Q V"]:
    """Compute attention by its formula in float32, plainly; `is_prefixed` shows every token the last one once more."""
    query, key, value = (x.float() for x in (call.query, call.key, call.value))
    n_groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(n_groups, 1), value.repeat_interleave(n_groups, 1)
    if is_prefixed:
        key, value = (torch.cat([x[:, :, -1:], x], dim=2) for x in (key, value))
        allowed = torch.cat([torch.ones_like(allowed[:, :1]), allowed], dim=1)
    scaling, softcap, sinks = (call.options.get(name) for name in ("scaling", "softcap", "s_aux"))
    scores = torch.einsum("bqih,bqjh->bqij", query, key) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~allowed.to(scores.device), float("-inf"))
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks.float().reshape(1, -1, 1, 1) - top).exp()
    return torch.einsum("bqij,bqjv->biqv", weights / total, value)


def _head_errors(mixed: Float[Tensor, "B T Q V"], formula: Float[Tensor, "B T Q V"]) -> Float[Tensor, " Q"]:
    """Largest difference of each head, relative to its largest value; infinite where it is NaN."""
    return layer_drift(mixed.float().movedim(2, 0), formula.movedim(2, 0))


def prove_scores(claim: Claim, wiring: Wiring, shape: tuple[int, int]) -> tuple[int, float]:
    """Certify the mask of every block as `prove_blocks` does, where attention shows only the scores of its softmax."""
    decoder = claim.decoder
    with wiring.windows_apart():
        with short_windows(decoder), in_float32(decoder) as wide:
            calls = look_at_blocks(wide, wiring)
            with wiring.all_as(CAUSAL_KIND):
                causal = look_at_blocks(wide, wiring, inputs=[call.entered for call in calls])
            with wiring.all_as(ITSELF):
                alone = look_at_blocks(wide, wiring)
            require_runs(calls, claim)
            for call, call_alone in zip(calls, alone, strict=True):
                if call.scores:
                    _require_apart(call, call_alone, wide)
                else:
                    require_causal(call, wide)
            n_probed = calls[0].entered.shape[1]
            everywhere = [(n_probed, list(range(n_probed)))]
            errors = [0.0, *_compare_scores(calls, causal, everywhere, replace(claim, decoder=wide), wiring)]
        proved = {(call.block, claim.kind_of(call), call.is_again, shape) for call in calls}
        for is_padded in (False, True) if proved - wiring.proved else ():
            errors += _errors_at(ProbeBatch.of(decoder, shape, is_padded=is_padded), claim, wiring)
        wiring.proved |= proved
    return len(calls), max(errors)


def _require_apart(call: BlockCall, alone: BlockCall, decoder: Decoder) -> None:
    """Check that the score of two tokens depends on them alone, and the block otherwise on each token alone."""
    others = ~torch.eye(len(call.moved), dtype=torch.bool)
    before = torch.zeros_like(others)
    for scores in call.scores:
        change = (scores[1:] - scores[:1]).nan_to_num(nan=0.0).abs().amax(1)  # by changed token, query and key
        is_foreign = others.unsqueeze(2) & others.unsqueeze(1)
        largest = scores[0].masked_fill(scores[0] < HIDDEN, 0).abs().max()
        moved = (change / largest.clamp(min=1e-6) > MOVED[decoder.description.dtype]).cpu() & is_foreign
        before |= moved.any(2).T
    require_unmixed(call, before, "before", decoder)
    require_unmixed(call, alone.moved & others, "beside", decoder)


def _compare_scores(
    calls: Sequence[BlockCall],
    causal: Sequence[BlockCall],
    rows: Sequence[tuple[int, list[int]]],
    claim: Claim,
    wiring: Wiring,
    where: str = "",
) -> list[float]:
    """Compare scores with the plan's mask and with causal ones; `rows` are the length of each row and its queries."""
    errors, dtype = [], claim.decoder.description.dtype
    for call, causal_call in zip(calls, causal, strict=True):
        if not call.scores and call.block not in wiring.silent:
            raise claim.refute_block(call, f"{where}the scores of its attention cannot be seen")
        for scores, reference in zip(call.scores, causal_call.scores, strict=True):
            for row, (n, queries) in enumerate(rows):
                one, other = scores[row][:, : len(queries)], reference[row][:, : len(queries)]
                allowed = torch.zeros(one.shape[1:], dtype=torch.bool)
                kind, window = claim.kind_of(call), wiring.windows[call.block]
                allowed[:, :n] = literal_mask(kind, n, window=window, spans=probe_spans(n), queries=queries)
                if difference := first_difference(one > HIDDEN, allowed):
                    verb, (head, i, j) = difference
                    raise claim.refute_block(call, f"{where}head {head + 1} of token {queries[i]} {verb} token {j}")
                hidden = ~(allowed & (other > HIDDEN))
                states = (x.masked_fill(hidden, 0).unsqueeze(0) for x in (one, other))
                errors.append(float(layer_drift(*states)))
                if errors[-1] > TOLERANCE[dtype]:
                    problem = f"{where}scores differ by {errors[-1]:.2g} from those of the same tokens, causally masked"
                    raise claim.refute_block(call, problem)
    return errors


def _errors_at(probe: ProbeBatch, claim: Claim, wiring: Wiring) -> list[float]:
    """Run every block on random vectors in a batch of another shape, and compare some tokens of some rows."""
    n_queries = max(map(len, probe.queries))

    def look() -> list[BlockCall]:
        calls: list[BlockCall] = []

        def enter(block: int, is_again: bool, hidden: Tensor) -> Tensor:
            calls.append(BlockCall(block, is_again, hidden[:0]))
            noise = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(block))
            return noise.to(hidden)

        def see(scores: Tensor) -> None:
            filled = [torch.cat([at, at[:1].expand(n_queries - len(at))]) for at in probe.queries]
            shown = [scores[row][:, at].cpu() for row, at in zip(probe.rows, filled, strict=True)]
            calls[-1].scores.append(torch.stack(shown))

        run_apart(claim.decoder, wiring, probe.batch, enter=enter, see=see)
        return calls

    planned = look()
    with wiring.all_as(CAUSAL_KIND):
        causal = look()
    rows = [(int(probe.batch.n_tokens[row]), at.tolist()) for row, at in zip(probe.rows, probe.queries, strict=True)]
    return _compare_scores(planned, causal, rows, claim, wiring, f"{probe.text}, ")


# --- The whole decoder ---

PLACEHOLDER = 0
"""Column of the placeholder in the rows of certificates."""
PROBE_LENGTHS = (2, 5, 9)
"""Rows of the batch-invariance check, in tokens; the last one pads the others."""
DRIFT_SHOWN = 1e6
"""Stands for what is not finite, which JSON cannot hold."""


@dataclass(frozen=True)
class PlanProof:
    """A plan is in force: which inputs move which outputs is as planned at every layer."""

    n_tokens: int
    n_layers: int
    is_as_planned: bool = True


@dataclass(frozen=True)
class BlocksProof(PlanProof):
    """Every block is as planned by itself, too."""

    n_calls: int = 0
    """Runs of blocks."""
    shape: tuple[int, int] = (0, 0)
    """Rows and tokens of the batch that attention was compared in."""
    largest_error: float = 0.0


@dataclass(frozen=True)
class BatchInvariance:
    """Largest drift of latents per padding side, relative to the largest latent of the layer."""

    allowed: float
    right: float
    left: float
    """Only reported: extraction pads on the right."""


@dataclass(frozen=True)
class DeviceProof:
    """Hidden states and latents were the same after they moved between devices."""

    devices: tuple[str, ...]
    n_layers: int


def prove_copies(claim: Claim, *, n_tokens: int, placeholder: int) -> None:
    """Certify that the placeholder takes the last token's state after the blocks of the plan, and after no other."""
    decoder, copied = claim.decoder, claim.literal.prepend or range(0)
    computed: list[Tensor] = []
    note = seeing_output(lambda hidden: computed.append(hidden[0].clone()))

    def visit(position: int, hidden: Tensor) -> None:
        if position == 0:  # random; that it depends on no token shows in `influence`
            return
        output, state = computed[-1], hidden[0]
        holds_last, problem = torch.equal(state[placeholder], state[-1]), ""
        if position - 1 in copied:
            problem = "" if holds_last else "does not hold the last token's state"
        elif holds_last and not torch.equal(output[placeholder], output[-1]):
            problem = "holds the last token's state, which the plan does not copy there"
        if problem:
            raise claim.refute(f": the placeholder of {decoder.layers[position]} {problem}")

    ids = probe_ids(decoder, n_tokens, seed=0).unsqueeze(0)
    batch = replace(plain_batch(ids, spans=probe_spans(n_tokens)), placeholder=torch.tensor([placeholder]))
    with in_float32(decoder) as wide, ExitStack() as stack:
        for block in wide.blocks:
            stack.enter_context(block.register_forward_hook(note, prepend=True))  # before the hooks that copy
        run_batch(wide, batch, visit, depth=len(wide.blocks))


def influence(decoder: Decoder, *, n_tokens: int = INFLUENCE_TOKENS) -> Bool[Tensor, "L T T"]:
    """Measure which input positions move which outputs, layer by layer, under the plan in force.

    Each position in turn gets another token; rows of one batch hold the variants. The result is true at `[l, i, j]`
    when output `i` of layer `l`, from the embedding to the final norm, changes with input `j`.
    """
    base = probe_ids(decoder, n_tokens, seed=0)
    other = probe_ids(decoder, n_tokens, seed=1)
    other = torch.where(other == base, (other + 1) % vocabulary_size(decoder), other)
    variants = base.repeat(n_tokens + 1, 1)
    variants[range(1, n_tokens + 1), range(n_tokens)] = other
    moved = torch.zeros(len(decoder.layers), n_tokens, n_tokens, dtype=torch.bool)

    def visit(position: int, hidden: Tensor) -> None:
        # Rows of equal shape go through identical kernels, so an untouched position is equal up to rounding only.
        scale = hidden[0].float().abs().amax(-1).clamp(min=1e-6)
        change = (hidden[1:].float() - hidden[:1].float()).abs().amax(-1) / scale
        moved[position] = (change > 1e-6).cpu().T

    batch = plain_batch(variants, spans=probe_spans(n_tokens))
    if _prepends(decoder):
        batch = replace(batch, placeholder=torch.full((len(variants),), PLACEHOLDER))
    with in_float32(decoder):
        run_batch(decoder, batch, visit)
    return moved


def check_influence(decoder: Decoder, plan: MaskPlan, *, n_rows: int = 32, n_tokens: int = 64) -> PlanProof:
    """Certify a plan in force: the mask of every block by itself, and which inputs move which outputs at every layer.

    `n_rows` and `n_tokens` are those of a large batch of the extraction. Blocks of an unwired decoder are left to
    transformers and not checked by themselves; nor are those of one that is wired only to share what rows begin with,
    whose batches are compared with the formula.
    """
    require_truth()
    n_probed = min(INFLUENCE_TOKENS, decoder.description.window)
    moved = influence(decoder, n_tokens=n_probed)
    n_blocks, claim, wiring = len(decoder.blocks), Claim(decoder, plan), wiring_of(decoder.blocks)
    if wiring is not None and wiring.only_shares:
        wiring = None
    windows: list[int | None] = [None] * n_blocks
    proof = PlanProof(n_probed, len(decoder.layers))
    is_recurrent = wiring is not None and bool(wiring.silent)  # before proofs begin batches of their own
    if wiring is not None:
        require_attention(wiring, plan)
        prove, shape = prove_scores if wiring.by_argument else prove_blocks, (n_rows, n_tokens)
        n_calls, error = prove(claim, wiring, shape)
        proof = BlocksProof(n_probed, len(decoder.layers), n_calls=n_calls, shape=shape, largest_error=error)
        _require_equal_when_watched(claim, wiring)
        if plan.prepend is not None:
            prove_copies(claim, n_tokens=n_probed, placeholder=PLACEHOLDER)
        windows = [wiring.windows.get(block) for block in range(n_blocks)]
    expected = expected_reach(
        plan,
        n_blocks,
        n_probed,
        windows=windows,
        spans=probe_spans(n_probed),
        placeholder=PLACEHOLDER if plan.prepend else None,
    )
    for position, layer in enumerate(decoder.layers):
        # A position outside the plan that moves proves a wrong mask. One inside it that does not may only be too weak
        # to see in rounding: where blocks are proved one by one, a few of those do not matter.
        allowed = required = expected[position]
        n_deaf = int((allowed & ~moved[position]).sum())
        if wiring is None:  # the untouched causal path does not reveal its windows, so only neighbours are required
            required = required.triu(-1).tril(1)
        elif is_recurrent or n_deaf * 10 <= int(required.sum()):
            required = required.triu().tril()
        if difference := first_difference(moved[position], allowed, required=required):
            verb, (i, j) = difference
            raise claim.refute(f": output {i} of layer {layer} {verb} input {j}")
    return proof


def _require_equal_when_watched(claim: Claim, wiring: Wiring) -> None:
    """Check that a decoder computes the same states whether its blocks are watched or not."""
    with in_float32(claim.decoder) as wide:
        drift = drift_when_watched(wide, wiring)
    worst = int(drift.argmax())
    if float(drift[worst]) > TOLERANCE["float32"]:
        raise claim.refute(
            f": layer {wide.layers[worst]} differs by {float(drift[worst]):.2g} of its largest value when its blocks "
            "are not watched, so what was proved of them does not hold"
        )


def check_batch_invariance(decoder: Decoder) -> BatchInvariance:
    """Certify that latents do not depend on neighbours or padding; decoders with experts are tried in float32."""
    if has_experts(decoder) and decoder.description.dtype != "float32":
        with in_float32(decoder) as wide:
            return check_batch_invariance(wide)
    lengths = [min(n, decoder.description.window) for n in PROBE_LENGTHS]
    placeholder = PLACEHOLDER if _prepends(decoder) else None
    encoded = [replace(encode_ids(probe_ids(decoder, n, seed=n)), placeholder=placeholder) for n in lengths]
    short, n_short = encoded[:-1], len(encoded) - 1
    alone = torch.cat([_latents(decoder, collate([text], [0])) for text in short], dim=2)
    # One batch pads every short row on either side: whatever each row's padding is, its latents must be its own.
    rows = [*encoded, *short]
    sides: list[Side] = ["right" if row < len(encoded) else "left" for row in range(len(rows))]
    together = _latents(decoder, collate(rows, range(len(rows)), side=sides))
    by_side = {"right": together[:, :, :n_short], "left": together[:, :, len(encoded) :]}
    allowed = DRIFT_ALLOWED[decoder.description.dtype]
    worst_drifts = {}
    for side, latents in by_side.items():
        drift = layer_drift(latents, alone)
        worst = int(drift.argmax())
        # Extraction pads on the right; some families count positions from the left whatever is padding there.
        if side == "right" and float(drift[worst]) > allowed:
            raise CertificateError(
                f"latents depend on {side} padding: layer {decoder.layers[worst]} drifts by {float(drift[worst]):.2g} "
                f"of its largest value (allowed {allowed:g}). The family {decoder.description.family!r} needs another "
                "attention implementation or dtype."
            )
        worst_drifts[side] = min(float(drift[worst]), DRIFT_SHOWN)
    return BatchInvariance(allowed, **worst_drifts)


def check_devices(decoder: Decoder) -> DeviceProof:
    """Certify that states survive every move between devices: some machines copy zeros (transformers issue 36636)."""
    devices = list(dict.fromkeys((decoder.device, *decoder.devices)))
    batch = plain_batch(probe_ids(decoder, min(INFLUENCE_TOKENS, decoder.description.window), seed=0).unsqueeze(0))
    pooler = Pooler(decoder, batch, poolings=("last",), layers=decoder.layers)

    def visit(position: int, hidden: Tensor) -> None:
        pooler(position, hidden)
        direct = hidden.cpu()
        copies = [(device, hidden.to(device).cpu(), direct) for device in devices]
        pooled = decoder.device, pooler.latents[position].cpu(), direct[:, -1:].float().transpose(0, 1)
        for device, copy, original in (*copies, pooled):
            if not torch.equal(copy, original):
                raise CertificateError(
                    f"layer {decoder.layers[position]} changes on its way from {hidden.device} to {device}. Copies "
                    "between these devices cannot be trusted on this machine: use one of them (decoder.device, or "
                    "decoder.max_memory), or switch peer-to-peer copies off."
                )

    run_batch(decoder, batch, visit)
    return DeviceProof(tuple(map(str, devices)), len(decoder.layers))


def _prepends(decoder: Decoder) -> bool:
    """Whether the plan in force has a placeholder before every text."""
    wiring = wiring_of(decoder.blocks)
    return wiring is not None and wiring.plan.prepends


def _latents(decoder: Decoder, batch: Batch) -> Float[Tensor, "L P B D"]:
    return pool_batch(decoder, batch, poolings=("last", "mean"), layers=decoder.layers).cpu()
