"""ReBA: states of a repeated text, gathered backwards by how strongly later tokens attended to earlier ones.

Nothing is renormalised, since distances between embeddings depend on their sizes.
"""

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from extract.poolings.pooling import PoolingIndex, pool_weights
from extract.poolings.word_pooling import WordIndex, pool_mean_of_tokens


def backward_weights(
    fused: Float[Tensor, "B T T"], copies: Int8[Tensor, "B T"], *, direction: str = "backward"
) -> Float[Tensor, "B T T"]:
    """Turn fused attention into the weights of ReBA (Algorithm 1 and equation 6).

    Args:
        fused: At `[b, i, j]` the largest weight, over blocks and heads, with which token i attends to j. The attention
            is causal: of (i, j) and (j, i) at most one is not zero, so that symmetrising commutes with the maximum.
        copies: The copy of the text that each token is of, from 1; 0 for specials, template and padding.
        direction: A name from `reba_options.DIRECTIONS`.

    Returns:
        At `[b, i, j]` the weight of the state at j in the embedding of token i, half of the attention between two
        tokens and all that a token pays itself; zero unless i is in the first copy and j in some copy.

    Example:
        >>> fused = torch.tensor([[[1.0, 0.0], [0.4, 0.6]]])
        >>> backward_weights(fused, torch.tensor([[1, 2]], dtype=torch.int8))
        tensor([[[1.0000, 0.2000],
                 [0.0000, 0.0000]]])
    """
    both = (fused + fused.transpose(1, 2)) / 2
    kept = (copies == 1).unsqueeze(2) & (copies > 0).unsqueeze(1)
    both = both.masked_fill(~kept, 0.0)
    return both.triu() if direction == "backward" else both


def pool_reba_last(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Take the embedding of the last token of the first copy (ReBA, Algorithm 3)."""
    columns = torch.arange(hidden.shape[1], device=hidden.device)
    last = torch.where(index.copies == 1, columns, -1).amax(1)
    return pool_weights(hidden, _weights(index)[torch.arange(len(last), device=last.device), last])


def pool_reba_mean(hidden: Float[Tensor, "B T D"], index: PoolingIndex) -> Float[Tensor, "B D"]:
    """Average the embeddings of the tokens of the first copy (ReBA, equation 7, sums exchanged)."""
    n_tokens = (index.copies == 1).sum(1, keepdim=True)
    return pool_weights(hidden, _weights(index).sum(1) / n_tokens)


def pool_reba_words(hidden: Float[Tensor, "B T D"], index: WordIndex) -> Float[Tensor, "W D"]:
    """Average the embeddings of the tokens of each word in the first copy (ReBA, Algorithm 2)."""
    weights = _weights(index)
    is_used = (weights != 0).any(1).unsqueeze(-1)
    return pool_mean_of_tokens(torch.bmm(weights, hidden.to(torch.float32).masked_fill(~is_used, 0.0)), index)


def _weights(index: PoolingIndex | WordIndex) -> Tensor:
    assert index.reba is not None, "ReBA poolings are computed once the attention of all blocks is known"
    return index.reba
