"""Prove a plan block by block where masks go into arguments: attention is seen only as the scores of its softmax.

1. In every head, scores are minus infinity exactly where the plan hides;
2. elsewhere they are those of causal attention, which equals the untouched decoder: scale, ALiBi and caps are kept;
3. the score of two tokens depends on these two alone;
4. under a mask that shows every token itself alone, the block's output at a token depends on that token alone.

So the block mixes tokens by attention under that mask and by nothing else. The first two steps are repeated on rows and
batches as long and large as those of an extraction, padded and not.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.inputs.batching import collate
from extract.masks.plan import CAUSAL, MaskPlan
from extract.masks.truth import literal_plan
from extract.proofs.block_proof import TOLERANCE, WHERE, expected_mask, refuse, require_causal, require_runs
from extract.proofs.isolation import MOVED, N_TOKENS, BlockCall, look_at_blocks, run_apart
from extract.wiring.arguments import HIDDEN
from extract.wiring.interface import Wiring, only_causal
from extract.wiring.precision import in_float32
from extract.wiring.probe_rows import encode_ids, probe_ids, probe_spans
from extract.wiring.untouched import short_windows

ITSELF = f"nosink{N_TOKENS}-causal"  # of at most so many tokens, each sees itself alone


def prove_scores(decoder: Decoder, wiring: Wiring, plan: MaskPlan, *, n_rows: int, n_tokens: int) -> dict[str, Any]:
    """Certify the mask of every block, alone and in every head; arguments, result and errors of `prove_blocks`."""
    shape = n_rows, n_tokens
    with wiring.windows_apart():
        with short_windows(decoder), in_float32(decoder) as wide:
            calls = look_at_blocks(wide, wiring)
            with wiring.all_as(CAUSAL):
                causal = look_at_blocks(wide, wiring, instead=[call.entered for call in calls])
            with wiring.all_as(ITSELF):
                alone = look_at_blocks(wide, wiring)
            literal = require_runs(calls, decoder, plan)
            for call, single in zip(calls, alone, strict=True):
                (_require_apart if call.scores else require_causal)(call, single, wide)
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
    for what, moved in (("before", before), ("beside", alone.moved & others)):
        if len(places := moved.nonzero()):
            i, j = places[0].tolist()
            why = f"mixes tokens {what} its attention (block {call.block + 1}: token {i} depends on token {j})"
            raise only_causal(decoder.description.family, f"{why}, where no mask plan reaches")


def _compare(
    calls: list[BlockCall],
    causal: list[BlockCall],
    looked_at: tuple[Bool[Tensor, "b T"], Tensor],
    decoder: Decoder,
    wiring: Wiring,
    plan: MaskPlan,
    where: str,
) -> list[float]:
    """Compare scores with the plan's mask and with causal ones, at some queries of some rows; return the errors."""
    errors = []
    is_real, queries = looked_at
    literal = literal_plan(plan.text, len(decoder.blocks))
    for call, own in zip(calls, causal, strict=True):
        kind = literal.kind_of(call.block, is_again=call.is_again)
        if not call.scores and call.block not in wiring.silent:
            raise refuse(call, kind, decoder, plan, f"{where}the scores of its attention cannot be seen")
        for scores, reference in zip(call.scores, own.scores, strict=True):
            for row, real in enumerate(is_real):
                n, at = int(real.sum()), queries[row]
                allowed = torch.zeros(len(at), len(real), dtype=torch.bool)
                allowed[:, :n] = expected_mask(kind, n, window=wiring.windows[call.block], queries=at.tolist())
                seen = scores[row] > HIDDEN
                for wrong, verb in ((seen & ~allowed, "depends on"), (~seen & allowed, "ignores")):
                    if len(places := wrong.nonzero()):
                        head, i, j = places[0].tolist()
                        what = f"{where}head {head + 1} of token {int(at[i])} {verb} token {j}"
                        raise refuse(call, kind, decoder, plan, what)
                errors.append(_error(scores[row], reference[row], allowed))
                if errors[-1] > TOLERANCE[decoder.description.dtype]:
                    what = f"{where}scores differ by {errors[-1]:.2g} from those of the same tokens under a causal mask"
                    raise refuse(call, kind, decoder, plan, what)
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
    places = [[place % lengths[row] for k in WHERE if k < lengths[row] for place in (k, -1 - k)] for row in rows]
    most = max(map(len, places))
    queries = torch.tensor([(found + found[:1] * most)[:most] for found in places])

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

    found = look()
    with wiring.all_as(CAUSAL):
        causal = look()
    where = f"in {n_rows} {'padded' if is_padded else 'unpadded'} rows of {n_tokens} tokens, "
    return _compare(found, causal, (batch.is_real[rows], queries), decoder, wiring, plan, where)
