"""What an adaptation trains on: a decoder with its output head, objectives of tokens and of texts, and their rows."""

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPast

from extract.decoders.decoder import DEFAULT_SPEC, IN_MEMORY, Decoder, body_of, changed, load_whole
from extract.decoders.decoder_spec import EMBEDDING, DecoderSource, select_layers, split_tap
from extract.errors import ConfigError, DecoderError, InputError, TaskError, UnknownNameError, unknown_name
from extract.files import digest_json
from extract.inputs.batches import Batch, collate, stream_texts
from extract.inputs.joined_text import CONTEXT, SPECIAL, TEXT
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText, TextEncoder
from extract.poolings.pooling_table import ECHO, REBA, find_pooling, select_poolings
from extract.poolings.poolings import index_rows
from extract.wiring.plan_wiring import states_with_gradients
from probes.adaptation.adapt_config import SHORTEST_ROW, CorpusPart, MntpOptions, MsgOptions, SscOptions
from probes.data.sources import DATA_VARIABLE
from probes.data.table_files import BadRow, check_text, read_raw, unknown_column
from probes.data.task_table import TASKS, load_task

MOST_LOGITS = 1 << 25
"""Logits in memory at a time; a vocabulary of 262k then takes 128 tokens."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A frozen decoder and the causal language model that it is the body of."""

    decoder: Decoder
    """The body."""
    model: PreTrainedModel
    """The whole, with the head."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the head scores, `V`."""
        return int(_head_of(self.model).weight.shape[0])

    def logits(self, hidden: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]:
        """Compute the logits of the next token from states behind the final norm, by the model's own code."""
        with _body_gives(self.model, hidden.unsqueeze(0)):
            ids = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
            logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits.squeeze(0)  # unlike an index, it has gradients without a copy

    def losses(self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Compute the cross-entropy of every target in nats, in chunks of at most `MOST_LOGITS` logits.

        Gradients reach the states, and no logits are kept for them: each chunk computes its own at once. The head is
        frozen, so it has none.
        """
        with _cast_head(self.model):
            losses: Tensor = _ChunkedLoss.apply(hidden, targets, self)  # type: ignore[no-untyped-call]
        return losses


def _head_of(model: PreTrainedModel) -> Any:
    """Return the module that scores tokens; None where there is none."""
    untyped: Any = model
    return untyped.get_output_embeddings()


@contextmanager
def _cast_head(model: PreTrainedModel) -> Iterator[None]:
    """Cast a frozen head once for all chunks, which autocasting would do for each, until the `with` block ends.

    One that is offloaded (on `meta`) is brought in by a hook of its own, chunk by chunk.
    """
    head = _head_of(model)
    device = head.weight.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        weight = head.weight.to(torch.get_autocast_dtype(device))
        with changed(head, weight=nn.Parameter(weight, requires_grad=False)):
            yield
    else:
        yield


class _ChunkedLoss(torch.autograd.Function):
    """Losses of targets whose gradients with respect to the states are computed together with them, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, targets: Tensor, owner: LanguageModel) -> Tensor:
        """Compute the losses, and the gradient of each with respect to its own state."""
        n = max(1, MOST_LOGITS // owner.vocabulary)
        losses, gradients = list[Tensor](), list[Tensor]()
        for some, wanted in zip(torch.split(hidden, n), torch.split(targets, n), strict=True):
            leaf = some.detach().requires_grad_(ctx.needs_input_grad[0])
            with torch.set_grad_enabled(ctx.needs_input_grad[0]):
                logits = owner.logits(leaf)
            log_probabilities = logits.detach().float().log_softmax(-1)
            target = (torch.arange(len(wanted), device=wanted.device), wanted)
            losses.append(-log_probabilities[target])
            if ctx.needs_input_grad[0]:
                error = log_probabilities.exp_()  # of a logit: its probability, less 1 where it is the target's
                error[target] -= 1
                gradients += torch.autograd.grad(logits, leaf, error.to(logits.dtype))
        ctx.gradients = torch.cat(gradients) if gradients else None
        return torch.cat(losses) if losses else hidden.new_zeros(0)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, None, None]:
        """Scale the gradient of every loss."""
        [scale] = upstream
        gradients = ctx.gradients
        return None if gradients is None else gradients * scale.unsqueeze(1).to(gradients.dtype), None, None


