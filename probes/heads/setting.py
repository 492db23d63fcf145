"""What all heads of a run share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.digest import digest_json
from extract.errors import unknown_name
from extract.own.names import digest_own
from extract.store.cache import LatentCache
from probes.fitting.keep_best import EpochReport
from probes.fitting.protocols import Protocol, find_protocol
from probes.fitting.saved import SavedHead
from probes.metrics.calibration import CALIBRATIONS
from probes.networks.autoencoder import LayerAutoencoder

Watch = Callable[[int], EpochReport]
"""Makes, for a seed, the function that receives every epoch."""


@dataclass(frozen=True)
class Setting:
    """What all heads of a run share.

    Attributes:
        cache: The latents.
        task: The task.
        seeds: Seeds of trained heads.
        n_resamples: Bootstrap resamples.
        device: Where heads are fitted.
        folder: Where fitted heads are kept, one folder per head and seed.
        protocol: A key of `PROTOCOLS`.
        calibration: A key of `CALIBRATIONS`; how predictions of pair heads become scores.
        anchor_identical: Whether a text paired with itself gets the highest score.
        autoencoders: Finds or fits the autoencoders of a pooling, for heads that start from them.
        documents: The latents of documents, where they are read under another template than queries.
        has_details: Whether subsets of test and residuals are described too; sweeps leave them out.
    """

    cache: LatentCache
    task: Any
    seeds: tuple[int, ...]
    n_resamples: int
    device: str
    folder: Path
    protocol: str = "icecore"
    calibration: str = "linear"
    anchor_identical: bool = False
    autoencoders: Callable[[str], SavedHead[LayerAutoencoder]] | None = None
    has_details: bool = True
    documents: LatentCache | None = None

    def __post_init__(self) -> None:
        """Refuse unknown names before anything is fitted."""
        find_protocol(self.protocol)
        if self.calibration not in CALIBRATIONS:
            raise unknown_name("calibration", self.calibration, CALIBRATIONS)

    def identify(self, *head: Any, more: Sequence[Any] = (), reads_test: bool = False) -> str:
        """Digest all that decides a fit: the head, its name first, latents and rows it sees, versions, and `more`."""
        own = digest_own("head", [str(head[0])])
        task = self.task if reads_test else self.task.without_test()  # found again when test is read later
        seen = [self.cache.manifest.id, task.digest(), self.cache.identity["versions"]]
        seen += [self.documents.manifest.id] if self.documents else []
        return digest_json([*head, *seen, *more, *([own] if own else [])])

    @property
    def rules(self) -> Protocol:
        """The protocol itself."""
        return find_protocol(self.protocol)
