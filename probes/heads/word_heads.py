"""Token heads: what they refuse, and how they are scored over seeds: layer chosen on validation, test read once."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int

from extract.decoders.decoder import Decoder
from extract.errors import TaskError
from extract.inputs.joined_text import WORD_CUT, WORD_LOST, WORD_SHARED, JoinedText, join_words
from extract.inputs.tokens import cut_at_tokens
from extract.masks.mask_plan import parse_plan
from extract.run.embed import embed_words
from extract.run.extraction import unique_texts
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from probes.fitting.fit_options import LBW, LBW_TOKENS, MAGNET, find_protocol
from probes.fitting.saved_fits import SavedHead, Unfinished, fit_or_load
from probes.heads.context import FitContext, Reporter
from probes.heads.head_table import HeadOptions, Purpose
from probes.heads.layer_head import HeadParts, Heads, KindScoring, Together, read_channels
from probes.heads.result import Curve, HeadResult
from probes.heads.word_fits import (
    Judge,
    ReadingOptions,
    TokenFit,
    fit_token_head,
    judge_of,
    majority_ids,
    predict_logits,
    token_options,
)
from probes.latents.word_latents import WordLatents
from probes.metrics.bootstrap import SeedSummary
from probes.metrics.span_metrics import NO_PREDICTION, decode_tags
from probes.networks.token_networks import TokenHead, TokenMix

# What the result of a token head says of its fits, of the words it read, and of its protocol.


def selection(options: ReadingOptions, *, n_layers: int, n_ways: int) -> str:
    """Say what is chosen, and on which split."""
    chosen = ["epoch"] * options.chooses_epoch + ["layer"] * (n_layers > 1) + ["decoding"] * (n_ways > 1)
    listed = " and ".join(filter(None, [", ".join(chosen[:-1]), *chosen[-1:]]))
    return f"validation ({listed})" if chosen else "nothing to choose"


def token_curves(curve: Float[np.ndarray, "S P"], metric: str) -> tuple[Curve, ...]:
    """Make the curve of the validation scores of every layer with every seed; none without a validation split."""
    if not curve.size:
        return ()
    spread = curve.std(0, ddof=1) if len(curve) > 1 else np.zeros(curve.shape[1])
    rows = tuple(tuple(row) for row in curve.tolist())
    return (Curve("", "validation", metric, tuple(curve.mean(0).tolist()), tuple(spread.tolist()), rows),)


def departures(protocol: str, cache: LatentCache, pooling: str) -> tuple[str, ...]:
    """Say, one line each, where a run departs from the protocol it names because of what its word cache holds."""
    words, template = cache.identity["words"], cache.identity["template"]
    found = []
    if protocol == MAGNET:
        if parse_plan(cache.identity["plan"]).is_untouched:
            found.append("every block is causal, and no word sees what follows it, as it does with MAGNET")
        if not words["shift"]:
            found.append("tokens are not shifted by one, as MAGNET shifts them")
        if pooling != "mean":
            found.append(f"a word is the {pooling} of its tokens, and not their mean, as with MAGNET")
    if protocol == LBW and (template["max_tokens"], template["on_long"]) != (LBW_TOKENS, "truncate"):
        found.append(f"sentences are not cut to {LBW_TOKENS} tokens, as the released code cuts them")
    return tuple(found)


def describe_seed(record: dict[str, Any], probe: int) -> dict[str, Any]:
    """Describe one seed: per epoch the chosen layer's score until it is done, and the best so far of any layer."""
    history = []
    best = -math.inf
    for step in record["history"]:
        told = {"train_loss": step["train_loss"]}
        scores = step.get("validation_scores", [])
        best = max([best, *(score for score in scores if score is not None)])
        if best > -math.inf:
            told["best_layer_score"] = best
        if scores and scores[probe] is not None:
            told["validation_score"] = scores[probe]
        history.append(told)
    best_epoch = record["best_epochs"][probe]
    return {"seed": record["seed"], "best_epoch": best_epoch, "seconds": record["seconds"], "history": history}


def coverage(data: WordLatents, split: str) -> dict[str, int]:
    """Count the words of a split, and those that something happened to in extraction."""
    flags = data.split(split).flags
    counts = {"n_cut": WORD_CUT, "n_lost": WORD_LOST, "n_shared": WORD_SHARED}
    return {"n_words": len(flags), **{key: int(np.count_nonzero(flags & bit)) for key, bit in counts.items()}}


