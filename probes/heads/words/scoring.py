"""Tagging the words of new sentences with the token heads of a run."""

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from extract.decoders.decoder import Decoder
from extract.inputs.joined import JoinedText, join_words
from extract.inputs.text_encoder import cut_at_tokens
from extract.run.embed import embed_words
from extract.run.runner import unique_texts
from extract.run.spec import ExtractionSpec
from probes.fitting.protocols import find_protocol
from probes.heads.scoring import Heads, KindScoring, read_channels
from probes.metrics.decoding import decode_tags

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
