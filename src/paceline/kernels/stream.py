"""Copies into memory that other processes read, by stores that pass the processor's caches.

`printers/stream.hpp` says why; generated code has the same loop. Without a compiler the copy is the C library's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from torch import Tensor

from paceline.kernels.build import CannotCompile, NoCompiler, library
from paceline.kernels.printers.cpp import part

TEXT = """
extern "C" void paceline_stream(R* to, const R* from, int64_t bytes) { stream(to, from, bytes); }
"""


def stream_tensor(to: Tensor, source: Tensor) -> None:
    """Copy the bytes of a tensor without gaps to those of another one."""
    stream_copy()(to.data_ptr(), source.data_ptr(), source.nbytes)


@cache
def stream_copy() -> Callable[[int, int, int], object]:
    """Return a copy: addresses of destination and source, and how many bytes."""
    try:
        functions = library(f"#include <cstdint>\n#include <cstring>\ntypedef char R;\n{part('stream')}{TEXT}")[0]
    except (NoCompiler, CannotCompile):
        return ctypes.memmove
    copy = functions.paceline_stream
    copy.argtypes, copy.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return copy
