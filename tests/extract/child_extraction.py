"""A whole extraction in a process of its own, for tests that kill it, measure it, or launch it several times.

Command: `python -m tests.extract.child_extraction FOLDER N_TEXTS BATCH_TOKENS WIDTH [words|shards]`;
prints its rank, the store and its peak memory in kB.
"""

import resource
import sys
from pathlib import Path

import torch

from extract.inputs.joined_text import join_words
from extract.inputs.template import InputTemplate
from extract.run import extraction
from extract.run.extraction import extract_latents, join_workers
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.run.shards import extract_shards
from tests.extract.tiny_decoders import make_decoder, make_texts


def main(folder: str, n_texts: str, batch_tokens: str, width: str, kind: str = "texts") -> None:
    """Extract; words of texts longer than 20 tokens in windows, shards of 100 texts."""
    extraction.SHARE = 1.0  # the weights are compared often, so that a kill leaves rows that count
    torch.set_num_threads(1)  # however it is started: sums of two threads differ in their last bit
    spec = ExtractionSpec(poolings=("last", "mean", "max"), batch_tokens=int(batch_tokens))
    if kind == "words":
        template = InputTemplate(max_tokens=20, on_long="windows")
        spec = ExtractionSpec(words=WordSpec(("last", "mean")), batch_tokens=int(batch_tokens), template=template)
    workers = join_workers("cpu")
    decoder = make_decoder(hidden_size=int(width), adds_bos=True)
    texts = make_texts(int(n_texts))
    if kind == "shards":
        extract_shards(decoder, texts, spec=spec, folder=folder, window=100)
        return
    joined = [join_words(text.split(), [True] * len(text.split())) for text in texts]
    cache = extract_latents(decoder, joined if kind == "words" else texts, spec=spec, folder=folder, workers=workers)
    sys.stdout.write(f"{workers.rank} {cache.path} {peak_memory()}\n")


def peak_memory() -> int:
    """Read the peak of this process in kB; `ru_maxrss` counts that of the process that started it, too."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
