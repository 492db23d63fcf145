"""Memory that goes back to the system, so that a long extraction takes no more than a short one.

Private anonymous pages and `malloc_trim` are POSIX and glibc; elsewhere (Windows, musl, macOS for the latter) plain
tensors serve and nothing is trimmed. See docs/decisions/memory-pages.md.
"""

import ctypes
import math
import mmap
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")
LARGEST_KEPT = (32 << 20) - (1 << 14)
"""Bytes of the largest block that glibc can be taught to keep, short of its own head."""


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


def keep_blocks() -> None:
    """Teach the C library to keep freed blocks of up to 32 MiB for the next tensors, where it learns sizes (glibc).

    Else every intermediate result of a network is fetched from the system and handed back, page by page.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8)  # what it frees, it keeps from then on


def trim_heap() -> None:
    """Hand free pages of the heap back to the system if the C library can (glibc); takes milliseconds."""
    trim = _find_trim()
    if trim is not None:
        trim(0)


@cache
def _find_trim() -> Any:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # Windows has no library of the process itself
        return None
