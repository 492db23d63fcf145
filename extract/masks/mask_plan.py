"""Mask plans: one mask kind per layer, in a short text form shared by the command line, configs and manifests.

The text form, blocks counted from the top down unless it says otherwise:

    causal                                        the untouched decoder
    bidirectional                                 every block
    bidirectional:10                              the top 10 blocks, the others causal
    nosink-bidirectional:10+bidirectional:8       the top 10, then the 8 below them, the others causal
    nosink-bidirectional:10+nosink-causal         the top 10, then all others
    backward@17-20                                blocks 17 to 20, counted from the bottom from 1, the others causal
    [causal,causal,backward]                      every block, from the bottom up
    extend/backward:2                             another architecture than `inplace`, K blocks converted
    nosink-bidirectional:10~skip3@10              with LBW's extra skip: every 3 blocks from block 11 on
    causal~tp1-6                                  a placeholder takes the last token's state after blocks 1 to 6
    causal~kv12-15                                in blocks 12 to 15 every token also sees the last one's key and value
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from extract.errors import ConfigError, UnknownNameError, unknown_name
from extract.registry import PLACE, add_own, find_own, first_sentence, later

if TYPE_CHECKING:
    from torch import Tensor


Rule = Callable[..., "Tensor"]
"""`rule(i, j, n, spans)` builds the mask."""


@dataclass(frozen=True)
class MaskKind:
    """A mask kind."""

    name: str
    """A name from `KINDS`."""
    n: int = 0
    """The number of a kind that has one, such as the tokens that `nosink` hides."""

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The text form, with the number after the first word: `nosink3-causal`; the default number is left out."""
        word, hyphen, rest = self.name.partition("-")
        return self.name if self.n == KINDS[self.name].default else f"{word}{self.n}{hyphen}{rest}"

    @property
    def needs_spans(self) -> bool:
        """Whether the kind depends on the spans of a text."""
        return KINDS[self.name].needs_spans


class KindRow(NamedTuple):
    """A row of `KINDS`."""

    rule: Rule
    what: str
    source: str
    default: int = 0
    """The `n` of a kind that has one."""
    needs_spans: bool = False


def _rule(name: str) -> Rule:
    rule: Rule = later(f"extract.masks.mask_rules:{name}")
    return rule


KINDS: dict[str, KindRow] = {
    "causal": KindRow(_rule("allow_causal"), "i attends to j <= i", "the decoder as it was trained"),
    "backward": KindRow(_rule("allow_backward"), "i attends to j >= i", "LBW BACK"),
    "bidirectional": KindRow(_rule("allow_bidirectional"), "every token attends to every token", "LBW BIDIR"),
    "nosink-causal": KindRow(
        _rule("allow_nosink_causal"), "causal, the first token hidden from later ones", "LBW MASK0-FOR", default=1
    ),
    "nosink-bidirectional": KindRow(
        _rule("allow_nosink_bidirectional"),
        "bidirectional, the first token hidden from later ones",
        "LBW MASK0-BIDIR",
        default=1,
    ),
    "hybrid": KindRow(
        _rule("allow_hybrid"),
        "context sees context; a span sees context and, causally, itself",
        "MAGNET Fig. 2",
        needs_spans=True,
    ),
    "local": KindRow(
        _rule("allow_local"), "i attends to |i - j| <= 1, or w as in local8", "local attention", default=1
    ),
}
SHIPPED = tuple(KINDS)
CAUSAL_KIND = MaskKind("causal")


