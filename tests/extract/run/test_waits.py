"""Nothing in the loop over batches waits for the device: counted on a pretended one, and by CUDA itself on a GPU."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import NonFiniteLatentError
from extract.inputs.joined_text import JoinedText
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.poolings.memory import LANES
from extract.poolings.pooling_table import POOLINGS
from extract.run import extraction
from extract.run.extraction import Extraction, Workers, extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import sweep_latents
from extract.store.cache import LatentCache
from extract.wiring.batch_proof import BatchProof
from extract.wiring.states import pool_batch
from tests.extract.pretended import spread
from tests.extract.recorder import Recorder
from tests.extract.tiny_decoders import assert_same_arrays, make_decoder, make_texts
from tests.extract.waits import LateLane, Waits

PARTS = {
    "llama": ("embed_tokens", "rotary_emb", "layers", "norm"),
    "gemma2": ("embed_tokens", "rotary_emb", "layers", "norm"),
    "bloom": ("word_embeddings", "word_embeddings_layernorm", "h", "ln_f"),  # masks by argument
}
LAYER_KEY = {"bloom": "n_layer"}
TEXTS = make_texts(16)
MASKS = "extract.wiring.plan_wiring > transformers.masking_utils: _local_scalar_dense"
WINDOW = {"extract.wiring.attention: index by a mask", "extract.wiring.attention: _local_scalar_dense"}
KNOWN = {"llama": {MASKS: 1}, "gemma2": {MASKS: 2}, "bloom": dict.fromkeys(WINDOW, 1)}
"""What is waited for at most, per batch: transformers asks, for each kind of mask, whether rows are packed or padded;
families past its interface show their window in their mask."""
LONG = " ".join(make_texts(20))
WORDS = [JoinedText("The mouse ran.", ((0, 3), (4, 9), (10, 13))), JoinedText("Ice!", ((0, 3),))]
CASES: dict[str, tuple[str, Sequence[Any], dict[str, Any]]] = {
    "untouched": ("llama", TEXTS, {"poolings": ("mean", "last"), "storage_dtype": "bfloat16"}),
    "plan": ("llama", TEXTS, {"poolings": ("mean", "last"), "plan": "nosink-bidirectional:2"}),
    "every-pooling": (
        "llama",
        TEXTS,
        {"poolings": ("median", "max", "first", "weighted-mean", "token:0", "last:2", "role:text")},
    ),
    "taps": ("llama", TEXTS, {"plan": "backward:1", "layers": ("block_02.value", "block_02.mid")}),
    "prepending": ("llama", TEXTS, {"plan": "causal~tp1-2"}),
    "key-and-value": ("llama", TEXTS, {"plan": "causal~kv1-2"}),
    "architecture": ("llama", TEXTS, {"plan": "extra/backward:2"}),
    "windows": ("llama", [LONG, *TEXTS[:5]], {"template": InputTemplate(on_long="windows")}),
    "words": ("llama", WORDS, {}),
    "reba": ("llama", TEXTS, {"poolings": ("reba-mean",), "template": InputTemplate(repeat=2)}),
    "sliding": ("gemma2", TEXTS, {"plan": "backward:2"}),
    "by-argument": ("bloom", TEXTS, {"plan": "backward:2"}),
}


class Loops:
    """Watches the loop over batches: what it waited for, and how many batches it had."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.waits, self.n_batches = Waits(), 0
        batches = Extraction.batches

        def counted(which: Extraction, is_done: NDArray[np.bool_]) -> Iterator[Any]:
            for batch in batches(which, is_done):
                self.n_batches += 1
                yield batch

        patch.setattr(Extraction, "batches", counted)
        patch.setattr(extraction, "SHARE", 0.0)  # comparing the weights reads them off their device, and is no wait
        patch.setattr(extraction.Session, "_pump", self.watched(extraction.Session._pump))

    def watched(self, pump: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            with self.waits:
                pump(*args)

        return run

    def beyond(self, family: str) -> Counter[str]:
        """What was waited for beyond the known."""
        return self.waits.found - Counter({why: n * self.n_batches for why, n in KNOWN[family].items()})


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Loops:
    """Watch the loops of a test."""
    monkeypatch.setitem(LANES, "lazy", LateLane)
    return Loops(monkeypatch)


@contextmanager
def far_away(family: str = "llama", *, n_layers: int = 3) -> Iterator[Any]:
    """Make a decoder on a pretended device."""
    sizes: dict[str, Any] = {LAYER_KEY.get(family, "num_hidden_layers"): n_layers}
    decoder = make_decoder(family, **sizes)
    with spread(decoder.module, dict.fromkeys(PARTS[family], "lazy:0")):
        yield decoder


def extract(family: str, texts: Sequence[Any], folder: Path, *, n_layers: int = 3, **settings: Any) -> LatentCache:
    """Extract with a decoder on a pretended device."""
    with far_away(family, n_layers=n_layers) as decoder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*and their ends were left out")
        return extract_latents(decoder, texts, spec=ExtractionSpec(batch_tokens=96, **settings), folder=folder)


@pytest.mark.parametrize("case", ["untouched", "plan", "by-argument"])
def test_nothing_waits_but_what_is_known(loops: Loops, tmp_path: Path, case: str) -> None:
    family, texts, settings = CASES[case]
    extract(family, texts, tmp_path, **settings)
    assert loops.n_batches > 1
    assert loops.beyond(family) == Counter()


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_nothing_waits_however_many_layers_there_are(loops: Loops, tmp_path: Path, case: str) -> None:
    family, texts, settings = CASES[case]
    extract(family, texts, tmp_path / "few", **settings)
    few, loops.waits.found = loops.waits.found, Counter()
    extract(family, texts, tmp_path / "many", n_layers=4, **settings)
    assert loops.waits.found == few
    loops.n_batches //= 2
    assert loops.beyond(family) == Counter()


@pytest.mark.long
def test_nothing_waits_in_a_sweep(loops: Loops, tmp_path: Path) -> None:
    plans = [parse_plan(text) for text in ("backward:1", "nosink-causal:2", "extra/backward:2")]
    with far_away() as decoder:
        sweep_latents(decoder, TEXTS, plans, spec=ExtractionSpec(batch_tokens=96), folder=tmp_path)
    # A sweep looks once for the final norm.
    norm = Counter({key: n for key, n in loops.waits.found.items() if key.startswith("extract.wiring.states")})
    assert norm.total() <= 4
    assert loops.beyond("llama") - norm == Counter()


def test_what_waits_is_counted(loops: Loops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(hidden: Tensor, _: object) -> Tensor:
        assert bool(hidden.isfinite().all())
        return hidden[:, 0].to("cpu").to(hidden.device)

    monkeypatch.setitem(POOLINGS, "first", (careless, ""))
    extract("llama", TEXTS, tmp_path, poolings=("first",))
    n_pooled = 5 * loops.n_batches
    assert loops.beyond("llama") == Counter(
        {
            f"extract.wiring.states: {why}": n_pooled
            for why in ("_local_scalar_dense", "copy to the host", "copy to the device")
        }
    )


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_late_copies_bring_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str) -> None:
    plain = extract("llama", TEXTS, tmp_path / "plain", poolings=("mean", "last"), storage_dtype=storage)
    monkeypatch.setitem(LANES, "lazy", LateLane)
    late = extract("llama", TEXTS, tmp_path / "late", poolings=("mean", "last"), storage_dtype=storage)
    assert_same_arrays(plain.path, late.path)


def spoil_row(decoder: Any, *, n_batches: int, value: float) -> Recorder:
    """Spoil one number of the second block's output in a batch, once the certificates are done."""
    seen = 0

    def hook(_: Any, __: Any, output: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        if seen != n_batches:
            return output
        changed = output.clone()
        changed[0, :, 5] = value
        return changed

    return Recorder(on_start=lambda: decoder.blocks[1].register_forward_hook(hook))


@pytest.mark.parametrize(("storage", "value"), [("float32", float("nan")), ("float16", 1e6)])
@pytest.mark.parametrize("lane", [True, False])
def test_a_latent_found_late_is_refused_by_the_same_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane: bool, storage: str, value: float
) -> None:
    if lane:
        monkeypatch.setitem(LANES, "lazy", LateLane)
    monkeypatch.setattr("extract.run.extraction.SHARE", 0.0)  # no batch is proved before the spoilt one
    sentences = []
    for place in (tmp_path / "near", tmp_path / "far"):
        with far_away() if place.name == "far" else _near() as decoder:
            spec = ExtractionSpec(batch_tokens=96, storage_dtype=storage)
            with pytest.raises(NonFiniteLatentError, match="at layer block_02, pooling mean, dimension 5, text") as why:
                progress = spoil_row(decoder, n_batches=3, value=value)
                extract_latents(decoder, TEXTS, spec=spec, folder=place, progress=progress)
        (path,) = place.glob("*.h5")
        cache = LatentCache(path, allow_partial=True)
        found = re.search(r"text (\d+) \(", str(why.value))
        assert found is not None
        assert cache.n_done == progress.n_written > 0, "the batches before the spoilt one are not there"
        assert progress.n_batches == 2
        sentences.append(str(why.value))
    assert sentences[0] == sentences[1]
    assert ("latent 1e+06" if value == 1e6 else "latent nan") in sentences[0]


@contextmanager
def _near() -> Iterator[Any]:
    yield make_decoder()


def test_processes_of_one_decoder_stop_at_the_same_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_pooled = []

    def counted(*args: Any, **how: Any) -> Tensor:
        n_pooled.append(1)
        return pool_batch(*args, **how)

    monkeypatch.setattr("extract.run.extraction.pool_batch", counted)
    for rank in (0, 1):
        n_pooled.clear()
        decoder = make_decoder()
        # Where rank 1 stands alone, somebody must have laid the store out: rank 0, above.
        with pytest.raises(NonFiniteLatentError, match="at layer block_02"):
            extract_latents(
                decoder,
                TEXTS,
                spec=ExtractionSpec(batch_tokens=96),
                folder=tmp_path,
                progress=spoil_row(decoder, n_batches=3 if rank == 0 else 1, value=float("nan")),
                workers=Workers(rank, 2, shares_decoder=True),
            )
        assert len(n_pooled) == (3 if rank == 0 else 1)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["untouched", "plan", "words", "windows", "sliding"])
