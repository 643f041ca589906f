"""Measures the workspace of oneDNN's LSTM: it allocates three times what its forward writes, and pages that are never
written take no memory.

The kernel is asked which pages are resident. Memory that is reused is resident from the start, so the layer is run
again, and the pages of the run before are released in between.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

FORWARD = torch.ops.aten.mkldnn_rnn_layer.default
BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
PLACE = 3  # of the workspace in the forward's results
DONT_NEED = 4
TRIES = 8  # until the allocator reuses memory whose pages were released

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def run(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the layer with a workspace of which only the written pages are resident."""
    outputs, released = function(*args, **kwargs), set[int]()
    if outputs[PLACE] is None:  # no backward will follow
        return outputs
    for _ in range(TRIES):
        start, size = _pages(outputs[PLACE])
        if start in released or not size:
            break
        _libc.madvise(start, size, DONT_NEED)
        released.add(start)
        del outputs
        outputs = function(*args, **kwargs)
    return outputs


def written(workspace: Tensor) -> int:
    """Return the workspace's resident bytes; all of it where the kernel does not say."""
    start, size = _pages(workspace)
    resident = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    if _libc.mincore(start, size, resident):
        return workspace.nbytes
    return workspace.nbytes - size + mmap.PAGESIZE * sum(page & 1 for page in resident)


def _pages(tensor: Tensor) -> tuple[int, int]:
    """Return the start of the whole pages in a tensor, and their bytes."""
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    return start, max(0, stop - start)
