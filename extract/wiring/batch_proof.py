"""Prove batches of the extraction itself: probes of other shapes, or made earlier, say nothing about these.

Rows of batches that were computed as usual are computed once more another way, and their latents must agree.

- Under a plan, attention is replaced by the textbook formula under the plan's mask. Where masks go into arguments and
  it cannot be replaced, the scores of its softmax must be hidden exactly where the plan hides.
- An untouched causal decoder is given other tokens after the row's own, which nothing before them may depend on.

In bfloat16 or float16 a row may differ by more than rounding usually does, if noise of the size of rounding in what
enters the first block changes it as much.

Neither way lets rows share the tokens they begin with, so batches that did are compared with rows that did not.

One row of the first batch of each shape class is proved, one of the last batch before rows are closed, and up to 64
rows of the second batch and of each hundredth after it. Rows wait, so that several share a forward pass, and are
proved at the latest before the rows of their process are closed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import isfinite
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from extract.decoders.decoder import Decoder, changed
from extract.errors import CertificateError
from extract.inputs.batches import Batch, BatchWindows, collate, group_by_length
from extract.inputs.joined_text import CONTEXT
from extract.inputs.tokens import EncodedText
from extract.masks.mask_plan import MaskPlan, parse_kind
from extract.masks.mask_rules import batch_mask
from extract.masks.truth import literal_mask
from extract.poolings.pooling_table import RebaOptions
from extract.wiring.attention import HIDDEN, AttentionCall, ScoreWatch, Wiring, wiring_of
from extract.wiring.certificate import Claim, first_difference, textbook_attention
from extract.wiring.plan_wiring import DRIFT_ALLOWED, Visit, has_experts, probe_ids, run_batch
from extract.wiring.states import Pooler

EVERY = 100
"""Batches of which many rows of one are proved."""
MOST_ROWS = 64
"""Rows of such a batch, evenly over it."""
N_EXACT = 32
"""Rows of up to so many tokens have a shape class for each length; longer ones for each eighth of an octave."""
N_OTHER = 3
"""Tokens that follow a row of an untouched decoder."""
N_WAITING = 2048
"""Tokens that wait for a pass at least."""
N_QUERIES = 512
"""Tokens of a row, evenly over it, at which a rule is compared with the truth table."""
N_SCORES = 1 << 24
"""Scores of the textbook formula in memory."""
N_NOISY = 16
"""Passes with noise of a row that differs by more than is allowed."""
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Of a number, relative to its size."""
RARE = ("n_sharing", "n_prefix", "n_prefix_blocks", "n_unstable")
"""Recorded only where they are above 0: other certificates stay what they were."""


class ComputedRow(NamedTuple):
    """A row of a batch, with the latents that the whole batch gave it."""

    text: EncodedText
    position: int
    """In the caller's list."""
    windows: BatchWindows | None
    """Where it is a window of a text."""
    latents: Float[Tensor, "L P N D"]
    batch_shape: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        """Its length."""
        return len(self.text.ids)


