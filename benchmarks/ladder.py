"""The released ladder of FREEZE, rung by rung: an epoch against what its products need at the machine's own rate.

`python -m benchmarks.run --only ladder` measures a few epochs of few pairs; a whole ladder takes hours. Times are those
of the processor, which other programs on it do not add to.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.extraction import matmul_rate
from benchmarks.heads import training_flops
from extract.decoders.decoder import Decoder
from extract.inputs.template import InputTemplate
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask, load_stsb
from probes.fitting.fit import fit_head, fit_layers
from probes.fitting.fit_options import FREEZE, PROTOCOLS, EpochOptions, FitOptions, Options
from probes.latents.text_latents import PairLatents, TextLatents
from probes.networks.layerwise_networks import LayerAutoencoder, LayerwiseLinear
from probes.networks.pair_networks import CosineMLP, SiameseCosine

N_PAIRS = 320
"""Training pairs of the fits that are timed; a quarter as many of test, on which the released heads choose epochs."""
PAIRS, TEXTS = 5_749, 20_000
"""Training pairs of STS-B and texts of the corpus, which a ladder is fitted on."""
FEW, MORE = 1, 3
"""Epochs of the two fits whose difference is timed: what a fit takes once is in both."""
Fit = Callable[[int], object]


@dataclass(frozen=True)
class Rung:
    """A fit of a ladder.

    Attributes:
        name: What is fitted.
        fit: Fits it for a number of epochs.
        flops: Floating operations of the products of an epoch.
        epochs: Epochs of the released fit.
        growth: Rows of the released fit by those that are measured.
    """

    name: str
    fit: Fit
    flops: float
    epochs: int
    growth: float


def climb(decoder: Decoder, *, repeats: int) -> dict[str, Any]:
    """Measure every rung on a CPU.

    Args:
        decoder: The decoder whose latents heads are fitted on.
        repeats: Timings of each rung, each with a measurement of the rate before it.

    Returns:
        For each rung and for the whole ladder (`all`) the `seconds` of its released epochs, the `floor` its products
        need, and their `ratio`; of a rung also the `flops` of an epoch. No layer stops before the last epoch.
    """
    with tempfile.TemporaryDirectory() as folder:
        task = load_stsb().subset(N_PAIRS)
        test = task.splits["test"]
        task = replace(task, splits={"train": task.splits["train"], "test": test.select(range(len(test) // 4))})
        spec = ExtractionSpec(poolings=("last",), layers=("blocks",), template=InputTemplate(bos="force"))
        cache = extract_latents(decoder, task.texts(), spec=spec, folder=folder)
        results = {rung.name: _measure(rung, decoder.device, repeats=repeats) for rung in rungs(cache, task)}
    seconds, floor = (sum(values[key] for values in results.values()) for key in ("seconds", "floor"))
    return {**results, "all": {"seconds": seconds, "floor": floor, "ratio": seconds / floor}}


def rungs(cache: LatentCache, task: PairTask) -> list[Rung]:
    """List the fits of a ladder in their order: both heads with encoders of the autoencoders begin with fresh ones."""
    protocol = PROTOCOLS[FREEZE]
    fresh, started = protocol.heads, protocol.started_heads["siamese-cosine"]
    module, texts = _autoencoders(cache, protocol.autoencoder)
    encoders = {"start": "pretrained", "encoder": module.kind, "bottleneck": list(module.codes)}
    n_texts = len(texts.train_rows) // texts.batch_size * texts.batch_size

    def fit_autoencoders(epochs: int) -> object:
        module, data = _autoencoders(cache, protocol.autoencoder)
        options = FitOptions(batch_size=data.batch_size, max_epochs=epochs)
        return fit_layers(module, data, options=options)

    flops = training_flops(module, n_texts) + _forward_flops(module, len(texts.held_out_rows))
    return [
        _pair_rung("cosine-mlp", CosineMLP, fresh["cosine-mlp"], cache, task),
        _pair_rung("siamese", SiameseCosine, fresh["siamese-cosine"], cache, task),
        Rung("autoencoders", fit_autoencoders, flops, protocol.autoencoder["max_epochs"], TEXTS / n_texts),
        *(
            _pair_rung(f"{loss}, pretrained", SiameseCosine, {**started, **encoders, "loss": loss}, cache, task)
            for loss in ("mse", "log-variance")
        ),
    ]


def _autoencoders(cache: LatentCache, options: Options) -> tuple[LayerAutoencoder, TextLatents]:
    fit = {field.name for field in fields(FitOptions)}
    data = TextLatents(cache, pooling="last", batch_size=options["batch_size"])
    arguments = {key: value for key, value in options.items() if key not in fit}
    torch.manual_seed(0)
    return LayerAutoencoder(len(data.channels.names), cache.width, **arguments), data


def _pair_rung(name: str, network: type[CosineMLP | SiameseCosine], options: Options, *where: Any) -> Rung:
    """Make the rung of a head; those that begin with encoders of autoencoders begin with random ones of their shape."""
    cache, task = where
    of_fit = {field.name for field in fields(EpochOptions)}
    arguments = {key: value for key, value in options.items() if key not in {*of_fit, "pooling", "layers"}}
    chosen = {key: value for key, value in options.items() if key in of_fit}
    data = PairLatents(cache, task, pooling="last", batch_size=options["batch_size"], selection="test")
    batch, n_selection = data.batch_size, len(data.split("test"))
    n_rows = len(data.split("train")) // batch * batch

    def build() -> CosineMLP | SiameseCosine:
        torch.manual_seed(0)
        head = network(len(data.layers), cache.width, **arguments)
        if isinstance(head, SiameseCosine) and head.start != "fresh":
            head.adopt(head.encoder, data.standardiser(), picks=range(head.n_layers))
        return head

    def fit(epochs: int) -> object:
        return fit_head(build(), data, options=EpochOptions(**{**chosen, "max_epochs": epochs}))

    head = build()
    if isinstance(head, SiameseCosine):
        flops = training_flops(head, 2 * n_rows)
        flops += _forward_flops(head, 2 * n_selection) if options.get("every", 1) == 1 else 0  # both fits look once
    else:
        flops = 3.0 * _forward_flops(head, n_rows)
    return Rung(name, fit, flops, options["max_epochs"], PAIRS // batch * batch / n_rows)


def _forward_flops(module: nn.Module, rows: int) -> float:
    """Count the products of a forward pass."""
    maps = (part.weight for part in module.modules() if isinstance(part, (LayerwiseLinear, nn.Linear)))
    return 2.0 * rows * sum(weight.numel() for weight in maps)


def _processor_seconds(side: Callable[[], object]) -> float:
    """Time one call by the processor's clock, whose seconds count for each thread."""
    began = time.process_time()
    side()
    return (time.process_time() - began) / torch.get_num_threads()


def _measure(rung: Rung, device: torch.device, *, repeats: int) -> dict[str, float]:
    """Time the epochs between a short fit and a longer one."""
    seconds, rates = [], []
    for _ in range(repeats):
        rates.append(matmul_rate(device, clock=_processor_seconds))
        few, more = (_processor_seconds(partial(rung.fit, n)) for n in (FEW, MORE))
        seconds.append((more - few) / (MORE - FEW))
    whole = rung.epochs * rung.growth
    epoch, floor = median(seconds), rung.flops / median(rates) / 1e9
    return {"seconds": whole * epoch, "floor": whole * floor, "ratio": epoch / floor, "flops": rung.flops}
