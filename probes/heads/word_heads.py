"""Token heads: what they refuse, and how they are scored over seeds: layer chosen on validation, test read once."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int

from extract.decoders.decoder import Decoder
from extract.errors import TaskError
from extract.inputs.joined_text import WORD_CUT, WORD_LOST, WORD_SHARED, JoinedText, join_words
from extract.inputs.tokens import cut_at_tokens
from extract.masks.mask_plan import parse_plan
from extract.poolings.pooling_table import JOIN
from extract.records import Values, to_plain
from extract.run.embed import embed_words
from extract.run.extraction import unique_texts
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache, ViewCache
from probes.data.word_task import WordTask
from probes.fitting.fit_options import LBW, LBW_TOKENS, MAGNET, EpochReport, find_protocol
from probes.fitting.saved_fits import FitRecord, SavedHead, Unfinished, fit_or_load
from probes.heads.head_table import HeadOptions, PlannedRun
from probes.heads.layer_head import MIX, FitContext, Head, HeadParts, Heads, Reporter, Together, read_channels
from probes.heads.result import NO_CHOICE, Curve, HeadResult
from probes.heads.word_fits import (
    ReadingOptions,
    TagScorer,
    TokenFit,
    fit_token_head,
    majority_ids,
    predict_logits,
    tag_scorer,
)
from probes.latents.word_latents import WordLatents
from probes.metrics.bootstrap import SeedSummary
from probes.metrics.prediction_metrics import NO_PREDICTION, decode_tags
from probes.networks.layerwise_networks import TokenHead, TokenMix


@dataclass(frozen=True, eq=False)
class TokenFits(Head):
    """A token head on the task and the latents of a run; `fit_network` fits it in place of `fit_token_head`."""

    network: type[TokenHead]
    fit_network: Callable[..., TokenFit] | None
    resolved: HeadOptions
    context: FitContext

    @staticmethod
    def check(task: WordTask, resolved: HeadOptions, planned: PlannedRun) -> None:
        """Refuse with a TaskError a task without the splits that token heads are fitted and chosen on."""
        if "train" not in task.splits:
            raise TaskError(f"task {task.name!r} has no split 'train', which every head needs; add rows to it.")
        if "validation" not in task.splits and (planned.chooses_plan or resolved.options.chooses_epoch):
            choice, instead = ("its plan", "") if planned.chooses_plan else ("its epoch", ", or set keep: last")
            raise TaskError(
                f"task {task.name!r} has no split 'validation', on which head {resolved.name!r} chooses {choice}; add "
                f"rows to it{instead}."
            )

    def evaluate(self, reporter: Reporter) -> HeadResult:
        """Evaluate the head; predictions are the classes of the chosen layer with the first seed."""
        context, data, options, task = self.context, self.data, self.options, self.context.task
        fitted = self.fit_all(reporter)
        mixes = [saved.head for saved in fitted if isinstance(saved.head, TokenMix)]
        names = (MIX,) if mixes else data.layers
        ways = options.decodings(task.metric)
        decoded = [saved.record.details["decoded"] for saved in fitted]
        grid = np.array([[scores.get(way, ()) for way in ways] for scores in decoded])  # seeds, ways, probes
        way, probe = map(int, np.unravel_index(np.argmax(grid.mean(0)), grid.shape[1:])) if grid.size else (0, 0)
        decoding, curve = ways[way], grid[:, way]
        if not curve.size and len(names) > 1:
            raise TaskError(
                f"task {task.name!r} has no split 'validation' to choose among {len(names)} layers on; add rows to it, "
                "or name one layer with `layers`."
            )
        heads = [saved.head.only(probe) for saved in fitted]
        channel = None if mixes else probe
        scores = {split: self.score(heads, split, channel=channel, decoding=decoding) for split in task.splits}
        score = float(curve.mean(0)[probe]) if curve.size else None
        choices = [
            *["epoch"] * options.chooses_epoch,
            *["layer"] * (len(names) > 1),
            *["decoding"] * (len(ways) > 1 and bool(grid.size)),
        ]
        listed = " and ".join(filter(None, [", ".join(choices[:-1]), *choices[-1:]]))
        is_missing = any(not rows.has_latent.all() for rows in data.rows.values())
        extras: dict[str, object] = {
            key: {split: of_split.facts[key] for split, of_split in scores.items()}
            for key in ("by_type", "decoding", "errors", "coverage")
        }
        if mixes:
            scorer = tag_scorer(data, "validation", **options.scoring()) if "validation" in data.rows else None
            extras["mix"] = describe_mix(mixes, data, scorer)
        return HeadResult(
            name=self.resolved.name,
            pooling=data.channels.pooling,
            layers=names,
            options=asdict(options),
            metric=task.metric,
            selection=f"validation ({listed})" if choices else NO_CHOICE,
            selection_score=float("nan") if score is None else score,
            chosen={
                "layer": names[probe],
                "score": score,
                **({"decoding": decoding} if task.metric == "span-f1" else {}),
            },
            summary={split: of_split.summaries for split, of_split in scores.items()},
            curves=token_curves(curve, task.metric),
            seeds=tuple(describe_seed(saved.record.details, probe) for saved in fitted),
            baselines={"majority": {split: of_split.majority for split, of_split in scores.items()}},
            optimistic_because=(
                "words without a latent are left out of the scores" if options.leaves_out_cut and is_missing else ""
            ),
            departures=departures(context.protocol, context.cache, data.channels.pooling),
            extras=extras,
            predictions={split: of_split.ids[0] for split, of_split in scores.items()},
            names={split: of_split.scorer.gold.names for split, of_split in scores.items()},
            scored={split: of_split.ids for split, of_split in scores.items()} if len(heads) > 1 else {},
            row_scores={split: of_split.scorer.sentence_scores(of_split.ids[0]) for split, of_split in scores.items()},
        )

    def parts(self, result: HeadResult, split: str, reporter: Reporter) -> HeadParts:
        """Take every layer's classifier, or what each layer adds to a mix, its tags decoded as the run chose to."""
        data, heads = self.data, [saved.head for saved in self.fit_all(reporter)]
        scorer = tag_scorer(data, split, **self.options.scoring())
        decoding = str(result.chosen.get("decoding", "plain"))
        mixes = [_Mixed(head, data, split, scorer, decoding) for head in heads if isinstance(head, TokenMix)]
        together: Together | None = None
        if mixes:
            one_by_one = np.eye(len(data.layers), dtype=bool)
            alone = np.stack([mix.predict(one_by_one) for mix in mixes])
            together = lambda masks: np.stack([mix.predict(masks) for mix in mixes])  # noqa: E731
        else:

            def predict(head: TokenHead, layer: int) -> Int[np.ndarray, " W"]:
                return scorer.decode(predict_logits(head.only(layer), data, split, channel=layer), decoding)

            alone = np.stack([[predict(head, layer) for layer in range(len(data.layers))] for head in heads])
        how = "the mix with the means of all other layers" if mixes else "the classifier of the layer"
        return HeadParts(
            pooling=data.channels.pooling,
            layers=data.layers,
            scorer=scorer.unit_scorer(),
            alone=alone,
            how=how,
            together=together,
            names=scorer.gold.names,
        )

    @property
    def options(self) -> ReadingOptions:
        """Its options."""
        options: ReadingOptions = self.resolved.options
        return options

    @cached_property
    def data(self) -> WordLatents:
        """The words it reads."""
        return WordLatents(
            self.context.cache,
            self.context.task,
            pooling=self.resolved.pooling,
            layers=self.resolved.layers,
            streaming=self.options.streaming(),
        )

    @cached_property
    def fit_data(self) -> WordLatents:
        """What a fit can read: the words without test."""
        return self.data.without_test()

    def fit_all(self, reporter: Reporter) -> list[SavedHead[TokenHead]]:
        """Fit the head with every seed that gives a fit of its own, or load it."""
        return [self.fit_seed(seed, reporter) for seed in self.options.seeds(self.context.seeds)]

    def fit_seed(self, seed: int, reporter: Reporter) -> SavedHead[TokenHead]:
        """Fit the head with one seed, or load it."""
        context, data, name = self.context, self.data, self.resolved.name
        folder = context.folder / name / f"seed_{seed}"
        more = [context.device, *self.options.fit_inputs(data)]
        fit_id = context.identify(name, asdict(self.options), data.channels.pooling, list(data.layers), seed, more=more)
        return fit_or_load(
            folder,
            fit_id,
            lambda: self._fit(seed, reporter(seed), Unfinished(folder, fit_id)),
            lambda record: self.network(**record.arguments),
            cache=context.cache,
        )

    def _fit(self, seed: int, report: EpochReport, unfinished: Unfinished) -> tuple[TokenHead, FitRecord]:
        data = self.fit_data
        sizes = len(data.layers), data.cache.width_of(data.channels.layers), len(data.classes)
        head = self.network(*sizes, seed=seed, **self.options.head_arguments())
        fit: Callable[..., TokenFit] = self.fit_network or fit_token_head
        result = fit(head, data, self.options, device=self.context.device, report=report, unfinished=unfinished)
        details = {
            **to_plain(result),
            "seconds": round(result.seconds, 3),
            "classes": list(data.classes),
            "protocol": self.context.protocol,
        }
        return head, FitRecord(self.resolved.name, data.channels.pooling, data.layers, details)

    def score(self, heads: Sequence[TokenHead], split: str, *, channel: int | None, decoding: str) -> "SplitScores":
        """Predict a split by the chosen probe of every seed, decoded as chosen, and only then look at its tags."""
        data = self.data
        logits = [predict_logits(head, data, split, channel=channel) for head in heads]
        scorer = tag_scorer(data, split, **self.options.scoring())
        ids = np.stack([scorer.decode(of_seed, decoding) for of_seed in logits])
        ways = [scorer.decodings(of_seed) for of_seed in logits] if scorer.metric == "span-f1" else []
        facts = {
            "by_type": scorer.by_type(ids),
            "decoding": {way: float(np.mean([of_seed[way] for of_seed in ways])) for way in ways[0]} if ways else {},
            "errors": scorer.errors(ids[0]),
            "coverage": coverage(data, split),
        }
        scorers = [scorer]
        if self.context.protocol == MAGNET and scorer.metric != "accuracy":
            scorers.append(replace(scorer, metric="accuracy"))
        n_resamples = self.context.n_resamples
        summaries = {one.metric: one.summarise(ids, n_resamples=n_resamples) for one in scorers}
        return SplitScores(scorer, ids, summaries, scorer.score(majority_ids(data, split)), facts)


