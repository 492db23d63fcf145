"""Batches of the extraction itself are proved, so that a decoder which cheats on these alone is caught."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from extract.decoders.decoder import wrap_decoder
from extract.errors import CertificateError
from extract.inputs.joined_text import JoinedText
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import KINDS, parse_plan
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.run.shards import sweep_latents
from extract.store.cache import LatentCache
from extract.wiring.attention import Wiring, attend, mask_argument
from extract.wiring.batch_proof import BatchProof, ComputedRow, length_class
from extract.wiring.plan_wiring import DRIFT_ALLOWED
from extract.wiring.states import pool_batch, walk_plans
from tests.extract.tiny_decoders import (
    FAMILIES,
    assert_same_arrays,
    make_decoder,
    make_model,
    make_texts,
    make_tokenizer,
)

SPEC = ExtractionSpec(poolings=("last", "mean"))
Cheats = Callable[["Cheat", int, int], bool]


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None) -> None:
    """Save the time of checking shapes."""


class Cheat:
    """Attention that ignores the plan where `cheats` says so: by rows and tokens, the batches so far, or the watching.

    What is causal sees everything instead, what is not becomes causal.
    """

    def __init__(self, patch: pytest.MonkeyPatch, cheats: Cheats) -> None:
        self.cheats = cheats
        self.n_batches, self.n_cheated, self.is_watched = 0, 0, False
        ask, sdpa = Wiring.mask, functional.scaled_dot_product_attention

        def asked(wiring: Wiring, block: int, window: int | None) -> Tensor | str:
            self.is_watched = wiring.watch is not None
            return ask(wiring, block, window)

        def wired(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
            if self.acts(len(query), query.shape[2]):
                square = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool)
                is_causal = how["mask"] == "causal" if isinstance(how["mask"], str) else False
                how |= {"mask": (square if is_causal else square.tril())[None, None], "bias": None}
            return attend(query, key, value, **how)

        def by_argument(wiring: Wiring, block: int, own: Tensor, *rest: Any, **options: Any) -> Tensor:
            masked = mask_argument(wiring, block, own, *rest, **options)
            return own if self.acts(*wiring.current.shape) else masked

        def untouched(query: Tensor, *rest: Any, **options: Any) -> Tensor:
            if self.is_untouched and self.acts(len(query), query.shape[2]):
                options |= {"attn_mask": None, "is_causal": False}
            return sdpa(query, *rest, **options)

        def counted(compute: Callable[..., Any], *args: Any, **options: Any) -> Any:
            self.n_batches += 1
            return compute(*args, **options)

        self.is_untouched = False
        patch.setattr(Wiring, "mask", asked)
        patch.setattr("extract.wiring.attention.attend", wired)
        patch.setattr("extract.wiring.attention.mask_argument", by_argument)
        patch.setattr(functional, "scaled_dot_product_attention", untouched)
        patch.setattr("extract.run.extraction.pool_batch", partial(counted, pool_batch))
        patch.setattr("extract.run.shards.walk_plans", partial(counted, walk_plans))

    def acts(self, n_rows: int, n_tokens: int) -> bool:
        """Whether this call is a lie."""
        is_lie = self.cheats(self, n_rows, n_tokens)
        self.n_cheated += is_lie
        return is_lie


ALIKE = [f"{i} and {i}" for i in range(100, 180)]
SHORT = ["Ice!", "Snow", "Ice ice", "a b", "a b c", "a b c d", *make_texts(12)]
CHEATS: dict[str, tuple[Cheats, list[str], int]] = {
    "in batches of more than 64 rows": (lambda _, n_rows, __: n_rows > 64, ALIKE, 4096),
    # Batches of one length: else rows of four tokens are padded to that of others.
    "in rows of exactly four tokens": (lambda _, __, n_tokens: n_tokens == 4, SHORT, 6),
    "after the first batch": (lambda cheat, *_: cheat.n_batches > 1, make_texts(60), 512),
    "unless watched": (lambda cheat, *_: cheat.n_batches > 0 and not cheat.is_watched, make_texts(60), 512),
}
"""When attention lies, the texts that bring it to light, and the tokens of their batches."""
WAYS: dict[str, tuple[str, str]] = {
    "a plan": ("llama", "bidirectional:2"),
    "a sweep": ("llama", "bidirectional:2"),
    "masks as arguments": ("bloom", "bidirectional:2"),
    "untouched": ("llama", "causal"),
    "prepending": ("llama", "causal~tp1-2"),
}
NOT_WATCHED = ("unless watched", "untouched")  # nobody watches a decoder that is not wired


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CHEATS)
def test_what_cheats_in_batches_of_the_extraction_alone_is_caught(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, way) == NOT_WATCHED:
        pytest.skip("nobody watches a decoder that is not wired")
    (cheats, texts, batch_tokens), (family, plan) = CHEATS[name], WAYS[way]
    spec = replace(SPEC, plan=plan, batch_tokens=batch_tokens)
    monkeypatch.setattr("extract.run.extraction.SHARE", 0.0)  # nothing is closed before the end
    decoder, cheat = make_decoder(family), Cheat(monkeypatch, cheats)
    cheat.is_untouched = way == "untouched"
    with pytest.raises(CertificateError, match="did not take effect"):
        if way == "a sweep":
            plans = [parse_plan(each) for each in ("causal", "backward:1", plan, f"extra/{plan}")]
            sweep_latents(decoder, texts, plans, spec=spec, folder=tmp_path)
        else:
            extract_latents(decoder, texts, spec=spec, folder=tmp_path)
    assert cheat.n_cheated
    assert cheat.n_batches
    for path in tmp_path.glob("*.h5"):
        assert LatentCache(path, allow_partial=True).n_done == 0


def test_rows_that_were_closed_before_a_lie_are_right(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(SPEC, plan="bidirectional:2", batch_tokens=64)
    right = extract_latents(make_decoder(), texts, spec=spec, folder=tmp_path / "right")
    monkeypatch.setattr("extract.run.extraction.SHARE", float("inf"))  # rows are closed after every batch
    cheat = Cheat(monkeypatch, lambda cheat, *_: cheat.n_batches > 3)
    with pytest.raises(CertificateError, match=r"in a batch of \d+ rows of \d+ tokens: latents of text \d+ at layer"):
        extract_latents(make_decoder(), texts, spec=spec, folder=tmp_path)
    assert cheat.n_batches == 4
    (path,) = tmp_path.glob("*.h5")
    with h5py.File(path) as file, h5py.File(right.path) as whole:
        counts = file["rows/is_done"][:] == 2
        assert 0 < counts.sum() < len(texts)
        for layer in right.layers:
            assert np.array_equal(file[f"latents/mean/{layer}"][counts], whole[f"latents/mean/{layer}"][counts])


def test_a_proof_that_is_interrupted_closes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, n_calls = BatchProof._compute_again, 0

    def interrupted(proof: BatchProof, rows: Sequence[ComputedRow]) -> Tensor:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            raise KeyboardInterrupt
        return compute(proof, rows)

    monkeypatch.setattr("extract.run.extraction.SHARE", 0.0)
    monkeypatch.setattr(BatchProof, "_compute_again", interrupted)
    monkeypatch.setattr(BatchProof, "is_due", property(lambda proof: proof.n_batches > 2))
    Cheat(monkeypatch, lambda cheat, *_: cheat.n_batches > 0 and not cheat.is_watched)
    with pytest.raises(KeyboardInterrupt):
        extract_latents(make_decoder(), make_texts(60), spec=replace(SPEC, plan="bidirectional:2"), folder=tmp_path)
    assert n_calls == 2
    (path,) = tmp_path.glob("*.h5")
    assert LatentCache(path, allow_partial=True).n_done == 0


WORDS = [JoinedText(text, tuple(m.span() for m in re.finditer(r"\w+", text))) for text in make_texts(20)]
LONG = [text * 9 for text in make_texts(9)]
ECHO = InputTemplate(repeat=2)
RIGHT: dict[str, tuple[str, ExtractionSpec, Sequence[str | JoinedText]]] = {
    "untouched": ("llama", SPEC, make_texts(30)),
    "poolings": ("llama", replace(SPEC, poolings=("weighted-mean", "max", "median", "token:1")), make_texts(30)),
    "rows as long as the window": ("llama", SPEC, LONG),
    "windows": ("llama", replace(SPEC, template=InputTemplate(on_long="windows")), LONG),
    "ReBA": ("llama", replace(SPEC, poolings=("reba-mean",), template=ECHO), make_texts(20)),
    "taps": ("llama", replace(SPEC, plan="backward:2", layers=("taps:attention", "taps:value")), make_texts(20)),
    "spans": ("llama", replace(SPEC, plan="hybrid:2", template=InputTemplate(spans="random:0")), make_texts(20)),
    "a prefix": ("llama", replace(SPEC, plan="causal~kv1-3", template=InputTemplate(suffix=" ice")), make_texts(20)),
    "a placeholder": ("llama", replace(SPEC, plan="causal~tp1-2"), make_texts(20)),
    "a second stack": ("llama", replace(SPEC, plan="extra/nosink-bidirectional:2"), make_texts(20)),
    "blocks run twice": ("llama", replace(SPEC, plan="inter-block/backward:2"), make_texts(20)),
    "words": ("llama", replace(SPEC, plan="bidirectional:2"), WORDS),
    "words in echo": ("llama", replace(SPEC, words=WordSpec(("echo",)), template=ECHO), WORDS),
    "a soft cap and windows": ("gemma2", replace(SPEC, plan="nosink-bidirectional:2"), make_texts(20)),
    "masks as arguments": ("bloom", replace(SPEC, plan="backward:2"), make_texts(20)),
    "half precision": ("llama", replace(SPEC, plan="backward:2"), make_texts(20)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes_and_keeps_its_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, spec, texts = RIGHT[name]
    dtype = torch.bfloat16 if name == "half precision" else torch.float32
    decoder = wrap_decoder(make_model(family).to(dtype), make_tokenizer())
    spec = replace(spec, batch_tokens=128)
    proved = extract_latents(decoder, texts, spec=spec, folder=tmp_path / "proved")
    facts = proved.certificate["batches"]
    assert facts["n_whole"] == 1
    assert facts["n_shapes"] <= facts["n_batches"]
    assert facts["n_rows"] > facts["n_shapes"] - 1
    assert facts["largest_error"] < (1e-4 if dtype == torch.float32 else 0.05)
    monkeypatch.setattr(BatchProof, "add", lambda *_: None)
    assert_same_arrays(extract_latents(decoder, texts, spec=spec, folder=tmp_path / "not").path, proved.path)


ROUNDED = ("a prefix", "a placeholder", "a second stack", "words", "a soft cap and windows", "spans", "ReBA")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.bfloat16) for name in (*ROUNDED, "poolings", "windows", "masks as arguments")]
    + [("a prefix", torch.float16), ("masks as arguments", torch.float16)],
)
def test_a_text_that_rounding_alone_changes_as_much_is_not_refused(
    name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, spec, texts = RIGHT[name]
    allowed = {**DRIFT_ALLOWED, "bfloat16": 1e-5, "float16": 1e-5}
    monkeypatch.setattr("extract.wiring.batch_proof.DRIFT_ALLOWED", allowed)
    decoder = wrap_decoder(make_model(family).to(dtype), make_tokenizer())
    cache = extract_latents(decoder, texts[:6], spec=replace(spec, batch_tokens=64), folder=tmp_path)
    facts = cache.certificate["batches"]
    assert ("n_unstable" in facts) == (facts["largest_error"] > 1e-5)
    assert "n_unstable" in facts or name not in ROUNDED


@pytest.mark.parametrize("way", [way for way in WAYS if way != "a sweep"])
def test_a_wrong_mask_changes_more_than_rounding(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, plan = WAYS[way]
    monkeypatch.setattr("extract.wiring.batch_proof.DRIFT_ALLOWED", {**DRIFT_ALLOWED, "bfloat16": 1e-5})
    decoder = wrap_decoder(make_model(family).to(torch.bfloat16), make_tokenizer())
    cheat = Cheat(monkeypatch, lambda cheat, *_: cheat.n_batches > 1 and not cheat.is_watched)
    cheat.is_untouched = way == "untouched"
    spec = replace(SPEC, plan=plan, batch_tokens=512)
    with pytest.raises(CertificateError, match="did not take effect in a batch"):
        extract_latents(decoder, make_texts(60), spec=spec, folder=tmp_path)
    assert cheat.n_cheated


def test_a_rule_that_errs_at_one_token_in_the_middle_of_long_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few tokens for probes, truth tables of six tokens and latents to see: rules are compared token by token."""
    kind = KINDS["nosink-bidirectional"]

    def wrong(i: Tensor, j: Tensor, n: int, spans: Tensor | None) -> Tensor:
        return kind.rule(i, j, n, spans) | ((i == 20) & (i.max() > 40))

    texts = [" ".join(["snow"] * n) for n in (20, 22)]
    spec = replace(SPEC, plan="nosink-bidirectional:2")
    extract_latents(make_decoder(), texts, spec=spec, folder=tmp_path / "right")
    monkeypatch.setitem(KINDS, "nosink-bidirectional", kind._replace(rule=wrong))
    with pytest.raises(CertificateError, match=r"'nosink-bidirectional' shows token 0 to token 20 in a row of \d\d "):
        extract_latents(make_decoder(), texts, spec=spec, folder=tmp_path)


def test_long_rows_share_shape_classes() -> None:
    assert [length_class(n) for n in (4, 5, 32, 33, 36, 37, 65, 500, 2000)] == [4, 5, 32, 36, 36, 40, 72, 512, 2048]


@pytest.mark.parametrize("plan", ["causal", "nosink-bidirectional:2"])
@pytest.mark.parametrize("family", [pytest.param(name, marks=pytest.mark.long) for name in FAMILIES])
def test_no_family_is_refused_for_what_is_right(family: str, plan: str, tmp_path: Path) -> None:
    spec = replace(SPEC, plan=plan, batch_tokens=128)
    cache = extract_latents(make_decoder(family), make_texts(24), spec=spec, folder=tmp_path)
    assert cache.certificate["batches"]["largest_error"] < 1e-4
