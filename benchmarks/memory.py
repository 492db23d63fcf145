"""Peak memory of an extraction of 10x the rows, of whole texts or of words, each in a process of its own."""

import json
import subprocess
import sys

CHILD = """
import json, resource, sys, tempfile
from pathlib import Path
from icecore import ExtractionSpec, WordSpec, extract_latents, join_words, load_decoder

def reset():
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass

def peak():
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024

decoder = load_decoder(sys.argv[1])
n, n_made = int(sys.argv[2]), int(sys.argv[3])
# Sentences of the same spread of lengths, all different.
plain = "the cat of a dog in house on red sea when they go out we see old ice under snow and sun".split()
rows = [[*(plain[(i * 7 + k) % len(plain)] for k in range(4 + i % 12)), str(i)] for i in range(n_made)]
if sys.argv[4] == "words":
    texts = [join_words(words, [True] * len(words)) for words in rows]
    spec = ExtractionSpec(layers=("blocks",), words=WordSpec(poolings=("mean",)), storage_dtype="float16")
else:
    texts, spec = [" ".join(words) for words in rows], ExtractionSpec(layers=("blocks",))
reset()
with tempfile.TemporaryDirectory() as folder:
    extract_latents(decoder, texts[:n], spec=spec, folder=folder)
print(json.dumps(peak()))
"""


def peak_bytes(decoder: str, n_rows: int, *, n_made: int, of: str = "texts") -> int:
    """Measure the peak resident memory of an extraction in a process of its own.

    On Linux, where a process can reset its peak, the peak of loading the decoder does not count.

    Args:
        decoder: Decoder name.
        n_rows: Texts to extract.
        n_made: Texts to create and keep in memory, however many are extracted.
        of: What to extract: `texts` or `words`.

    Returns:
        Bytes.
    """
    arguments = [decoder, str(n_rows), str(n_made), of]
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


def memory_growth(decoder: str, *, n_rows: int = 1500, of: str = "texts") -> dict[str, float]:
    """Compare the peak memory of `n_rows` and ten times as many, of whole texts or of `words`.

    Fewer rows than the default do not fill the largest batch or the queues between computing and writing.
    """
    small, large = (peak_bytes(decoder, n, n_made=10 * n_rows, of=of) for n in (n_rows, 10 * n_rows))
    return {"rows": n_rows, "bytes": small, "bytes_10x": large, "growth": large / small - 1}