class _States(BaseModelOutputWithPast):
    """What a body returns, of which all but the states is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _body_gives(model: PreTrainedModel, hidden: Tensor) -> Iterator[None]:
    """Let the body of a model give states instead of computing any, until the `with` block ends."""
    with changed_forward(body_of(model), lambda *_, **__: _States(last_hidden_state=hidden)):
        yield


@contextmanager
def changed_forward(module: nn.Module, forward: Callable[..., object]) -> Iterator[None]:
    """Replace what a module computes until the `with` block ends."""
    is_own = "forward" in vars(module)
    with changed(module, forward=forward):
        yield
    if not is_own:
        del module.forward


def load_language_model(
    spec: DecoderSource | nn.Module = DEFAULT_SPEC,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    name: str = IN_MEMORY,
    report: Callable[[str], None] = lambda _: None,
) -> LanguageModel:
    """Load a decoder together with its language-model head; arguments as in `load_decoder`.

    Raises:
        DecoderError: As `load_decoder`; the checkpoint has no head, or one that cannot be run on chosen states.

    Example:
        >>> load_language_model("smollm2-135m-instruct").vocabulary  # doctest: +SKIP
        49152
    """
    decoder, model = load_whole(spec, tokenizer, name=name, report=report, with_head=True)
    model.requires_grad_(False).train(False)
    whole = LanguageModel(decoder, model)
    _require_own_logits(whole)
    return whole


@torch.no_grad()
def _require_own_logits(whole: LanguageModel) -> None:
    """Check that logits from states are those of the model's own forward call (`DecoderError`)."""
    decoder, model = whole.decoder, whole.model
    family = decoder.description.family
    if model is decoder.module or _head_of(model) is None:
        raise DecoderError(
            f"{decoder.description.name!r} ({family}) has no language-model head, which predicts tokens; allowed: a "
            "causal language model."
        )
    ids = torch.arange(1, 4, device=decoder.device).unsqueeze(0) % whole.vocabulary
    own = model(input_ids=ids, use_cache=False).logits[0].float()
    hidden = decoder.module(input_ids=ids, use_cache=False).last_hidden_state[0]
    drift = float((whole.logits(hidden).float() - own).abs().max() / own.abs().max().clamp(min=1e-6))
    if not drift < 1e-2:
        raise DecoderError(
            f"the family {family!r} computes its logits from more than the last hidden state (they differ by "
            f"{drift:.2g}), so tokens cannot be scored one by one; allowed: a causal language model with a plain head."
        )


