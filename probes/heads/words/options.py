"""Options of the token heads, as a config writes them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extract.errors import HeadError, unknown_name
from probes.heads.options import HeadOptions
from probes.latents.reading import Streaming
from probes.logistic.checks import check_strengths
from probes.logistic.options import SolverOptions
from probes.metrics.decoding import DECODINGS
from probes.networks.token_heads import SCHEDULES

CLASS_WEIGHTS = {
    "none": "every word counts alike",
    "balanced": "every class counts alike: a word weighs the inverse of its class's share",
}
STARTS = {
    "prior": "weights of zero, and biases that predict how frequent each class is in train",
    "random": "small random weights and biases, as linear maps usually begin",
}
OFFSETS_FROM = {
    "validation": "the bias of O is lowered or raised where validation spans are found better, layer by layer",
    "none": "as trained",
}
DECODINGS_FROM = {
    "validation": "the way that scores best on validation, chosen together with the layer (tasks of spans)",
    **DECODINGS,
}
KEPT = {
    "best": "the epoch with the best validation score, of every layer by itself",
    "last": "the weights that training ends with",
}


@dataclass(frozen=True)
class ReadingOptions:
    """Options of every head of words: how words are read, and how tags are read from a head and scored."""

    is_standardised: bool = True
    """Whether latents are standardised by mean and standard deviation over training words."""
    decoding: str = "validation"
    """How tags are read from a head: `validation` chooses, or `plain`, `repaired` or `legal`; others are `plain`."""
    is_strict: bool = False
    """Whether spans are counted strictly (a span begins with B) and not by the rules of conlleval."""
    leaves_out_cut: bool = False
    """Whether words without a latent are left out of the scores, which is optimistic, and not counted as errors."""
    chunk_words: int = 512
    """Words that are read at once."""
    buffer_mb: int = 1024
    """Memory in MB in which chunks are mixed."""

    def __post_init__(self) -> None:
        """Refuse values outside their ranges and tables."""
        if self.decoding not in DECODINGS_FROM:
            raise unknown_name("decoding", self.decoding, DECODINGS_FROM)
        self.streaming()

    @property
    def chooses_epoch(self) -> bool:
        """Whether validation chooses an epoch."""
        return False

    def seeds(self, given: Sequence[int]) -> Sequence[int]:
        """Return those seeds of a run that give fits of their own."""
        return given[:1]

    def streaming(self) -> Streaming:
        """Return how the cache is read."""
        return Streaming(self.chunk_words, self.buffer_mb)

    def judging(self) -> dict[str, bool]:
        """Return how predictions are judged."""
        return {"is_strict": self.is_strict, "leaves_out_cut": self.leaves_out_cut}

    def decodings(self, metric: str) -> tuple[str, ...]:
        """List the ways of decoding to choose from; tags without spans are decoded plainly."""
        if metric != "span-f1":
            return ("plain",)
        return tuple(DECODINGS) if self.decoding == "validation" else (self.decoding,)

    def head_arguments(self) -> dict[str, Any]:
        """Return the arguments of the head itself."""
        return {}


@dataclass(frozen=True)
class TokenOptions(ReadingOptions):
    """Options of a token head."""

    batch_size: int = 32
    """Sentences per batch."""
    max_epochs: int = 20
    """Most epochs."""
    patience: int = 3
    """Epochs without a better validation score after which a layer is done."""
    epoch_steps: int = 100
    """Fewest training steps of an epoch, which goes over a small training split several times, always to its end.

    1 is one pass an epoch, as is any number of steps that a pass has. Without it `patience` and `max_epochs` would be a
    few steps where there are a hundred sentences."""
    start: str = "prior"
    """Where training begins: `prior` (the biases know how frequent each class is) or `random`."""
    offset: str = "validation"
    """What moves the bias of O after training: `validation` (tasks of spans alone), or `none`."""
    steps: int = 0
    """Training steps, in place of epochs; 0 counts epochs."""
    keep: str = "best"
    """Which weights are kept: `best` (of the epochs, on validation) or `last`."""
    learning_rate: float = 1e-3
    """AdamW learning rate."""
    schedule: str = "constant"
    """`constant`, or `linear` to 0 over all steps."""
    weight_decay: float = 0.01
    """AdamW weight decay."""
    dropout: float = 0.1
    """Share of the dimensions that are left out in training."""
    class_weights: str = "none"
    """`none`, or `balanced`: rare classes count as much as frequent ones."""

    def __post_init__(self) -> None:
        """Refuse values outside their ranges and tables."""
        super().__post_init__()
        tables = {
            "start": STARTS,
            "offset": OFFSETS_FROM,
            "keep": KEPT,
            "schedule": SCHEDULES,
            "class_weights": CLASS_WEIGHTS,
        }
        for name, table in tables.items():
            if getattr(self, name) not in table:
                raise unknown_name(name, getattr(self, name), table)
        for name in ("batch_size", "max_epochs", "patience", "epoch_steps"):
            if getattr(self, name) < 1:
                raise HeadError(f"{name} is {getattr(self, name)}; allowed: a whole number of at least 1.")
        if self.steps < 0:
            raise HeadError(f"steps is {self.steps}; allowed: a whole number of training steps, or 0 to count epochs.")
        if self.steps and self.keep != "last":
            raise HeadError(
                f"steps is {self.steps} and keep is {self.keep!r}; allowed: keep: last, since training in steps looks "
                "at validation only when it has ended."
            )
        if not 0 <= self.dropout < 1:
            raise HeadError(f"dropout is {self.dropout}; allowed: a share from 0 to below 1.")
        for name in ("learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise HeadError(f"{name} is {getattr(self, name)}; allowed: a number of at least 0.")

    @property
    def chooses_epoch(self) -> bool:
        """Whether validation chooses an epoch."""
        return self.keep == "best"

    def seeds(self, given: Sequence[int]) -> Sequence[int]:
        """Return all seeds of a run: each has its own weights, dropout and order."""
        return given

    def head_arguments(self) -> dict[str, Any]:
        """Return the arguments of the head itself."""
        return {name: getattr(self, name) for name in ("dropout", "learning_rate", "weight_decay", "schedule")}


@dataclass(frozen=True)
class LogisticOptions(ReadingOptions):
    """Options of the head `token-logistic`."""

    C: float = 1.0
    """Inverse strength of the penalty."""
    max_iterations: int = SolverOptions.max_iterations
    """Most L-BFGS iterations."""

    def __post_init__(self) -> None:
        """Refuse values outside their ranges and tables."""
        super().__post_init__()
        check_strengths([self.C])
        self.solver("cpu")

    def solver(self, device: str) -> SolverOptions:
        """Return the options of the solver."""
        return SolverOptions(max_iterations=self.max_iterations, is_standardised=self.is_standardised, device=device)


def token_options(resolved: HeadOptions) -> Any:
    """Return the options of a head of words, `ReadingOptions` and those of its own."""
    return resolved.own[0]
