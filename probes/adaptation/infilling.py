"""What a decoder writes: infilling of spans, the true sentence among five, and continuations.

The target at column l of a span is read at column l - 1, as MAGNET trains it: under the hybrid mask the last token of
a span sees the context that follows, so that reading the next token there would be copying.
"""

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor
from transformers import GenerationConfig

from extract.decoders.decoder import Decoder, changed, flags_off
from extract.errors import ConfigError
from extract.inputs.batches import Batch, collate, group_by_length
from extract.inputs.joined_text import CONTEXT, SPECIAL, GivenSpans, SpanSource
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText, Tokeniser
from extract.masks.mask_plan import MaskPlan
from extract.masks.truth import expected_reach
from extract.run.extraction_spec import ExtractionProgress, ExtractionSpec, batch_limits
from extract.wiring.certificate import check_influence
from extract.wiring.plan_wiring import plan_in_force, run_batch
from probes.adaptation.objectives import LanguageModel
from probes.data.sources import UNREAD, Article, split_sentences

SILENT = ExtractionProgress()


@dataclass(frozen=True)
class DrawnSpans:
    """Spans of a text, drawn from a seed and the text's digest; context is on both sides of each and between two."""

    most: int = 3
    """Most spans of a text; together they take at most half of its tokens."""
    shortest: int = 8
    """Fewest tokens of a span."""
    longest: int = 32
    """Most tokens of a span."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse lengths that no span can have (`ConfigError`)."""
        if not (1 <= self.shortest <= self.longest and self.most >= 1):
            raise ConfigError(
                f"{self.most} spans of {self.shortest} to {self.longest} tokens cannot be drawn; allowed: at least one "
                "span, of at least one token."
            )

    @property
    def identity(self) -> str:
        """What decides the spans of a text, beside its tokens."""
        return f"drawn:{self.most}x{self.shortest}-{self.longest}:{self.seed}"

    def assign(self, text: str, offsets: Int[np.ndarray, "T 2"]) -> NDArray[np.int64]:
        """Draw spans over the tokens of a text; one that is too short has none.

        None begins with the first token, which nothing predicts where there is no BOS token, and none begins or ends
        inside what WikiText has in place of a word.
        """
        n_tokens = len(offsets)
        numbers = np.full(n_tokens, CONTEXT, np.int64)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        generator = np.random.default_rng([self.seed, int.from_bytes(digest[:8], "little")])
        room = n_tokens // 2
        unread = np.append(is_unread(text, offsets), False)
        is_inside = unread & np.roll(unread, 1)  # and so is the token before
        for number in range(self.most):
            length = int(generator.integers(self.shortest, self.longest + 1))
            starts = [
                start
                for start in range(1, n_tokens - length)
                if (numbers[start - 1 : start + length + 1] == CONTEXT).all()
                and not is_inside[[start, start + length]].any()
            ]
            if length <= room and starts:
                start = starts[int(generator.integers(len(starts)))]
                numbers[start : start + length] = number
                room -= length
        return numbers


@dataclass(frozen=True, eq=False)
class ScoredRow:
    """A row of `T` tokens, and those of its `K` tokens that are scored, each from the column before it."""

    encoded: EncodedText
    targets: NDArray[np.int64]
    """Columns `(K,)`, ascending."""

    @property
    def asked(self) -> str:
        """Name the runs of columns that are scored, as `12-30 44-60`."""
        runs = np.split(self.targets, np.flatnonzero(np.diff(self.targets) > 1) + 1)
        return " ".join(f"{run[0]}-{run[-1]}" for run in runs if len(run))


def encode_rows(
    decoder: Decoder, texts: Sequence[str], spans: SpanSource, *, template: InputTemplate | None = None
) -> list[ScoredRow]:
    """Encode texts with spans, whose tokens are scored; of WikiText's `<unk>` and `<formula>` none is.

    A text longer than a row loses its end. Raises `InputError` as `Tokeniser`.
    """
    tokenise = Tokeniser(decoder.tokenizer, template or InputTemplate())
    most = min(decoder.description.window, tokenise.template.max_tokens or decoder.description.window)
    rows = []
    for item in tokenise(texts):
        fitted, columns = tokenise.fit(item, max_tokens=most)
        numbers = fitted.number_spans(spans, columns)
        row = tokenise.row(fitted, columns, is_truncated=len(columns) < len(item.ids), spans=numbers)
        assert numbers is not None, "there is a source of spans"
        is_scored = (numbers != CONTEXT) & ~is_unread(item.text, fitted.offsets[columns])
        is_scored[:1] = False  # nothing is before it
        rows.append(ScoredRow(row, np.flatnonzero(is_scored)))
    return rows


