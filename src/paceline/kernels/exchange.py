"""What a call of several workers is given: whom it exchanges vectors with, by which steps, and how it waits.

    gradient in padded memory ──weighted──▶ own vector ──what is offered──▶ this worker's shared vector
                              ◀──the sum───            ◀──what is taken──── shared vectors of its peers

Everything here is addresses and numbers; `printers/exchange.hpp` has the same fields. What the addresses point to is
kept by the caller.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import numpy as np
from torch import Tensor

from paceline.kernels.build import CannotCompile, NoCompiler, library
from paceline.kernels.printers.cpp import part

PLACE = np.dtype([(name, "<i8") for name in ("to", "from", "rows", "width", "stride")])
MOVE = np.dtype([(name, "<i8") for name in ("to", "first", "last", "from", "start", "stop", "add", "at")])
NO_WORKER, ITSELF = -1, -2  # in the place of a worker in a move
#: A chunk of this worker, and how many pairs of partial sums are added up once it is there.
PIECE = np.dtype([("samples", "<i8"), ("chunk", "<i8"), ("joins", "<i8"), ("weight", "<f8")])
PEER = np.dtype(
    [
        ("offered", "<i8"),
        ("awaited", "<i8"),
        ("doorbell", "<i8"),
        ("vectors", "<i8", 2),
        ("offers", "<i8"),
        ("taken", "<i8"),
    ]
)


class Ended(IntEnum):
    """Why a call ended where it did."""

    MADE = 0
    NOT_FINITE = 1
    CANCELLED = 2
    TOO_LATE = 3
    UNTOLD = 4


class Waits(NamedTuple):
    """How a worker waits for its peers: addresses of integers, and nanoseconds."""

    doorbell: int
    cancelled: int
    aborted: int
    spin: int
    nap: int
    deadline: int


class GradientExchange(ctypes.Structure):
    """What workers exchange in every update of a call: gradients that they sum, or weights that they mix."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("places", "moves", "pieces", "peers", "own")),
        ("vectors", ctypes.c_void_p * 2),
        *((name, ctypes.c_void_p) for name in ("doorbell", "cancelled", "aborted")),
        *(
            (name, ctypes.c_int64)
            for name in (
                "parameters",
                "steps",
                "chunks",
                "stride",
                "tail",
                "number",
                "spin",
                "nap",
                "deadline",
                "finite",
                "ended",
                "whom",
            )
        ),
        ("share", ctypes.c_double),
    ]

    @staticmethod
    def of(
        places: np.ndarray,
        moves: np.ndarray,
        peers: np.ndarray,
        local: Tensor,
        vectors: Sequence[Tensor],
        stride: int,
        tail: int,
        waits: Waits,
        share: float,
    ) -> GradientExchange:
        """Return an exchange by these tables in this memory, all of which the caller keeps; see `exchange.hpp`."""
        exchange = GradientExchange(
            places=places.ctypes.data,
            moves=moves.ctypes.data,
            peers=peers.ctypes.data,
            parameters=len(places),
            steps=len(moves),
            own=local.data_ptr(),
            stride=stride,
            tail=tail,
            share=share,
            **waits._asdict(),
        )
        exchange.vectors[:] = [vector.data_ptr() for vector in vectors]
        return exchange


def places_of(gradients: Mapping[str, Tensor], memory: Tensor, starts: Mapping[str, int]) -> np.ndarray | None:
    """Return where each parameter's gradient lies in `memory` and in a vector; None if one has no gradient there."""
    if not starts.keys() <= gradients.keys():
        return None
    rows = []
    for name, start in starts.items():
        view = gradients[name]
        contiguous = view.is_contiguous()
        width = view.numel() if contiguous else view.shape[-1]
        place = (view.data_ptr() - memory.data_ptr()) // view.element_size()
        rows.append((start, place, view.numel() // width, width, width if contiguous else view.stride(-2)))
    return np.array(rows, PLACE)


# Copies into memory that other processes read, by stores that pass the processor's caches.
#
# `printers/stream.hpp` says why; generated code has the same loop. Without a compiler the copy is the C library's.

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
