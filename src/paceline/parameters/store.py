"""Homes: where parameters live and the user's own optimizer changes them.

A `ReplicaHome` is a worker's private copy of everything. A `ShardHome` is one worker's hands on a shard of a server:
any process that sees the same memory can take the next step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.core.rules import Averaging, Exchanging, Memory, Rule
from paceline.errors import JobError, users_code
from paceline.parameters.layout import ALIGN, ShardLayout
from paceline.parameters.rows import one_row
from paceline.parameters.worker_state import (
    WorkerState,
    restore_memories,
    restore_optimizer,
    state_of_memories,
    state_of_optimizer,
)  # fmt: skip

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
        self.count = 0
        # A scheduler warns when it is stepped before its optimizer; here another worker's optimizer may have stepped.
        if self.scheduler is not None:
            optimizer._opt_called = True  # type: ignore[attr-defined]

    def advance(self, updates: int) -> None:
        """Make the optimizer's settings those of the update that follows `updates` updates."""
        if self.scheduler is not None:
            while self.count < updates:
                self.scheduler.step()
                self.count += 1


def bare_step(optimizer: Optimizer) -> Callable[[], Any]:
    """The optimizer's step without PyTorch's profiler label around it, which takes as long as the arithmetic of a small
    network; with it where somebody has hooked in.
    """
    bare = getattr(type(optimizer).step, "__wrapped__", None)
    if bare is None or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return lambda: type(optimizer).step(optimizer)  # not what somebody has put in its place
    return lambda: bare(optimizer)


class LocalStore:
    """A worker's own copy of all parameters."""

    def __init__(
        self, parameters: list[nn.Parameter], optimizer: Optimizer, schedule: Schedule | None, rule: Rule | Averaging
    ) -> None:
        self.parameters, self.optimizer = parameters, optimizer
        self.memory = [rule.remembers(p.detach()) for p in parameters]
        self.pace = Pace(optimizer, schedule)
        self.updates = 0
        self._step = bare_step(optimizer)

    @property
    def values(self) -> list[Tensor]:
        return [p.detach() for p in self.parameters]

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.pace.advance(self.updates)
        self._step()
        self.updates += 1
        for parameter in self.parameters:
            parameter.grad = None


def state_of_store(store: LocalStore) -> WorkerState:
    """Collect what a store has besides the parameters: the memory of its rule, its optimizer and its schedule."""
    return (
        state_of_memories("rule", store.memory)
        | state_of_optimizer(store.optimizer, store.parameters)
        | WorkerState(facts={"pace": store.pace.count, "updates": store.updates})
    )


def restore_store(store: LocalStore, worker_state: WorkerState) -> None:
    """Put back what `state_of_store` collected."""
    restore_memories(store.memory, worker_state, "rule")
    store.pace.advance(worker_state.facts["pace"])  # a schedule is a function of the number of updates, without state
    restore_optimizer(store.optimizer, store.parameters, worker_state)
    store.updates = worker_state.facts["updates"]


class Cell(NamedTuple):
    """One thing an optimizer remembers of one parameter."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: type  # Tensor, int, float or NoneType


StateFields = dict[str, Cell]


def state_shapes(
    parameters: list[nn.Parameter], optimizer: Optimizer, tables: Collection[int] = ()
) -> list[StateFields]:
    """What the optimizer remembers of each parameter, learnt by letting a copy of it take steps on copies. `tables`:
    the numbers of those whose gradient is sparse.
    """
    copies = {p: nn.Parameter(p.detach().clone()) for p in parameters}
    for number, twin_of in enumerate(copies.values()):
        twin_of.grad = one_row(twin_of.detach(), 0) if number in tables else torch.zeros_like(twin_of)
    twin = optimizer_over(optimizer, copies)
    name = type(optimizer).__name__

    def shapes() -> list[StateFields]:
        return [{key: _cell(key, v, name) for key, v in twin.state.get(c, {}).items()} for c in copies.values()]

    with users_code("the first step of optimizer="):
        twin.step()
        first = shapes()
        for _ in range(2):
            twin.step()
    if shapes() != first:
        grown = sorted({key for cells in shapes() for key in cells} - {key for cells in first for key in cells})
        raise JobError(
            f"{name} remembers {grown or 'things of another shape'} only from a later step on; {_FROM_START}"
        )
    return first


def optimizer_over(optimizer: Optimizer, parameters: dict[nn.Parameter, nn.Parameter]) -> Optimizer:
    """The same optimizer, without memory, over other parameters; groups keep only those in `parameters`."""
    twin: Optimizer = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)  # copy.copy would keep only what an optimizer pickles
    twin.__dict__.pop("step", None)  # a schedule's, which steps the one it was made for
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


_FROM_START = "what workers share must be there from the first step on: make it in the optimizer's first step"


class OptimizerState:
    """One copy of a shard's optimizer state, laid over a run of bytes: which parameters have any, then their cells."""

    def __init__(self, shapes: list[StateFields], raw: Tensor) -> None:
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
    def size(shapes: list[StateFields]) -> int:
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
        if len(state) != len(self.views[number]):
            grown = sorted(set(state) ^ set(self.views[number]))
            raise JobError(f"the optimizer has begun, or ceased, to remember {grown}; {_FROM_START}")
        for key, view in self.views[number].items():
            value = state[key]
            if value is not view and value is not None:
                view.copy_(value if isinstance(value, Tensor) else torch.tensor(value, dtype=view.dtype))


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


