"""Rows of which a sparse indexer leaves keys out depend on their neighbours, and are refused; shorter ones do not."""

from pathlib import Path
from typing import Any

import pytest
import torch

from extract.decoders.decoder import Decoder
from extract.errors import InputError
from extract.inputs.joined_text import join_words
from extract.inputs.template import InputTemplate
from extract.run.embed import embed_texts, embed_words
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec
from tests.extract.mask_families import LATENT_HEADS, drift, hidden_under, id_batch, random_ids, real_rows
from tests.extract.tiny_decoders import FULL_HEADS, make_decoder

KEPT = 8
V32: dict[str, Any] = {
    **FULL_HEADS,
    **LATENT_HEADS,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "index_topk": KEPT,
    "index_n_heads": 1,
    "index_head_dim": 8,
}
SHORT, LONG = "Ice!", "Snow fell on the quiet harbour, and nobody spoke."
SENTENCE = (
    r"^text 1 \('Snow fell on the quiet harbour, and nob…'\) takes \d+ tokens, and in rows of more than 8 the sparse "
    r"attention of the family 'deepseek_v32' depends on the other rows of a batch; set template.max_tokens to 8 or "
    r"less, and template.on_long to 'windows' to read all of the text\.$"
)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """A decoder whose indexer keeps 8 keys, by scores that are often exactly 0."""
    return make_decoder("deepseek_v32", **V32)


def largest_drift(decoder: Decoder, *lengths: int) -> float:
    """Compare rows in one batch with each of them alone."""
    rows = random_ids(*lengths)
    together = id_batch(rows)
    alone = [hidden_under(decoder, id_batch([row]), "causal")[:, 0] for row in rows]
    return max(map(drift, real_rows(hidden_under(decoder, together, "causal"), together), alone))


def test_only_rows_beyond_what_the_indexer_keeps_depend_on_their_neighbours(decoder: Decoder) -> None:
    assert decoder.longest_dense_row == KEPT
    assert largest_drift(decoder, 3, 5, KEPT, 20) < 1e-5
    assert largest_drift(decoder, 12, 20) > 1e-2, "the refusal below has lost its reason"


@pytest.mark.parametrize("plan", ["causal", "backward:1", "causal~tp1-1"])
def test_longer_rows_are_refused_under_every_plan(decoder: Decoder, plan: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=SENTENCE):
        embed_texts(decoder, [SHORT, LONG], spec=ExtractionSpec(plan=plan))
    with pytest.raises(InputError, match=SENTENCE):
        extract_latents(decoder, [SHORT, LONG], spec=ExtractionSpec(plan=plan), folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_longer_rows_with_words_are_refused(decoder: Decoder) -> None:
    texts = [join_words(words, [True] * len(words)) for words in (["Ice!"], LONG.split())]
    with pytest.raises(InputError, match=SENTENCE):
        embed_words(decoder, texts, spec=ExtractionSpec())


def test_windows_read_all_of_a_longer_text(decoder: Decoder) -> None:
    spec = ExtractionSpec(template=InputTemplate(max_tokens=KEPT, on_long="windows"))
    both, alone = (embed_texts(decoder, texts, spec=spec) for texts in ([SHORT, LONG], [LONG]))
    assert drift(both[:, :, 1:], alone) < 1e-5
    assert torch.isfinite(both).all()


def test_a_decoder_that_cannot_be_given_longer_rows_is_left_alone() -> None:
    short = make_decoder("deepseek_v32", **{**V32, "index_topk": 64})
    assert embed_texts(short, [SHORT, LONG], spec=ExtractionSpec()).shape[2] == 2
    assert make_decoder().longest_dense_row is None