def register_mask(
    name: str, rule: Rule | None = None, *, what: str = "", default: int = 0, needs_spans: bool = False
) -> Any:
    """Add a mask kind under a name, which plans may then use; also as a decorator.

    The code of the rule is part of what a cache is: edited, it is another mask, and nothing stored is reused.

    Args:
        name: Words of small letters joined by hyphens; the same again replaces it.
        rule: Takes the positions `(T, 1)` of queries, `(1, T)` of keys, the number `n` and spans; returns
            `(T, T)` bool, true where a query attends to a key. It must work on batches of positions, too.
        what: One line for `icecore list masks`; the first sentence of its docstring when empty.
        default: The number of a kind that has one, the `n` of the rule: `my-kind` has this one, `my3-kind` another.
        needs_spans: Whether it reads spans.

    Raises:
        InputError: A name of the library or of another form, or a rule that leaves a token without anything to see.

    Example:
        >>> @register_mask("every-other")
        ... def allow_every_other(i, j, n, spans):
        ...     return (i - j) % 2 == 0
    """
    if rule is None:
        return partial(register_mask, name, what=what, default=default, needs_spans=needs_spans)
    if not needs_spans:
        later("extract.masks.mask_rules:try_rule")(name, rule, default)
    row = KindRow(rule, what or first_sentence(rule), "yours", default, needs_spans)
    add_own("mask kind", name, row, shipped=SHIPPED, form=rf"[a-z]+(-[a-z]+)*|{PLACE.pattern}")
    KINDS[name] = row
    return rule


def parse_kind(text: str) -> MaskKind:
    """Read a name from `KINDS`; a kind with a number takes it after its first word: `nosink3-causal` hides three.

    Raises:
        UnknownNameError: An unknown kind, a number for a kind that has none, or a number of 0.

    Example:
        >>> parse_kind("nosink3-causal")
        MaskKind(name='nosink-causal', n=3)
    """
    if PLACE.fullmatch(text):
        find_own("mask kind", text, known=KINDS, add=_register_as)
        return MaskKind(text, KINDS[text].default)
    if match := re.fullmatch(r"([a-z]+)(\d{0,6})((?:-[a-z]+)*)", text):  # no window has ten million tokens
        name, number = match[1] + match[3], match[2]
        find_own("mask kind", name, known=KINDS, add=_register_as)
        if name in KINDS:
            default = KINDS[name].default
            n = int(number) if number else default
            if not number or (default and n):
                return MaskKind(name, n)
    hint = "Kinds with a number take it after their first word, 1 to 999999: `nosink3-causal` hides the first 3 tokens."
    raise unknown_name("mask kind", text, KINDS, hint=hint)


def _register_as(name: str, rule: Rule) -> None:
    """Register a rule under another name, with the number and spans of its own registration if it has one."""
    row = next((row for row in KINDS.values() if row.rule is rule), KindRow(rule, "", ""))
    register_mask(name, rule, what=row.what, default=row.default, needs_spans=row.needs_spans)


