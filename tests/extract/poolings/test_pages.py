"""Tests of memory that goes back to the system."""

import ctypes
import gc
import mmap
import os
from pathlib import Path

import pytest
import torch

from extract.poolings import memory as pages
from extract.poolings.memory import empty_in_pages, keep_blocks, trim_heap

STATUS = Path("/proc/self/statm")
needs_linux = pytest.mark.skipif(not STATUS.exists(), reason="the system does not tell a process what it holds")


def resident_bytes() -> int:
    """Read what this process holds in memory."""
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (1,), (4, 0, 3)])
def test_a_tensor_in_pages_holds_what_is_put_in(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = torch.randn(shape).to(dtype)
    tensor = empty_in_pages(shape, dtype).copy_(values)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (values.shape, dtype, True)
    assert torch.equal(tensor, values)


def test_a_view_keeps_the_pages() -> None:
    last = empty_in_pages((1000, 1000), torch.float32).fill_(3.0)[-1]
    gc.collect()
    others = [empty_in_pages((1000, 1000), torch.float32).fill_(4.0) for _ in range(3)]
    assert float(last.sum()) == 3000.0
    assert len(others) == 3


@needs_linux
def test_the_pages_go_back_with_the_tensor_though_a_later_one_stays() -> None:
    before = resident_bytes()
    tensors = [empty_in_pages((1 << 20,), torch.float32).fill_(1.0) for _ in range(16)]
    held = resident_bytes()
    kept = tensors.pop()
    tensors.clear()
    assert held - before > 15 << 22
    assert resident_bytes() - before < 4 << 22
    assert float(kept[0]) == 1.0


@needs_linux
@pytest.mark.skipif(pages._find_in_c("mallopt") is None, reason="the C library has no mallopt")
def test_freed_blocks_of_any_size_are_kept_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SHORT_SECONDS", 0.0)
    size, before = 1 << 28, resident_bytes()

    def use() -> int:
        torch.empty(size, dtype=torch.uint8).fill_(1)
        return resident_bytes() - before

    assert use() < size // 4
    with keep_blocks():
        with keep_blocks():
            pass
        assert use() > size // 2
    assert resident_bytes() - before < size // 4
    assert use() < size // 4


def test_trimming_asks_the_c_library_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(pages, "_find_in_c", {"malloc_trim": asked.append}.get)
    trim_heap()
    assert asked == [0]
    monkeypatch.setattr(pages, "_find_in_c", {}.get)
    trim_heap()
    assert asked == [0]


def test_without_private_pages_or_a_c_library_plain_tensors_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: None) -> None:
        raise TypeError("as on Windows")

    monkeypatch.delattr(mmap, "MAP_PRIVATE")
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert pages._find_in_c.__wrapped__("mallopt") is None
    monkeypatch.setattr(pages, "_find_in_c", {}.get)
    with keep_blocks():
        pass
    assert empty_in_pages((2, 3), torch.float32).fill_(1.0).sum() == 6
