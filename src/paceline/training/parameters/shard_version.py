"""One version of a shard in memory that workers share: values, optimizer state and the rule's memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.algorithms.rules import Exchanging, Rule
from paceline.errors import JobError, users_code
from paceline.training.parameters.layout import ALIGN, ShardLayout
from paceline.training.parameters.optimizers import Optimizer, bare_step, optimizer_over
from paceline.training.parameters.rows import Journal, one_row, outside, rows_of
from paceline.training.parameters.worker_state import WorkerState, state_of_memories


class StateField(NamedTuple):
    """One entry of an optimizer's state for one parameter."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: type  # Tensor, int, float or NoneType


StateFields = dict[str, StateField]


def state_shapes(
    parameters: list[nn.Parameter], optimizer: Optimizer, tables: Collection[int] = ()
) -> list[StateFields]:
    """Return the fields of the optimizer's state per parameter, found by stepping a copy of it on copies.

    `tables` are the numbers of the parameters whose gradient is sparse.
    """
    copies = {p: nn.Parameter(p.detach().clone()) for p in parameters}
    for number, copy in enumerate(copies.values()):
        copy.grad = one_row(copy.detach(), 0) if number in tables else torch.zeros_like(copy)
    stepped = optimizer_over(optimizer, copies)
    name = type(optimizer).__name__

    def shapes() -> list[StateFields]:
        return [{key: _field(key, v, name) for key, v in stepped.state.get(c, {}).items()} for c in copies.values()]

    with users_code("the first step of optimizer="):
        bare_step(stepped)()
        first = shapes()
        for _ in range(2):
            bare_step(stepped)()
    if shapes() != first:
        grown = sorted({key for fields in shapes() for key in fields} - {key for fields in first for key in fields})
        raise JobError(
            f"{name} remembers {grown or 'things of another shape'} only from a later step on; {_FROM_START}"
        )
    return first


def _field(key: str, value: Any, optimizer: str) -> StateField:
    if isinstance(value, Tensor):
        return StateField(tuple(value.shape), value.dtype, Tensor)
    if value is None or isinstance(value, int | float):
        return StateField((), torch.float64, type(value))
    raise JobError(
        f"{optimizer} remembers {key!r} as a {type(value).__name__}, which cannot lie in memory that workers share; "
        "use an optimizer whose state is tensors and numbers"
    )


_FROM_START = "what workers share must be there from the first step on: make it in the optimizer's first step"


class OptimizerState:
    """One copy of a shard's optimizer state in a run of bytes: which parameters have any, then their fields."""

    def __init__(self, shapes: list[StateFields], raw: Tensor) -> None:
        self.raw, self.shapes = raw, shapes
        #: Whether each parameter has state, as 0 or 1.
        self.present = raw[: 8 * len(shapes)].view(torch.int64)
        self.views: list[dict[str, Tensor]] = []
        start = _up(8 * len(shapes))
        for shape in shapes:
            views = {}
            for key, field in shape.items():
                size = torch.Size(field.shape).numel() * field.dtype.itemsize
                views[key] = raw[start : start + size].view(field.dtype).view(field.shape)
                start += _up(size)
            self.views.append(views)

    @staticmethod
    def size(shapes: list[StateFields]) -> int:
        sizes = [torch.Size(f.shape).numel() * f.dtype.itemsize for shape in shapes for f in shape.values()]
        return _up(8 * len(shapes)) + sum(map(_up, sizes))

    def recall(self, number: int) -> dict[str, Any]:
        """Return the optimizer's state of a parameter: tensors as views of the memory, numbers as numbers."""
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
    """The contents of every version of a shard, in this order: values, optimizer state, the rule's memory."""

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
        """Whether the optimizer steps at the server and has state."""
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
    """Return the shape of a shard's versions. `optimizer` is None where workers step their own replicas; `sparse` names
    the parameters whose gradient is sparse.
    """
    remembered = [
        {key: _field(key, value, type(rule).__name__) for key, value in rule.remembers(p.detach()).items()}
        for p in parameters
    ]
    if optimizer is None:
        return VersionShape(layout, dtype, [StateFields() for _ in parameters], remembered, ())
    tables = tuple(number for number, span in enumerate(layout.parameters) if span.name in sparse)
    return VersionShape(layout, dtype, state_shapes(parameters, optimizer, tables), remembered, tables)