CAUSAL = "causal"
ARCHITECTURES = {
    "inplace": "masks are swapped, nothing else (LBW INPLACE)",
    "extend": "K copies of the last block, converted, on top (LBW EXTEND)",
    "extra": "plus the output of a second stack: the first K blocks, converted, from the embeddings (LBW EXTRA)",
    "inter-stack": "the top K blocks run twice from one input, causal and converted, summed on top (LBW INTER, code)",
    "inter-block": "each of the top K blocks runs causal and converted, summed at each (LBW INTER, text)",
}
TAILS = {"skip": r"skip([1-9]\d*)@(\d+)", "prepend": r"tp(\d+)-(\d+)(?:@(\d+))?", "prefix": r"kv(\d+)-(\d+)"}
FORMS = "'causal', 'KIND', 'KIND:K', 'KIND:K+KIND:K', 'KIND:K+KIND', 'KIND@A-B', '[KIND,KIND,...]'"
PLANS = {
    "causal": "token i attends to j <= i at every block: the decoder as it was trained",
    "backward:K": "the top K blocks attend to j >= i (LBW INPLACE-BACK)",
    "bidirectional:K": "the top K blocks attend everywhere (LBW INPLACE-BIDIR)",
    "nosink-causal:K": "the top K blocks are causal and hide the first token from later ones (LBW MASK0-FOR)",
    "nosink-bidirectional:K": "the top K blocks attend everywhere but to the first token (LBW MASK0-BIDIR)",
    "nosink4-bidirectional:K": "the same, hiding the first 4 tokens (LBW MASK3; 6 and 8 for MASK5 and MASK7)",
    "nosink-bidirectional:K+nosink-causal": "every block hides the first token, the top K see ahead (LBW MASK0-ALL)",
    "nosink-bidirectional:K0+bidirectional:K-K0": "the top K0, then bidirectional down to K (LBW MASK0&BIDIR)",
    "hybrid": "context sees context; spans given per text see it and, causally, themselves (MAGNET)",
    "KIND@A-B": "blocks A to B from the bottom, for reading below the top",
    "[KIND,KIND,...]": "every block by itself, from the bottom up",
    **{f"{name}/KIND:K": text for name, text in ARCHITECTURES.items() if name != "inplace"},
    "PLAN~tpA-B": "a placeholder before the text takes the last token's state after blocks A to B (Token Prepending)",
    "PLAN~tpA-B@SEED": "the same, the placeholder drawn with another seed than 0",
    "PLAN~kvA-B": "in blocks A to B every token also sees the last token's key and value (KV-Embedding)",
    "PLAN~skipN@I": "any plan, an earlier hidden state re-added every N blocks after the first I (LBW, code)",
}


@dataclass(frozen=True)
class Segment:
    """Neighbouring blocks of one kind: so many from the top, or a window."""

    kind: MaskKind
    count: int | None = None
    """Number of blocks; None for all that are left, and in a window."""
    window: range | None = None
    """Blocks of a window, from 0."""

    @property
    def text(self) -> str:
        """The text form of the segment."""
        if self.window is not None:
            return f"{self.kind}@{self.window.start + 1}-{self.window.stop}"
        return self.kind.text if self.count is None else f"{self.kind}:{self.count}"