@dataclass(frozen=True, eq=False)
class SplitScores:
    """Predictions of one split with every seed, and how they score."""

    scorer: TagScorer
    ids: Int[np.ndarray, "S W"]
    summaries: dict[str, SeedSummary]
    majority: float
    facts: Mapping[str, object]
    """`by_type`, `decoding` (spans decoded in every way), `errors` and `coverage`."""


def token_curves(curve: Float[np.ndarray, "S P"], metric: str) -> tuple[Curve, ...]:
    """Make the curve of the validation scores of every layer with every seed; none without a validation split."""
    if not curve.size:
        return ()
    spread = curve.std(0, ddof=1) if len(curve) > 1 else np.zeros(curve.shape[1])
    rows = tuple(tuple(row) for row in curve.tolist())
    return (Curve("", "validation", metric, tuple(curve.mean(0).tolist()), tuple(spread.tolist()), rows),)


def departures(protocol: str, cache: LatentCache, pooling: str) -> tuple[str, ...]:
    """Say, one line each, where a run departs from the protocol it names because of what its word cache holds."""
    if isinstance(cache, ViewCache):
        views = {name: cache.views[name] for name in pooling.split(JOIN)}
        of_views = {name: departures(protocol, view, view.poolings[0]) for name, view in views.items()}
        return tuple(f"view {name}: {line}" for name, of_view in of_views.items() for line in of_view)
    words, template = cache.identity.words, cache.identity.template
    lines = []
    if protocol == MAGNET:
        if parse_plan(cache.identity.plan).is_untouched:
            lines.append("every block is causal, and no word sees what follows it, as it does with MAGNET")
        if words is not None and not words.shift:
            lines.append("tokens are not shifted by one, as MAGNET shifts them")
        if pooling != "mean":
            lines.append(f"a word is the {pooling} of its tokens, and not their mean, as with MAGNET")
    if protocol == LBW and (template["max_tokens"], template["on_long"]) != (LBW_TOKENS, "truncate"):
        lines.append(f"sentences are not cut to {LBW_TOKENS} tokens, as the released code cuts them")
    return tuple(lines)


