"""Scoring new pairs with a saved run."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from jaxtyping import Float

from extract.decoders.decoder import Decoder
from extract.decoders.layers import select_layers
from extract.decoders.loading import load_decoder
from extract.decoders.spec import DecoderSpec
from extract.errors import HeadError, InputError, unknown_name
from extract.inputs.template import InputTemplate
from extract.run.embed import embed_texts
from extract.run.runner import unique_texts
from extract.run.spec import ExtractionSpec
from extract.store.manifest import require_same
from probes.fitting.saved import FittedModule, SavedHead
from probes.heads.saved import load_head
from probes.latents.channels import split_poolings
from probes.metrics.calibration import read_calibration


@dataclass(frozen=True, eq=False)
class PairScorer:
    """Scores pairs of texts with one head of a run, all of its seeds averaged.

    Attributes:
        name: The head.
        seeds: The fitted heads, one per seed.
        decoder: The decoder whose latents they read.
        spec: How latents are extracted.
    """

    name: str
    seeds: tuple[SavedHead[FittedModule], ...]
    decoder: Decoder
    spec: ExtractionSpec

    def score(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " N"]:
        """Score pairs in the units of the task's gold, calibrated on its validation split.

        Args:
            pairs: `N` pairs of texts, in any order within a pair.

        Returns:
            `(N,)` scores.

        Raises:
            InputError: No pairs, or an empty text.
        """
        if not pairs:
            raise InputError("there are no pairs to score; give at least one.")
        texts = unique_texts(text for pair in pairs for text in pair)
        spot = {text: i for i, text in enumerate(texts)}
        latents = embed_texts(self.decoder, texts, spec=self.spec)
        names = select_layers(self.spec.layers, len(self.decoder.blocks))
        left, right = ([spot[pair[k]] for pair in pairs] for k in (0, 1))
        scores = []
        for saved in self.seeds:
            layers = [names.index(layer) for layer in saved.record["layers"]]
            poolings = split_poolings(saved.record["pooling"])
            chosen = torch.cat([latents[layers, self.spec.poolings.index(pooling)] for pooling in poolings])
            with torch.no_grad():
                predicted = saved.head(chosen[:, left], chosen[:, right])
            scores.append(read_calibration(saved.record["calibration"])(predicted.numpy()))
        return np.asarray(np.mean(scores, axis=0))


def load_scorer(run: str | Path, *, head: str | None = None, decoder: Decoder | None = None) -> PairScorer:
    """Load a saved run to score new pairs.

    Args:
        run: A run folder.
        head: Which head; the one with the best validation Pearson when absent.
        decoder: The run's decoder, if it is in memory already.

    Returns:
        The scorer.

    Raises:
        HeadError: No run folder, a run on words or classes, or no such head in it.
        CacheIdentityError: The decoder is not the one the run was made with.

    Example:
        >>> load_scorer("runs/demo").score([("A cat sleeps.", "The cat is asleep.")])  # doctest: +SKIP
    """
    folder = Path(run)
    try:
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        _require_pairs(folder, scores["task"])
        best = max(scores["heads"], key=lambda key: _validation(scores, key))
        spec, decoder_spec = _spec_from(config["extraction"]), DecoderSpec(**config["decoder"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise HeadError(
            f"folder {str(folder)!r} holds no finished run; allowed: a folder made by `icecore run`, as runs/demo."
        ) from error
    name = head or best
    if name not in scores["heads"]:
        raise unknown_name("head of this run", name, scores["heads"])
    seeds = tuple(load_head(folder / "heads" / name / f"seed_{e['seed']}") for e in scores["heads"][name]["seeds"])
    decoder = decoder or load_decoder(decoder_spec)
    _require_decoder(folder, scores, decoder)
    return PairScorer(name, seeds, decoder, spec)


def _require_pairs(folder: Path, task: dict[str, Any]) -> None:
    """Refuse runs whose heads read something else than pairs, and say what reads those heads."""
    kinds = {
        "class_names": ("classes", "probes.load_head", "heads/NAME"),
        "tags": ("words", "probes.load_head", "heads/NAME/seed_0"),
    }
    for key, (what, loader, place) in kinds.items():
        if key in task:
            raise HeadError(
                f"folder {str(folder)!r} holds a run on {what} (task {task.get('name')!r}), which scores no pairs; "
                f"allowed: a run on pairs of texts; a head of this one is read back with {loader}('{folder}/{place}')."
            )


def _spec_from(values: dict[str, Any]) -> ExtractionSpec:
    """Read an extraction back from a config that was written by a run."""
    found: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in values.items()}
    found.pop("words", None)  # pairs have none
    return ExtractionSpec(**{**found, "template": InputTemplate(**found["template"])})


def _validation(scores: dict[str, Any], head: str) -> float:
    mean = scores["heads"][head]["summary"]["validation"]["pearson"]["mean"]
    return -math.inf if mean is None else float(mean)


def _require_decoder(folder: Path, scores: dict[str, Any], decoder: Decoder) -> None:
    keys = ("weight_digest", "tokenizer_digest", "dtype")
    found, now = scores["decoder"], decoder.description.to_dict()
    require_same({k: now[k] for k in keys}, {k: found[k] for k in keys}, where=f"of the decoder for {str(folder)!r}")
