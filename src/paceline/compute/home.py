"""Homes: where parameters live and the user's own optimizer changes them.

A `ReplicaHome` is a worker's private copy of everything. A `ShardHome` is one worker's hands on a shard of a server:
any process that sees the same memory can take the next step, and undo the step of one that was killed in the middle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.compute.layout import ALIGN, ShardLayout
from paceline.errors import JobError

Optimizer = torch.optim.Optimizer
Schedule = Callable[[Optimizer], Any]


class Pace:
    """The learning-rate schedule as a function of the number of updates, whoever applied them."""

    def __init__(self, optimizer: Optimizer, schedule: Schedule | None) -> None:
        self.scheduler = schedule(optimizer) if schedule else None
        if self.scheduler is not None and type(self.scheduler).__name__ == "ReduceLROnPlateau":
            raise JobError(
                "ReduceLROnPlateau follows a metric, not the number of updates, and workers do not share one; "
                "use a schedule such as torch.optim.lr_scheduler.CosineAnnealingLR"
            )
        self._count = 0
        # A scheduler warns when it is stepped before its optimizer; here another worker's optimizer may have stepped.
        if self.scheduler is not None:
            optimizer._opt_called = True  # type: ignore[attr-defined]

    def advance(self, updates: int) -> None:
        """Make the optimizer's settings those of the update that follows `updates` updates."""
        if self.scheduler is not None:
            while self._count < updates:
                self.scheduler.step()
                self._count += 1


class ReplicaHome:
    """A worker's own copy of all parameters."""

    def __init__(self, parameters: list[nn.Parameter], optimizer: Optimizer, schedule: Schedule | None) -> None:
        self.parameters, self.optimizer = parameters, optimizer
        self.pace = Pace(optimizer, schedule)
        self.updates = 0

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.pace.advance(self.updates)
        self.optimizer.step()
        self.updates += 1
        for parameter in self.parameters:
            parameter.grad = None


class Cell(NamedTuple):
    """One thing an optimizer remembers of one parameter."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: type  # Tensor, int, float or NoneType


StateShape = dict[str, Cell]


def state_shapes(parameters: list[nn.Parameter], optimizer: Optimizer) -> list[StateShape]:
    """What the optimizer remembers of each parameter, learnt by letting a copy of it take one step on copies."""
    copies = {p: nn.Parameter(p.detach().clone()) for p in parameters}
    for twin_of in copies.values():
        twin_of.grad = torch.zeros_like(twin_of)
    twin = optimizer_over(optimizer, copies)
    twin.step()
    return [
        {key: _cell(key, value, type(optimizer).__name__) for key, value in twin.state.get(twin_of, {}).items()}
        for twin_of in copies.values()
    ]


def optimizer_over(optimizer: Optimizer, parameters: dict[nn.Parameter, nn.Parameter]) -> Optimizer:
    """The same optimizer, without memory, over other parameters; groups keep only those in `parameters`."""
    twin: Optimizer = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)  # copy.copy would keep only what an optimizer pickles
    twin.state = defaultdict(dict)
    twin.param_groups = [
        {**group, "params": [parameters[p] for p in group["params"] if p in parameters]}
        for group in optimizer.param_groups
    ]
    return twin


def _cell(key: str, value: Any, optimizer: str) -> Cell:
    if isinstance(value, Tensor):
        return Cell(tuple(value.shape), value.dtype, Tensor)
    if value is None or isinstance(value, int | float):
        return Cell((), torch.float64, type(value))
    raise JobError(
        f"{optimizer} remembers {key!r} as a {type(value).__name__}, which cannot lie in memory that workers share; "
        "use an optimizer whose state is tensors and numbers"
    )


class StateMemory:
    """One copy of a shard's optimizer state, laid over a run of bytes: which parameters have any, then their cells."""

    def __init__(self, shapes: list[StateShape], raw: Tensor) -> None:
        self.raw, self.shapes = raw, shapes
        self.present = raw[: 8 * len(shapes)].view(torch.int64)
        self.views: list[dict[str, Tensor]] = []
        start = _up(8 * len(shapes))
        for shape in shapes:
            views = {}
            for key, cell in shape.items():
                size = torch.Size(cell.shape).numel() * cell.dtype.itemsize
                views[key] = raw[start : start + size].view(cell.dtype).view(cell.shape)
                start += _up(size)
            self.views.append(views)

    @staticmethod
    def size(shapes: list[StateShape]) -> int:
        cells = [torch.Size(c.shape).numel() * c.dtype.itemsize for shape in shapes for c in shape.values()]
        return _up(8 * len(shapes)) + sum(map(_up, cells))

    def recall(self, number: int) -> dict[str, Any]:
        """The optimizer's own dictionary for a parameter: tensors as views of the memory, numbers as numbers."""
        state: dict[str, Any] = {}
        for key, view in self.views[number].items():
            kind = self.shapes[number][key].kind
            state[key] = view if kind is Tensor else None if kind is type(None) else kind(view.item())
        return state

    def keep(self, number: int, state: dict[str, Any]) -> None:
        """Write back what the optimizer did not change in place."""
        self.present[number] = 1
        for key, view in self.views[number].items():
            value = state[key]
            if value is not view and value is not None:
                view.copy_(value if isinstance(value, Tensor) else torch.tensor(value, dtype=view.dtype))


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


