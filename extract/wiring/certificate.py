"""Certificates: proof, stored in every cache, that masks, batches and weights behaved as promised."""

from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.inputs.batches import Batch, collate, join_batches
from extract.masks.mask_plan import MaskPlan
from extract.masks.truth import expected_reach, require_truth
from extract.wiring.attention import Wiring, require_attention, wiring_of
from extract.wiring.block_proofs import (
    TOLERANCE,
    Claim,
    drift_when_watched,
    first_difference,
    prove_blocks,
    prove_scores,
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
from extract.wiring.plan_wiring import DRIFT_ALLOWED, INFLUENCE_TOKENS, layer_drift
from extract.wiring.states import Pooler, pool_batch

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
    transformers and not checked by themselves.
    """
    require_truth()
    n_probed = min(INFLUENCE_TOKENS, decoder.description.window)
    moved = influence(decoder, n_tokens=n_probed)
    n_blocks, claim, wiring = len(decoder.blocks), Claim(decoder, plan), wiring_of(decoder.blocks)
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
    width = len(encoded[-1].ids)
    right, left = collate(encoded, range(len(encoded))), collate(short, range(n_short), side="left", width=width)
    together = _latents(decoder, join_batches([right, left], width=width))
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
