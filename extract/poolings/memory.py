"""Memory that returns to the system, so that a long extraction takes no more than a short one, and copies to devices.

Private anonymous pages are POSIX, `malloc_trim` and `mallopt` glibc's; elsewhere (Windows, and for the latter two musl
and macOS) plain tensors serve, and nothing is trimmed or kept. See docs/decisions/memory-pages.md.
"""

import ctypes
import math
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import accumulate
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

CPU = torch.device("cpu")
TRIM_ABOVE, PAGES_ABOVE, MOST_WITH_PAGES = -1, -3, -4
"""Options of glibc's `mallopt`: bytes of free memory, and of a block, above which pages go back to the system once they
are free; how many blocks may have pages of their own."""
LARGEST_BLOCK = 32 << 20
"""Bytes up to which glibc learns by itself to keep blocks."""
SHORT_SECONDS = 1.0
"""Of a block after which the heap is not trimmed: that takes up to a tenth of a second."""
_KEEPING: list[None] = []
"""One entry for every `keep_blocks` that has not ended, in any thread."""
ALIGNMENT = 64
"""Bytes that the parts of a buffer are aligned to."""
Pairs = Sequence[tuple[Tensor, Tensor]]


def empty_in_pages(shape: Sequence[int], dtype: torch.dtype, *, device: torch.device = CPU) -> Tensor:
    """Make an uninitialised tensor whose memory goes back to the system with it.

    Only the CPU needs such pages. Latents of a batch outlive the activations computed beside them. On the heap the two
    would alternate, and the gaps between latents fit no later batch, so a long extraction would grow.
    """
    n = math.prod(shape)
    if device.type != "cpu" or n == 0 or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.empty(*shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, n * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(*shape)  # holds the pages until the last view is gone


@contextmanager
def keep_blocks() -> Iterator[None]:
    """Make glibc keep freed blocks of any size, until the outermost `with` block ends or `trim_heap` is called.

    Every batch makes the same intermediate results, and fetching their pages again can take longer than computing them.
    What is free at the end goes back to the system, unless the block was so short that another may follow at once.
    """
    change = _find_in_c("mallopt")
    if change is None:
        yield
        return
    began = time.monotonic()
    _KEEPING.append(None)
    try:
        change(MOST_WITH_PAGES, 0)
        change(TRIM_ABOVE, -1)  # never
        yield
    finally:
        _KEEPING.pop()
        if not _KEEPING:
            change(MOST_WITH_PAGES, 1 << 16)  # as glibc begins
            change(PAGES_ABOVE, LARGEST_BLOCK)
            change(TRIM_ABOVE, 2 * LARGEST_BLOCK)
            if time.monotonic() - began > SHORT_SECONDS:
                trim_heap()


def trim_heap() -> None:
    """Hand free pages of the heap back to the system if the C library can (glibc); takes milliseconds."""
    trim = _find_in_c("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _find_in_c(name: str) -> Callable[..., object] | None:
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # Windows has no library of the process itself
        return None


@runtime_checkable
class Lane(Protocol):
    """Enqueues copies to one device and from it, so that nothing in the loop over batches waits for them."""

    def __init__(self, device: torch.device) -> None:
        """Make the lane of a device."""

    @staticmethod
    def pin(tensor: Tensor) -> Tensor:
        """Return a tensor of main memory as one that a device reads while the host continues."""

    def allocate(self, n_bytes: int) -> Tensor:
        """Allocate `(n_bytes,)` uint8 in main memory that a device writes while the host continues."""

    def copy(self, pairs: Pairs) -> Callable[[], None]:
        """Enqueue copies of pairs (target, source) behind the device's current work; the result waits for them."""


class CudaLane:
    """Copies of a CUDA device: pinned memory, and a stream of their own for what comes back."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @staticmethod
    def pin(tensor: Tensor) -> Tensor:
        """See `Lane.pin`."""
        return tensor.pin_memory()

    def allocate(self, n_bytes: int) -> Tensor:
        """See `Lane.allocate`."""
        return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, pairs: Pairs) -> Callable[[], None]:
        """See `Lane.copy`."""
        # A thread that waits for it leaves its core to others.
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
                source.record_stream(self.stream)  # its memory is not reused before it has been read
            done.record(self.stream)
        return done.synchronize


LANES: dict[str, type[Lane]] = {"cuda": CudaLane}
"""Device types whose copies run beside the computation."""


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; from main memory, the copy is enqueued and not waited for, where `LANES` allow."""
    lane = LANES.get(device.type)
    if lane is None or tensor.device.type != "cpu":
        return tensor.to(device)
    return lane.pin(tensor).to(device, non_blocking=True)


class HostCopy:
    """Tensors on their way to main memory; `with` waits for them, and at its end their buffer may be overwritten."""

    def __init__(
        self,
        tensors: tuple[Tensor, ...],
        *,
        wait: Callable[[], None] = lambda: None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._tensors, self._wait, self._release = tensors, wait, release

    def __enter__(self) -> tuple[Tensor, ...]:
        self._wait()
        return self._tensors

    def __exit__(self, *_: object) -> None:
        self._tensors = ()
        self._release()


class HostCopies:
    """Copies tensors to main memory, through buffers that are reused.

    There are as many buffers as copies are under way at once, each as large as the largest of them so far, rounded up
    to a power of two. Copies may be started in one thread and used in another; one that is never used costs its buffer.
    """

    def __init__(self) -> None:
        self._lanes: dict[torch.device, Lane] = {}
        self._free: list[Tensor] = []

    def start(self, *tensors: Tensor) -> HostCopy:
        """Start to copy tensors of one device, at least one, and return at once; on the CPU they are not copied."""
        lane = self._lane(tensors[0].device)
        if lane is None:
            return HostCopy(tuple(map(_in_main_memory, tensors)))
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        starts = list(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))
        buffer = self._free.pop() if self._free else None
        if buffer is None or len(buffer) < starts[-1]:
            buffer = lane.allocate(1 << max(starts[-1] - 1, 1).bit_length())
        targets = tuple(
            buffer[start : start + size].view(tensor.dtype).view(tensor.shape)
            for tensor, start, size in zip(tensors, starts[:-1], sizes, strict=True)
        )
        wait = lane.copy(list(zip(targets, tensors, strict=True)))
        return HostCopy(targets, wait=wait, release=partial(self._free.append, buffer))

    def _lane(self, device: torch.device) -> Lane | None:
        if device.type in LANES and device not in self._lanes:
            self._lanes[device] = LANES[device.type](device)
        return self._lanes.get(device)


def _in_main_memory(tensor: Tensor) -> Tensor:
    return tensor if tensor.device.type == "cpu" else empty_in_pages(tensor.shape, tensor.dtype).copy_(tensor)