def is_unread(text: str, offsets: Int[np.ndarray, "T 2"]) -> NDArray[np.bool_]:
    """Find the tokens that hold characters of what WikiText has in place of words."""
    is_unread = np.zeros(len(offsets), np.bool_)
    for match in UNREAD.finditer(text):
        is_unread |= (offsets[:, 0] < match.end()) & (offsets[:, 1] > match.start())
    return is_unread


def require_no_leak(plan: MaskPlan, n_blocks: int) -> None:
    """Refuse a plan under which a token of a span is seen where it, or one before it, is predicted (`ConfigError`).

    A plan that is hybrid in some blocks and causal in others is such a plan: there context that has seen the span is
    seen by the span.
    """
    n_tokens, spans = 12, torch.full((12,), CONTEXT)
    spans[3:6], spans[7:9] = 0, 1
    seen = []
    if plan.prepend is None:  # else the placeholder holds the state of the last token
        reach = expected_reach(plan, n_blocks, n_tokens, windows=[None] * n_blocks, spans=spans)[-1]
        seen = [
            (i - 1, j) for i in (3, 4, 5, 7, 8) for j in range(i, n_tokens) if spans[i] == spans[j] if reach[i - 1, j]
        ]
    if seen or plan.prepend is not None:
        raise ConfigError(
            f"under the plan {plan.text!r} tokens of a span are seen where they are predicted, so that nothing is "
            "infilled; allowed: plans that keep them out, such as causal, nosink-causal, and hybrid on every block."
        )


def score_rows(
    model: LanguageModel, rows: Sequence[ScoredRow], plan: MaskPlan, *, progress: ExtractionProgress = SILENT
) -> list[NDArray[np.float64]]:
    """Compute the loss in nats of every scored token of every row under a plan, which is certified first.

    Raises:
        ConfigError: A plan that shows a token where it is predicted (`require_no_leak`).
        DecoderError: A plan that the decoder cannot run.
        CertificateError: A plan that did not take effect.
    """
    decoder = model.decoder
    require_no_leak(plan, len(decoder.blocks))
    losses = [np.zeros(0)] * len(rows)
    progress.expect(n_tokens=sum(len(row.encoded.ids) for row in rows))
    progress.start(n_rows=len(rows), n_done=0)
    try:
        with plan_in_force(decoder, plan):
            check_influence(decoder, plan)
            for group, batch in _batches(decoder, [row.encoded for row in rows]):
                counts = [len(rows[i].targets) for i in group]
                lines = np.repeat(np.arange(len(group)), counts)
                columns = np.concatenate([rows[i].targets for i in group])
                states = _final_states(decoder, batch, lines, columns - 1)
                with torch.inference_mode():
                    values = model.losses(states, batch.ids[lines, columns].to(states.device))
                parts = np.split(values.double().cpu().numpy(), np.cumsum(counts)[:-1])
                for i, part in zip(group, parts, strict=True):
                    losses[i] = part
                progress.advance(n_rows=len(group), n_tokens=int(batch.n_tokens.sum()))
    finally:
        progress.finish()
    return losses


def _batches(
    decoder: Decoder, rows: Sequence[EncodedText], *, max_padding: float = 0.1
) -> Iterator[tuple[list[int], Batch]]:
    """Put rows into batches of nearly equal length, with their positions; of any length where all may be padding."""
    most, fewest = batch_limits(ExtractionSpec(), decoder.device)
    groups = group_by_length(
        [len(row.ids) for row in rows],
        batch_tokens=most,
        min_tokens=most if max_padding == 1.0 else fewest,
        max_padding=max_padding,
        split_length=decoder.split_length,
    )
    for group in groups:
        yield group, collate([rows[i] for i in group], group)


def _final_states(decoder: Decoder, batch: Batch, lines: NDArray[np.int64], columns: NDArray[np.int64]) -> Tensor:
    """Compute the states `(K, D)` behind the final norm at chosen places of a batch."""
    top, states = len(decoder.blocks) + 1, []

    def visit(position: int, hidden: Tensor) -> None:
        if position == top:
            states.append(hidden[lines, columns])

    run_batch(decoder, batch, visit)
    return states[0]