@dataclass(eq=False)
class MarkedRow:
    """One row of `T` tokens: what the decoder is shown of it, its spans, and which tokens it is to predict."""

    ids: NDArray[np.int64]
    """`(T,)` the tokens as they are."""
    is_special: NDArray[np.bool_]
    """`(T,)` special tokens, which are neither hidden nor predicted: BOS, and those that a text spells out."""
    shown: NDArray[np.int64] = field(init=False)
    """`(T,)` the tokens that the decoder reads."""
    spans: NDArray[np.int64] = field(init=False)
    """`(T,)` number of the span that each token is in, `CONTEXT` outside spans."""
    targets: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    """By objective the columns of the tokens to predict, and those whose state predicts them."""

    def __post_init__(self) -> None:
        self.shown = self.ids.copy()
        self.spans = np.full(len(self.ids), CONTEXT, np.int64)


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Rows that go through the decoder together, and what is predicted of them."""

    batch: Batch
    targets: dict[str, tuple[Int[Tensor, " N"], Int[Tensor, " N"]]]
    """By objective the tokens to predict, and the positions of the states that predict them, row by row."""


def mark_row(
    ids: NDArray[np.int64],
    objectives: "Sequence[TokenObjective]",
    seed: Sequence[int],
    *,
    special_ids: Sequence[int] = (),
) -> MarkedRow:
    """Let objectives, in their order, choose what is predicted of a row; each draws from the seed and its own name.

    Tokens of `special_ids` are neither hidden nor predicted, be they BOS or written in a text, as `<|im_end|>` may be.
    """
    row = MarkedRow(ids, np.isin(ids, np.array(special_ids, np.int64)))
    for objective in objectives:
        objective.mark(row, np.random.default_rng([*seed, int.from_bytes(objective.name.encode())]))
    return row


def gather_rows(marked: Sequence[MarkedRow]) -> TokenBatch:
    """Put rows, at least one, into a batch; the same objectives have marked all of them."""
    roles = [np.where(row.is_special, SPECIAL, TEXT).astype(np.int8) for row in marked]
    encoded = [
        EncodedText(row.shown, role, is_truncated=False, spans=row.spans)
        for row, role in zip(marked, roles, strict=True)
    ]
    batch = collate(encoded, range(len(encoded)))
    width = batch.ids.shape[1]
    targets = {}
    for name in marked[0].targets:
        pairs = [row.targets[name] for row in marked]
        tokens = [row.ids[columns] for row, (columns, _) in zip(marked, pairs, strict=True)]
        places = [number * width + read for number, (_, read) in enumerate(pairs)]
        targets[name] = (torch.from_numpy(np.concatenate(tokens)), torch.from_numpy(np.concatenate(places)))
    return TokenBatch(batch, targets)


# Missing-span generation (MAGNET, section 3): spans are generated inside a context that is read in both directions.


@dataclass(frozen=True)
class MissingSpans:
    """Makes spans of a row's tokens and predicts each of them from the state before it.

    Under the hybrid mask a span's tokens see the whole context and what is before them in their span. A token is
    predicted from the state before it, which is in the same span, or is the context's last before the span: no state
    that predicts a token has seen it. The first token of a row has no state before it, so no span begins there.
    """

    options: MsgOptions
    name: str = "msg"

    def mark(self, row: MarkedRow, generator: np.random.Generator) -> None:
        """Draw the spans of a row; of some rows every token is in one span."""
        n_tokens, options = len(row.ids), self.options
        if generator.random() < options.all_share:
            row.spans[1:] = 0
        else:
            room = n_tokens // 2
            for number in range(int(generator.integers(1, options.spans + 1))):
                length = min(int(generator.integers(options.shortest, options.longest + 1)), room)
                if length < options.shortest:
                    break
                # a border of context between two spans, so that the state before each has seen no other span
                taken = np.append(row.spans != CONTEXT, False)  # a span may end with the row
                is_free = np.convolve(taken, np.ones(length + 2), "valid") == 0
                starts = np.flatnonzero(is_free) + 1
                if not len(starts):
                    break
                start = int(generator.choice(starts))
                row.spans[start : start + length] = number
                room -= length
        columns = np.flatnonzero((row.spans != CONTEXT) & ~row.is_special)
        row.targets[self.name] = (columns, columns - 1)


# Masked next-token prediction (LLM2Vec, 2404.05961), and masked token prediction for comparison.


FALLBACK = "_"
"""The mask token of decoders that have none (LLM2Vec and MAGNET)."""


@dataclass(frozen=True)
class MaskedTokens:
    """Hides tokens of the context and predicts them: `mntp` from the state before each, `mtp` from its own.

    Of the tokens that are predicted a share is replaced by the mask token, another by random tokens, and the rest is
    shown as it is. `mntp` predicts only a token whose neighbour on the left is context too, so that its state knows
    both sides; the first of a row has none.
    """

    name: str
    options: MntpOptions
    mask_id: int
    vocabulary: int

    def mark(self, row: MarkedRow, generator: np.random.Generator) -> None:
        """Choose at least one token of a row, where there is a candidate, and hide what is chosen."""
        is_context = (row.spans == CONTEXT) & ~row.is_special
        if self.name == "mntp":
            reads_context = np.append(False, row.spans[:-1] == CONTEXT)
            candidates = np.flatnonzero(is_context & reads_context)
        else:
            candidates = np.flatnonzero(is_context)
        n = min(len(candidates), max(1, round(self.options.rate * len(candidates))))
        chosen = np.sort(generator.choice(candidates, size=n, replace=False)) if n else candidates
        fate = generator.random(n)
        is_masked = fate < self.options.masked
        is_random = ~is_masked & (fate < self.options.masked + self.options.random)
        row.shown[chosen[is_masked]] = self.mask_id
        row.shown[chosen[is_random]] = generator.integers(0, self.vocabulary, int(is_random.sum()))
        row.targets[self.name] = (chosen, chosen - 1 if self.name == "mntp" else chosen)


TokenObjective = MissingSpans | MaskedTokens
"""Predicts tokens of a row: `mark` chooses which, and changes what is shown of it."""


def find_mask_id(tokenizer: Any, wanted: str = "", *, objective: str = "mntp") -> int:
    """Find the mask token: the one wanted, else the tokenizer's own, `FALLBACK` or EOS; `ConfigError` for none such."""
    if not wanted and tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    token = wanted or FALLBACK
    known = tokenizer.convert_tokens_to_ids(token)
    if known is not None and (known != tokenizer.unk_token_id or tokenizer.unk_token == token):
        return int(known)
    if not wanted and tokenizer.eos_token_id is not None:  # as LLM2Vec offers
        return int(tokenizer.eos_token_id)
    raise ConfigError(
        f"the mask token {token!r} is no token of this tokenizer; set objectives.{objective}.mask_token to one that is."
    )


