"""What proofs cost: processor time of those before an extraction and of those of its batches, as shares of one run.

Run as `OMP_NUM_THREADS=1 python -m benchmarks.proofs --texts 300`; numbers go to results/cpu-proofs.json, one entry for
every decoder, plan and number of texts. Both sides are timed in one run, so that other work on the machine slows both.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.machine import describe_machine
from extract.decoders.decoder import Decoder, load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.inputs.batches import collate, group_texts
from extract.inputs.tokens import TextEncoder
from extract.masks.mask_plan import parse_plan
from extract.poolings.pooling_table import RebaOptions
from extract.run import extraction
from extract.run.extraction import extract_latents, unique_texts
from extract.run.extraction_spec import WINDOW_TEXTS, ExtractionSpec, batch_limits
from extract.wiring import certificate
from extract.wiring.batch_proof import MOST_ROWS, BatchProof
from extract.wiring.plan_wiring import plan_in_force
from extract.wiring.states import pool_batch
from probes.data.task_table import load_task

OUT = Path(__file__).parent / "results" / "cpu-proofs.json"
POOLINGS = ("last", "mean")
N_TOKENS = 14
"""Length of the rows of the batch that is proved as a whole."""
PLANS = ("causal", "nosink-bidirectional:10")
AT_START = (
    (extraction, "check_influence"),
    (extraction, "check_batch_invariance"),
    (extraction, "require_reading"),
)
"""Proofs before the first batch."""
UNWATCHED = (
    (certificate, "_require_equal_when_watched"),
    (certificate, "prove_copies"),
    (certificate, "require_truth"),
)
"""Those of them that compare with what is not watched, with copied states and with truth tables."""
OF_BATCHES = ((BatchProof, "add"), (BatchProof, "prove"))


class Clock:
    """Adds up the processor time that functions take in the thread that calls them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function."""

        def run(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                self.seconds += time.thread_time() - began

        return run


def time_proofs(decoder: Decoder, texts: Sequence[str], plan: str) -> dict[str, Any]:
    """Extract texts once; return the processor time of all of it, of proofs at the start and of those of batches."""
    clocks = {"at_start": Clock(), "unwatched": Clock(), "of_batches": Clock()}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for clock, places in zip(clocks.values(), (AT_START, UNWATCHED, OF_BATCHES), strict=True):
            for owner, name in places:
                stack.enter_context(patch.object(owner, name, clock.timed(getattr(owner, name))))
        began = time.process_time()
        spec = ExtractionSpec(plan=plan, poolings=POOLINGS)
        cache = extract_latents(decoder, texts, spec=spec, folder=folder)
        seconds = time.process_time() - began
        facts = {key: value for key, value in cache.certificate["batches"].items() if key != "largest_error"}
    rest = seconds - clocks["at_start"].seconds - clocks["of_batches"].seconds
    return {
        "seconds": seconds,
        **{f"seconds_{name}": clock.seconds for name, clock in clocks.items()},
        "ratio_of_batches": 1 + clocks["of_batches"].seconds / rest,
        "ratio_of_run": seconds / (seconds - clocks["of_batches"].seconds - clocks["unwatched"].seconds),
        **facts,
        **count_tokens(decoder, texts),
    }


def count_tokens(decoder: Decoder, texts: Sequence[str]) -> dict[str, int]:
    """Count the tokens, padding included, that an extraction of texts computes, and those that its proofs compute."""

    class Counted(BatchProof):
        n_proved = 0

        def _compute_again(self, rows: Any) -> torch.Tensor:
            self.n_proved += len(rows) * max(row.ids.shape[1] for row in rows)
            return torch.zeros(1, 1, len(rows), 1)

    proof = Counted(decoder, parse_plan("bidirectional"), POOLINGS, decoder.layers, RebaOptions(), "float32")
    spec = ExtractionSpec(poolings=POOLINGS)
    most, fewest = batch_limits(spec, decoder.device)
    encoder = TextEncoder(decoder.tokenizer, spec.template, window=decoder.description.window)
    n_tokens = 0
    for start in range(0, len(texts), WINDOW_TEXTS):
        encoded = encoder(texts[start : start + WINDOW_TEXTS])
        groups = group_texts(encoded, batch_tokens=most, min_tokens=fewest, split_length=decoder.split_length)
        for group in groups:
            batch = collate([encoded[i] for i in group], range(len(group)))
            n_tokens += batch.ids.numel()
            proof.add(batch, torch.zeros(1, 1, len(group), 1))
            proof.prove(is_closing=False)
    proof.prove()
    return {"n_tokens": n_tokens, "n_tokens_proved": proof.n_proved}


def compare_pass(decoder: Decoder, plan: str, *, repeats: int) -> float:
    """Compare a proof of every row of a batch with computing the batch; the median ratio of processor times."""
    encoder = TextEncoder(decoder.tokenizer, ExtractionSpec().template, window=decoder.description.window)
    rows = [item for item in encoder(choose_texts(4000)) if len(item.ids) == N_TOKENS][:MOST_ROWS]
    batch, ratios = collate(rows, range(len(rows))), []
    how: dict[str, Any] = {"poolings": POOLINGS, "layers": decoder.layers}
    with plan_in_force(decoder, parse_plan(plan)):
        for _ in range(repeats):
            began = time.thread_time()
            latents = pool_batch(decoder, batch, **how)
            between = time.thread_time()
            proof = BatchProof(decoder, parse_plan(plan), reba=RebaOptions(), storage="float32", **how)
            proof.n_batches = 1  # the next is proved as a whole
            proof.add(batch, latents)
            proof.prove()
            ratios.append((time.thread_time() - between) / (between - began))
    return statistics.median(ratios)


def choose_texts(n: int) -> list[str]:
    """Take sentences of STS-B and questions of Banking77, evenly over both."""
    texts: list[str] = []
    for rows in load_task("stsb-local").splits.values():
        texts += [text for pair in zip(rows["sentence1"], rows["sentence2"], strict=True) for text in pair]
    for rows in load_task("banking77").splits.values():
        texts += rows["text"]
    texts = unique_texts(texts)
    return [texts[i * len(texts) // n] for i in range(n)]


def main() -> None:
    """Measure one decoder; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decoder", default="smollm2-135m-instruct")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--plans", nargs="+", default=PLANS)
    parser.add_argument("--only-count", action="store_true", help="extrapolate from counted tokens and one batch")
    asked = parser.parse_args()
    decoder, texts = load_decoder(DecoderSpec(asked.decoder), report=print), choose_texts(asked.texts)
    results = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {"runs": {}}
    name = decoder.description.name
    for plan in asked.plans:
        key = f"{name}, {plan}, {asked.texts} texts"
        if asked.only_count:
            counts, cost = count_tokens(decoder, texts), compare_pass(decoder, plan, repeats=asked.repeats)
            share = counts["n_tokens_proved"] / counts["n_tokens"]
            results["runs"][key] = {**counts, "ratio_of_pass": cost, "extrapolated_ratio_of_batches": 1 + share * cost}
        else:
            runs = [time_proofs(decoder, texts, plan) for _ in range(asked.repeats)]
            runs.sort(key=lambda run: run["ratio_of_batches"])
            results["runs"][key] = runs[len(runs) // 2]  # the median
        print(key, json.dumps(results["runs"][key], indent=1))
        OUT.write_text(json.dumps({**results, **describe_machine()}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
