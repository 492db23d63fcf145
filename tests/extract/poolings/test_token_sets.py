"""Echo poolings and poolings of sets of tokens, beside a loop over tokens, on either padding side."""

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.errors import InputError, UnknownNameError
from extract.inputs.batches import collate
from extract.inputs.joined_text import INSTRUCTION, JOINER, SPECIAL, SUFFIX, TEXT
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText
from extract.poolings.pooling_table import find_pooling, register_pooling, select_poolings
from extract.poolings.poolings import index_rows, require_tokens
from extract.run.extraction_spec import ExtractionSpec, WordSpec, names_of_code

D = 4
CPU = torch.device("cpu")
# BOS, instruction, two copies with a joiner between them, suffix, EOS; `last` reads the suffix.
LONG = ([SPECIAL, INSTRUCTION, TEXT, TEXT, TEXT, JOINER, TEXT, TEXT, SUFFIX, SPECIAL], [0, 0, 1, 1, 1, 0, 2, 2, 0, 0])
SHORT = ([SPECIAL, INSTRUCTION, TEXT, JOINER, TEXT, SUFFIX, SPECIAL], [0, 0, 1, 0, 2, 0, 0])
EXPECTED: dict[str, tuple[list[int], list[int]]] = {  # columns that are averaged, of the long row and of the short one
    "echo-last": ([7], [4]),
    "echo-mean": ([6, 7], [4]),
    "token:0": ([6], [4]),
    "token:-1": ([7], [4]),
    "last:1": ([8], [5]),
    "last:3": ([6, 7, 8], [3, 4, 5]),
    "last:50": ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5]),
    "role:instruction": ([1], [1]),
    "role:text": ([2, 3, 4, 6, 7], [2, 4]),
    "role:joiner": ([5], [3]),
    "role:suffix": ([8], [5]),
    "span": ([3, 4, 6], [2]),
    "span:1": ([6], [2]),
    "last": ([8], [5]),
    "first": ([2], [2]),
    "mean": ([2, 3, 4, 6, 7], [2, 4]),
}


def row(roles: list[int], copies: list[int], spans: list[int]) -> EncodedText:
    """Make a row whose `last` token is the one before the EOS."""
    n = len(roles)
    return EncodedText(
        np.arange(n), np.array(roles, np.int8), False, np.array(spans), copy_of=np.array(copies, np.int8), last=n - 2
    )


def rows() -> list[EncodedText]:
    """Make the two rows."""
    return [row(*LONG, [-1, -1, -1, 0, 0, -1, 1, -1, -1, -1]), row(*SHORT, [-1, -1, 1, -1, -1, -1, -1])]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", EXPECTED)
def test_sets_of_tokens_are_what_their_names_say(name: str, side: Literal["left", "right"]) -> None:
    items = rows()
    states = [torch.randn(len(item.ids), D, generator=torch.Generator().manual_seed(k)) for k, item in enumerate(items)]
    batch = collate(items, [0, 1], side=side, width=12)
    hidden = torch.full((2, 12, D), float("nan"))
    for slot, is_real, values in zip(hidden, batch.is_real, states, strict=True):
        slot[is_real] = values
    pool = find_pooling(name)
    together: Tensor = pool(hidden, index_rows(batch, CPU))
    for found, item, values, columns in zip(together, items, states, EXPECTED[name], strict=True):
        torch.testing.assert_close(found, torch.stack([values[column] for column in columns]).mean(0))
        alone: Tensor = pool(values.unsqueeze(0), index_rows(collate([item], [0]), CPU))
        torch.testing.assert_close(alone[0], found)
        spoilt = values.clone()
        spoilt[[k for k in range(len(values)) if k not in columns]] = 1e6
        again: Tensor = pool(spoilt.unsqueeze(0), index_rows(collate([item], [0]), CPU))
        torch.testing.assert_close(again[0], found, msg="another token is read")


def test_last_n_takes_the_eos_that_last_reads_and_no_bos() -> None:
    item = EncodedText(np.arange(4), np.array([SPECIAL, TEXT, TEXT, SPECIAL], np.int8), False)
    hidden = torch.arange(4.0).reshape(1, 4, 1)
    index = index_rows(collate([item], [0]), CPU)
    assert find_pooling("last:2")(hidden, index).item() == 2.5
    assert find_pooling("last:9")(hidden, index).item() == 2.0


@pytest.mark.parametrize("name", ["token:1", "token:-2", "role:chat", "span:2"])
def test_a_text_without_such_a_token_is_refused_by_name(name: str) -> None:
    items = rows()
    with pytest.raises(InputError, match=rf"the pooling '{name}' finds no such token in text [01] \('(long|short)'\)"):
        require_tokens(items, ["long", "short"], [name])
    require_tokens(items, ["long", "short"], ["token:0", "mean", "echo-last"])


def test_a_batch_without_spans_has_no_span() -> None:
    item = EncodedText(np.arange(2), np.array([TEXT, TEXT], np.int8), False)
    with pytest.raises(InputError, match=r"the pooling 'span' finds no such token in text 0 \('ice'\)"):
        require_tokens([item], ["ice"], ["span"])


@pytest.mark.parametrize("name", ["token:", "token:x", "token:-0", "last:0", "last:-1", "role:special", "span:-1"])
def test_other_arguments_are_refused_with_the_form(name: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"the pooling '{name}' is not written as .*{name.partition(':')[0]}:N"):
        select_poolings([name])
    with pytest.raises(InputError, match=f"the pooling '{name}' is there already"):
        register_pooling(name, abs)


def test_unknown_poolings_are_refused_with_all_forms() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown pooling 'hat'.*token:N.*last:N.*role:NAME"):
        select_poolings(["hat"])


def test_poolings_with_an_argument_are_no_code_of_the_user() -> None:
    names = ("role:text", "last:2", "token:-1", "mean")
    assert names_of_code(ExtractionSpec(poolings=names)) == ()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"poolings": ("echo-mean",)}, "'echo-mean' reads a further copy of a text; set template.repeat to 2"),
        ({"words": WordSpec(poolings=("echo",))}, "'echo' reads a further copy of a text; set template.repeat"),
        ({"poolings": ("span",)}, "'span' reads spans, and the template has none; set template.spans"),
        ({"poolings": ("span:1",)}, "'span:1' reads spans, and the template has none; set template.spans"),
    ],
)
def test_poolings_that_a_template_has_no_tokens_for_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExtractionSpec(**spec)
    repeated = InputTemplate(repeat=2)
    assert ExtractionSpec(poolings=("echo-mean",), template=repeated, words=WordSpec(poolings=("echo",)))