def describe_mix(heads: Sequence[TokenMix], data: WordLatents, judge: Judge | None) -> dict[str, Any]:
    """Describe a mix, the mean over seeds.

    Weights are of layer-normed layers, and still no measure of what a layer knows: two alike share one weight. So the
    scores, of plain tags, stand beside them, where there is a judge of validation.

    Returns:
        `layers`, `weights` (they sum to 1), `gamma`, and, on validation, `whole` (the score of the mix), `alone` (of
        each layer put in place of the mix) and `without` (the score lost when the other layers share its weight).
    """
    with torch.no_grad():
        weights = np.mean([head.weights().numpy() for head in heads], axis=0)
        gamma = float(np.mean([float(head.gamma) for head in heads]))
    found: dict[str, Any] = {"layers": list(data.layers), "weights": weights.tolist(), "gamma": gamma}
    if judge is None:
        return found
    scores = np.mean([_score_layers(head, data, judge) for head in heads], axis=0)
    whole, alone, without = scores[0], scores[1 : 1 + len(weights)], scores[1 + len(weights) :]
    return {
        **found,
        "split": "validation",
        "whole": float(whole),
        "alone": alone.tolist(),
        "without": (whole - without).tolist(),
    }


def _score_layers(head: TokenMix, data: WordLatents, judge: Judge) -> list[float]:
    """Score the mix, then every layer in its place, then the mix without every layer."""
    n_words = data.split("validation").n_words
    ids = np.full((1 + 2 * head.n_layers, n_words), NO_PREDICTION, dtype=np.int64)
    with torch.no_grad():
        weights = head.weights().unsqueeze(1).unsqueeze(1)
    others = (1 - weights).clamp(min=1e-6)
    for batch in data.loader("validation", prepare=head.preparation()):
        with torch.no_grad():
            parts = head.parts(batch.latents)
            whole = (weights * parts).sum(0, keepdim=True)
            logits = torch.cat([whole, parts, (whole - weights * parts) / others]) + head.bias
        ids[:, batch.words.numpy()] = logits.argmax(-1).numpy()
    return [judge.score(row) for row in ids]


MIX = "mix"
"""What stands for the layer of a head that reads a mix of all of them."""


def check_words(task: Any, resolved: HeadOptions, purpose: Purpose) -> None:
    """Refuse with a TaskError a task without the splits that token heads are fitted and chosen on."""
    if "train" not in task.splits:
        raise TaskError(f"task {task.name!r} has no split 'train', which every head needs; add rows to it.")
    if set(task.splits) == {"train"}:
        raise TaskError(f"task {task.name!r} has only the split train; add validation or test rows.")
    if "validation" not in task.splits and (purpose.chooses_plan or token_options(resolved).chooses_epoch):
        what, instead = ("its plan", "") if purpose.chooses_plan else ("its epoch", ", or set keep: last")
        raise TaskError(
            f"task {task.name!r} has no split 'validation', on which head {resolved.name!r} chooses {what}; add "
            f"rows to it{instead}."
        )


