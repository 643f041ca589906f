"""How much of its workspace oneDNN's LSTM uses: it asks for three times what its forward writes, and memory that nobody
has written to takes no room.

Which pages are there is asked of the kernel; and since memory that is used again is there from the start, the layer is
run again, and what the run before wrote is given back in between.
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
TRIES = 8  # until the memory that is used again is one that was given back

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def run(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The layer, with a workspace of which only what it writes is there."""
    found, given_back = function(*args, **kwargs), set[int]()
    if found[PLACE] is None:  # no backward will follow
        return found
    for _ in range(TRIES):
        start, size = _pages(found[PLACE])
        if start in given_back or not size:
            break
        _libc.madvise(start, size, DONT_NEED)
        given_back.add(start)
        del found
        found = function(*args, **kwargs)
    return found


def written(workspace: Tensor) -> int:
    """Bytes of it that are there; all, where the kernel does not tell."""
    start, size = _pages(workspace)
    there = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    if _libc.mincore(start, size, there):
        return workspace.nbytes
    return workspace.nbytes - size + mmap.PAGESIZE * sum(page & 1 for page in there)


def _pages(tensor: Tensor) -> tuple[int, int]:
    """The whole pages in it: where they start, and their bytes."""
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    return start, max(0, stop - start)