def infill(
    model: LanguageModel, rows: Sequence[ScoredRow], plan: MaskPlan, *, progress: ExtractionProgress = SILENT
) -> list[str]:
    """Fill the first span of every row greedily, token by token, and return the texts; further spans are context.

    A row without a span gets an empty text. Raises as `score_rows`.
    """
    decoder = model.decoder
    require_no_leak(plan, len(decoder.blocks))
    singles = [_with_one_span(row.encoded) for row in rows]
    progress.expect(n_tokens=sum(len(row.ids) * len(first_span(row)) for row in singles))
    fillings = [""] * len(rows)
    progress.start(n_rows=len(rows), n_done=0)
    try:
        with plan_in_force(decoder, plan):
            for group, batch in _batches(decoder, singles, max_padding=1.0):  # the fewer batches, the fewer passes
                n_read = _fill(model, batch)
                for line, i in enumerate(group):
                    columns = np.flatnonzero(singles[i].spans == 0)
                    fillings[i] = str(decoder.tokenizer.decode(batch.ids[line, columns].tolist()))
                progress.advance(n_rows=len(group), n_tokens=n_read)
    finally:
        progress.finish()
    return fillings


def first_span(row: EncodedText) -> NDArray[np.int64]:
    """Return the columns of the first span of a row; none where it has none."""
    assert row.spans is not None, "rows to fill have spans"
    columns = np.flatnonzero(row.spans != CONTEXT)
    return np.asarray(columns[row.spans[columns] == row.spans[columns[:1]]])


def _with_one_span(row: EncodedText) -> EncodedText:
    """Leave a row its first span alone, as number 0."""
    numbers = np.full(len(row.ids), CONTEXT, np.int64)
    numbers[first_span(row)] = 0
    return replace(row, spans=numbers)


def _fill(model: LanguageModel, batch: Batch) -> int:
    """Write the most probable token into each column of the span of every row, from the left; count tokens read."""
    assert batch.spans is not None, "rows to fill have spans"
    places = [np.flatnonzero(spans == 0) for spans in batch.spans.numpy()]
    batch.ids[batch.spans == 0] = 0  # a span sees no later token of its own, so that these are never read
    n_steps = max(map(len, places))
    for step in range(n_steps):
        lines = np.array([line for line, columns in enumerate(places) if step < len(columns)])
        columns = np.array([places[line][step] for line in lines])
        states = _final_states(model.decoder, batch, lines, columns - 1)
        with torch.inference_mode():
            batch.ids[lines, columns] = model.logits(states).argmax(-1).cpu()
    return n_steps * int(batch.n_tokens.sum())


# The true sentence among five: candidates of one article, scored in their place between the sentences around it.


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


# Causal text: the perplexity of windows, and greedy continuations with how much they repeat themselves.


N_GRAM = 4
AT_ONCE = 32
"""Continuations that are generated together."""


def require_window(decoder: Decoder, n_tokens: int) -> None:
    """Refuse windows of a token, and longer ones than the decoder's (`ConfigError`)."""
    most = decoder.description.window
    if not 2 <= n_tokens <= most:
        raise ConfigError(f"a window of {n_tokens} tokens cannot be scored; allowed: 2 to {most}, the decoder's own.")


def require_room(
    decoder: Decoder, prefixes: Sequence[str], n_tokens: int, *, template: InputTemplate | None = None
) -> None:
    """Refuse prefixes that leave no room in the decoder's window for `n_tokens` new tokens (`ConfigError`)."""
    window = decoder.description.window
    longest = max(map(len, _encode_prefixes(decoder, prefixes, template)), default=0)
    if longest + n_tokens > window:
        raise ConfigError(
            f"{n_tokens} new tokens after a prefix of {longest} do not fit into the decoder's window of {window}; "
            f"allowed: at most {max(window - longest, 0)} new tokens; lower new_tokens, or continue shorter prefixes."
        )


def _encode_prefixes(
    decoder: Decoder, prefixes: Sequence[str], template: InputTemplate | None
) -> list[NDArray[np.int64]]:
    tokenise = Tokeniser(decoder.tokenizer, replace(template or InputTemplate(), eos="none"))
    return [item.ids for item in tokenise(prefixes)]


