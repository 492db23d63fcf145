"""Certificates: proof, stored in every cache, that masks, batches and weights behaved as promised."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.inputs.batches import Batch, collate, join_batches
from extract.masks.mask_kinds import CAUSAL_KIND, MaskKind
from extract.masks.mask_plan import MaskPlan
from extract.masks.truth import expected_reach, literal_plan, require_truth
from extract.wiring.attention import HIDDEN, Wiring, require_attention, wiring_of
from extract.wiring.block_proofs import (
    MOVED,
    N_TOKENS,
    TOLERANCE,
    WHERE,
    BlockCall,
    drift_when_watched,
    expected_mask,
    look_at_blocks,
    prove_blocks,
    refuse,
    require_causal,
    require_runs,
    require_unmixed,
    run_apart,
)
from extract.wiring.forward import (
    encode_ids,
    has_experts,
    in_float32,
    plain_batch,
    probe_ids,
    probe_spans,
    run_batch,
    seeing_output,
    vocabulary_size,
)
from extract.wiring.plan_wiring import DRIFT_ALLOWED, INFLUENCE_TOKENS, layer_drift, short_windows
from extract.wiring.states import Pooler, pool_batch

ITSELF = MaskKind("nosink-causal", N_TOKENS)
"""Under which each of at most `N_TOKENS` tokens sees itself alone."""
PLACEHOLDER = 0
"""Column of the placeholder in the rows of certificates."""
PROBE_LENGTHS = (2, 5, 9)
"""Rows of the batch-invariance check, in tokens; the last one pads the others."""
DRIFT_SHOWN = 1e6
"""Stands for what is not finite, which JSON cannot hold."""


def prove_scores(decoder: Decoder, wiring: Wiring, plan: MaskPlan, *, n_rows: int, n_tokens: int) -> dict[str, Any]:
    """Certify the mask of every block as `prove_blocks` does, where attention shows only the scores of its softmax."""
    shape = n_rows, n_tokens
    with wiring.windows_apart():
        with short_windows(decoder), in_float32(decoder) as wide:
            calls = look_at_blocks(wide, wiring)
            with wiring.all_as(CAUSAL_KIND):
                causal = look_at_blocks(wide, wiring, inputs=[call.entered for call in calls])
            with wiring.all_as(ITSELF):
                alone = look_at_blocks(wide, wiring)
            literal = require_runs(calls, decoder, plan)
            for call, call_alone in zip(calls, alone, strict=True):
                if call.scores:
                    _require_apart(call, call_alone, wide)
                else:
                    require_causal(call, wide)
            n_probed = calls[0].entered.shape[1]
            everywhere = torch.ones(1, n_probed, dtype=torch.bool), torch.arange(n_probed).unsqueeze(0)
            errors = [0.0, *_compare(calls, causal, everywhere, wide, wiring, plan, "")]
        kinds = [literal.kind_of(call.block, is_again=call.is_again) for call in calls]
        proved = {(call.block, kind, call.is_again, shape) for call, kind in zip(calls, kinds, strict=True)}
        for is_padded in (False, True) if proved - wiring.proved else ():
            errors += _errors_at(shape, decoder, wiring, plan, is_padded=is_padded)
        wiring.proved |= proved
    return {"n_calls": len(calls), "shape": list(shape), "largest_error": max(errors)}


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


def _compare(
    calls: list[BlockCall],
    causal: list[BlockCall],
    rows: tuple[Bool[Tensor, "b T"], Tensor],
    decoder: Decoder,
    wiring: Wiring,
    plan: MaskPlan,
    where: str,
) -> list[float]:
    """Compare scores with the plan's mask and with causal ones, at some queries of some rows; return the errors."""
    errors = []
    is_real, queries = rows
    literal = literal_plan(plan.text, len(decoder.blocks))
    for call, causal_call in zip(calls, causal, strict=True):
        kind = literal.kind_of(call.block, is_again=call.is_again)
        if not call.scores and call.block not in wiring.silent:
            raise refuse(call, kind, decoder, plan, f"{where}the scores of its attention cannot be seen")
        for scores, reference in zip(call.scores, causal_call.scores, strict=True):
            for row, real in enumerate(is_real):
                n, at = int(real.sum()), queries[row]
                allowed = torch.zeros(len(at), len(real), dtype=torch.bool)
                allowed[:, :n] = expected_mask(kind, n, window=wiring.windows[call.block], queries=at.tolist())
                seen = scores[row] > HIDDEN
                for wrong, verb in ((seen & ~allowed, "depends on"), (~seen & allowed, "ignores")):
                    if len(pairs := wrong.nonzero()):
                        head, i, j = pairs[0].tolist()
                        problem = f"{where}head {head + 1} of token {int(at[i])} {verb} token {j}"
                        raise refuse(call, kind, decoder, plan, problem)
                errors.append(_error(scores[row], reference[row], allowed))
                if errors[-1] > TOLERANCE[decoder.description.dtype]:
                    problem = f"{where}scores differ by {errors[-1]:.2g} from those of the same tokens, causally masked"
                    raise refuse(call, kind, decoder, plan, problem)
    return errors