@dataclass(eq=False)
class BatchProof:
    """Proves batches that one process computes for one cache; the plan is in force while `prove` runs."""

    decoder: Decoder
    plan: MaskPlan
    poolings: Sequence[str]
    layers: Sequence[str]
    reba: RebaOptions
    storage: str
    """The dtype that latents are stored in."""
    n_batches: int = 0
    n_whole: int = 0
    """Batches of which up to `MOST_ROWS` rows are proved."""
    n_rows: int = 0
    """Rows proved so far."""
    n_sharing: int = 0
    """Batches whose rows shared the tokens they begin with."""
    n_prefix: int = 0
    """Most tokens that they shared."""
    n_prefix_blocks: int = 0
    """Most blocks that they shared them in."""
    n_unstable: int = 0
    """Rows that differ by more than others do, as they also do when rounding alone changes."""
    largest_error: float = 0.0
    """Largest difference so far, relative to the size of a latent."""
    _classes: set[tuple[int, int, bool, int]] = field(default_factory=set)
    _waiting: list[ComputedRow] = field(default_factory=list)
    _last: list[ComputedRow] = field(default_factory=list)
    _most_tokens: int = 0

    @property
    def result(self) -> dict[str, int | float]:
        """Plain values for the cache."""
        return {
            "n_batches": self.n_batches,
            "n_shapes": len(self._classes),
            "n_whole": self.n_whole,
            "n_rows": self.n_rows,
            "largest_error": self.largest_error,
            **{name: getattr(self, name) for name in RARE if getattr(self, name)},
        }

    @property
    def is_due(self) -> bool:
        """Whether as many tokens wait as a large batch has."""
        n_tokens = sum(computed.n_tokens for computed in self._waiting)
        return n_tokens >= max(self._most_tokens, N_WAITING)

    def add(self, batch: Batch, latents: Float[Tensor, "L P N D"]) -> None:
        """Register a batch that was computed, before its windows are joined."""
        self.n_batches += 1
        n_rows, n_tokens = batch.ids.shape
        self._most_tokens = max(self._most_tokens, batch.ids.numel())
        wiring = wiring_of(self.decoder.blocks)
        n_shared, n_blocks = (0, 0) if wiring is None else self._shared_in(wiring)
        self.n_sharing += n_shared > 0
        self.n_prefix, self.n_prefix_blocks = max(self.n_prefix, n_shared), max(self.n_prefix_blocks, n_blocks)
        shape_class = length_class(n_tokens), (n_rows - 1).bit_length(), batch.is_padded, n_shared
        one = [_computed(batch, latents, self.n_batches % n_rows)]
        if self.n_batches % EVERY == 2:
            self.n_whole += 1
            some = range(0, n_rows, -(-n_rows // MOST_ROWS))
            self._waiting += [_computed(batch, latents, row) for row in some]
            self._last = []
        elif shape_class not in self._classes:
            self._waiting += one
            self._last = []
        else:
            self._last = one
        self._classes.add(shape_class)

    def _shared_in(self, wiring: Wiring) -> tuple[int, int]:
        """Return how many tokens rows of the last batch shared, and in how many blocks of this plan.

        In a sweep the batch may have been run under another plan, of which this one takes the lower blocks only.
        """
        if wiring.shared is None:
            return 0, 0
        n_blocks = wiring.shared.n_blocks
        if self.plan.architecture == "inplace":
            kinds = zip(wiring.plan.kinds[:n_blocks], self.plan.kinds(len(self.decoder.blocks)), strict=False)
            n_blocks = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], kinds))
        return (wiring.shared.n_tokens if n_blocks else 0), n_blocks

    def prove(self, *, is_closing: bool = True) -> None:
        """Prove the rows that wait and one of the last batch; unless rows are closed, only where many wait."""
        if not (is_closing or self.is_due):
            return
        waiting = [*self._waiting, *self._last]
        # No larger than batches of the extraction; a window of a text is pooled by itself.
        alone = [[computed] for computed in waiting if computed.windows is not None]
        others = [computed for computed in waiting if computed.windows is None]
        groups = group_by_length(
            [computed.n_tokens for computed in others],
            batch_tokens=self._most_tokens,
            min_tokens=self._most_tokens,
            split_length=self.decoder.split_length,
        )
        for rows in [*alone, *([others[i] for i in group] for group in groups)]:
            self._require_equal(rows, self._compute_again(rows))
        self.n_rows += len(waiting)
        self._waiting, self._last = [], []  # not before: what Ctrl-C interrupts is proved again before rows are closed

    def _compute_again(self, rows: Sequence[ComputedRow]) -> Float[Tensor, "L P N D"]:
        wiring = wiring_of(self.decoder.blocks)
        description = self.decoder.description
        n_longest = max(row.n_tokens for row in rows)
        limits = [description.window, *filter(None, [self.decoder.split_length])]
        room = min(limit - n_longest for limit in limits if limit >= n_longest)
        width = n_longest + (min(N_OTHER, room) if wiring is None else 0)
        pooled = collate([row.text for row in rows], [row.position for row in rows], width=width)
        pooled = replace(pooled, windows=rows[0].windows)  # which are alone
        batch = pooled if wiring else self._followed(pooled, pooled.ids.shape[1] - n_longest)
        pooler = Pooler(self.decoder, pooled, poolings=self.poolings, layers=self.layers, reba=self.reba)
        with ExitStack() as stack:
            visit: Visit = pooler
            if wiring is not None:
                formula = _Formula(Claim(self.decoder, self.plan), wiring, pooled, pooler)
                formula.enter(stack)
                visit = formula.visit
            with pooler.watching(self.decoder):
                run_batch(self.decoder, batch, visit, depth=pooler.depth)
        return pooler.latents

    def _followed(self, batch: Batch, n_more: int) -> Batch:
        """Put other tokens after those of every row, which the decoder takes for the row's own."""
        n_tokens = batch.n_tokens + n_more
        columns = torch.arange(batch.ids.shape[1])
        is_real = columns < torch.from_numpy(n_tokens).unsqueeze(1)
        other = probe_ids(self.decoder, len(columns), seed=self.n_batches)
        ids = torch.where(is_real & ~batch.is_real, other, batch.ids)
        return replace(batch, ids=ids, is_real=is_real, n_tokens=n_tokens)

    def _require_equal(self, rows: Sequence[ComputedRow], again: Float[Tensor, "L P N D"]) -> None:
        dtype = self.decoder.description.dtype
        if dtype != "float32" and has_experts(self.decoder):  # rounding may send a token to another expert
            return
        allowed, first = DRIFT_ALLOWED[dtype], 0
        for computed in rows:
            latents, n_items = computed.latents, computed.latents.shape[2]
            formula = again[:, :, first : first + n_items]
            first += n_items
            fits = latents.to(getattr(torch, self.storage)).isfinite().all(-1).all(1).all(0)  # else refused when stored
            drift = _row_drift(latents, formula, fits)
            worst = float(drift.max())
            self.largest_error = max(self.largest_error, worst)
            if worst <= allowed:
                continue
            may_be_rounding = dtype in ROUNDING and isfinite(worst)
            if may_be_rounding and bool((drift <= 2 * self._rounding(computed, fits)).all()):
                self.n_unstable += 1
                continue
            n_rows, n_tokens = computed.batch_shape
            is_wired = wiring_of(self.decoder.blocks) is not None
            why = "from those under the plan's masks" if is_wired else "when other tokens follow the text"
            raise refuse_batch(
                Claim(self.decoder, self.plan),
                f"in a batch of {n_rows} rows of {n_tokens} tokens: latents of text {computed.position} at layer "
                f"{self.layers[int(drift.argmax())]} differ by {worst:.2g} of their size {why}",
            )

    def _rounding(self, row: ComputedRow, fits: Bool[Tensor, " N"]) -> Float[Tensor, " L"]:
        """Return by how much rounding alone changes the latents of a row, at least what is always allowed.

        In few digits some texts are unstable: a token's state is near a point from which it grows huge or does not.
        """
        exact, drifts = self._compute_again([row]), []
        for seed in range(N_NOISY):
            with _noisy(self.decoder, seed):
                drifts.append(_row_drift(self._compute_again([row]), exact, fits))
        return torch.stack(drifts).amax(0).clamp(min=DRIFT_ALLOWED[self.decoder.description.dtype])


