"""Rows: the part of an embedding table that travels when a batch touches few of its rows.

A *table* is a parameter whose gradient is sparse: some of its rows, as under `nn.Embedding(sparse=True)`. The next
version of a shard is made in a slot that holds an older one (`algorithms.server.version_slots`). All that this slot
lacks of a table are the rows touched since, so only they are copied. A `Journal` knows which they are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.errors import JobError
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.optimizers import Optimizer, bare_step, optimizer_over

Ints = np.ndarray[Any, np.dtype[np.int64]]  # NumPy's, whose small operations cost a tenth of PyTorch's

SIDE_BY_SIDE = 8  # neighbouring rows that are copied in the time of one row by its number


def coalesced(gradient: Tensor | None) -> Tensor | None:
    """Return the gradient; a sparse one with each row once, in order."""
    if gradient is None or not gradient.is_sparse:
        return gradient
    _leave_indices_unchecked()
    return gradient.coalesce()


def numbers(gradient: Tensor) -> Tensor:
    """Return the values of a gradient in any shape; of a sparse one, those of the rows it touches."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all these gradients together."""
    norms = [torch.linalg.vector_norm(numbers(each)) for each in gradients]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def rows_of(gradient: Tensor | None) -> Tensor | None:
    """Return the rows that a coalesced gradient of a table touches; None for all of them."""
    if gradient is None:
        return torch.empty(0, dtype=torch.int64)
    return gradient.indices()[0] if gradient.is_sparse else None


def one_row(table: Tensor, row: int) -> Tensor:
    """Make a sparse gradient that touches one row."""
    _leave_indices_unchecked()
    return torch.sparse_coo_tensor(torch.tensor([[row]]), torch.ones_like(table[:1]), table.shape).coalesce()


@functools.cache
def _leave_indices_unchecked() -> None:
    """Make PyTorch's default explicit; otherwise it warns when Adagrad or SparseAdam make a sparse tensor."""
    if not torch.sparse.check_sparse_tensor_invariants.is_enabled():
        torch.sparse.check_sparse_tensor_invariants.disable()


