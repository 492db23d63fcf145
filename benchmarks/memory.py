"""Peak memory of an extraction of 10x the rows, of whole texts or of words, each in a process of its own."""

import json
import subprocess
import sys

CHILD = """
import json, resource, sys, tempfile
from extract import ExtractionSpec, WordSpec, extract_latents, join_words, load_decoder
decoder = load_decoder(sys.argv[1])
n = int(sys.argv[2])
# Sentences of the same spread of lengths, all different.
rows = [[*(f"word{(i * 7 + k) % 997}" for k in range(4 + i % 12)), str(i)] for i in range(n)]
if sys.argv[3] == "words":
    texts = [join_words(words, [True] * len(words)) for words in rows]
    spec = ExtractionSpec(layers=("blocks",), words=WordSpec(poolings=("mean",)))
else:
    texts, spec = [" ".join(words) for words in rows], ExtractionSpec(layers=("blocks",))
with tempfile.TemporaryDirectory() as folder:
    extract_latents(decoder, texts, spec=spec, folder=folder)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
"""


def peak_bytes(decoder: str, n_rows: int, *, of: str = "texts") -> int:
    """Measure the peak resident memory of an extraction in a process of its own.

    Args:
        decoder: Decoder name.
        n_rows: Texts.
        of: What is read of them: `texts`, or `words`.

    Returns:
        Bytes.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHILD, decoder, str(n_rows), of], check=True, capture_output=True, text=True
    )
    return int(json.loads(done.stdout.splitlines()[-1]))


def memory_growth(decoder: str, *, n_rows: int = 300, of: str = "texts") -> dict[str, float]:
    """Compare the peak memory of `n_rows` and ten times as many, of whole texts or of `words`."""
    small, large = (peak_bytes(decoder, n, of=of) for n in (n_rows, 10 * n_rows))
    return {"rows": n_rows, "bytes": small, "bytes_10x": large, "growth": large / small - 1}