def describe_seed(fit: Values, probe: int) -> Values:
    """Describe one seed: per epoch the chosen layer's score until it is done, and the best so far of any layer."""
    history = []
    best = -math.inf
    for step in fit["history"]:
        epoch = {"train_loss": step["train_loss"]}
        scores = step.get("validation_scores", [])
        best = max([best, *(score for score in scores if score is not None)])
        if best > -math.inf:
            epoch["best_layer_score"] = best
        if scores and scores[probe] is not None:
            epoch["validation_score"] = scores[probe]
        history.append(epoch)
    best_epoch = fit["best_epochs"][probe]
    return {"seed": fit["seed"], "best_epoch": best_epoch, "seconds": fit["seconds"], "history": history}


def coverage(data: WordLatents, split: str) -> dict[str, int]:
    """Count the words of a split, and those that something happened to in extraction."""
    flags = data.split(split).flags
    counts = {"n_cut": WORD_CUT, "n_lost": WORD_LOST, "n_shared": WORD_SHARED}
    return {"n_words": len(flags), **{key: int(np.count_nonzero(flags & bit)) for key, bit in counts.items()}}


def describe_mix(heads: Sequence[TokenMix], data: WordLatents, scorer: TagScorer | None) -> Values:
    """Describe a mix, the mean over seeds.

    Two layers alike share one weight, so scores of plain tags are given too, where there is a scorer of validation.
    """
    with torch.no_grad():
        weights = np.mean([head.weights().numpy() for head in heads], axis=0)
        gamma = float(np.mean([float(head.gamma) for head in heads]))
    mix: dict[str, object] = {"layers": list(data.layers), "weights": weights.tolist(), "gamma": gamma}
    if scorer is None:
        return mix
    scores = np.mean([_score_layers(head, data, scorer) for head in heads], axis=0)
    whole, alone, without = scores[0], scores[1 : 1 + len(weights)], scores[1 + len(weights) :]
    return {
        **mix,
        "split": "validation",
        "whole": float(whole),
        "alone": alone.tolist(),
        "without": (whole - without).tolist(),
    }


