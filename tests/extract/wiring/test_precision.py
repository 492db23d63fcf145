"""Half precision is certified in float32 and left as it was; rotary frequencies are no weights."""

import pytest
import torch

from extract.decoders.decoder import Decoder, wrap_decoder
from extract.files import digest_module
from extract.masks.mask_plan import parse_plan
from extract.run.embed import embed_texts
from extract.run.extraction_spec import ExtractionSpec
from extract.wiring.certificate import check_batch_invariance, check_influence
from extract.wiring.plan_wiring import has_experts, in_float32, plan_in_force
from tests.extract.mask_families import BY_ARGUMENT, WORKING, drift, id_batch, random_ids, run_layers
from tests.extract.tiny_decoders import make_decoder, make_model, make_texts, make_tokenizer

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 12,
}


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None) -> None:
    """Save the time of checking shapes."""


def half(name: str, dtype: torch.dtype) -> Decoder:
    """Make a tiny decoder and round it."""
    family, config = {**WORKING, **BY_ARGUMENT}[name]
    return wrap_decoder(make_model(family, **config).to(dtype), make_tokenizer())


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_oss", "bloom"])
def test_widened_weights_compute_what_a_float32_copy_does(name: str) -> None:
    decoder, batch = half(name, torch.bfloat16), id_batch(random_ids(9, 6))
    family, config = {**WORKING, **BY_ARGUMENT}[name]
    model = make_model(family, **config).to(torch.bfloat16).float()
    expected = run_layers(wrap_decoder(model, make_tokenizer()), batch)
    before = [parameter.data_ptr() for parameter in decoder.module.parameters()]
    native = run_layers(decoder, batch)
    with in_float32(decoder) as wide:
        assert wide.description.dtype == "float32"
        found = run_layers(wide, batch)
    assert found.dtype == torch.float32
    assert drift(found, expected) <= 1e-5
    assert [parameter.data_ptr() for parameter in decoder.module.parameters()] == before
    assert torch.equal(run_layers(decoder, batch), native)
    assert digest_module(decoder.module) == decoder.description.weight_digest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt_oss", "llama", "bloom"])
def test_half_precision_is_not_refused(name: str, dtype: torch.dtype) -> None:
    """The biases and routers of gpt_oss used to be refused by rounding in four of seven random decoders."""
    decoder, plan = half(name, dtype), parse_plan("backward")
    assert has_experts(decoder) == (name == "gpt_oss")
    with plan_in_force(decoder, plan):
        assert check_influence(decoder, plan, n_rows=4, n_tokens=12).is_as_planned
        check_batch_invariance(decoder)


def test_latents_of_a_longrope_decoder_do_not_depend_on_longer_neighbours() -> None:
    decoder = make_decoder("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=12)
    assert decoder.split_length == 12
    texts = sorted(make_texts(24), key=len)
    spec = ExtractionSpec(batch_tokens=4096)
    together = embed_texts(decoder, texts, spec=spec)
    alone = torch.cat([embed_texts(decoder, [text], spec=spec) for text in texts], dim=2)
    assert drift(together, alone) < 1e-5
    assert digest_module(decoder.module) == decoder.description.weight_digest
    assert make_decoder("phi3").split_length is None


def test_without_the_split_they_would_depend_on_them() -> None:
    decoder = make_decoder("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=12)
    short, long = random_ids(8, 14)
    together, alone = run_layers(decoder, id_batch([short, long])), run_layers(decoder, id_batch([short]))
    assert drift(together[:, 0, :8], alone[:, 0]) > 1e-3
