"""Memory that goes back to the system, so that a long extraction takes no more than a short one."""

import ctypes
import math
import mmap
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")


def empty_in_pages(shape: Sequence[int], dtype: torch.dtype, *, device: torch.device = CPU) -> Tensor:
    """Make a tensor, to be filled, whose memory goes back to the system with it.

    Latents of a batch outlive the activations computed beside them. On the heap the two lie mixed, and what is free
    between them is in pieces that fit no later batch, so that a long extraction would grow.

    Args:
        shape: Any shape.
        dtype: Any dtype.
        device: Where it shall be; devices other than the CPU look after their memory themselves.

    Returns:
        The tensor.
    """
    n = math.prod(shape)
    if device.type != "cpu" or n == 0:
        return torch.empty(*shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, n * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(*shape)  # which holds the pages until the last view is gone


def trim_heap() -> None:
    """Give free pages of the heap back to the system, where its C library can (glibc); takes milliseconds."""
    trim = _find_trim()
    if trim is not None:
        trim(0)


@cache
def _find_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
