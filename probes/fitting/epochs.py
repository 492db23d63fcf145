"""How long a head is fitted, and which epoch of it is kept. Reading the options of a head loads no torch."""

from dataclasses import dataclass

from extract.errors import HeadError, unknown_name


@dataclass(frozen=True)
class FitOptions:
    """How a head is fitted."""

    batch_size: int = 128
    """Pairs per batch."""
    max_epochs: int = 100
    """Most passes over the training pairs."""
    patience: int = 20
    """Epochs without a better validation score after which fitting stops."""

    def __post_init__(self) -> None:
        """Refuse counts below one."""
        for name in ("batch_size", "max_epochs", "patience"):
            if getattr(self, name) < 1:
                raise HeadError(f"{name} is {getattr(self, name)}; allowed: a whole number of at least 1.")


KEPT = {"best": "the epoch with the highest Pearson on the selection split", "last": "the last epoch"}


@dataclass(frozen=True)
class EpochOptions(FitOptions):
    """How a pair head is fitted, and which epoch is kept of it."""

    every: int = 1
    """Epochs from one look at the selection split to the next; a shorter fit is looked at once, at its end."""
    keep: str = "best"
    """A name from `KEPT`; `last` never stops early."""

    def __post_init__(self) -> None:
        """Refuse counts below one and unknown names."""
        super().__post_init__()
        if self.every < 1:
            raise HeadError(f"every is {self.every}; allowed: a whole number of at least 1.")
        if self.keep not in KEPT:
            raise unknown_name("epoch to keep", self.keep, KEPT)
        if self.keep == "best" and self.patience < self.every:
            raise HeadError(
                f"patience is {self.patience}, but every is {self.every}, so fitting would stop before the first look; "
                f"allowed: a patience of at least {self.every}."
            )
