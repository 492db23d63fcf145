"""Logistic regression of the tags of words on their latents, layer by layer: no epochs, no dropout."""

import time
from typing import Any

import numpy as np
import torch

from probes.heads.words.fitting import TokenFit, score_decodings, score_probes
from probes.heads.words.judging import judge_of
from probes.heads.words.options import LogisticOptions
from probes.latents.word_latents import WordLatents
from probes.logistic.solver import fit_logistic
from probes.networks.token_heads import TokenClassifier


def fit_token_logistic(
    head: TokenClassifier, data: WordLatents, options: LogisticOptions, *, device: str = "cpu", **_: Any
) -> TokenFit:
    """Fit a classifier of every layer to convergence, on all training words of that layer at once, held in memory.

    The head takes the weights for latents as they are.
    """
    started = time.monotonic()
    codes = torch.from_numpy(data.gold("train").ids)
    for layer in range(head.n_probes):
        batches = [(batch.latents.clone(), batch.words) for batch in data.loader("train", channel=layer)]
        latents, words = torch.cat([part for part, _ in batches], dim=1), torch.cat([part for _, part in batches])
        fit = fit_logistic(
            latents, codes[words], Cs=[options.C], n_classes=len(data.classes), options=options.solver(device)
        )
        weight, bias = fit.raw(0, 0)
        head.weight.data[layer], head.bias.data[layer] = weight.float(), bias.float()
    head.cpu().eval()
    judge = judge_of(data, "validation", **options.judging()) if "validation" in data.rows else None
    scores = score_probes(head, data, judge, split="validation") if judge else np.zeros(0)
    return TokenFit(
        head.seed,
        (0,) * head.n_probes,
        tuple(scores.tolist()),
        (),
        time.monotonic() - started,
        decoded=score_decodings(head, data, judge, options, plain=scores) if judge else {},
    )