def _score_layers(head: TokenMix, data: WordLatents, scorer: TagScorer) -> list[float]:
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
    return [scorer.score(row) for row in ids]


# Every layer's classifier, or what each layer adds to a mix.


class _Mixed:
    """What every layer adds to the logits of a mix, on a split, with its means over train."""

    def __init__(self, head: TokenMix, data: WordLatents, split: str, scorer: TagScorer, decoding: str) -> None:
        self.scorer, self.decoding = scorer, decoding
        self.bias: Float32[np.ndarray, " K"] = head.bias.detach().numpy()[0]
        self.parts, _ = _contributions(head, data, split)
        _, self.means = _contributions(head, data, "train", keep=False)

    def predict(self, masks: Bool[np.ndarray, "M L"]) -> Int[np.ndarray, "M W"]:
        """Predict with every set of layers, the others adding their means over train."""
        ids = []
        for mask in masks:
            logits = self.parts[mask].sum(0) + self.means[~mask].sum(0) + self.bias
            logits[np.isnan(self.parts[0, :, 0])] = np.nan  # words without a latent, also where no layer is left
            ids.append(self.scorer.decode(logits, self.decoding))
        return np.stack(ids)


def _contributions(
    head: TokenMix, data: WordLatents, split: str, *, keep: bool = True
) -> tuple[Float32[np.ndarray, "L W K"], Float32[np.ndarray, "L K"]]:
    """Return what each layer adds to the logits of every word (NaN without a latent), and the mean over words."""
    n_words = data.split(split).n_words if keep else 0
    added = np.full((head.n_layers, n_words, head.n_classes), np.nan, np.float32)
    sums, n_seen = np.zeros((head.n_layers, head.n_classes)), 0
    with torch.no_grad():
        weights = head.weights().reshape(-1, 1, 1)
        for batch in data.loader(split, prepare=head.preparation()):
            parts = (weights * head.parts(batch.latents)).numpy()
            sums += parts.sum(1)
            n_seen += parts.shape[1]
            if keep:
                added[:, batch.words.numpy()] = parts
    return added, (sums / max(n_seen, 1)).astype(np.float32)


Sentence = str | Sequence[str] | JoinedText
"""A text whose words are separated by white space, a list of words, or a text with the spans of its words."""


def score_words(
    heads: Heads, sentences: Sequence[Sentence], decoder: Decoder, spec: ExtractionSpec
) -> list[list[str | None]]:
    """Tag the words of sentences, by the mean of the seeds' logits, decoded as chosen; None for a word cut or lost."""
    joined = [find_words(sentence) for sentence in sentences]
    unique = unique_texts(joined)
    fit = heads[0].record.details
    positions = [list(range(len(text.spans))) for text in unique]
    texts = unique
    if find_protocol(fit.get("protocol", "icecore")).cut.get("words") == "every-token":
        texts, positions = _cut(unique, decoder, spec)
    words = embed_words(decoder, texts, spec=spec)
    reads = {"layers": spec.layers, "poolings": spec.poolings_read(of_words=True)}
    with torch.no_grad():
        logits = [saved.head(read_channels(words.latents, saved.record, **reads)) for saved in heads]
    (scores,) = torch.stack(logits).mean(0).float().numpy()  # of one probe
    scores = np.where(words.has_latent[:, None], scores, np.nan)
    best = decode_tags(scores, words.offsets, labels=fit["classes"], way=fit.get("decoding", "plain"))
    tags = np.array([*fit["classes"], None], dtype=object)[best]
    by_text = {
        text: tags[start + np.array(pieces)].tolist()
        for text, start, pieces in zip(unique, words.offsets[:-1], positions, strict=True)
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
        return JoinedText(sentence, tuple(word.span() for word in re.finditer(r"\S+", sentence)))
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
