"""Workers on Ray: how many and what each gets, and what one does."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import nn

from extract.decoders.decoder import Decoder
from extract.decoders.loading import load_decoder
from extract.decoders.spec import DecoderSpec
from extract.errors import ConfigError, IcecoreError
from extract.own.gate import allow_code
from extract.run.shards import extract_shards
from extract.run.spec import ExtractionSpec
from extract.run.workers import SPREADS

DEVICES = ("auto", "cpu", "cuda")
"""Devices that a decoder may name: which GPUs a worker sees is chosen by Ray."""

Maker = DecoderSpec | Callable[[], Decoder]


@dataclass(frozen=True)
class RayWorkers:
    """How many workers Ray starts, and what each of them gets."""

    n_workers: int
    """Workers. Those for which the cluster has no room wait until it has; the others do their windows."""
    cpus: int | float = 1
    """CPUs of each, and as many threads, unless `OMP_NUM_THREADS` is set."""
    gpus: int | float | None = None
    """GPUs of each, such as 1, or 0.5 where two share one; absent: 1 where the cluster has GPUs, else none."""
    restarts: int = 10
    """How often each one is started again when its process or its node dies; -1: however often."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.n_workers < 1:
            raise ConfigError(f"the number of Ray workers is {self.n_workers}; allowed: a whole number, at least 1.")
        if self.cpus < 0 or (self.gpus or 0) < 0:
            raise ConfigError(f"each Ray worker gets {self.cpus} CPUs and {self.gpus} GPUs; allowed: none or more.")
        if self.restarts < -1:
            raise ConfigError(f"restarts is {self.restarts}; allowed: a whole number, or -1 for no limit.")


def require_maker(decoder: Any) -> Maker:
    """Return what every worker can make its decoder of; `ConfigError` for one in memory, or spread over devices."""
    if isinstance(decoder, str):
        return DecoderSpec(decoder)
    if isinstance(decoder, DecoderSpec):
        for key, what in SPREADS.items():
            if getattr(decoder, key) is not None:
                raise ConfigError(f"decoder.{key} {what}, and every Ray worker has its own; leave decoder.{key} out.")
        if decoder.device not in DEVICES:
            raise ConfigError(
                f"decoder.device is {decoder.device!r}, and Ray chooses the GPU of each worker; allowed: "
                f"{', '.join(DEVICES)}."
            )
        return decoder
    if isinstance(decoder, Decoder | nn.Module) or not callable(decoder):
        raise ConfigError(
            f"the decoder is a {type(decoder).__name__}, and every Ray worker makes its own; allowed: a name, a "
            "DecoderSpec, or a function without arguments that returns a decoder."
        )
    made: Maker = decoder
    return made


@dataclass
class ShardWorker:
    """What runs on Ray: an actor that fills a folder of shards beside others like it."""

    make: Maker
    started_in: str
    folder: str
    spec: ExtractionSpec
    window: int
    patience: float
    allowed: tuple[str, ...] = ()
    """Code that the spec may name: what the driver has imported for it."""

    def fill(self, texts: Any) -> IcecoreError | OSError | None:
        """Return when all windows are listed, whoever did them; or return the error, of which Ray would raise pages."""
        with suppress(OSError):  # a folder that this node lacks; only absolute paths are found then
            os.chdir(self.started_in)
        try:
            decoder = load_decoder(self.make) if isinstance(self.make, DecoderSpec) else self.make()
            with allow_code(self.allowed):
                extract_shards(
                    decoder, texts, folder=self.folder, spec=self.spec, window=self.window, patience=self.patience
                )
        except (IcecoreError, OSError) as error:
            return error
        return None
