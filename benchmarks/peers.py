"""Extraction beside other programs that give latents of the same texts; each must give the same numbers first.

sentence-transformers gives the mean of one layer, NeuroX every layer of every word. One that is not installed is
skipped by name. probelab 0.1 leaves the forward pass to a package that no index has, so it cannot be timed.
"""

import contextlib
import io
import shutil
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from benchmarks.timing import Comparison, compare
from extract.decoders.decoder import Decoder
from extract.inputs.joined_text import join_words
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from probes.export.sentence_transformers import export_sentence_transformer, load_sentence_transformer

MEAN = ExtractionSpec(poolings=("mean",))
CLOSE = 1e-3
"""Most that latents may differ, relative to the largest value of a layer."""


def compare_with_peers(
    decoder: Decoder, place: Path, texts: Sequence[str], *, repeats: int
) -> tuple[list[Comparison], dict[str, str]]:
    """Time extractions of every layer against each peer that is installed.

    Args:
        decoder: The decoder.
        place: Its folder in hub layout.
        texts: Different texts without repeated blanks.
        repeats: Timed pairs.

    Returns:
        Comparisons, and why a peer was skipped, by name.
    """
    found, skipped = [], {"probelab": "its collection of latents needs a package that is on no index"}
    with tempfile.TemporaryDirectory() as name:
        for peer, measure in (("sentence_transformers", _sentence_transformers), ("neurox", _neurox)):
            if find_spec(peer) is None:
                skipped[peer] = "not installed"
                continue
            found.append(measure(decoder, place, list(texts), Path(name), repeats))
    return found, skipped


def _sentence_transformers(decoder: Decoder, _: Path, texts: list[str], folder: Path, repeats: int) -> Comparison:
    # Read plainly, a folder of a chat model would be given every text in chat marks.
    recipe = export_sentence_transformer(decoder, MEAN, folder / "model", layer="final_norm")
    if not recipe.is_stock:
        raise SystemExit("sentence-transformers would read this decoder by a module of ours; choose another one")
    model = load_sentence_transformer(folder / "model", device=str(decoder.device))

    def theirs() -> Any:
        return model.encode(texts, batch_size=32, show_progress_bar=False)

    ours = _extraction(decoder, texts, MEAN, folder / "caches")
    cache = ours()
    last = cache.gather(cache.rows_of(texts), "mean", layers="final_norm")[0].numpy()
    _require_close(theirs(), last, "sentence-transformers")
    sides = (("sentence-transformers, one layer", theirs), ("icecore, every layer", ours))
    return compare("extraction vs sentence-transformers", sides, bar=">= 3.5", repeats=repeats)


def _neurox(decoder: Decoder, place: Path, texts: list[str], folder: Path, repeats: int) -> Comparison:
    from neurox.data.extraction.transformers_extractor import extract_representations

    corpus, out = folder / "corpus.txt", folder / "neurox.hdf5"
    corpus.write_text("\n".join(texts) + "\n", encoding="utf-8")

    def theirs() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            extract_representations(str(place), str(corpus), str(out), aggregation="last", output_type="hdf5")

    joined = [join_words(words, [True] * len(words)) for words in (text.split(" ") for text in texts)]
    spec = ExtractionSpec(words=WordSpec(poolings=("last",)))
    ours = _extraction(decoder, joined, spec, folder / "caches")
    cache = ours()
    theirs()
    with h5py.File(out) as file:
        first = np.asarray(file["0"])
    seen = [*cache.layers[:-2], cache.layers[-1]]  # transformers shows the last block behind the final norm
    words = cache.words_of(joined[:1]).positions
    _require_close(first, cache.gather(words, "last", layers=seen).numpy(), "NeuroX")
    sides = (("NeuroX, every word", theirs), ("icecore, every word", ours))
    return compare("extraction vs NeuroX", sides, bar=">= 6", repeats=repeats)


def _extraction(decoder: Decoder, texts: list[Any], spec: ExtractionSpec, folder: Path) -> Callable[[], Any]:
    def run() -> Any:
        shutil.rmtree(folder, ignore_errors=True)
        return extract_latents(decoder, texts, spec=spec, folder=folder)

    return run


def _require_close(theirs: Any, ours: Any, peer: str) -> None:
    theirs, ours = torch.as_tensor(np.asarray(theirs)), torch.as_tensor(np.asarray(ours))
    gap = float((theirs - ours).abs().max() / ours.abs().max())
    if theirs.shape != ours.shape or gap > CLOSE:
        raise SystemExit(f"{peer} gives other latents: {tuple(theirs.shape)} and {tuple(ours.shape)}, {gap:.1e} apart")
