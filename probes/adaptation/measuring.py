"""Measuring what a decoder can do with text under its plans: from options to scores."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from extract.decoders.decoder_spec import DecoderSource
from extract.errors import ConfigError, InputError
from extract.inputs.batches import stream_texts
from extract.inputs.template import InputTemplate, TokenPolicy
from extract.masks.mask_plan import CAUSAL, MaskPlan, parse_plan
from extract.poolings.memory import keep_blocks
from extract.records import to_plain
from probes.adaptation.abilities import Ability, AbilityScores
from probes.adaptation.infilling import (
    DrawnSpans,
    ScoredRow,
    choose,
    continue_greedily,
    cut_windows,
    draw_stretches,
    encode_rows,
    first_span,
    first_words,
    infill,
    rep_n,
    rep_sentences,
    require_no_leak,
    require_room,
    require_window,
    score_rows,
)
from probes.adaptation.objectives import LanguageModel, load_language_model
from probes.data.sources import Article, read_wikitext
from probes.runs.folder import describe_program, without_absolute_paths
from probes.runs.watcher import Watcher, watching

WIKITEXT = "wikitext2"
Numbers = NDArray[np.float64]
"""A number per row."""
SIDE = 80
"""Characters of the context on either side of a span, in the table of infillings."""


@dataclass(frozen=True)
class AbilityOptions:
    """What is measured, and on which texts."""

    plans: tuple[str, ...] = (CAUSAL, "hybrid")
    """Plans of the infilling perplexity, the choices and the greedy infillings."""
    texts: str = WIKITEXT
    """`wikitext2` of `$ICECORE_DATA`, whose paragraphs are the texts, or a file as `stream_texts` reads it."""
    column: str = "text"
    """Column of the texts of a table."""
    split: str = "test"
    """Of WikiText-2: `validation` to choose by, `test` to report."""
    rows: int = 200
    """Most texts, drawn with the seed; and most windows."""
    spans: DrawnSpans = field(default_factory=DrawnSpans)
    """Spans whose perplexity is measured."""
    choices: int = 0
    """Most stretches of five sentences of which the third is chosen among five; 0 for none."""
    infillings: int = 0
    """Spans that are filled greedily, for reading."""
    window: int = 0
    """Tokens of the windows of the causal perplexity; 0 for none."""
    continuations: int = 0
    """Most texts whose first words are continued greedily, for Rep-Sen and Rep-4."""
    prefix_words: int = 5
    """Words that are continued."""
    new_tokens: int = 128
    """Tokens of a continuation, which must fit into the decoder's window together with its prefix."""
    bos: TokenPolicy = "auto"
    """BOS policy."""
    max_tokens: int = 512
    """Longest row in tokens."""

    def __post_init__(self) -> None:
        """Refuse numbers that measure nothing (`ConfigError`)."""
        none = dict.fromkeys(("choices", "infillings", "window", "continuations"), 0)
        for name, least in {"rows": 1, "prefix_words": 1, "new_tokens": 4, "max_tokens": 4, **none}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; allowed: a whole number of at least {least}.")
        if self.spans.seed < 0:
            raise ConfigError(f"seed is {self.spans.seed}; allowed: 0 or more.")
        if not self.plans:
            raise ConfigError("no plan is given; allowed: mask plans, such as causal and hybrid.")


@dataclass(frozen=True)
class Infilling:
    """One greedy infilling, for reading."""

    unit: str
    before: str
    after: str
    true: str
    by_plan: dict[str, str]


@dataclass(frozen=True)
class Continuation:
    """One greedy continuation, for reading."""

    unit: str
    prefix: str
    text: str
    rep_sen: float
    rep_4: float


@dataclass(frozen=True, eq=False)
class Measured:
    """Scores, and texts to read beside them."""

    scores: AbilityScores
    infillings: tuple[Infilling, ...] = ()
    continuations: tuple[Continuation, ...] = ()