@dataclass(frozen=True)
class MaskPlan:
    """A mask plan, as `parse_plan` reads it."""

    segments: tuple[Segment, ...] = (Segment(CAUSAL_KIND),)
    """From the top down; windows, and the blocks of an explicit list, from the bottom up."""
    is_list: bool = False
    """Whether the plan names every block."""
    architecture: str = "inplace"
    """A name from `ARCHITECTURES`."""
    skip: tuple[int, int] | None = None
    """Stride of LBW's extra skip, and the number of blocks below its first addition."""
    prepend: tuple[int, int, int] | None = None
    """First and last block, from 1, after which a placeholder takes the last token's state, and its seed."""
    prefix: tuple[int, int] | None = None
    """First and last block, from 1, in which the last token's key and value are prepended."""

    @property
    def text(self) -> str:
        """The canonical text form: `parse_plan(plan.text) == plan`."""
        head = "" if self.architecture == "inplace" else f"{self.architecture}/"
        tail = "" if self.skip is None else f"~skip{self.skip[0]}@{self.skip[1]}"
        if self.prepend is not None:
            first, last, seed = self.prepend
            tail += f"~tp{first}-{last}" + (f"@{seed}" if seed else "")
        tail += "" if self.prefix is None else f"~kv{self.prefix[0]}-{self.prefix[1]}"
        if self.is_list:
            return f"[{','.join(segment.kind.text for segment in self.segments)}]{tail}"
        return head + "+".join(segment.text for segment in self.segments) + tail

    @property
    def is_untouched(self) -> bool:
        """Whether the plan leaves the decoder as it was trained."""
        is_causal = all(segment.kind == CAUSAL_KIND for segment in self.segments)
        return is_causal and self.architecture == "inplace" and not self.has_tail

    @property
    def has_tail(self) -> bool:
        """Whether the plan changes more than masks and architecture: a skip, a placeholder or a prefix."""
        return any(tail is not None for tail in (self.skip, self.prepend, self.prefix))

    @property
    def converted(self) -> tuple[MaskKind, int]:
        """Kind and number of the blocks that another architecture than `inplace` converts."""
        return self.segments[0].kind, self.segments[0].count or 0

    @property
    def rules(self) -> dict[str, int]:
        """Versions of the rules that have changed since caches were first written; part of a cache's identity."""
        # The rule for one hidden token, whose text has no number, is unchanged.
        has_nosink = any(re.match(r"nosink\d", segment.kind.text) for segment in self.segments)
        has_skip = self.skip is not None and self.architecture != "inplace"
        return {**({"nosink": 2} if has_nosink else {}), **({"skip": 2} if has_skip else {})}

    @property
    def kind_names(self) -> tuple[str, ...]:
        """Names of its mask kinds, without their numbers."""
        return tuple(dict.fromkeys(segment.kind.name for segment in self.segments))

    def kinds(self, n_blocks: int) -> tuple[MaskKind, ...]:
        """Return the kind of every block, from the bottom up; all causal where another architecture adds blocks."""
        if self.skip is not None and self.skip[1] >= n_blocks:
            raise self._misfit(f"begins its skip after block {self.skip[1]}", n_blocks, n_blocks - 1)
        highest = max((span[1] for span in (self.prepend, self.prefix) if span is not None), default=0)
        if highest > n_blocks:
            raise self._misfit(f"reaches up to block {highest}", n_blocks, n_blocks)
        if self.architecture != "inplace":
            if self.converted[1] > n_blocks:
                raise self._misfit(f"converts {self.converted[1]} blocks", n_blocks, n_blocks)
            return (CAUSAL_KIND,) * n_blocks
        if self.is_list:
            if len(self.segments) != n_blocks:
                raise self._misfit(f"names {len(self.segments)} blocks", n_blocks, n_blocks)
            return tuple(segment.kind for segment in self.segments)
        kinds = [CAUSAL_KIND] * n_blocks
        top = n_blocks  # blocks without a kind yet, counted from the bottom
        for segment in self.segments:
            window = segment.window
            if window is None:
                count = top if segment.count is None else segment.count
                if count > top:
                    raise self._misfit(f"needs {n_blocks - top + count} blocks", n_blocks, n_blocks)
                window = range(top - count, top)
                top -= count
            elif window.stop > n_blocks:
                raise self._misfit(f"reaches up to block {window.stop}", n_blocks, n_blocks)
            for block in window:
                kinds[block] = segment.kind
        return tuple(kinds)

    def converted_blocks(self, n_blocks: int) -> dict[int, MaskKind]:
        """Return the kinds of the blocks that ever run under another kind than causal, by position from 0."""
        kind, count = self.converted
        reruns: dict[str, Iterable[int]] = {"inplace": (), "extend": (n_blocks - 1,), "extra": range(count)}
        blocks = reruns.get(self.architecture, range(n_blocks - count, n_blocks))
        kinds = [*enumerate(self.kinds(n_blocks)), *((block, kind) for block in blocks)]
        return {block: kind for block, kind in kinds if kind != CAUSAL_KIND}

    def _misfit(self, problem: str, n_blocks: int, most: int) -> UnknownNameError:
        return UnknownNameError(
            f"the mask plan {self.text!r} {problem}, but the decoder has {n_blocks}; give at most {most}."
        )


