"""A grid of 3 axes of 4 values on the shipped sample: its cost against separate runs, and its bits after kills.

    python -m benchmarks.sweep_cost --folder sweep-cost [--runs 16] [--out benchmarks/results/cpu-sweep.json]

One `icecore sweep` over 64 points, and the same in another folder that is killed several times and started again until
it ends. Then `icecore run` for some of the points, drawn evenly, each with caches of its own: their mean stands for all
64. Cost is processor time of whole processes, start included.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe_machine
from extract.store.cache import LatentCache

AXES: dict[str, tuple[str, ...]] = {
    "extraction.plan": ("causal", *(f"nosink-bidirectional:{k}" for k in (5, 10, 15))),
    "extraction.poolings": ("mean", "last", "first", "max"),
    "heads.layer-cosine.transform": ("none", "centre", "standardise", "none+centre"),
}
CONFIG = ("--task.name", "sts-sample", "--task.pairs", "20", "--heads", "{layer-cosine: {}}", "--bootstrap", "100")
N_KILLS = 5


def command(verb: str, folder: Path, *options: str) -> list[str]:
    """Write a command of icecore whose caches and runs are in a folder."""
    places = ("--name", "sample", "--caches", str(folder / "caches"), "--runs", str(folder / "runs"))
    return [sys.executable, "-m", "probes.cli.main", verb, *CONFIG, *places, "--quiet", *options]


def processor_seconds(words: list[str]) -> float:
    """Run a command, and return the processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def kill_until_done(words: list[str], *, seconds: float, n_kills: int, seed: int = 0) -> int:
    """Run a command, killing it at random moments of `seconds`, and once more to its end; return how many hit."""
    chance, hits = random.Random(seed), 0
    for _ in range(n_kills):
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            child.wait(chance.uniform(0.1, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            hits += 1
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return hits


def bits_of(folder: Path) -> dict[str, bytes]:
    """Read what a sweep ends with: its table of points, and the latents of every cache."""
    found = {"points.csv": (folder / "runs/sample-sweep/points.csv").read_bytes()}
    for path in sorted((folder / "caches").glob("*.h5")):
        cache = LatentCache(path)
        for pooling in cache.poolings:
            for layer in cache.layers:
                latents = cache.layer(layer, pooling).contiguous()
                found[f"{path.name} {pooling} {layer}"] = latents.view(torch.uint8).numpy().tobytes()
    return found


def drawn_points(n: int) -> list[Mapping[str, str]]:
    """Draw points evenly: every value of every axis as often, for a multiple of 4."""
    (a, of_a), (b, of_b), (c, of_c) = AXES.items()
    cycles = ((i, (i + i // 4) % 4, (i + 2 * (i // 4)) % 4) for i in range(n))
    return [{a: of_a[i % 4], b: of_b[j], c: of_c[k]} for i, j, k in cycles]


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    shutil.rmtree(asked.folder, ignore_errors=True)
    over = [word for key, values in AXES.items() for word in ("--over", f"{key}={','.join(values)}")]
    started = time.monotonic()
    swept = processor_seconds(command("sweep", asked.folder / "sweep", *over))
    elapsed = time.monotonic() - started
    print(f"sweep: {swept:.1f} s of the processor, {elapsed:.1f} s by the clock", flush=True)
    words = command("sweep", asked.folder / "killed", *over)
    n_hits = kill_until_done(words, seconds=elapsed, n_kills=N_KILLS)
    is_same = bits_of(asked.folder / "sweep") == bits_of(asked.folder / "killed")
    print(f"{n_hits} kills, the same bits: {is_same}", flush=True)
    seconds = []
    for number, point in enumerate(drawn_points(asked.runs)):
        options = [word for key, value in point.items() for word in (f"--{key}", value)]
        seconds.append(processor_seconds(command("run", asked.folder / f"run{number}", *options)))
        print(f"{point}: {seconds[-1]:.1f} s", flush=True)
    n_points = int(np.prod([len(values) for values in AXES.values()]))
    result: dict[str, Any] = {
        "command": f"python -m benchmarks.sweep_cost --folder sweep-cost --runs {asked.runs}",
        "machine": describe_machine(),
        "axes": AXES,
        "n_points": n_points,
        "sweep_seconds": round(swept, 1),
        "n_runs_measured": len(seconds),
        "run_seconds": [round(value, 1) for value in seconds],
        "separate_seconds": round(n_points * float(np.mean(seconds)), 1),
        "separate_seconds_are": f"the mean of {len(seconds)} runs, drawn evenly, times {n_points}",
        "ratio": swept / (n_points * float(np.mean(seconds))),
        "n_kills": n_hits,
        "is_same_after_kills": is_same,
    }
    print(f"ratio {result['ratio']:.3f}")
    if asked.out is not None:
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
