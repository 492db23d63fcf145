"""The heads. A new head is one file, one row here, one config and one test."""

from dataclasses import dataclass

from extract.errors import unknown_name
from probes.fitting.trainer import FitOptions
from probes.networks.cosine_mlp import CosineMLP
from probes.networks.layer_cosine import LayerCosine
from probes.networks.pair_head import PairHead
from probes.networks.siamese_cosine import SiameseCosine


@dataclass(frozen=True)
class HeadEntry:
    """A head and how it is fitted unless told otherwise."""

    head: type[PairHead]
    options: FitOptions
    description: str


HEADS: dict[str, HeadEntry] = {
    "layer-cosine": HeadEntry(
        LayerCosine, FitOptions(), "raw and standardised cosine of each layer; the best on validation is the score"
    ),
    "cosine-mlp": HeadEntry(
        CosineMLP, FitOptions(batch_size=64, max_epochs=100, patience=20), "standardised layer cosines -> 128 -> 1"
    ),
    "siamese-cosine": HeadEntry(
        SiameseCosine,
        FitOptions(batch_size=128, max_epochs=150, patience=15),
        "layer-wise encoders -> cosines -> 512-512-512-1, log-variance, MSE or CoSENT loss",
    ),
}


def head_entry(name: str) -> HeadEntry:
    """Look up a head.

    Raises:
        UnknownNameError: A head that stands in no table.
    """
    if name not in HEADS:
        raise unknown_name("head", name, HEADS)
    return HEADS[name]