def parse_plan(text: str) -> MaskPlan:
    """Read a mask plan from its text form, in which blanks do not count, into its canonical form.

    Empty segments and a causal rest are left out, and equal neighbours joined.

    Raises:
        UnknownNameError: A text that is not a plan; says what is wrong and which forms exist.

    Example:
        >>> parse_plan("backward:2 + backward:1 + causal").text
        'backward:3'
        >>> print(*parse_plan("backward@2-3").kinds(4))
        causal backward backward causal
    """
    bare, *tails = re.sub(r"\s", "", text).split("~")
    architecture, slash, rest = bare.partition("/")
    plan = _converted(architecture, rest, text) if slash else _inplace(bare, text)
    for tail in tails:
        field, value = _tail(tail, text)
        if getattr(plan, field) is not None:
            raise _refuse(text, f"has the tail {tail!r} beside another one of its kind")
        if field != "skip" and plan.architecture != "inplace":
            raise _refuse(
                text, f"has the tail {tail!r} and the architecture {plan.architecture!r}, which do not go together"
            )
        plan = replace(plan, **{field: value})  # type: ignore[arg-type]
    return plan


def _tail(tail: str, text: str) -> tuple[str, tuple[int, ...]]:
    """Read what follows a tilde: the field of the plan that it fills, and its value."""
    for field, pattern in TAILS.items():
        if match := re.fullmatch(pattern, tail):
            value = tuple(int(number or 0) for number in match.groups())
            if field != "skip" and not 1 <= value[0] <= value[1]:
                raise _refuse(
                    text, f"has the blocks {value[0]}-{value[1]}, which must run upwards from block 1 or higher"
                )
            return field, value
    raise _refuse(text, f"ends in {tail!r}, which is no skip, tp or kv; write ~skip3@10, ~tp1-6 or ~kv12-15")


def _converted(architecture: str, rest: str, text: str) -> MaskPlan:
    if architecture not in ARCHITECTURES:
        raise unknown_name("architecture", architecture, ARCHITECTURES, hint=f"It is in the plan {text!r}.")
    if architecture == "inplace":
        return _inplace(rest, text)
    segments = [] if rest.startswith("[") else [_segment(part, text) for part in rest.split("+")]
    if len(segments) != 1 or segments[0].count is None:
        raise _refuse(text, f"must give the architecture {architecture!r} one kind with a count, as backward:2")
    # Causal copies change the decoder too; only none at all leave it as it was trained.
    return MaskPlan(tuple(segments), architecture=architecture) if segments[0].count else MaskPlan()


def _inplace(bare: str, text: str) -> MaskPlan:
    if bare.startswith("[") and bare.endswith("]"):
        return MaskPlan(tuple(Segment(_kind(part, text)) for part in bare[1:-1].split(",")), is_list=True)
    segments = [_segment(part, text) for part in bare.split("+")]
    windows = [(segment.window, segment.kind) for segment in segments if segment.window is not None]
    if windows:
        if len(windows) != len(segments):
            raise _refuse(text, "mixes windows 'KIND@A-B' with counts from the top")
        return _windows(windows, text)
    if any(segment.count is None for segment in segments[:-1]):
        raise _refuse(text, "has a segment without a count before its last one")
    return MaskPlan(tuple(_joined(segments)))


def _segment(part: str, text: str) -> Segment:
    module = r"(?:[A-Za-z_][\w.]*:(?=[A-Za-z_]))?" if part.partition(":")[0].rstrip("0123456789") not in KINDS else ""
    match = re.fullmatch(rf"({module}[^:@]+?)(?::(\d+)|@(\d+)-(\d+))?", part)
    if not match:
        raise _refuse(text, f"has the part {part!r}")
    kind = _kind(match[1], text)
    if match[3] is not None:
        first, last = int(match[3]), int(match[4])
        if not 1 <= first <= last:
            raise _refuse(text, f"has the window {first}-{last}, which must run upwards from block 1 or higher")
        return Segment(kind, window=range(first - 1, last))
    return Segment(kind, None if match[2] is None else int(match[2]))


def _kind(part: str, text: str) -> MaskKind:
    try:
        return parse_kind(part)
    except UnknownNameError:
        if ":" in part:
            raise
        noun = "mask plan" if part == text else f"mask kind in the plan {text!r}:"
        raise unknown_name(noun, part, KINDS, hint=f"Plans look like {FORMS} (icecore list plans).") from None