def outside(raw: Tensor, inner: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a run of bytes that are in none of these tensors, which are views of it."""
    start, parts = 0, []
    for tensor in sorted(inner, key=Tensor.data_ptr):
        at = tensor.data_ptr() - raw.data_ptr()
        parts.append(raw[start:at])
        start = at + tensor.nbytes
    return [part for part in (*parts, raw[start:]) if len(part)]


class Journal:
    """Records which rows of a shard's tables its versions touched, and how much of that each slot's version has.

        ring of a table   .. 7 9 | 2 7 8 | 3 9 ..     the rows of one version after those of the one before
                                   ^       ^
                       seen by slot 0     end of the newest version: slot 0 lacks rows 2, 7 and 8

    A position in the ring is a number that only grows, taken modulo the ring's length.

    ints: ends, of the newest version and of the one in the making, by parity | seen, of each slot | the rings

    A SIGKILL leaves the journal valid: what is written for a version that is never committed is written again by the
    next worker that makes the version. It may have overwritten old rows, but at most `limit` of them, and a ring is
    twice as long as any reader looks back. The slot of the uncommitted version is marked (-1) until a later version is
    made from it.
    """

    def __init__(self, heights: Sequence[int], slots: int, ints: Tensor) -> None:
        count = len(heights)
        self.limits = [_limit(height) for height in heights]
        sizes = [2 * count, slots * count, *(2 * limit for limit in self.limits)]
        ends, cursors, *self.rings = (part.numpy() for part in ints.split(sizes))
        self.ends, self.seen = ends.reshape(2, count), cursors.reshape(slots, count)

    @staticmethod
    def size(heights: Sequence[int], slots: int) -> int:
        return (2 + slots) * len(heights) + sum(2 * _limit(height) for height in heights)

    def begin(self, version: int, source: int, target: int) -> list[Tensor | None]:
        """Begin a version in the target slot, made from the one before in the source slot.

        Return the rows that the target lacks, per table; None where it may lack any.
        """
        ends, cursors = self.ends[(version - 1) % 2], self.seen[target].tolist()
        self.seen[source] = ends
        self.seen[target] = -1
        return [self._between(table, *places) for table, places in enumerate(zip(cursors, ends.tolist(), strict=True))]

    def note(self, version: int, table: int, rows: Tensor | None) -> None:
        """Note that the version in the making touches these rows of a table; None: perhaps all."""
        limit, start = self.limits[table], int(self.ends[(version - 1) % 2, table])
        end = start + limit + 1  # further than any reader looks back
        if rows is not None and len(rows) <= limit:
            end = start + len(rows)
            first, rest = self._parts(table, start, end)
            indices = rows.numpy()
            first[:], rest[:] = indices[: len(first)], indices[len(first) :]
        self.ends[version % 2, table] = end

    def _between(self, table: int, start: int, end: int) -> Tensor | None:
        if start < 0 or end - start > self.limits[table]:
            return None
        return torch.from_numpy(np.concatenate(self._parts(table, start, end)))

    def _parts(self, table: int, start: int, end: int) -> tuple[Ints, Ints]:
        """Return the ring between two positions: a part up to the ring's end, and one from its beginning."""
        ring = self.rings[table]
        first, last = start % len(ring), start % len(ring) + end - start
        return ring[first:last], ring[: max(0, last - len(ring))]


def _limit(height: int) -> int:
    """Return how many rows of a table are copied one by one; where more are missing, the table is copied whole."""
    return max(1, height // SIDE_BY_SIDE)


# Checks of embedding tables before the first update, and advice about them.

THAT_CAN = "SGD without momentum and weight decay, Adagrad, or (where every gradient is sparse) SparseAdam"
LARGE, FEW = 1 << 20, 0.1  # advice is for tables of more bytes, of whose rows a batch touches a smaller share


def sparse_names(module: nn.Module) -> tuple[str, ...]:
    """Return the parameters whose gradient is sparse. Raise `JobError` for one that is not made of whole rows."""
    names = []
    for name, parameter in trainable(module).items():
        gradient = parameter.grad
        if gradient is None or gradient.layout == torch.strided:
            continue
        if gradient.layout != torch.sparse_coo or gradient.sparse_dim() != 1:
            raise JobError(
                f"parameter {name} gets a sparse gradient that is not made of whole rows ({gradient.layout}), which no "
                "plan sends; make it dense"
            )
        names.append(name)
    return tuple(names)


def check_optimizer(optimizer: Optimizer, module: nn.Module, tables: tuple[str, ...], shared: bool) -> None:
    """Raise `JobError` for an optimizer that does not take these tables' gradients, found by stepping copies.

    With `shared`, only touched rows travel, so no other rows may change, and the state must fit into shared memory.
    """
    kind = type(optimizer).__name__
    for name, parameter in trainable(module).items():
        copy = nn.Parameter(parameter.detach().clone())
        stepped, table = optimizer_over(optimizer, {parameter: copy}), name in tables
        copy.grad = one_row(copy.detach(), 0) if table else torch.zeros_like(copy)
        try:
            bare_step(stepped)()
        except RuntimeError as error:
            raise JobError(
                f"{kind} does not take the {'sparse' if table else 'dense'} gradient of parameter {name}: "
                f"{str(error).splitlines()[0]}. Sparse gradients are taken by {THAT_CAN}"
            ) from error
        if table and shared:
            _check_rows(stepped, copy, name)


def _check_rows(optimizer: Optimizer, table: nn.Parameter, name: str) -> None:
    """Touch the last row, after the first step has touched the first: nothing else may change."""
    kind, state = type(optimizer).__name__, optimizer.state.get(table, {})
    sparse = [key for key, value in state.items() if isinstance(value, Tensor) and value.layout != torch.strided]
    if sparse:
        raise JobError(
            f"{kind} keeps {sparse[0]!r} of parameter {name} as a sparse tensor, which cannot lie in memory that "
            f"workers share; use {THAT_CAN}"
        )

    def rowwise() -> list[Tensor]:
        tensors = [table.detach(), *(value for value in state.values() if isinstance(value, Tensor))]
        return [tensor[:-1].clone() for tensor in tensors if tensor.shape[:1] == table.shape[:1]]

    before = rowwise()
    table.grad = one_row(table.detach(), len(table) - 1)
    bare_step(optimizer)()
    if not all(torch.equal(a, b) for a, b in zip(before, rowwise(), strict=True)):
        raise JobError(
            f"{kind} changes rows of parameter {name} that a batch did not touch, and only touched rows travel; "
            f"use {THAT_CAN}, or sparse=False"
        )


def advice(module: nn.Module) -> list[str]:
    """Return advice for large embedding tables whose dense gradient is zero in nearly all rows."""
    notes, names = [], {id(p): name for name, p in trainable(module).items()}
    for part in module.modules():
        if not isinstance(part, nn.Embedding | nn.EmbeddingBag) or part.sparse or id(part.weight) not in names:
            continue
        table, gradient = part.weight, part.weight.grad
        if gradient is None or table.nbytes <= LARGE:
            continue
        touched = int(gradient.flatten(1).any(1).sum())
        if touched < FEW * len(table):
            notes.append(
                f"every push and every pull carries all {table.nbytes / 1e6:.1f} MB of {names[id(table)]}, although a "
                f"batch touches about {touched} of its {len(table)} rows. Remedy: sparse=True in the "
                f"{type(part).__name__}, with {THAT_CAN}; then only touched rows travel and are updated."
            )
    return notes
