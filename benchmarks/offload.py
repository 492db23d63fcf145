"""What offloading costs: batches of a decoder whose blocks wait in main memory or on disk, beside one that is whole.

`-m benchmarks.offload` writes benchmarks/results/cpu-offload.json: the three sides in turn, medians over the rounds.
"""

import argparse
import json
import os
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import cpu_offload

from benchmarks.machine import describe_machine
from benchmarks.timing import seconds_of
from extract.decoders.decoder import Decoder, is_offloaded, load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.wiring.plan_wiring import plain_batch, probe_ids
from extract.wiring.states import pool_batch

RESULTS = Path(__file__).resolve().parent / "results" / "cpu-offload.json"
SHAPES = ((1, 16), (4, 64))
"""Rows and tokens of the batches."""


def load_sides(name: str, folder: str) -> dict[str, Decoder]:
    """Load a decoder three times: whole, its weights brought in from main memory, and from disk."""
    whole = load_decoder(DecoderSpec(name, device="cpu"))
    held = load_decoder(DecoderSpec(name, device="cpu"))
    cpu_offload(held.module, execution_device=torch.device("cpu"))
    blocks: dict[str, str | int] = {f"model.layers.{i}": "disk" for i in range(len(whole.blocks))}
    rest = dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"), "cpu")
    disk = load_decoder(DecoderSpec(name, device_map={**rest, **blocks}, offload_folder=folder))
    assert all(is_offloaded(block) for side in (held, disk) for block in side.blocks)
    return {"whole": whole, "main memory": held, "disk": disk}


def measure(sides: dict[str, Decoder], *, shape: tuple[int, int], rounds: int) -> dict[str, Any]:
    """Time a batch on every side in turn, after one round to warm up, and check that latents are the same."""
    n_rows, n_tokens = shape
    whole = sides["whole"]
    batch = plain_batch(torch.stack([probe_ids(whole, n_tokens, seed=row) for row in range(n_rows)]))
    found: dict[str, torch.Tensor] = {}

    def run(name: str) -> None:
        found[name] = pool_batch(sides[name], batch, poolings=("mean", "last"), layers=whole.layers)

    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in list(sides) if number % 2 else list(sides)[::-1]:
            took = seconds_of(partial(run, name))
            if number:
                seconds[name].append(took)
    assert all(torch.equal(latents, found["whole"]) for latents in found.values())
    ratios = {
        name: [side / other for side, other in zip(taken, seconds["whole"], strict=True)]
        for name, taken in seconds.items()
        if name != "whole"
    }
    return {
        "n_rows": n_rows,
        "n_tokens": n_tokens,
        "seconds": {name: statistics.median(taken) for name, taken in seconds.items()},
        "ratios": {name: {"median": statistics.median(each), "all": each} for name, each in ratios.items()},
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decoder", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides = load_sides(asked.decoder, folder)
        batches = [measure(sides, shape=shape, rounds=asked.rounds) for shape in SHAPES]
    content = {
        "batches": batches,
        "rounds": asked.rounds,
        "load": os.getloadavg()[0],
        "decoder": sides["whole"].description.to_dict(),
        **describe_machine(),
    }
    asked.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