def evaluate_token_head(
    network: type[TokenHead],
    fit: Callable[..., TokenFit] | None,
    resolved: HeadOptions,
    context: FitContext,
    reporter: Reporter,
) -> HeadResult:
    """Fit a head for every seed, or find it fitted, choose layer and decoding on validation, and read test once.

    Predictions are the classes of the chosen layer with the first seed. Extras: per split `by_type`, `decoding` (spans
    decoded in every way), `errors` and `coverage`; `mix` for a head that mixes layers.
    """
    options, task = token_options(resolved), context.task
    data, fitted = fit_seeds(network, fit, resolved, context, reporter)
    is_mix = isinstance(fitted[0].head, TokenMix)
    names = (MIX,) if is_mix else data.layers
    ways = options.decodings(task.metric)
    grid = np.array([[each.record["decoded"].get(way, ()) for way in ways] for each in fitted])  # seeds, ways, probes
    way, probe = np.unravel_index(np.argmax(grid.mean(0)), grid.shape[1:]) if grid.size else (0, 0)
    decoding, curve = ways[int(way)], grid[:, int(way)]
    if not curve.size and len(names) > 1:
        raise TaskError(
            f"task {task.name!r} has no split 'validation' to choose among {len(names)} layers on; add rows to it, or "
            "name one layer with `layers`."
        )
    heads, channel = [each.head.only(int(probe)) for each in fitted], None if is_mix else int(probe)
    found = {
        split: _judge(
            heads,
            data,
            split,
            options,
            channel=channel,
            decoding=decoding,
            n_resamples=context.n_resamples,
            with_accuracy=context.protocol == MAGNET,
        )
        for split in task.splits
    }
    score = float(curve.mean(0)[probe]) if curve.size else None
    return HeadResult(
        name=resolved.name,
        pooling=data.channels.pooling,
        layers=names,
        options=asdict(options),
        metric=task.metric,
        selection=selection(options, n_layers=len(names), n_ways=len(ways) if grid.size else 1),
        selection_score=float("nan") if score is None else score,
        chosen={
            "layer": names[probe],
            "score": score,
            **({"decoding": decoding} if task.metric == "span-f1" else {}),
        },
        summary={split: each.summaries for split, each in found.items()},
        curves=token_curves(curve, task.metric),
        seeds=tuple(describe_seed(each.record, int(probe)) for each in fitted),
        baselines={"majority": {split: each.majority for split, each in found.items()}},
        optimistic_because=_why_optimistic(options, data),
        departures=departures(context.protocol, context.cache, data.channels.pooling),
        extras={
            **{key: {split: each.facts[key] for split, each in found.items()} for key in _FACTS},
            **_describe_mix(fitted, data, options),
        },
        predictions={split: each.ids for split, each in found.items()},
        names={split: each.judge.gold.names for split, each in found.items()},
        row_scores={split: each.judge.sentence_scores(each.ids) for split, each in found.items()},
    )


def fit_seeds(
    network: type[TokenHead],
    fit: Callable[..., TokenFit] | None,
    resolved: HeadOptions,
    context: FitContext,
    reporter: Reporter,
) -> tuple[WordLatents, list[SavedHead[TokenHead]]]:
    """Fit a head with every seed, or load it; gives the words it reads as well."""
    options = token_options(resolved)
    data = WordLatents(
        context.cache, context.task, pooling=resolved.pooling, layers=resolved.layers, streaming=options.streaming()
    )
    return data, [
        _fit_seed(network, fit, resolved, context, data=data, seed=seed, reporter=reporter)
        for seed in options.seeds(context.seeds)
    ]


def _why_optimistic(options: ReadingOptions, data: WordLatents) -> str:
    is_missing = any(not rows.has_latent.all() for rows in data.rows.values())
    return "words without a latent are left out of the scores" if options.leaves_out_cut and is_missing else ""


_FACTS = ("by_type", "decoding", "errors", "coverage")


@dataclass(frozen=True, eq=False)
class _Judged:
    """Predictions of one split, and how they score."""

    judge: Judge
    ids: Int[np.ndarray, " W"]
    summaries: dict[str, SeedSummary]
    majority: float
    facts: dict[str, Any]


def _judge(
    heads: list[TokenHead],
    data: WordLatents,
    split: str,
    options: ReadingOptions,
    *,
    channel: int | None,
    decoding: str,
    n_resamples: int,
    with_accuracy: bool,
) -> _Judged:
    """Predict a split by the chosen probe of every seed, decoded as chosen, and only then look at its tags."""
    logits = [predict_logits(head, data, split, channel=channel) for head in heads]
    judge = judge_of(data, split, **options.judging())
    ids = np.stack([judge.decode(each, decoding) for each in logits])
    ways = [judge.decodings(each) for each in logits] if judge.metric == "span-f1" else []
    facts = {
        "by_type": judge.by_type(ids),
        "decoding": {way: float(np.mean([each[way] for each in ways])) for way in ways[0]} if ways else {},
        "errors": judge.errors(ids[0]),
        "coverage": coverage(data, split),
    }
    judges = [judge, *([replace(judge, metric="accuracy")] if with_accuracy and judge.metric != "accuracy" else [])]
    summaries = {each.metric: each.summarise(ids, n_resamples=n_resamples) for each in judges}
    return _Judged(judge, ids[0], summaries, judge.score(majority_ids(data, split)), facts)