def _joined(segments: list[Segment]) -> list[Segment]:
    """Drop empty segments, join equal neighbours, and leave out a causal rest."""
    joined: list[Segment] = []
    for kind, same in groupby((segment for segment in segments if segment.count != 0), lambda segment: segment.kind):
        counts = [segment.count for segment in same]
        joined.append(Segment(kind, None if counts[-1] is None else sum(count or 0 for count in counts)))
    while joined and joined[-1].kind == CAUSAL_KIND:
        joined.pop()
    return joined or [Segment(CAUSAL_KIND)]


def _windows(windows: list[tuple[range, MaskKind]], text: str) -> MaskPlan:
    """Order windows from the bottom up, join equal neighbours, and leave out causal ones."""
    joined: list[tuple[range, MaskKind]] = []
    top = 0
    for window, kind in sorted(windows, key=lambda window: window[0].start):
        if window.start < top:
            raise _refuse(text, f"has windows that overlap at block {window.start + 1}")
        top = window.stop
        if joined and joined[-1][1] == kind and joined[-1][0].stop == window.start:
            joined[-1] = range(joined[-1][0].start, top), kind
        elif kind != CAUSAL_KIND:
            joined.append((window, kind))
    return MaskPlan(tuple(Segment(kind, window=window) for window, kind in joined) or (Segment(CAUSAL_KIND),))


def _refuse(text: str, why: str) -> UnknownNameError:
    return UnknownNameError(f"the mask plan {text!r} {why}; plans look like {FORMS} (icecore list plans).")


def parse_counts(text: str) -> tuple[int, ...]:
    """Read whole numbers and ranges such as `0-3,8`, in rising order; refuse anything else with `ConfigError`."""
    numbers: set[int] = set()
    for part in re.sub(r"\s", "", text).split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(
                f"{text!r} is not a list of counts; allowed: whole numbers and rising ranges, as 0-30 or 2,4,8."
            )
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(numbers))


def plans_over_k(kinds: Iterable[str], counts: Iterable[int]) -> list[MaskPlan]:
    """List the plans `KIND:K`, for every kind and count; the causal plan is listed once."""
    ks = list(counts)
    return _unique(f"{kind}:{k}" for kind in kinds for k in ks)


def plans_over_k_and_k0(counts: Iterable[int], top_counts: Iterable[int]) -> list[MaskPlan]:
    """List LBW's MASK0&BIDIR: the top `k0` nosink-bidirectional, bidirectional down to `k`; `k0 > k` is left out."""
    tops = list(top_counts)
    return _unique(f"nosink-bidirectional:{k0}+bidirectional:{k - k0}" for k in counts for k0 in tops if k0 <= k)


def k_and_k0(plan: MaskPlan) -> tuple[int, int] | None:
    """Read a plan as `(k, k0)`: k converted blocks from the top, the uppermost k0 of them nosink; None for others."""
    if plan.is_untouched:
        return 0, 0
    match = re.fullmatch(r"(?:nosink-bidirectional:(\d+))?\+?(?:bidirectional:(\d+))?", plan.text)
    if not match:
        return None
    k0 = int(match[1] or 0)
    return k0 + int(match[2] or 0), k0


def plans_over_windows(kind: str, sizes: Iterable[int], reads: Iterable[int]) -> list[MaskPlan]:
    """List windows `(r - k, r]`: the `k` blocks that end in block `r`, read at block `r`, where they fit.

    Example:
        >>> [plan.text for plan in plans_over_windows("backward", [2], [1, 5])]
        ['backward@4-5']
    """
    ends = list(reads)
    return _unique(f"{kind}@{r - k + 1}-{r}" for k in sizes for r in ends if 1 <= k <= r)


def _unique(texts: Iterable[str]) -> list[MaskPlan]:
    return list(dict.fromkeys(parse_plan(text) for text in texts))