def measure_abilities(
    decoder: DecoderSource | LanguageModel,
    options: AbilityOptions | None = None,
    *,
    watcher: Watcher | None = None,
) -> Measured:
    """Measure what a decoder can do with text: fill spans, choose sentences, predict, and continue without repeating.

    Args:
        decoder: A decoder with its language-model head: a name, a `DecoderSpec` (with an adapter, or a merge), or a
            loaded `LanguageModel`.
        options: What is measured; the infilling perplexity under `causal` and `hybrid` alone, if absent.
        watcher: Progress callbacks; a bar in a notebook when absent.

    Returns:
        Scores with a sum and a count per text, and greedy texts to read.

    Raises:
        ConfigError: A plan that shows span tokens where they are predicted, a number that measures nothing, or
            continuations that do not fit into the decoder's window.
        DecoderError: A decoder that cannot be loaded, has no head, or cannot run a plan.
        InputError: Texts of which none holds a span, a stretch or a prefix.
        TaskError: WikiText-2 is not where `ICECORE_DATA` says.

    Example:
        >>> measured = measure_abilities("smollm2-135m-instruct", AbilityOptions(rows=20))  # doctest: +SKIP
        >>> measured.scores.table()  # doctest: +SKIP
    """
    options = options or AbilityOptions()
    plans = {plan.text: plan for plan in map(parse_plan, options.plans)}
    articles, source = _read_articles(options)
    with watching(watcher) as seen:
        model = decoder if isinstance(decoder, LanguageModel) else load_language_model(decoder, report=seen.say)
        for plan in plans.values():  # before anything long is computed
            require_no_leak(plan, len(model.decoder.blocks))
        with keep_blocks():
            return _Measuring(model, articles, source, options, seen).measure(plans)


