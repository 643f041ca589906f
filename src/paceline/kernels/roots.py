"""PyTorch's square root, which generated code calls where a step has to have PyTorch's bits.

Where PyTorch was built with Intel's vector mathematics, its root of float32 and float64 is a function of that library.
On some processors this differs from the correctly rounded root in the last bit.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

NAMES = {torch.float32: "vmsSqrt", torch.float64: "vmdSqrt"}


@cache
def address_of_root(dtype: torch.dtype) -> int:
    """Return the address of the function; 0 where PyTorch has none, and rounds correctly."""
    for file in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.so*"):
        if (function := getattr(ctypes.CDLL(str(file)), NAMES[dtype], None)) is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def use_torchs_roots(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Let a library with the text of a step take roots as PyTorch does."""
    library.paceline_roots.argtypes, library.paceline_roots.restype = [ctypes.c_void_p], None
    library.paceline_roots(address_of_root(dtype) or None)
