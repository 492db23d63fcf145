"""The context in which the heads of a run are fitted, and reading any fitted head back by its name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.errors import unknown_name
from extract.files import digest_json
from extract.registry import digest_own
from extract.store.cache import LatentCache
from probes.fitting.epoch_report import EpochReport
from probes.fitting.fit_options import Protocol, find_protocol
from probes.fitting.saved_fits import FitRecord, FittedModule, SavedHead, load_fitted
from probes.heads.head_table import AUTOENCODER, HEADS
from probes.metrics.correlation import CALIBRATIONS
from probes.networks.layerwise_networks import LayerAutoencoder

Reporter = Callable[[int], EpochReport]
"""Makes, for a seed, the function that receives every epoch."""


@dataclass(frozen=True)
class FitContext:
    """What all heads of a run share.

    Attributes:
        cache: The latents.
        task: The task.
        seeds: Seeds of trained heads.
        n_resamples: Bootstrap resamples.
        device: Where heads are fitted.
        folder: Where fitted heads are saved, one folder per head and seed.
        protocol: A key of `PROTOCOLS`.
        calibration: A key of `CALIBRATIONS`; how predictions of pair heads become scores.
        anchor_identical: Whether a text paired with itself gets the highest score.
        autoencoders: Loads or fits the autoencoders of a pooling, for heads that start from them.
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
        code = digest_own("head", [str(head[0])])
        task = self.task if reads_test else self.task.without_test()  # the same fit when test is read later
        seen = [self.cache.manifest.id, task.digest(), self.cache.identity.versions]
        seen += [self.documents.manifest.id] if self.documents else []
        return digest_json([*head, *seen, *more, *([code] if code else [])])

    @property
    def rules(self) -> Protocol:
        """The protocol itself."""
        return find_protocol(self.protocol)


def build_head(record: FitRecord) -> FittedModule:
    """Build the module of a saved head from its record, without its weights; ValueError for a schema too old."""
    name = record.name
    build: Callable[..., FittedModule] = LayerAutoencoder
    oldest = 2
    if name in HEADS:
        build, oldest = HEADS[name].build, HEADS[name].oldest_schema
    elif name != AUTOENCODER:
        hint = "If it is your own, import what registers it first, or read its run by load_run."
        raise unknown_name("head", name, [AUTOENCODER, *HEADS], hint=hint)
    if record.schema < oldest:
        raise ValueError(f"its schema is {record.schema}, this version reads {name} from {oldest} on; fit it again")
    return build(**record.arguments)


def load_head(folder: str | Path) -> SavedHead[FittedModule]:
    """Read any fitted head back, ready to score latents.

    Args:
        folder: A folder of a head, such as RUN/heads/NAME/seed_0.

    Returns:
        The head and its record.

    Raises:
        HeadError: No head there, or one that cannot be read.
        UnknownNameError: A head that this version does not know.

    Example:
        >>> saved = load_head("runs/words-sample/heads/token-classifier/seed_0")  # doctest: +SKIP
        >>> saved.head(latents).argmax(-1)  # (layers, words) of (layers, words, width)  # doctest: +SKIP
    """
    return load_fitted(folder, build_head)
