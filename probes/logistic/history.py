"""What L-BFGS remembers of many problems at once."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.logistic.line_search import dot

Pair = tuple[Tensor, Tensor, Tensor]


@dataclass
class History:
    """The last steps and gradient changes of `G` problems.

    Attributes:
        limit: Most pairs.
        pairs: Oldest first: step and gradient change, each `(G, R, P)`, and `(G,)` 1 over their product, or 0 where a
            problem has no usable pair.
        retired: Pairs of problems that are done, by their number.
    """

    limit: int
    pairs: list[Pair] = field(default_factory=list)
    retired: dict[int, list[Pair]] = field(default_factory=dict)

    def push(self, step: Float[Tensor, "G R P"], change: Float[Tensor, "G R P"], *, usable: Bool[Tensor, " G"]) -> None:
        """Remember a pair."""
        self.pairs = [*self.pairs, (step, change, _inverse_product(step, change) * usable)][-self.limit :]

    def forget(self, which: Bool[Tensor, " G"]) -> None:
        """Forget the pairs of some problems."""
        for _, _, weight in self.pairs:
            weight[which] = 0.0

    def retire(self, places: Int[Tensor, " A"], index: Int[Tensor, " A"]) -> None:
        """Put the pairs of problems that are done aside, under the numbers `places`."""
        for place, i in zip(places.tolist(), index.tolist(), strict=True):
            # Clones, for a view would keep the pairs of all its neighbours in memory.
            self.retired[place] = [(s[i].clone(), y[i].clone(), weight[i].clone()) for s, y, weight in self.pairs]

    def select(self, index: Int[Tensor, " A"]) -> None:
        """Keep some of the problems."""
        self.pairs = [(step[index], change[index], weight[index]) for step, change, weight in self.pairs]

    def reunited(self) -> "History":
        """Bring the pairs of all retired problems together, the newest side by side."""
        columns = [self.retired[place] for place in sorted(self.retired)]
        longest = max(columns, key=len)
        if not longest:
            return History(self.limit)
        step, change, weight = (torch.zeros_like(part) for part in longest[0])
        filled = [[(step, change, weight)] * (len(longest) - len(column)) + column for column in columns]
        pairs = [tuple(torch.stack(parts) for parts in zip(*row, strict=True)) for row in zip(*filled, strict=True)]
        return History(self.limit, [(step, change, weight) for step, change, weight in pairs])

    def under(self, change_of_penalty: Float[Tensor, "1 1 P"]) -> "History":
        """Return the same steps with the gradient changes they would have had under another penalty."""
        pairs = []
        for step, change, weight in self.pairs:
            changed = torch.addcmul(change, change_of_penalty, step)
            pairs.append((step, changed, _inverse_product(step, changed) * (weight > 0)))
        return History(self.limit, pairs)

    def direction(self, gradient: Float[Tensor, "G R P"], inverse: Float[Tensor, "G 1 P"]) -> Float[Tensor, "G R P"]:
        """Apply the two-loop recursion (Nocedal, 1980) with a diagonal first guess of the inverse Hessian."""
        rest, shares = gradient.clone(), []
        for step, change, weight in reversed(self.pairs):
            share = (weight * dot(step, rest))[:, None, None]
            shares.append(share)
            rest.addcmul_(share, change, value=-1)
        rest *= inverse
        for (step, change, weight), share in zip(self.pairs, reversed(shares), strict=True):
            rest.addcmul_(share - (weight * dot(change, rest))[:, None, None], step)
        return rest.neg_()


def _inverse_product(step: Float[Tensor, "G R P"], change: Float[Tensor, "G R P"]) -> Float[Tensor, " G"]:
    """Return 1 over the product, or 0 where it is only rounding error."""
    product = dot(step, change)
    floor = torch.finfo(step.dtype).eps * (dot(step, step) * dot(change, change)).sqrt()
    return torch.where(product > floor, 1 / product, torch.zeros_like(product))
