"""What a call for a worker at a server is given: the desk's and the shards' memory, locks, the trace, the optimizer.

    lease of the next batch ◀─── desk                    all of it in shared memory, as Python uses it:
    gradient in padded memory                            one worker may be in generated code
    push: newest version ─step─▶ next version ─▶ pull    while another makes its updates in Python

Everything here is addresses and numbers; `printers/serve.hpp` has the same fields. What the addresses point to is kept
by the caller.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from functools import cache

import numpy as np
import torch
from torch import Tensor

from paceline.kernels.build import library
from paceline.kernels.compiled import CompiledCall
from paceline.kernels.fused import TEAM
from paceline.kernels.one_pass import FLAGS, ServedRule, ServedStep, step_text, use_torchs_roots
from paceline.kernels.printers.cpp import part
from paceline.kernels.weights import REALS

SPAN = np.dtype(
    [
        ("value", "<i8"),
        ("state", "<i8", 2),
        *((name, "<i8") for name in ("count", "memory", "present", "place", "rows", "width", "stride", "group")),
    ]
)
OPEN = -1  # the bound of a gate that is always open


class BatchStage(IntEnum):
    """What a worker does next with the batch in its hand."""

    COMPUTE = 0
    PUSH = 1
    FINISH = 2


class Integers(ctypes.Structure):
    """Integers that exist twice, and the one that says which copy is valid."""

    _fields_ = [("flip", ctypes.c_void_p), ("copies", ctypes.c_void_p * 2), ("count", ctypes.c_int64)]


class ShardInMemory(ctypes.Structure):
    """A shard: its integers, the memory of its versions, and the spans of its parameters."""

    _fields_ = [
        ("integers", Integers),
        ("versions", ctypes.c_void_p),
        ("spans", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("parameters", "lock", "bytes", "slots", "base", "own")),
    ]

    @property
    def made(self) -> int:
        """How many versions there are so far, or more by now."""
        integers = self.integers
        flip = ctypes.c_int64.from_address(integers.flip).value
        return ctypes.c_int64.from_address(integers.copies[flip]).value


class DeskInMemory(ctypes.Structure):
    """The desk: its integers, and where they say what."""

    _fields_ = [
        ("integers", Integers),
        *((name, ctypes.c_int64) for name in ("lock", "batches", "lease", "gate", "bound")),
    ]


class Served(ctypes.Structure):
    """All that a call for a worker at a server reads and writes besides its call."""

    _fields_ = [
        ("shards", ctypes.c_void_p),
        ("desk", DeskInMemory),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "doorbells",
                "sent",
                "taken",
                "rows",
                "cancelled",
                "settings",
                "clipping",
                "run",
            )
        ),
        *(
            (name, ctypes.c_int64)
            for name in (
                "count",
                "worker",
                "workers",
                "locks",
                "room",
                "spin",
                "shortest",
                "longest",
                "deadline",
                "finite",
                "snapshots",
                "checkpoints",
                "first",
                "last",
                "until",
                "pace",
                "since",
                "told",
                "batch",
                "stage",
                "waited",
                "pushed",
                "made",
                "ended",
                "lock",
            )
        ),
        ("loss", ctypes.c_double),
        ("scale", ctypes.c_double),
    ]


def text(dtype: torch.dtype, step: ServedStep, rule: ServedRule, in_place: bool) -> str:
    """The C++ of a call at a server; the network's own code is called by its address.

    in_place    whether all workers write into one memory without versions (Hogwild)
    """
    return "\n".join(
        [
            f"#define REAL {REALS[dtype]}\n#define LANES 1\n#define REPLICAS 0\n#define TEAM {8 * TEAM}",
            f"#define DOUBLE {int(dtype is torch.float64)}\n#define IN_PLACE {int(in_place)}",
            part("prelude"),
            part("call"),
            step_text(step, rule),
            part("serve"),
        ]
    )


@cache
def program(
    dtype: torch.dtype, step: ServedStep, rule: ServedRule, in_place: bool
) -> Callable[[CompiledCall, Served], None]:
    """Return the function that makes its updates; compiled, or found in the cache."""
    functions = library(text(dtype, step, rule, in_place), FLAGS)[0]
    use_torchs_roots(functions, dtype)
    run = functions.paceline_serve
    run.argtypes, run.restype = [ctypes.c_void_p] * 2, None
    return lambda call, served: run(ctypes.byref(call), ctypes.byref(served))


def address_of(function: Callable[..., object]) -> int:
    """Return the address of a function of a library."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def addresses(tensors: list[Tensor]) -> np.ndarray:
    """Return the addresses of tensors, in memory of their own."""
    return np.array([tensor.data_ptr() for tensor in tensors], np.int64)