def _fit_seed(
    network: type[TokenHead],
    fit: Callable[..., TokenFit] | None,
    resolved: HeadOptions,
    context: FitContext,
    *,
    data: WordLatents,
    seed: int,
    reporter: Reporter,
) -> SavedHead[TokenHead]:
    """Fit a head with one seed, or load it."""
    name, options = resolved.name, token_options(resolved)
    folder = context.folder / name / f"seed_{seed}"
    fit_id = context.identify(
        name, asdict(options), data.channels.pooling, list(data.layers), seed, more=[context.device]
    )

    def fitted() -> tuple[TokenHead, dict[str, Any]]:
        sizes = len(data.layers), data.cache.width_of(data.channels.layers), len(data.classes)
        head = network(*sizes, seed=seed, **options.head_arguments())
        found = (fit or fit_token_head)(
            head, data, options, device=context.device, report=reporter(seed), unfinished=Unfinished(folder, fit_id)
        )
        return head, {
            "name": name,
            "classes": list(data.classes),
            "pooling": data.channels.pooling,
            "layers": list(data.layers),
            "seed": seed,
            "protocol": context.protocol,
            "best_epochs": list(found.best_epochs),
            "offsets": list(found.offsets),
            "scores": list(found.scores),
            "decoded": {way: list(scores) for way, scores in found.decoded.items()},
            "history": list(found.history),
            "seconds": round(found.seconds, 3),
        }

    return fit_or_load(folder, fit_id, fitted, lambda record: network(**record["arguments"]), cache=context.cache)


def _describe_mix(fitted: list[SavedHead[TokenHead]], data: WordLatents, options: ReadingOptions) -> dict[str, Any]:
    heads = [each.head for each in fitted if isinstance(each.head, TokenMix)]
    if not heads:
        return {}
    judge = judge_of(data, "validation", **options.judging()) if "validation" in data.rows else None
    return {"mix": describe_mix(heads, data, judge)}


# A fitted token head taken apart: every layer's classifier, or what each layer adds to a mix.


def token_parts(
    network: type[TokenHead],
    fit: Callable[..., TokenFit] | None,
    resolved: HeadOptions,
    context: FitContext,
    result: HeadResult,
    split: str,
    reporter: Reporter,
) -> HeadParts:
    """Take a token head apart; further arguments are those of `probes.heads.layer_head.take_apart`.

    Tags are decoded as the run chose to.
    """
    data, fitted = fit_seeds(network, fit, resolved, context, reporter)
    judge = judge_of(data, split, **token_options(resolved).judging())
    decoding = str(result.chosen.get("decoding", "plain"))
    heads = [each.head for each in fitted]
    mixes = [_Mixed(head, data, split, judge, decoding) for head in heads if isinstance(head, TokenMix)]
    together: Together | None = None
    if mixes:
        one_by_one = np.eye(len(data.layers), dtype=bool)
        alone = np.stack([mix.predict(one_by_one) for mix in mixes])
        together = lambda masks: np.stack([mix.predict(masks) for mix in mixes])  # noqa: E731
    else:
        layers = range(len(data.layers))
        alone = np.stack([[_alone(head, data, split, k, judge, decoding) for k in layers] for head in heads])
    how = "the mix with the means of all other layers" if mixes else "the classifier of the layer"
    return HeadParts(data.channels.pooling, data.layers, judge.scorer(), alone, together, how)


def _alone(
    head: TokenHead, data: WordLatents, split: str, layer: int, judge: Judge, decoding: str
) -> Int[np.ndarray, " W"]:
    return judge.decode(predict_logits(head.only(layer), data, split, channel=layer), decoding)


class _Mixed:
    """What every layer adds to the logits of a mix, on a split, with its means over train."""

    def __init__(self, head: TokenMix, data: WordLatents, split: str, judge: Judge, decoding: str) -> None:
        self.judge, self.decoding = judge, decoding
        self.bias: Float32[np.ndarray, " K"] = head.bias.detach().numpy()[0]
        self.parts, _ = _contributions(head, data, split)
        _, self.means = _contributions(head, data, "train", keep=False)

    def predict(self, masks: Bool[np.ndarray, "M L"]) -> Int[np.ndarray, "M W"]:
        """Predict with every set of layers, the others adding their means over train."""
        found = []
        for mask in masks:
            logits = self.parts[mask].sum(0) + self.means[~mask].sum(0) + self.bias
            logits[np.isnan(self.parts[0, :, 0])] = np.nan  # words without a latent, also where no layer is left
            found.append(self.judge.decode(logits, self.decoding))
        return np.stack(found)


