"""Layer-wise autoencoders on the latents of a corpus: fitted once, and saved beside the caches."""

import inspect
import operator
from dataclasses import dataclass
from pathlib import Path

import torch

from extract.errors import ConfigError
from extract.files import digest_json
from extract.records import Values, to_plain
from extract.store.cache import LatentCache
from probes.fitting.epoch_report import EpochReport, ignore_epoch
from probes.fitting.fit import fit_layers
from probes.fitting.fit_options import FitOptions, Options
from probes.fitting.saved_fits import FitRecord, SavedHead, Unfinished, fit_or_load
from probes.heads.head_table import AUTOENCODER, SOURCES, resolve_sources, try_building
from probes.latents.text_latents import TextLatents
from probes.networks.layerwise_networks import LayerAutoencoder
from probes.networks.network_options import is_same_rule

_SHARED = (("encoder", operator.eq), ("bottleneck", is_same_rule), ("standardises_latents", operator.eq))
"""Options of autoencoders that a head which starts from them takes over."""
FOLDER = "autoencoders"


def check_autoencoder_options(options: Options) -> tuple[Values, FitOptions]:
    """Check the options of the autoencoders; returns the arguments of `LayerAutoencoder`, and how it is fitted."""
    arguments, fit = resolve_sources(AUTOENCODER, SOURCES, options)
    try_building(AUTOENCODER, LayerAutoencoder, arguments)
    return arguments, fit


def require_same_encoders(head: str, arguments: Options, autoencoder: Options) -> None:
    """Refuse with a ConfigError options of a head's encoders that contradict its autoencoders."""
    defaults = inspect.signature(LayerAutoencoder).parameters
    for option, is_same in _SHARED:
        value = autoencoder.get(option, defaults[option].default)
        if option in arguments and not is_same(arguments[option], value):
            raise ConfigError(
                f"option {option} of head {head!r} is {arguments[option]!r}, but it starts from autoencoders whose "
                f"{option} is {value!r}; leave it out, or set pretraining.autoencoder.{option}."
            )


@dataclass(frozen=True)
class Pretraining:
    """What autoencoders are fitted on, and how: latents of a corpus, options as in a config, and a folder of caches."""

    cache: LatentCache
    options: Options
    seed: int
    device: str
    folder: Path


def obtain_autoencoder(
    pretraining: Pretraining, *, pooling: str, report: EpochReport = ignore_epoch
) -> SavedHead[LayerAutoencoder]:
    """Load the autoencoders of all layers for a pooling (or several joined by `+`), or fit them."""
    arguments, options = check_autoencoder_options(pretraining.options)
    data = TextLatents(pretraining.cache, pooling=pooling, batch_size=options.batch_size, seed=pretraining.seed)
    identity = [
        AUTOENCODER,
        arguments,
        vars(options),
        pooling,
        list(data.channels.names),
        pretraining.seed,
        pretraining.cache.manifest.id,
        pretraining.cache.identity.versions,
        pretraining.device,
    ]
    fit_id = digest_json(identity)
    folder = pretraining.folder / FOLDER / fit_id[:16]
    names = data.channels.names

    def fit() -> tuple[LayerAutoencoder, FitRecord]:
        with torch.random.fork_rng():
            torch.manual_seed(pretraining.seed)
            module = LayerAutoencoder(len(names), pretraining.cache.width_of(data.channels.layers), **arguments)
        result = fit_layers(
            module,
            data,
            options=options,
            seed=pretraining.seed,
            device=pretraining.device,
            report=report,
            unfinished=Unfinished(folder, fit_id),
        )
        details = {
            **to_plain(result),
            "seconds": round(result.seconds, 3),
            "history": [{key: epoch[key] for key in ("train_loss", "held_out_loss")} for epoch in result.history],
            "codes": list(module.codes),
            "seed": pretraining.seed,
            "standardises_latents": module.standardises_latents,
            "n_texts": {"train": len(data.train_rows), "held_out": len(data.held_out_rows)},
        }
        return module, FitRecord(AUTOENCODER, pooling, names, details)

    return fit_or_load(folder, fit_id, fit, _build, cache=pretraining.cache)


def _build(record: FitRecord) -> LayerAutoencoder:
    if "held_out_squared_errors" not in record.details:
        raise ValueError("an early version recorded no errors in the units of the latents; fit it again")
    return LayerAutoencoder(**record.arguments)