# Self-supervised contrastive learning (SimCSE, 2104.08821): texts that belong together get vectors that do.


def info_nce(
    anchors: Float[Tensor, "B D"],
    positives: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B D"] | None = None,
    *,
    temperature: float,
    is_left_out: Bool[Tensor, "B C"] | None = None,
) -> Float[Tensor, ""]:
    """Compute InfoNCE: the cross-entropy of each anchor's own positive among all positives and all hard negatives.

    Scores are cosines divided by the temperature; the mean over anchors is returned. Candidates that are left out of an
    anchor's denominator are no negatives of it; its own positive never is.

    Example:
        >>> vectors = torch.eye(2)
        >>> round(float(info_nce(vectors, vectors, temperature=1.0)), 4)  # log(1 + exp(-1))
        0.3133
    """
    candidates = positives if negatives is None else torch.cat([positives, negatives])
    with torch.autocast(anchors.device.type, enabled=False):  # a cosine in bfloat16 is off by a hundredth
        scores = normalize(anchors.float(), dim=-1) @ normalize(candidates.float(), dim=-1).T / temperature
    if is_left_out is not None:
        scores = scores.masked_fill(is_left_out.to(scores.device), -torch.inf)
    return cross_entropy(scores, torch.arange(len(anchors), device=scores.device))


TextRow = tuple[str, ...]
"""An anchor, its positive, and perhaps a hard negative; of views the anchor alone."""


@dataclass(frozen=True, eq=False)
class ContrastBatch:
    """Texts of `B` rows: all anchors, then all positives, then all hard negatives where there are any."""

    batch: Batch
    n_rows: int
    is_left_out: Bool[Tensor, "B C"]
    """Whether a candidate, a positive or a hard negative, is no negative of an anchor though it is of another row."""


def find_equal_texts(codes: Int[NDArray[np.int64], "K B"]) -> Bool[NDArray[np.bool_], "B C"]:
    """Find the candidates that are no negatives of an anchor: the same text as it, or as a positive of an equal anchor.

    `codes` numbers the texts, equal ones alike: a row of anchors, one of positives, and perhaps one of hard negatives.
    An anchor's own positive is not among what is found.

    Example:
        >>> find_equal_texts(np.array([[0, 1, 2], [3, 3, 4]])).astype(int)  # two anchors share a positive
        array([[0, 1, 0],
               [1, 0, 0],
               [0, 0, 0]])
    """
    anchors, positives, candidates = codes[0], codes[1], codes[1:].ravel()
    is_equal_anchor, is_positive = anchors[:, None] == anchors, positives[:, None] == candidates
    is_found: NDArray[np.bool_] = is_equal_anchor.astype(np.float32) @ is_positive > 0
    is_found |= anchors[:, None] == candidates
    np.fill_diagonal(is_found, False)
    return is_found


