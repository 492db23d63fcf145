"""ReBA on decoders equals the paper's algorithms written out, on plain transformers with its attention matrices."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.decoders.decoder import Decoder, wrap_decoder
from extract.errors import ConfigError, InputError
from extract.inputs.joined_text import JoinedText
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.poolings.pooling_table import RebaOptions
from extract.run.embed import embed_texts, embed_words
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.run.shards import sweep_latents
from extract.store.cache import find_cache
from extract.wiring.plan_wiring import plan_in_force
from extract.wiring.states import pool_batch
from tests.extract.tiny_decoders import encode_batch, make_decoder, make_model, make_tokenizer, plain_hidden_states

TEXTS = ("The mouse ran under the table.", "table, snow fell.", "a")
TEMPLATE = InputTemplate(bos="force", repeat=2)
POOLINGS = ("reba-last", "mean", "reba-mean")
FAMILIES = ("llama", "gpt2", "gemma2", "opt", "bloom")  # grouped queries; absolute places; caps and windows; ALiBi


def reference(
    family: str, text: str, *, repeat: int = 2, attention: str = "all", direction: str = "backward"
) -> tuple[list[list[Tensor]], Any]:
    """Follow the paper for one text: for every layer, `e_i` of every token of the first copy; and their offsets."""
    model, tokenizer = make_model(family), make_tokenizer()
    whole: Any = tokenizer(" ".join([text] * repeat), return_offsets_mapping=True)
    ids, offsets = [1, *whole["input_ids"]], [(0, 0), *whole["offset_mapping"]]
    starts = [copy * (len(text) + 1) for copy in range(repeat)]
    within = [[s < start + len(text) and e > start and s < e for s, e in offsets] for start in starts]
    states = list(plain_hidden_states(model, ids, family=family).values())
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    new = torch.zeros(len(ids), len(ids))
    for block in maps if attention == "all" else maps[-1:]:
        for head in block[0]:
            new = torch.maximum(new, (head + head.T) / 2)
    first = [i for i, is_in in enumerate(within[0]) if is_in]
    every = [j for j in range(len(ids)) if any(copy[j] for copy in within)]
    embedded = [
        [sum((new[i, j] * v[j] for j in every if j >= i or direction == "symmetric"), torch.zeros(())) for i in first]
        for v in states
    ]
    return embedded, [offsets[i] for i in first]


def stacked(family: str, **how: Any) -> Tensor:
    """Stack the references of the texts as `(L, 2, N, D)`: last and mean."""
    rows = [reference(family, text, **how)[0] for text in TEXTS]
    return torch.stack([torch.stack([torch.stack([e[-1], torch.stack(e).mean(0)]) for e in row]) for row in rows], 2)


def decoder_of(family: str) -> Decoder:
    return wrap_decoder(make_model(family), make_tokenizer())


@pytest.mark.parametrize("family", [FAMILIES[0], *(pytest.param(f, marks=pytest.mark.long) for f in FAMILIES[1:])])
def test_every_layer_equals_the_paper_alone_and_padded_on_either_side(family: str) -> None:
    decoder, wanted = decoder_of(family), stacked(family)
    sides: tuple[Literal["right", "left"], ...] = ("right", "left")
    with plan_in_force(decoder, parse_plan("causal"), looks_inside=True):
        for side in sides:
            batch = encode_batch(decoder, TEXTS, template=TEMPLATE, side=side, pad_id=2)
            found = pool_batch(decoder, batch, poolings=POOLINGS, layers=decoder.layers)
            torch.testing.assert_close(found[:, [0, 2]], wanted, atol=1e-4, rtol=1e-4, msg=side)
        alone = encode_batch(decoder, TEXTS[:1], template=TEMPLATE)
        found = pool_batch(decoder, alone, poolings=POOLINGS, layers=decoder.layers)
        torch.testing.assert_close(found[:, [0, 2]], wanted[:, :, :1], atol=1e-4, rtol=1e-4)


def test_copies_that_tokenise_differently_are_found_by_their_characters() -> None:
    # Behind the joiner the first word is another token, and there may be more or fewer of them.
    batch = encode_batch(make_decoder(), TEXTS, template=TEMPLATE)
    lengths = [[int((row == copy).sum()) for copy in (1, 2)] for row in batch.copies]
    assert any(first != second for first, second in lengths)


@pytest.mark.parametrize(
    ("options", "repeat"),
    [(RebaOptions("last"), 2), (RebaOptions(direction="symmetric"), 2), (RebaOptions(), 1), (RebaOptions(), 3)],
    ids=["last block", "symmetric", "one copy", "three copies"],
)
def test_options_of_the_appendix_and_other_numbers_of_copies(options: RebaOptions, repeat: int) -> None:
    template = InputTemplate(bos="force", repeat=repeat)
    spec = ExtractionSpec(template=template, poolings=("reba-last", "reba-mean"), reba=options, layers=("block_02",))
    found = embed_texts(decoder_of("llama"), TEXTS, spec=spec)
    wanted = stacked("llama", repeat=repeat, attention=options.attention, direction=options.direction)
    torch.testing.assert_close(found, wanted[2:3], atol=1e-4, rtol=1e-4)


def test_a_word_is_the_mean_of_its_tokens_in_the_first_copy() -> None:
    text = TEXTS[0]
    spans = ((0, 3), (4, 9), (24, 29))  # The, mouse, table
    words = WordSpec(poolings=("reba", "echo"))
    spec = ExtractionSpec(template=TEMPLATE, words=words, layers=("final_norm",))
    found = embed_words(decoder_of("llama"), [JoinedText(text, spans)], spec=spec)
    embedded, offsets = reference("llama", text)
    for word, (start, end) in enumerate(spans):
        own = torch.stack([e for e, (s, t) in zip(embedded[-1], offsets, strict=True) if s < end and t > start])
        torch.testing.assert_close(found.latents[0, 0, word], own.mean(0), atol=1e-4, rtol=1e-4)


def test_options_are_part_of_a_cache_that_asks_for_reba_and_of_no_other(tmp_path: Path) -> None:
    decoder = make_decoder()
    spec = ExtractionSpec(template=TEMPLATE, poolings=("mean", "reba-mean"), layers=("blocks",))
    cache = extract_latents(decoder, TEXTS, spec=spec, folder=tmp_path)
    assert cache.identity.reba == {"attention": "all", "direction": "backward"}
    np.testing.assert_allclose(
        cache.gather(cache.rows_of(TEXTS), "reba-mean"), embed_texts(decoder, TEXTS, spec=spec)[:, 1], atol=1e-5
    )
    mean = describe_extraction(decoder, TEXTS, ExtractionSpec(template=TEMPLATE, layers=("blocks",))).identity
    assert mean.reba is None and find_cache(tmp_path, mean) is not None
    other = ExtractionSpec(template=TEMPLATE, poolings=("reba-mean",), layers=("blocks",), reba=RebaOptions("last"))
    assert find_cache(tmp_path, describe_extraction(decoder, TEXTS, other).identity) is None


def test_reba_under_another_plan_is_refused() -> None:
    for words in (WordSpec(), WordSpec(poolings=("reba",))):
        poolings = ("mean",) if words.poolings == ("reba",) else ("reba-last",)
        with pytest.raises(
            InputError, match=r"'reba.*' gathers states by causal attention, and the plan is 'backward:1'"
        ):
            ExtractionSpec(plan="backward:1", poolings=poolings, words=words)
    with pytest.raises(ConfigError, match="ReBA poolings need the causal plan alone"):
        sweep_latents(make_decoder(), TEXTS, [parse_plan("causal")], spec=ExtractionSpec(poolings=("reba-last",)))