def cut_windows(
    decoder: Decoder, text: str, *, n_tokens: int, template: InputTemplate | None = None
) -> Iterator[ScoredRow]:
    """Cut a text into windows of `n_tokens` tokens, each begun with BOS where the tokenizer adds one.

    All tokens of a window but the first are scored, and of WikiText's `<unk>` and `<formula>` none is. A rest of one
    token is left out. `ConfigError` for a window that is longer than the decoder's.
    """
    require_window(decoder, n_tokens)
    [item] = Tokeniser(decoder.tokenizer, template or InputTemplate())([text])
    is_special = item.roles == SPECIAL
    n_before = int(is_special.cumprod().sum())  # BOS
    before, rest = np.arange(n_before), np.arange(n_before, len(item.ids) - int(is_special[n_before:].sum()))
    for start in range(0, len(rest), n_tokens - n_before):
        columns = np.concatenate([before, rest[start : start + n_tokens - n_before]])
        row = EncodedText(item.ids[columns], item.roles[columns], is_truncated=False)
        is_scored = ~is_unread(text, item.offsets[columns])
        is_scored[: max(n_before, 1)] = False
        if is_scored.any():
            yield ScoredRow(row, np.flatnonzero(is_scored))


def first_words(text: str, n_words: int) -> str:
    """Take the first words of a text; empty where it has fewer, or WikiText has something in place of one."""
    words = text.split()[:n_words]
    prefix = " ".join(words)
    return "" if len(words) < n_words or UNREAD.search(prefix) else prefix


def continue_greedily(
    model: LanguageModel,
    prefixes: Sequence[str],
    *,
    n_tokens: int,
    template: InputTemplate | None = None,
    progress: ExtractionProgress = SILENT,
) -> list[list[int]]:
    """Continue every prefix with `n_tokens` new tokens, each the most probable one, on the path of transformers.

    No plan is in force, so it is causal. The end of sequence is not generated, so that all are equally long. Prefixes
    of equal length go together, and nothing is padded. `ConfigError` as `require_room`.
    """
    decoder, whole = model.decoder, model.model
    require_room(decoder, prefixes, n_tokens, template=template)
    rows = _encode_prefixes(decoder, prefixes, template)
    untyped: Any = whole
    make: Any = GenerationConfig
    settings = make(
        do_sample=False,
        min_new_tokens=n_tokens,
        max_new_tokens=n_tokens,
        eos_token_id=getattr(whole.generation_config, "eos_token_id", None),
        pad_token_id=0,
    )
    continuations: list[list[int]] = [[] for _ in rows]
    progress.expect(n_tokens=n_tokens * len(rows))
    progress.start(n_rows=len(rows), n_done=0)
    try:
        for group in _equally_long(rows):
            ids = torch.from_numpy(np.stack([rows[i] for i in group])).to(decoder.device)
            with (
                torch.inference_mode(),
                changed(whole, generation_config=settings),  # a checkpoint's own may punish repetition
                flags_off(decoder.module, decoder.blocks, decoder.description.bidirectional or {}),
            ):
                generated = untyped.generate(ids, attention_mask=torch.ones_like(ids))
            for i, row in zip(group, generated[:, ids.shape[1] :].tolist(), strict=True):
                continuations[i] = row
            progress.advance(n_rows=len(group), n_tokens=n_tokens * len(group))
    finally:
        progress.finish()
    return continuations


def _equally_long(rows: Sequence[NDArray[np.int64]]) -> Iterator[list[int]]:
    """Group rows of one length, `AT_ONCE` at most, by their positions."""
    by_length: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        by_length.setdefault(len(row), []).append(i)
    for _, group in sorted(by_length.items()):
        yield from (group[k : k + AT_ONCE] for k in range(0, len(group), AT_ONCE))


def repeated_share(items: Sequence[Hashable]) -> float:
    """Compute the share of items that repeat an earlier one; 0 of none.

    Example:
        >>> repeated_share(["a", "b", "a", "a"])
        0.5
    """
    return 1 - len(set(items)) / len(items) if items else 0.0


def rep_n(tokens: Sequence[int], n: int = N_GRAM) -> float:
    """Compute the share of the n-grams of tokens that repeat an earlier one (seq-rep-n, Welleck et al. 2020).

    Example:
        >>> rep_n([1, 2, 1, 2, 1], 2), rep_n([1, 2, 3], 4)
        (0.5, 0.0)
    """
    return repeated_share([tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1)])


def rep_sentences(text: str) -> float:
    """Compute the share of the sentences of a text that repeat an earlier one (Rep-Sen).

    Example:
        >>> rep_sentences("It is cold. It is cold. It is not.")
        0.33333333333333337
    """
    return repeated_share(split_sentences(text))