@dataclass(frozen=True)
class VersionShape:
    """What lies in every room of a shard, one after the other."""

    layout: ShardLayout
    dtype: torch.dtype
    state: list[StateFields]  # what the optimizer remembers, per parameter
    memory: list[StateFields]  # what the rule remembers
    tables: tuple[int, ...]  # which parameters travel by rows

    @property
    def heights(self) -> list[int]:
        """The number of rows of each table."""
        return [self.layout.parameters[number].shape[0] for number in self.tables]

    @property
    def remembers(self) -> bool:
        """Whether the optimizer works here, and keeps anything."""
        return any(self.state)

    @property
    def values(self) -> int:
        return self.layout.length * self.dtype.itemsize

    @property
    def size(self) -> int:
        return self.values + OptimizerState.size(self.state) + OptimizerState.size(self.memory)


def version_shape(
    layout: ShardLayout,
    dtype: torch.dtype,
    parameters: list[nn.Parameter],
    optimizer: Optimizer | None,
    rule: Rule | Exchanging,
    sparse: Collection[str] = (),
) -> VersionShape:
    """`sparse`: the names of the parameters whose gradient is."""
    remembered = [
        {key: _cell(key, value, type(rule).__name__) for key, value in rule.remembers(p.detach()).items()}
        for p in parameters
    ]
    if optimizer is None:  # where workers step by themselves, none works here
        return VersionShape(layout, dtype, [StateFields() for _ in parameters], remembered, ())
    tables = tuple(number for number, place in enumerate(layout.parameters) if place.name in sparse)
    return VersionShape(layout, dtype, state_shapes(parameters, optimizer, tables), remembered, tables)


class ShardVersion:
    """One version of a shard: its values, and what the optimizer and the rule remember of them, in one run of bytes."""

    def __init__(self, shape: VersionShape, raw: Tensor) -> None:
        self.raw, self.shape = raw, shape
        self.values = raw[: shape.values].view(shape.dtype)
        self.parameters = shape.layout.parameter_views(self.values)
        self.buffers = shape.layout.buffer_views(self.values)
        middle = shape.values + OptimizerState.size(shape.state)
        self.state = OptimizerState(shape.state, raw[shape.values : middle])
        self.memory = OptimizerState(shape.memory, raw[middle:]).views

    def start(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], rule: Rule | Exchanging) -> None:
        """Put version 0 here."""
        for view, value in zip((*self.parameters, *self.buffers), (*parameters, *buffers), strict=True):
            view.copy_(value.detach())
        for parameter, memory in zip(parameters, self.memory, strict=True):
            for key, value in rule.remembers(parameter.detach()).items():
                memory[key].copy_(value)

    def worker_state(self) -> WorkerState:
        kept = {"values": self.values, "present": self.state.present}
        kept |= {
            f"optimizer.{n}.{key}": view for n, views in enumerate(self.state.views) for key, view in views.items()
        }
        return WorkerState(kept) | state_of_memories("rule", self.memory)

    def restore(self, worker_state: WorkerState) -> None:
        for name, view in self.worker_state().tensors.items():
            view.copy_(worker_state.tensors[name])

    def keep_buffers(self, moving: Sequence[Tensor]) -> None:
        """The server owns the moving buffers and the last to come wins; each worker goes on from its own."""
        for view, buffer in zip(self.buffers, moving, strict=True):
            view.copy_(buffer)


class ShardStore:
    """One shard of a server, in rooms that may be shared memory, seen by one worker.

    `core.rooms` says in which room a worker makes its next version. The worker then computes with what lies there.
    """

    def __init__(
        self, parameters: list[nn.Parameter], optimizer: Optimizer, schedule: Schedule | None, rooms: list[ShardVersion]
    ) -> None:
        self.parameters, self.optimizer, self.rooms = parameters, optimizer, rooms
        self.pace = Pace(optimizer, schedule)
        self.updates = 0
        self._step = bare_step(optimizer)
        self._remembers = rooms[0].shape.remembers
        self.bytes = 2 * rooms[0].values.nbytes  # what a push brings and takes

    @property
    def values(self) -> list[Tensor]:
        return self.room.parameters

    @property
    def memory(self) -> list[Memory]:
        return self.room.memory

    def look(self, room: int) -> None:
        """Let the module compute with the version in this room."""
        self.room = self.rooms[room]
        for parameter, view in zip(self.parameters, self.room.parameters, strict=True):
            parameter.data = view

    def pulled(self, rule: Rule) -> list[Tensor]:
        """What the worker computed from, for a rule that looks back. To be asked before `move`."""
        return [v.clone() for v in self.room.parameters] if rule.looks_back else []

    def move(self, source: int, target: int) -> None:
        """Copy the newest version to where the next one shall be made, and look there."""
        self.rooms[target].raw.copy_(self.rooms[source].raw)
        self.look(target)

    def fetch(self, source: int, target: int) -> None:
        """Look at the newest version in a room of one's own."""
        if source != target:
            self.rooms[target].raw.copy_(self.rooms[source].raw)
        self.look(target)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Let the optimizer apply these gradients here; `updates` says how many came before."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.pace.advance(self.updates)
        if self._remembers:
            self._step_with_memory()
        else:
            self._step()
        for parameter in self.parameters:
            parameter.grad = None

    def _step_with_memory(self) -> None:
        state, memory = self.optimizer.state, self.room.state
        present = memory.present.tolist()
        for number, parameter in enumerate(self.parameters):
            if present[number]:
                state[parameter] = memory.recall(number)
            else:
                state.pop(parameter, None)
        self._step()
        for number, parameter in enumerate(self.parameters):
            if state.get(parameter):
                memory.keep(number, state[parameter])