def test_a_gpu_gives_what_the_cpu_does_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    family, texts, settings = CASES[case]
    spec = ExtractionSpec(batch_tokens=96, **settings)
    plain = extract_latents(make_decoder(family), texts, spec=spec, folder=tmp_path / "cpu")
    decoder = make_decoder(family)
    torch.nn.Module.to(decoder.module, "cuda")
    pump, seen = extraction.Session._pump, list[warnings.WarningMessage]()

    def watching(mode: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode(mode)
            try:
                return call(*args, **kwargs)
            finally:
                torch.cuda.set_sync_debug_mode(before)

        return watched

    def strict(*args: Any) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watching("warn", pump)(*args)
        seen.extend(each for each in caught if "synchroniz" in str(each.message))

    comparing = [(BatchProof, "_compute_again"), (BatchProof, "_require_equal"), (extraction.Session, "require_frozen")]
    for owner, name in comparing:  # proofs wait for what they compare
        monkeypatch.setattr(owner, name, watching("default", getattr(owner, name)))
    monkeypatch.setattr(extraction.Session, "_pump", strict)
    found = extract_latents(decoder, texts, spec=spec, folder=tmp_path / "gpu")
    # What transformers asks when it builds its masks is known; `error` in place of `warn` would stop there.
    assert not [f"{each.filename}:{each.lineno}" for each in seen if "masking_utils" not in each.filename]
    for layer in found.layers:
        for name in found.poolings:
            wanted, got = (torch.as_tensor(cache.to_numpy(layer, name)).float() for cache in (plain, found))
            bound = 2e-2 if settings.get("storage_dtype") == "bfloat16" else 1e-3
            assert float((got - wanted).abs().max()) <= bound * float(wanted.abs().max()), (layer, name)