class Contrast:
    """The contrastive objective on a decoder."""

    name = "sscl"

    def __init__(self, decoder: Decoder, options: SscOptions) -> None:
        """Prepare what reads texts; `ConfigError` for a pooling or layer that has no gradients here."""
        self.decoder, self.options = decoder, options
        [pooling] = select_poolings(options.pooling)
        if pooling in REBA or pooling.startswith("span"):
            what = "attention" if pooling in REBA else "the spans of a template"
            raise ConfigError(
                f"objectives.sscl.pooling is {pooling!r}, which reads {what}; allowed: poolings of tokens, such as "
                "last, mean and echo-mean."
            )
        layers = select_layers(options.layers, len(decoder.blocks))
        if tapped := [layer for layer in layers if split_tap(layer)[1]]:
            raise ConfigError(
                f"objectives.sscl.layers names {tapped[0]!r}, which is inside a block; allowed: the states between "
                f"blocks, {decoder.layers[0]} to {decoder.layers[-1]}."
            )
        if {*layers} == {EMBEDDING}:
            raise ConfigError(
                f"objectives.sscl.layers is {[*layers]}, below every block, so nothing would be trained; allowed: at "
                f"least one of {decoder.layers[1]} to {decoder.layers[-1]}. Add one, such as final_norm."
            )
        repeat = 2 if pooling in ECHO else 1
        template = InputTemplate(
            instruction=options.instruction, eos=options.eos, max_tokens=repeat * options.length, repeat=repeat
        )
        self._encode = TextEncoder(decoder.tokenizer, template, window=decoder.description.window)
        try:
            self._encode(["a"])
        except InputError as error:
            raise ConfigError(
                f"objectives.sscl.length is {options.length}, and its instruction leaves no room for a text; raise it, "
                "or shorten objectives.sscl.instruction."
            ) from error
        self._pool = find_pooling(pooling)
        self._positions = [decoder.layers.index(layer) for layer in layers]

    @property
    def highest_block(self) -> int:
        """The block, from 1, below or at which everything is that the loss depends on."""
        return min(max(self._positions), len(self.decoder.blocks))

    @property
    def makes_views(self) -> bool:
        """Whether dropout makes two views of each text, for want of texts that belong together."""
        return not self.options.files

    def count_cut(self, rows: Iterable[TextRow]) -> tuple[int, int]:
        """Count the texts that have more tokens than are read, and all texts."""
        cut = [item.is_truncated for item in self._encode([text for row in rows for text in row])]
        return sum(cut), len(cut)

    def gather(self, rows: Sequence[TextRow]) -> ContrastBatch:
        """Put the texts of rows into a batch; a text alone is its own positive, of which dropout makes another view.

        Texts are equal where the decoder reads the same of them.
        """
        columns = [*zip(*rows, strict=True)]
        texts = [text for column in (columns * 2 if len(columns) == 1 else columns) for text in column]
        encoded = self._encode(texts)
        numbers = dict[bytes, int]()
        codes = np.array([numbers.setdefault(item.ids.tobytes(), len(numbers)) for item in encoded])
        is_left_out = torch.from_numpy(find_equal_texts(codes.reshape(-1, len(rows))))
        return ContrastBatch(collate(encoded, range(len(texts))), len(rows), is_left_out)

    def loss(self, batch: ContrastBatch) -> Float[Tensor, ""]:
        """Compute the loss, the mean over layers."""
        states = states_with_gradients(self.decoder, batch.batch, self._positions)
        losses = []
        for position in self._positions:
            hidden = states[position]
            vectors = torch.split(self._pool(hidden, index_rows(batch.batch, hidden.device)), batch.n_rows)
            losses.append(info_nce(*vectors, temperature=self.options.temperature, is_left_out=batch.is_left_out))
        return torch.stack(losses).mean()


# Texts of an adaptation: rows of tokens of a mixture of corpora, rows of texts that belong together, and the order.


TEXTS_PER_CALL = 256
MOST_CORPUS_TEXTS = 1_000_000
"""Texts taken of a corpus that goes by its name."""


def find_file(name: str) -> Path:
    """Find a file of texts: as it is named, or in the folder that `ICECORE_DATA` names."""
    path = Path(name).expanduser()
    local = Path(os.environ[DATA_VARIABLE]) / name if os.environ.get(DATA_VARIABLE) else path
    return local if not path.exists() and local.exists() else path


def overlap_form(text: str) -> str:
    """Return what is compared of two texts: their words, without case and punctuation."""
    kept = (letter for letter in unicodedata.normalize("NFKC", text).casefold() if letter.isalnum() or letter.isspace())
    return " ".join("".join(kept).split())


@dataclass
class Excluded:
    """Texts that must not be trained on, and how many rows were dropped because they hold one, by where it is from."""

    sources: dict[str, frozenset[str]]
    dropped: Counter[str] = field(default_factory=Counter)

    def holds(self, texts: Iterable[str]) -> bool:
        """Whether one of some texts is excluded; such a row is counted for each source that has one of its texts."""
        forms = {overlap_form(text) for text in texts}
        hits = [name for name, excluded in self.sources.items() if not forms.isdisjoint(excluded)]
        self.dropped.update(hits)
        return bool(hits)