def _contributions(
    head: TokenMix, data: WordLatents, split: str, *, keep: bool = True
) -> tuple[Float32[np.ndarray, "L W K"], Float32[np.ndarray, "L K"]]:
    """Return what each layer adds to the logits of every word (NaN without a latent), and the mean over words."""
    n_words = data.split(split).n_words if keep else 0
    found = np.full((head.n_layers, n_words, head.n_classes), np.nan, np.float32)
    sums, n_seen = np.zeros((head.n_layers, head.n_classes)), 0
    with torch.no_grad():
        weights = head.weights().reshape(-1, 1, 1)
        for batch in data.loader(split, prepare=head.preparation()):
            parts = (weights * head.parts(batch.latents)).numpy()
            sums += parts.sum(1)
            n_seen += parts.shape[1]
            if keep:
                found[:, batch.words.numpy()] = parts
    return found, (sums / max(n_seen, 1)).astype(np.float32)


# Tagging the words of new sentences with the token heads of a run.

Sentence = str | Sequence[str] | JoinedText
"""A text whose words are parted by white space, a list of words, or a text with the places of its words."""


def score_words(
    heads: Heads, sentences: Sequence[Sentence], decoder: Decoder, spec: ExtractionSpec
) -> list[list[str | None]]:
    """Tag the words of sentences, by the mean of the seeds' logits, decoded as chosen; None for a word cut or lost.

    An InputError names a sentence without words, or one that cannot be read.
    """
    joined = [find_words(sentence) for sentence in sentences]
    unique = unique_texts(joined)
    record = heads[0].record
    places = [list(range(len(text.spans))) for text in unique]
    texts = unique
    if find_protocol(record.get("protocol", "icecore")).cut.get("words") == "every-token":
        texts, places = _cut(unique, decoder, spec)
    found = embed_words(decoder, texts, spec=spec)
    reads = {"layers": spec.layers, "poolings": spec.words.poolings}
    with torch.no_grad():
        logits = [saved.head(read_channels(found.latents, saved.record, **reads)) for saved in heads]
    (scores,) = torch.stack(logits).mean(0).float().numpy()  # of one probe
    scores = np.where(found.has_latent[:, None], scores, np.nan)
    best = decode_tags(scores, found.offsets, labels=record["classes"], way=record.get("decoding", "plain"))
    tags = np.array([*record["classes"], None], dtype=object)[best]
    by_text = {
        text: tags[start + np.array(words)].tolist()
        for text, start, words in zip(unique, found.offsets[:-1], places, strict=True)
    }
    return [list(by_text[text]) for text in joined]


def find_words(sentence: Sentence) -> JoinedText:
    """Find the words of a sentence; words of a list are joined by spaces.

    Example:
        >>> find_words("Ice  melts.")
        JoinedText(text='Ice  melts.', spans=((0, 3), (5, 11)))
    """
    if isinstance(sentence, JoinedText):
        return sentence
    if isinstance(sentence, str):
        return JoinedText(sentence, tuple(found.span() for found in re.finditer(r"\S+", sentence)))
    return join_words(sentence, [True] * len(sentence)) if sentence else JoinedText("", ())


def _cut(
    texts: Sequence[JoinedText], decoder: Decoder, spec: ExtractionSpec
) -> tuple[list[JoinedText], list[list[int]]]:
    """Cut words into the pieces that tokens stand for; the first piece of a word has its tag."""
    pieces, firsts = [], []
    for text, starts in zip(texts, cut_at_tokens(texts, decoder.tokenizer, template=spec.template), strict=True):
        spans = [
            (start + a, start + b)
            for (start, end), begins in zip(text.spans, starts, strict=True)
            for a, b in pairwise([*begins, end - start])
        ]
        pieces.append(JoinedText(text.text, tuple(spans)))
        firsts.append(np.cumsum([0, *map(len, starts[:-1])]).tolist())
    return pieces, firsts


def _fields(sentence: Sentence, tags: list[str | None]) -> dict[str, list[str | None]]:
    text = find_words(sentence)
    return {"word": [text.text[start:end] for start, end in text.spans], "tag": tags}


WORDS_SCORING = KindScoring(score_words, _fields)
