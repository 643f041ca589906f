"""The C++ of this folder, compiled once for this machine."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.resources import files

from torch import Tensor

from paceline.kernels.build import library


@cache
def native() -> ctypes.CDLL:
    """All texts as one library; NoCompiler where there is none."""
    folder = files("paceline.kernels.library") / "text"
    names = ("vectors.h", "convolution.cpp", "fixed.cpp", "recurrent.cpp")
    functions, _, _ = library("\n".join((folder / name).read_text(encoding="utf-8") for name in names))
    for name in ("direct_workspace", "unrolled_workspace", "winograd2_workspace", "winograd4_workspace", "lanes"):
        getattr(functions, name).restype = ctypes.c_long
    return functions


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def long(number: int) -> ctypes.c_long:
    return ctypes.c_long(number)
