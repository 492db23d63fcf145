"""Copies beside the computation: nothing is read before it has arrived, no buffer is written before it is free."""

import pytest
import torch

from extract.poolings.memory import CPU, LANES, HostCopies, Lane, send
from extract.poolings.poolings import index_rows
from tests.extract.pretended import Placed
from tests.extract.tiny_decoders import encode_batch, make_decoder
from tests.extract.waits import LateLane

LAZY = torch.device("lazy:0")


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> LateLane:
    """Give the pretended device a lane of its own."""
    made = LateLane(LAZY)
    monkeypatch.setitem(LANES, "lazy", LateLane)
    monkeypatch.setattr(HostCopies, "_lane", lambda *_: made)
    return made


def on_device(*values: float, dtype: torch.dtype = torch.float32) -> Placed:
    """Make a tensor of the pretended device."""
    return Placed(torch.tensor(values, dtype=dtype), LAZY)


def test_nothing_is_read_before_it_has_arrived(lane: LateLane) -> None:
    copies = HostCopies()
    first = copies.start(on_device(1.0, 2.0), on_device(3, dtype=torch.int64))
    second = copies.start(on_device(4.0, 5.0), on_device(6, dtype=torch.int64))
    assert lane.events == ["copy 0", "copy 1"], "a copy was waited for where it was started"
    with first as (latents, report):
        assert lane.events[2:] == ["wait 0"]
        assert (latents.tolist(), report.tolist()) == ([1.0, 2.0], [3])
    with second as (latents, report):
        assert (latents.tolist(), report.tolist()) == ([4.0, 5.0], [6])


def test_a_buffer_is_used_again_once_it_was_consumed_and_not_before(lane: LateLane) -> None:
    copies = HostCopies()
    first = copies.start(on_device(1.0))
    with first as (latents,):
        with copies.start(on_device(2.0)) as (other,):
            assert (latents.tolist(), other.tolist()) == ([1.0], [2.0])
        assert len(lane.buffers) == 2
    for value in range(20):
        with copies.start(on_device(float(value))) as (latents,):
            assert latents.tolist() == [value]
    assert len(lane.buffers) == 2


def test_a_larger_batch_gets_a_larger_buffer(lane: LateLane) -> None:
    copies = HostCopies()
    for n in (3, 100, 90, 100, 7):
        wanted = torch.arange(n, dtype=torch.bfloat16).reshape(1, n)
        with copies.start(Placed(wanted, LAZY)) as (latents,):
            assert torch.equal(latents, wanted)
    assert [len(buffer) for buffer in lane.buffers] == [64, 256]


def test_a_buffer_is_free_again_after_an_error(lane: LateLane) -> None:
    copies = HostCopies()
    with pytest.raises(ValueError, match="spoilt"), copies.start(on_device(1.0)):
        raise ValueError("spoilt")
    with copies.start(on_device(2.0)) as (latents,):
        assert latents.tolist() == [2.0]
    assert len(lane.buffers) == 1


def test_on_the_cpu_nothing_is_copied() -> None:
    latents = torch.ones(2, 3)
    with HostCopies().start(latents) as (found,):
        assert found is latents
    assert send(latents, CPU) is latents


def test_a_device_without_a_lane_is_copied_plainly() -> None:
    with HostCopies().start(on_device(1.0, 2.0)) as (found,):
        assert type(found) is torch.Tensor
        assert found.tolist() == [1.0, 2.0]


def test_lanes_do_what_is_asked_of_them() -> None:
    assert all(issubclass(made, Lane) for made in (*LANES.values(), LateLane))


@pytest.mark.gpu
def test_a_gpu_copies_what_it_is_given_in_turn() -> None:
    copies, drawn = HostCopies(), torch.Generator("cuda").manual_seed(0)
    sides = [torch.randn(64, 1 << 12, generator=drawn, device="cuda") for _ in range(6)]
    under_way = [copies.start(side, side[:1].long()) for side in sides]
    for side, copy in zip(sides, under_way, strict=True):
        with copy as (found, whole):
            assert found.is_pinned()
            assert torch.equal(found, side.cpu())
            assert torch.equal(whole, side[:1].long().cpu())


@pytest.mark.gpu
def test_inputs_reach_a_gpu_whole() -> None:
    batch = encode_batch(make_decoder(), ["Ice.", "One two three four."])
    found, wanted = (index_rows(batch, device) for device in (torch.device("cuda"), CPU))
    assert found.is_full == wanted.is_full
    assert torch.equal(found.weights.cpu(), wanted.weights)
    assert torch.equal(found.last.cpu(), wanted.last)
