"""Objectives: what is hidden, what is predicted, and from which states."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from extract.inputs.joined_text import CONTEXT
from extract.masks.mask_plan import parse_plan
from extract.wiring.plan_wiring import forward_inputs, plain_batch, plan_in_force, states_with_gradients
from probes.adaptation.adapt_config import MntpOptions, MsgOptions
from probes.adaptation.objectives import (
    MarkedRow,
    MaskedTokens,
    MissingSpans,
    find_equal_texts,
    gather_rows,
    info_nce,
    mark_row,
)
from tests.extract.tiny_decoders import make_decoder

MASK = 3


def ids(n: int, *, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(4, 300, n)


def row(n: int, *, has_bos: bool = False) -> MarkedRow:
    return MarkedRow(ids(n), (np.arange(n) == 0) & has_bos)


def masked(name: str = "mntp", **options: float) -> MaskedTokens:
    return MaskedTokens(name, MntpOptions(**options), MASK, 300)  # type: ignore[arg-type]


def test_a_fifth_is_predicted_and_eight_tenths_of_it_masked() -> None:
    one = row(10_000)
    masked().mark(one, np.random.default_rng(0))
    columns, reads = one.targets["mntp"]
    assert len(columns) == 2000
    assert (reads == columns - 1).all()
    shown = one.shown[columns]
    assert np.mean(shown == MASK) == pytest.approx(0.8, abs=0.03)
    assert np.mean((shown != MASK) & (shown != one.ids[columns])) == pytest.approx(0.1, abs=0.02)
    rest = np.setdiff1d(np.arange(10_000), columns)
    assert (one.shown[rest] == one.ids[rest]).all()


def test_mtp_reads_at_the_token_itself() -> None:
    one = row(50)
    masked("mtp").mark(one, np.random.default_rng(0))
    columns, reads = one.targets["mtp"]
    assert (reads == columns).all()


@pytest.mark.parametrize("has_bos", [False, True])
def test_the_first_token_is_never_predicted_and_bos_never_hidden(has_bos: bool) -> None:
    for seed in range(50):
        one = row(8, has_bos=has_bos)
        masked(rate=1.0, masked=1.0, random=0.0).mark(one, np.random.default_rng(seed))
        columns, _ = one.targets["mntp"]
        assert columns.tolist() == list(range(1, 8))
        assert one.shown[0] == one.ids[0]


@pytest.mark.parametrize("name", ["mntp", "mtp", "msg"])
def test_special_tokens_inside_a_text_are_neither_hidden_nor_predicted(name: str) -> None:
    texts = ids(40)
    texts[[0, 5, 6, 20, 39]] = [1, 2, 7, 2, 7]
    objective = (
        MissingSpans(MsgOptions(all_share=1.0)) if name == "msg" else masked(name, rate=1.0, masked=1.0, random=0.0)
    )
    one = mark_row(texts, [objective], (0,), special_ids=(1, 2, 7))
    columns, reads = one.targets[name]
    assert columns.tolist() == [column for column in range(40) if column not in (0, 5, 6, 20, 39)]
    assert (reads == columns - (name != "mtp")).all()
    assert (one.shown[[0, 5, 6, 20, 39]] == [1, 2, 7, 2, 7]).all()


def test_the_state_that_predicts_a_token_has_seen_it_only_where_it_stays_as_it_is() -> None:
    """Of the tokens that are predicted, those replaced (eight tenths by the mask, one by random ones) are unseen."""
    decoder = make_decoder()
    one = mark_row(ids(40), [masked(rate=0.5)], (0,))
    columns, reads = one.targets["mntp"]
    is_seen = []
    with plan_in_force(decoder, parse_plan("bidirectional")), torch.no_grad():
        for column, read in zip(columns, reads, strict=True):
            changed = ids(40)
            changed[column] = changed[column] - 1
            other = mark_row(changed, [masked(rate=0.5)], (0,))
            rows = [plain_batch(torch.from_numpy(marked.shown)[None]) for marked in (one, other)]
            first, second = (states_with_gradients(decoder, batch)[4][0, read] for batch in rows)
            is_seen.append(not torch.equal(first, second))
    shown, true = one.shown[columns], one.ids[columns]
    assert (np.array(is_seen) == (shown == true)).all()
    assert {"as it is", "mask", "random"} == {
        "as it is" if a == b else "mask" if a == MASK else "random" for a, b in zip(shown, true, strict=True)
    }


def test_what_is_hidden_of_a_row_depends_on_its_seed_alone() -> None:
    alone = mark_row(ids(40), [masked()], (7, 3))
    beside = mark_row(ids(40), [masked("mtp"), masked()], (7, 3))
    other = mark_row(ids(40), [masked()], (7, 4))
    assert (alone.targets["mntp"][0] == beside.targets["mntp"][0]).all()
    assert not np.array_equal(alone.targets["mntp"][0], other.targets["mntp"][0])
    assert not np.array_equal(beside.targets["mtp"][0], beside.targets["mntp"][0])


def spans_of(one: MarkedRow) -> list[NDArray[np.int64]]:
    return [np.flatnonzero(one.spans == number) for number in np.unique(one.spans[one.spans != CONTEXT])]


def test_spans_have_their_lengths_and_a_context_before_each() -> None:
    lengths, counts, n_full = set(), set(), 0
    for seed in range(400):
        one = row(64)
        MissingSpans(MsgOptions(longest=16)).mark(one, np.random.default_rng(seed))
        columns, reads = one.targets["msg"]
        assert (reads == columns - 1).all()
        assert one.spans[0] == CONTEXT
        assert (one.shown == one.ids).all()
        if (one.spans[1:] == 0).all():
            n_full += 1
            continue
        spans = spans_of(one)
        counts.add(len(spans))
        lengths |= {len(span) for span in spans}
        assert all((np.diff(span) == 1).all() and one.spans[span[0] - 1] == CONTEXT for span in spans)
        assert len(columns) <= 32
    assert counts == {1, 2}
    assert (min(lengths), max(lengths)) == (4, 16)
    assert n_full == pytest.approx(40, abs=20)


def test_a_row_too_short_for_a_span_has_none() -> None:
    one = row(6)
    MissingSpans(MsgOptions(all_share=0.0)).mark(one, np.random.default_rng(0))
    assert len(one.targets["msg"][0]) == 0


def test_masks_leave_spans_alone_and_read_context_alone() -> None:
    for seed in range(100):
        one = row(64)
        generator = np.random.default_rng(seed)
        MissingSpans(MsgOptions(longest=16)).mark(one, generator)
        masked(rate=1.0).mark(one, generator)
        columns, reads = one.targets["mntp"]
        assert (one.spans[columns] == CONTEXT).all()
        assert (one.spans[reads] == CONTEXT).all()
        in_span = one.spans != CONTEXT
        assert (one.shown[in_span] == one.ids[in_span]).all()


def test_no_gradient_flows_from_a_span_token_to_its_context() -> None:
    decoder = make_decoder()
    spanned = MissingSpans(MsgOptions(all_share=0.0, longest=8))
    marked = gather_rows([mark_row(ids(24), [spanned], (0,))])
    spans = marked.batch.spans
    assert spans is not None
    in_span = spans[0] != CONTEXT
    assert 0 < int(in_span.sum()) < 24
    embedded: list[torch.Tensor] = []

    def keep(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    with plan_in_force(decoder, parse_plan("hybrid")):
        handle = decoder.module.get_input_embeddings().register_forward_hook(keep)
        states = states_with_gradients(decoder, marked.batch)[len(decoder.blocks) + 1][0]
        handle.remove()
        [of_context] = torch.autograd.grad(states[~in_span].pow(2).sum(), embedded[-1], retain_graph=True)
        [of_spans] = torch.autograd.grad(states[in_span].pow(2).sum(), embedded[-1])
    assert (of_context[0][in_span] == 0).all()
    assert (of_context[0][~in_span] != 0).any()
    assert (of_spans[0][~in_span] != 0).any(dim=1).all()  # a span reads the whole context, on both sides
    assert forward_inputs(decoder, marked.batch)["input_ids"].shape == (1, 24)


def test_rows_of_a_batch_keep_their_places() -> None:
    rows = [ids(10), ids(6, seed=1)]
    marked = gather_rows([mark_row(row, [masked(rate=1.0)], (0,)) for row in rows])
    tokens, places = marked.targets["mntp"]
    assert tokens.tolist() == [*rows[0][1:], *rows[1][1:]]
    assert places.tolist() == [*range(9), *range(10, 15)]
    assert int(marked.batch.n_tokens.sum()) == 16


def test_info_nce_is_what_a_hand_computes() -> None:
    anchors = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    positives = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    negatives = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    # cosines: of the first 0.6 and 0 with the positives, 1 and -1 with the negatives; of the second 0.8, 1, 0, 0
    first = -0.6 / 0.5 + np.log(np.exp([1.2, 0.0]).sum())
    second = -1.0 / 0.5 + np.log(np.exp([1.6, 2.0]).sum())
    assert float(info_nce(anchors, positives, temperature=0.5)) == pytest.approx((first + second) / 2, abs=1e-6)
    first = -0.6 / 0.5 + np.log(np.exp([1.2, 0.0, 2.0, -2.0]).sum())
    second = -1.0 / 0.5 + np.log(np.exp([1.6, 2.0, 0.0, 0.0]).sum())
    with_negatives = info_nce(anchors, positives, negatives, temperature=0.5)
    assert float(with_negatives) == pytest.approx((first + second) / 2, abs=1e-6)


def test_a_candidate_that_is_left_out_adds_nothing() -> None:
    anchors = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    positives = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    negatives = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    left_out = torch.tensor([[False, True, True, False], [True, False, True, True]])
    first = -0.6 / 0.5 + np.log(np.exp([1.2, -2.0]).sum())
    loss = info_nce(anchors, positives, negatives, temperature=0.5, is_left_out=left_out)
    assert float(loss.detach()) == pytest.approx(first / 2, abs=1e-6)  # the second has its own positive alone
    [gradient] = torch.autograd.grad(loss, anchors)
    assert bool(gradient.isfinite().all())
    assert (gradient[1] == 0).all()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("a", "p"), ("b", "q"), ("c", "r")], ["...", "...", "..."]),
        ([("a", "p"), ("b", "p"), ("c", "r")], [".x.", "x..", "..."]),
        ([("a", "p"), ("a", "q"), ("c", "r")], [".x.", "x..", "..."]),
        ([("a", "p"), ("a", "q"), ("c", "q")], [".xx", "x.x", ".x."]),
        ([("a", "p"), ("p", "a"), ("c", "r")], [".x.", "x..", "..."]),
        ([("a", "p", "p"), ("b", "q", "s"), ("c", "r", "q")], ["...x..", ".....x", "......"]),
        ([("a", "p", "q"), ("a", "q", "a"), ("c", "r", "s")], [".x.xx.", "x..xx.", "......"]),
    ],
    ids=["all differ", "a positive", "an anchor", "both", "turned round", "hard negatives", "of an anchor twice"],
)
def test_equal_texts_are_no_negatives(rows: list[tuple[str, ...]], expected: list[str]) -> None:
    codes = np.array([[ord(text) for text in column] for column in zip(*rows, strict=True)])
    is_left_out = find_equal_texts(codes)
    assert ["".join(np.where(row, "x", ".")) for row in is_left_out] == expected


def test_info_nce_is_of_float32_whatever_computes_the_states() -> None:
    generator = torch.Generator().manual_seed(0)
    anchors, positives = (torch.randn(16, 64, generator=generator) for _ in range(2))
    expected = info_nce(anchors, positives, temperature=0.05)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(info_nce(anchors, positives, temperature=0.05), expected)
