"""What the table of heads knows of a head, whatever kind of task it is for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from extract.names import option_names
from probes.heads.options import DATA_OPTIONS, HeadOptions

if TYPE_CHECKING:
    from probes.fitting.saved import FittedModule
    from probes.heads.parts import HeadParts
    from probes.heads.result import HeadResult
    from probes.heads.setting import Setting, Watch


@dataclass(frozen=True)
class Purpose:
    """What a head is about to be fitted for.

    Attributes:
        protocol: The protocol of the run.
        chooses_plan: Whether a mask plan is chosen by its validation score, as in a sweep or a search.
        extracted: The layers that are extracted, as a config names them.
    """

    protocol: str = "icecore"
    chooses_plan: bool = False
    extracted: tuple[str, ...] = ("all",)


@dataclass(frozen=True)
class HeadEntry:
    """One row of the table of heads. Its functions and classes may be named by `later`.

    Attributes:
        name: The name in configs.
        kind: The kind of task it is for.
        description: One line.
        sources: What declares its options: dataclasses, instances whose values are the defaults, or a network's class.
        evaluate: Fits it for every seed, or finds it fitted, chooses as the protocol says and reads test once.
        check: Refuses a task it cannot be fitted on, before anything is extracted.
        check_options: Refuses options that contradict each other.
        oldest_schema: Oldest schema of saved heads that it can be read from.
        build: Builds the network from the arguments it was saved with, ready for its weights. New rows of classes and
            numbers are scored by its `predict`.
        parts: Takes a fitted head apart (`probes.heads.parts`); None for one that is refitted on every layer.
        gives_probabilities: Whether the softmax of its outputs is the probability of each class.
    """

    name: str
    kind: str
    description: str
    sources: tuple[Any, ...]
    evaluate: "Callable[[HeadOptions, Setting, Watch], HeadResult]"
    check: Callable[[Any, HeadOptions, Purpose], None]
    build: "Callable[..., FittedModule]"
    check_options: Callable[[HeadOptions], None] = lambda _: None
    oldest_schema: int = 1
    parts: "Callable[[HeadOptions, Setting, HeadResult, str, Watch], HeadParts] | None" = None
    gives_probabilities: bool = False

    def options(self) -> tuple[str, ...]:
        """Name its options in a config."""
        return (*(name for source in self.sources for name in option_names(source)), *DATA_OPTIONS)
