"""Mask plans: one mask kind per layer, in a short text form shared by the command line, configs and manifests.

The text form, blocks counted from the top down unless it says otherwise:

    causal                                        the untouched decoder
    bidirectional                                 every block
    bidirectional:10                              the top 10 blocks, the others causal
    nosink-bidirectional:10+bidirectional:8       the top 10, then the 8 below them, the others causal
    nosink-bidirectional:10+nosink-causal         the top 10, then all others
    backward@17-20                                blocks 17 to 20, counted from the bottom from 1, the others causal
    [causal,causal,backward]                      every block, from the bottom up
"""

import re
from dataclasses import dataclass
from itertools import pairwise

from extract.errors import UnknownNameError, unknown_name

CAUSAL = "causal"
FORMS = "'causal', 'KIND', 'KIND:K', 'KIND:K+KIND:K', 'KIND:K+KIND', 'KIND@A-B', '[KIND,KIND,...]'"
PLANS = {
    "causal": "token i attends to j <= i at every block: the decoder as it was trained",
    "backward:K": "the top K blocks attend to j >= i (LBW INPLACE-BACK)",
    "bidirectional:K": "the top K blocks attend everywhere (LBW INPLACE-BIDIR)",
    "nosink-causal:K": "the top K blocks are causal and hide the first token from later ones (LBW MASK0-FOR)",
    "nosink3-causal:K": "the same, hiding the first 3 tokens (LBW MASK3; 5 and 7 likewise)",
    "nosink-bidirectional:K": "the top K blocks attend everywhere but to the first token (LBW MASK0-BIDIR)",
    "nosink-bidirectional:K+nosink-causal": "every block hides the first token, the top K see ahead (LBW MASK0-ALL)",
    "nosink-bidirectional:K0+bidirectional:K-K0": "the top K0, then bidirectional down to K (LBW MASK0&BIDIR)",
    "KIND@A-B": "blocks A to B from the bottom, for reading below the top",
    "[KIND,KIND,...]": "every block by itself, from the bottom up",
}


@dataclass(frozen=True)
class Segment:
    """Neighbouring blocks of one kind.

    Attributes:
        kind: Text of the mask kind.
        first: In a plan counted from the top, blocks of the segment, or None for all that are left; in a window, its
            lowest block from 1.
        last: The highest block of a window; None elsewhere.
    """

    kind: str
    first: int | None = None
    last: int | None = None

    @property
    def text(self) -> str:
        """The text form of the segment."""
        if self.last is not None:
            return f"{self.kind}@{self.first}-{self.last}"
        return self.kind if self.first is None else f"{self.kind}:{self.first}"


@dataclass(frozen=True)
class MaskPlan:
    """A mask plan.

    Attributes:
        segments: From the top down; windows from the bottom up; the blocks of an explicit list from the bottom up.
        is_list: Whether the plan names every block.
    """

    segments: tuple[Segment, ...] = (Segment(CAUSAL),)
    is_list: bool = False

    @property
    def text(self) -> str:
        """The canonical text form: `parse_plan(plan.text) == plan`."""
        if self.is_list:
            return f"[{','.join(segment.kind for segment in self.segments)}]"
        return "+".join(segment.text for segment in self.segments)

    @property
    def is_causal(self) -> bool:
        """Whether every block is causal, whatever their number."""
        return all(segment.kind == CAUSAL for segment in self.segments)

    def kinds(self, n_blocks: int) -> tuple[str, ...]:
        """Give the kind of every block.

        Args:
            n_blocks: Blocks of the decoder.

        Returns:
            `n_blocks` kinds as text, from the bottom up.

        Raises:
            UnknownNameError: The plan names more blocks than the decoder has, or a list of another length.
        """
        if self.is_list:
            if len(self.segments) != n_blocks:
                raise self._misfit(f"names {len(self.segments)} blocks", n_blocks)
            return tuple(segment.kind for segment in self.segments)
        kinds = [CAUSAL] * n_blocks
        top = n_blocks  # blocks not yet given away, counted from the bottom
        for segment in self.segments:
            if segment.last is not None:
                if segment.last > n_blocks:
                    raise self._misfit(f"reaches up to block {segment.last}", n_blocks)
                span = range((segment.first or 1) - 1, segment.last)
            else:
                count = top if segment.first is None else segment.first
                if count > top:
                    raise self._misfit(f"needs {n_blocks - top + count} blocks", n_blocks)
                span = range(top - count, top)
                top -= count
            for block in span:
                kinds[block] = segment.kind
        return tuple(kinds)

    def _misfit(self, what: str, n_blocks: int) -> UnknownNameError:
        return UnknownNameError(
            f"the mask plan {self.text!r} {what}, but the decoder has {n_blocks}; give at most {n_blocks}."
        )


