"""Plans as a tree: what they share at the bottom is computed once per batch."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.decoders.decoder import Decoder
from extract.errors import DecoderError
from extract.inputs.batching import Batch
from extract.linear import QuickLinear
from extract.wiring.applied import Replay
from extract.wiring.capture import Pooler
from extract.wiring.forward import run_batch
from extract.wiring.interface import Wiring

Kinds = tuple[str, ...]


def count_blocks(plans: Sequence[Kinds]) -> int:
    """Count the block passes that plans need when the beginnings they share are computed once.

    Example:
        >>> count_blocks([("causal", "causal"), ("causal", "backward")])
        3
    """
    return len({plan[:depth] for plan in plans for depth in range(1, len(plan) + 1)})


def walk_plans(
    decoder: Decoder, wiring: Wiring, batch: Batch, plans: Sequence[Kinds], *, poolings: Sequence[str],
    layers: Sequence[str], emit: Callable[[Kinds, Float[Tensor, "L P N D"]], None],
) -> None:  # fmt: skip
    """Compute the latents of a batch under several plans, going through their tree depth first.

    Poolings, layers and latents are those of `Pooler`; a plan is given as its kinds per block, bottom up. `emit` is
    called with each plan, in sorted order, and its latents; the tensor is used again for the next plan, so what is
    kept must be copied.

    Raises:
        DecoderError: The final norm of this family cannot be found.
    """
    ordered = sorted(set(plans))
    n_blocks = len(decoder.blocks)
    pool = Pooler(decoder, batch, poolings=poolings, layers=layers)
    path: list[Tensor] = []

    def visit(position: int, hidden: Tensor) -> None:
        path.append(hidden)
        pool(position, hidden)

    replay = Replay(decoder.blocks, wiring)
    wiring.set_kinds(ordered[0])
    with (
        pool.watching(decoder), replay.noting(), torch.inference_mode(), QuickLinear(varied=True),
    ):  # fmt: skip
        run_batch(decoder, batch, visit)
        norm = _final_norm(decoder, path[n_blocks], path.pop())
        emit(ordered[0], pool.latents)
        for before, plan in pairwise(ordered):
            shared = next(depth for depth in range(n_blocks) if before[depth] != plan[depth])
            for block in range(shared, n_blocks):
                path[block + 1] = replay.run(block, path[block], plan[block])
                pool(block + 1, path[block + 1])
            pool(n_blocks + 1, norm(path[n_blocks]) if norm is not None else path[n_blocks])
            emit(plan, pool.latents)


def _final_norm(decoder: Decoder, hidden: Tensor, final: Tensor) -> nn.Module | None:
    """Find the module that makes the final norm out of the last block's output; None when nothing does."""
    if torch.equal(hidden, final):
        return None
    for child in decoder.module.children():
        if isinstance(child, nn.ModuleList | nn.Embedding | nn.Dropout):
            continue
        try:
            found = child(hidden)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
            continue
        if isinstance(found, Tensor) and torch.equal(found, final):
            return child
    raise DecoderError(
        f"the final norm of the {decoder.description.family!r} decoder cannot be identified; "
        "extract its plans one by one instead of as a sweep."
    )