def read_excluded(names: Sequence[str]) -> Excluded:
    """Read the texts of files, or of every split of tasks, that must not be trained on."""
    sources: dict[str, frozenset[str]] = {}
    for name in names:
        if name in TASKS:
            task = load_task(name)
            for split, rows in task.splits.items():
                texts = (text for column in task.text_columns for text in rows[column])
                sources[f"{name} {split}"] = frozenset(map(overlap_form, texts))
            rest = frozenset(map(overlap_form, task.plain_texts())).difference(*sources.values())
            if rest:  # sentences of words, and documents, which belong to no split
                sources[name] = rest
        elif not Path(name).suffix and not find_file(name).exists():
            raise unknown_name("task to exclude", name, [*TASKS, "a file of texts"])
        else:
            try:
                judged = [text for paragraphs in _paragraphs(name, "text") for text in paragraphs]
            except UnknownNameError:  # a table without this column
                judged = _texts_of_every_column(find_file(name))
                if not judged:
                    raise
            forms = frozenset(map(overlap_form, judged))
            sources[Path(name).name] = sources.get(Path(name).name, frozenset()) | forms  # of another folder
    return Excluded(sources)


def _texts_of_every_column(path: Path) -> list[str]:
    """List all texts of a table, and of lists in it; none of a folder."""
    values = () if path.is_dir() else (value for row in read_raw(path).rows for value in row.values.values())
    parts = (part for value in values for part in (value if isinstance(value, list) else [value]))
    return [part for part in parts if isinstance(part, str)]


Row = TypeVar("Row")
TokenRow = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MixedRows(Generic[Row]):
    """Rows of all parts of a mixture, of tokens or of texts."""

    rows: tuple[Row, ...]
    part_of: NDArray[np.int64]
    """`(N,)` part of the corpus that each row is of; of pairs and triples there is one."""
    shares: NDArray[np.float64]
    """`(P,)` share of each part."""
    digest: str
    documents: frozenset[str] = frozenset()
    """Digests of the documents that rows of tokens are of."""

    def draw(self, n_batches: int, batch: int = 1, *, seed: Sequence[int]) -> NDArray[np.int64]:
        """Draw the rows of a whole training, batch by batch, none of which holds a row twice.

        Each batch has its share of every part, rounded up or down at random, and each part's rows come in one order
        after another: the next begins where what is left of one is fewer than a batch takes. A part must have as many
        rows as a batch takes at most, its share rounded up.
        """
        generator = np.random.default_rng(seed)
        ends = np.round(batch * np.cumsum([0.0, *self.shares]) / np.sum(self.shares), 12)
        counts = np.diff(np.ceil(ends - generator.random((n_batches, 1)))).astype(np.int64)
        parts = np.repeat(np.tile(np.arange(len(self.shares)), n_batches), counts.ravel())
        drawn = np.empty(n_batches * batch, np.int64)
        for part in range(len(self.shares)):
            rows, left = np.flatnonzero(self.part_of == part), np.empty(0, np.int64)
            for places in np.split(np.flatnonzero(parts == part), np.cumsum(counts[:-1, part])):
                if len(places) > len(left):
                    left = generator.permutation(rows)
                drawn[places], left = left[: len(places)], left[len(places) :]
        return drawn


# --- Rows of tokens ---