def _read_articles(options: AbilityOptions) -> tuple[list[tuple[str, Article]], str]:
    """Read articles, each with the unit that it is; a text of a file is an article of one paragraph."""
    if options.texts == WIKITEXT:
        articles, source = read_wikitext(options.split)
        return [(f"{k} {article.title}", article) for k, article in enumerate(articles, start=1)], source
    texts = list(stream_texts(options.texts, column=options.column))
    if bad := [k for k, text in enumerate(texts) if not isinstance(text, str)]:
        raise InputError(f"text {bad[0]} of {options.texts!r} is {texts[bad[0]]!r}; give a column of texts.")
    distinct = dict.fromkeys(text for text in texts if text.strip())
    return [(_digest(text), Article("", (text,))) for text in distinct], Path(options.texts).name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _added_up(losses: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Return the sum of the losses of each row, and their number."""
    return np.array([part.sum() for part in losses]), np.array([*map(len, losses)], np.float64)


class _Measuring:
    """The measures of one decoder on the texts of some options."""

    def __init__(
        self,
        model: LanguageModel,
        articles: Sequence[tuple[str, Article]],
        source: str,
        options: AbilityOptions,
        watcher: Watcher,
    ) -> None:
        self.model, self.articles, self.source, self.options, self.watcher = model, articles, source, options, watcher
        self.template = InputTemplate(bos=options.bos, max_tokens=options.max_tokens)
        self.abilities: list[Ability] = []
        self.notes: list[str] = []

    def measure(self, plans: dict[str, MaskPlan]) -> Measured:
        """Measure everything that the options ask for."""
        options, decoder = self.options, self.model.decoder
        self._require_options()
        texts = self._draw_texts()
        prefixes = self._take_prefixes(texts) if options.continuations else []
        rows = encode_rows(decoder, [text for _, text in texts], options.spans, template=self.template)
        has_span = [len(row.targets) > 0 for row in rows]
        if not any(has_span):
            raise InputError(
                f"none of {len(rows)} texts of {self.source} is long enough for a span of {options.spans.shortest} "
                "tokens; give longer texts, or shorter spans."
            )
        if not all(has_span):
            self.notes.append(f"{len(rows) - sum(has_span):,} of {len(rows):,} texts have no span and do not count.")
        spanned = [(*texts[i], rows[i]) for i in range(len(rows)) if has_span[i]]
        for plan in plans.values():
            self._measure_infilling(spanned, plan)
        infillings = self._fill(spanned[: options.infillings], plans)
        if options.choices:
            self._choose(plans)
        if options.window:
            self._predict()
        continuations = self._continue(prefixes) if prefixes else ()
        about = decoder.description
        scores = AbilityScores(
            name=about.name + (f" + {about.adapter}" if about.adapter else ""),
            decoder=without_absolute_paths(about.to_dict()),
            texts=self.source,
            options={**to_plain(options), "texts": Path(options.texts).name},
            abilities=tuple(self.abilities),
            program=describe_program(),
            notes=tuple(self.notes),
        )
        return Measured(scores, infillings, continuations)

    def _require_options(self) -> None:
        """Refuse what could not be measured after hours of measuring something else."""
        options = self.options
        if options.window:
            require_window(self.model.decoder, options.window)
        if options.choices and not draw_stretches(self.articles, most=1, seed=options.spans.seed):
            raise self._no_stretch()

    def _no_stretch(self) -> InputError:
        return InputError(
            f"{self.source} holds no paragraph of five sentences that fits into {self.options.max_tokens} tokens with "
            "others of its article beside it; leave --choices out, or give longer texts."
        )

    def _draw_texts(self) -> list[tuple[str, str]]:
        """Draw texts that are long enough for the shortest span, each with its unit."""
        fewest = 2 * self.options.spans.shortest  # words, of which each is a token at least
        texts = [(unit, text) for unit, article in self.articles for text in article.paragraphs]
        texts = [(unit, text) for unit, text in texts if len(text.split()) >= fewest] or texts
        if not texts:
            raise InputError(f"{self.source} holds no text; give a file with at least one.")
        return [texts[k] for k in self._draw(len(texts), self.options.rows)]

    def _draw(self, n: int, most: int) -> list[int]:
        """Draw positions, in their order; all where they are few."""
        generator = np.random.default_rng(self.options.spans.seed)
        return list(range(n)) if n <= most else np.sort(generator.choice(n, most, replace=False)).tolist()

    def _add(self, name: str, plan: str, rows: Sequence[tuple[str, str, str]], sums: Numbers, counts: Numbers) -> None:
        """Add an ability; a row is its unit, its text and what was asked of it."""
        units, texts, asked = zip(*rows, strict=True)
        digests = tuple(map(_digest, texts))
        self.abilities.append(Ability(name, plan, units, digests, asked, sums, counts))

    def _measure_infilling(self, spanned: Sequence[tuple[str, str, ScoredRow]], plan: MaskPlan) -> None:
        progress = self.watcher.extraction(f"infilling, {plan.text}")
        losses = score_rows(self.model, [row for *_, row in spanned], plan, progress=progress)
        named = [(unit, text, row.asked) for unit, text, row in spanned]
        self._add("infilling-perplexity", plan.text, named, *_added_up(losses))

    def _fill(self, spanned: Sequence[tuple[str, str, ScoredRow]], plans: dict[str, MaskPlan]) -> tuple[Infilling, ...]:
        """Fill the first span of some texts under every plan."""
        if not spanned:
            return ()
        rows, tokenizer = [row for *_, row in spanned], self.model.decoder.tokenizer
        filled = {
            name: infill(self.model, rows, plan, progress=self.watcher.extraction(f"greedy infilling, {name}"))
            for name, plan in plans.items()
        }
        infillings = []
        for k, (unit, _, row) in enumerate(spanned):
            ids, columns = row.encoded.ids, first_span(row.encoded)
            parts = (ids[: columns[0]], ids[columns], ids[columns[-1] + 1 :])
            before, true, after = (str(tokenizer.decode(part.tolist(), skip_special_tokens=True)) for part in parts)
            by_plan = {name: texts[k] for name, texts in filled.items()}
            infillings.append(Infilling(unit, before[-SIDE:], after[:SIDE], true, by_plan))
        return tuple(infillings)

    def _choose(self, plans: dict[str, MaskPlan]) -> None:
        options = self.options
        stretches = draw_stretches(self.articles, most=options.choices, seed=options.spans.seed)
        for name, plan in plans.items():
            progress = self.watcher.extraction(f"choosing, {name}")
            choices = choose(self.model, stretches, plan, template=self.template, progress=progress)
            if not choices.stretches:
                raise self._no_stretch()
            if name == next(iter(plans)) and len(choices.stretches) < len(stretches):
                n = len(stretches) - len(choices.stretches)
                self.notes.append(f"{n:,} of {len(stretches):,} stretches are longer than a row and do not count.")
            rows = [(one.unit, "\n".join(one.texts), "third of five") for one in choices.stretches]
            parts = {"": choices.by_mean, "-sum": choices.by_sum, "-onwards": choices.onwards}
            for suffix, hits in parts.items():
                if hits is not None:
                    self._add(f"choice-accuracy{suffix}", name, rows, hits, np.ones(len(hits)))

    def _predict(self) -> None:
        """Measure the causal perplexity of windows."""
        options, decoder = self.options, self.model.decoder
        template = InputTemplate(bos=options.bos)
        windows = [
            (unit, article.text, row)
            for unit, article in self.articles
            for row in cut_windows(decoder, article.text, n_tokens=options.window, template=template)
        ]
        windows = [windows[k] for k in self._draw(len(windows), options.rows)]
        if not windows:
            raise InputError(f"{self.source} holds no text of two tokens; leave --window out, or give longer texts.")
        progress = self.watcher.extraction("causal perplexity")
        losses = score_rows(self.model, [row for *_, row in windows], parse_plan(CAUSAL), progress=progress)
        named = [(unit, str(decoder.tokenizer.decode(row.encoded.ids.tolist())), row.asked) for unit, _, row in windows]
        self._add("causal-perplexity", CAUSAL, named, *_added_up(losses))

    def _take_prefixes(self, texts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Take the first words of texts, each with its unit; refuse what leaves no room for the new tokens."""
        options = self.options
        prefixes = [(unit, first_words(text, options.prefix_words)) for unit, text in texts]
        prefixes = [(unit, prefix) for unit, prefix in prefixes if prefix][: options.continuations]
        if not prefixes:
            raise InputError(f"no text of {self.source} begins with {options.prefix_words} words; give longer texts.")
        words, template = [prefix for _, prefix in prefixes], InputTemplate(bos=options.bos)
        require_room(self.model.decoder, words, options.new_tokens, template=template)
        return prefixes

    def _continue(self, prefixes: Sequence[tuple[str, str]]) -> tuple[Continuation, ...]:
        """Continue the first words of texts, and measure how much that repeats itself."""
        options, decoder = self.options, self.model.decoder
        tokens = continue_greedily(
            self.model,
            [prefix for _, prefix in prefixes],
            n_tokens=options.new_tokens,
            template=InputTemplate(bos=options.bos),
            progress=self.watcher.extraction("greedy continuations"),
        )
        continuations = []
        for (unit, prefix), row in zip(prefixes, tokens, strict=True):
            text = str(decoder.tokenizer.decode(row, skip_special_tokens=True))
            continuations.append(Continuation(unit, prefix, text, rep_sentences(text), rep_n(row)))
        rows, ones = [(unit, prefix, f"{options.new_tokens} tokens") for unit, prefix in prefixes], np.ones(len(tokens))
        self._add("rep-sen", CAUSAL, rows, np.array([one.rep_sen for one in continuations]), ones)
        self._add("rep-4", CAUSAL, rows, np.array([one.rep_4 for one in continuations]), ones)
        return tuple(continuations)