class ShardVersion:
    """One version of a shard in one run of bytes: its values, the optimizer's state and the rule's memory."""

    def __init__(self, shape: VersionShape, raw: Tensor) -> None:
        self.raw, self.shape = raw, shape
        self.values = raw[: shape.values].view(shape.dtype)
        self.parameters = shape.layout.flat_views(self.values)
        self.buffers = shape.layout.buffer_views(self.values)
        memory_start = shape.values + OptimizerState.size(shape.state)
        self.state = OptimizerState(shape.state, raw[shape.values : memory_start])
        self.memory = OptimizerState(shape.memory, raw[memory_start:]).views

    def start(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], rule: Rule | Exchanging) -> None:
        """Write version 0."""
        for view, value in zip((*self.parameters, *self.buffers), (*parameters, *buffers), strict=True):
            view.copy_(value.detach())
        for parameter, memory in zip(parameters, self.memory, strict=True):
            for key, value in rule.remembers(parameter.detach()).items():
                memory[key].copy_(value)

    def worker_state(self) -> WorkerState:
        """Return everything in this version, as views."""
        tensors = {"values": self.values, "present": self.state.present}
        tensors |= {
            f"optimizer.{n}.{key}": view for n, views in enumerate(self.state.views) for key, view in views.items()
        }
        return WorkerState(tensors) | state_of_memories("rule", self.memory)

    def restore(self, worker_state: WorkerState) -> None:
        for name, view in self.worker_state().tensors.items():
            view.copy_(worker_state.tensors[name])

    def keep_buffers(self, moving: Sequence[Tensor]) -> None:
        """Write the moving buffers. The last push wins; each worker continues from its own."""
        for view, buffer in zip(self.buffers, moving, strict=True):
            view.copy_(buffer)


# --- Copying a shard with embedding tables from version to version: of a table only the touched rows ------------------


class RowPartition:
    """The bytes of a version: those that belong to the rows of each table, and the rest."""

    def __init__(self, version: ShardVersion) -> None:
        self.tables = [self._rowwise(version, number) for number in version.shape.tables]
        self.rest = outside(version.raw, [tensor for table in self.tables for tensor in table])

    @staticmethod
    def _rowwise(version: ShardVersion, number: int) -> list[Tensor]:
        """Return a table and the optimizer's state of it that has a row per row."""
        table, remembered = version.parameters[number], version.state.views[number].values()
        return [table, *(view for view in remembered if view.shape[:1] == table.shape[:1])]

    def follow(self, newest: RowPartition, missing: Sequence[Tensor | None]) -> None:
        """Become a copy of the newest version. `missing` are the rows of each table to copy; None for all of them."""
        for mine, theirs in zip(self.rest, newest.rest, strict=True):
            mine.copy_(theirs)
        for table, source, rows in zip(self.tables, newest.tables, missing, strict=True):
            for mine, theirs in zip(table, source, strict=True):
                if rows is None:
                    mine.copy_(theirs)
                else:
                    mine.index_copy_(0, rows, theirs.index_select(0, rows))


class RowCopier:
    """Copies versions by rows, and notes in the shard's journal which rows each update touches."""

    def __init__(self, versions: list[ShardVersion], journal: Journal) -> None:
        self.journal, self.tables = journal, versions[0].shape.tables
        self.partitions = [RowPartition(version) for version in versions]
        tables = [versions[0].parameters[number] for number in self.tables]
        self._dense = 2 * (versions[0].values.nbytes - sum(table.nbytes for table in tables))
        self._sizes = [(table.nbytes, table[:1].nbytes + torch.int64.itemsize) for table in tables]

    def copy(self, update: int, source: int, target: int) -> int:
        """Copy a version to where update `update` will make the next one; the bytes of the pull and the dense push."""
        missing = self.journal.begin(update, source, target)
        self.partitions[target].follow(self.partitions[source], missing)
        return self._dense + sum(self._bytes(table, rows) for table, rows in enumerate(missing))

    def note(self, update: int, version: ShardVersion, gradients: Sequence[Tensor | None]) -> int:
        """Note the rows that these gradients touch; the bytes in which their rows travel."""
        present, total = version.state.present.tolist(), 0
        for table, number in enumerate(self.tables):
            rows = rows_of(gradients[number])
            total += self._bytes(table, rows)
            # What an optimizer makes in its first step it makes for all rows, and it need not be zeros.
            first = not present[number] and len(self.partitions[0].tables[table]) > 1
            self.journal.note(update, table, None if first else rows)
        return total

    def _bytes(self, table: int, rows: Tensor | None) -> int:
        """Return the bytes of these rows of a table with their numbers; of all of it where `rows` is None."""
        table_size, row = self._sizes[table]
        return table_size if rows is None else len(rows) * row
