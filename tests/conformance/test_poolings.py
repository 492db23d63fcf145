"""Every row of `POOLINGS` and of `WORD_POOLINGS`: padding, neighbours, specials and precision do not matter."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.inputs.batches import Batch, collate
from extract.inputs.joined_text import SPECIAL, TEXT
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText, TextEncoder, WordColumns
from extract.poolings.pooling_table import POOLINGS, REBA, WORD_POOLINGS, find_pooling
from extract.poolings.poolings import backward_weights, index_rows, index_words
from tests.extract.tiny_decoders import SENTENCES, make_tokenizer

D = 5
Side = Literal["left", "right"]
LENGTHS = (7, 1, 4)
NAMES = (*POOLINGS, "token:0", "token:-1", "last:2", "role:text")


def states(n_tokens: int, seed: int) -> Tensor:
    """Draw the hidden states of one row."""
    return torch.randn(n_tokens, D, generator=torch.Generator().manual_seed(seed))


def lay(rows: list[Tensor], batch: Batch) -> Tensor:
    """Put rows of states where a batch has its real tokens; padding is not a number."""
    hidden = torch.full((*batch.ids.shape, D), float("nan"), dtype=rows[0].dtype)
    for slot, is_real, row in zip(hidden, batch.is_real, rows, strict=True):
        slot[is_real] = row
    return hidden


def encoded(n_tokens: int, *, n_special: int = 0, words: WordColumns | None = None, copy: int = 1) -> EncodedText:
    """Make a row of which the first tokens are specials and the rest the text, as one copy of it."""
    roles = np.array([SPECIAL] * n_special + [TEXT] * (n_tokens - n_special), np.int8)
    copies = np.where(roles == TEXT, copy, 0).astype(np.int8)
    return EncodedText(np.arange(n_tokens), roles, False, words=words, copy_of=copies)


def copy_of(name: str) -> int:
    """Return the copy of a text that a pooling reads."""
    return 2 if name.startswith("echo") else 1


def pool(name: str, rows: list[Tensor], items: list[EncodedText], *, side: Side = "right", width: int = 0) -> Tensor:
    """Pool rows as one batch."""
    batch = collate(items, range(len(items)), side=side, width=width)
    index = index_rows(batch, torch.device("cpu"))
    if name in REBA:  # every token attends to itself and earlier ones alike
        rank = (batch.copies > 0).cumsum(1)
        sees = (rank.unsqueeze(2) >= rank.unsqueeze(1)).float() / rank.clamp(min=1).unsqueeze(2)
        index = replace(index, reba=backward_weights(sees, batch.copies))
    pooled: Tensor = find_pooling(name)(lay(rows, batch), index)
    return pooled


def pool_words(name: str, rows: list[Tensor], items: list[EncodedText], *, side: Side = "right") -> Tensor:
    """Pool the words of rows as one batch."""
    batch = collate(items, range(len(items)), side=side, width=9)
    assert batch.words is not None
    hidden = lay(rows, batch).nan_to_num(nan=1e30)  # words never read padding; a sum that did would show
    index = index_words(batch.words, torch.device("cpu"))
    if name in REBA:  # every token attends to itself alone
        alone = torch.eye(9).expand(len(rows), 9, 9)
        index = replace(index, reba=backward_weights(alone, batch.copies))
    pooled: Tensor = WORD_POOLINGS[name][0](hidden, index)
    return pooled


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_special", [0, 1])
def test_padding_and_neighbours_do_not_matter(name: str, n_special: int) -> None:
    lengths = [n + n_special for n in LENGTHS]
    rows, items = (
        [states(n, n) for n in lengths],
        [encoded(n, n_special=n_special, copy=copy_of(name)) for n in lengths],
    )
    right, left = (pool(name, rows, items, side=side, width=9) for side in ("right", "left"))
    alone = torch.cat([pool(name, [row], [item]) for row, item in zip(rows, items, strict=True)])
    assert right.shape == (len(rows), D)
    assert bool(right.isfinite().all())
    torch.testing.assert_close(right, left, rtol=0, atol=1e-6)
    torch.testing.assert_close(right, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "template", [InputTemplate(bos="force", repeat=2), InputTemplate(instruction="Query: ", repeat=2)], ids=str
)
def test_specials_and_instruction_are_left_out(name: str, template: InputTemplate) -> None:
    (item,) = TextEncoder(make_tokenizer(), template, window=64)(SENTENCES[:1])
    is_text = torch.from_numpy(item.roles == TEXT)
    assert not bool(is_text.all())
    row = states(len(item.ids), 3)
    spoilt = torch.where(is_text.unsqueeze(1), row, 1e6)
    assert torch.equal(pool(name, [row], [item]), pool(name, [spoilt], [item]))
    alone = replace(item, ids=item.ids[is_text], roles=item.roles[is_text], copy_of=item.copies[is_text], last=None)
    text_alone = pool(name, [row[is_text]], [alone])
    torch.testing.assert_close(pool(name, [row], [item]), text_alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_padded", [False, True])
def test_half_precision_is_pooled_in_float32(name: str, is_padded: bool) -> None:
    row = states(7, 1).to(torch.bfloat16)
    width = 9 if is_padded else 0
    item = encoded(7, copy=copy_of(name))
    found = pool(name, [row], [item], width=width)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, pool(name, [row.float()], [item], width=width), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_one_token_pools_to_itself_and_nothing_hides_what_is_not_a_number(name: str) -> None:
    row = states(1, 2)
    copy = copy_of(name)
    assert torch.equal(pool(name, [row], [encoded(1, copy=copy)]), row)
    spoilt = states(5, 2)
    spoilt[:, 2] = float("nan")
    assert bool(pool(name, [spoilt], [encoded(5, copy=copy)], width=9)[0, 2].isnan())


def word_items() -> tuple[list[Tensor], list[EncodedText]]:
    """Rows with words of one, two and three tokens, and one that has no latent."""
    columns = ([[1, 2], [2, 5]], [[0, 2]], [[0, 0], [1, 3]])
    words = [WordColumns(np.array(of), np.zeros(len(of), np.uint8), echo=np.array(of)) for of in columns]
    lengths = (6, 2, 4)
    return [states(n, n) for n in lengths], [encoded(n, words=of) for n, of in zip(lengths, words, strict=True)]


@pytest.mark.parametrize("name", WORD_POOLINGS)
def test_words_do_not_depend_on_padding_or_neighbours(name: str) -> None:
    rows, items = word_items()
    right, left = (pool_words(name, rows, items, side=side) for side in ("right", "left"))
    alone = torch.cat([pool_words(name, [row], [item]) for row, item in zip(rows, items, strict=True)])
    assert right.shape == (5, D)
    torch.testing.assert_close(right, left, rtol=0, atol=1e-6)
    torch.testing.assert_close(right, alone, rtol=0, atol=1e-6)
    assert right[3].tolist() == [0.0] * D, "a word without a latent is zero"
    assert bool(right[[0, 1, 2, 4]].abs().sum(1).gt(0).all())
    assert torch.equal(right[0], rows[0][1]), "a word of one token is that token"


@pytest.mark.parametrize("name", WORD_POOLINGS)
def test_words_read_their_own_tokens_alone_and_in_float32(name: str) -> None:
    rows, items = word_items()
    spoilt = [row.clone() for row in rows]
    spoilt[0][[0, 5]] = 1e6  # columns that no word reads
    spoilt[2][[0, 3]] = 1e6
    assert torch.equal(pool_words(name, rows, items), pool_words(name, spoilt, items))
    half = [row.to(torch.bfloat16) for row in rows]
    found = pool_words(name, half, items)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, pool_words(name, [row.float() for row in half], items), rtol=0, atol=1e-6)
