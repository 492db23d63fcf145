"""ReBA by hand on attention matrices, and its traps."""

from dataclasses import replace

import torch
from torch import Tensor

from extract.poolings.poolings import PoolingIndex, backward_weights, index_batch, pool_reba_last, pool_reba_mean

# Three tokens, written twice, behind a BOS token; two heads, of one block or of two.
COPIES = torch.tensor([[0, 1, 1, 1, 2, 2, 2]], dtype=torch.int8)
ONE = torch.tensor(
    [
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.8, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.5, 0.1, 0.4, 0.0, 0.0, 0.0, 0.0],
        [0.2, 0.2, 0.4, 0.2, 0.0, 0.0, 0.0],
        [0.1, 0.6, 0.1, 0.1, 0.1, 0.0, 0.0],
        [0.1, 0.1, 0.1, 0.5, 0.0, 0.2, 0.0],
        [0.1, 0.2, 0.1, 0.2, 0.1, 0.1, 0.2],
    ]
)
OTHER = torch.tensor(
    [
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.4, 0.6, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.3, 0.5, 0.2, 0.0, 0.0, 0.0, 0.0],
        [0.6, 0.1, 0.0, 0.3, 0.0, 0.0, 0.0],
        [0.4, 0.2, 0.2, 0.1, 0.1, 0.0, 0.0],
        [0.2, 0.1, 0.3, 0.1, 0.1, 0.2, 0.0],
        [0.1, 0.1, 0.1, 0.4, 0.1, 0.1, 0.1],
    ]
)
# The larger of both, halved off the diagonal, from a token (row) to itself and what follows (column).
BY_HAND = torch.tensor(
    [
        #      w1    w2    w3    w1'   w2'   w3'
        [0.0, 0.60, 0.25, 0.10, 0.30, 0.05, 0.10],
        [0.0, 0.00, 0.40, 0.20, 0.10, 0.15, 0.05],
        [0.0, 0.00, 0.00, 0.30, 0.05, 0.25, 0.20],
    ]
)
STATES = torch.tensor([[[9.0, 9.0], [1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [1.0, -1.0], [4.0, 0.0], [0.0, 8.0]]])


def fused() -> Tensor:
    return torch.maximum(ONE, OTHER).unsqueeze(0)


def index(weights: Tensor, copies: Tensor = COPIES) -> PoolingIndex:
    made = index_batch(copies > 0, torch.ones_like(copies, dtype=torch.bool))
    return replace(made, copies=copies, reba=weights)


def test_three_tokens_twice_by_hand() -> None:
    weights = backward_weights(fused(), COPIES)
    torch.testing.assert_close(weights[0, 1:4], BY_HAND)
    assert not weights[0, [0, 4, 5, 6]].any(), "neither BOS nor a later copy is embedded"
    # The third token: .30 of (2, 2), .05 of (1, -1), .25 of (4, 0) and .20 of (0, 8).
    torch.testing.assert_close(pool_reba_last(STATES, index(weights)), torch.tensor([[1.65, 2.15]]))
    # Columns of the table summed: .60, .65, .60, .45, .45, .35; a third of that is what the mean weighs states by.
    wanted = torch.tensor([[(0.60 + 1.20 + 0.45 + 1.80) / 3, (0.65 + 1.20 - 0.45 + 2.80) / 3]])
    torch.testing.assert_close(pool_reba_mean(STATES, index(weights)), wanted)


def test_the_paper_fuses_head_by_head_and_gets_the_same() -> None:
    new = torch.zeros(7, 7)
    for attention in (ONE, OTHER):  # equations 4 and 5, as they are written
        half = (attention + attention.T) / 2
        new = (new + half) / 2 + (new - half).abs() / 2
    torch.testing.assert_close(backward_weights(fused(), COPIES, direction="symmetric")[0, 1:4, 1:], new[1:4, 1:])


def test_a_token_keeps_all_that_it_pays_itself_and_nothing_is_renormalised() -> None:
    weights = backward_weights(fused(), COPIES)
    assert weights[0, 1, 1] == fused()[0, 1, 1]
    assert weights[0, 1, 2] == fused()[0, 2, 1] / 2
    sums = weights[0, 1:4].sum(1)
    torch.testing.assert_close(sums, torch.tensor([1.4, 0.9, 0.8]))


def test_a_bos_token_is_neither_embedded_nor_gathered() -> None:
    spoilt, loud = STATES.clone(), fused()
    spoilt[:, 0] = 1e6
    loud[:, :, 0] = 1.0
    for pool in (pool_reba_last, pool_reba_mean):
        quiet = pool(STATES, index(backward_weights(fused(), COPIES)))
        assert torch.equal(pool(spoilt, index(backward_weights(loud, COPIES))), quiet)


def test_copies_may_have_different_lengths() -> None:
    copies = torch.tensor([[0, 1, 1, 0, 2, 2, 2]], dtype=torch.int8)  # a joiner between, one more token in the second
    weights = backward_weights(fused(), copies)
    wanted = torch.tensor([[0.60, 0.25, 0.0, 0.30, 0.05, 0.10], [0.0, 0.40, 0.0, 0.10, 0.15, 0.05]])
    torch.testing.assert_close(weights[0, 1:3, 1:], wanted)
    found = pool_reba_last(STATES, index(weights, copies))
    torch.testing.assert_close(found, torch.tensor([[0.10 + 0.60, 0.40 - 0.10 + 0.40]]))


def test_one_copy_is_allowed() -> None:
    copies = torch.tensor([[0, 1, 1, 1, 0, 0, 0]], dtype=torch.int8)
    found = pool_reba_last(STATES, index(backward_weights(fused(), copies), copies))
    torch.testing.assert_close(found, 0.3 * STATES[:, 3])
