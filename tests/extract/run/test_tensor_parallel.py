"""One decoder split over two processes: the same decoder, the same latents to rounding, one cache.

Run as a module by torchrun, it extracts: `-m tests.extract.run.test_tensor_parallel DECODER FOLDER`.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from extract.decoders.decoder import load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.run.extraction import Workers, extract_latents, join_workers
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from tests.extract.tiny_decoders import make_texts, save_decoder

SPEC = ExtractionSpec(plan="nosink-bidirectional:2", poolings=("mean", "last"), batch_tokens=128)
TEXTS = make_texts(40)


def extract(decoder: str, folder: str) -> None:
    """Extract as one of the processes that torchrun started."""
    workers = join_workers(shares_decoder=True)
    split = load_decoder(DecoderSpec(decoder, tp_plan="auto"))
    assert type(next(split.blocks[0].parameters())).__name__ == "DTensor"
    extract_latents(split, TEXTS, spec=SPEC, folder=folder, workers=workers)


@pytest.mark.slow
def test_two_processes_hold_one_decoder(tmp_path: Path) -> None:
    decoder = save_decoder(tmp_path / "tiny-llama")
    whole = extract_latents(load_decoder(str(decoder)), TEXTS, spec=SPEC, folder=tmp_path / "whole")
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", __name__, str(decoder), str(tmp_path)]
    subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=500)
    (path,) = tmp_path.glob("*.h5")
    split = LatentCache(path)
    assert split.identity == whole.identity
    for layer in split.layers:
        for pooling in SPEC.poolings:
            found, wanted = (each.to_numpy(layer, pooling) for each in (split, whole))
            assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max(), (layer, pooling)


def test_who_shares_a_decoder_computes_every_batch_and_one_writes() -> None:
    alone, first, second = (
        Workers(rank, 2, shares_decoder=shared) for rank, shared in ((1, False), (0, True), (1, True))
    )
    assert [alone.computes(batch) for batch in range(4)] == [False, True, False, True]
    assert all(each.computes(batch) for each in (first, second) for batch in range(4))
    assert [each.writes for each in (alone, first, second)] == [True, True, False]


if __name__ == "__main__":
    extract(*sys.argv[1:])
