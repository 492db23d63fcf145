"""Digests change with what they stand for, and with nothing else."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from extract.files import digest_json, digest_module, digest_rows, digest_tokenizer
from extract.inputs.joined_text import digest_texts
from tests.extract.tiny_decoders import make_model, make_tokenizer


def test_json_order_and_blanks_do_not_matter() -> None:
    assert digest_json({"b": [1, 2], "a": "ü"}) == digest_json({"a": "ü", "b": [1, 2]})
    assert digest_json({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()
    assert digest_json([1, 2]) != digest_json([2, 1])


def test_texts_one_by_one() -> None:
    texts = ["ice", "Schön", "", "a\ud800"]
    rows = digest_texts(texts)
    assert rows.shape == (4, 16)
    assert rows.dtype == np.uint8
    assert rows[1].tobytes() == hashlib.blake2b("Schön".encode(), digest_size=16).digest()
    assert len({row.tobytes() for row in rows}) == 4
    assert digest_texts([]).shape == (0, 16)
    assert digest_rows(rows) != digest_rows(rows[::-1])


def test_a_module_to_the_last_bit() -> None:
    model = make_model()
    digest = digest_module(model)
    assert digest == digest_module(make_model())
    weight = model.model.layers[1].mlp.up_proj.weight
    with torch.no_grad():
        weight.view(torch.int32)[0, 0] ^= 1
    changed = digest_module(model)
    assert changed != digest
    with torch.no_grad():
        weight.view(torch.int32)[0, 0] ^= 1
    assert digest_module(model) == digest


def test_buffers_dtypes_and_shapes_count() -> None:
    module = nn.Module()
    module.register_buffer("scale", torch.zeros(4), persistent=False)
    digests = {digest_module(module)}
    for value in (torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.tensor(0.0), torch.zeros(0)):
        module.register_buffer("scale", value, persistent=False)
        digests.add(digest_module(module))
    assert len(digests) == 5


def test_a_view_is_digested_as_it_reads() -> None:
    one, other = nn.Module(), nn.Module()
    grid = torch.arange(6.0).reshape(2, 3)
    one.register_buffer("grid", grid.T)
    other.register_buffer("grid", grid.T.contiguous())
    assert digest_module(one) == digest_module(other)


@pytest.mark.parametrize("changes", [{"adds_bos": True}, {"has_bos": False}])
def test_a_tokenizer_by_what_decides_its_output(changes: dict[str, bool]) -> None:
    assert digest_tokenizer(make_tokenizer()) == digest_tokenizer(make_tokenizer())
    assert digest_tokenizer(make_tokenizer(**changes)) != digest_tokenizer(make_tokenizer())


def test_whether_a_tokenizer_splits_special_tokens_counts() -> None:
    tokenizer = make_tokenizer()
    whole, digest = tokenizer("x</s>y")["input_ids"], digest_tokenizer(tokenizer)
    tokenizer.split_special_tokens = True
    assert tokenizer("x</s>y")["input_ids"] != whole
    assert digest_tokenizer(tokenizer) != digest
    tokenizer.split_special_tokens = False
    assert digest_tokenizer(tokenizer) == digest


def test_earlier_calls_of_a_tokenizer_do_not_matter() -> None:
    tokenizer = make_tokenizer()
    before = digest_tokenizer(tokenizer)
    tokenizer(["a", "Ice and snow"], padding=True, truncation=True, max_length=3)
    assert digest_tokenizer(tokenizer) == before
