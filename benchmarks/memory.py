"""Peak memory of an extraction of 10x the rows, each in a process of its own."""

import json
import subprocess
import sys

CHILD = """
import json, resource, sys, tempfile
from extract import ExtractionSpec, extract_latents, load_decoder
decoder = load_decoder(sys.argv[1])
n = int(sys.argv[2])
# Sentences of the same spread of lengths, all different.
texts = [" ".join(f"word{(i * 7 + k) % 997}" for k in range(4 + i % 12)) + f" {i}" for i in range(n)]
with tempfile.TemporaryDirectory() as folder:
    extract_latents(decoder, texts, spec=ExtractionSpec(layers=("blocks",)), folder=folder)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
"""


def peak_bytes(decoder: str, n_rows: int) -> int:
    """Measure the peak resident memory of an extraction in a process of its own.

    Args:
        decoder: Decoder name.
        n_rows: Texts.

    Returns:
        Bytes.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHILD, decoder, str(n_rows)], check=True, capture_output=True, text=True
    )
    return int(json.loads(done.stdout.splitlines()[-1]))


def memory_growth(decoder: str, *, n_rows: int = 300) -> dict[str, float]:
    """Compare the peak memory of `n_rows` and ten times as many."""
    small, large = peak_bytes(decoder, n_rows), peak_bytes(decoder, 10 * n_rows)
    return {"rows": n_rows, "bytes": small, "bytes_10x": large, "growth": large / small - 1}
