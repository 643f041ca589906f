"""A module and its optimizer's state in the memory of generated code, where gradients are clipped, too.

    parameter.data                        ─┐
    optimizer.state[parameter]["exp_avg"] ─┴▶ views of the padded memory that generated code works in

The optimizer stays the user's own object: its settings are read before every call, its state is where torch keeps it.
Whatever puts other tensors there, as a checkpoint does, is noticed before the next call, and moves in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np
import torch
from torch import Tensor

from paceline.kernels.build import library
from paceline.kernels.compiled import Compiled, CompiledCall, view_of
from paceline.kernels.exchange import GradientExchange
from paceline.kernels.fused import Fused
from paceline.kernels.one_pass import FLAGS, HEAD
from paceline.kernels.optimizers import numbers
from paceline.kernels.printers.cpp import part
from paceline.kernels.weights import REALS

#: What a call leaves of each of its updates; `printers/call.hpp` has the same fields.
NOTE = np.dtype(
    [
        ("loss", "<f8"),
        ("computed", "<i8"),
        ("applied", "<i8"),
        ("summed", "<i8"),
        ("waited", "<i8"),
        ("mean", "<f8"),
    ]
)


class Resident:
    """The module of a fused network with one optimizer, stepped in place."""

    def __init__(self, fused: Fused, optimizer: torch.optim.Optimizer, x: Tensor | None = None) -> None:
        """`x` holds samples of the shape that the network is compiled for; default: those that it was compiled for."""
        self.fused, self.optimizer = fused, optimizer
        self.made = compiled = fused.compiled(x)
        #: Steps that the optimizer has made, which bias corrections depend on.
        self.steps = 0
        self._names = {id(parameter): name for name, parameter in fused.weights.named.items()}
        trained = [p for group in optimizer.param_groups for p in group["params"] if self._gradient(p) is not None]
        self._state = [(p, self._views_of_state(compiled, self._names[id(p)], p)) for p in trained]
        self._counts = [torch.zeros(()) for _ in trained] if compiled.rule.counts else []

    def _gradient(self, parameter: Tensor) -> Tensor | None:
        return self.made.gradients.get(self._names.get(id(parameter), ""))

    @staticmethod
    def _views_of_state(compiled: Compiled, name: str, parameter: Tensor) -> dict[str, Tensor]:
        size = compiled.plan.sizes["weights"]
        parts = {key: compiled.memory["state"][n * size : (n + 1) * size] for n, key in enumerate(compiled.rule.states)}
        return {key: view_of(part, compiled.plan, name, parameter.shape) for key, part in parts.items()}

    def settings(self) -> list[list[float]]:
        """Return a row of numbers per parameter group, as the optimizer has them now."""
        return [numbers(group, self.made.rule.settings, 0.0) for group in self.optimizer.param_groups]

    @torch.no_grad()
    def step(self, gradients: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Make the optimizer's step from pairs of a parameter and its gradient; none where there are no gradients."""
        pairs = [(to, g) for p, g in gradients if (to := self._gradient(p)) is not None]
        if not pairs:
            return
        self._move_in()
        torch._foreach_copy_([to for to, _ in pairs], [g for _, g in pairs])
        settings = torch.tensor(self.settings(), dtype=torch.float64)
        call = CompiledCall(**{name: tensor.data_ptr() for name, tensor in self.made.memory.items()})
        call.settings, call.update = settings.data_ptr(), self.steps
        self.fused.processor.apply(self.made, call)
        self._count(1)

    def _move_in(self) -> None:
        """Make the module's tensors and the optimizer's state views of generated code's memory, where they are not."""
        for tensor, view in zip(self.made.tensors, self.made.weights, strict=True):
            if tensor.data_ptr() != view.data_ptr():
                view.copy_(tensor)
                tensor.data = view
        for number, (parameter, views) in enumerate(self._state):
            state = self.optimizer.state[parameter]
            for key, view in views.items():
                if (current := state.get(key)) is not view:
                    view.zero_() if current is None else view.copy_(current)
                    state[key] = view
            if self._counts and (count := state.get("step")) is not self._counts[number]:
                self._counts[number].fill_(0 if count is None else float(count))
                state["step"] = self._counts[number]
                self.steps = int(self._counts[number])

    def _count(self, steps: int) -> None:
        self.steps += steps
        if self._counts:
            torch._foreach_add_(self._counts, steps)


class GradientsByNumber:
    """Computes gradients of samples that are read where they lie, by their numbers in `x` and `y`."""

    def __init__(self, fused: Fused, x: Tensor, y: Tensor) -> None:
        self.fused, self.made = fused, fused.compiled(x[:1])
        self._call, self._alive = fused.call_for(self.made, x, y)
        self._call.updates, self._call.update = 1, -1

    @torch.no_grad()
    def compute(self, order: Tensor, seed: int) -> tuple[float, dict[str, Tensor]]:
        """The mean loss of these samples and its gradient by parameter, in memory that the next call overwrites."""
        self.made.take_weights()
        call = self._call
        call.order, call.samples, call.batch, call.seed = order.data_ptr(), len(order), len(order), seed
        loss = self.fused.run(self.made, call)
        self.fused.copy_statistics(self.made)
        return loss, self.made.gradients


class UpdateLoop:
    """Makes many updates of a resident module in one call, each as if it were made alone.

    x, y    the samples that orders name
    seed    of the job: what an update draws is a function of it and of the update's number
    doing   the integer, in memory that others may read, that says which update is being made
    most    updates of one call
    """

    #: How gradients are added up with other workers in every update; None where updates are made alone.
    exchange: GradientExchange | None = None
    #: How the gradients of every update are clipped; None where they are taken as they are.
    clipping: Clipping | None = None

    def __init__(self, resident: Resident, x: Tensor, y: Tensor, seed: int, doing: np.ndarray, most: int) -> None:
        self.resident, self.most = resident, most
        self._notes = np.zeros(most, NOTE)
        self._call, alive = resident.fused.call_for(resident.made, x, y)
        self._alive = (alive, doing)  # the call has only their addresses
        self._call.seed, self._call.notes, self._call.doing = seed, self._notes.ctypes.data, doing.ctypes.data

    @torch.no_grad()
    def make(self, order: Tensor, batch: int, updates: range, chunk: int, settings: Tensor) -> np.ndarray:
        """Make an update for each batch of samples in `order`, of which the last may be smaller; return their notes.

        Where an exchange ends the call early, the notes of later updates say nothing.

        updates     the numbers of the updates
        chunk       the number of the samples' part in each of them
        settings    what the optimizer's settings are: one row for all updates, or a row for each
        """
        resident, call = self.resident, self._call
        resident._move_in()
        call.order, call.samples, call.batch, call.updates = order.data_ptr(), len(order), batch, len(updates)
        call.first, call.stride, call.chunk, call.update = updates[0], updates.step, chunk, resident.steps
        call.clipping = ctypes.addressof(self.clipping) if self.clipping is not None else None
        call.exchange = ctypes.addressof(self.exchange) if self.exchange is not None else None
        call.settings, call.pace = settings.data_ptr(), prod(settings.shape[1:]) if len(settings) > 1 else 0
        resident.fused.run(resident.made, call)
        resident._count(len(updates))
        resident.fused.weights.count_batches(len(updates))
        return self._notes[: len(updates)]


# Gradients whose norm is too large, scaled by generated code, where they lie, to PyTorch's bits.
#
# In which order PyTorch sums squares depends on how it was compiled and on the processor. There are a dozen ways;
# `gradients.native_clip` finds the one that has PyTorch's bits here.


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
