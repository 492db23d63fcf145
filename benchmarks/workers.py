"""Two processes of one thread each against one: the same texts, extracted into shards.

Run as `ICECORE_DATA=... python -m benchmarks.workers`; its numbers go to results/cpu-workers.json.

Processes are started as a user starts them, by making the same `extract_shards` call in each. They wait for each other
once, after the decoder is loaded, so that start-up can be told from extraction.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.extraction import POOLINGS, choose_sentences
from benchmarks.machine import describe_machine
from extract.store.cache import ShardedCache

OUT = Path(__file__).parent / "results" / "cpu-workers.json"
BAR = ">= 1.6"
SIDES = (1, 2)


def extract_here(decoder_name: str, folder: Path, *, n_texts: int, window: int) -> dict[str, Any]:
    """Load the decoder, say so, wait for the word to begin, and extract; return rows and seconds."""
    from extract.decoders.decoder import load_decoder
    from extract.run.extraction_spec import ExtractionProgress, ExtractionSpec
    from extract.run.shards import extract_shards

    class Counted(ExtractionProgress):
        n_rows = n_tokens = 0

        def advance(self, *, n_rows: int, n_tokens: int) -> None:
            self.n_rows += n_rows
            self.n_tokens += n_tokens

    decoder, texts, counted = load_decoder(decoder_name), choose_sentences(n_texts)[1], Counted()
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    spec = ExtractionSpec(poolings=POOLINGS)
    extract_shards(decoder, texts, folder=folder, spec=spec, window=window, progress=counted)
    seconds = time.perf_counter() - began
    return {"n_rows": counted.n_rows, "n_tokens": counted.n_tokens, "seconds": seconds}


def extract_with(n_workers: int, folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Extract with so many processes; time from the first start, and from the moment when all are loaded."""
    command = [sys.executable, "-m", "benchmarks.workers", *arguments, "--here", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    started = time.perf_counter()
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(n_workers)
    ]
    for worker in workers:
        assert worker.stdout is not None
        if worker.stdout.readline().strip() != "ready":
            raise RuntimeError("a process ended before its decoder was loaded; its message is above")
    began = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    own = [json.loads(worker.communicate()[0].splitlines()[-1]) for worker in workers]
    return {
        "whole": time.perf_counter() - started,
        "extraction": max(each["seconds"] for each in own),
        "loading": began - started,
        "workers": own,
    }


def require_equal(one: ShardedCache, other: ShardedCache) -> int:
    """Compare every array of two folders of shards; return the latents that were compared.

    Raises:
        RuntimeError: One differs; names it.
    """
    if one.identity != other.identity or one.n_shards != other.n_shards:
        raise RuntimeError("the two folders hold shards of different extractions")
    names = sorted({*one.index.shards[0].layout} - {"/certificate", "/checksums/certificate"})
    for name in names:
        if one._file.read(name).tobytes() != other._file.read(name).tobytes():
            raise RuntimeError(f"array {name} differs between one process and several")
    return len(one) * len(one.layers) * len(one.poolings)


def compare_workers(arguments: list[str], folder: Path, *, repeats: int) -> dict[str, Any]:
    """Extract with one process and with two in turn: A B, B A, A B ...; one round more goes untimed before."""
    rounds: list[dict[int, dict[str, Any]]] = []
    n_equal = 0
    for k in range(-1, repeats):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            order = SIDES if k % 2 == 0 else SIDES[::-1]
            found = {n: extract_with(n, Path(name) / str(n), arguments) for n in order}
            n_equal = require_equal(*(ShardedCache(Path(name) / str(n)) for n in SIDES))
        if k >= 0:
            rounds.append(found)
        sys.stderr.write(f"{k}: {found}\n")
    one, two = SIDES
    result: dict[str, Any] = {"rounds": [{str(n): each[n] for n in SIDES} for each in rounds], "n_equal": n_equal}
    for part in ("extraction", "whole"):
        ratios = [each[one][part] / each[two][part] for each in rounds]
        seconds = {str(n): statistics.median(each[n][part] for each in rounds) for n in SIDES}
        result[part] = {"bar": BAR, "ratio": statistics.median(ratios), "ratios": ratios, "seconds": seconds}
    return result


def main() -> None:
    """Compare two processes of one thread with one, and write JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--decoder", default="smollm2-135m-instruct")
    parser.add_argument("--texts", type=int, default=1024, help="sentences of STS-B")
    parser.add_argument("--window", type=int, default=128, help="texts of a shard; the processes share windows")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of extractions, after one that is not timed")
    parser.add_argument("--folder", type=Path, default=None, help="where shards are written, and removed at the end")
    parser.add_argument("--here", type=Path, help="extract into this folder in this process, once told to")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(extract_here(asked.decoder, asked.here, n_texts=asked.texts, window=asked.window)))
        return
    arguments = ["--decoder", asked.decoder, "--texts", str(asked.texts), "--window", str(asked.window)]
    source, texts = choose_sentences(asked.texts)
    result = {
        "texts": {"source": source, "n": len(texts), "window": asked.window},
        "decoder": asked.decoder,
        "poolings": list(POOLINGS),
        "repeats": asked.repeats,
        **describe_machine(),
        "device": "cpu, one thread a process",
        **compare_workers(arguments, asked.folder, repeats=asked.repeats),
    }
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for part in ("extraction", "whole"):
        print(f"{part}: two processes are {result[part]['ratio']:.2f} times as fast as one ({result[part]['seconds']})")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
