"""Infilling: losses of spans inside their context, and greedy spans.

The target at column l of a span is read at column l - 1, as MAGNET trains it: under the hybrid mask the last token of
a span sees the context that follows, so that reading the next token there would be copying.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.decoders.language_model import LanguageModel
from extract.errors import ConfigError
from extract.inputs.batches import Batch, collate, group_by_length
from extract.inputs.spans import CONTEXT, SpanSource
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText, Tokeniser
from extract.masks.mask_plan import MaskPlan
from extract.masks.truth import expected_reach
from extract.run.extraction_spec import ExtractionSpec, batch_limits
from extract.run.progress import ExtractionProgress
from extract.wiring.certificate import check_influence
from extract.wiring.forward import run_batch
from extract.wiring.plan_wiring import plan_in_force
from probes.data.wikitext import UNREAD

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