def begins_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer writes its BOS token before a text."""
    ids = tokenizer("a").input_ids
    return tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]


def read_rows(
    parts: Sequence[CorpusPart],
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int,
    held_out: int,
    excluded: Excluded,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[MixedRows[TokenRow], MixedRows[TokenRow]]:
    """Read the rows to train on, and those held out, of at most `length` tokens each.

    Documents are cut into consecutive rows, none of which crosses a border; a rest of fewer than `SHORTEST_ROW` tokens
    is dropped. Whole documents are held out, with all that equal them, the same ones whatever the seed: those whose
    digests are smallest, until there are enough rows.

    Raises:
        TaskError: A corpus is too small to hold out as many rows and train on others.
    """
    bos = [int(tokenizer.bos_token_id)] if begins_with_bos(tokenizer) else []
    documents: list[tuple[str, int, list[NDArray[np.int64]]]] = []
    for number, part in enumerate(parts):
        before, n_tokens = len(documents), 0
        for digest, ids in _tokenise(_read_documents(part, excluded), tokenizer):
            rows = _cut(ids, bos, length)
            if rows:
                documents.append((digest, number, rows))
                n_tokens += sum(map(len, rows))
        name = part.corpus or Path(part.files).name
        if len(documents) == before:
            left = " that is not excluded" if excluded.dropped else ""
            raise TaskError(
                f"the corpus {name!r} holds no text of at least {SHORTEST_ROW} tokens{left}; give another file."
            )
        report(f"{name}: {len(documents) - before:,} texts, {n_tokens:,} tokens")
    order = sorted(range(len(documents)), key=lambda i: documents[i][0])
    n_held, held = 0, set[str]()
    for i in order:
        if n_held >= held_out:
            break
        held.add(documents[i][0])
        n_held += len(documents[i][2])
    weights = np.array([part.weight for part in parts])
    shares = weights / weights.sum()

    def gather(is_held: bool) -> MixedRows[TokenRow]:
        chosen = [document for document in documents if (document[0] in held) == is_held]
        if is_held:  # looks read the first rows
            chosen.sort(key=lambda document: document[0])
        rows = tuple(row for _, _, rows in chosen for row in rows)
        part_of = np.array([part for _, part, rows in chosen for _ in rows], np.int64)
        if len({*part_of.tolist()}) < len(parts) and not is_held:
            raise TaskError(
                f"nothing is left to train on of a corpus once {held_out} rows are held out; give more texts, or lower "
                "training.held_out."
            )
        digest = digest_json([shares.tolist(), [(digest, part) for digest, part, _ in chosen]])
        return MixedRows(rows, part_of, shares, digest, frozenset(digest for digest, *_ in chosen))

    return gather(False), gather(True)


def _read_documents(part: CorpusPart, excluded: Excluded) -> Iterator[str]:
    yield from ("\n".join(paragraphs) for paragraphs in _read_allowed(part, excluded))


def _read_allowed(part: CorpusPart, excluded: Excluded) -> Iterator[list[str]]:
    for paragraphs in _read_texts(part):
        kept = [paragraph for paragraph in paragraphs if paragraph.strip() and not excluded.holds([paragraph])]
        if kept:
            yield kept


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _read_texts(part: CorpusPart) -> Iterable[list[str]]:
    """Read the paragraphs of every text of a part of the corpus."""
    if part.corpus:
        from probes.data.task import load_corpus

        return ([text] for text in load_corpus(part.corpus, MOST_CORPUS_TEXTS, part.options).texts())
    return _paragraphs(part.files, part.column)


def _paragraphs(files: str, column: str) -> Iterator[list[str]]:
    """Read the paragraphs of every text of a file; `TaskError` for one that is no text, with its file and row."""
    texts = cast("Iterable[object]", stream_texts(find_file(files), column=column))
    for number, text in enumerate(texts, start=1):
        paragraphs = text if isinstance(text, list) else [text]
        if bad := [paragraph for paragraph in paragraphs if not isinstance(paragraph, str)]:
            raise TaskError(f"text {number} of {files!r} is {bad[0]!r}; allowed: texts, or lists of them; correct it.")
        yield cast("list[str]", paragraphs)


def _tokenise(texts: Iterator[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, NDArray[np.int64]]]:
    while some := list(islice(texts, TEXTS_PER_CALL)):
        rows = tokenizer(some, add_special_tokens=False, return_attention_mask=False, verbose=False).input_ids
        for text, ids in zip(some, rows, strict=True):
            yield _digest(text), np.array(ids, np.int64)


def _cut(ids: NDArray[np.int64], bos: Sequence[int], length: int) -> list[NDArray[np.int64]]:
    room = length - len(bos)
    pieces = [ids[start : start + room] for start in range(0, len(ids), room)]
    return [np.array([*bos, *piece], np.int64) for piece in pieces if len(piece) + len(bos) >= SHORTEST_ROW]


# --- Texts that belong together ---


def read_text_rows(
    options: SscOptions,
    corpus: Sequence[CorpusPart],
    *,
    held_out: int,
    excluded: Excluded,
    held_documents: frozenset[str] = frozenset(),
) -> tuple[MixedRows[TextRow], MixedRows[TextRow]]:
    """Read the rows of the contrastive objective to train on, and those held out; rows with an excluded text go.

    No text is in both: of a file one row of an anchor is held out, of a corpus the texts of whole documents (those of
    `held_documents`, which other objectives hold out), and others that share a text with one are not trained on.

    Raises:
        UnknownNameError: A column that the file does not have.
        TaskError: An empty text, or too few rows.
    """
    part_of: dict[TextRow, int] = {}
    key_of: dict[TextRow, str] = {}
    for part, row, key in _text_rows(options, corpus, excluded):
        part_of.setdefault(row, part)
        key_of.setdefault(row, key)
    if not options.files and len({*key_of.values()}) == 1:  # one document, which cannot be held out whole
        key_of = {row: _digest(row[0]) for row in key_of}
    order = sorted(part_of, key=lambda row: key_of[row])
    if options.files:  # rows of one anchor would be negatives of each other
        order = list({key_of[row]: row for row in reversed(order)}.values())[::-1]
    elif held_documents:  # which may be long and few, where two texts are needed
        order = sorted(order, key=lambda row: key_of[row] not in held_documents)
        held_out = min(held_out, max(2, sum(key_of[row] in held_documents for row in order)))
    held = order[:held_out]
    keys = {key_of[row] for row in held} | (frozenset() if options.files else held_documents)
    known = {overlap_form(text) for row in held for text in row}
    trained = [row for row in part_of if key_of[row] not in keys and known.isdisjoint(map(overlap_form, row))]
    if len(trained) < options.batch or len(held) < 2:
        raise TaskError(
            f"sscl has {len(trained)} rows to train on and {len(held)} held out; allowed: at least a batch of "
            f"{options.batch}, and 2. Give more rows, or lower objectives.sscl.batch or training.held_out."
        )
    for name, texts in zip((options.anchor, options.positive), zip(*trained, strict=True), strict=False):
        if options.files and not options.negative and len({*texts}) == 1:
            raise TaskError(
                f"sscl has the one text {texts[0]!r} in the column {name!r} of all rows to train on, so none has a "
                "negative; give rows with other texts, or set objectives.sscl.negative."
            )
    weights = np.ones(1) if options.files else np.array([part.weight for part in corpus])
    if empty := {*range(len(weights))} - {part_of[row] for row in trained}:
        part = corpus[min(empty)]
        raise TaskError(
            f"sscl has nothing of its own to train on of the corpus {part.corpus or Path(part.files).name!r} once "
            f"{held_out} rows are held out; give more texts, or lower training.held_out."
        )
    shares = weights / weights.sum()
    counts = np.bincount([part_of[row] for row in trained], minlength=len(shares))
    most = np.ceil(np.round(shares * options.batch, 9)).astype(int)
    if len(small := np.flatnonzero(counts < most)):
        scarce = corpus[int(small[0])]
        raise TaskError(
            f"sscl has {counts[small[0]]} rows of the corpus {scarce.corpus or Path(scarce.files).name!r}, and a batch "
            f"takes {most[small[0]]}, so that one would be in it twice; give more texts, or lower its weight or "
            "objectives.sscl.batch."
        )

    def gather(some: list[TextRow]) -> MixedRows[TextRow]:
        parts = np.array([part_of[row] for row in some], np.int64)
        digest = digest_json([some, shares.tolist(), parts.tolist()])
        return MixedRows(tuple(some), parts, shares, digest)

    return gather(trained), gather(held)


def _text_rows(
    options: SscOptions, corpus: Sequence[CorpusPart], excluded: Excluded
) -> Iterator[tuple[int, TextRow, str]]:
    """Give the rows, each with the number of its part of the corpus, and the digest of its document or anchor."""
    if not options.files:
        for number, part in enumerate(corpus):
            for paragraphs in _read_allowed(part, excluded):
                key = _digest("\n".join(paragraphs))
                yield from ((number, (paragraph,), key) for paragraph in paragraphs)
        return
    path = find_file(options.files)
    table = read_raw(path)
    columns = [name for name in (options.anchor, options.positive, options.negative) if name]
    for column in columns:
        if column not in table.columns:
            raise unknown_column(column, table)
    for row in table.rows:
        try:
            texts = tuple(check_text(column, row.values.get(column)) for column in columns)
        except BadRow as error:
            raise TaskError(f"{table.location(row)}: {error}") from error
        if not excluded.holds(texts):
            yield 0, texts, _digest(texts[0])
