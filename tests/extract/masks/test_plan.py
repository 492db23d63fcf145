"""Mask plans in their text form."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.errors import UnknownNameError
from extract.masks.mask_plan import ARCHITECTURES, CAUSAL_KIND, PLANS, MaskPlan, Segment, parse_kind, parse_plan

TEXTS = (
    "causal",
    "bidirectional",
    "backward:3",
    "nosink-bidirectional:10+bidirectional:8",
    "nosink3-causal:2",
    "nosink-bidirectional:4+nosink-causal",
    "backward@17-20",
    "backward@1-2+bidirectional@4-4",
    "causal:3+hybrid:2",
    "[causal,backward,nosink2-bidirectional]",
    "extend/backward:2",
    "inter-block/hybrid:1",
    "extra/causal:2",
    "nosink-bidirectional:10~skip3@20",
    "causal~skip1@0",
    "[causal,backward]~skip2@1",
    "inter-stack/backward:2~skip3@0",
)
KINDS = ("causal", "backward", "bidirectional", "nosink-causal", "nosink3-bidirectional", "hybrid")


@pytest.mark.parametrize("text", TEXTS)
def test_the_canonical_form_reads_back(text: str) -> None:
    plan = parse_plan(f" {text}\n")
    assert plan.text == text
    assert parse_plan(plan.text) == plan


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("backward:2 + backward:1 + causal", "backward:3"),
        ("backward:2+backward", "backward"),
        ("backward:0", "causal"),
        ("backward:0+bidirectional:2", "bidirectional:2"),
        ("causal:2+causal", "causal"),
        ("nosink1-causal", "nosink-causal"),
        ("nosink03-causal:007", "nosink3-causal:7"),
        ("inplace/backward:2", "backward:2"),
        ("extend/backward:0", "causal"),
        ("causal@1-3", "causal"),
        ("bidirectional@4-5+backward@1-2", "backward@1-2+bidirectional@4-5"),
        ("backward@3-4+backward@1-2", "backward@1-4"),
        ("backward@1-1+causal@2-2+backward@3-3", "backward@1-1+backward@3-3"),
    ],
)
def test_one_plan_has_one_form(text: str, canonical: str) -> None:
    assert parse_plan(text).text == canonical
    assert parse_plan(text) == parse_plan(canonical)


Parts = list[tuple[str, int]]
from_the_top = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4)), min_size=1, max_size=4)


@given(from_the_top, st.sampled_from([*KINDS, ""]), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_kinds_are_counted_from_the_top(parts: Parts, rest: str, n_below: int) -> None:
    text = "+".join([*(f"{kind}:{count}" for kind, count in parts), *([rest] if rest else [])])
    n_blocks = sum(count for _, count in parts) + n_below
    top_down = [kind for kind, count in parts for _ in range(count)] + [rest or "causal"] * n_below
    plan = parse_plan(text)
    assert plan.kinds(n_blocks) == tuple(map(parse_kind, top_down[::-1]))
    assert parse_plan(plan.text) == plan
    assert parse_plan(plan.text).kinds(n_blocks) == plan.kinds(n_blocks)
    assert plan.is_untouched == (set(top_down) <= {"causal"} and rest in ("", "causal"))


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6), st.data())
@settings(max_examples=100, deadline=None)
def test_windows_and_lists_say_the_same(kinds: list[str], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(kinds))))
    windows = parse_plan("+".join(f"{kinds[block]}@{block + 1}-{block + 1}" for block in order))
    explicit = parse_plan(f"[{','.join(kinds)}]")
    assert windows.kinds(len(kinds)) == explicit.kinds(len(kinds)) == tuple(map(parse_kind, kinds))
    assert parse_plan(windows.text) == windows
    assert parse_plan(explicit.text) == explicit


@given(
    st.sampled_from(list(ARCHITECTURES)), st.sampled_from(KINDS), st.integers(0, 5), st.integers(1, 4), st.booleans()
)
@settings(max_examples=100, deadline=None)
def test_architectures_and_skips_read_back(name: str, kind: str, count: int, stride: int, has_skip: bool) -> None:
    plan = parse_plan(f"{name}/{kind}:{count}" + (f"~skip{stride}@{count}" if has_skip else ""))
    assert parse_plan(plan.text) == plan
    assert plan.skip == ((stride, count) if has_skip else None)
    if name == "inplace" or count == 0:
        assert plan.architecture == "inplace"
    else:
        assert (plan.architecture, plan.converted) == (name, (parse_kind(kind), count))
        assert plan.kinds(count + 1) == (CAUSAL_KIND,) * (count + 1)
        assert not plan.is_untouched  # not even with causal copies


def test_the_plain_plan_leaves_the_decoder_alone() -> None:
    assert MaskPlan().is_untouched
    assert MaskPlan((Segment(CAUSAL_KIND),)) == parse_plan("causal")
    assert parse_plan("[causal,causal]").is_untouched
    assert not parse_plan("causal~skip3@2").is_untouched


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("nosink-bidirectional:2+nosink-causal", {}),
        ("local8:2", {}),
        ("causal~skip3@1", {}),
        ("extra/backward:2", {}),
        ("nosink1-causal:2", {}),
        ("[causal,nosink2-causal]", {"nosink": 2}),
        ("nosink12-bidirectional@1-2", {"nosink": 2}),
        ("inter-stack/backward:2~skip3@1", {"skip": 2}),
        ("extra/nosink3-causal:2~skip3@1", {"nosink": 2, "skip": 2}),
    ],
)
def test_rules_that_changed_are_versioned_and_no_others(text: str, rules: dict[str, int]) -> None:
    assert parse_plan(text).rules == rules


@pytest.mark.parametrize("form", PLANS)
def test_every_form_of_the_table_is_a_plan(form: str) -> None:
    names = {
        "K-K0": "3",
        "KIND": "backward",
        "K0": "2",
        "K": "4",
        "A-B": "1-2",
        "N@I": "3@1",
        "PLAN": "causal",
        "SEED": "7",
    }
    text = re.sub("|".join(names), lambda match: names[match[0]], form.replace("...", "causal"))
    assert parse_plan(text).text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("casual", "unknown mask plan 'casual': did you mean 'causal'"),
        ("Causal", "unknown mask plan 'Causal': did you mean 'causal'"),
        ("bidirectional:2+bakward", r"in the plan 'bidirectional:2\+bakward': 'bakward': did you mean 'backward'"),
        ("[causal,bacward]", r"in the plan '\[causal,bacward\]': 'bacward': did you mean 'backward'"),
        ("backward:x", "the mask plan 'backward:x' has the part 'backward:x'; plans look like"),
        ("backward:-1", "has the part 'backward:-1'"),
        ("backward:2:3", "has the part 'backward:2:3'"),
        ("", "the mask plan '' has the part ''"),
        ("backward:2+", r"the mask plan 'backward:2\+' has the part ''"),
        ("backward@0-2", "has the window 0-2, which must run upwards from block 1"),
        ("backward@5-2", "has the window 5-2, which must run upwards"),
        ("backward@1-3+causal@3-4", "has windows that overlap at block 3"),
        ("backward@1-3+causal:2", "mixes windows 'KIND@A-B' with counts from the top"),
        ("backward+causal:2", "has a segment without a count before its last one"),
        ("extnd/backward:2", "unknown architecture 'extnd': did you mean 'extend'.* in the plan 'extnd/backward:2'"),
        ("extend/backward", "'extend/backward' must give the architecture 'extend' one kind with a count, as backward"),
        ("extend/backward@1-2", "must give the architecture 'extend' one kind with a count"),
        ("extra/[causal]", "must give the architecture 'extra' one kind with a count"),
        ("extra/backward:1+causal:1", "must give the architecture 'extra' one kind with a count"),
        ("extra/bakward:1", "'bakward': did you mean 'backward'"),
        (
            "causal~skip",
            "the mask plan 'causal~skip' ends in 'skip', which is no skip, tp or kv; write ~skip3@10, ~tp1-6",
        ),
        ("causal~skip0@2", "ends in 'skip0@2', which is no skip, tp or kv"),
        ("causal~", "ends in '', which is no skip, tp or kv"),
    ],
)
def test_a_text_that_is_no_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        parse_plan(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("backward:4", "the mask plan 'backward:4' needs 4 blocks, but the decoder has 3; give at most 3"),
        ("backward:2+bidirectional:2", "needs 4 blocks, but the decoder has 3"),
        ("backward@2-4", "reaches up to block 4, but the decoder has 3"),
        ("[causal,backward]", "names 2 blocks, but the decoder has 3"),
        ("[causal,causal,causal,causal]", "names 4 blocks, but the decoder has 3"),
        ("extend/backward:4", "converts 4 blocks, but the decoder has 3"),
        ("causal~skip3@3", "begins its skip after block 3, but the decoder has 3; give at most 2"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        parse_plan(text).kinds(3)
