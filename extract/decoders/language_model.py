"""Causal language models: a decoder with its head, whose logits are computed only where they are asked for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPast

from extract.decoders.decoder import DEFAULT_SPEC, IN_MEMORY, Decoder, body_of, changed, load_whole
from extract.decoders.decoder_spec import DecoderSource
from extract.errors import DecoderError

MOST_LOGITS = 1 << 25
"""Logits in memory at a time; a vocabulary of 262k then takes 128 tokens."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A frozen decoder and the causal language model that it is the body of."""

    decoder: Decoder
    """The body."""
    model: PreTrainedModel
    """The whole, with the head."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the head scores, `V`."""
        return int(_head_of(self.model).weight.shape[0])

    def logits(self, hidden: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]:
        """Compute the logits of the next token from states behind the final norm, by the model's own code."""
        with _body_gives(self.model, hidden.unsqueeze(0)):
            ids = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
            logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits[0]

    def losses(self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Compute the cross-entropy of every target in nats, in chunks of at most `MOST_LOGITS` logits.

        Gradients reach the states, and no logits are kept for them: each chunk computes its own at once. The head is
        frozen, so it has none.
        """
        losses: Tensor = _ChunkedLoss.apply(hidden, targets, self)  # type: ignore[no-untyped-call]
        return losses

    def chunk_losses(self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Compute the cross-entropy of every target, with all logits in memory."""
        return nn.functional.cross_entropy(self.logits(hidden).float(), targets, reduction="none")


def _head_of(model: PreTrainedModel) -> Any:
    """Return the module that scores tokens; None where there is none."""
    untyped: Any = model
    return untyped.get_output_embeddings()


class _ChunkedLoss(torch.autograd.Function):
    """Losses of targets whose gradients with respect to the states are computed together with them, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, targets: Tensor, owner: LanguageModel) -> Tensor:
        """Compute the losses, and the gradient of each with respect to its own state."""
        n = max(1, MOST_LOGITS // owner.vocabulary)
        losses, gradients = list[Tensor](), list[Tensor]()
        for some, wanted in zip(torch.split(hidden, n), torch.split(targets, n), strict=True):
            leaf = some.detach().requires_grad_(ctx.needs_input_grad[0])
            with torch.set_grad_enabled(ctx.needs_input_grad[0]):
                loss = owner.chunk_losses(leaf, wanted)
                total = loss.sum()  # no state is read by another's loss, so its gradient is that of each
            losses.append(loss.detach())
            if ctx.needs_input_grad[0]:
                gradients += torch.autograd.grad(total, leaf)
        ctx.gradients = torch.cat(gradients) if gradients else None
        return torch.cat(losses) if losses else hidden.new_zeros(0)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, None, None]:
        """Scale the gradient of every loss."""
        [scale] = upstream
        gradients = ctx.gradients
        return None if gradients is None else gradients * scale.unsqueeze(1).to(gradients.dtype), None, None


class _States(BaseModelOutputWithPast):
    """What a body returns, of which all but the states is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _body_gives(model: PreTrainedModel, hidden: Tensor) -> Iterator[None]:
    """Let the body of a model give states instead of computing any, until the `with` block ends."""
    with changed_forward(body_of(model), lambda *_, **__: _States(last_hidden_state=hidden)):
        yield


@contextmanager
def changed_forward(module: nn.Module, forward: Callable[..., object]) -> Iterator[None]:
    """Replace what a module computes until the `with` block ends."""
    is_own = "forward" in vars(module)
    with changed(module, forward=forward):
        yield
    if not is_own:
        del module.forward


def load_language_model(
    spec: DecoderSource | nn.Module = DEFAULT_SPEC,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    name: str = IN_MEMORY,
    report: Callable[[str], None] = lambda _: None,
) -> LanguageModel:
    """Load a decoder together with its language-model head; arguments as in `load_decoder`.

    Raises:
        DecoderError: As `load_decoder`; the checkpoint has no head, or one that cannot be run on chosen states.

    Example:
        >>> load_language_model("smollm2-135m-instruct").vocabulary  # doctest: +SKIP
        49152
    """
    decoder, model = load_whole(spec, tokenizer, name=name, report=report, with_head=True)
    model.requires_grad_(False).train(False)
    whole = LanguageModel(decoder, model)
    _require_own_logits(whole)
    return whole


@torch.no_grad()
def _require_own_logits(whole: LanguageModel) -> None:
    """Check that logits from states are those of the model's own forward call (`DecoderError`)."""
    decoder, model = whole.decoder, whole.model
    family = decoder.description.family
    if model is decoder.module or _head_of(model) is None:
        raise DecoderError(
            f"{decoder.description.name!r} ({family}) has no language-model head, which predicts tokens; allowed: a "
            "causal language model."
        )
    ids = torch.arange(1, 4, device=decoder.device).unsqueeze(0) % whole.vocabulary
    own = model(input_ids=ids, use_cache=False).logits[0].float()
    hidden = decoder.module(input_ids=ids, use_cache=False).last_hidden_state[0]
    drift = float((whole.logits(hidden).float() - own).abs().max() / own.abs().max().clamp(min=1e-6))
    if not drift < 1e-2:
        raise DecoderError(
            f"the family {family!r} computes its logits from more than the last hidden state (they differ by "
            f"{drift:.2g}), so tokens cannot be scored one by one; allowed: a causal language model with a plain head."
        )