class ShardHome:
    """One shard of a server, in memory that may be shared, seen by one worker.

    The worker computes with its own `copy`. To change the shard it takes the shard's newest values into that copy
    first, which makes the copy an undo record should the worker be killed half-way; changes the shard in place; and
    pulls the result. In place, because lines of memory that one core writes and others only read are slow to write
    again.
    """

    def __init__(
        self,
        layout: ShardLayout,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        schedule: Schedule | None,
        memory: ShardTensors,
    ) -> None:
        self.parameters, self.optimizer, self.memory = parameters, optimizer, memory
        self.pace = Pace(optimizer, schedule)
        self.updates = 0
        self._ours, self._mine = layout.parameter_views(memory.newest), layout.parameter_views(memory.copy)
        self.buffers = layout.buffer_views(memory.newest)
        self._remembers = any(memory.state.shapes)
        self.pull()
        self.look()

    def look(self) -> None:
        """Let the module compute with this worker's copy."""
        self._look_at(self._mine)

    def pull(self) -> None:
        self.memory.copy.copy_(self.memory.newest)

    def save(self) -> None:
        """Make the copy the undo record of the step that follows."""
        self.memory.copy.copy_(self.memory.newest)
        if self._remembers:
            self.memory.undo.raw.copy_(self.memory.state.raw)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Let the optimizer apply these gradients to the newest values; `updates` says how many came before."""
        self._look_at(self._ours)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.pace.advance(self.updates)
        if self._remembers:
            self._step_with_memory()
        else:
            self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        self.look()

    def _look_at(self, views: list[Tensor]) -> None:
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view

    def _step_with_memory(self) -> None:
        state, memory = self.optimizer.state, self.memory.state
        present = memory.present.tolist()
        for number, parameter in enumerate(self.parameters):
            if present[number]:
                state[parameter] = memory.recall(number)
            else:
                state.pop(parameter, None)
        self.optimizer.step()
        for number, parameter in enumerate(self.parameters):
            if state.get(parameter):
                memory.keep(number, state[parameter])


@dataclass(frozen=True)
class ShardTensors:
    """The memory of one shard as one worker sees it."""

    newest: Tensor
    state: StateMemory
    copy: Tensor  # this worker's
    undo: StateMemory  # this worker's

    def restore(self) -> None:
        """Take back a step that its worker did not finish."""
        self.newest.copy_(self.copy)
        self.state.raw.copy_(self.undo.raw)
