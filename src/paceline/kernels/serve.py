"""What a leg of a worker at a server is given: the desk's and the shards' memory, locks, the trace, the optimizer.

    lease of the next batch ◀─── desk                    all of it in shared memory, as Python uses it:
    gradient in padded memory                            one worker may be in generated code
    push: newest version ─step─▶ next version ─▶ pull    while another makes its updates in Python

Everything here is addresses and numbers; `printers/serve.hpp` has the same fields. What the addresses point to is kept
by the caller.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from enum import IntEnum
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from paceline.kernels.build import library
from paceline.kernels.compiled import Call
from paceline.kernels.fused import TEAM
from paceline.kernels.printers.cpp import part
from paceline.kernels.served_steps import ServedStep
from paceline.kernels.weights import REALS

SPAN = np.dtype([
    (name, "<i8") for name in ("value", "state", "present", "place", "rows", "width", "stride", "group")
])  # fmt: skip
OPEN = -1  # the bound of a gate that is always open


class Stage(IntEnum):
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
        ("integers", Integers), ("versions", ctypes.c_void_p), ("spans", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("parameters", "lock", "bytes", "slots", "base", "own")),
    ]  # fmt: skip


class DeskInMemory(ctypes.Structure):
    """The desk: its integers, and where they say what."""

    _fields_ = [
        ("integers", Integers),
        *((name, ctypes.c_int64) for name in ("lock", "batches", "lease", "gate", "bound")),
    ]  # fmt: skip


class Served(ctypes.Structure):
    """All that a leg at a server reads and writes besides its call."""

    _fields_ = [
        ("shards", ctypes.c_void_p), ("desk", DeskInMemory),
        *((name, ctypes.c_void_p) for name in (
            "doorbells", "sent", "taken", "rows", "cancelled", "settings", "run",
        )),
        *((name, ctypes.c_int64) for name in (
            "count", "worker", "workers", "locks", "room", "spin", "shortest", "longest", "deadline", "finite",
            "snapshots", "checkpoints", "first", "last", "until", "batch", "stage", "waited", "made", "ended", "lock",
        )),
        ("loss", ctypes.c_double),
    ]  # fmt: skip


def text(dtype: torch.dtype, step: ServedStep, in_place: bool) -> str:
    """The C++ of a leg at a server; the network's own code is called by its address.

    in_place    whether all workers write into one memory without versions (Hogwild)
    """
    return "\n".join([
        f"#define REAL {REALS[dtype]}\n#define LANES 1\n#define REPLICAS 0\n#define TEAM {8 * TEAM}",
        f"#define DOUBLE {int(dtype is torch.float64)}\n#define IN_PLACE {int(in_place)}",
        part("prelude"), part("call"), *step.lines(in_place), part("serve"), *([] if in_place else [TRIED]),
    ])  # fmt: skip


TRIED = """
// The optimizer's step alone, to be compared with PyTorch's.
extern "C" void paceline_step_once(
    const double* settings, int64_t present, const R* old, const R* remembered, R* fresh, R* kept, const R* gradient,
    R* own, int64_t count
) {
    step(settings, present, old, remembered, fresh, kept, gradient, own, 1, count, count);
}
"""


@cache
def program(dtype: torch.dtype, step: ServedStep, in_place: bool) -> Callable[[Call, Served], None]:
    """Return the function that makes a leg; compiled, or found in the cache."""
    run = functions(dtype, step, in_place).paceline_serve
    run.argtypes, run.restype = [ctypes.c_void_p] * 2, None
    return lambda call, served: run(ctypes.byref(call), ctypes.byref(served))


@cache
def functions(dtype: torch.dtype, step: ServedStep, in_place: bool) -> ctypes.CDLL:
    """Return the library of a text, in which nothing is contracted that PyTorch rounds twice."""
    return library(text(dtype, step, in_place), ("-ffp-contract=off",))[0]


NUMBERS = 1003  # which no vector divides: the last of them are computed one by one


@torch.no_grad()
def agrees(optimizer: torch.optim.Optimizer, dtype: torch.dtype, step: ServedStep) -> bool:
    """Whether generated code makes the steps of every parameter group to the last bit as this PyTorch does here."""
    once = functions(dtype, step, False).paceline_step_once
    once.argtypes, once.restype = [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 6, ctypes.c_int64], None
    generator = torch.Generator().manual_seed(1)
    for group in optimizer.param_groups:
        parameter = nn.Parameter(torch.randn(NUMBERS, dtype=dtype, generator=generator))
        theirs = type(optimizer)([parameter], **{k: copy.copy(v) for k, v in group.items() if k in optimizer.defaults})
        settings = torch.tensor(step.row(group), dtype=torch.float64)
        value, state = parameter.detach().clone(), torch.zeros(NUMBERS, dtype=dtype)
        for number in range(3):
            parameter.grad = torch.randn(NUMBERS, dtype=dtype, generator=generator)
            theirs.step()
            fresh, kept, own = torch.empty_like(value), torch.zeros_like(value), torch.empty_like(value)
            tensors = [value, state, fresh, kept, parameter.grad, own]
            once(settings.data_ptr(), min(number, 1), *(tensor.data_ptr() for tensor in tensors), NUMBERS)
            value, state = fresh, kept
            found = theirs.state[parameter].get(step.state) if step.state is not None else None
            if not torch.equal(value, parameter) or not (found is None or torch.equal(state, found)):
                return False
    return True


def address_of(function: Callable[..., object]) -> int:
    """Return the address of a function of a library."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def addresses(tensors: list[Tensor]) -> np.ndarray:
    """Return the addresses of tensors, in memory of their own."""
    return np.array([tensor.data_ptr() for tensor in tensors], np.int64)