def _error(scores: Float[Tensor, "Q I T"], causal: Float[Tensor, "Q I T"], allowed: Bool[Tensor, "I T"]) -> float:
    both = allowed & (causal > HIDDEN)
    change = (scores - causal).abs().masked_fill(~both, 0).amax()
    largest = causal.abs().masked_fill(~both, 0).amax().clamp(min=1e-6)
    return float((change / largest).nan_to_num(nan=float("inf")))


def _errors_at(
    shape: tuple[int, int], decoder: Decoder, wiring: Wiring, plan: MaskPlan, *, is_padded: bool
) -> list[float]:
    """Run every block on random vectors in a batch of another shape, and compare some tokens of some rows."""
    n_rows, n_tokens = shape
    lengths = [n_tokens - (row * n_tokens // (2 * n_rows) if is_padded else 0) for row in range(n_rows)]
    batch = collate([encode_ids(probe_ids(decoder, n, seed=row)) for row, n in enumerate(lengths)], range(n_rows))
    batch = replace(batch, spans=probe_spans(n_tokens).repeat(n_rows, 1))
    rows = sorted({0, n_rows // 2, n_rows - 1})
    tokens = [[token % lengths[row] for k in WHERE if k < lengths[row] for token in (k, -1 - k)] for row in rows]
    most = max(map(len, tokens))
    queries = torch.tensor([(some + some[:1] * most)[:most] for some in tokens])

    def look() -> list[BlockCall]:
        calls: list[BlockCall] = []

        def enter(block: int, hidden: Tensor, *, is_again: bool = False) -> Tensor:
            calls.append(BlockCall(block, is_again, hidden[:0]))
            noise = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(block))
            return noise.to(hidden)

        def see(scores: Tensor) -> None:
            picked = [scores[row][:, at].cpu() for row, at in zip(rows, queries, strict=True)]
            calls[-1].scores.append(torch.stack(picked))

        run_apart(decoder, wiring, batch, enter=enter, leave=lambda _: None, watch=lambda *_: None, see=see)
        return calls

    planned = look()
    with wiring.all_as(CAUSAL_KIND):
        causal = look()
    where = f"in {n_rows} {'padded' if is_padded else 'unpadded'} rows of {n_tokens} tokens, "
    return _compare(planned, causal, (batch.is_real[rows], queries), decoder, wiring, plan, where)


def prove_copies(decoder: Decoder, plan: MaskPlan, *, n_tokens: int, placeholder: int) -> None:
    """Certify that the placeholder takes the last token's state after the blocks of the plan, and after no other.

    The output of a block is compared with the input of the next one, in a row of `n_tokens` whose placeholder is at the
    column `placeholder`.
    """
    copied = literal_plan(plan.text, len(decoder.blocks)).prepend or range(0)
    computed: list[Tensor] = []

    note = seeing_output(lambda hidden: computed.append(hidden[0].clone()))

    def visit(position: int, hidden: Tensor) -> None:
        if position == 0:  # random; that it depends on no token shows in `influence`
            return
        output, state = computed[-1], hidden[0]
        holds_last = torch.equal(state[placeholder], state[-1])
        if position - 1 in copied:
            if not holds_last:
                raise _refuse_copy(decoder, plan, position, "does not hold the last token's state")
        elif holds_last and not torch.equal(output[placeholder], output[-1]):
            raise _refuse_copy(
                decoder, plan, position, "holds the last token's state, which the plan does not copy there"
            )

    ids = probe_ids(decoder, n_tokens, seed=0).unsqueeze(0)
    batch = replace(plain_batch(ids, spans=probe_spans(n_tokens)), placeholder=torch.tensor([placeholder]))
    with in_float32(decoder) as wide, ExitStack() as stack:
        for block in wide.blocks:
            stack.enter_context(block.register_forward_hook(note, prepend=True))  # before the hooks that copy
        run_batch(wide, batch, visit, depth=len(wide.blocks))


def _refuse_copy(decoder: Decoder, plan: MaskPlan, position: int, problem: str) -> CertificateError:
    return CertificateError(
        f"the plan {plan.text!r} did not take effect: the placeholder of {decoder.layers[position]} {problem}. "
        f"The family {decoder.description.family!r} cannot be extracted under this plan."
    )


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


def check_influence(decoder: Decoder, plan: MaskPlan, *, n_rows: int = 32, n_tokens: int = 64) -> dict[str, Any]:
    """Certify a plan in force: the mask of every block by itself, and which inputs move which outputs at every layer.

    `n_rows` and `n_tokens` are those of a large batch of the extraction. Blocks of an unwired decoder are left to
    transformers and not checked by themselves. Returns plain values for the cache.
    """
    require_truth()
    n_probed = min(INFLUENCE_TOKENS, decoder.description.window)
    moved = influence(decoder, n_tokens=n_probed)
    n_blocks = len(decoder.blocks)
    wiring = wiring_of(decoder.blocks)
    windows: list[int | None] = [None] * n_blocks
    blocks: dict[str, Any] = {}
    is_recurrent = wiring is not None and bool(wiring.silent)  # before proofs begin batches of their own
    if wiring is not None:
        require_attention(wiring, plan, family=decoder.description.family)
        prove = prove_scores if wiring.by_argument else prove_blocks
        blocks = prove(decoder, wiring, plan, n_rows=n_rows, n_tokens=n_tokens)
        _require_equal_when_watched(decoder, wiring, plan)
        if plan.prepend is not None:
            prove_copies(decoder, plan, n_tokens=n_probed, placeholder=PLACEHOLDER)
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
        leak = moved[position] & ~expected[position]
        deaf = expected[position] & ~moved[position]
        if wiring is None:  # the untouched causal path does not reveal its windows, so only neighbours are required
            deaf = deaf.triu(-1).tril(1)
        elif is_recurrent or int(deaf.sum()) * 10 <= int(expected[position].sum()):
            deaf = deaf.triu().tril()
        for wrong, verb in ((leak.nonzero(), "depends on"), (deaf.nonzero(), "ignores")):
            if len(wrong):
                i, j = wrong[0].tolist()
                raise CertificateError(
                    f"the plan {plan.text!r} did not take effect: output {i} of layer {layer} {verb} input {j}. "
                    f"The family {decoder.description.family!r} cannot be extracted under this plan."
                )
    return {"is_as_planned": True, "n_tokens": n_probed, "n_layers": len(decoder.layers), **blocks}


def _require_equal_when_watched(decoder: Decoder, wiring: Wiring, plan: MaskPlan) -> None:
    """Check that a decoder computes the same states whether its blocks are watched or not."""
    with in_float32(decoder) as wide:
        drift = drift_when_watched(wide, wiring)
    worst = int(drift.argmax())
    if float(drift[worst]) > TOLERANCE["float32"]:
        raise CertificateError(
            f"the plan {plan.text!r} did not take effect: layer {decoder.layers[worst]} differs by "
            f"{float(drift[worst]):.2g} of its largest value when its blocks are not watched, so what was proved of "
            f"them does not hold. The family {decoder.description.family!r} cannot be extracted under this plan."
        )


def check_batch_invariance(decoder: Decoder) -> dict[str, Any]:
    """Certify that a text's latents do not depend on its neighbours or on padding on the right, as extraction pads.

    Returns the largest drift per padding side, relative to the largest latent of the layer; that of the left is only
    reported. Decoders with experts are checked in float32, where rounding does not flip their routers.
    """
    if has_experts(decoder) and decoder.description.dtype != "float32":
        with in_float32(decoder) as wide:
            return check_batch_invariance(wide)
    lengths = [min(n, decoder.description.window) for n in PROBE_LENGTHS]
    placeholder = PLACEHOLDER if _prepends(decoder) else None
    encoded = [replace(encode_ids(probe_ids(decoder, n, seed=n)), placeholder=placeholder) for n in lengths]
    short, n_short = encoded[:-1], len(encoded) - 1
    alone = torch.cat([_latents(decoder, collate([text], [0])) for text in short], dim=2)
    # One batch pads every short row on either side: whatever each row's padding is, its latents must be its own.
    width = len(encoded[-1].ids)
    right, left = collate(encoded, range(len(encoded))), collate(short, range(n_short), side="left", width=width)
    together = _latents(decoder, join_batches([right, left], width=width))
    by_side = {"right": together[:, :, :n_short], "left": together[:, :, len(encoded) :]}
    allowed = DRIFT_ALLOWED[decoder.description.dtype]
    result: dict[str, Any] = {"allowed": allowed}
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
        result[side] = min(float(drift[worst]), DRIFT_SHOWN)
    return result


def check_devices(decoder: Decoder) -> dict[str, Any]:
    """Certify that hidden states and latents are the same after they moved between the devices of a decoder's blocks.

    On some machines a copy from one GPU to another silently arrives as zeros (transformers issue 36636).
    Every layer is copied to every device, pooled there, and compared with itself as read from where it was
    computed. Other certificates prove the blocks, each on its own device.
    """
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
    return {"devices": list(map(str, devices)), "n_layers": len(decoder.layers)}


def _prepends(decoder: Decoder) -> bool:
    """Whether the plan in force has a placeholder before every text."""
    wiring = wiring_of(decoder.blocks)
    return wiring is not None and wiring.plan.prepends


def _latents(decoder: Decoder, batch: Batch) -> Float[Tensor, "L P B D"]:
    return pool_batch(decoder, batch, poolings=("last", "mean"), layers=decoder.layers).cpu()
