"""Checks of embedding tables before the first update, and advice about them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.errors import JobError
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.optimizers import Optimizer, bare_step, optimizer_over
from paceline.training.parameters.rows import one_row

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