@dataclass(eq=False)
class _Formula:
    """The textbook formula under the plan's masks over one batch: it replaces attention, or checks softmax inputs."""

    claim: Claim
    wiring: Wiring
    batch: Batch
    pooler: Pooler
    is_again: bool = False
    """Whether the block that runs is run again by an architecture."""
    masks: dict[tuple[str, int | None], Tensor] = field(default_factory=dict)

    def enter(self, stack: ExitStack) -> None:
        """Put the formula in force until the stack is closed."""
        run_again = self.wiring.around

        def around(block: int, hidden: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
            self.is_again = True
            try:
                return run_again(block, hidden, run)
            finally:
                self.is_again = False

        stack.enter_context(self.wiring.windows_apart())
        stack.enter_context(changed(self.wiring, watch=self.attend, around=around))
        if self.wiring.by_argument:
            stack.enter_context(ScoreWatch(self.wiring, lambda block, scores, _: self.require_hidden(block, scores)))

    def visit(self, position: int, hidden: Float[Tensor, "B T D"]) -> None:
        """Pool a layer, after checking that placeholders hold the state that the plan copies."""
        self.pooler(position, hidden)
        placeholder = self.batch.placeholder
        if placeholder is None or position - 1 not in (self.claim.literal.prepend or ()):
            return
        rows = torch.arange(len(hidden))
        if not torch.equal(hidden[rows, placeholder], hidden[rows, self.batch.last]):
            layer = self.claim.decoder.layers[position]
            raise self.refuse(f"the placeholder of {layer} does not hold the last token's state")

    def attend(self, block: int, call: AttentionCall) -> Float[Tensor, "B T Q V"]:
        """Compute the attention of a block by the formula."""
        allowed = self.mask(block, call.options.get("sliding_window")).unsqueeze(1)
        if block in self.claim.literal.prefix:
            rows, last = torch.arange(len(allowed)), self.batch.last
            key, value = (torch.cat([x[rows, :, last].unsqueeze(2), x], 2) for x in (call.key, call.value))
            call = replace(call, key=key, value=value)
            allowed = torch.cat([torch.ones_like(allowed[..., :1]), allowed], dim=-1)
        n_rows, n_heads, n_tokens, _ = call.query.shape
        step = max(1, N_SCORES // (n_rows * n_heads * allowed.shape[-1]))
        mixed = [
            textbook_attention(
                replace(call, query=call.query[:, :, start : start + step]), allowed[:, :, start : start + step]
            )
            for start in range(0, n_tokens, step)
        ]
        return torch.cat(mixed, dim=1).to(call.mixed.dtype)

    def require_hidden(self, block: int, scores: Float[Tensor, "B Q T T"]) -> None:
        """Check that scores before the softmax of a block are minus infinity exactly where the plan hides."""
        allowed = self.mask(block, self.wiring.windows[block]).to(scores.device).unsqueeze(1)
        is_real = self.batch.is_real.to(scores.device)[:, None, :, None]
        if difference := first_difference((scores > HIDDEN) & is_real, allowed & is_real):
            verb, (row, head, i, j) = difference
            text = int(self.batch.positions[row])
            raise self.refuse(f"head {head + 1} of block {block + 1} {verb} token {j} at token {i} of text {text}")

    def mask(self, block: int, window: int | None) -> Bool[Tensor, "B T T"]:
        """Build the mask of a block by its rule, which must agree with `masks.truth` in every row."""
        kind = self.claim.literal.kind_of(block, is_again=self.is_again)
        if (kind, window) not in self.masks:
            is_real, spans = self.batch.is_real, self.batch.spans
            spans = torch.full(is_real.shape, CONTEXT) if spans is None else spans
            mask = batch_mask(parse_kind(kind), is_real, spans=spans, window=window)
            for row, n in enumerate(self.batch.n_tokens.tolist()):
                queries = sorted({*range(0, n, -(-n // N_QUERIES)), n - 1})
                truth = literal_mask(kind, n, window=window, spans=spans[row, :n], queries=queries)
                if len(wrong := (mask[row, queries, :n] ^ truth).nonzero()):
                    query, key = queries[int(wrong[0, 0])], int(wrong[0, 1])
                    verb = "shows" if mask[row, query, key] else "hides"
                    to = f"token {key} {'to' if verb == 'shows' else 'from'} token {query} in a row of {n} tokens"
                    raise self.refuse(f"the rule of {kind!r} {verb} {to}, unlike the truth table")
            self.masks[kind, window] = mask
        return self.masks[kind, window]

    def refuse(self, problem: str) -> CertificateError:
        """Build the error for a batch that is not as planned."""
        return refuse_batch(self.claim, f"as its batches are computed: {problem}")


def refuse_batch(claim: Claim, problem: str) -> CertificateError:
    """Build the error for batches that are not as planned."""
    return CertificateError(
        f"the plan {claim.plan.text!r} did not take effect {problem}. Rows that this run wrote since its last proof do "
        f"not count; the family {claim.decoder.description.family!r} cannot be extracted under this plan."
    )


def _row_drift(
    latents: Float[Tensor, "L P N D"], formula: Float[Tensor, "L P N D"], fits: Bool[Tensor, " N"]
) -> Float[Tensor, " L"]:
    """Return the largest difference of a row's latents at each layer, of items that can be stored.

    Relative to all dimensions: one massive dimension would hide whatever the others do.
    """
    error = (latents - formula).abs().sum(-1) / formula.abs().sum(-1).clamp(min=1e-6)
    error = error.nan_to_num(nan=float("inf")).masked_fill(~fits, 0.0).flatten(1)
    return (error.amax(1) if len(fits) else error.new_zeros(len(error))).cpu()


@contextmanager
def _noisy(decoder: Decoder, seed: int) -> Iterator[None]:
    """Change what enters the first block by as much as the decoder's dtype rounds, until the block ends."""
    size = ROUNDING[decoder.description.dtype]

    def disturb(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        noise = torch.randn(args[0].shape, generator=torch.Generator().manual_seed(seed))
        return args[0] * (1 + size * noise.to(args[0])), *args[1:]

    handle = decoder.blocks[0].register_forward_pre_hook(disturb)
    try:
        yield
    finally:
        handle.remove()


def length_class(n_tokens: int) -> int:
    """Name the lengths of rows that are proved together: each by itself, of long rows an eighth of an octave."""
    step = 1 if n_tokens <= N_EXACT else 1 << (n_tokens.bit_length() - 4)
    return -(-n_tokens // step) * step


def _computed(batch: Batch, latents: Float[Tensor, "L P N D"], row: int) -> ComputedRow:
    items, windows = slice(row, row + 1), batch.windows
    if batch.words is not None:
        end = int(batch.words.n_words[: row + 1].sum())
        items = slice(end - int(batch.words.n_words[row]), end)
    windows = None if windows is None else replace(windows, first=windows.first + row)
    return ComputedRow(
        batch.texts[row], int(batch.positions[row]), windows, latents[:, :, items].clone(), tuple(batch.ids.shape)
    )
