"""Gradients whose norm is too large, scaled by generated code, where they lie, to PyTorch's bits.

In which order PyTorch sums squares depends on how it was compiled and on the processor. There are a dozen ways;
`gradients.native_clip` finds the one that has PyTorch's bits here.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import torch
from torch import Tensor

from paceline.kernels.build import library
from paceline.kernels.one_pass import FLAGS, HEAD
from paceline.kernels.printers.cpp import part
from paceline.kernels.weights import REALS


class Clipping(ctypes.Structure):
    """How gradients are scaled; `printers/clip.hpp` has the same fields."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("scale", "clip", "places", "norms")),
        ("count", ctypes.c_int64),
        ("way", ctypes.c_int64),
        ("limit", ctypes.c_double),
        ("norm", ctypes.c_double),
    ]

    @staticmethod
    def of(places: np.ndarray, dtype: torch.dtype, limit: float, way: int) -> Clipping:
        """Return the clipping of gradients at these places of padded memory."""
        functions, norms = _functions(dtype), torch.zeros(len(places), dtype=dtype)
        clipping = Clipping(
            *(ctypes.cast(f, ctypes.c_void_p) for f in (functions.paceline_scale, functions.paceline_clip)),
            places.ctypes.data,
            norms.data_ptr(),
            len(places),
            way,
            limit,
        )
        clipping.alive = places, norms  # the structure has only their addresses
        return clipping

    def apply(self, gradients: Tensor) -> None:
        """Scale the gradients in this memory."""
        _functions(gradients.dtype).paceline_clip(ctypes.byref(self), ctypes.c_void_p(gradients.data_ptr()))


def ways(dtype: torch.dtype) -> int:
    """The number of orders in which squares may be summed."""
    return ctypes.c_int64.in_dll(_functions(dtype), "paceline_ways").value


def norm(way: int, x: Tensor) -> float:
    """Return the norm of a vector, its squares summed in this way."""
    run = _functions(x.dtype).paceline_norm
    run.argtypes, run.restype = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64], ctypes.c_double
    return float(run(way, x.data_ptr(), x.numel()))


@cache
def _functions(dtype: torch.dtype) -> ctypes.CDLL:
    return library(f"{HEAD}\ntypedef {REALS[dtype]} R;\n{part('rows')}{part('clip')}", FLAGS)[0]
