"""A whole extraction in a process of its own, for tests that kill it, measure it, or launch it several times.

Command: `python -m tests.extract.child_extraction FOLDER N_TEXTS BATCH_TOKENS WIDTH`;
prints its rank, the store and its peak memory in kB.
"""

import resource
import sys

from extract.runner import extract_latents
from extract.spec import ExtractionSpec
from extract.workers import join_workers
from tests.extract.tiny_decoders import make_decoder, make_texts


def main(folder: str, n_texts: str, batch_tokens: str, width: str) -> None:
    """Extract."""
    spec = ExtractionSpec(poolings=("last", "mean", "max"), batch_tokens=int(batch_tokens))
    workers = join_workers("cpu")
    decoder = make_decoder(hidden_size=int(width), adds_bos=True)
    cache = extract_latents(decoder, make_texts(int(n_texts)), spec=spec, folder=folder, workers=workers)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write(f"{workers.rank} {cache.path} {peak}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
