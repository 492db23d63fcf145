"""What ReBA costs beside the plain forward pass of the very same repeated rows: time, and memory at its peak."""

import resource
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import Comparison, compare
from extract.decoders.decoder import Decoder
from extract.inputs.batches import Batch, collate
from extract.inputs.joined_text import TEXT
from extract.inputs.tokens import EncodedText
from extract.masks.mask_plan import CAUSAL_KIND
from extract.wiring.attention import wired
from extract.wiring.plan_wiring import probe_ids
from extract.wiring.states import pool_batch

TOKENS = (512, 1024)  # of a row, both copies together
ROW_TOKENS = 1024  # of a batch


def compare_reba(decoder: Decoder, *, repeats: int) -> tuple[list[Comparison], dict[str, Any]]:
    """Compare ReBA of every layer with mean pooling of every layer, on rows of a text written twice.

    Returns:
        The comparisons, ReBA / plain, and for each what the peak of memory grew by, in MB.
    """
    causal, found, grown = [CAUSAL_KIND] * len(decoder.blocks), [], {}
    for n_tokens in TOKENS:
        batch = repeated_rows(decoder, n_tokens=n_tokens, n_rows=max(1, ROW_TOKENS // n_tokens))

        def run(poolings: tuple[str, ...], batch: Batch = batch) -> Callable[[], None]:
            def once() -> None:
                pool_batch(decoder, batch, poolings=poolings, layers=decoder.layers)

            def watched() -> None:
                with wired(decoder.module, decoder.blocks, causal, family=decoder.description.family):
                    once()

            return watched if poolings[0].startswith("reba") else once

        plain, reba = run(("mean", "last")), run(("reba-mean", "reba-last"))
        plain()
        before = peak_memory()
        reba()
        grown[f"{n_tokens} tokens"] = round((peak_memory() - before) / 2**20, 1)
        name = f"ReBA-2 vs plain forward, rows of {n_tokens} tokens"
        found.append(compare(name, (("reba", reba), ("plain", plain)), bar="<= 2.0", repeats=repeats))
    return found, {"peak_grew_by_mb": grown}


def repeated_rows(decoder: Decoder, *, n_tokens: int, n_rows: int) -> Batch:
    """Make rows of random tokens, the second half of each a copy of the first."""
    rows = []
    for seed in range(n_rows):
        once = probe_ids(decoder, n_tokens // 2, seed=seed)
        ids, copies = torch.cat([once, once]).numpy(), torch.tensor([1, 2]).repeat_interleave(len(once))
        roles = torch.full((n_tokens,), TEXT, dtype=torch.int8).numpy()
        rows.append(EncodedText(ids, roles, False, copy_of=copies.to(torch.int8).numpy()))
    return collate(rows, range(n_rows))


def peak_memory() -> int:
    """Return the most bytes held so far: on an accelerator of its own, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
