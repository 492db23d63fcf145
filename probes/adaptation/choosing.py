"""The true sentence among five: candidates of one article, scored in their place between the sentences around it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from extract.decoders.language_model import LanguageModel
from extract.inputs.spans import CONTEXT, GivenSpans
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import MaskPlan
from extract.run.progress import ExtractionProgress
from probes.adaptation.infilling import SILENT, ScoredRow, encode_rows, score_rows
from probes.data.wikitext import UNREAD, Article, split_sentences

N_CANDIDATES = 5
"""The true sentence, and others of its article."""
LENGTH, LEFT_OUT = 5, 2
"""Sentences of a stretch, and the position from 0 of the one that is left out."""
FEWEST_WORDS = 4
"""Of a candidate, without what WikiText has in place of words."""


@dataclass(frozen=True)
class Stretch:
    """Five sentences in a row, of which the third is left out."""

    unit: str
    """The article."""
    before: str
    after: str
    candidates: tuple[str, ...]
    """The true sentence first."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The stretch with each candidate in its place."""
        return tuple(f"{self.before} {candidate} {self.after}" for candidate in self.candidates)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The characters of each candidate in its text."""
        start = len(self.before) + 1
        return tuple((start, start + len(candidate)) for candidate in self.candidates)


def draw_stretches(articles: Sequence[tuple[str, Article]], *, most: int, seed: int = 0) -> list[Stretch]:
    """Draw stretches of five sentences of one paragraph, and four other sentences of the article for each.

    `articles` are pairs of a unit and an article. Stretches do not overlap, and the other sentences are outside them.
    An article with too few sentences gives none.
    """
    generator = np.random.default_rng(seed)
    stretches = []
    for unit, article in articles:
        paragraphs = [split_sentences(paragraph) for paragraph in article.paragraphs]
        usable = list(dict.fromkeys(text for sentences in paragraphs for text in sentences if _is_usable(text)))
        for sentences in paragraphs:
            for start in range(0, len(sentences) - LENGTH + 1, LENGTH):
                stretch = sentences[start : start + LENGTH]
                others = [text for text in usable if text not in stretch]
                if stretch[LEFT_OUT] not in usable or len(others) < N_CANDIDATES - 1:
                    continue
                picked = generator.choice(len(others), N_CANDIDATES - 1, replace=False)
                candidates = (stretch[LEFT_OUT], *(others[int(k)] for k in picked))
                before, after = " ".join(stretch[:LEFT_OUT]), " ".join(stretch[LEFT_OUT + 1 :])
                stretches.append(Stretch(unit, before, after, candidates))
    if len(stretches) > most:
        stretches = [stretches[int(k)] for k in np.sort(generator.choice(len(stretches), most, replace=False))]
    return stretches


def _is_usable(sentence: str) -> bool:
    return len(UNREAD.sub("", sentence).split()) >= FEWEST_WORDS


@dataclass(frozen=True, eq=False)
class Choices:
    """Which stretches were completed by the true sentence: `(N,)`, 1.0 where it beats all others, 0.0 elsewhere."""

    stretches: tuple[Stretch, ...]
    """The `N` stretches that fit into a row with every candidate."""
    by_mean: NDArray[np.float64]
    """By the mean log-probability per token of the candidate."""
    by_sum: NDArray[np.float64]
    """By the sum."""
    onwards: NDArray[np.float64] | None
    """By the mean log-probability per token of the candidate and of all that follows, under the causal plan alone: the
    way in which a decoder that sees no later token can use what follows."""


def choose(
    model: LanguageModel,
    stretches: Sequence[Stretch],
    plan: MaskPlan,
    *,
    template: InputTemplate | None = None,
    progress: ExtractionProgress = SILENT,
) -> Choices:
    """Choose the sentence of every stretch under a plan; raises as `score_rows`."""
    spans = {text: [place] for one in stretches for text, place in zip(one.texts, one.places, strict=True)}
    encoded = encode_rows(
        model.decoder, [text for one in stretches for text in one.texts], GivenSpans(spans), template=template
    )
    by_stretch = [encoded[k : k + N_CANDIDATES] for k in range(0, len(encoded), N_CANDIDATES)]
    is_whole = [not any(row.encoded.is_truncated for row in rows) for rows in by_stretch]
    rows = [row for rows, fits in zip(by_stretch, is_whole, strict=True) if fits for row in rows]
    n_own = [len(row.targets) for row in rows]
    if plan.is_untouched:
        rows = [_to_the_end(row) for row in rows]
    losses = score_rows(model, rows, plan, progress=progress)
    own = [values[:n] for values, n in zip(losses, n_own, strict=True)]
    sums, counts = np.array([values.sum() for values in own]), np.array(n_own)
    onwards = np.array([values.mean() for values in losses]) if plan.is_untouched else None
    return Choices(
        tuple(one for one, fits in zip(stretches, is_whole, strict=True) if fits),
        _is_first_lowest(sums / counts),
        _is_first_lowest(sums),
        None if onwards is None else _is_first_lowest(onwards),
    )


def _to_the_end(row: ScoredRow) -> ScoredRow:
    """Score what follows the span of a row too."""
    assert row.encoded.spans is not None, "there is a candidate in every row"
    last = int(np.flatnonzero(row.encoded.spans != CONTEXT)[-1])
    return ScoredRow(row.encoded, np.append(row.targets, np.arange(last + 1, len(row.encoded.ids))))


def _is_first_lowest(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whether the first of every five losses is below all others; a tie is no choice."""
    by_stretch = losses.reshape(-1, N_CANDIDATES)
    return np.asarray(by_stretch[:, 0] < by_stretch[:, 1:].min(1), np.float64)