def parse_plan(text: str) -> MaskPlan:
    """Read a mask plan from its text form.

    Args:
        text: The plan; blanks do not count.

    Returns:
        The plan in canonical form: empty segments and a causal rest left out, equal neighbours joined.

    Raises:
        UnknownNameError: A text that is no plan, with what is wrong and the forms that are.

    Example:
        >>> parse_plan("backward:2 + backward:1 + causal").text
        'backward:3'
        >>> parse_plan("backward@2-3").kinds(4)
        ('causal', 'backward', 'backward', 'causal')
    """
    bare = re.sub(r"\s", "", text)
    if bare.startswith("[") and bare.endswith("]"):
        return MaskPlan(tuple(Segment(_kind(part, text)) for part in bare[1:-1].split(",")), is_list=True)
    segments = [_segment(part, text) for part in bare.split("+")]
    windows = [segment for segment in segments if segment.last is not None]
    if windows:
        if len(windows) != len(segments):
            raise _refuse(text, "mixes windows 'KIND@A-B' with counts from the top")
        return _windows(windows, text)
    if any(segment.first is None for segment in segments[:-1]):
        raise _refuse(text, "has a segment without a count before its last one")
    return MaskPlan(tuple(_joined(segments)))


def _segment(part: str, text: str) -> Segment:
    found = re.fullmatch(r"([a-z0-9-]+?)(?::(\d+)|@(\d+)-(\d+))?", part)
    if not found:
        raise _refuse(text, f"has the part {part!r}")
    kind = _kind(found[1], text)
    if found[3] is not None:
        first, last = int(found[3]), int(found[4])
        if not 1 <= first <= last:
            raise _refuse(text, f"has the window {first}-{last}, which must run upwards from block 1 or higher")
        return Segment(kind, first, last)
    return Segment(kind, None if found[2] is None else int(found[2]))


def _kind(part: str, text: str) -> str:
    from extract.masks import KINDS, parse_kind  # the rules are functions of torch

    try:
        return parse_kind(part).text
    except UnknownNameError:
        kind = "mask plan" if part == text else f"mask kind in the plan {text!r}:"
        raise unknown_name(kind, part, KINDS, hint=f"Plans look like {FORMS} (icecore list plans).") from None


def _joined(segments: list[Segment]) -> list[Segment]:
    """Drop empty segments, join equal neighbours, and leave a causal rest unsaid."""
    kept: list[Segment] = []
    for segment in segments:
        if segment.first == 0:
            continue
        if kept and kept[-1].kind == segment.kind:
            before = kept.pop().first or 0
            segment = Segment(segment.kind, None if segment.first is None else before + segment.first)  # noqa: PLW2901
        kept.append(segment)
    while kept and kept[-1].kind == CAUSAL:
        kept.pop()
    return kept or [Segment(CAUSAL)]


def _windows(windows: list[Segment], text: str) -> MaskPlan:
    ordered = sorted(windows, key=lambda window: window.first or 0)
    for below, above in pairwise(ordered):
        if (below.last or 0) >= (above.first or 0):
            raise _refuse(text, f"has windows that overlap at block {above.first}")
    kept = [window for window in ordered if window.kind != CAUSAL]
    return MaskPlan(tuple(kept) or (Segment(CAUSAL),))


def _refuse(text: str, why: str) -> UnknownNameError:
    return UnknownNameError(f"the mask plan {text!r} {why}; plans look like {FORMS} (icecore list plans).")
